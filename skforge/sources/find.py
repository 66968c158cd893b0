"""Finds the adapter for a model of any library, and notices changes of the model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from skforge.exceptions import InvalidModelError
from skforge.forest.forest import Forest
from skforge.frontends import read_forest
from skforge.frontends.base import is_compiled, is_pipeline, last_step
from skforge.frontends.content import is_path, is_saved
from skforge.frontends.sklearn.leaf_weights import (
    has_payloads,
    load_with_payloads,
)
from skforge.sources.base import Source, member_source, member_traces
from skforge.sources.fitted import model_of

if TYPE_CHECKING:
    from skforge.sources.wrappers.members import Members

#: How many steps of a pipeline run in their library, or what is compiled of a model.
FirstMember: TypeAlias = "int | Members | None"


def source_of(model: Any, forest: Forest, start: FirstMember = None) -> Source:
    """Return an adapter for a fitted model whose forest this is.

    With ``start``, so many steps of a pipeline run in their library, and the forest is
    that of the rest; or only the members are compiled, and it is that of the first.
    """
    if start is None:
        return member_source(model, forest)
    from skforge.frontends.pipeline.split import rest_of
    from skforge.sources.pipeline import PrefixedSource
    from skforge.sources.wrappers.members import Members, MembersSource

    if isinstance(start, Members):
        return MembersSource(model, forest, start)
    last = rest_of(model, start)
    last = model_of(last) if is_compiled(last) else last
    return PrefixedSource(model, forest, start, member_source(last, forest))


def traces_of(model: Any, start: FirstMember = None) -> list[Any]:
    """Return objects and numbers that change when the compiled part of a model does.

    Steps that run in their library may change: they are called as they are.
    """
    if start is None:
        return member_traces(model)
    from skforge.frontends.pipeline.split import divided_steps
    from skforge.sources.pipeline import nested_parts
    from skforge.sources.wrappers.members import Members, traces_of_members

    if isinstance(start, Members):
        return traces_of_members(model)
    steps, last = [step for _, step in divided_steps(model)[:-1]], model
    while is_pipeline(last):
        last = last_step(last)
    last = model_of(last) if is_compiled(last) else last
    # not traces of the rest, where a wrapper is a copy
    return [*steps[:start], *nested_parts(steps[start:]), last, *member_traces(last)]


def read_model(model: Any) -> Forest:
    if is_saved(model):
        name = os.fspath(model) if is_path(model) else "This model"
        raise InvalidModelError(
            f"{name} was saved by skforge.save; use skforge.load(path)."
        )
    if is_pipeline(model):
        from skforge.frontends.pipeline.model import load

        return load(model).validate()  # its codes are known to the adapter
    if has_payloads(model):
        return load_with_payloads(model).validate()
    return read_forest(model)


#: Bytes of the largest array whose content is remembered.
_SMALL = 1 << 16


class Fingerprint:
    """Remembers the parts of a model that another fit would replace.

    It detects replaced, added and removed trees, and numbers edited in arrays of up to
    64 KiB. Detecting edits inside a tree would take as long as reading the model:
    docs/appendix/unnoticed.md lists them. Paths, ModelProtos and Forests do not
    change. ``start`` is what runs before the forest: a pipeline's steps, or members.
    """

    __slots__ = ("_model", "_start", "_traces")

    def __init__(self, model: Any, start: FirstMember = None) -> None:
        self._model, self._start = model, start
        self._traces = [(part, _content(part)) for part in traces_of(model, start)]

    def check(self) -> None:
        now = traces_of(self._model, self._start)
        same = len(now) == len(self._traces) and all(map(_same, now, self._traces))
        if not same:
            raise has_changed(self._model)


def has_changed(model: Any) -> InvalidModelError:
    return InvalidModelError(
        f"The {type(model).__name__} has changed since it was compiled: it was fitted "
        "again, trained further or edited. Its attributes and predictions no longer "
        "match the compiled ones; call fit of the CompiledForest again."
    )


def _same(now: Any, trace: tuple[Any, Any]) -> bool:
    before, content = trace
    if now is before:
        return content is None or bool(_content(now) == content)
    plain = isinstance(now, (int, float, str)) and isinstance(before, type(now))
    return plain and bool(now == before or (now != now and before != before))  # NaN


def _content(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.nbytes > _SMALL:
        return None
    inside = map(_content, value.flat) if value.dtype == object else ()
    return value.tobytes(), *inside
