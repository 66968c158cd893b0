"""Check the types of LIR operations, as their docstrings define them."""

from __future__ import annotations

from typing import NoReturn

from skforge._compat import assert_never
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import BOOL, Mask, Plane, Scalar, Type, Value, Vec
from skforge.compiler.ir.lir.printer import print_type


class Refused(Exception):
    """Reason why a statement is not valid LIR."""


def refuse(reason: str) -> NoReturn:
    """Raise Refused with a reason."""
    raise Refused(reason)


def is_integer(type_: Type) -> bool:
    """Whether a type is an integer or a vector of integers."""
    if not isinstance(type_, Scalar | Vec):
        return False
    element = type_.element
    return not element.is_float and element != BOOL


def is_float(type_: Type) -> bool:
    """Whether a type is a float or a vector of floats."""
    return isinstance(type_, Scalar | Vec) and type_.element.is_float


def check_index(index: Value) -> None:
    """Require an i32 or i64."""
    if index.type != lir.I64 and index.type != lir.I32:
        refuse(f"index %{index.name} is {print_type(index.type)}, not i32 or i64")


def check_bool(value: Value) -> None:
    """Require a bool."""
    if value.type != BOOL:
        refuse(f"%{value.name} is {print_type(value.type)}, not bool")


def check_same(what: str, *types: Type) -> None:
    """Require equal types."""
    if any(t != types[0] for t in types):
        refuse(f"{what} differ in type: {', '.join(map(print_type, types))}")


def _check_result(actual: Type, expected: Type) -> None:
    if actual != expected:
        refuse(f"the result is {print_type(actual)}, not {print_type(expected)}")


def check_type(type_: Type) -> None:
    """Require a type that can exist."""
    match type_:
        case Scalar():
            pass
        case Vec(element=element, lanes=lanes):
            if lanes < 1 or element == BOOL:
                refuse(f"{print_type(type_)} is not a vector; bools make a mask")
        case Mask(lanes=lanes):
            if lanes < 1:
                refuse(f"{print_type(type_)} has no lanes")
        case Plane(rows=rows):
            if rows < 8 or rows % 8:
                refuse(f"{print_type(type_)}: rows come in whole bytes")
        case _:
            assert_never(type_)


