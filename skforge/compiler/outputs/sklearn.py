"""scikit-learn's own arithmetic, from raw scores to its methods' answers.

The functions are NumPy's and SciPy's, called as scikit-learn calls them, on arrays in
the same memory order: NumPy sums the rows of C and Fortran arrays in different orders.
scikit-learn itself is not needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge.compiler.forest.arrays import Array
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.outputs import OutputSpec


def both_expit(scores: Array, slope: float) -> Array:
    """Return SciPy's logistic function of one score, for both classes."""
    from scipy.special import expit  # type: ignore[import-untyped, unused-ignore]

    probability = np.empty((len(scores), 2), scores.dtype)
    probability[:, 1] = expit(slope * scores.reshape(-1))
    probability[:, 0] = 1 - probability[:, 1]
    return probability


def softmax(scores: Array) -> Array:
    """Overwrite scores with their softmax, keeping their memory order."""
    scores -= np.max(scores, axis=1).reshape((-1, 1))
    np.exp(scores, out=scores)
    scores /= np.sum(scores, axis=1).reshape((-1, 1))
    return scores


def samme_decision(forest: Forest, votes: Array) -> Array:
    """Return ``AdaBoostClassifier.decision_function`` for votes."""
    if forest.n_outputs == 2:
        difference: Array = pair_difference(forest.outputs, votes)[:, 0]
        return difference
    shares: Array = votes / forest.outputs.parameter
    return shares


def pair_difference(spec: OutputSpec, votes: Any) -> Any:
    """Return by how much the second class's share of the votes is greater."""
    shares = votes / spec.parameter
    return -shares[:, :1] + shares[:, 1:]


def samme_proba(forest: Forest, votes: Array) -> Array:
    """Return ``AdaBoostClassifier.predict_proba`` for votes."""
    decision = samme_decision(forest, votes)
    if forest.n_outputs == 2:
        decision = np.vstack([-decision, decision]).T / 2
    else:
        decision = np.array(decision / (forest.n_outputs - 1), order="F")
    return softmax(decision)


def path_scores(forest: Forest, raw: Array) -> Array:
    """Return ``IsolationForest.score_samples`` for summed path lengths."""
    lengths = raw.reshape(-1)
    denominator = np.array([forest.outputs.parameter])
    # trees of one training row have average length 0: all rows score alike
    relative = np.divide(
        lengths, denominator, out=np.ones_like(lengths), where=denominator != 0
    )
    scores: Array = -(2 ** (-relative))
    return scores


def inliers(forest: Forest, raw: Array) -> Array:
    """Return ``IsolationForest.predict``: -1 for an outlier, 1 for an inlier."""
    inlier = np.ones(len(raw), dtype=int)
    inlier[path_scores(forest, raw) - forest.outputs.cutoff < 0] = -1
    return inlier
