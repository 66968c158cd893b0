"""scikit-learn: trees, forests, gradient boosting, and ensembles over single trees.

X is cast to float32 and compared with float64 thresholds by ``<=``; leaves of trees and
forests hold float64 class fractions or means, summed in tree order and divided once.

Sums of gradient boosting are float64, start from the initial estimator's raw prediction
and add ``learning_rate * value``, a product that is rounded before it is added, stage
by stage.

Bagging adds its trees' predictions, each on its own columns, and divides once by their
number; a tree that has not seen a class adds nothing to it. AdaBoost (SAMME) adds a
tree's weight to the class it votes for and subtracts a share of it from the others. For
regression it takes a weighted median of the trees, which are an output each here.

The raw scores of isolation forests are path lengths: each leaf's depth plus the average
length of the path that its training rows would still need, minus one, summed in float64
tree by tree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.exceptions import UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.forest.outputs import SCORES, OutputSpec, Task
from skforge.forest.validation import damaged
from skforge.frontends.arrays import Floats
from skforge.frontends.base import Frontend, detects, is_a, register
from skforge.frontends.checks import IntRange, refuse_override
from skforge.frontends.members import DUMMIES
from skforge.frontends.sklearn import common

_TREE = "sklearn.tree._classes.BaseDecisionTree"
_FORESTS = "sklearn.ensemble._forest."
_EMBEDDING = f"{_FORESTS}RandomTreesEmbedding"
_CLASSIFIERS, _REGRESSORS = (
    (f"sklearn.tree._classes.DecisionTree{kind}", f"{_FORESTS}Forest{kind}")
    for kind in ("Classifier", "Regressor")
)


def refuse_trees(model: Any) -> None:
    kind = type(model).__name__
    if not is_a(model, *_CLASSIFIERS, *_REGRESSORS, _EMBEDDING):
        raise UnsupportedModelError(f"{kind} has no predictions to compile.")
    answer = "transform" if is_a(model, _EMBEDDING) else "predict"
    refuse_override(model, "sklearn", answer)


def load_trees(model: Any, rounds: IntRange | None = None) -> Forest:
    kind = type(model).__name__
    classifier = is_a(model, *_CLASSIFIERS)
    if rounds is not None:
        raise UnsupportedModelError(f"{kind} has no boosting rounds to choose from.")
    refuse_trees(model)
    single = is_a(model, _TREE)
    trees = common.trees_of(model)
    if is_a(model, _EMBEDDING):
        return _load_embedding(model, trees)
    # targets with fewer classes are padded, which would give outputs of 0
    n_classes = model.n_classes_ if classifier else [1] * trees[0].value.shape[1]
    sizes = [int(n) for n in np.atleast_1d(n_classes)]
    # a single tree returns its leaf unchanged, even -0.0, which only -0.0 + x keeps
    zero = -0.0 if single else 0.0
    task: Task = "regression"
    if classifier:
        task = "multilabel" if len(sizes) > 1 else common.class_task(sizes[0])
    return common.forest_of(
        model,
        trees,
        [_by_output(tree.value, sizes) for tree in trees],
        base=np.full(sum(sizes), zero),
        divisor=1 if single else len(trees),
        task=task,
        output_sizes=tuple(sizes),
    )


def _load_embedding(model: Any, trees: list[Any]) -> Forest:
    """Return a forest whose scores are the columns of the leaves, one of each tree."""
    values, columns = [], 0
    for tree, leaves in zip(trees, model.one_hot_encoder_.categories_, strict=True):
        if not np.array_equal(leaves, np.flatnonzero(tree.children_left < 0)):
            raise UnsupportedModelError(
                "A tree of this RandomTreesEmbedding has leaves without a column; fit "
                "it again."
            )
        values.append(columns + np.cumsum(tree.children_left < 0)[:, np.newaxis] - 1)
        columns += len(leaves)
    dtype = np.float32 if columns < 1 << 24 else np.float64  # which hold the numbers
    return common.forest_of(
        model,
        trees,
        [value.astype(dtype) for value in values],
        tree_output=np.arange(len(trees), dtype=np.int32),
        base=np.zeros(len(trees)),
        task="regression",
    )


def _by_output(value: Array, sizes: list[int]) -> Array:
    """Return a tree's values, (n_nodes, targets, classes), as one row a node."""
    if len(sizes) == 1:
        return value[:, 0, : sizes[0]]
    parts = [value[:, target, :size] for target, size in enumerate(sizes)]
    return np.concatenate(parts, axis=1)


