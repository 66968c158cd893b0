"""What an operation of LIR is known to be: a constant, or one of its operands."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import Const, Op, Scalar, Type, Value
from skforge.compiler.ir.lir.numpy_types import dtype_of
from skforge.compiler.ir.lir.walk import operands

Constants = Mapping[str, Const]
_COMMUTES = ("add", "mul", "and", "or", "xor", "min", "max")


def known(op: Op, type_: Type, constants: Constants) -> Const | Value | None:
    """Return the constant or the operand that ``op`` always equals, if any."""
    match op:
        case lir.Binary(op=kind, a=a, b=b):
            # Most operands are no constants, and then this is all there is to ask.
            if a.name in constants or b.name in constants or a.name == b.name:
                found = _identity(kind, a, b, type_, constants)
                return _fold(op, type_, constants) if found is None else found
            return None
        case lir.Splat(a=a):
            return constants.get(a.name)
        case lir.Select(cond=cond, a=a, b=b):
            if a.name == b.name:
                return a
            if cond.name in constants and cond.type == lir.BOOL:
                return a if constants[cond.name].value else b
            return _fold(op, type_, constants)
        case lir.Compare() | lir.Convert() | lir.Unary() | lir.Bitcast():
            return _fold(op, type_, constants)
        case _:
            return None


def _identity(
    kind: lir.BinaryOp, a: Value, b: Value, type_: Type, constants: Constants
) -> Const | Value | None:
    """Apply integer identities; no float has any that keep every bit."""
    element = type_.element
    if element.is_float:
        return None
    if a == b and kind in ("and", "or", "min", "max"):
        return a
    if element == lir.BOOL:
        return None
    if a == b and kind in ("sub", "xor"):
        return Const(0)
    left, right = constants.get(a.name), constants.get(b.name)
    if right is None and left is not None and kind in _COMMUTES:
        a, right = b, left
    if right is None:
        return None
    if right.value == 0:
        if kind in ("add", "sub", "or", "xor", "shl", "shr"):
            return a
        if kind in ("mul", "and"):
            return Const(0)
    if right.value == 1 and kind in ("mul", "div"):
        return a
    return None


def _fold(op: Op, type_: Type, constants: Constants) -> Const | None:
    """Compute an operation of scalar constants, where the result is the same anywhere.

    Written apart from the interpreter of the tests, which is to find its mistakes.
    """
    values = operands(op)
    if not isinstance(type_, Scalar):
        return None
    args = []
    for value in values:
        if value.name not in constants or not isinstance(value.type, Scalar):
            return None
        args.append(_number(constants[value.name].value, value.type))
    if any(isinstance(a, np.floating) and math.isnan(a) for a in args):
        return None  # a constant does not say which NaN
    with np.errstate(all="ignore"):
        result = _evaluate(op, type_, args)
    if result is None:
        return None
    if type_.is_float:
        return None if math.isnan(result) else Const(float(result))
    return Const(bool(result) if type_ == lir.BOOL else _wrapped(int(result), type_))


def _number(value: Any, type_: Scalar) -> Any:
    """Return a constant as Python's int or bool, or as NumPy's float of its width."""
    if type_.is_float:
        return dtype_of(type_).type(value)
    return bool(value) if type_ == lir.BOOL else int(value)


def _wrapped(value: int, type_: Scalar) -> int:
    """Return what is left of an integer in so many bits."""
    bits = 8 * type_.bytes
    value &= (1 << bits) - 1
    return value - (1 << bits) if type_.is_signed and value >> (bits - 1) else value


def _evaluate(op: Op, type_: Scalar, args: list[Any]) -> Any:
    """Return the result, None where machines may differ."""
    match op:
        case lir.Binary(op=kind):
            return _arithmetic(kind, type_, *args)
        case lir.Compare(op=kind):
            return getattr(operator, kind)(*args)
        case lir.Select():
            cond, a, b = args
            return a if cond else b
        case lir.Bitcast(a=a):
            same = np.array(args[0], dtype_of(a.type.element))
            return same.view(dtype_of(type_)).item()
        case lir.Convert(a=a):
            if not type_.is_float:
                # A float may be out of range, where any value is right.
                return None if a.type.element.is_float else args[0]
            # Through i64, since Python would round an int to f64 first.
            exact = np.int64(args[0]) if isinstance(args[0], int) else args[0]
            return exact.astype(dtype_of(type_))
        case lir.Unary(op=kind):
            (a,) = args
            bits = 8 * type_.bytes
            match kind:
                case "neg":
                    return -a
                case "abs":
                    return abs(a)
                case "not":
                    return not a if type_ == lir.BOOL else ~a
                case "popcount":
                    return (a & ((1 << bits) - 1)).bit_count()
                case "zeros":
                    return (a & -a).bit_length() - 1 if a else bits
                case "exp":
                    return None  # left to the machine that runs it
        case _:
            return None


def _arithmetic(kind: lir.BinaryOp, type_: Scalar, a: Any, b: Any) -> Any:
    if kind in ("min", "max"):
        return min(a, b) if kind == "min" else max(a, b)
    if kind in ("shl", "shr"):
        if not 0 <= b < 8 * type_.bytes:
            return None
        return a << b if kind == "shl" else a >> b
    if kind in ("div", "rem") and not type_.is_float:
        quotient = abs(a) // abs(b) if b else None
        if quotient is None:
            return None
        quotient = -quotient if (a < 0) != (b < 0) else quotient
        if quotient != _wrapped(quotient, type_):
            return None
        return quotient if kind == "div" else a - quotient * b
    return _OPERATORS[kind](a, b)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}
