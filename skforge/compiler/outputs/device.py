"""Transforms of raw scores that are on a GPU, by the array library they come from.

What takes no rounding of its own (nothing, divisions, comparisons, the greatest) gives
the bits that the host gives. ``exp`` is the library's: sigmoids, softmaxes and
exponentials are within ``MOST_ULPS`` units in the last place of the host's. Everything
else is refused rather than approximated.
"""

from __future__ import annotations

from typing import Any

from skforge.compiler.forest.forest import Forest
from skforge.compiler.outputs.libm import SIGMOID_LIMIT
from skforge.exceptions import UnsupportedModelError

#: How far float32 results with ``exp`` in them are from the host's, at most.
MOST_ULPS = 8


def apply_transform(forest: Forest, raw: Any, xp: Any) -> Any:
    """Return what the source's ``predict`` returns for raw scores on a device.

    Parameters
    ----------
    forest : Forest
        Names the transform.
    raw : device array of shape (n, n_outputs) or (n,)
        Raw scores.
    xp : module
        The array's library, with NumPy's functions.

    Returns
    -------
    device array of shape (n,) or (n, n_outputs)

    Raises
    ------
    UnsupportedModelError
        If the transform is only done on the host.
    """
    kind = forest.transform.kind
    if kind not in _FUNCTIONS:
        raise UnsupportedModelError(
            f"The transform {kind!r} of {forest.source} models is not computed on "
            "GPUs: call predict_raw, or pass the rows as a NumPy array."
        )
    scores = raw.reshape(-1, forest.n_outputs)
    if forest.transform.divisor != 1:
        scores = scores / scores.dtype.type(forest.transform.divisor)
    result = _FUNCTIONS[kind](scores, xp)
    if result.ndim == 2 and result.shape[1] == 1:
        return result[:, 0]
    return result


def predict_proba(forest: Forest, raw: Any, xp: Any) -> Any:
    """Return class probabilities for raw scores on a device."""
    if len(forest.output_sizes) > 1 or (
        forest.source == "xgboost" and forest.transform.kind == "argmax"
    ):
        raise _refused(forest, "probabilities")
    value = apply_transform(forest, raw, xp)
    if value.ndim == 2:
        return value
    return xp.stack([value.dtype.type(1) - value, value], axis=1)


def decide(forest: Forest, raw: Any, xp: Any) -> Any:
    """Return the index of the predicted class for raw scores on a device."""
    if len(forest.output_sizes) > 1 or forest.source not in ("xgboost", "sklearn"):
        raise _refused(forest, "labels")
    value = apply_transform(forest, raw, xp)
    if forest.transform.kind == "argmax":
        return value.astype("int32")
    if forest.source == "sklearn":
        return value.argmax(axis=1)
    if value.ndim == 2 and forest.task == "multiclass" and forest.n_outputs != 2:
        return value.argmax(axis=1)
    half = value.dtype.type(0.5)
    return (value > half).astype("int64" if value.ndim == 1 else "float64")


def _refused(forest: Forest, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"The {what} of such {forest.source} models are not computed on GPUs: call "
        "predict_raw, or pass the rows as a NumPy array."
    )


def _identity(scores: Any, xp: Any) -> Any:
    return scores


def _argmax(scores: Any, xp: Any) -> Any:
    return scores.argmax(axis=1).astype(scores.dtype)


def _hinge(scores: Any, xp: Any) -> Any:
    return (scores > 0).astype(scores.dtype)


def _sigmoid(scores: Any, xp: Any) -> Any:
    one, limit = scores.dtype.type(1), scores.dtype.type(SIGMOID_LIMIT)
    return one / (xp.exp(xp.minimum(-scores, limit)) + one)


def _softmax(scores: Any, xp: Any) -> Any:
    powers = xp.exp(scores - scores.max(axis=1, keepdims=True))
    total = xp.zeros(len(scores), dtype="float64")
    for column in range(powers.shape[1]):  # in order, as the source sums
        total = total + powers[:, column]
    return powers / total.astype(scores.dtype)[:, None]


def _exp(scores: Any, xp: Any) -> Any:
    return xp.exp(scores)


def _sorted(scores: Any, xp: Any) -> Any:
    return xp.sort(scores, axis=1)


_FUNCTIONS = {
    "identity": _identity,
    "sorted": _sorted,
    "argmax": _argmax,
    "hinge": _hinge,
    "sigmoid": _sigmoid,
    "softmax": _softmax,
    "exp": _exp,
}
