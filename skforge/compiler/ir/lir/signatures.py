"""The types that each operation of LIR takes and gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import BOOL, Mask, Plane, Scalar, Type, Value, Vec
from skforge.compiler.ir.lir.printer import name_of, print_type
from skforge.compiler.ir.lir.walk import operands


class Refused(Exception):
    """Reason why a statement is not valid LIR."""


def refuse(reason: str) -> NoReturn:
    """Raise Refused with a reason."""
    raise Refused(reason)


# ---------------------------------------------------------------- kinds of types


def is_integer(type_: Type) -> bool:
    """Whether a type is an integer or a vector of integers."""
    if not isinstance(type_, Scalar | Vec):
        return False
    element = type_.element
    return not element.is_float and element != BOOL


def is_float(type_: Type) -> bool:
    """Whether a type is a float or a vector of floats."""
    return isinstance(type_, Scalar | Vec) and type_.element.is_float


def _is_truth(type_: Type) -> bool:
    return type_ == BOOL or isinstance(type_, Mask)


def _is_number(type_: Type) -> bool:
    return is_integer(type_) or is_float(type_)


def is_index(type_: Type) -> bool:
    """Whether a type is i32 or i64."""
    return type_ in (lir.I64, lir.I32)


def are_indices(type_: Type) -> bool:
    """Whether a type is a vector of i32 or i64."""
    return isinstance(type_, Vec) and is_index(type_.element)


def holds_planes(table: lir.Buffer, type_: Type) -> bool:
    """Whether a type is a plane and the elements of ``table`` are bits."""
    return isinstance(type_, Plane) and not table.element.is_float


def _truth(type_: Type) -> Type:
    """Return the type that tells something for each lane."""
    return Mask(type_.lanes) if type_.lanes else BOOL


def _all(type_: Type, *values: Value) -> bool:
    return all(value.type == type_ for value in values)


def _bits(type_: Type) -> int:
    return 8 * type_.element.bytes * max(1, type_.lanes)


def _is_power(number: int) -> bool:
    return number >= 1 and not number & (number - 1)


# ---------------------------------------------------------------- operations


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
    fits = taken == op.b.type and type_ == _truth(taken)
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


#: Whether an operation may give a type; docstrings of the operations say the rules.
SIGNATURES: dict[type[Any], Callable[[Any, Type], bool]] = {
    lir.Const: _const,
    lir.Unary: lambda op, t: (
        op.a.type == t and (is_integer(t) or (op.op == "not" and _is_truth(t)))
    ),
    lir.Binary: _binary,
    lir.MultiplyAdd: lambda op, t: is_float(t) and _all(t, op.a, op.b, op.c),
    lir.Compare: _compare,
    lir.Select: lambda op, t: (
        _all(t, op.a, op.b) and op.cond.type in (BOOL, Mask(t.lanes))
    ),
    lir.Convert: lambda op, t: (
        _is_number(t)
        and not isinstance(op.a.type, Plane)
        and t.lanes == op.a.type.lanes
    ),
    lir.Bitcast: _bitcast,
    lir.Splat: lambda op, t: (
        t.element == op.a.type and isinstance(t, Mask if op.a.type == BOOL else Vec)
    ),
    lir.Iota: lambda op, t: isinstance(t, Vec),
    lir.Threads: lambda op, t: t == lir.I64,
    lir.Extract: lambda op, t: (
        t == op.a.type.element and 0 <= op.lane < op.a.type.lanes
    ),
    lir.Pack: lambda op, t: (
        isinstance(t, Vec) and len(op.parts) == t.lanes and _all(t.element, *op.parts)
    ),
    lir.Permute: _permute,
    lir.Shuffle: _shuffle,
    lir.Compress: lambda op, t: (
        isinstance(t, Vec) and op.a.type == t and op.mask.type == Mask(t.lanes)
    ),
    lir.MaskBits: lambda op, t: (
        isinstance(op.a.type, Mask)
        and is_integer(t)
        and not t.lanes
        and _bits(t) >= op.a.type.lanes
    ),
    lir.AnyTrue: lambda op, t: isinstance(op.a.type, Mask) and t == BOOL,
    lir.Load: lambda op, t: is_index(op.index.type) and not isinstance(t, Mask | Plane),
    lir.Gather: _gather,
    lir.WarpReduce: lambda op, t: (
        isinstance(t, Scalar) and t != BOOL and op.a.type == t and _is_power(op.width)
    ),
    lir.PlaneMux: lambda op, t: isinstance(t, Plane) and _all(t, op.select, op.a, op.b),
    lir.LoadPlane: lambda op, t: is_index(op.index.type) and holds_planes(op.table, t),
    lir.PlanesToIndex: _planes_to_index,
    lir.Symbol: lambda op, t: t == lir.I64,
    lir.Address: lambda op, t: is_index(op.index.type) and t == lir.I64,
}


def check_op(op: lir.Op, type_: Type) -> None:
    """Require operands and a result that fit the operation's signature."""
    if not SIGNATURES[type(op)](op, type_):
        taken = ", ".join(print_type(value.type) for value in operands(op))
        refuse(f"{name_of(op)}({taken}) does not give {print_type(type_)}")


# ---------------------------------------------------------------- other rules


def check_index(index: Value) -> None:
    """Require an i32 or i64."""
    if not is_index(index.type):
        refuse(f"index %{index.name} is {print_type(index.type)}, not i32 or i64")


def check_bool(value: Value) -> None:
    """Require a bool."""
    if value.type != BOOL:
        refuse(f"%{value.name} is {print_type(value.type)}, not bool")


def check_same(what: str, *types: Type) -> None:
    """Require equal types."""
    if any(t != types[0] for t in types):
        refuse(f"{what} differ in type: {', '.join(map(print_type, types))}")


def check_type(type_: Type) -> None:
    """Require a type that can exist."""
    if isinstance(type_, Vec) and (type_.lanes < 1 or type_.element == BOOL):
        refuse(f"{print_type(type_)} is not a vector; bools make a mask")
    if isinstance(type_, Mask) and type_.lanes < 1:
        refuse(f"{print_type(type_)} has no lanes")
    if isinstance(type_, Plane) and (type_.rows < 8 or type_.rows % 8):
        refuse(f"{print_type(type_)}: rows come in whole bytes")
