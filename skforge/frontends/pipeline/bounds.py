"""Which values a pipeline takes: bounds of numbers, and pieces that steps refuse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from skforge._typing import Array, Bools
from skforge.frontends.pipeline.columns import ColumnPlan, sources_of
from skforge.frontends.pipeline.number_search import last_alike, last_power
from skforge.frontends.pipeline.transformers import cannot_fold, is_missing


@dataclass(frozen=True, slots=True)
class Bounds:
    """The numbers that a pipeline takes: an interval for each column, and NaN."""

    low: Array
    high: Array
    nan: Bools
    #: As ``Plan.whole``.
    whole: tuple[tuple[list[int], list[str], list[str]], ...] = ()

    def holds(self, rows: Array) -> bool:
        inside = (rows >= self.low) & (rows <= self.high)
        return bool(inside.all() or (inside | (np.isnan(rows) & self.nan)).all())

    def takes(self, dtypes: Iterable[tuple[int, Any]], own: int = 0) -> bool:
        """Tell whether columns of these dtypes are transformed as float64 ones are.

        For those of up to ``own`` bytes, which are folded as they are, tell whether
        their order is kept.
        """
        known = {i: dtype for i, dtype in dtypes if dtype is not None}
        for columns, refused, broken in self.whole:
            dtype = np.result_type(*(known.get(i, "f8") for i in columns))
            if dtype.str in (broken if dtype.itemsize <= own else refused):
                return False
        return True

    def repaired(self, rows: Array) -> Array:
        rows = np.clip(rows, self.low, self.high)
        zeros = np.clip(self.low.dtype.type(0), self.low, self.high)
        return np.where(np.isnan(rows) & ~self.nan, zeros, rows)


def bounds_of(plan: ColumnPlan, dtype: Any, takes_nan: bool) -> Bounds:
    """Return the values that are finite wherever a step gets them.

    ``dtype`` is the last step's, and ``takes_nan`` tells whether it accepts missing
    values. Infinite ones are never accepted here: the pipeline itself says what it
    makes of them.
    """
    numbers = [(c, nan) for stage in plan.stages for c, _, _, nan in stage.checks()]
    numbers += [(c, True) for c in plan.scaled]
    checks = [(c, nan) for c, nan in numbers if c.source not in plan.texts]
    n_inside = len(checks)
    checks += [(c, takes_nan) for c in plan.columns if c.source not in plan.texts]
    largest = np.finfo(plan.dtype).max
    low, high = _limits(plan, largest)
    bounds = Bounds(low, high, np.ones(plan.width, np.bool_), tuple(plan.whole))
    if not checks:
        return bounds
    columns = [column for column, _ in checks]
    which = np.arange(len(checks))
    source = sources_of(columns)
    least, most = low[source], high[source]

    nan_is_fine = np.array([nan for _, nan in checks])

    def finite(x: Array, check: Array) -> Bools:
        x = np.clip(x, least[check], most[check])
        values = plan.values_of(columns, check, x)
        with np.errstate(over="ignore"):
            cast = values.astype(dtype)
        is_last = check >= n_inside
        bounds = np.where(is_last, np.isfinite(cast), np.isfinite(values))
        return np.asarray(bounds | (np.isnan(values) & nan_is_fine[check]))

    zeros = np.zeros(len(checks), plan.dtype)
    if not finite(zeros, which).all():
        at = columns[int(finite(zeros, which).argmin())]
        cannot_fold(f"Steps turn a 0 in column {at.source} into no finite number")
    sign = np.repeat([-1.0, 1.0], len(checks))
    ends = last_power(sign, lambda x, item: finite(x, item % len(checks)), largest)
    low, high = ends.astype(plan.dtype).reshape(2, -1)
    missing = plan.values_of(columns, which, np.full(len(checks), np.nan, plan.dtype))
    fine = ~np.isnan(missing) | nan_is_fine
    np.maximum.at(bounds.low, source, low)
    np.minimum.at(bounds.high, source, high)
    np.logical_and.at(bounds.nan, source, fine)
    return bounds


def _limits(plan: ColumnPlan, largest: Any) -> tuple[Array, Array]:
    low = np.full(plan.width, -largest, plan.dtype)
    high = -low
    limited = [
        (column, least)
        for stage in plan.stages
        for column, least in zip(stage.inputs, stage.least, strict=True)
        if np.isfinite(least) and column.source not in plan.texts
    ]
    if not limited:
        return low, high
    columns = [column for column, _ in limited]
    source = sources_of(columns)
    ends = np.array([least for _, least in limited])

    def taken(x: Array, item: Array) -> Bools:
        return np.asarray(plan.values_of(columns, item, x) >= ends[item])

    powers = 2.0 ** np.arange(-8, 64)
    tried = np.concatenate([np.zeros(1), powers, -powers]).astype(plan.dtype)
    every = np.repeat(np.arange(len(limited)), len(tried))
    fits = np.ones((plan.width, len(tried)), np.bool_)
    fine = taken(np.tile(tried, len(limited)), every).reshape(-1, len(tried))
    np.logical_and.at(fits, source, fine)
    if not (some := fits.any(axis=1)).all():
        cannot_fold(f"A function takes no usual number of column {some.argmin()}")
    start = tried[fits.argmax(axis=1)][source]
    np.maximum.at(low, source, last_alike(start, low[source], taken))
    np.minimum.at(high, source, last_alike(start, high[source], taken))
    return low, high


def refused_pieces(
    plan: ColumnPlan, bounds: Bounds, pieces: dict[int, Array], takes_nan: bool
) -> dict[int, Bools]:
    """Return which pieces a step refuses; ``bounds`` notes whether it refuses NaN."""
    inputs = [c.source for stage in plan.stages if stage.strict for c in stage.inputs]
    strict = {source for source in inputs if source not in plan.texts}
    for source in strict:  # NaN may be all that an encoder knows
        pieces.setdefault(source, bounds.high[source : source + 1])
    refused: dict[int, Bools] = {}
    for source, ends in pieces.items():
        rows = np.append(ends, ends.dtype.type(np.nan))
        fine = accepted(plan, source, rows, takes_nan)
        bounds.nan[source] &= fine[-1]
        if source in strict or not fine[:-1].all():
            refused[source] = ~fine[:-1]
    return refused


def accepted(plan: ColumnPlan, source: int, values: Array, takes_nan: bool) -> Bools:
    """Tell for which values of a column no step raises an error or warns."""
    fine = np.ones(len(values), np.bool_)
    rows, a_text = {source: values}, source in plan.texts
    try:
        for stage in plan.stages:
            checks = [
                check
                for check in stage.checks()
                if check[0].source == source
                and (a_text or stage.strict or check[2] is not None or not check[3])
            ]
            every = plan.values([column for column, *_ in checks], rows)
            for (column, known, marker, nan), seen in zip(checks, every, strict=True):
                if marker is not None:
                    fine &= seen == seen if marker != marker else seen != marker
                if column.dtype != np.object_ and not nan:
                    fine &= ~np.isnan(seen)
                elif column.dtype == np.object_ and is_missing(values[0]):
                    values_there = plan.values(stage.inputs, rows)
                    fine &= stage.accepts(values_there, stage.transformer)
                if stage.strict:
                    fine &= _among(seen, known.tolist())
        columns = [column for column in plan.columns if column.source == source]
        if not takes_nan:
            for seen in plan.values(columns, rows):
                fine &= ~np.isnan(seen)
    except (ValueError, TypeError):
        if a_text:
            return np.zeros(len(values), np.bool_)
        raise
    return fine


def _among(values: Array, allowed: list[Any]) -> Bools:
    known_values = {item for item in allowed if not is_missing(item)}
    known_values |= {None} if None in allowed else set()
    nan = any(item is not None and is_missing(item) for item in allowed)
    inside = [
        nan if value is not None and is_missing(value) else value in known_values
        for value in values.tolist()
    ]
    return np.array(inside, np.bool_)
