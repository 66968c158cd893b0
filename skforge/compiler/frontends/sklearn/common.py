"""Refusals and tree views shared by the readers of scikit-learn's ensembles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.arrays import Comparison, Missing
from skforge.compiler.forest.forest import deduplicate_predicates, round_thresholds
from skforge.compiler.frontends.arrays import (
    check_children,
    forest_arrays,
    offsets,
    starts,
)
from skforge.compiler.frontends.base import class_names
from skforge.compiler.frontends.checks import refuse_override, refuse_unfitted
from skforge.exceptions import UnsupportedModelError

#: Methods that determine predictions; subclasses that override one are refused.
_METHODS = (
    "predict",
    "predict_proba",
    "decision_function",
    "score_samples",
    "_raw_predict",
    "_score_samples",
)
_SINGLE_TREE = "sklearn.tree._classes.BaseDecisionTree"


@dataclass(frozen=True, slots=True, eq=False)
class TreeView:
    """The arrays of a fitted ``Tree``, some of them replaced."""

    children_left: NDArray[Any]
    children_right: NDArray[Any]
    feature: NDArray[Any]
    threshold: NDArray[Any]
    missing_go_to_left: NDArray[Any]
    weighted_n_node_samples: NDArray[Any]
    value: NDArray[Any]  # (n_nodes, n_outputs, n_classes)

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return len(self.children_left)


def view_tree(
    tree: Any,
    *,
    features: NDArray[Any] | None = None,
    value: NDArray[Any] | None = None,
    missing_left: NDArray[Any] | None = None,
) -> TreeView:
    """Return a fitted tree's arrays for the joint forest.

    ``features`` are the columns of X that the tree was trained on, in its order.
    ``value`` is what each node adds to each output, and ``missing_left`` where missing
    values go, in place of the tree's own.
    """
    feature = tree.feature
    if features is not None:  # leaves have feature -2, which is not a column
        feature = np.where(
            feature >= 0, np.asarray(features)[np.maximum(feature, 0)], -2
        )
    if missing_left is None:
        missing_left = tree.missing_go_to_left
    return TreeView(
        tree.children_left,
        tree.children_right,
        feature,
        tree.threshold,
        missing_left,
        tree.weighted_n_node_samples,
        tree.value if value is None else value[:, :, np.newaxis],
    )


def check_model(model: Any, fitted: str, iteration_range: object) -> None:
    """Refuse models that are not fitted or that override predictions.

    ``fitted`` is an attribute that ``fit`` sets. scikit-learn's ``predict`` has no
    ``iteration_range``.
    """
    kind = type(model).__name__
    if iteration_range is not None:
        raise UnsupportedModelError(
            f"The predict of {kind} takes no iteration_range; leave it out, or fit "
            "with fewer estimators."
        )
    refuse_overrides(model)
    if not hasattr(model, fitted):
        refuse_unfitted(model)


def refuse_overrides(model: Any) -> None:
    """Refuse a subclass that overrides predictions."""
    for name in _METHODS:
        method = getattr(type(model), name, None)
        if getattr(method, "__module__", None):
            refuse_override(model, "sklearn", name)


def check_trees(model: Any, estimators: Any, wanted: str) -> None:
    """Refuse an ensemble with members other than DecisionTree or ExtraTree."""
    for estimator in estimators:
        check_tree(model, estimator, wanted)
        if not hasattr(estimator.tree_, "missing_go_to_left"):
            raise UnsupportedModelError(
                "Trees of scikit-learn before 1.3 do not say where missing values go; "
                "fit the model again with a newer release."
            )


def check_tree(model: Any, estimator: Any, wanted: str) -> None:
    """Refuse a member, fitted or not, that is not a single tree of the wanted kind."""
    names = class_names(estimator)
    wanted_name = f"sklearn.tree._classes.DecisionTree{wanted}"
    if _SINGLE_TREE not in names or wanted_name not in names:
        raise UnsupportedModelError(
            f"{type(model).__name__} over {type(estimator).__name__} cannot be "
            f"compiled: its members must be DecisionTree{wanted} or "
            f"ExtraTree{wanted}."
        )
    refuse_override(estimator, "sklearn")


def feature_names(model: Any) -> tuple[str, ...] | None:
    """Return the column names a model was fitted with, or None."""
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else tuple(str(name) for name in names)


def tree_arrays(trees: list[Any], class_counts: list[int] | None) -> dict[str, Any]:
    """Join the trees' arrays, all nodes at once."""

    def join(name: str) -> Any:
        return np.concatenate([getattr(tree, name) for tree in trees])

    offset = offsets([tree.node_count for tree in trees])
    left, right = join("children_left"), join("children_right")
    inner = left >= 0
    for name, child in (("children_left", left), ("children_right", right)):
        check_children(name, child, inner, offset, "fit it again")
    threshold = round_thresholds(
        join("threshold")[inner], Comparison.LE, np.dtype(np.float32)
    )
    tests = deduplicate_predicates(
        join("feature")[inner],
        int(Comparison.LE),
        threshold,
        int(Missing.NAN),
        join("missing_go_to_left")[inner] != 0,
    )
    values = np.concatenate([tree.value[tree.children_left < 0] for tree in trees])
    if class_counts is None:
        leaf_value = values[:, :, 0]
    else:  # targets with fewer classes are padded, which would give outputs of 0
        leaf_value = np.concatenate(
            [values[:, k, :count] for k, count in enumerate(class_counts)], axis=1
        )
    start, cover = starts(offset), join("weighted_n_node_samples")
    children = left + start, right + start
    return forest_arrays(offset, inner, *children, tests, leaf_value, cover=cover)