_TREES = detects(_TREE, f"{_FORESTS}BaseForest")
register(Frontend("sklearn", (), _TREES, load_trees, refuse=refuse_trees))


# ------------------------------------------------------------ gradient boosting

_GRADIENT = "sklearn.ensemble._gb."

#: Rows on which the initial prediction is computed, to check that it is constant.
_PROBES = 17


def load_stages(model: Any, rounds: IntRange | None = None) -> Forest:
    common.check_model(model, "estimators_", rounds)
    classifier = is_a(model, f"{_GRADIENT}GradientBoostingClassifier")
    estimators = model.estimators_
    n_stages, n_outputs = estimators.shape
    scale = float(model.learning_rate)
    trees = [estimator.tree_ for estimator in estimators.ravel()]
    for tree in trees:
        if tree.value.shape[1:] != (1, 1):
            damaged(
                f"A tree of the model holds values of shape {tree.value.shape[1:]} "
                "where (1, 1) was expected",
                "fit it again",
            )
    return common.forest_of(
        model,
        trees,
        [scale * tree.value[:, :, 0] for tree in trees],
        missing=False,  # its walk only tests `x <= threshold`
        tree_output=np.tile(np.arange(n_outputs), n_stages),
        base=_initial_scores(model, n_outputs),
        outputs=_outputs(model, n_outputs) if classifier else SCORES,
        task=common.class_task(len(model.classes_)) if classifier else "regression",
    )


def _outputs(model: Any, n_outputs: int) -> OutputSpec:
    if model.loss in ("log_loss", "deviance", "exponential"):
        single = n_outputs == 1 or model.loss == "exponential"
        return OutputSpec(
            "expit" if single else "softmax_by_rows",
            parameter=2.0 if model.loss == "exponential" else 1.0,
            probabilities="values",
            labels="from_zero" if single else "best_score",
            decision="scores",
        )
    raise UnsupportedModelError(
        f"{type(model).__name__} with loss={model.loss!r} has probabilities that "
        "skforge does not know; only those of 'log_loss' and 'exponential' are "
        "supported."
    )


def refuse_stages(model: Any) -> None:
    common.refuse_overrides(model)
    _refuse_drawn(model, model.init)


def _refuse_drawn(model: Any, initial: Any) -> None:
    name = type(initial).__name__
    if is_a(initial, *DUMMIES) and initial.strategy == "stratified":
        raise UnsupportedModelError(
            f"{type(model).__name__} starts from {name}(strategy='stratified'), which "
            "predicts at random; fit with another strategy."
        )


def _initial_scores(model: Any, n_outputs: int) -> Array:
    initial = model.init_
    if isinstance(initial, str) and initial == "zero":
        return np.zeros(n_outputs)
    _refuse_drawn(model, initial)
    name = type(initial).__name__
    if not is_a(initial, *DUMMIES):
        raise UnsupportedModelError(
            f"{type(model).__name__} starts from the predictions of {name}, which "
            "depend on the row, so that it cannot be one Forest. CompiledForest "
            "compiles its trees, and its init if it can."
        )
    rows = np.zeros((_PROBES, int(model.n_features_in_)), np.float32)
    scores = np.asarray(model._raw_predict_init(rows), dtype=np.float64)
    if scores.shape != (_PROBES, n_outputs) or (scores != scores[0]).any():
        raise UnsupportedModelError(
            f"{type(model).__name__} starts from {name}, whose prediction is not one "
            "constant; fit with init=None or init='zero'."
        )
    return np.asarray(scores[0])


