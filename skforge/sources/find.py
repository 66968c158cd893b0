"""Which adapter takes the rows of a model."""

from __future__ import annotations

import os
from typing import Any

from numpy.typing import NDArray

from skforge.compiler.forest.forest import Forest
from skforge.compiler.frontends import load_forest
from skforge.compiler.frontends.base import class_names
from skforge.compiler.frontends.content import is_saved
from skforge.exceptions import (
    InvalidModelError,
    UnsupportedModelError,
)
from skforge.sources.base import Source
from skforge.sources.files import ForestSource
from skforge.sources.lightgbm import LightGBMBoosterSource, LightGBMSource
from skforge.sources.sklearn import SklearnSource, ensemble_source
from skforge.sources.stored import stored_source
from skforge.sources.stored_model import StoredModel
from skforge.sources.xgboost import BoosterSource, XGBoostSource

Array = NDArray[Any]


def source_of(estimator: Any, forest: Forest) -> Source:
    """Return the adapter of a fitted model that ``load_forest`` could read."""
    if isinstance(estimator, StoredModel):
        return stored_source(estimator, forest)
    names = class_names(estimator)
    if "xgboost.sklearn.XGBModel" in names:
        return XGBoostSource(estimator, forest)
    if "xgboost.core.Booster" in names:
        return BoosterSource(estimator, forest)
    if "lightgbm.sklearn.LGBMModel" in names:
        return LightGBMSource(estimator, forest)
    if "lightgbm.basic.Booster" in names:
        return LightGBMBoosterSource(estimator, forest)
    if hasattr(estimator, "_validate_X_predict"):
        return SklearnSource(estimator, forest)
    ensemble = ensemble_source(estimator, forest)
    if ensemble is not None:
        return ensemble
    if not hasattr(estimator, "fit"):  # a file, a ModelProto, a Forest
        return ForestSource(forest)
    raise UnsupportedModelError(
        f"CompiledForest does not know which rows {type(estimator).__name__} takes; "
        "use skforge.compile_forest(skforge.load_forest(model))."
    )


def read_model(model: Any) -> Forest:
    """Return the forest of whatever ``CompiledForest`` accepts."""
    if isinstance(model, StoredModel):
        return model.forest
    if isinstance(model, (str, os.PathLike)) and is_saved(model):
        raise InvalidModelError(
            f"{os.fspath(model)} was saved by skforge.save; skforge.load(path) returns "
            "the compiled model, and load_forest(path) its forest alone."
        )
    return model if isinstance(model, Forest) else load_forest(model)
