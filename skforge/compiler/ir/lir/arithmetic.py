"""Scalar LIR arithmetic on Python numbers and NumPy floats.

This is independent of the interpreter in the tests, so that each can find mistakes in
the other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, get_args

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import Scalar

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
            return _unary(kind, type_, a)
        case _, (a, b) if kind in get_args(lir.CompareOp):
            return getattr(operator, kind)(a, b)
        case _:
            return _binary(kind, type_, *args)


def _unary(kind: lir.UnaryOp, type_: Scalar, a: Any) -> Any:
    bits = 8 * type_.bytes
    match kind:
        case "not":
            return not a if type_ == lir.BOOL else ~a
        case "popcount":
            return (a & ((1 << bits) - 1)).bit_count()
        case "zeros":
            return (a & -a).bit_length() - 1 if a else bits


def _binary(kind: lir.BinaryOp, type_: Scalar, a: Any, b: Any) -> Any:
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
