"""scikit-learn's own arithmetic, from raw scores to its methods' answers.

The functions are NumPy's and SciPy's, called as scikit-learn calls them, on arrays in
the same memory order: NumPy sums the rows of C and Fortran arrays in different orders.
scikit-learn itself is not needed.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.forest.outputs import OutputSpec
from skforge.runtime.libm import fused


def both_expit(scores: Array, spec: OutputSpec, on: Any) -> Array:
    from scipy.special import expit  # type: ignore[import-untyped, unused-ignore]

    probability = np.empty((len(scores), 2), scores.dtype)
    probability[:, 1] = expit(spec.parameter * scores.reshape(-1))
    probability[:, 0] = 1 - probability[:, 1]
    return probability


def softmax(scores: Array) -> Array:
    scores -= np.max(scores, axis=1).reshape((-1, 1))
    np.exp(scores, out=scores)
    scores /= np.sum(scores, axis=1).reshape((-1, 1))
    return scores


def pair(votes: Any, spec: OutputSpec, on: Any) -> Any:
    """Return by how much the second class's share of the votes is greater."""
    shares = votes / spec.parameter
    return -shares[:, :1] + shares[:, 1:]


def samme(votes: Array, spec: OutputSpec, on: Any) -> Array:
    """Return ``AdaBoostClassifier.predict_proba`` for votes."""
    n_classes = votes.shape[1]
    if n_classes == 2:
        difference = pair(votes, spec, on)[:, 0]
        return softmax(np.vstack([-difference, difference]).T / 2)
    shares = votes / spec.parameter
    return softmax(np.array(shares / (n_classes - 1), order="F"))


def path_scores(raw: Array, spec: OutputSpec, on: Any) -> Array:
    """Return ``IsolationForest.score_samples`` for summed path lengths."""
    lengths = raw.reshape(-1)
    denominator = np.array([spec.parameter])
    # trees of one training row have average length 0: all rows score alike
    relative = np.divide(
        lengths, denominator, out=np.ones_like(lengths), where=denominator != 0
    )
    return -(2 ** (-relative))


def path_decision(raw: Array, spec: OutputSpec, on: Any) -> Array:
    return path_scores(raw, spec, on) - spec.cutoff


def inliers(raw: Array, spec: OutputSpec, on: Any) -> Array:
    """Return ``IsolationForest.predict``: -1 for an outlier, 1 for an inlier."""
    inlier = np.ones(len(raw), dtype=int)
    inlier[path_decision(raw, spec, on) < 0] = -1
    return inlier


#: Rows whose predictions stay in the cache while they are sorted.
_BLOCK_ROWS = 512


def weighted_median(scores: Array, spec: OutputSpec, on: Any) -> Array:
    """Return ``AdaBoostRegressor.predict`` for its members' predictions.

    Equal predictions are sorted as scikit-learn sorts them, by the same call: the order
    of their weights decides how a sum of these is rounded.
    """
    medians, weights = np.empty(len(scores)), np.array(spec.weights)
    for first in range(0, len(scores), _BLOCK_ROWS):
        part = scores[first : first + _BLOCK_ROWS]
        order = np.argsort(part, axis=1)
        sums = np.cumsum(weights[order], axis=1)
        middle = (sums >= 0.5 * sums[:, -1:]).argmax(axis=1)
        rows = np.arange(len(part))
        medians[first : first + len(part)] = part[rows, order[rows, middle]]
    return medians


def shares(sums: Array, spec: OutputSpec, on: Any) -> Array:
    """Return ``predict_proba`` of oneDAL's classifiers.

    Its vectors add four classes at a time: four vectors those of sixteens, which are
    then added in pairs, and one the other fours; the last three classes follow.
    """
    ends = range(4, sums.shape[1] + 1, 4)
    fours = [sums[:, end - 4 : end] for end in ends]
    total: Any = 0.0
    if whole := len(fours) // 4 * 4:
        a, b, c, d = (reduce(np.add, fours[k:whole:4]) for k in range(4))
        fours[:whole] = [(a + b) + (c + d)]
    if fours:
        four = reduce(np.add, fours)
        total = (four[:, 0] + four[:, 2]) + (four[:, 1] + four[:, 3])
    for last in range(4 * len(ends), sums.shape[1]):
        total = total + sums[:, last]
    return np.clip(sums * (1 / total)[:, np.newaxis], 0, 1)


def scaled_blocks(sums: Array, spec: OutputSpec, on: Any) -> Array:
    """Return ``predict`` of oneDAL's regressors for the sums of blocks of trees."""
    total = sums[:, 0] * sums.dtype.type(spec.parameter)
    for block in range(1, sums.shape[1]):
        total = fused(sums[:, block], spec.parameter, total)
    return total
