"""scikit-learn: Bagging, AdaBoostClassifier and IsolationForest over single trees.

Bagging adds its trees' predictions, each on its own columns, and divides once by their
number; a tree that has not seen a class adds nothing to it. AdaBoost (SAMME) adds a
tree's weight to the class it votes for and subtracts a share of it from the others.

The raw scores of isolation forests are path lengths: each leaf's depth plus the average
length of the path that its training rows would still need, minus one, summed in float64
tree by tree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.outputs import OutputSpec
from skforge.compiler.forest.validation import damaged
from skforge.compiler.frontends.arrays import Floats
from skforge.compiler.frontends.base import (
    Frontend,
    class_names,
    detects,
    is_a,
    register,
)
from skforge.compiler.frontends.checks import IntRange
from skforge.compiler.frontends.sklearn import common
from skforge.exceptions import UnsupportedModelError

_BOOSTING = "sklearn.ensemble._weight_boosting."
_BAGGING = "sklearn.ensemble._bagging."


_BAGS = f"{_BAGGING}BaggingClassifier", f"{_BAGGING}BaggingRegressor"
_KINDS = detects(f"{_BOOSTING}BaseWeightBoosting", *_BAGS)


def load(model: Any, rounds: IntRange | None = None) -> Forest:
    _refuse_class(model)
    common.check_model(model, "estimators_", rounds)
    if is_a(model, f"{_BOOSTING}AdaBoostClassifier"):
        return _load_boosting(model)
    return _load_bagging(model, is_a(model, f"{_BAGGING}BaggingClassifier"))


def refuse(model: Any) -> None:
    _refuse_class(model)
    common.refuse_overrides(model)
    member = model.estimator
    if member is not None:  # None means a tree
        classifies = any(name.endswith("Classifier") for name in class_names(model))
        common.check_tree(model, member, "Classifier" if classifies else "Regressor")


def _refuse_class(model: Any) -> None:
    if is_a(model, f"{_BOOSTING}AdaBoostRegressor"):
        raise UnsupportedModelError(
            "AdaBoostRegressor predicts the weighted median of its trees, which is "
            "not a sum of leaves, so it cannot be compiled."
        )
    if getattr(model, "algorithm", "SAMME") == "SAMME.R":
        raise UnsupportedModelError(
            "AdaBoostClassifier with algorithm='SAMME.R' adds logarithms of "
            "probabilities, so it cannot be compiled; fit with algorithm='SAMME'."
        )


def _load_bagging(model: Any, classifier: bool) -> Forest:
    wanted = "Classifier" if classifier else "Regressor"
    common.check_trees(model, model.estimators_, wanted)
    n_classes = int(model.n_classes_) if classifier else 0
    values = [
        _class_columns(member.tree_.value, member.classes_, n_classes)
        if classifier
        else member.tree_.value[:, :, 0]
        for member in model.estimators_
    ]
    n_outputs = values[0].shape[1]
    return common.forest_of(
        model,
        [member.tree_ for member in model.estimators_],
        values,
        columns=model.estimators_features_,
        tree_output=np.full(len(values), -1 if n_outputs > 1 else 0, np.int32),
        base=np.zeros(n_outputs),
        divisor=len(values),
        task=common.class_task(n_classes) if classifier else "regression",
        output_sizes=(n_classes,) if classifier else (1,) * n_outputs,
    )


def _class_columns(values: Array, classes: Any, n_classes: int) -> Floats:
    if values.shape[1] != 1:
        raise UnsupportedModelError(
            "BaggingClassifier over trees of several targets cannot be compiled."
        )
    if values.shape[2] == n_classes:
        return np.asarray(values[:, 0, :], np.float64)
    seen = np.asarray(classes)
    fit = len(seen) == values.shape[2] and seen.dtype.kind in "iu"
    if not fit or not np.isin(seen, np.arange(n_classes)).all():
        damaged(
            f"A tree of the model has the classes {seen.tolist()} where numbers from 0 "
            f"to {n_classes - 1} were expected",
            "fit it again",
        )
    columns = np.zeros((len(values), n_classes))
    columns[:, seen] = values[:, 0, :]
    return columns


def _load_boosting(model: Any) -> Forest:
    common.check_trees(model, model.estimators_, "Classifier")
    n_classes = int(model.n_classes_)
    if n_classes < 2:
        raise UnsupportedModelError(
            "AdaBoostClassifier was fitted with one class, so there is nothing to "
            "compile."
        )
    weights = model.estimator_weights_[: len(model.estimators_)]
    members = zip(model.estimators_, weights, strict=True)
    return common.forest_of(
        model,
        [member.tree_ for member in model.estimators_],
        [_votes(model, member, weight) for member, weight in members],
        tree_output=np.full(len(weights), -1, np.int32),
        base=np.zeros(n_classes),
        outputs=OutputSpec(
            "samme",
            parameter=float(model.estimator_weights_.sum()),
            probabilities="values",
            labels="above_zero" if n_classes == 2 else "best_score",
            decision="votes",
        ),
        task=common.class_task(n_classes),
        output_sizes=(n_classes,),
    )


def _votes(model: Any, estimator: Any, weight: Any) -> Floats:
    values = estimator.tree_.value
    if values.shape[1] != 1:
        raise UnsupportedModelError(
            "AdaBoostClassifier over trees of several targets cannot be compiled."
        )
    label = estimator.classes_.take(np.argmax(values[:, 0, :], axis=1))
    others = -1 / (len(model.classes_) - 1) * weight
    return np.asarray(np.where(label[:, np.newaxis] == model.classes_, weight, others))


def load_isolation(model: Any, rounds: IntRange | None = None) -> Forest:
    common.check_model(model, "estimators_", rounds)
    common.check_trees(model, model.estimators_, "Regressor")
    trees = [estimator.tree_ for estimator in model.estimators_]
    depths, means = model._decision_path_lengths, model._average_path_length_per_tree
    # the model selects columns only if it drew some of them
    drawn = model._max_features != int(model.n_features_in_)
    return common.forest_of(
        model,
        trees,
        [(own + mean - 1.0)[:, None] for own, mean in zip(depths, means, strict=True)],
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
    """Compute what ``sklearn.ensemble._iforest._average_path_length`` does."""
    size = np.array([[getattr(model, "_max_samples", model.max_samples_)]])
    if size[0, 0] <= 2:
        return float(size[0, 0] == 2)
    length = 2.0 * (np.log(size - 1.0) + np.euler_gamma) - 2.0 * (size - 1.0) / size
    return float(length[0, 0])


register(Frontend("sklearn Bagging and AdaBoost", (), _KINDS, load, refuse=refuse))
_ISOLATION = detects("sklearn.ensemble._iforest.IsolationForest")
_FRONTEND = Frontend("sklearn IsolationForest", (), _ISOLATION, load_isolation)
register(replace(_FRONTEND, refuse=common.refuse_overrides))
