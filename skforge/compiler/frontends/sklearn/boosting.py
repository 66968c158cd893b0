"""scikit-learn: GradientBoostingRegressor and GradientBoostingClassifier.

X is cast to float32 and compared with float64 thresholds by ``<=``. Sums are float64,
start from the initial estimator's raw prediction and add ``learning_rate * value``, a
product that is rounded before it is added, stage by stage.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.outputs import SCORES, OutputSpec
from skforge.compiler.forest.validation import damaged
from skforge.compiler.frontends.base import Frontend, detects, is_a, register
from skforge.compiler.frontends.sklearn import common
from skforge.exceptions import UnsupportedModelError

_MODULE = "sklearn.ensemble._gb."
_DUMMIES = {"sklearn.dummy.DummyClassifier", "sklearn.dummy.DummyRegressor"}

#: Rows on which the initial prediction is computed, to check that it is constant.
_PROBES = 17


def load(model: Any, iteration_range: tuple[int, int] | None = None) -> Forest:
    common.check_model(model, "estimators_", iteration_range)
    classifier = is_a(model, f"{_MODULE}GradientBoostingClassifier")
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


def refuse(model: Any) -> None:
    common.refuse_overrides(model)
    if model.init is not None and not isinstance(model.init, str):
        _refuse_initial(model, model.init)


def _refuse_initial(model: Any, initial: Any) -> None:
    name = type(initial).__name__
    if not is_a(initial, *_DUMMIES):
        raise UnsupportedModelError(
            f"{type(model).__name__} starts from init={name}(), whose prediction "
            "depends on the row; fit with init=None, init='zero' or a Dummy estimator."
        )
    if getattr(initial, "strategy", None) == "stratified":
        raise UnsupportedModelError(
            f"{type(model).__name__} starts from {name}(strategy='stratified'), which "
            "predicts at random; fit with another strategy."
        )


def _initial_scores(model: Any, n_outputs: int) -> Array:
    initial = model.init_
    if isinstance(initial, str) and initial == "zero":
        return np.zeros(n_outputs)
    _refuse_initial(model, initial)
    name = type(initial).__name__
    rows = np.zeros((_PROBES, int(model.n_features_in_)), np.float32)
    scores = np.asarray(model._raw_predict_init(rows), dtype=np.float64)
    if scores.shape != (_PROBES, n_outputs) or (scores != scores[0]).any():
        raise UnsupportedModelError(
            f"{type(model).__name__} starts from {name}, whose prediction is not one "
            "constant; fit with init=None or init='zero'."
        )
    return np.asarray(scores[0])


_KIND = detects(f"{_MODULE}BaseGradientBoosting")
register(Frontend("sklearn GradientBoosting", (), _KIND, load, refuse=refuse))
