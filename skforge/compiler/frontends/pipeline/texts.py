"""Gives the texts of a pipeline's columns their codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge.compiler.frontends.pipeline.codes import UNKNOWN, TextCodes
from skforge.compiler.frontends.pipeline.columns import Array, Column, Plan
from skforge.compiler.frontends.pipeline.transformers import is_missing


def codes_of(
    plan: Plan, tested: list[int], takes_nan: bool
) -> tuple[dict[int, TextCodes], dict[int, Array]]:
    """Return the codes of each column of texts, and a value for each code.

    ``tested`` are the columns that the trees test. A column gets the fewest codes
    that tell apart what the trees can: those of the texts, and one for missing values
    if no text has the same outputs.
    """
    codes, points = {}, {}
    for source, known in plan.texts.items():
        columns = [plan.columns[i] for i in tested if plan.columns[i].source == source]
        accepted = [one for one in known if _accepts(plan, source, one, takes_nan)]
        values = np.array([*accepted, ""], object)[:-1]
        outputs = _outputs(plan, columns, source, values)
        if len(columns) == 1:  # all tests of it are thresholds then
            order = np.argsort(outputs[:, 0], kind="stable")
            accepted = [accepted[i] for i in order]
            values, outputs = values[order], outputs[order]
        others: dict[str, float | None] = {}
        kept: list[Any] = values.tolist()
        absent = None
        for name, value in (("unknown", UNKNOWN), ("none", None), ("nan", np.nan)):
            others[name] = None
            if not _accepts(plan, source, value, takes_nan):
                continue
            one = _outputs(plan, columns, source, np.array([value], object))
            if absent is None:
                absent, others[name] = one, np.nan
                continue
            alike = _alike(one, np.concatenate([absent, outputs]))
            if not len(alike):
                outputs = np.concatenate([outputs, one])
                alike = np.array([len(outputs)])
                kept.append(value)
            others[name] = np.nan if alike[0] == 0 else float(alike[0] - 1)
        codes[source] = TextCodes(tuple(accepted), **others)
        points[source] = np.array([*kept, ""], object)[:-1]
    return codes, points


def _outputs(plan: Plan, columns: list[Column], source: int, values: Array) -> Array:
    """Return a row of outputs for each value."""
    if not columns or not len(values):
        return np.zeros((len(values), len(columns)))
    found = plan.values(columns, {source: values})
    return np.column_stack(found).astype(float)


def _alike(row: Array, others: Array) -> Array:
    """Return the rows that are equal to one."""
    same = (others == row) | (np.isnan(others) & np.isnan(row))
    return np.flatnonzero(same.all(axis=1))


def _accepts(plan: Plan, source: int, value: Any, takes_nan: bool) -> bool:
    """Tell whether no step raises an error or warns about a value."""
    rows = {source: np.array([value], object)}
    try:
        for stage in plan.stages:
            for column, known in zip(stage.inputs, stage.special, strict=True):
                if column.source != source:
                    continue
                given = plan.values([column], rows)[0][0]
                text = column.dtype == np.object_
                if not text and np.isnan(given) and not stage.nan:
                    return False
                if text and is_missing(value):
                    stage.check(plan.values(stage.inputs, rows))
                if stage.strict and not _is_among(given, np.asarray(known).tolist()):
                    return False
        for column in plan.columns:
            if column.source == source:
                given = plan.values([column], rows)[0][0]
                if np.isnan(given) and not takes_nan:
                    return False
    except (ValueError, TypeError):
        return False
    return True


def _is_among(value: Any, known: list[Any]) -> bool:
    if value is None or not is_missing(value):
        return value in known
    return any(one is not None and is_missing(one) for one in known)
