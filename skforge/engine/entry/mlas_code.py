"""The exponential and the logistic function of onnxruntime as code.

:mod:`skforge.outputs.mlas` has them for arrays.
"""

from __future__ import annotations

import numpy as np

from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import F32, I32, Value
from skforge.outputs import mlas


def exp(x: Value) -> Value:
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
    power = _polynomial(mlas.POWERS, rest)
    return b.multiply_add(power, rest * first, first) * second


def logistic(x: Value) -> Value:
    x = b.select(x > 18.0, 18.0, b.select(x < -18.0, -18.0, x))
    square = x * x
    above, below = (_polynomial(of, square) for of in (mlas.ABOVE, mlas.BELOW))
    value = above * x / below + 0.5
    return b.select(value < 0.0, 0.0, value)


def _polynomial(numbers: tuple[np.float32, ...], x: Value) -> Value:
    result, *others = (b.const(float(number), F32) for number in numbers)
    for number in others:
        result = b.multiply_add(result, x, number)
    return result