def check_op(op: lir.Op, type_: Type) -> None:
    """Require operands that fit ``op`` and the result's type."""
    match op:
        case lir.Const(value=value):
            _check_const(value, type_)
        case lir.Binary(op=kind, a=a, b=b):
            _check_binary(kind, a, b, type_)
        case lir.MultiplyAdd(a=a, b=b, c=c):
            check_same("result and operands", type_, a.type, b.type, c.type)
            if not is_float(type_):
                refuse(f"multiply_add of {print_type(type_)}")
        case lir.Load(index=index):
            check_index(index)
            if isinstance(type_, Mask | Plane):
                refuse(f"a {print_type(type_)} is never in a buffer as such")
        case lir.Compare(op=kind, a=a, b=b):
            check_same("operands", a.type, b.type)
            if isinstance(a.type, Plane):
                refuse("planes are not compared")
            if a.type.element == BOOL and kind not in ("eq", "ne"):
                refuse("bools have no order")
            lanes = a.type.lanes
            _check_result(type_, Mask(lanes) if lanes else BOOL)
        case lir.Select(cond=cond, a=a, b=b):
            check_same("operands", a.type, b.type)
            _check_result(type_, a.type)
            if cond.type != BOOL and cond.type != Mask(a.type.lanes):
                refuse(
                    f"%{cond.name} is neither a bool nor a mask of the operands' lanes"
                )
        case lir.Unary(op=kind, a=a):
            _check_result(type_, a.type)
            whole = kind == "not" and (a.type == BOOL or isinstance(a.type, Mask))
            if not (whole or is_integer(a.type)):
                refuse(f"{kind} of a {print_type(a.type)}")
        case lir.Convert(a=a):
            if isinstance(a.type, Plane):
                refuse("a plane is not converted")
            if not (is_integer(type_) or is_float(type_)):
                refuse(f"converts to {print_type(type_)}; use a comparison")
            if type_.lanes != a.type.lanes:
                refuse("operand and result differ in lanes")
        case lir.Bitcast(a=a):
            if isinstance(type_, Mask) and is_integer(a.type) and not a.type.lanes:
                if type_.lanes != _bits(a.type):
                    refuse(f"bitcast of {_bits(a.type)} bits to {type_.lanes} lanes")
                return
            for t in (a.type, type_):
                if not (is_integer(t) or is_float(t)):
                    refuse(f"bitcast of a {print_type(t)}")
            if _bits(type_) != _bits(a.type):
                refuse(f"bitcast of {_bits(a.type)} to {_bits(type_)} bits")
        case lir.Splat(a=a):
            fits = isinstance(type_, Mask) if a.type == BOOL else isinstance(type_, Vec)
            if not fits or type_.element != a.type:
                refuse(f"splat of {print_type(a.type)} to {print_type(type_)}")
        case lir.Iota():
            if not isinstance(type_, Vec):
                refuse("iota is not a vector")
        case lir.Threads():
            _check_result(type_, lir.I64)
        case lir.Extract(a=a, lane=lane):
            _check_result(type_, a.type.element)
            if not 0 <= lane < a.type.lanes:
                refuse(f"lane {lane} of {print_type(a.type)}")
        case lir.Pack(parts=parts):
            if not isinstance(type_, Vec) or len(parts) != type_.lanes:
                refuse(f"{len(parts)} scalars do not make a {print_type(type_)}")
            for part in parts:
                check_same("lanes", part.type, type_.element)
        case lir.Permute(tables=tables, index=index):
            _check_permute(tables, index, type_)
        case lir.Shuffle(a=a, b=b, lanes=lanes):
            if not isinstance(a.type, Vec) or a.type != b.type:
                refuse(f"shuffle of {print_type(a.type)} and {print_type(b.type)}")
            if type_ != Vec(a.type.element, len(lanes)):
                refuse(f"{len(lanes)} lanes do not make a {print_type(type_)}")
            if any(not 0 <= lane < 2 * a.type.lanes for lane in lanes):
                refuse(f"a lane is not among {2 * a.type.lanes}")
        case lir.Compress(a=a, mask=mask):
            _check_result(type_, a.type)
            if not isinstance(a.type, Vec):
                refuse(f"compresses a {print_type(a.type)}")
            if mask.type != Mask(a.type.lanes):
                refuse(f"%{mask.name} is not a mask of {a.type.lanes} lanes")
        case lir.MaskBits(a=a) | lir.AnyTrue(a=a) if not isinstance(a.type, Mask):
            refuse(f"%{a.name} is not a mask")
        case lir.MaskBits(a=a):
            if not is_integer(type_) or type_.lanes or _bits(type_) < a.type.lanes:
                refuse(f"{print_type(a.type)} does not fit {print_type(type_)}")
        case lir.AnyTrue():
            _check_result(type_, BOOL)
        case lir.Gather():
            _check_gather(op, type_)
        case lir.WarpReduce(a=a, width=width):
            _check_result(type_, a.type)
            if not isinstance(a.type, Scalar) or a.type == BOOL:
                refuse(f"sums a {print_type(a.type)}")
            if width < 1 or width & (width - 1):
                refuse(f"width {width} is not a power of two")
        case lir.PlaneMux(select=select, a=a, b=b):
            check_same("planes", type_, select.type, a.type, b.type)
            check_plane(type_)
        case lir.LoadPlane(table=table, index=index):
            check_index(index)
            check_table(table, type_)
        case lir.PlanesToIndex(planes=planes):
            if not planes:
                refuse("no planes")
            check_same("planes", *(p.type for p in planes))
            rows = check_plane(planes[0].type)
            if not is_integer(type_) or type_.lanes != rows:
                refuse(f"{print_type(type_)} is not an index for each of {rows} rows")
            element = type_.element
            if len(planes) > _bits(element) - element.is_signed:
                refuse(f"{len(planes)} planes do not fit {element.name}")
        case _:
            assert_never(op)


