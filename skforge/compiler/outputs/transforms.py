"""From raw scores to what the source's ``predict`` and ``predict_proba`` return.

Each function repeats the source's arithmetic, operation by operation and in its
precision, so that equal raw scores give equal bits.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.forest import Forest
from skforge.compiler.outputs import lightgbm
from skforge.compiler.outputs import onnx as transforms_onnx
from skforge.compiler.outputs import sklearn as transforms_sklearn
from skforge.compiler.outputs.libm import SIGMOID_LIMIT
from skforge.exceptions import UnsupportedModelError

Array: TypeAlias = NDArray[Any]


def apply_transform(forest: Forest, raw: Array) -> Array:
    """Return what the source model's own ``predict`` returns for raw scores.

    Parameters
    ----------
    forest : Forest
        Names the transform.
    raw : ndarray of shape (n, n_outputs) or (n,)
        Raw scores, in the accumulator's dtype.

    Returns
    -------
    ndarray of shape (n,) or (n, n_outputs)
        As ``Booster.predict`` gives it; scikit-learn's averages as they are.
    """
    scores = _columns(forest, raw)
    kind = forest.transform.kind
    if transforms_onnx.is_onnx(forest):
        result: Array = transforms_onnx.transform(forest, scores)
        return result[:, 0] if result.shape[1] == 1 else result
    if kind in transforms_sklearn.KINDS:
        return transforms_sklearn.transform(forest, scores)
    if forest.transform.divisor != 1:
        scores = scores / scores.dtype.type(forest.transform.divisor)
    if kind == "argmax":
        result = scores.argmax(axis=1).astype(scores.dtype)
        return result
    if kind == "identity":
        result = scores
    elif kind == "sigmoid":
        result = _sigmoid(scores)
    elif kind == "softmax":
        result = _softmax(scores)
    elif kind == "exp":
        result = _exp(scores)
    elif kind == "hinge":
        result = (scores > 0).astype(scores.dtype)
    elif kind == "sorted":
        result = np.sort(scores, axis=1, kind="stable")
    elif kind in lightgbm.FUNCTIONS:
        result = lightgbm.FUNCTIONS[kind](scores, forest.transform.parameter)
    else:
        raise UnsupportedModelError(
            f"The transform {kind!r} is not known; this forest was made by a "
            "newer release."
        )
    return result[:, 0] if result.shape[1] == 1 else result


def predict_proba(forest: Forest, raw: Array) -> Array | list[Array]:
    """Return class probabilities as the source classifier returns them.

    Parameters
    ----------
    forest : Forest
        Of a classifier.
    raw : ndarray of shape (n, n_outputs) or (n,)
        Raw scores.

    Returns
    -------
    ndarray of shape (n, n_classes), or a list of one for each target
        A list for scikit-learn classifiers of several targets.
    """
    _require_classifier(forest)
    if forest.source == "xgboost":
        return _xgboost_proba(forest, raw)
    if forest.source == "lightgbm":
        return lightgbm.both_classes(apply_transform(forest, raw))
    if transforms_onnx.is_onnx(forest):
        return apply_transform(forest, raw)
    scores = _columns(forest, raw)
    if forest.transform.kind in transforms_sklearn.KINDS:
        return transforms_sklearn.transform(forest, scores)
    if len(forest.output_sizes) < 2:
        return scores
    return np.split(scores, np.cumsum(forest.output_sizes)[:-1], axis=1)


def decide(forest: Forest, raw: Array) -> Array:
    """Return the index of the predicted class, as the source classifier chooses it.

    Parameters
    ----------
    forest : Forest
        Of a classifier.
    raw : ndarray of shape (n, n_outputs) or (n,)
        Raw scores.

    Returns
    -------
    ndarray of shape (n,) or (n, n_targets)
        Positions in ``classes_``; 0 and 1 for the labels of a multilabel model.
    """
    _require_classifier(forest)
    if forest.source == "xgboost":
        return _xgboost_decide(forest, raw)
    label: Array
    if forest.source == "lightgbm":
        label = lightgbm.both_classes(apply_transform(forest, raw)).argmax(axis=1)
        return label
    scores = _columns(forest, raw)
    if transforms_onnx.is_onnx(forest):
        return transforms_onnx.decide(forest, scores)
    if forest.transform.kind in transforms_sklearn.KINDS:
        return transforms_sklearn.decide(forest, scores)
    if len(forest.output_sizes) < 2:
        label = scores.argmax(axis=1)
        return label
    parts = np.split(scores, np.cumsum(forest.output_sizes)[:-1], axis=1)
    return np.stack([part.argmax(axis=1) for part in parts], axis=1)


def _require_classifier(forest: Forest) -> None:
    if not forest.classifies:
        raise UnsupportedModelError(
            f"A {forest.task} model has no classes; use its predictions instead."
        )


def _columns(forest: Forest, raw: Array) -> Array:
    scores: Array = np.asarray(raw).reshape(-1, forest.n_outputs)
    return scores


def _xgboost_proba(forest: Forest, raw: Array) -> Array:
    if forest.transform.kind == "argmax":  # the wrapper asks for margins and SciPy
        from scipy.special import softmax  # type: ignore[import-untyped, unused-ignore]

        probability: Array = softmax(_columns(forest, raw), axis=1)
        return probability
    value = apply_transform(forest, raw)
    if value.ndim == 2:
        return value
    both: Array = np.vstack((1.0 - value, value)).transpose()
    return both


def _xgboost_decide(forest: Forest, raw: Array) -> Array:
    value = apply_transform(forest, raw)
    label: Array
    if forest.transform.kind == "argmax":
        label = value.astype(np.int32)
        return label
    if value.ndim == 2 and forest.task == "multiclass" and forest.n_outputs != 2:
        label = value.argmax(axis=1)
        return label
    # one label, or the wrapper's reading of two columns: each cut at one half
    label = np.zeros(value.shape, np.int64 if value.ndim == 1 else np.float64)
    label[value > 0.5] = 1
    return label


def _exp(scores: Array) -> Array:
    from skforge.compiler.outputs import libm

    return libm.exp(scores)


def _sigmoid(scores: Array) -> Array:
    """XGBoost's float32 logistic function: clipped so that expf cannot overflow."""
    one, limit = scores.dtype.type(1), scores.dtype.type(SIGMOID_LIMIT)
    probability: Array = one / (_exp(np.minimum(-scores, limit)) + one)
    return probability


def _softmax(scores: Array) -> Array:
    """XGBoost's softmax: float32 exponentials, their sum in float64, in order."""
    powers = _exp(scores - scores.max(axis=1, keepdims=True))
    total = np.zeros(len(scores), dtype=np.float64)
    for column in powers.T:
        total += column
    probability: Array = powers / total.astype(scores.dtype)[:, np.newaxis]
    return probability
