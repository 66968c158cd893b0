"""Tags, fitted state and optional methods that a wrapper delegates to its model."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar, cast

import sklearn
from sklearn.base import BaseEstimator, _fit_context, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import ClassifierTags, RegressorTags, Tags, get_tags
from sklearn.utils.metadata_routing import _routing_enabled, process_routing
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from skforge.exceptions import InvalidInputError, UnsupportedModelError, warn
from skforge.forest.forest import Forest
from skforge.forest.outputs import CLASSIFICATION
from skforge.frontends import base, refuse_untrained
from skforge.frontends.members import has_members
from skforge.sources.fitted import (
    describes_itself,
    estimator_type,
    is_estimator,
    task_of,
)


def is_fitted(estimator: Any) -> bool:
    if not is_estimator(estimator):
        return True
    if base.is_a(estimator, "catboost.core.CatBoost"):
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


def tags_of(model: Any, forest: Forest | None) -> Tags:
    if describes_itself(model):
        return deepcopy(get_tags(model))
    tags = get_tags(BaseEstimator())
    task = forest.task if forest is not None else task_of(model)
    tags.estimator_type = estimator_type(task)
    if task in CLASSIFICATION:
        tags.classifier_tags = ClassifierTags(multi_label=task == "multilabel")
    elif task not in (None, "outlier"):
        tags.regressor_tags = RegressorTags()
    tags.input_tags.allow_nan = tags.input_tags.sparse = True
    return tags


Method = TypeVar("Method", bound=Callable[..., Any])


def validated(fit: Method) -> Method:
    """Check the parameters of the wrapper before ``fit``; the model checks its own."""
    return cast(Method, _fit_context(prefer_skip_nested_validation=False)(fit))


def fitted_model(
    wrapper: Any, X: Any, y: Any, weight: Any, fit_params: dict[str, Any]
) -> Any:
    """Return a wrapper's fitted model (or search), or train a clone of it.

    Raise ``UnsupportedModelError`` if the model to train could not be compiled.
    """
    model = wrapper.estimator
    while base.is_frozen(model):
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
    known = base.is_a(model, "xgboost.sklearn.XGBModel", "lightgbm.sklearn.LGBMModel")
    kinds = ("classifier", "regressor", "ranker")
    return known or tags.target_tags.required or tags.estimator_type in kinds


def _untrained(model: Any) -> Any:
    """Return a clone; a last ``CompiledForest`` gives its model, to compile it once."""
    unfitted = clone(model)
    while base.is_pipeline(unfitted) and base.is_compiled(
        last := unfitted.steps[-1][1]
    ):
        if last.prefit is True or not is_estimator(last.estimator):
            break
        unfitted.steps[-1] = unfitted.steps[-1][0], last.estimator
    return unfitted


def _takes_weights(model: Any) -> bool:
    """Tell whether ``fit`` takes weights; a search passes them to its estimator."""
    if base.is_search(model):
        return _takes_weights(model.estimator)
    if has_members(model) and not base.is_pipeline(model):  # many do, all say if not
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
