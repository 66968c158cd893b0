"""Finds the thresholds of raw values, with the transformers themselves as the oracle.

A monotone test of a transformed value is a test ``x <= c`` or ``x > c`` of the raw
one, for one number ``c`` of the rows' dtype. It is found by bisection over the numbers
of that dtype in their order, for all tests at once, so that no arithmetic of a
transformer is repeated here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.arrays import Comparison
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.reference import evaluate_predicates
from skforge.compiler.frontends.pipeline.columns import Array, Column, Plan, values_of
from skforge.exceptions import UnsupportedModelError

Flags = NDArray[np.bool_]

_MAX = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The values that a pipeline accepts: an interval for each column, and NaN."""

    low: Array
    high: Array
    nan: Flags

    def holds(self, rows: Array) -> bool:
        """Tell whether all values of float64 rows are accepted."""
        inside = (rows >= self.low) & (rows <= self.high)
        return bool(inside.all() or (inside | (np.isnan(rows) & self.nan)).all())

    def repaired(self, rows: Array) -> Array:
        """Return float64 rows with accepted values in place of all others."""
        rows = np.clip(rows, self.low, self.high)
        return np.where(np.isnan(rows) & ~self.nan, 0.0, rows)

    def and_of(self, other: Accepted) -> Accepted:
        """Return the values that both accept."""
        low, high = np.maximum(self.low, other.low), np.minimum(self.high, other.high)
        return Accepted(low, high, self.nan & other.nan)


@dataclass(frozen=True, slots=True)
class Folded:
    """What predicates are on raw values; one entry per predicate of the forest."""

    comparison: NDArray[np.uint8]
    threshold: Array
    missing_left: Flags


def accepted(plan: Plan, forest: Forest, takes_nan: bool) -> Accepted:
    """Return the values that are finite wherever a step gets them.

    ``takes_nan`` tells whether the last step accepts missing values. Infinite values
    are never accepted here: the pipeline itself says what it makes of them.
    """
    checks: list[Column] = []
    nan_is_fine: list[bool] = []
    narrow: list[bool] = []
    for stage in plan.stages:
        checks += stage.inputs
        nan_is_fine += [stage.nan] * len(stage.inputs)
    narrow = [False] * len(checks) + [True] * len(plan.columns)
    checks += plan.columns
    nan_is_fine += [takes_nan] * len(plan.columns)
    which = np.arange(len(checks))
    narrowed = np.array(narrow, np.bool_)

    def finite(x: Array) -> Flags:
        values = values_of(checks, which, x)
        with np.errstate(over="ignore"):
            cast = values.astype(forest.input_dtype)
        return np.where(narrowed, np.isfinite(cast), np.isfinite(values))

    zeros = np.zeros(len(checks))
    if not finite(zeros).all():
        at = checks[int(finite(zeros).argmin())]
        raise UnsupportedModelError(
            f"The pipeline turns a 0 in column {at.source} into a value that is not "
            "finite, so its steps cannot be folded; compile the last step alone: "
            "Pipeline([..., CompiledForest(forest)])."
        )
    top = np.full(len(checks), _MAX)
    low, high = last_alike(zeros, -top, finite), last_alike(zeros, top, finite)
    missing = values_of(checks, which, np.full(len(checks), np.nan))
    fine = ~np.isnan(missing) | np.array(nan_is_fine, np.bool_)
    source = np.array([column.source for column in checks], np.intp)
    found = Accepted(
        np.full(plan.width, -_MAX), np.full(plan.width, _MAX), np.ones(plan.width, bool)
    )
    np.maximum.at(found.low, source, low)
    np.minimum.at(found.high, source, high)
    np.logical_and.at(found.nan, source, fine)
    return found


def fold(plan: Plan, forest: Forest, bounds: Accepted) -> Folded:
    """Return the predicates of a forest as tests of the pipeline's own rows."""
    feature = forest.feature.astype(np.intp)
    source = np.array([column.source for column in plan.columns], np.intp)[feature]
    every = np.arange(forest.n_predicates)

    def test(x: Array, predicate: Array = every) -> Flags:
        values = values_of(plan.columns, feature[predicate], x)
        with np.errstate(over="ignore"):
            values = values.astype(forest.input_dtype)
        return evaluate_predicates(forest, predicate, values)

    low, high = bounds.low[source], bounds.high[source]
    at_low, at_high = test(low), test(high)
    changes = np.flatnonzero(at_low != at_high)
    threshold = np.full(forest.n_predicates, np.inf)
    threshold[changes] = last_alike(
        low[changes],
        high[changes],
        lambda x: test(x, changes) == at_low[changes],
    )
    comparison = np.where(at_low, Comparison.LE, Comparison.GT).astype(np.uint8)
    nan = test(np.full(forest.n_predicates, np.nan)) & bounds.nan[source]
    found = Folded(comparison, threshold, nan)
    _check(found, source, bounds, test)
    return found


def last_alike(start: Array, end: Array, alike: Callable[[Array], Flags]) -> Array:
    """Return the last numbers on the way from start to end that are alike.

    ``alike`` is true at ``start``, and once false it stays false up to ``end``.
    """
    near, far = _place(start), _place(end)
    near = np.where(alike(end), far, near)
    while (apart := (far > near + 1) | (near > far + 1)).any():
        middle = (near >> 1) + (far >> 1) + (near & far & 1)
        same = alike(_number(middle))
        near = np.where(apart & same, middle, near)
        far = np.where(apart & ~same, middle, far)
    return _number(near)


def _check(
    found: Folded,
    source: Array,
    bounds: Accepted,
    test: Callable[[Array, Array], Flags],
) -> None:
    """Compare with the transformers at, above and below other tests' thresholds."""
    finite = np.flatnonzero(np.isfinite(found.threshold))
    if not len(finite):
        return
    order = finite[np.lexsort((found.threshold[finite], source[finite]))]
    for shift in (0, 1, 7, len(order) // 3):
        at = order[source[order] == source[np.roll(order, shift)]]
        x = found.threshold[np.roll(order, shift)]
        x = x[source[order] == source[np.roll(order, shift)]]
        for value in (np.nextafter(x, -np.inf), x, np.nextafter(x, np.inf)):
            value = np.clip(value, bounds.low[source[at]], bounds.high[source[at]])
            below = value <= found.threshold[at]
            answer = below == (found.comparison[at] == Comparison.LE)
            if (answer != test(value, at)).any():
                raise UnsupportedModelError(
                    "A step of the pipeline changes the order of values, so that it "
                    "cannot be folded into the trees; compile the last step alone."
                )


def _place(x: Array) -> NDArray[np.int64]:
    """Return the places of finite float64 numbers in their order; 0 for both zeros.

    >>> _place(np.array([-5e-324, -0.0, 0.0, 5e-324])).tolist()
    [-1, 0, 0, 1]
    """
    bits = np.ascontiguousarray(x, np.float64).view(np.int64)
    return np.where(bits >= 0, bits, -(bits & np.iinfo(np.int64).max))


def _number(place: NDArray[np.int64]) -> Array:
    """Return the numbers at these places."""
    bits = np.abs(place)
    return np.where(place >= 0, 1.0, -1.0) * bits.view(np.float64)
