"""What a wrapper and its fitted model offer, read without scikit-learn."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, update_wrapper, wraps
from types import MethodType
from typing import Any, TypeVar, cast

import numpy as np

from skforge import config
from skforge.exceptions import with_article
from skforge.forest.forest import Forest
from skforge.forest.outputs import CLASSIFICATION
from skforge.frontends import read_forest
from skforge.frontends.base import class_names, last_step, unwrap
from skforge.frontends.content import is_path
from skforge.outputs.answers import class_labels
from skforge.outputs.functions import UNKNOWN
from skforge.sources.stored_model.model import StoredModel

#: Fitted attributes whose names do not end in an underscore.
FITTED = frozenset({"best_iteration", "best_score"})


def estimator_type(task: str | None) -> str | None:
    """Return how scikit-learn calls models with a forest's task."""
    if task is None or task in CLASSIFICATION:
        return task and "classifier"
    kinds = {"regression": "regressor", "outlier": "outlier_detector"}
    return kinds.get(task, "ranker")


def model_of(wrapper: Any) -> Any:
    state = wrapper.__dict__
    return state.get("estimator_", state.get("_stored", state.get("estimator")))


def is_compared(wrapper: Any) -> bool:
    """Tell whether a wrapper has a model with which what is stored is compared."""
    return "estimator_" in vars(wrapper) and config.compares_forms()


def returns_frames(model: Any) -> bool:
    """Tell whether ``transform`` of a model, or of None, is to return a frame."""
    if "sklearn" not in sys.modules:  # whose settings say so
        return False
    from sklearn.utils._set_output import _get_output_config

    last = None if model is None else last_step(model)
    return bool(_get_output_config("transform", last)["dense"] != "default")


def start_of(wrapper: Any) -> Any:
    """Return how many steps of a wrapper's pipeline run in their library.

    ``Members`` if only members are compiled. None: the forest takes the model's rows.
    """
    split = wrapper.__dict__.get("_split")
    return None if split is None else split.start


def no_attribute(wrapper: Any, name: str) -> str:
    text = f"{type(wrapper).__name__!r} object has no attribute {name!r}"
    model, stored = map(wrapper.__dict__.get, ("estimator_", "_stored"))
    if stored is not None:
        stored.explain(name)  # or raises why it was left out
    if name.startswith("_"):
        return text
    if name in ("predict_proba", "predict_log_proba", "decision_function"):
        forest = wrapper.__dict__.get("forest_")
        if forest is not None and forest.outputs.function == "unknown":
            return f"{text}. {UNKNOWN}"
        if stored is not None:
            kind = stored.tags.get("estimator_type") or "classifier"
        elif isinstance(model, Forest):
            kind = estimator_type(model.task) or "classifier"
        else:
            kind = wrapper.__sklearn_tags__().estimator_type or "classifier"
        if kind != "classifier":
            return f"{text}: the model is {with_article(kind.replace('_', ' '))}"
    if hasattr(type(wrapper), name):
        return text
    if model is None or isinstance(model, (str, bytes, os.PathLike)):
        return text
    # not hasattr(model, name): properties compute, and may raise anything
    attributes = getattr(model, "__dict__", {})  # a ModelProto has none
    if name in attributes or callable(getattr(type(model), name, None)):
        return f"{text}; the model's own is estimator_.{name}"
    return text


def is_estimator(model: Any) -> bool:
    """Tell a trainable estimator from a Booster, a file or a forest."""
    return hasattr(model, "fit") and hasattr(model, "get_params")


def describes_itself(model: Any) -> bool:
    """Tell whether a model has tags and methods as estimators do, or as stored ones."""
    return is_estimator(model) or isinstance(model, StoredModel)


def task_of(model: Any) -> str | None:
    if isinstance(model, Forest):
        return model.task
    if is_path(model):
        with suppress(OSError):
            stamp = os.stat(model)
            return _task_of_file(model, stamp.st_mtime_ns, stamp.st_size)
        return None
    if "xgboost.core.Booster" in class_names(model):
        from skforge.frontends.xgboost.model import _OBJECTIVES

        learner = json.loads(model.save_config())["learner"]
        objective = _OBJECTIVES.get(learner["objective"]["name"])
        return None if objective is None else objective.task
    return _task_read(model)


