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

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.outputs import Post
from skforge.compiler.outputs import libm

Array: TypeAlias = NDArray[Any]

_PI = np.float32(np.pi)
_SQRT2 = np.float32(np.sqrt(2.0))
_TINY = np.float32(1e-7)  # SOFTMAX_ZERO treats smaller magnitudes as zero


def transform(forest: Forest, raw: Array) -> Array:
    """Return targets, or all classes' scores, from sums or averages of weights."""
    spec = forest.outputs
    with np.errstate(all="ignore"):
        scores = _based(forest, raw)
        match spec.layout:
            case "one":
                result = _both_of_one(scores, spec.post, spec.parameter)
            case "mirrored":
                result = _post(spec.post, np.concatenate((-scores, scores), axis=1))
            case "columns" | "target":
                result = _post(spec.post, scores)
        return result.astype(spec.dtype)


def above_bound(forest: Forest, raw: Array) -> Array:
    """Return the index of one of two labels, chosen as onnxruntime does."""
    scores = _based(forest, raw)
    # the second class's score decides; the first's if the second has none
    deciding = scores[:, 0 if np.isnan(forest.outputs.offsets[-1]) else -1]
    label: Array = (deciding > forest.outputs.parameter).astype(np.int64)
    return label


def first_greatest(forest: Forest, raw: Array) -> Array:
    """Return the index of one of several labels, chosen as onnxruntime does."""
    scores = _based(forest, raw)
    offsets = np.array(forest.outputs.offsets)
    label = np.full(len(scores), -1, np.int64)
    best = np.zeros(len(scores), scores.dtype)
    for k in np.flatnonzero(~np.isnan(offsets)):
        better = (label < 0) | (scores[:, k] > best)
        label[better] = k
        best[better] = scores[better, k]
    return label


def _based(forest: Forest, raw: Array) -> Array:
    """Add base values; an output that no leaf scores is 0, with or without one."""
    offsets = np.array(forest.outputs.offsets, dtype=raw.dtype)
    scores: Array = raw + offsets
    scores[:, np.isnan(offsets)] = 0
    return scores


def _both_of_one(scores: Array, post: Post, bound: float) -> Array:
    """Return both classes' scores: complements for positive weights, else opposites."""
    score = scores[:, 0]
    if post == "logistic":
        narrow = score.astype(np.float32)
        return np.stack((_logistic(-narrow), _logistic(narrow)), axis=1)
    if bound > 0:
        return np.stack((1 - score, score), axis=1)
    return np.stack((-score, score), axis=1)


def _post(post: Post, scores: Array) -> Array:
    match post:
        case "none":
            return scores
        case "logistic":
            return _logistic(scores)
        case "softmax":
            return _softmax(scores)
        case "softmax_zero":
            return _softmax_zero(scores)
        case "probit":
            return _probit(scores)


def _logistic(scores: Array) -> Array:
    value = scores.astype(np.float32)
    one = np.float32(1)
    positive = one / (one + libm.exp(-np.abs(value)))
    result: Array = np.where(value < 0, one - positive, positive)
    return result


def _softmax(scores: Array) -> Array:
    value = scores.astype(np.float32)
    powers = libm.exp(value - _largest(value))
    result: Array = powers / _sum(powers)
    return result


def _softmax_zero(scores: Array) -> Array:
    """Return the softmax of the nonzero scores; the others stay (nearly) zero."""
    value = scores.astype(np.float32)
    largest = _largest(value)
    counts = (value > _TINY) | (value < -_TINY)
    powers = libm.exp(value - largest)
    total = _sum(np.where(counts, powers, np.float32(0)))
    rest = scores * libm.exp(-largest)
    result: Array = np.where(counts, powers.astype(scores.dtype), rest) / total
    return result


def _largest(value: Array) -> Array:
    """Return each row's greatest score, at least -FLT_MAX."""
    lowest = np.float32(np.finfo(np.float32).min)
    largest: Array = np.fmax(np.fmax.reduce(value, axis=1), lowest)
    return largest[:, np.newaxis]


def _sum(powers: Array) -> Array:
    total = np.zeros(len(powers), np.float32)
    for column in powers.T:
        total += column
    return total[:, np.newaxis]


def _probit(scores: Array) -> Array:
    """Compute Winitzki's approximation of the probit function in float32."""
    value = np.float32(2) * scores.astype(np.float32) - np.float32(1)
    sign = np.where(value < 0, np.float32(-1), np.float32(1))
    slope = np.float32(0.147)
    log = libm.logf((1 - value) * (1 + value))
    half = np.float32(2) / (_PI * slope) + np.float32(0.5) * log
    inner = np.sqrt(half * half - np.float32(1) / slope * log)
    result: Array = _SQRT2 * (sign * np.sqrt(-half + inner))
    return result
