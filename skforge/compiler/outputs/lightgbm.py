"""LightGBM's output functions, in float64 and in its order of operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.outputs import libm

Array: TypeAlias = NDArray[Any]


def logistic(scores: Array, slope: float) -> Array:
    """``1 / (1 + exp(-slope * x))``: binary, multiclassova, cross_entropy."""
    probability: Array = 1.0 / (1.0 + libm.exp(-slope * scores))
    return probability


def signed_square(scores: Array, _parameter: float) -> Array:
    """``sign(x) * x * x``: the inverse of ``reg_sqrt``."""
    sign = (scores > 0).astype(scores.dtype) - (scores < 0)
    result: Array = sign * scores * scores
    return result


def log1p_exp(scores: Array, _parameter: float) -> Array:
    """``log1p(exp(x))``: cross_entropy_lambda."""
    return libm.log1p(libm.exp(scores))


#: By :class:`PostTransform` kind; each takes scores and the transform's parameter.
FUNCTIONS: dict[str, Callable[[Array, float], Array]] = {
    "logistic": logistic,
    "signed_square": signed_square,
    "log1p_exp": log1p_exp,
}


def both_classes(probability: Array) -> Array:
    """Return ``predict_proba`` of a classifier: one output is that of class 1."""
    if probability.ndim == 2:
        return probability
    both: Array = np.vstack((1.0 - probability, probability)).transpose()
    return both