_STAGES = detects(f"{_GRADIENT}BaseGradientBoosting")
register(
    Frontend("sklearn GradientBoosting", (), _STAGES, load_stages, refuse=refuse_stages)
)


# ------------------------------------------------------------ over single trees

_ADABOOST = "sklearn.ensemble._weight_boosting."
_BAGGING = "sklearn.ensemble._bagging."


_BAGS = f"{_BAGGING}BaggingClassifier", f"{_BAGGING}BaggingRegressor"
_KINDS = detects(f"{_ADABOOST}BaseWeightBoosting", *_BAGS)


def load(model: Any, rounds: IntRange | None = None) -> Forest:
    _refuse_class(model)
    common.check_model(model, "estimators_", rounds)
    if is_a(model, f"{_ADABOOST}AdaBoostClassifier"):
        return _load_adaboost(model)
    if is_a(model, f"{_ADABOOST}AdaBoostRegressor"):
        return _load_medians(model)
    return _load_bagging(model, is_a(model, f"{_BAGGING}BaggingClassifier"))


def refuse(model: Any) -> None:
    _refuse_class(model)
    common.refuse_overrides(model)
    member = model.estimator
    if member is not None:  # None means a tree
        classifies = is_a(model, f"{_ADABOOST}AdaBoostClassifier", _BAGS[0])
        wanted = "Classifier" if classifies else "Regressor"
        common.check_trees(model, [member], wanted)


def _refuse_class(model: Any) -> None:
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
    return common.forest_of(
        model,
        common.trees_of(model),
        values,
        columns=model.estimators_features_,
        divisor=len(values),
        task=common.class_task(n_classes) if classifier else "regression",
        output_sizes=(n_classes,) if classifier else (1,) * values[0].shape[1],
    )


def _class_columns(values: Array, classes: Any, n_classes: int) -> Floats:
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


def _load_adaboost(model: Any) -> Forest:
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
        common.trees_of(model),
        [_votes(model, member, weight) for member, weight in members],
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
    label = estimator.classes_.take(np.argmax(estimator.tree_.value[:, 0, :], axis=1))
    others = -1 / (len(model.classes_) - 1) * weight
    return np.asarray(np.where(label[:, np.newaxis] == model.classes_, weight, others))


def _load_medians(model: Any) -> Forest:
    common.check_trees(model, model.estimators_, "Regressor")
    trees = common.trees_of(model)
    weights = model.estimator_weights_[: len(trees)]
    return common.forest_of(
        model,
        trees,
        [tree.value[:, :, 0] for tree in trees],
        tree_output=np.arange(len(trees), dtype=np.int32),
        base=np.full(len(trees), -0.0),
        outputs=OutputSpec("weighted_median", weights=tuple(weights.tolist())),
        task="regression",
    )


def load_isolation(model: Any, rounds: IntRange | None = None) -> Forest:
    from sklearn.ensemble._iforest import _average_path_length

    common.check_model(model, "estimators_", rounds)
    common.check_trees(model, model.estimators_, "Regressor")
    trees = common.trees_of(model)
    size = getattr(model, "_max_samples", model.max_samples_)
    depths, means = model._decision_path_lengths, model._average_path_length_per_tree
    # the model selects columns only if it drew some of them
    drawn = model._max_features != int(model.n_features_in_)
    return common.forest_of(
        model,
        trees,
        [(own + mean - 1.0)[:, None] for own, mean in zip(depths, means, strict=True)],
        columns=model.estimators_features_ if drawn else None,
        outputs=OutputSpec(
            "path_length",
            parameter=float(_average_path_length([size])[0]) * len(trees),
            cutoff=float(model.offset_),
            decision="paths",
        ),
        task="outlier",
    )


register(Frontend("sklearn Bagging and AdaBoost", (), _KINDS, load, refuse=refuse))
_ISOLATION = detects("sklearn.ensemble._iforest.IsolationForest")
_FRONTEND = Frontend("sklearn IsolationForest", (), _ISOLATION, load_isolation)
register(replace(_FRONTEND, refuse=common.refuse_overrides))
