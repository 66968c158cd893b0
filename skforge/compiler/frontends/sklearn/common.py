"""What the readers of scikit-learn's ensembles share: refusals and views of trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.frontends.base import class_names
from skforge.exceptions import InvalidModelError, UnsupportedModelError

#: Methods that decide what a user sees; a subclass that writes its own is refused.
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
    """The arrays of a fitted ``Tree``, with some of them replaced."""

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

    Parameters
    ----------
    tree : sklearn.tree._tree.Tree
        A ``tree_`` attribute.
    features : ndarray of int, optional
        Columns of X that the tree was given; its feature 0 is the first of them.
    value : ndarray of float64, shape (n_nodes, n_outputs), optional
        What its nodes add, instead of its own values.
    missing_left : ndarray, one for each node, optional
        Where missing values go, instead of the tree's own choice.

    Returns
    -------
    TreeView
    """
    feature = tree.feature
    if features is not None:  # leaves have the feature -2, which names no column
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
    """Refuse models that are not fitted, or that compute predictions of their own.

    Parameters
    ----------
    model : estimator
        What a frontend was given.
    fitted : str
        Attribute that ``fit`` sets.
    iteration_range : tuple or None
        As ``load_forest`` was given it; scikit-learn's ``predict`` takes none.
    """
    kind = type(model).__name__
    if iteration_range is not None:
        raise UnsupportedModelError(
            f"The predict of {kind} takes no iteration_range; leave it out, or fit "
            "with fewer estimators."
        )
    refuse_overrides(model)
    if not hasattr(model, fitted):
        raise InvalidModelError(
            f"This {kind} is not fitted; call fit before load_forest."
        )


def refuse_overrides(model: Any) -> None:
    """Refuse a subclass that computes predictions of its own."""
    for name in _METHODS:
        method = getattr(type(model), name, None)
        module = getattr(method, "__module__", None) or "sklearn."
        if not module.startswith("sklearn."):
            raise UnsupportedModelError(
                f"{type(model).__name__} overrides {name}, so its predictions cannot "
                "be reproduced."
            )


def check_trees(model: Any, estimators: Any, wanted: str) -> None:
    """Refuse ensembles whose members are not all single trees of one kind.

    Parameters
    ----------
    model : estimator
        The ensemble, for the text.
    estimators : iterable of estimators
        Its members.
    wanted : str
        ``Classifier`` or ``Regressor``.
    """
    for estimator in estimators:
        check_tree(model, estimator, wanted)
        if not hasattr(estimator.tree_, "missing_go_to_left"):
            raise UnsupportedModelError(
                "Trees of scikit-learn before 1.3 do not say where missing values go; "
                "fit the model again with a newer release."
            )


def check_tree(model: Any, estimator: Any, wanted: str) -> None:
    """Refuse a member, fitted or not, that is no single tree of the kind wanted."""
    names = class_names(estimator)
    wanted_name = f"sklearn.tree._classes.DecisionTree{wanted}"
    if _SINGLE_TREE not in names or wanted_name not in names:
        raise UnsupportedModelError(
            f"{type(model).__name__} over {type(estimator).__name__} cannot be "
            f"compiled: its members must be DecisionTree{wanted} or "
            f"ExtraTree{wanted}."
        )
    if not type(estimator).predict.__module__.startswith("sklearn."):
        raise UnsupportedModelError(
            f"{type(estimator).__name__} overrides predict, so its predictions "
            "cannot be reproduced."
        )


def feature_names(model: Any) -> tuple[str, ...] | None:
    """Return the column names a model was fitted with, if it was with any."""
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else tuple(str(name) for name in names)
