"""Short names of models, whose own repr is an address or kilobytes of text."""

from __future__ import annotations

import os
from inspect import signature
from typing import Any

from sklearn.base import BaseEstimator

from skforge.forest.forest import Forest
from skforge.frontends.base import class_names, is_pipeline, last_step
from skforge.frontends.content import is_path
from skforge.sources.fitted import is_estimator


class ShortName(str):
    __slots__ = ()
    __repr__ = str.__str__


def short_name(model: Any, forest: Forest | None = None) -> Any:
    ours = type(model).__module__.startswith("skforge.")  # whose texts are short
    if ours or is_path(model):
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


def name_of(model: Any) -> str:
    if is_path(model):
        return str(os.path.basename(os.fspath(model)))
    if isinstance(model, (str, bytes)):
        return "model in memory"
    name: str = getattr(model, "class_name", type(model).__name__)
    if is_pipeline(model):
        return f"{name} ending in {type(last_step(model)).__name__}"
    return name
