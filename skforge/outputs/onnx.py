"""Computes the outputs of ONNX's tree ensembles from sums of leaf weights.

The operations are those of onnxruntime's CPU kernel: scores have the thresholds' type,
post transforms are always float32, and outputs are float32 except those of
``TreeEnsemble`` with double input.

Layouts:

``target``
    One target; onnxruntime implements only the post transform PROBIT for it.
``columns``
    One score per target or class; those without any leaf weight are 0.
``one``
    A classifier of two classes with one score, which belongs to the second class.
``mirrored``
    Two classes with two base values: the output is the first score and its negative;
    the second class's weights are ignored.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.forest.outputs import OutputSpec, Post
from skforge.outputs.library import total
from skforge.runtime.libm import log, multiply_add

_PI = np.float32(np.pi)
_SQRT2 = np.float32(np.sqrt(2.0))
_TINY = float(np.float32(1e-7))  # SOFTMAX_ZERO treats smaller magnitudes as zero


def values(scores: Any, spec: OutputSpec, on: Any) -> Any:
    # an output that no leaf scores is 0, with or without a base value
    scores = on.add_offsets(scores, spec.offsets)
    match spec.layout:
        case "one":
            result = _both_of_one(spec, scores, on)
        case "mirrored":
            result = _post(spec.post, on.join(-scores, scores), on)
        case "columns" | "target":
            result = _post(spec.post, scores, on)
    return result.astype(spec.dtype)


def width(spec: OutputSpec, n_outputs: int) -> int:
    return n_outputs * (2 if spec.layout in ("one", "mirrored") else 1)


def above_bound(scores: Any, spec: OutputSpec, on: Any) -> Any:
    # the second class's score decides; the first's if the second has none
    k = 0 if np.isnan(spec.offsets[-1]) else len(spec.offsets) - 1
    deciding = on.add_offsets(scores, spec.offsets)[:, k : k + 1]
    return (deciding > spec.parameter).astype("int64")


def first_greatest(scores: Any, spec: OutputSpec, on: Any) -> Any:
    scores = on.add_offsets(scores, spec.offsets)
    known = np.flatnonzero(~np.isnan(spec.offsets)).tolist()
    first, *others = known or [-1]
    label, best = on.index(first, scores), scores[:, first : first + 1]
    for k in others:
        column = scores[:, k : k + 1]
        better = column > best
        best = on.where(better, column, best)
        label = on.where(better, k, label)
    return label


def _both_of_one(spec: OutputSpec, score: Any, on: Any) -> Any:
    """Return both classes' scores: complements for positive weights, else opposites."""
    if spec.post == "logistic":
        narrow = score.astype("float32")
        return on.join(_logistic(-narrow, on), _logistic(narrow, on))
    return on.join(1 - score if spec.parameter > 0 else -score, score)


def _post(post: Post, scores: Any, on: Any) -> Any:
    match post:
        case "none":
            return scores
        case "logistic":
            return _logistic(scores.astype("float32"), on)
        case "softmax":
            powers, _ = _powers(scores.astype("float32"), on)
            return powers / total(powers, "float32")
        case "softmax_zero":
            return _softmax_zero(scores, on)
        case "probit":
            return _probit(scores)


def _logistic(scores: Any, on: Any) -> Any:
    def function(x: Any) -> Any:
        positive = 1 / (1 + on.exp(-abs(x)))
        return on.where(x < 0, 1 - positive, positive)

    return on.each_column(function, scores)


def _powers(x: Any, on: Any) -> tuple[Any, Any]:
    largest = on.greatest(x)
    return on.each_column(lambda column: on.exp(column - largest), x), largest


def _softmax_zero(scores: Any, on: Any) -> Any:
    """Return the softmax of the nonzero scores; the others stay (nearly) zero."""
    x, dtype = scores.astype("float32"), scores.dtype
    powers, largest = _powers(x, on)
    counts = (x > _TINY) | (x < -_TINY)
    whole = total(on.where(counts, powers, 0), "float32").astype(dtype)
    rest = scores * on.exp(-largest).astype(dtype)
    return on.where(counts, powers.astype(dtype), rest) / whole


def _probit(scores: Array) -> Array:
    """Compute Winitzki's approximation of the probit function in float32, in NumPy."""
    value = np.float32(2) * scores.astype(np.float32) - np.float32(1)
    sign = np.where(value < 0, np.float32(-1), np.float32(1))
    slope = np.float32(0.147)
    logs = log((1 - value) * (1 + value))
    half = np.float32(2) / (_PI * slope) + np.float32(0.5) * logs
    inner = np.sqrt(multiply_add(logs, np.float32(-1) / slope, half * half))
    return _SQRT2 * (sign * np.sqrt(-half + inner))
