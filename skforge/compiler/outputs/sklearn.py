"""scikit-learn's own arithmetic from raw scores to what its methods return.

The functions are NumPy's and SciPy's, called as scikit-learn calls them, on arrays in
the memory order it has them in: NumPy sums rows of a C and of a Fortran array in
different orders. scikit-learn itself is not needed.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.forest import Forest
from skforge.exceptions import UnsupportedModelError

Array: TypeAlias = NDArray[Any]

#: Kinds of ``PostTransform`` that are computed here.
KINDS = frozenset(
    {
        "gb_logistic",
        "gb_exponential",
        "gb_softmax",
        "hist_logistic",
        "hist_softmax",
        "hist_exp",
        "samme",
        "path_length",
    }
)


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
    if kind in ("gb_logistic", "hist_logistic"):
        return _both_classes(_expit(raw.reshape(-1)))
    if kind == "gb_exponential":
        return _both_classes(_expit(2 * raw.reshape(-1)))
    if kind == "gb_softmax":
        return _softmax(np.array(raw, order="C"))
    if kind == "hist_softmax":
        return _softmax(np.array(raw, order="F"))
    if kind == "hist_exp":
        power: Array = np.exp(raw.reshape(-1))
        return power
    if kind == "samme":
        return _samme_proba(forest, raw)
    if kind == "path_length":
        inlier = np.ones(len(raw), dtype=int)
        inlier[decision_function(forest, raw) < 0] = -1
        return inlier
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
    if kind == "hist_logistic":
        above: Array = (raw.reshape(-1) > 0).astype(int)
        return above
    if kind == "samme" and forest.n_outputs == 2:
        second: Array = (decision_function(forest, raw) > 0).astype(int)
        return second
    if kind in ("gb_softmax", "hist_softmax", "samme"):
        best: Array = np.argmax(decision_function(forest, raw), axis=1)
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
    kind = forest.transform.kind
    if kind == "samme":
        return _samme_decision(forest, raw)
    if kind == "path_length":
        return score_samples(forest, raw) - forest.transform.cutoff
    if has_method(forest, "decision_function"):
        return raw.reshape(-1) if forest.n_outputs == 1 else raw
    raise _unknown(forest)


def score_samples(forest: Forest, raw: Array) -> Array:
    """Return what ``IsolationForest.score_samples`` returns.

    Parameters
    ----------
    forest : Forest
        Of an IsolationForest.
    raw : ndarray of shape (n, 1) or (n,)
        Path lengths, summed over the trees.

    Returns
    -------
    ndarray of shape (n,)
    """
    if forest.transform.kind != "path_length":
        raise _unknown(forest)
    lengths = raw.reshape(-1)
    denominator = np.array([forest.transform.parameter])
    # trees of one row have no length to compare with: every row scores alike
    relative = np.divide(
        lengths, denominator, out=np.ones_like(lengths), where=denominator != 0
    )
    scores: Array = -(2 ** (-relative))
    return scores


def has_method(forest: Forest, name: str) -> bool:
    """Tell whether a forest has a function here, as its source has the method.

    Parameters
    ----------
    forest : Forest
        From any source.
    name : {"decision_function", "score_samples"}
        Name of the function.

    Returns
    -------
    bool
    """
    kind = forest.transform.kind
    if name == "score_samples":
        return kind == "path_length"
    return kind in KINDS and kind != "hist_exp"


def _unknown(forest: Forest) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"A forest with the transform {forest.transform.kind!r} has no such function."
    )


def _expit(scores: Array) -> Array:
    from scipy.special import expit  # type: ignore[import-untyped, unused-ignore]

    probability: Array = expit(scores)
    return probability


def _samme_decision(forest: Forest, raw: Array) -> Array:
    votes = raw / forest.transform.parameter
    if forest.n_outputs == 2:
        votes[:, 0] *= -1
        difference: Array = votes.sum(axis=1)
        return difference
    return votes


def _samme_proba(forest: Forest, raw: Array) -> Array:
    decision = _samme_decision(forest, raw)
    if forest.n_outputs == 2:
        decision = np.vstack([-decision, decision]).T / 2
    else:
        decision = np.array(decision / (forest.n_outputs - 1), order="F")
    return _softmax(decision)


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
