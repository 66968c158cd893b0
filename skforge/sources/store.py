"""What is kept of a model so that rows can be taken without it."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Tags, get_tags

from skforge.compiler.forest.forest import Forest
from skforge.compiler.frontends.base import class_names
from skforge.exceptions import (
    UnsupportedModelError,
)
from skforge.sources.find import source_of
from skforge.sources.stored_model import (
    METHODS,
    StoredModel,
    kept_attributes,
    plain_tags,
)
from skforge.sources.xgboost import rounds_in_place

Array = NDArray[Any]


_HISTOGRAM = (
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting."
    "BaseHistGradientBoosting"
)


def store(wrapper: Any, model: Any, tags: Tags) -> StoredModel:
    """Return what can be kept of the model of a fitted ``CompiledForest``.

    Parameters
    ----------
    wrapper : CompiledForest
        Fitted.
    model : object
        Its model.
    tags : Tags
        The model's.

    Returns
    -------
    StoredModel

    Raises
    ------
    UnsupportedModelError
        If rows of this model cannot be taken without it.
    """
    if isinstance(model, StoredModel):
        return model
    forest = wrapper.forest_
    kind, rules = _rules(model, forest)
    offered = [name for name in METHODS if hasattr(wrapper, name)]
    left_out = []
    own_score = getattr(type(model), "score", None)
    if own_score is not None and own_score.__module__ != "sklearn.base":
        left_out.append("score")
    if getattr(source_of(model, forest), "own_log_proba", False):
        left_out.append("predict_log_proba")
    estimator = hasattr(model, "fit")
    is_file = isinstance(model, (str, os.PathLike))
    return StoredModel(
        forest,
        "model file" if is_file else type(model).__name__,
        kind,
        {**rules, "left_out": left_out},
        tuple(name for name in offered if name not in left_out),
        kept_attributes(model) if estimator else {},
        plain_tags(tags),
    )


def _rules(model: Any, forest: Forest) -> tuple[str, dict[str, Any]]:
    """Return the name of the rules for rows, and what they depend on."""
    names = class_names(model)
    if "xgboost.sklearn.XGBModel" in names or "xgboost.core.Booster" in names:
        wrapped = "xgboost.sklearn.XGBModel" in names
        booster = model.get_booster() if wrapped else model
        given = booster.feature_names
        rules = {
            "n_features": int(booster.num_features()),
            "feature_names": None if given is None else list(map(str, given)),
            "of_no_rows": _of_no_rows(model, forest),
        }
        if not wrapped:
            return "xgboost_booster", rules
        return "xgboost_dart" if rounds_in_place(booster) else "xgboost", rules
    if "lightgbm.sklearn.LGBMModel" in names:
        return "lightgbm", {}
    if "lightgbm.basic.Booster" in names:
        return "lightgbm_booster", {"of_no_rows": _of_no_rows(model, forest)}
    if _HISTOGRAM in names:
        if getattr(model, "is_categorical_", None) is not None:
            raise UnsupportedModelError(
                f"{type(model).__name__} encodes its categories with an encoder of "
                "its own, which cannot be stored; use joblib.dump, or "
                "skforge.save(fast.forest_, path)."
            )
        return "histogram", {}
    if "sklearn.ensemble._gb.BaseGradientBoosting" in names:
        stages, outputs = model.estimators_.shape
        classifier = hasattr(model, "classes_")
        return "boosting", {
            "shape": [int(stages), int(outputs)],
            "classifier": classifier,
            "nan": _takes_nan(model.estimators_[0, 0]),
        }
    if "sklearn.ensemble._iforest.IsolationForest" in names:
        return "isolation", {}
    if "sklearn.ensemble._weight_boosting.AdaBoostClassifier" in names:
        return "adaboost", {}
    if names & {
        "sklearn.ensemble._bagging.BaggingClassifier",
        "sklearn.ensemble._bagging.BaggingRegressor",
    }:
        trees = model.estimators_
        return "bagging", {"nan": all(get_tags(t).input_tags.allow_nan for t in trees)}
    if hasattr(model, "_validate_X_predict"):
        single = hasattr(model, "tree_")
        tree = model if single else model.estimators_[0]
        return "trees", {"single": single, "nan": _takes_nan(tree)}
    if not hasattr(model, "fit"):
        return "forest", {}
    raise UnsupportedModelError(
        f"Nothing is known of the rows {type(model).__name__} takes, so it cannot be "
        "stored; use joblib.dump, or skforge.save(fast.forest_, path)."
    )


def _takes_nan(tree: Any) -> bool:
    return bool(tree._support_missing_values(np.zeros((1, 1), np.float32)))


def _of_no_rows(model: Any, forest: Forest) -> dict[str, Any]:
    """Return the dtype and shape of each answer to 0 rows; libraries differ there."""
    source = source_of(model, forest)
    answers = {}
    for method in ("predict", "predict_proba", "predict_raw", "apply"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the lack of rows
                found = source.call(method, np.empty((0, forest.n_features), "f4"))
        except Exception:  # noqa: BLE001 - then there is no answer to keep
            continue
        answers[method] = [found.dtype.str, list(found.shape)]
    return answers
