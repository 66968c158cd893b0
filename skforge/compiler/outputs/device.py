"""Transforms of raw scores in GPU memory, with the array library they come from.

Transforms without their own rounding (identity, division, comparison, argmax) give the
same bits as on the host. ``exp`` is the library's: sigmoids, softmaxes and exponentials
are within ``MOST_ULPS`` units in the last place of the host's. All other transforms
are refused rather than approximated.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from skforge.compiler.forest.forest import Forest
from skforge.compiler.outputs.functions import Library, evaluate, softmax
from skforge.exceptions import UnsupportedModelError

#: Largest difference, in ulps, of float32 results with ``exp`` from the host's.
MOST_ULPS = 8


def apply_transform(forest: Forest, raw: Any, xp: Any) -> Any:
    """Return the answer of a Booster's or regressor's ``predict``, on the device.

    ``xp`` is the array's library, with NumPy's functions. Raise
    ``UnsupportedModelError`` for a transform that only the host computes.
    """
    spec, on = forest.outputs, Library(xp, xp.exp, partial(xp.sort, axis=1))
    scores = raw.reshape(-1, forest.n_outputs)
    if spec.divisor != 1:
        scores = scores / scores.dtype.type(spec.divisor)
    match spec.function:
        case "identity" | "hinge" | "sigmoid" | "exp":
            result = evaluate(spec.function, scores, spec.parameter, on)
        case "softmax":
            result = softmax(scores, on)
        case "sorted":
            result = on.sort(scores)
        case "argmax":
            return scores.argmax(axis=1).astype(scores.dtype)
        case _:
            raise UnsupportedModelError(
                f"The transform {forest.transform.kind!r} of {forest.source} models is "
                "not computed on GPUs: call predict_raw, or pass the rows as a NumPy "
                "array."
            )
    return result[:, 0] if result.shape[1] == 1 else result


def predict_proba(forest: Forest, raw: Any, xp: Any) -> Any:
    """Return class probabilities for raw scores on a device."""
    if len(forest.output_sizes) > 1 or forest.outputs.probabilities == "softmax":
        raise _refused(forest, "probabilities")
    value = apply_transform(forest, raw, xp)
    if value.ndim == 2:
        return value
    return xp.stack([value.dtype.type(1) - value, value], axis=1)


def decide(forest: Forest, raw: Any, xp: Any) -> Any:
    """Return the index of the predicted class for raw scores on a device."""
    # a GPU may decide near ties of probabilities differently
    if len(forest.output_sizes) > 1 or forest.source == "lightgbm":
        raise _refused(forest, "labels")
    value = apply_transform(forest, raw, xp)
    match forest.outputs.labels:
        case "index":
            return value.astype("int32")
        case "best" | "best_score":
            return value.argmax(axis=1)
        case "half":
            half = value.dtype.type(0.5)
            return (value > half).astype("int64" if value.ndim == 1 else "float64")
        case _:
            raise _refused(forest, "labels")


def _refused(forest: Forest, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"The {what} of such {forest.source} models are not computed on GPUs: call "
        "predict_raw, or pass the rows as a NumPy array."
    )
