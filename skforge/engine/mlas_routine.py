"""The exponential and the logistic function of onnxruntime, as machine code.

:mod:`skforge.outputs.mlas` has them for NumPy, which has no fused multiply-add: one row
takes it a hundred times as long.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from skforge._typing import Array
from skforge.engine.routines import routine
from skforge.exceptions import CompilerError
from skforge.outputs import mlas

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.builder import Builder
    from skforge.compiler.ir.lir.nodes import Function, Value

_NUMPY = {"exp": mlas.exp, "logistic": mlas.logistic}


def install() -> None:
    """Let graphs compute with machine code from now on."""
    mlas.FUNCTIONS.update({name: partial(_computed, name) for name in _NUMPY})


def load() -> None:
    """Compile what graphs compute with, or read it from the cache."""
    for function in [*mlas.FUNCTIONS.values()]:
        function(np.zeros(1, np.float32))


def _computed(name: str, x: Array) -> Array:
    x = np.ascontiguousarray(x)
    out = np.empty_like(x)
    try:
        routine(_function, name)(1, x.size, x, out)
    except CompilerError:  # NumPy needs no compiler
        mlas.FUNCTIONS.update(_NUMPY)  # to try again in each call would take longer
        return _NUMPY[name](x)
    return out


def _function(name: str) -> Function:
    from skforge.compiler.ir.lir.builder import Builder
    from skforge.compiler.ir.lir.nodes import F32, I64, Buffer, Function, Value

    n = Value("n", I64)
    x, out = Buffer("x", F32), Buffer("out", F32)
    with Builder() as b, b.loop(n) as i:
        out[i] = {"exp": _exp, "logistic": _logistic}[name](b, x[i])
    return Function(f"skf_mlas_{name}", (n, x, out), b.finish())


def _exp(b: Builder, x: Value) -> Value:
    from skforge.compiler.ir.lir.nodes import F32, I32

    low, high = float(mlas.LOWEST), float(mlas.HIGHEST)
    x = b.select(x > high, high, b.select(x < low, low, x))
    turn, one = (b.const(float(number), F32) for number in (mlas.ROUND, 1.0))
    rounded = b.multiply_add(x, b.const(float(mlas.LOG2_E), F32), turn)
    whole = rounded - turn
    rest = b.multiply_add(whole, b.const(float(mlas.LN2_HIGH), F32), x)
    rest = b.multiply_add(whole, b.const(float(mlas.LN2_LOW), F32), rest)
    exponent = b.bitcast(rounded, I32) << 23
    normal = exponent.max(int(mlas.LEAST)).min(int(mlas.ONE))
    bits = b.bitcast(one, I32)
    first, second = (b.bitcast(of + bits, F32) for of in (exponent - normal, normal))
    power = _polynomial(b, mlas.POWERS, rest)
    return b.multiply_add(power, rest * first, first) * second


def _logistic(b: Builder, x: Value) -> Value:
    x = b.select(x > 18.0, 18.0, b.select(x < -18.0, -18.0, x))
    square = x * x
    above, below = (_polynomial(b, of, square) for of in (mlas.ABOVE, mlas.BELOW))
    value = above * x / below + 0.5
    return b.select(value < 0.0, 0.0, value)


def _polynomial(b: Builder, numbers: tuple[np.float32, ...], x: Value) -> Value:
    from skforge.compiler.ir.lir.nodes import F32

    result, *others = (b.const(float(number), F32) for number in numbers)
    for number in others:
        result = b.multiply_add(result, x, number)
    return result
