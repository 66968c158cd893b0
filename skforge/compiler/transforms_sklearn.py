"""scikit-learn's own arithmetic from raw scores to what its methods return.

The functions are NumPy's and SciPy's, called as scikit-learn calls them, on arrays in
the memory order it has them in: NumPy sums rows of a C and of a Fortran array in
different orders. scikit-learn itself is not needed.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest import Forest
from skforge.exceptions import UnsupportedModelError

Array: TypeAlias = NDArray[Any]

#: Kinds of ``PostTransform`` that are computed here.
KINDS = frozenset({"gb_logistic", "gb_exponential", "gb_softmax"})


def transform(forest: Forest, raw: Array) -> Array:
    """Return probabilities of a classifier, and what ``predict`` returns otherwise.

    Parameters
    ----------
    forest : Forest
        With a transform of ``KINDS``.
    raw : ndarray of shape (n, n_outputs) or (n,)
        Raw scores.

    Returns
    -------
    ndarray of shape (n, n_classes) or (n,)
    """
    kind = forest.transform.kind
    if kind == "gb_logistic":
        return _both_classes(_expit(raw.reshape(-1)))
    if kind == "gb_exponential":
        return _both_classes(_expit(2 * raw.reshape(-1)))
    if kind == "gb_softmax":
        return _softmax(np.array(raw, order="C"))
    raise _unknown(forest)


def decide(forest: Forest, raw: Array) -> Array:
    """Return positions in ``classes_`` as the classifier's ``predict`` takes them.

    Parameters
    ----------
    forest : Forest
        Of a classifier, with a transform of ``KINDS``.
    raw : ndarray of shape (n, n_outputs) or (n,)
        Raw scores.

    Returns
    -------
    ndarray of int, shape (n,)
    """
    kind = forest.transform.kind
    if kind in ("gb_logistic", "gb_exponential"):
        at_least: Array = (raw.reshape(-1) >= 0).astype(int)
        return at_least
    if kind == "gb_softmax":
        best: Array = np.argmax(raw, axis=1)
        return best
    raise _unknown(forest)


def decision_function(forest: Forest, raw: Array) -> Array:
    """Return what the estimator's ``decision_function`` returns.

    Parameters
    ----------
    forest : Forest
        With a transform of ``KINDS``.
    raw : ndarray of shape (n, n_outputs) or (n,)
        Raw scores.

    Returns
    -------
    ndarray of shape (n,) or (n, n_classes)
    """
    if forest.transform.kind in KINDS:
        return raw.reshape(-1) if forest.n_outputs == 1 else raw
    raise _unknown(forest)


def _unknown(forest: Forest) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"A forest with the transform {forest.transform.kind!r} has no such function."
    )


def _expit(scores: Array) -> Array:
    from scipy.special import expit  # type: ignore[import-untyped, unused-ignore]

    probability: Array = expit(scores)
    return probability


def _both_classes(positive: Array) -> Array:
    probability = np.empty((len(positive), 2), positive.dtype)
    probability[:, 1] = positive
    probability[:, 0] = 1 - probability[:, 1]
    return probability


def _softmax(scores: Array) -> Array:
    """Overwrite scores with their softmax; keeps the order they lie in memory."""
    scores -= np.max(scores, axis=1).reshape((-1, 1))
    np.exp(scores, out=scores)
    scores /= np.sum(scores, axis=1).reshape((-1, 1))
    return scores
