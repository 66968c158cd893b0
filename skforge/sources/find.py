"""Finds the adapter for a model of any library."""

from __future__ import annotations

import os
from typing import Any, TypeAlias

from skforge.compiler.forest.forest import Forest
from skforge.compiler.frontends import read_forest
from skforge.compiler.frontends.base import is_compiled, is_pipeline, last_step
from skforge.compiler.frontends.content import is_path, is_saved
from skforge.compiler.frontends.pipeline.model import load
from skforge.compiler.frontends.pipeline.split import flat_steps, rest_of
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.sources import (  # noqa: F401 - register
    catboost,
    files,
    lightgbm,
    pipeline,
    sklearn,
    xgboost,
)
from skforge.sources.base import Source, adapter_of, member_traces
from skforge.sources.delegation import model_of
from skforge.sources.members import Members, MembersSource, traces_of_members
from skforge.sources.pipeline import held
from skforge.sources.prefixed import PrefixedSource
from skforge.sources.stored_model import StoredModel
from skforge.sources.wrappers import source as wrappers  # noqa: F401 - registers

#: How many steps of a pipeline run in their library, or what is compiled of a model.
Start: TypeAlias = int | Members | None


def source_of(model: Any, forest: Forest, start: Start = None) -> Source:
    """Return an adapter for a fitted model whose forest this is.

    With ``start``, so many steps of a pipeline run in their library, and the forest is
    that of the rest; or only the members are compiled, and it is that of the first.
    """
    if isinstance(start, Members):
        return MembersSource(model, forest, start)
    if start is not None:
        rest = source_of(_rest(model, start), forest)
        return PrefixedSource(model, forest, start, rest)
    adapter = adapter_of(model)
    if adapter is None:
        raise UnsupportedModelError(
            f"CompiledForest does not know which rows {type(model).__name__} takes; "
            "use skforge.compile_forest(skforge.load_forest(model))."
        )
    return adapter(model, forest)


def traces_of(model: Any, start: Start = None) -> list[Any]:
    """Return objects and numbers that change when the compiled part of a model does.

    Steps that run in their library may change: they are called as they are.
    """
    if isinstance(start, Members):
        return traces_of_members(model)
    if start is not None:
        steps, last = [step for _, step in flat_steps(model)[:-1]], model
        while is_pipeline(last):
            last = last_step(last)
        last = model_of(last) if is_compiled(last) else last
        # not traces of the rest, where a wrapper is a copy
        return [*steps[:start], *held(steps[start:]), last, *traces_of(last)]
    if isinstance(model, StoredModel):
        return []  # plain data, which cannot be trained
    return member_traces(model)


def _rest(model: Any, start: int) -> Any:
    """Return what is compiled of a pipeline."""
    rest = rest_of(model, start)
    return model_of(rest) if is_compiled(rest) else rest


def read_model(model: Any) -> Forest:
    """Return the forest of any model that ``CompiledForest`` accepts."""
    if isinstance(model, StoredModel):
        return model.forest
    if is_saved(model):
        name = os.fspath(model) if is_path(model) else "This model"
        raise InvalidModelError(
            f"{name} was saved by skforge.save; use skforge.load(path) "
            "for the compiled model, or load_forest(path) for its forest."
        )
    if is_pipeline(model):
        return load(model).validate()  # its codes are known to the adapter
    return model if isinstance(model, Forest) else read_forest(model)
