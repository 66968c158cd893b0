"""What an operation of LIR is known to be: a constant, or one of its operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from skforge.compiler.interpreters.lir.memory import Fault
from skforge.compiler.interpreters.lir.values import (
    NAMESPACE,
    PureOp,
    constant,
    op_lines,
)
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import Const, Op, Scalar, Type, Value
from skforge.compiler.ir.lir.walk import map_operands, operands

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


def _fold(op: PureOp, type_: Type, constants: Constants) -> Const | None:
    values = operands(op)
    for value in values:
        if value.name not in constants or not isinstance(value.type, Scalar):
            return None
    if not isinstance(type_, Scalar):
        return None
    if isinstance(op, lir.Unary) and op.op == "exp":
        return None  # left to the machine that runs it
    if isinstance(op, lir.Convert) and op.a.type.is_float and not type_.is_float:  # type: ignore[union-attr]
        return None  # may be out of range, where any value is right
    args = [constant(constants[v.name].value, v.type) for v in values]
    if any(isinstance(a, float | np.floating) and math.isnan(a) for a in args):
        return None  # a constant does not say which NaN
    numbers = {v.name: Value(f"a{i}", v.type) for i, v in enumerate(values)}
    canonical = map_operands(op, lambda v: numbers[v.name])
    try:
        with np.errstate(all="ignore"):
            result = _function(canonical, type_)(*args[: len(numbers)])
    except Fault:
        return None
    if type_.is_float:
        return None if math.isnan(result) else Const(float(result))
    return Const(bool(result) if type_ == lir.BOOL else int(result))


@cache
def _function(op: PureOp, type_: Type) -> Callable[..., Any]:
    """Return the interpreter's own arithmetic for ``op`` as a Python function."""
    names = list(dict.fromkeys(v.name for v in operands(op)))
    lines = op_lines("out", type_, op, lambda v: v.name)
    text = "\n ".join([f"def f({', '.join(names)}):", *lines, "return out"])
    scope = dict(NAMESPACE)
    exec(text, scope)
    function: Callable[..., Any] = scope["f"]
    return function
