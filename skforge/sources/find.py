"""Finds the adapter for a model of any library."""

from __future__ import annotations

import os
from typing import Any

from skforge.compiler.forest.forest import Forest
from skforge.compiler.frontends import read_forest
from skforge.compiler.frontends.content import is_saved
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.sources import (  # noqa: F401 - register
    files,
    lightgbm,
    pipeline,
    sklearn,
    xgboost,
)
from skforge.sources.base import ADAPTERS, Source
from skforge.sources.stored_model import StoredModel
from skforge.sources.wrappers import source as wrappers  # noqa: F401 - registers


def adapter_of(model: Any) -> type[Source] | None:
    """Return the adapter class of a live or stored model, or None."""
    for adapter in ADAPTERS:
        if isinstance(model, StoredModel):
            if model.kind in adapter.kinds:
                return adapter
        elif adapter.detects(model):
            return adapter
    return None


def source_of(model: Any, forest: Forest) -> Source:
    """Return an adapter for a fitted model that ``load_forest`` can read."""
    adapter = adapter_of(model)
    if adapter is None:
        raise UnsupportedModelError(
            f"CompiledForest does not know which rows {type(model).__name__} takes; "
            "use skforge.compile_forest(skforge.load_forest(model))."
        )
    return adapter(model, forest)


def read_model(model: Any) -> Forest:
    """Return the forest of any model that ``CompiledForest`` accepts."""
    if isinstance(model, StoredModel):
        return model.forest
    if isinstance(model, (str, os.PathLike)) and is_saved(model):
        raise InvalidModelError(
            f"{os.fspath(model)} was saved by skforge.save; skforge.load(path) returns "
            "the compiled model, and load_forest(path) its forest alone."
        )
    return model if isinstance(model, Forest) else read_forest(model)
