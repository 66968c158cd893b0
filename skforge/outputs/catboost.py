"""CatBoost's exponential and what it computes with it, bit by bit.

On x86-64, CatBoost takes ``exp`` of arrays from fmath: 2^(k / 2048) of a table times a
polynomial of third degree. Four values at a time are clipped to the exponents of
float64; of the last one to three, those outside become 0 and infinity. On Arm it calls
the C library's ``exp``.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array
from skforge.forest.outputs import OutputSpec
from skforge.outputs.library import total
from skforge.runtime import libm

STEPS = 2048
_LANES = 4
LOWEST, GREATEST = -708.39641853226408, 709.78271289338397
CLIP = 709.78272569338397
_C0, _C1 = 3.0000000027955394, 0.16666666685227835064
_ROUNDER = float(3 << 51)  # adding it leaves an integer in the low bits
_SCALE, _UNIT = STEPS / math.log(2.0), math.log(2.0) / STEPS
SHIFT, PLACE, BIAS = 11, 52, 1023 * STEPS


@cache
def fractions() -> NDArray[np.uint64]:
    powers = np.array([2.0 ** (k / STEPS) for k in range(STEPS)])
    return powers.view(np.uint64) & np.uint64((1 << 52) - 1)


def polynomial(x: Any) -> tuple[Any, Any]:
    """Return the number whose low bits are the steps of x, and what is between them.

    ``x`` is an array, or a value of generated code.
    """
    rounded = x * _SCALE + _ROUNDER
    t = (rounded - _ROUNDER) * _UNIT - x
    return rounded, (_C0 - t) * (t * t) * _C1 - t + 1.0


def exp(values: Array) -> Array:
    """Return the exponential of each row's float64 values, as of one array."""
    if libm.on_arm():
        with np.errstate(over="ignore"):
            return libm.exp(values)
    rounded, y = polynomial(np.minimum(np.maximum(values, LOWEST), CLIP))
    bits = rounded.view(np.uint64)
    low_bits, shift, place, bias = map(np.uint64, (STEPS - 1, SHIFT, PLACE, BIAS))
    fraction = fractions().take(bits & low_bits, mode="clip")
    power = ((bits + bias) >> shift) << place
    with np.errstate(over="ignore"):
        result: Array = y * (power | fraction).view(np.float64)
    rest = slice(values.shape[-1] // _LANES * _LANES, None)
    last, tail = values[..., rest], result[..., rest]
    tail[last <= LOWEST] = 0.0
    tail[last >= GREATEST] = np.inf
    return result


def softmax(scores: Array) -> Array:
    powers = exp(scores - scores.max(axis=1, keepdims=True))
    return powers / total(powers, "float64")


def log_probabilities(scores: Array, spec: OutputSpec) -> Array:
    """Return ``predict_log_proba`` of a classifier.

    Its ``exp`` and ``log`` are the C library's, but for a softmax, whose ``exp`` is the
    one above.
    """
    with np.errstate(over="ignore"):
        if spec.probabilities == "complement":
            both: Array = -libm.log(1.0 + libm.exp(np.stack([scores, -scores])))
            return both.T
        if spec.function == "logistic":  # each class, or target, alone
            return -libm.log(1.0 + libm.exp(-scores))
    below = scores - scores.max(axis=1, keepdims=True)
    return below - libm.log(total(exp(below), "float64"))


def uncertainty(scores: Array) -> Array:
    """Return means, and the exponentials of twice the second scores: variances."""
    return np.column_stack([scores[:, 0], exp(2 * scores[:, 1])])
