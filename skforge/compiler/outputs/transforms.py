"""Computes the answers of the source's ``predict`` and ``predict_proba``.

Each function repeats the source's arithmetic, operation by operation and in its
precision, so that equal raw scores give equal bits.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.forest import Forest
from skforge.compiler.outputs import onnx, sklearn
from skforge.compiler.outputs.functions import HOST, evaluate, softmax
from skforge.exceptions import UnsupportedModelError

Array: TypeAlias = NDArray[Any]


def apply_transform(forest: Forest, raw: Array) -> Array:
    """Return a Booster's or regressor's ``predict`` for raw scores.

    Raw scores have shape (n, n_outputs) or (n,), here and below. For scikit-learn's
    classifiers this returns probabilities, not labels; averages are not changed.
    """
    spec = forest.outputs
    scores = _columns(forest, raw)
    if spec.divisor != 1:
        scores = scores / scores.dtype.type(spec.divisor)
    result: Array
    match spec.function:
        case "argmax":
            result = scores.argmax(axis=1).astype(scores.dtype)
        case "sorted":
            result = HOST.sort(scores)
        case "softmax":
            result = softmax(scores, HOST)
        case "expit":
            result = sklearn.both_expit(scores, spec.parameter)
        case "softmax_by_rows":
            result = sklearn.softmax(np.array(scores, order="C"))
        case "softmax_by_columns":
            result = sklearn.softmax(np.array(scores, order="F"))
        case "numpy_exp":
            result = np.exp(scores.reshape(-1))
        case "samme":
            result = sklearn.samme_proba(forest, scores)
        case "path_length":
            result = sklearn.inliers(forest, scores)
        case "onnx":
            result = onnx.transform(forest, scores)
        case (
            "identity"
            | "exp"
            | "hinge"
            | "sigmoid"
            | "logistic"
            | "signed_square"
            | "log1p_exp"
        ):
            result = evaluate(spec.function, scores, spec.parameter, HOST)
    return result[:, 0] if result.ndim == 2 and result.shape[1] == 1 else result


def predict_proba(forest: Forest, raw: Array) -> Array | list[Array]:
    """Return class probabilities as the source classifier does.

    For a scikit-learn classifier with several targets this is a list of arrays.
    """
    require_classifier(forest)
    match forest.outputs.probabilities:
        case "scores":
            targets = _targets(forest, _columns(forest, raw))
            return targets if len(targets) > 1 else targets[0]
        case "values":
            return apply_transform(forest, raw)
        case "complement":
            value = apply_transform(forest, raw)
            both: Array = np.vstack((1.0 - value, value)).transpose()
            return both
        case "softmax":
            from scipy.special import (  # type: ignore[import-untyped, unused-ignore]
                softmax as of_scipy,
            )

            probability: Array = of_scipy(_columns(forest, raw), axis=1)
            return probability


def decide(forest: Forest, raw: Array) -> Array:
    """Return the index into ``classes_`` that the source classifier chooses.

    One per target if there are several; 0 or 1 per label of a multilabel model.
    """
    require_classifier(forest)
    label: Array
    match forest.outputs.labels:
        case "best_score":
            scores = _columns(forest, raw)
            if forest.outputs.decision == "votes":
                scores = sklearn.samme_decision(forest, scores)
            targets = [part.argmax(axis=1) for part in _targets(forest, scores)]
            label = targets[0] if len(targets) == 1 else np.stack(targets, axis=1)
        case "best":
            label = apply_transform(forest, raw).argmax(axis=1)
        case "half":
            value = apply_transform(forest, raw)
            label = np.zeros(value.shape, np.int64 if value.ndim == 1 else np.float64)
            label[value > 0.5] = 1
        case "index":
            label = apply_transform(forest, raw).astype(np.int32)
        case "from_zero":
            label = (decision_function(forest, _columns(forest, raw)) >= 0).astype(int)
        case "above_zero":
            label = (decision_function(forest, _columns(forest, raw)) > 0).astype(int)
        case "above_bound":
            label = onnx.above_bound(forest, _columns(forest, raw))
        case "first_greatest":
            label = onnx.first_greatest(forest, _columns(forest, raw))
    return label


def decision_function(forest: Forest, raw: Array) -> Array:
    """Return the estimator's ``decision_function``."""
    match forest.outputs.decision:
        case "scores":
            return raw.reshape(-1) if forest.n_outputs == 1 else raw
        case "votes":
            return sklearn.samme_decision(forest, raw)
        case "paths":
            return score_samples(forest, raw) - forest.outputs.cutoff
        case "none":
            raise _unknown(forest)


def score_samples(forest: Forest, raw: Array) -> Array:
    """Return ``IsolationForest.score_samples`` for summed path lengths."""
    if forest.outputs.function != "path_length":
        raise _unknown(forest)
    return sklearn.path_scores(forest, raw)


def has_method(forest: Forest, name: str) -> bool:
    """Tell whether a forest has ``decision_function`` or ``score_samples``."""
    if name == "score_samples":
        return forest.outputs.function == "path_length"
    return forest.outputs.decision != "none"


def class_labels(forest: Forest) -> Array | None:
    """Return the labels that a model file holds, as int64 or text, or None."""
    names = forest.class_labels
    if not names:
        return None
    return np.array(names, dtype=object if isinstance(names[0], str) else np.int64)


def require_classifier(forest: Forest) -> None:
    """Raise :class:`UnsupportedModelError` if a forest is not a classifier."""
    if not forest.classifies:
        raise UnsupportedModelError(
            f"A {forest.task} model has no classes; use its predictions instead."
        )


def _columns(forest: Forest, raw: Array) -> Array:
    scores: Array = np.asarray(raw).reshape(-1, forest.n_outputs)
    return scores


def _targets(forest: Forest, scores: Array) -> list[Array]:
    """Return the columns of each target."""
    if len(forest.output_sizes) < 2:
        return [scores]
    return np.split(scores, np.cumsum(forest.output_sizes)[:-1], axis=1)


def _unknown(forest: Forest) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"A forest with the transform {forest.transform.kind!r} has no such function."
    )
