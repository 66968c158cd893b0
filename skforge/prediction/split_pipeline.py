"""Reads a model; divides a pipeline into steps that run in their library and a rest."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import _num_samples, check_is_fitted

from skforge._compat import no_warnings
from skforge.compiler.forest.forest import Forest
from skforge.compiler.frontends.base import is_compiled, is_pipeline
from skforge.compiler.frontends.pipeline.split import (
    Branch,
    PipelineSplit,
    divided,
    divided_steps,
    divides,
    flat_steps,
    reason,
    refusals,
    rest_of,
)
from skforge.compiler.frontends.pipeline.transformers import of_first
from skforge.exceptions import InvalidInputError, UnsupportedModelError
from skforge.prediction.fallback import who_answers
from skforge.prediction.verification import sampled, take_rows
from skforge.sources.find import read_model, source_of

#: Rows that are tried, one by one.
TRIED = 4


def read_divided(model: Any, X: Any) -> tuple[Forest, PipelineSplit | None]:
    """Return a model's forest; of a pipeline, that of the last steps that fold.

    Fewer fold if the forest after them does not read the rows of ``X`` as they arrive.
    """
    if not divides(model):
        return read_model(model), None
    why: dict[str, str] = {}
    steps = divided_steps(model)
    names = [name for name, _ in steps]
    last = len(names) - 1
    known = refusals(model)
    branches = [name for name, step in steps if isinstance(step, Branch)]
    first = 0  # after the last step that is refused, or that has such a step inside
    for i, (name, step) in enumerate(steps):
        outside = [] if isinstance(step, Branch) else branches  # of it by now
        if any(_is_in(one, [name]) and not _is_in(one, outside) for one in known):
            first = i + 1
    starts: list[int | None] = list(range(max(first, min(1, last)), last + 1))
    for start in starts if first else [None, *starts]:
        forest, unread = _tried(model, start, last, X)
        if forest is not None:
            if start is None and not is_pipeline(model):
                return forest, None
            return forest, divided(model, start, {**known, **why})
        why = {names[start or 0]: unread}  # that of the last step that fails counts
    raise AssertionError  # the last step by itself is read, or raises


def _tried(
    model: Any, start: int | None, last: int, X: Any
) -> tuple[Forest | None, str]:
    rest = rest_of(model, start)
    if is_compiled(rest):
        return rest.forest_, ""
    if start == last:
        return read_model(rest), ""
    steps = flat_steps(rest)
    name, step = steps[0]
    if of_first(steps, "n_features_in_") is None:
        return None, f"{name!r} does not store how many columns its rows have"
    try:
        forest = read_model(rest)
        unread = "" if start is None else _unread(model, forest, start, X)
    except UnsupportedModelError as error:
        return None, reason(name, step, error)
    return None if unread else forest, unread


def _is_in(name: str, outer: list[str]) -> bool:
    return any(name == one or name.startswith(f"{one}__") for one in outer)


def table_of(wrapper: Any) -> str:
    check_is_fitted(wrapper)
    split = wrapper.__dict__.get("_split")
    if split is None:
        raise InvalidInputError(
            "The level 'pipeline' shows where the steps of a Pipeline run, and this "
            "model has no such steps; use another level, such as 'loops'."
        )
    return f"{split}\n\n{who_answers(wrapper.__dict__)}".rstrip()


def _unread(model: Any, forest: Forest, start: int, X: Any) -> str:
    source, n_rows = source_of(model, forest, start), _num_samples(X)
    name, unread = divided_steps(model)[start][0], ""
    for i in sampled(X, TRIED)[:n_rows]:
        with no_warnings():  # fit has the rows checked again
            prepared = source.prepared(take_rows(X, np.array([i])))
            if source.rows(prepared, "predict_raw") is not None:
                return ""
        rows = getattr(prepared, "rows", prepared)
        form = getattr(rows, "dtype", type(rows).__name__)
        form = "sparse" if hasattr(rows, "tocsr") else form
        unread = f"{name!r} gets {form} rows, which cannot be folded"
    return unread
