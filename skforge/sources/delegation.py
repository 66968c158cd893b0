"""Tags, fitted state and optional methods that a wrapper delegates to its model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import lru_cache, update_wrapper
from types import MethodType
from typing import Any, TypeVar, cast

import numpy as np
import sklearn
from sklearn.base import BaseEstimator, _fit_context, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import ClassifierTags, RegressorTags, Tags, get_tags
from sklearn.utils.metadata_routing import _routing_enabled, process_routing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.outputs import CLASSIFICATION
from skforge.compiler.frontends import load_forest, refuse_untrained
from skforge.compiler.frontends.base import (
    class_names,
    is_a,
    is_compiled,
    is_frozen,
    is_pipeline,
    is_search,
    last_step,
    unwrap,
)
from skforge.compiler.frontends.content import is_path
from skforge.compiler.frontends.members import has_members
from skforge.compiler.outputs.transforms import UNKNOWN, class_labels, has_method
from skforge.exceptions import (
    InvalidInputError,
    UnsupportedModelError,
    warn,
    with_article,
)
from skforge.sources.stored_model import StoredModel

#: Fitted attributes whose names do not end in an underscore.
FITTED = frozenset({"best_iteration", "best_score"})


def model_of(wrapper: Any) -> Any:
    """Return a wrapper's model: fitted, stored as data, or as passed by the user."""
    state = wrapper.__dict__
    return state.get("estimator_", state.get("_stored", state.get("estimator")))


def start_of(wrapper: Any) -> Any:
    """Return how many steps of a wrapper's pipeline run in their library.

    ``Members`` if only members are compiled. None: the forest takes the model's rows.
    """
    split = wrapper.__dict__.get("_split")
    return None if split is None else split.start


def no_attribute(wrapper: Any, name: str) -> str:
    """Return an AttributeError's text; it points to the model's own attribute."""
    text = f"{type(wrapper).__name__!r} object has no attribute {name!r}"
    model = wrapper.__dict__.get("estimator_")
    if name.startswith("_"):
        return text
    if name in ("predict_proba", "predict_log_proba", "decision_function"):
        forest = wrapper.__dict__.get("forest_")
        if forest is not None and forest.outputs.function == "unknown":
            return f"{text}. {UNKNOWN}"
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


def is_fitted(estimator: Any) -> bool:
    """Tell whether an estimator is fitted; True for anything else."""
    if not is_estimator(estimator):
        return True
    if is_a(estimator, "catboost.core.CatBoost"):
        return bool(estimator.is_fitted())  # also a sum of models
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return False
    except AttributeError as error:
        if "__sklearn_tags__" not in str(error):
            raise
        kind, package = type(estimator), type(estimator).__module__.partition(".")[0]
        raise UnsupportedModelError(
            f"{kind.__name__} is an estimator of {package} from before scikit-learn "
            f"1.6, so scikit-learn {sklearn.__version__} cannot tell whether it is "
            f"fitted. Upgrade {package} (XGBoost to at least 2.1.4), or pass the "
            "estimator's Booster or a file that it saved."
        ) from error
    return True


def task_of(model: Any) -> str | None:
    """Return the task of a Booster, a file or a forest, without compiling it."""
    if isinstance(model, StoredModel):
        model = model.forest
    if isinstance(model, Forest):
        return model.task
    if is_path(model):
        with suppress(OSError):
            stamp = os.stat(model)
            return _task_of_file(model, stamp.st_mtime_ns, stamp.st_size)
        return None
    if "xgboost.core.Booster" in class_names(model):
        from skforge.compiler.frontends.xgboost.model import _OBJECTIVES

        learner = json.loads(model.save_config())["learner"]
        objective = _OBJECTIVES.get(learner["objective"]["name"])
        return None if objective is None else objective.task
    return _task_read(model)


def _task_read(model: Any, *_stamp: int) -> str | None:
    try:
        return load_forest(model).task
    except ValueError:  # fit will raise the error
        return None


_task_of_file = lru_cache(maxsize=16)(_task_read)


def attribute_of(forest: Forest, name: str) -> Any:
    """Return a fitted attribute for a Booster or file that lacks it."""
    if name == "classes_" and forest.task in ("binary", "multiclass"):
        labels = class_labels(forest)
        return np.arange(max(2, forest.n_outputs)) if labels is None else labels
    if name == "n_features_in_":
        return forest.n_features
    if name == "feature_names_in_" and forest.feature_names is not None:
        return np.array(forest.feature_names, dtype=object)
    return None


def tags_of(model: Any, forest: Forest | None) -> Tags:
    """Return the model's tags, or tags made from its task."""
    if isinstance(model, StoredModel):
        return model.__sklearn_tags__()
    if is_estimator(model):
        return deepcopy(get_tags(model))
    tags = get_tags(BaseEstimator())
    task = forest.task if forest is not None else task_of(model)
    if task in CLASSIFICATION:
        tags.estimator_type = "classifier"
        tags.classifier_tags = ClassifierTags(multi_label=task == "multilabel")
    elif task is not None:
        kinds = {"regression": "regressor", "outlier": "outlier_detector"}
        tags.estimator_type = kinds.get(task, "ranker")
        if task != "outlier":
            tags.regressor_tags = RegressorTags()
    tags.input_tags.allow_nan = tags.input_tags.sparse = True
    return tags


Method = TypeVar("Method", bound=Callable[..., Any])


def validated(fit: Method) -> Method:
    """Check the parameters of the wrapper before ``fit``; the model checks its own."""
    return cast(Method, _fit_context(prefer_skip_nested_validation=False)(fit))


