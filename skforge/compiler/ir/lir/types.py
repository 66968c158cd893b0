"""Types, values and buffers of LIR, and the NumPy dtypes that hold its scalars."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.builder import Builder
    from skforge.compiler.ir.lir.nodes import BinaryOp, CompareOp

ScalarName: TypeAlias = Literal["bool", "u8", "u16", "u32", "i32", "i64", "f32", "f64"]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number; ``u*`` is unsigned, ``i*`` two's complement, ``bool`` one bit."""

    name: ScalarName

    @property
    def is_float(self) -> bool:
        """Whether this is f32 or f64."""
        return self.name in ("f32", "f64")

    @property
    def is_signed(self) -> bool:
        """Whether this is two's complement."""
        return self.name in ("i32", "i64")

    @property
    def bytes(self) -> int:
        """Size in a buffer, in bytes."""
        return _BYTES[self.name]

    @property
    def element(self) -> Scalar:
        """The type itself, for symmetry with vectors."""
        return self

    @property
    def lanes(self) -> int:
        """Zero: a scalar has no lanes."""
        return 0


_BYTES: dict[str, int] = {
    "bool": 1, "u8": 1, "u16": 2, "u32": 4, "i32": 4, "i64": 8, "f32": 4, "f64": 8,
}  # fmt: skip

BOOL = Scalar("bool")
U8 = Scalar("u8")
U16 = Scalar("u16")
U32 = Scalar("u32")
I32 = Scalar("i32")
I64 = Scalar("i64")
F32 = Scalar("f32")
F64 = Scalar("f64")


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
        """The type of a lane: bool."""
        return BOOL


@dataclass(frozen=True, slots=True)
class Plane:
    """One bit for each of ``rows`` rows."""

    rows: int

    @property
    def element(self) -> Scalar:
        """The type of a row's bit: bool."""
        return BOOL

    @property
    def lanes(self) -> int:
        """Zero: a plane is one value without lanes."""
        return 0


Type: TypeAlias = Scalar | Vec | Mask | Plane

# ---------------------------------------------------------------- values, buffers


#: The builder to which expressions append their operations; see ``Builder``.
BUILDER: ContextVar[Builder] = ContextVar("builder")

Operator: TypeAlias = "Callable[[Value, Value | int], Value]"


def _binary(op: BinaryOp) -> Operator:
    return lambda a, b: BUILDER.get().binary(op, a, b)


def _compare(op: CompareOp) -> Callable[[Value, Value | int | float], Value]:
    return lambda a, b: BUILDER.get().compare(op, a, b)


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA name and its type.

    Its operators append operations to the open builder. Two values are equal if they
    are the same one, so that comparisons for equality are methods.
    """

    name: str
    type: Type

    def __add__(self, other: Value | int) -> Value:
        """Return the sum; adding the int 0 emits nothing."""
        return BUILDER.get().add(self, other)

    def __mul__(self, other: Value | int) -> Value:
        """Return the product; multiplying by the int 1 emits nothing."""
        return BUILDER.get().mul(self, other)

    def __invert__(self) -> Value:
        """Return the complement of a bool, a mask or an integer."""
        return BUILDER.get().invert(self)

    __sub__, __mod__ = _binary("sub"), _binary("rem")
    __truediv__ = __floordiv__ = _binary("div")  # of floats; of integers, toward zero
    __and__, __or__, __xor__ = _binary("and"), _binary("or"), _binary("xor")
    __lshift__, __rshift__ = _binary("shl"), _binary("shr")
    __lt__, __le__ = _compare("lt"), _compare("le")
    __gt__, __ge__ = _compare("gt"), _compare("ge")
    min, max = _binary("min"), _binary("max")
    eq, ne = _compare("eq"), _compare("ne")

    def __bool__(self) -> NoReturn:
        """Raise: what a kernel computes is not known while it is written."""
        raise TypeError(f"%{self.name} has no value yet; use select, if_ or when.")

    def to(self, element: Scalar) -> Value:
        """Return the value converted to an element type, with the same lanes."""
        return BUILDER.get().convert(self, element)


Space: TypeAlias = Literal["global", "constant", "shared", "private"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A typed array in memory; indices count elements."""

    name: str
    element: Scalar
    space: Space = "global"
    alignment: int = 0  # bytes; 0 = the element's size

    def __getitem__(self, at: Value | tuple[Value, Type]) -> Value:
        """Load an element, or a value of another type that begins there."""
        return BUILDER.get().load(self, *(at if isinstance(at, tuple) else (at,)))

    def __setitem__(self, at: Value, value: Value) -> None:
        """Store a value at an element."""
        BUILDER.get().store(self, at, value)

    __iter__ = None  # it has no length


# ------------------------------------------------------------ dtypes

_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype("?" if name == "bool" else f"{name[0]}{size}")
    for name, size in _BYTES.items()
}
_SCALARS = {dtype: Scalar(name) for name, dtype in _DTYPES.items()}  # type: ignore[arg-type]


def dtype_of(scalar: Scalar) -> np.dtype[Any]:
    """Return the dtype of a buffer's elements."""
    return _DTYPES[scalar.name]


def scalar_of(dtype: np.dtype[Any]) -> Scalar:
    """Return the LIR scalar of a dtype."""
    return _SCALARS[np.dtype(dtype)]
