"""scikit-learn: decision trees, random forests and extra trees.

X is cast to float32 and compared with float64 thresholds by ``<=``; leaves hold
float64 class fractions or means, summed in tree order and divided once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.outputs import Task
from skforge.compiler.frontends.base import Frontend, class_names, register
from skforge.compiler.frontends.checks import refuse_override, refuse_unfitted
from skforge.compiler.frontends.sklearn.common import feature_names, tree_arrays
from skforge.exceptions import UnsupportedModelError

_TREE = "sklearn.tree._classes.BaseDecisionTree"
_CLASSIFIERS = {
    "sklearn.tree._classes.DecisionTreeClassifier",
    "sklearn.ensemble._forest.ForestClassifier",
}
_REGRESSORS = {
    "sklearn.tree._classes.DecisionTreeRegressor",
    "sklearn.ensemble._forest.ForestRegressor",
}


def detect(model: object) -> bool:
    """Tell whether the object is a tree or a forest of scikit-learn."""
    return not class_names(model).isdisjoint(
        {_TREE, "sklearn.ensemble._forest.BaseForest"}
    )


def refuse(model: Any) -> None:
    """Refuse a model that could not be read after fitting."""
    kind, names = type(model).__name__, class_names(model)
    if "sklearn.ensemble._forest.RandomTreesEmbedding" in names or names.isdisjoint(
        _CLASSIFIERS | _REGRESSORS
    ):
        raise UnsupportedModelError(f"{kind} has no predictions to compile.")
    refuse_override(model, "sklearn")


def load(model: Any, iteration_range: tuple[int, int] | None = None) -> Forest:
    """Read a fitted DecisionTree*, ExtraTree*, RandomForest* or ExtraTrees*."""
    kind = type(model).__name__
    names = class_names(model)
    classifier = not names.isdisjoint(_CLASSIFIERS)
    if iteration_range is not None:
        raise UnsupportedModelError(f"{kind} has no boosting rounds to choose from.")
    refuse(model)
    single = _TREE in names
    if not hasattr(model, "tree_" if single else "estimators_"):
        refuse_unfitted(model)
    estimators = [model] if single else model.estimators_
    trees = [estimator.tree_ for estimator in estimators]
    if not hasattr(trees[0], "missing_go_to_left"):
        raise UnsupportedModelError(
            "Trees of scikit-learn before 1.3 hold class counts instead of "
            "fractions; fit the model again with a newer release."
        )
    arrays = tree_arrays(trees, _class_counts(model) if classifier else None)
    n_outputs = arrays["leaf_value"].shape[1]
    sizes = _class_counts(model) if classifier else [1] * n_outputs
    # a single tree returns its leaf unchanged, even -0.0, which only -0.0 + x keeps
    zero = -0.0 if single else 0.0
    return Forest(
        **arrays,
        tree_output=np.full(len(trees), -1 if n_outputs > 1 else 0, dtype=np.int32),
        n_features=int(model.n_features_in_),
        base=np.full(n_outputs, zero),
        divisor=1 if single else len(trees),
        task=_task(sizes) if classifier else "regression",
        source="sklearn",
        feature_names=feature_names(model),
        output_sizes=tuple(sizes),
    )


def _class_counts(model: Any) -> list[int]:
    return [int(n) for n in np.atleast_1d(model.n_classes_)]


def _task(sizes: list[int]) -> Task:
    if len(sizes) > 1:
        return "multilabel"
    return "binary" if sizes[0] == 2 else "multiclass"


register(Frontend("sklearn", (), detect, load, refuse=refuse))