def offered(name: str, *, entry: bool = False) -> Callable[[Method], Method]:
    """Return a decorator that offers the method only if the model has one so named.

    A Booster, a file or a forest offers what its outputs allow. With ``entry``, a
    method that has a compiled entry is that entry; see ``Predictor.method``.
    """

    def check(self: Any) -> bool:
        if name in ("predict_raw", "predict_contribs"):
            return True  # ours, not the model's
        model = unwrap(model_of(self))
        if isinstance(model, StoredModel):
            return model.offers(name)
        if is_estimator(model):
            owner = last_step(model) if name == "apply" else model
            getattr(owner, name)  # raises the model's own AttributeError
            return True
        if name == "predict_proba":
            forest = self.__dict__.get("forest_")
            task = forest.task if forest is not None else task_of(model)
            return task in CLASSIFICATION
        if name in ("decision_function", "score_samples"):
            forest = self.__dict__.get("forest_", model)
            return isinstance(forest, Forest) and has_method(forest, name)
        return name in ("predict", "apply", "score")

    def decorate(method: Method) -> Method:
        return cast(Method, _Offered(method, available_if(check)(method), entry))

    return decorate


class _Offered:
    """Scikit-learn's ``available_if``, with a cache for fitted models.

    Asking the model costs more than predicting a row. What it offers does not change
    after compilation, so the compiled predictor remembers the methods found.
    """

    def __init__(self, method: Any, checked: Any, entry: bool) -> None:
        self._method, self._checked, self._entry = method, checked, entry
        update_wrapper(cast(Any, self), method)

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        try:
            return MethodType(obj._predictor.offered[self], obj)
        except (AttributeError, KeyError):
            pass  # on the class, not fitted, or first access
        bound = self._checked.__get__(obj, owner)
        predictor = None if obj is None else obj.__dict__.get("_predictor")
        if predictor is not None:
            function = self._method
            if self._entry:
                function = predictor.method(obj, function)
            predictor.offered[self] = function
            if self._entry and predictor.method(obj, self._method) is not function:
                predictor.offered.pop(self, None)  # another thread has compiled one
            return MethodType(function, obj)
        return bound


def fitted_model(
    wrapper: Any, X: Any, y: Any, weight: Any, fit_params: dict[str, Any]
) -> Any:
    """Return a wrapper's fitted model, or train a clone of it.

    For a search, return the search itself, not its best estimator. Raise
    ``UnsupportedModelError`` if the model to train could not be compiled.
    """
    model = wrapper.estimator
    while is_frozen(model):
        model = model.estimator
    frozen = model is not wrapper.estimator or not is_estimator(model)
    if frozen and wrapper.prefit is False:
        raise InvalidInputError(
            "prefit=False asks for training, but the estimator is "
            f"{type(wrapper.estimator).__name__}, which cannot be trained; "
            "use prefit='auto'."
        )
    if frozen or wrapper.prefit is True:
        if not is_fitted(model):
            check_is_fitted(model)
        return model
    if wrapper.prefit == "auto" and is_fitted(model):
        _warn_unused(type(model).__name__, y, weight, fit_params)
        return model
    refuse_untrained(model)
    if y is None and _needs_y(model):
        raise InvalidInputError(
            f"{type(model).__name__} is not fitted, and training it requires y to be "
            "passed, but the target y is None. Call fit(X, y), or give CompiledForest "
            "a model that is fitted."
        )
    params = dict(fit_params)
    if weight is not None:
        params["sample_weight"] = weight
    if _routing_enabled():
        params = process_routing(wrapper, "fit", **params).estimator.fit
    elif weight is not None and not _takes_weights(model):
        raise TypeError(f"{type(model).__name__}.fit does not accept sample_weight.")
    return _untrained(model).fit(X, y, **params)


def _needs_y(model: Any) -> bool:
    """Tell whether training a model needs targets; rankers have no tags that say so."""
    tags = get_tags(model)
    known = is_a(model, "xgboost.sklearn.XGBModel", "lightgbm.sklearn.LGBMModel")
    kinds = ("classifier", "regressor", "ranker")
    return known or tags.target_tags.required or tags.estimator_type in kinds


def _untrained(model: Any) -> Any:
    """Return a clone to train; a ``CompiledForest`` as last step gives its estimator.

    It would be compiled twice otherwise.
    """
    unfitted = clone(model)
    while is_pipeline(unfitted) and is_compiled(last := unfitted.steps[-1][1]):
        if last.prefit is True or not is_estimator(last.estimator):
            break
        unfitted.steps[-1] = unfitted.steps[-1][0], last.estimator
    return unfitted


def _takes_weights(model: Any) -> bool:
    """Tell whether ``fit`` takes weights; a search passes them to its estimator."""
    if is_search(model):
        return _takes_weights(model.estimator)
    if has_members(model) and not is_pipeline(model):  # many do, all say if not
        return True
    return bool(has_fit_parameter(model, "sample_weight"))


def _warn_unused(name: str, y: Any, weight: Any, fit_params: dict[str, Any]) -> None:
    advice = "prefit=True silences this warning, and prefit=False trains it again."
    unused = ["sample_weight"] if weight is not None else []
    for names in (["y"] if y is not None else [], [*unused, *sorted(fit_params)]):
        if names:
            warn(
                f"The {name} is already fitted, so {', '.join(names)} "
                f"{'is' if len(names) == 1 else 'are'} ignored; {advice}"
            )