def _task_read(model: Any, *_stamp: int) -> str | None:
    with suppress(ValueError):  # fit will raise the error
        return read_forest(model).task
    return None


_task_of_file = lru_cache(maxsize=16)(_task_read)


def attribute_of(forest: Forest, name: str) -> Any:
    if name == "classes_" and forest.task in ("binary", "multiclass"):
        labels = class_labels(forest.answers)
        return np.arange(max(2, forest.n_outputs)) if labels is None else labels
    if name == "n_features_in_":
        return forest.n_columns
    if name == "feature_names_in_" and forest.column_names is not None:
        return np.array(forest.column_names, dtype=object)
    return None


def _has_rounds(wrapper: Any, model: Any) -> bool:
    from skforge.sources.base import adapter_of

    adapter = adapter_of(model)
    if adapter is None or not adapter.staged:
        return False
    forest = wrapper.__dict__.get("forest_", model)
    if adapter.kind != "forest" or not isinstance(forest, Forest):
        return True
    return forest.source in ("xgboost", "lightgbm", "catboost")


FittedMethod = TypeVar("FittedMethod", bound=Callable[..., Any])


def offered(method: FittedMethod) -> FittedMethod:
    """Offer a method only if the model has one so named.

    A Booster, a file or a forest offers what its outputs allow. A method that has a
    compiled entry is that entry; see ``Predictor.method``.
    """
    method.__qualname__ = f"CompiledForest.{method.__name__}"  # as users know it
    return cast(FittedMethod, _Offered(method))


class _Offered:
    """Scikit-learn's ``available_if``, with a cache for fitted models.

    Asking the model costs more than predicting a row. What it offers does not change
    after compilation, so the compiled predictor remembers the methods found.
    """

    def __init__(self, method: Any) -> None:
        self._method = method
        update_wrapper(cast(Any, self), method)

    def _check(self, wrapper: Any) -> bool:
        name = self._method.__name__
        if name in ("predict_raw", "predict_contribs", "predict_per_tree"):
            return True  # ours, not the model's
        model = unwrap(model_of(wrapper))
        if name.startswith("staged_"):
            if not _has_rounds(wrapper, model):
                return False
            name = name.removeprefix("staged_")
        if describes_itself(model):
            owner = last_step(model) if name == "apply" else model
            getattr(owner, name)  # raises the model's own AttributeError
            return True
        forest = wrapper.__dict__.get("forest_", model)
        if isinstance(forest, Forest) and name not in ("apply", "score"):
            return forest.answers.has(name)
        if name == "predict_proba":
            return task_of(model) in CLASSIFICATION
        return name in ("predict", "apply", "score")

    def _bind(self, obj: Any) -> Any:
        name = self._method.__name__
        text = f"This {type(obj).__name__!r} has no attribute {name!r}"
        try:
            offers = self._check(obj)
        except AttributeError as error:
            raise AttributeError(text) from error
        if not offers:
            raise AttributeError(text)
        shadow = obj.__dict__.get("_shadow")  # in shadow mode alone
        function = self._method if shadow is None else shadow.method(self._method)
        return MethodType(function, obj)

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        try:
            return MethodType(obj._predictor.offered[self], obj)
        except (AttributeError, KeyError):
            pass  # on the class, not fitted, or first access
        if obj is None:  # CompiledForest.predict(fast, X)

            @wraps(self._method)
            def unbound(of: Any, *args: Any, **how: Any) -> Any:
                return self._bind(of)(*args, **how)

            return unbound
        bound = self._bind(obj)
        predictor = obj.__dict__.get("_predictor")
        if predictor is not None:
            function = bound.__func__
            # the entry of contributions answers some calls alone
            others = function.__name__ != "predict_contribs"
            if direct := others and function is self._method:
                function = predictor.method(obj, function)
            predictor.offered[self] = function
            if direct and predictor.method(obj, self._method) is not function:
                predictor.offered.pop(self, None)  # another thread has compiled one
            return MethodType(function, obj)
        return bound
