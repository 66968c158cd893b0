"""Computes the answers of the source's ``predict`` and ``predict_proba``.

Each function repeats the source's arithmetic, operation by operation and in its
precision, so that equal raw scores give equal bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge.compiler.forest.arrays import Array
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.outputs import Function
from skforge.compiler.outputs import catboost, onnx, sklearn
from skforge.compiler.outputs.functions import HOST, Library, evaluate, softmax
from skforge.exceptions import UnsupportedModelError

#: Functions that GPUs compute. Those with ``exp`` use the device's own: results are
#: within 8 units in the last place of the host's. Others have the host's bits.
ON_DEVICES: frozenset[Function] = frozenset(
    ("identity", "hinge", "sigmoid", "exp", "softmax", "sorted", "argmax")
)


#: Why there are only raw scores, see :class:`OutputSpec`.
UNKNOWN = (
    "The model does not name its objective, as dumps of LightGBM before 2.2.3 do not, "
    "so predictions cannot be made of its raw scores. Call predict_raw, or read what "
    "Booster.save_model wrote."
)


def apply_transform(forest: Forest, raw: Any, on: Library = HOST) -> Array:
    """Return a Booster's or regressor's ``predict`` for raw scores.

    Raw scores have shape (n, n_outputs) or (n,), here and below. For scikit-learn's
    classifiers this returns probabilities, not labels; averages are not changed.
    ``on`` is the library of the array. Functions that only the host computes raise
    ``UnsupportedModelError`` for arrays of GPUs.
    """
    spec = forest.outputs
    _require_function(forest, on)
    scores = _columns(forest, raw)
    if spec.divisor != 1:
        scores = scores / scores.dtype.type(spec.divisor)
    result: Array
    match spec.function:
        case "argmax":
            result = scores.argmax(axis=1).astype(scores.dtype)
        case "sorted":
            result = on.sort(scores)
        case "softmax":
            result = softmax(scores, on)
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
            with np.errstate(all="ignore"):
                result = onnx.values(spec, scores, on)
        case "fast_exp":
            result = catboost.exp(scores.reshape(-1))
        case "fast_softmax":
            result = catboost.softmax(scores)
        case "uncertainty":
            result = catboost.uncertainty(scores)
        case "unknown":
            raise UnsupportedModelError(UNKNOWN)
        case (
            "identity"
            | "exp"
            | "hinge"
            | "sigmoid"
            | "logistic"
            | "signed_square"
            | "log1p_exp"
            | "expectiles"
        ):
            with np.errstate(over="ignore", invalid="ignore"):
                result = evaluate(spec.function, scores, spec.parameter, on)
    return result[:, 0] if result.ndim == 2 and result.shape[1] == 1 else result


def predict_proba(forest: Forest, raw: Any, on: Library = HOST) -> Any:
    """Return class probabilities as the source classifier does.

    For a scikit-learn classifier with several targets this is a list of arrays.
    """
    require_classifier(forest)
    kind = forest.outputs.probabilities
    if on is not HOST and (len(forest.output_sizes) > 1 or kind == "softmax"):
        raise _refused(forest, "probabilities")
    match kind:
        case "scores":
            targets = _targets(forest, _columns(forest, raw))
            return targets if len(targets) > 1 else targets[0]
        case "values":
            return apply_transform(forest, raw, on)
        case "complement":
            value = apply_transform(forest, raw, on)
            return on.xp.vstack((1.0 - value, value)).transpose()
        case "softmax":
            from scipy.special import softmax as of_scipy  # type: ignore[import-untyped, unused-ignore]

            return of_scipy(_columns(forest, raw), axis=1)


def decide(forest: Forest, raw: Any, on: Library = HOST) -> Any:
    """Return the index into ``classes_`` that the source classifier chooses.

    One per target if there are several; 0 or 1 per label of a multilabel model.
    """
    require_classifier(forest)
    spec = forest.outputs
    if on is not HOST:
        # a GPU may decide near ties of probabilities differently
        if len(forest.output_sizes) > 1 or forest.source == "lightgbm":
            raise _refused(forest, "labels")
        _require_function(forest, on)
        if spec.labels not in ("best_score", "best", "half", "index"):
            raise _refused(forest, "labels")
    scores = _columns(forest, raw)
    match spec.labels:
        case "best_score":
            if spec.decision == "votes":
                scores = sklearn.samme_decision(forest, scores)
            targets = [part.argmax(axis=1) for part in _targets(forest, scores)]
            return targets[0] if len(targets) == 1 else np.stack(targets, axis=1)
        case "best":
            return apply_transform(forest, raw, on).argmax(axis=1)
        case "half":
            value = apply_transform(forest, raw, on)
            above = value > value.dtype.type(0.5)
            return above.astype("int64" if value.ndim == 1 else "float64")
        case "index":
            return apply_transform(forest, raw, on).astype("int32")
        case "from_zero":
            return (decision_function(forest, scores) >= 0).astype(int)
        case "above_zero":
            return (decision_function(forest, scores) > spec.cutoff).astype(int)
        case "above_bound":
            return onnx.above_bound(spec, scores, on)[:, 0]
        case "first_greatest":
            return onnx.first_greatest(spec, scores, on)[:, 0]
        case "column":
            return scores.argmax(axis=1)


def decision_function(forest: Forest, raw: Array) -> Array:
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
    """Return the labels that a model file holds, or None."""
    names = forest.class_labels
    if not names:
        return None
    kinds = {str: object, int: np.int64}
    return np.array(names, dtype=kinds.get(type(names[0])))


def require_classifier(forest: Forest) -> None:
    if not forest.classifies:
        raise UnsupportedModelError(
            f"This {forest.task} model has no classes; use predict instead."
        )


def _columns(forest: Forest, raw: Any) -> Any:
    scores: Any = raw if hasattr(raw, "reshape") else np.asarray(raw)
    return scores.reshape(-1, forest.n_outputs)


def _targets(forest: Forest, scores: Array) -> list[Array]:
    if len(forest.output_sizes) < 2:
        return [scores]
    return np.split(scores, np.cumsum(forest.output_sizes)[:-1], axis=1)


def _require_function(forest: Forest, on: Library) -> None:
    if on is not HOST and forest.outputs.function not in ON_DEVICES:
        raise UnsupportedModelError(
            f"The transform {forest.outputs.name!r} of {forest.source} models is "
            "not computed on GPUs: call predict_raw, or pass the rows as a NumPy array."
        )


def _refused(forest: Forest, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"The {what} of this {forest.source} model are not computed on GPUs: call "
        "predict_raw, or pass the rows as a NumPy array."
    )


def _unknown(forest: Forest) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"A forest with the transform {forest.outputs.name!r} has neither "
        "decision_function nor score_samples."
    )
