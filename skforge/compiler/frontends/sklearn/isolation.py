"""scikit-learn: IsolationForest.

Raw scores are path lengths: each leaf's depth plus the average length of the path that
its training rows would still need, minus one, summed in float64 tree by tree.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.outputs import OutputSpec
from skforge.compiler.frontends.base import Frontend, is_a, register
from skforge.compiler.frontends.sklearn import common
from skforge.exceptions import UnsupportedModelError


def detect(model: object) -> bool:
    """Tell whether the object is an IsolationForest of scikit-learn."""
    return is_a(model, "sklearn.ensemble._iforest.IsolationForest")


def load(model: Any, iteration_range: tuple[int, int] | None = None) -> Forest:
    """Read a fitted IsolationForest."""
    common.check_model(model, "estimators_", iteration_range)
    common.check_trees(model, model.estimators_, "Regressor")
    if not hasattr(model, "_average_path_length_per_tree"):
        raise UnsupportedModelError(
            "IsolationForest of scikit-learn before 1.3 does not keep its path "
            "lengths; fit the model again with a newer release."
        )
    trees = [estimator.tree_ for estimator in model.estimators_]
    lengths = zip(
        model._decision_path_lengths, model._average_path_length_per_tree, strict=True
    )
    # the model selects columns only if it drew some of them
    drawn = model._max_features != int(model.n_features_in_)
    return common.forest_of(
        model,
        trees,
        [(depth + further - 1.0)[:, np.newaxis] for depth, further in lengths],
        columns=model.estimators_features_ if drawn else None,
        tree_output=np.zeros(len(trees), np.int32),
        base=np.zeros(1),
        outputs=OutputSpec(
            "path_length",
            parameter=_average_path(model) * len(trees),
            cutoff=float(model.offset_),
            decision="paths",
        ),
        task="outlier",
    )


def _average_path(model: Any) -> float:
    """Return the average path length of a tree, by which scores are normalised.

    Computed as in ``sklearn.ensemble._iforest._average_path_length``.
    """
    size = np.array([[getattr(model, "_max_samples", model.max_samples_)]])
    if size[0, 0] <= 2:
        return float(size[0, 0] == 2)
    length = 2.0 * (np.log(size - 1.0) + np.euler_gamma) - 2.0 * (size - 1.0) / size
    return float(length[0, 0])


register(
    Frontend(
        "sklearn IsolationForest", (), detect, load, refuse=common.refuse_overrides
    )
)