def check_plane(type_: Type) -> int:
    """Require a plane; return its number of rows."""
    if not isinstance(type_, Plane):
        refuse(f"a {print_type(type_)} is not a plane")
    return type_.rows


def check_table(table: lir.Buffer, type_: Type) -> None:
    """Require a buffer that can hold planes of this type."""
    check_plane(type_)
    if table.element.is_float:
        refuse(f"the table @{table.name} holds {table.element.name}, not bits")


def _bits(type_: Type) -> int:
    return 8 * type_.element.bytes * max(1, type_.lanes)


def _check_const(value: int | float | bool, type_: Type) -> None:
    if isinstance(type_, Plane):
        refuse("a plane is not a constant")
    element = type_.element
    if element == BOOL:
        if not isinstance(value, bool):
            refuse(f"{value!r} is not a bool")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        refuse(f"{value!r} is not a number")
    elif not element.is_float:
        bits = _bits(element)
        low = -(1 << (bits - 1)) if element.is_signed else 0
        if not isinstance(value, int) or not low <= value < low + (1 << bits):
            refuse(f"{value!r} is not a {element.name}")


def _check_binary(kind: lir.BinaryOp, a: Value, b: Value, type_: Type) -> None:
    if a.type != type_ or b.type != type_:
        check_same("result and operands", type_, a.type, b.type)
    fits = is_integer(type_)
    if not fits and kind in ("and", "or", "xor"):
        fits = type_ == BOOL or isinstance(type_, Mask)
    elif not fits and kind in ("add", "sub", "mul", "div"):
        fits = is_float(type_)
    if not fits:
        refuse(f"{kind} of {print_type(type_)}")


def _check_permute(tables: tuple[Value, ...], index: Value, type_: Type) -> None:
    """Check tables of the result's element, a power of two of them, and the index."""
    if not isinstance(type_, Vec) or type_.element == BOOL:
        refuse(f"permute cannot give a {print_type(type_)}")
    lanes = tables[0].type.lanes if tables else type_.lanes
    for count in (len(tables), lanes):
        if count < 1 or count & (count - 1):
            refuse(f"{len(tables)} tables of {lanes} lanes")
    if type_.lanes > lanes and len(tables) > 1:
        refuse(f"tables of {lanes} lanes for {print_type(type_)}")
    whole = Vec(type_.element, lanes)
    for table in tables:
        if table.type != whole:
            refuse(f"table %{table.name} is not a {print_type(whole)}")
    if (
        not is_integer(index.type)
        or index.type.lanes != type_.lanes
        or _bits(index.type) != _bits(type_)
    ):
        refuse(f"an index of {print_type(index.type)} for {print_type(type_)}")


def _check_gather(op: lir.Gather, type_: Type) -> None:
    check_indices(op.index)
    lanes = op.index.type.lanes
    if not isinstance(type_, Vec) or type_.lanes != lanes:
        refuse(f"gathers {lanes} lanes to {print_type(type_)}")
    if (op.mask is None) != (op.other is None):
        refuse("mask and other come together")
    if op.mask is not None and op.mask.type != Mask(lanes):
        refuse(f"%{op.mask.name} is not a mask of {lanes} lanes")
    if op.other is not None and op.other.type != type_:
        refuse(f"%{op.other.name} is not of the result's type")


def check_indices(index: Value) -> None:
    """Require a vector of i32 or i64."""
    if not isinstance(index.type, Vec) or index.type.element not in (lir.I32, lir.I64):
        refuse(
            f"index %{index.name} is {print_type(index.type)}, not a vec of i32 or i64"
        )
