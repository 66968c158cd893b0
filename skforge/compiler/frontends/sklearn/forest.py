"""scikit-learn: decision trees, random forests and extra trees.

X is cast to float32 and compared with float64 thresholds by ``<=``; leaves hold
float64 class fractions or means, summed in tree order and divided once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge.compiler.forest.arrays import Comparison, Missing
from skforge.compiler.forest.forest import (
    Forest,
    deduplicate_predicates,
    round_thresholds,
)
from skforge.compiler.forest.outputs import Task
from skforge.compiler.frontends.base import Frontend, class_names, register
from skforge.exceptions import InvalidModelError, UnsupportedModelError

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
    """Refuse what could not be read once it is fitted."""
    kind, names = type(model).__name__, class_names(model)
    if "sklearn.ensemble._forest.RandomTreesEmbedding" in names or names.isdisjoint(
        _CLASSIFIERS | _REGRESSORS
    ):
        raise UnsupportedModelError(f"{kind} has no predictions to compile.")
    if not type(model).predict.__module__.startswith("sklearn."):
        raise UnsupportedModelError(
            f"{kind} overrides predict, so its predictions cannot be reproduced."
        )


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
        raise InvalidModelError(
            f"This {kind} is not fitted; call fit before load_forest."
        )
    estimators = [model] if single else model.estimators_
    trees = [estimator.tree_ for estimator in estimators]
    if not hasattr(trees[0], "missing_go_to_left"):
        raise UnsupportedModelError(
            "Trees of scikit-learn before 1.3 hold class counts instead of "
            "fractions; fit the model again with a newer release."
        )
    arrays = _tree_arrays(trees, _class_counts(model) if classifier else None)
    n_outputs = arrays["leaf_value"].shape[1]
    sizes = _class_counts(model) if classifier else [1] * n_outputs
    names_in = getattr(model, "feature_names_in_", None)
    # a lone tree returns its leaf as it is, even -0.0, which only -0.0 + x keeps
    zero = -0.0 if single else 0.0
    return Forest(
        **arrays,
        tree_output=np.full(len(trees), -1 if n_outputs > 1 else 0, dtype=np.int32),
        n_features=int(model.n_features_in_),
        base=np.full(n_outputs, zero),
        divisor=1 if single else len(trees),
        task=_task(sizes) if classifier else "regression",
        source="sklearn",
        feature_names=None if names_in is None else tuple(str(n) for n in names_in),
        output_sizes=tuple(sizes),
    )


def _class_counts(model: Any) -> list[int]:
    return [int(n) for n in np.atleast_1d(model.n_classes_)]


def _task(sizes: list[int]) -> Task:
    if len(sizes) > 1:
        return "multilabel"
    return "binary" if sizes[0] == 2 else "multiclass"


def _tree_arrays(trees: list[Any], class_counts: list[int] | None) -> dict[str, Any]:
    """Join the trees' arrays, all nodes at once."""

    def join(name: str) -> Any:
        return np.concatenate([getattr(tree, name) for tree in trees])

    sizes = np.array([tree.node_count for tree in trees], dtype=np.int64)
    offset = np.concatenate(([0], np.cumsum(sizes)))
    start = np.repeat(offset[:-1], sizes)
    left, right = join("children_left"), join("children_right")
    inner = left >= 0
    for name, child in (("children_left", left), ("children_right", right)):
        bad = inner & ((child < 0) | (child >= np.repeat(sizes, sizes)))
        if bad.any():
            node = int(bad.argmax())
            tree = int(np.searchsorted(offset, node, side="right")) - 1
            raise InvalidModelError(
                f"{name}[{node - offset[tree]}] = {child[node]} of tree {tree} is "
                f"outside 0..{sizes[tree] - 1}; the model is damaged, fit it again."
            )
    threshold = round_thresholds(
        join("threshold")[inner], Comparison.LE, np.dtype(np.float32)
    )
    predicates, index = deduplicate_predicates(
        join("feature")[inner],
        int(Comparison.LE),
        threshold,
        int(Missing.NAN),
        join("missing_go_to_left")[inner] != 0,
    )
    predicate = np.full(len(left), -1, dtype=np.int32)
    predicate[inner] = index
    is_leaf = ~inner
    values = np.concatenate([tree.value[tree.children_left < 0] for tree in trees])
    if class_counts is None:
        leaf_value = values[:, :, 0]
    else:  # targets with fewer classes are padded, which would be outputs of 0
        leaf_value = np.concatenate(
            [values[:, k, :count] for k, count in enumerate(class_counts)], axis=1
        )
    return {
        "tree_offset": offset,
        "predicate": predicate,
        "left": np.where(inner, left + start, -1),
        "right": np.where(inner, right + start, -1),
        "leaf": np.where(is_leaf, np.cumsum(is_leaf) - 1, -1),
        "source_node": np.arange(offset[-1]) - start,
        "cover": join("weighted_n_node_samples"),
        "leaf_value": leaf_value,
        **predicates,
    }


register(Frontend("sklearn", (), detect, load, refuse=refuse))
