"""Folds the operators before a tree ensemble into the tests of its trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.exceptions import UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.forest.rows import whole_range
from skforge.frontends.onnx.graph import EnsembleContext
from skforge.frontends.onnx.intervals import split
from skforge.frontends.onnx.symbols import ColumnStep
from skforge.frontends.pipeline import fold
from skforge.frontends.pipeline.bounds import Bounds
from skforge.frontends.pipeline.codes import TextCodes
from skforge.frontends.pipeline.columns import Column, ColumnPlan, sources_of
from skforge.frontends.pipeline.predicates import (
    at_missing,
    on_rows,
    predicates_of,
)


def folded(inner: Forest, place: EnsembleContext) -> Forest:
    """Return the forest on the rows of the graph, for that on the ensemble's input.

    Texts are codes: their place in ``category_names``, and NaN for unknown ones.
    """
    assert place.cells is not None
    plan = _plan(place)
    low, high = (np.full(plan.width, end, plan.dtype) for end in (-np.inf, np.inf))
    for column, bits in place.whole:  # other rows are refused
        low[column], high[column] = whole_range(bits, plan.dtype)
    bounds = Bounds(low, high, np.ones(plan.width, np.bool_))
    used = {plan.columns[i].source for i in np.unique(inner.feature).tolist()}
    # operators may answer infinities otherwise than the numbers beside them
    ends = np.array([-np.inf, np.finfo(plan.dtype).max, np.inf], plan.dtype)
    whole = {column: high[column : column + 1] for column, _ in place.whole}
    pieces = {i: whole.get(i, ends) for i in used if i not in plan.texts}
    pieces = fold.pieces_of(plan, (inner,), bounds, pieces)
    texts, points = _codes(plan, np.unique(inner.feature).tolist())
    runs = fold.runs_of(plan, inner, bounds, pieces, {}, points)
    parts = fold.parts_of(plan, inner, runs)
    source = sources_of(plan.columns)[inner.feature]
    tests, coded = predicates_of(parts, source, pieces, {}, texts)
    missing = at_missing(plan, inner, texts)
    if coded:  # which a Forest by itself does not read
        several = np.bincount(parts.test, minlength=inner.n_predicates) > 2
        odd = np.flatnonzero(several & np.isin(source, [*coded]))
        inner, parts, missing, source = split(inner, parts, missing, source, odd)
        tests, coded = predicates_of(parts, source, pieces, {}, texts)
        assert not coded
    rows = {
        "n_features": plan.width,
        "feature_names": place.names,
        "category_names": _names(texts, plan.width),
        "closed_columns": _closed(plan, texts),
        "whole_columns": place.whole,
        "row_norms": place.norms,
    }
    end = inner.n_predicates
    return on_rows(plan, inner, bounds, texts, source, tests, end, rows, missing)


def _plan(place: EnsembleContext) -> ColumnPlan:
    steps: dict[int, ColumnStep] = {}
    sources: dict[int, Column] = {}

    def visit(cell: Column) -> None:
        stage: Any = cell.stage
        if stage is None:
            sources[cell.source] = cell
        elif id(stage) not in steps:
            for part in stage.inputs:
                visit(part)
            steps[id(stage)] = stage

    for cell in place.cells or ():
        visit(cell)
    texts: dict[int, list[str]] = {i: [] for i in place.texts}
    for step in steps.values():
        (cell,) = step.inputs
        if cell.dtype == np.object_:
            known = texts[cell.source]
            known += [text for text in step.special.tolist() if text not in {*known}]
    numbers = [cell.dtype for i, cell in sources.items() if i not in texts]
    dtype = np.result_type(np.float32, *numbers)
    stages: Any = [*steps.values()]
    columns = place.cells or ()
    return ColumnPlan(place.n_columns, dtype, columns, "", stages, texts)


def _codes(
    plan: ColumnPlan, tested: list[int]
) -> tuple[dict[int, TextCodes], dict[int, Array]]:
    codes, points = {}, {}
    for source, known in plan.texts.items():
        values = np.array([*(known or [""]), None], object)[:-1]
        columns = [plan.columns[i] for i in tested if plan.columns[i].source == source]
        if len(columns) == 1:  # all tests of it are thresholds then
            (outputs,) = plan.values(columns, {source: values})
            values = values[np.argsort(outputs, kind="stable")]
        codes[source] = TextCodes(tuple(values.tolist()), np.nan, None, None)
        points[source] = values
    return codes, points


def _names(texts: dict[int, TextCodes], width: int) -> Any:
    if not texts:
        return ()
    return tuple(texts[i].texts if i in texts else () for i in range(width))


def _closed(plan: ColumnPlan, texts: dict[int, TextCodes]) -> tuple[int, ...]:
    """Return the columns in which an encoder raises an error for unknown texts."""
    columns = set()
    stages: Any = plan.stages
    for step in stages:
        source = step.inputs[0].source
        if step.closed:
            columns.add(source)
            if {*step.special.tolist()} != {*texts[source].texts}:
                raise UnsupportedModelError(
                    f"The {step.step} raises an error for texts that another encoder "
                    "of the same column knows, which the trees cannot; convert the "
                    "model with handle_unknown='ignore'."
                )
    return tuple(sorted(columns))
