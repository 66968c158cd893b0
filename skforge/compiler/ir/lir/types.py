"""Types, values and buffers of LIR, their NumPy dtypes, and the roles of fields."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn, TypeAlias, get_args

import numpy as np

ScalarName: TypeAlias = Literal[
    "bool", "i16", "u8", "u16", "u32", "i32", "i64", "f32", "f64"
]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number; ``u*`` is unsigned, ``i*`` two's complement, ``bool`` one bit."""

    name: ScalarName

    @property
    def is_float(self) -> bool:
        return self.name in ("f32", "f64")

    @property
    def is_signed(self) -> bool:
        return self.name in ("i16", "i32", "i64")

    @property
    def bytes(self) -> int:
        return _DTYPES[self.name].itemsize

    @property
    def element(self) -> Scalar:
        return self

    @property
    def lanes(self) -> int:
        return 0


BOOL, I16, U8, U16, U32, I32, I64, F32, F64 = map(Scalar, get_args(ScalarName))


@dataclass(frozen=True, slots=True)
class Vec:
    """``lanes`` numbers handled as one value."""

    element: Scalar
    lanes: int


@dataclass(frozen=True, slots=True)
class Mask:
    """One truth value for each lane of a ``Vec``."""

    lanes: int

    @property
    def element(self) -> Scalar:
        return BOOL


@dataclass(frozen=True, slots=True)
class Plane:
    """One bit for each of ``rows`` rows; 64 may be in a ``vector`` register.

    These may be loaded with the 8 bytes behind them, as an instruction's own operand.
    """

    rows: int
    vector: bool = False

    @property
    def element(self) -> Scalar:
        return BOOL

    @property
    def lanes(self) -> int:
        return 0


Type: TypeAlias = Scalar | Vec | Mask | Plane


#: The builder to which expressions append their operations; see ``Builder``.
BUILDER: ContextVar[Any] = ContextVar("builder")


def _method(name: str, *given: str) -> Callable[[Value, Value | int | float], Value]:
    return lambda a, b: getattr(BUILDER.get(), name)(*given, a, b)


def _reflected(op: str) -> Callable[[Value, int | float], Value]:
    return lambda b, a: BUILDER.get().binary(op, a, b)


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA name and its type.

    Its operators append operations to the open builder. Two values are equal if they
    are the same one, so that comparisons for equality are methods.
    """

    name: str
    type: Type

    __add__, __mul__ = _method("add"), _method("mul")
    __sub__, __mod__ = _method("binary", "sub"), _method("binary", "rem")
    __radd__, __rmul__, __rsub__ = __add__, __mul__, _reflected("sub")
    __rfloordiv__, __rlshift__ = _reflected("div"), _reflected("shl")
    __floordiv__ = __truediv__ = _method("binary", "div")  # of integers, toward zero
    __and__, __or__ = _method("binary", "and"), _method("binary", "or")
    __xor__ = _method("binary", "xor")
    __lshift__, __rshift__ = _method("binary", "shl"), _method("binary", "shr")
    __lt__, __le__ = _method("compare", "lt"), _method("compare", "le")
    __gt__, __ge__ = _method("compare", "gt"), _method("compare", "ge")
    min, max = _method("binary", "min"), _method("binary", "max")
    eq, ne = _method("compare", "eq"), _method("compare", "ne")

    def __invert__(self) -> Value:
        return BUILDER.get().invert(self)

    def __neg__(self) -> Value:
        return BUILDER.get().negate(self)

    def __bool__(self) -> NoReturn:
        raise TypeError(f"%{self.name} has no value yet; use select, if_ or when.")

    def to(self, element: Scalar) -> Value:
        return BUILDER.get().convert(self, element)


Space: TypeAlias = Literal["global", "shared", "private"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A typed array in memory; indices count elements."""

    name: str
    element: Scalar
    space: Space = "global"
    alignment: int = 0  # bytes; 0 = the element's size

    def __getitem__(self, index: Value | int | tuple[Value | int, Type]) -> Value:
        """Load an element, or a value of another type that begins there."""
        place = index if isinstance(index, tuple) else (index,)
        return BUILDER.get().load(self, *place)

    def __setitem__(self, index: Value | int, value: Value | float) -> None:
        BUILDER.get().store(self, index, value)

    __iter__ = None  # it has no length

    def part(self, first: Value) -> Part:
        return Part(self, first)


@dataclass(frozen=True, slots=True)
class Part:
    """A buffer from one of its elements on."""

    buffer: Buffer
    first: Value

    @property
    def element(self) -> Scalar:
        return self.buffer.element

    def __getitem__(self, index: Value | int | tuple[Value | int, Type]) -> Value:
        place, *type_ = index if isinstance(index, tuple) else (index,)
        return BUILDER.get().load(self.buffer, self.first + place, *type_)

    def __setitem__(self, index: Value | int, value: Value | float) -> None:
        self.buffer[self.first + index] = value

    __iter__ = None


_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype("?" if name == "bool" else f"{name[0]}{int(name[1:]) // 8}")
    for name in get_args(ScalarName)
}
_SCALARS = {dtype: Scalar(name) for name, dtype in _DTYPES.items()}  # type: ignore[arg-type]


def dtype_of(scalar: Scalar) -> np.dtype[Any]:
    return _DTYPES[scalar.name]


def scalar_of(dtype: np.dtype[Any]) -> Scalar:
    return _SCALARS[np.dtype(dtype)]


# Roles of the fields of LIR's classes, which their annotations declare.

#: What a class does with a field: it reads a value (to decide which bodies run), binds
#: one in its bodies or for later statements, accesses a buffer, or holds statements.
Role: TypeAlias = Literal[
    "operand", "steers", "inside", "result", "reads", "writes", "allocates", "dims",
    "body", "bodies",
]  # fmt: skip

Operand: TypeAlias = Annotated[Value, "operand"]
OptionalOperand: TypeAlias = Annotated[Value | None, "operand"]
Operands: TypeAlias = Annotated[tuple[Value, ...], "operand"]
OperandRows: TypeAlias = Annotated[tuple[tuple[Value, ...], ...], "operand"]
Steering: TypeAlias = Annotated[Value, "steers"]
Variable: TypeAlias = Annotated[Value, "inside"]
Variables: TypeAlias = Annotated[tuple[Value, ...], "inside"]
Result: TypeAlias = Annotated[Value, "result"]
Results: TypeAlias = Annotated[tuple[Value, ...], "result"]
Read: TypeAlias = Annotated[Buffer, "reads"]
Written: TypeAlias = Annotated[Buffer, "writes"]
Allocated: TypeAlias = Annotated[Buffer, "allocates"]
