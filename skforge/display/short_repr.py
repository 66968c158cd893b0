"""Short names for models whose own repr is an address or kilobytes of text."""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import Any

from sklearn.base import BaseEstimator

from skforge.compiler.forest.forest import Forest
from skforge.compiler.frontends.base import class_names, is_pipeline
from skforge.compiler.frontends.content import is_path
from skforge.sources.fitted import is_estimator
from skforge.sources.stored_model import StoredModel


class ShortName:
    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def short_name(model: Any, forest: Forest | None = None) -> Any:
    if isinstance(model, (StoredModel, Forest)) or is_path(model):
        return model
    if isinstance(model, str):
        return ShortName(f"<text of a model, {len(model):,} characters>")
    if isinstance(model, bytes):
        return ShortName(f"<file of a model, {len(model):,} bytes>")
    if is_pipeline(model):
        steps = [(name, short_name(step)) for name, step in model.steps]
        return type(model)(**{**model.get_params(deep=False), "steps": steps})
    if "xgboost.sklearn.XGBModel" in class_names(model):
        return _call_of(model)
    if is_estimator(model):
        return model
    kind, library = type(model).__name__, type(model).__module__.partition(".")[0]
    sizes = ""
    if forest is not None:
        sizes = f": {forest.n_trees:,} trees, {forest.n_columns:,} features"
    return ShortName(f"<{kind} of {library}{sizes}>")


class OwnRepr:
    """The ``__repr__`` of a wrapper: scikit-learn's, with short names of models.

    Of the class it is scikit-learn's own, by which scikit-learn's printer knows how to
    break the lines of an estimator, also inside another.
    """

    def __get__(self, wrapper: Any, owner: Any = None) -> Any:
        return BaseEstimator.__repr__ if wrapper is None else partial(_repr, wrapper)


def _repr(wrapper: Any, N_CHAR_MAX: int = 700) -> str:
    params = wrapper.get_params(deep=False)
    params["estimator"] = short_name(
        params["estimator"], wrapper.__dict__.get("forest_")
    )
    return BaseEstimator.__repr__(type(wrapper)(**params), N_CHAR_MAX)


class _CallRepr(BaseEstimator):  # type: ignore[misc]
    params: dict[str, Any]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return self.params


def _call_of(model: Any) -> Any:
    """Return what prints set parameters, which XGBoost has beyond its signature."""
    defaults: dict[str, Any] = {}
    for base in reversed(type(model).__mro__):
        if "__init__" in vars(base) and base is not object:
            parameters = signature(vars(base)["__init__"]).parameters.values()
            defaults |= {parameter.name: parameter.default for parameter in parameters}
    call = type(type(model).__name__, (_CallRepr,), {})()
    call.params = {
        name: value
        for name, value in model.get_params(deep=False).items()
        if value is not None and repr(value) != repr(defaults.get(name))
    }
    return call
