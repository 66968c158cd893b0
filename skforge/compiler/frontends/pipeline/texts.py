"""Gives the texts of a pipeline's columns their codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge.compiler.forest.arrays import Array
from skforge.compiler.frontends.pipeline.codes import UNKNOWN, TextCodes
from skforge.compiler.frontends.pipeline.columns import Column, Plan
from skforge.compiler.frontends.pipeline.fold import Flags
from skforge.compiler.frontends.pipeline.transformers import cannot_fold, is_missing


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
        every = np.array([*known, UNKNOWN, None], object)[:-1]
        fine = _accepted(plan, source, every, takes_nan)
        values = every[:-1][fine[:-1]]
        accepted = values.tolist()
        outputs = _outputs(plan, columns, source, values)
        if len(columns) == 1:  # all tests of it are thresholds then
            order = np.argsort(outputs[:, 0], kind="stable")
            values, outputs = values[order], outputs[order]
            accepted = values.tolist()
        refused = every[:-1][~fine[:-1]].tolist() if fine[-1] else []
        others: dict[str, float | None] = {}
        kept: list[Any] = [*accepted]
        absent = None
        # a missing text is NaN wherever frames are read, so unknown ones give way
        for name, value in (("nan", np.nan), ("none", None), ("unknown", UNKNOWN)):
            others[name] = None
            given = np.array([value], object)
            known_as = fine[-1:] if name == "unknown" else None
            if known_as is None:
                known_as = _accepted(plan, source, given, takes_nan)
            if not known_as[0]:
                continue
            one = _outputs(plan, columns, source, given)
            # a step that returns frames may give None beside texts as NaN
            beside = np.concatenate([given, values[:1]])
            if not len(_alike(one, _outputs(plan, columns, source, beside)[:1])):
                continue
            if absent is None:
                absent, others[name] = one, np.nan
                continue
            alike = _alike(one, np.concatenate([absent, outputs]))
            if not len(alike):
                outputs = np.concatenate([outputs, one])
                alike = np.array([len(outputs)])
                kept.append(value)
            others[name] = np.nan if alike[0] == 0 else float(alike[0] - 1)
        if not kept and (columns or absent is None):
            cannot_fold(f"The pipeline rejects every string in column {source}")
        codes[source] = TextCodes(tuple(accepted), refused=tuple(refused), **others)
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


def _accepted(plan: Plan, source: int, values: Array, takes_nan: bool) -> Flags:
    """Tell for which values no step raises an error or warns."""
    fine = np.ones(len(values), np.bool_)
    rows = {source: values}
    try:
        for stage in plan.stages:
            for column, known, marker, nan in stage.checks():
                if column.source != source:
                    continue
                given = plan.values([column], rows)[0]
                if marker is not None:
                    fine &= given == given if marker != marker else given != marker
                if column.dtype != np.object_ and not nan:
                    fine &= ~np.isnan(given)
                elif column.dtype == np.object_ and is_missing(values[0]):
                    values_there = plan.values(stage.inputs, rows)
                    fine &= stage.accepts(values_there, stage.transformer)
                if stage.strict:
                    fine &= _among(given, known.tolist())
        columns = [column for column in plan.columns if column.source == source]
        if not takes_nan:
            for given in plan.values(columns, rows):
                fine &= ~np.isnan(given)
    except (ValueError, TypeError):
        return np.zeros(len(values), np.bool_)
    return fine


def _among(values: Array, known: list[Any]) -> Flags:
    """Tell which values are categories; NaN is one if the encoder has seen it."""
    held = {one for one in known if not is_missing(one)}
    held |= {None} if None in known else set()
    nan = any(one is not None and is_missing(one) for one in known)
    inside = [
        nan if value is not None and is_missing(value) else value in held
        for value in values.tolist()
    ]
    return np.array(inside, np.bool_)
