"""The table of LIR's operations: signatures, printed forms and effects; arithmetic."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import BOOL, Mask, Plane, Scalar, Type, Value, Vec
from skforge.compiler.ir.lir.walk import names_of, operands, per_class


@dataclass(frozen=True, slots=True)
class Operation:
    """What the compiler knows about one kind of operation.

    ``gives`` tells whether an operation may give a type; docstrings of the operations
    say the rules. ``text`` is the printed form; without one, it is the name and all
    fields. An operation that ``hoists`` is cheap, and defined even if the loop would
    not run it. One with ``one_width`` has operands and a result of the same width if
    they are i64. One that is ``alone`` is not shared with an equal one, and one that
    ``stays`` runs even if nothing reads its result.
    """

    gives: Callable[[Any, Type], bool]
    text: str = ""
    hoists: Literal["never", "always", "without floats"] = "never"
    one_width: bool = False
    alone: bool = False
    stays: bool = False


def is_integer(type_: Type) -> bool:
    if not isinstance(type_, (Scalar, Vec)):
        return False
    element = type_.element
    return not element.is_float and element != BOOL


def is_float(type_: Type) -> bool:
    return isinstance(type_, (Scalar, Vec)) and type_.element.is_float


def _is_truth(type_: Type) -> bool:
    return type_ == BOOL or isinstance(type_, Mask)


def _is_number(type_: Type) -> bool:
    return is_integer(type_) or is_float(type_)


def is_index(type_: Type) -> bool:
    return type_ in (lir.I64, lir.I32)


def are_indices(type_: Type) -> bool:
    return isinstance(type_, Vec) and is_index(type_.element)


def holds_planes(table: lir.Buffer, type_: Type) -> bool:
    return isinstance(type_, Plane) and not table.element.is_float


def _all(type_: Type, *values: Value) -> bool:
    return all(value.type == type_ for value in values)


def _bits(type_: Type) -> int:
    return 8 * type_.element.bytes * max(1, type_.lanes)


def _is_power(number: int) -> bool:
    return number >= 1 and not number & (number - 1)


def _const(op: lir.Const, type_: Type) -> bool:
    value, element = op.value, type_.element
    if isinstance(type_, Plane) or isinstance(value, bool) != (element == BOOL):
        return False
    if element == BOOL or element.is_float:
        return isinstance(value, int | float)
    low = -(1 << (_bits(element) - 1)) if element.is_signed else 0
    return isinstance(value, int) and low <= value < low + (1 << _bits(element))


def _binary(op: lir.Binary, type_: Type) -> bool:
    if op.a.type != type_ or op.b.type != type_:
        return False
    if op.op in ("and", "or", "xor") and _is_truth(type_):
        return True
    field = op.op in ("add", "sub", "mul", "div")
    return is_integer(type_) or (field and is_float(type_))


def _compare(op: lir.Compare, type_: Type) -> bool:
    taken = op.a.type
    ordered = taken.element != BOOL or op.op in ("eq", "ne")
    truth = Mask(taken.lanes) if taken.lanes else BOOL
    fits = taken == op.b.type and type_ == truth
    return fits and ordered and not isinstance(taken, Plane)


def _bitcast(op: lir.Bitcast, type_: Type) -> bool:
    taken = op.a.type
    if isinstance(type_, Mask) and is_integer(taken) and not taken.lanes:
        return type_.lanes == _bits(taken)
    return _is_number(taken) and _is_number(type_) and _bits(type_) == _bits(taken)


def _permute(op: lir.Permute, type_: Type) -> bool:
    tables, index = op.tables, op.index.type
    if not isinstance(type_, Vec) or not tables or not is_integer(index):
        return False
    lanes = tables[0].type.lanes
    return (
        all(table.type == Vec(type_.element, lanes) for table in tables)
        and _is_power(len(tables))
        and _is_power(lanes)
        and (type_.lanes <= lanes or len(tables) == 1)
        and (index.lanes, _bits(index)) == (type_.lanes, _bits(type_))
    )


def _shuffle(op: lir.Shuffle, type_: Type) -> bool:
    taken = op.a.type
    return (
        isinstance(taken, Vec)
        and taken == op.b.type
        and type_ == Vec(taken.element, len(op.lanes))
        and all(0 <= lane < 2 * taken.lanes for lane in op.lanes)
    )


def _compress(op: lir.Compress, type_: Type) -> bool:
    fits = isinstance(type_, Vec) and op.a.type == type_
    return fits and op.mask.type == Mask(type_.lanes)


def _gather(op: lir.Gather, type_: Type) -> bool:
    lanes, mask, other = op.index.type.lanes, op.mask, op.other
    fits = are_indices(op.index.type) and isinstance(type_, Vec)
    if not fits or type_.lanes != lanes or (mask is None) != (other is None):
        return False
    return mask is None or (mask.type == Mask(lanes) and other.type == type_)  # type: ignore[union-attr]


def _planes_to_index(op: lir.PlanesToIndex, type_: Type) -> bool:
    planes = [plane.type for plane in op.planes]
    if not planes or planes != [Plane(type_.lanes)] * len(planes):
        return False
    element = type_.element
    return is_integer(type_) and len(planes) <= _bits(element) - element.is_signed


def _warp_reduce(op: lir.WarpReduce, type_: Type) -> bool:
    number = isinstance(type_, Scalar) and type_ != BOOL
    return number and op.a.type == type_ and _is_power(op.width)


def _load(op: lir.Load, type_: Type) -> bool:
    return is_index(op.index.type) and not isinstance(type_, (Mask, Plane))


def _unary(op: lir.Unary, type_: Type) -> bool:
    known = is_integer(type_) or (op.op == "not" and _is_truth(type_))
    return op.a.type == type_ and known


def _convert(op: lir.Convert, type_: Type) -> bool:
    taken = op.a.type
    lanes = type_.lanes == taken.lanes
    return lanes and _is_number(type_) and not isinstance(taken, Plane)


def _splat(op: lir.Splat, type_: Type) -> bool:
    kind = Mask if op.a.type == BOOL else Vec
    return isinstance(type_, kind) and type_.element == op.a.type


def _mask_bits(op: lir.MaskBits, type_: Type) -> bool:
    whole = is_integer(type_) and not type_.lanes
    return whole and isinstance(op.a.type, Mask) and _bits(type_) >= op.a.type.lanes


#: One row for each operation.
OPERATIONS: dict[type[Any], Operation] = {
    lir.Const: Operation(_const, "const {value!r}", hoists="always"),
    lir.Unary: Operation(_unary, "{op} {a}", "without floats", one_width=True),
    lir.Binary: Operation(_binary, "{op} {a}, {b}", "without floats", one_width=True),
    lir.MultiplyAdd: Operation(lambda op, t: is_float(t) and _all(t, op.a, op.b, op.c)),
    lir.Compare: Operation(
        _compare, "compare {op}{unordered} {a}, {b}", "without floats", one_width=True
    ),
    lir.Select: Operation(
        lambda op, t: _all(t, op.a, op.b) and op.cond.type in (BOOL, Mask(t.lanes)),
        hoists="without floats",
        one_width=True,
    ),
    lir.Convert: Operation(_convert, hoists="without floats"),
    lir.Bitcast: Operation(_bitcast, hoists="without floats"),
    lir.Splat: Operation(_splat, hoists="always", one_width=True),
    lir.Iota: Operation(lambda op, t: isinstance(t, Vec), hoists="always"),
    lir.Threads: Operation(lambda op, t: t == lir.I64, alone=True),
    lir.Extract: Operation(
        lambda op, t: t == op.a.type.element and 0 <= op.lane < op.a.type.lanes,
        one_width=True,
    ),
    lir.Pack: Operation(
        lambda op, t: t == Vec(t.element, len(op.parts)) and _all(t.element, *op.parts),
        one_width=True,
    ),
    lir.Permute: Operation(_permute, "permute{within} [{tables}] by {index}"),
    lir.Shuffle: Operation(_shuffle, "shuffle {a}, {b} <{lanes}>", one_width=True),
    lir.Compress: Operation(_compress, "compress {a} where {mask}", one_width=True),
    lir.MaskBits: Operation(_mask_bits),
    lir.AnyTrue: Operation(lambda op, t: isinstance(op.a.type, Mask) and t == BOOL),
    lir.Load: Operation(_load, "load {buffer}[{index}]"),
    lir.Gather: Operation(_gather, "gather {buffer}[{index}]{mask}{other}"),
    # Every thread of a warp must reach its reduction.
    lir.WarpReduce: Operation(
        _warp_reduce,
        "warp_reduce {a}, width {width}",
        one_width=True,
        alone=True,
        stays=True,
    ),
    lir.PlaneMux: Operation(
        lambda op, t: isinstance(t, Plane) and _all(t, op.select, op.a, op.b)
    ),
    lir.LoadPlane: Operation(
        lambda op, t: is_index(op.index.type) and holds_planes(op.table, t),
        "load_plane {table}[{index}]",
    ),
    lir.PlanesToIndex: Operation(_planes_to_index),
    lir.Symbol: Operation(lambda op, t: t == lir.I64, "symbol {name}"),
    lir.Address: Operation(
        lambda op, t: is_index(op.index.type) and t == lir.I64,
        "address {buffer}[{index}]",
    ),
}


#: What a host computes between launches, of integers.
HOST_OPS = (lir.Unary, lir.Binary, lir.Compare, lir.Select, lir.Convert)


#: Operators that are undefined for some numbers.
_PARTIAL = ("div", "rem", "shl", "shr")


@per_class
def is_pure(kind: type[lir.Op]) -> bool:
    return not OPERATIONS[kind].alone and not names_of(kind, "reads")


def may_hoist(op: lir.Op, type_: Type) -> bool:
    hoists = OPERATIONS[type(op)].hoists
    if hoists != "without floats" or getattr(op, "op", "") in _PARTIAL:
        return hoists == "always"
    types = (type_, *(value.type for value in operands(op)))
    return not any(t.element.is_float for t in types)


# ---------------------------------------------------------------- arithmetic

# Of Python numbers and NumPy floats, independent of the interpreter in the tests, so
# that each can find mistakes in the other.

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul,
    "div": operator.truediv, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "min": min, "max": max,
}  # fmt: skip


def wrapped(number: Any, type_: Scalar) -> int:
    if type_ == lir.BOOL:
        return bool(number)
    bits = 8 * type_.bytes
    value = int(number) & ((1 << bits) - 1)
    return value - (1 << bits) if type_.is_signed and value >> (bits - 1) else value


def evaluate(kind: Any, type_: Scalar, *args: Any) -> Any:
    """Return a result for numbers (not NaN), unwrapped; None if it is undefined."""
    match kind, args:
        case "select", (cond, a, b):
            return a if cond else b
        case "convert", (a,):
            return a
        case _, (a,):
            return _evaluate_unary(kind, type_, a)
        case _, (a, b) if kind in get_args(lir.CompareOp):
            return getattr(operator, kind)(a, b)
        case _:
            return _evaluate_binary(kind, type_, *args)


def _evaluate_unary(kind: lir.UnaryOp, type_: Scalar, a: Any) -> Any:
    bits = 8 * type_.bytes
    match kind:
        case "not":
            return not a if type_ == lir.BOOL else ~a
        case "popcount":
            return (a & ((1 << bits) - 1)).bit_count()
        case "zeros":
            return (a & -a).bit_length() - 1 if a else bits


def _evaluate_binary(kind: lir.BinaryOp, type_: Scalar, a: Any, b: Any) -> Any:
    if kind in ("shl", "shr"):
        if not 0 <= b < 8 * type_.bytes:
            return None
        return a << b if kind == "shl" else a >> b
    if kind in ("div", "rem") and not type_.is_float:
        if b == 0:
            return None
        quotient = abs(a) // abs(b)
        quotient = -quotient if (a < 0) != (b < 0) else quotient
        if quotient != wrapped(quotient, type_):
            return None
        return quotient if kind == "div" else a - quotient * b
    return _OPERATORS[kind](a, b)
