"""Reads a model: its forest, and an adapter that knows which rows it takes.

Of a pipeline, the forest is that of the last steps that fold into it; those before
these run in their library.
"""

from __future__ import annotations

from typing import Any

from skforge._compat import no_warnings
from skforge.exceptions import UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.frontends.base import is_compiled, is_pipeline
from skforge.frontends.pipeline import split as splits
from skforge.frontends.pipeline.transformers import of_first
from skforge.prediction.given_rows import GivenRows
from skforge.rows.frames import coded_columns, is_pandas, placed
from skforge.sources.base import Source
from skforge.sources.find import read_model, source_of

#: Rows that are tried one by one.
TRIED = 4


def read_divided(
    model: Any, given: GivenRows
) -> tuple[Source, splits.PipelineSplit | None]:
    """Return a model's adapter, which has its forest, and how a pipeline is divided."""
    divides = splits.divides(model)
    if divides:
        forest, start, why = _longest_rest(model, given)
    else:
        forest, start, why = read_model(model), None, {}
    if not start:  # it gets X itself
        forest = _placed(forest, given.all)
    source = source_of(model, forest, start)
    has_steps = divides and (start is not None or is_pipeline(model))
    return source, splits.divided(model, start, why) if has_steps else None


def _longest_rest(
    model: Any, given: GivenRows
) -> tuple[Forest, int | None, dict[str, str]]:
    """Return the forest that most steps fold into, its first step, and what is refused.

    Fewer steps fold if the forest after them does not read the given rows as these
    arrive.
    """
    why: dict[str, str] = {}
    steps = splits.divided_steps(model)
    names = [name for name, _ in steps]
    last = len(names) - 1
    known = splits.refusals(model)
    branches = [name for name, step in steps if isinstance(step, splits.Branch)]
    first = 0  # after the last step that is refused, or that has such a step inside
    for i, (name, step) in enumerate(steps):
        outside = [] if isinstance(step, splits.Branch) else branches  # of it by now
        if any(_is_in(one, [name]) and not _is_in(one, outside) for one in known):
            first = i + 1
    starts: list[int | None] = list(range(max(first, min(1, last)), last + 1))
    for start in starts if first else [None, *starts]:
        forest, unread = _tried(model, start, last, given)
        if forest is not None:
            return forest, start, {**known, **why}
        why = {names[start or 0]: unread}  # that of the last step that fails counts
    raise AssertionError  # the last step by itself is read, or raises


def _placed(forest: Forest, X: Any) -> Forest:
    """Return a forest that knows by X which columns have LightGBM's categories."""
    told = forest.source == "lightgbm" and is_pandas(X)
    fits = told and X.shape[1] == forest.n_features
    return placed(forest, coded_columns(X)) if fits else forest


def _tried(
    model: Any, start: int | None, last: int, given: GivenRows
) -> tuple[Forest | None, str]:
    rest = splits.rest_of(model, start)
    if is_compiled(rest):
        return rest.forest_, ""
    if start == last:
        return read_model(rest), ""
    steps = splits.flat_steps(rest)
    name, step = steps[0]
    if of_first(steps, "n_features_in_") is None:
        return None, f"{name!r} does not store how many columns its rows have"
    try:
        forest = read_model(rest)
        unread = "" if start is None else _unread(model, forest, start, given)
    except UnsupportedModelError as error:
        return None, splits.reason(name, step, error)
    return None if unread else forest, unread


def _is_in(name: str, outer: list[str]) -> bool:
    return any(name == one or name.startswith(f"{one}__") for one in outer)


def _unread(model: Any, forest: Forest, start: int, given: GivenRows) -> str:
    source = source_of(model, forest, start)
    name, unread = splits.divided_steps(model)[start][0], ""
    for i in given.spread(TRIED)[: given.n]:
        row = given.one(i)
        with no_warnings():  # fit has the rows checked again
            prepared = source.prepared(row)
            if source.rows(prepared, "predict_raw") is not None:
                return ""
        rows = getattr(prepared, "rows", prepared)
        form = getattr(rows, "dtype", type(rows).__name__)
        form = "sparse" if hasattr(rows, "tocsr") else form
        unread = f"{name!r} gets {form} rows, which cannot be folded"
    return unread
