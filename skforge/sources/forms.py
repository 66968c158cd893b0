"""The dtypes of a pipeline's rows: what steps compute in, and whether trees notice.

scikit-learn's steps compute in the dtype of the rows that they get. A *form* is the
dtype of an array, or a dtype for each column of a frame; see ``frame_reader.Form``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.arrays import Comparison
from skforge.compiler.forest.forest import Forest, round_thresholds
from skforge.compiler.frontends.pipeline.fold import Bounds
from skforge.sources.table_reader import TableForm, number_of

Array = NDArray[Any]


def computed(form: Any, width: int) -> list[np.dtype[Any]]:
    """Return the dtype of each column as steps get it: nullable ones as float64."""
    if isinstance(form, np.dtype):
        return [form] * width
    wide = np.dtype(np.float64)
    if isinstance(form, TableForm):  # whole numbers of these may be missing
        known = [number_of(own) or wide for own in form.types]
        return [wide if own.kind in "iu" and own.itemsize > 2 else own for own in known]
    return [own if isinstance(own, np.dtype) else wide for own in form]


def told(form: Any) -> str:
    """Return a form as text, which an artifact keeps."""
    if isinstance(form, np.dtype):
        return f"ndarray: {form.name}"
    kind, own = form if isinstance(form, TableForm) else ("pandas", form)
    return f"{kind}: {', '.join(map(str, own))}"


def nullable(form: Any) -> list[int]:
    """Return the columns that may hold pandas' NA."""
    if isinstance(form, np.dtype):
        return []
    if isinstance(form, TableForm):
        typed = form.kind in ("polars", "pyarrow")
        return [i for i, own in enumerate(form.types) if typed and number_of(own)]
    own = enumerate(form)
    return [i for i, dtype in own if not isinstance(dtype, np.dtype | type(None))]


def fitting(rows: Array, form: Any, gaps: Collection[int] = ()) -> Array:
    """Return rows with the nearest values that the columns of a form can hold.

    Some of the values of the columns in ``gaps`` are NaN.
    """
    rows = rows.astype(np.float64)
    own = [form] * rows.shape[1] if isinstance(form, np.dtype) else form
    if isinstance(form, TableForm):
        own = [type_ and number_of(type_) for type_ in form.types]
    for column, dtype in enumerate(own):
        if dtype is None:
            continue
        number, values = getattr(dtype, "numpy_dtype", dtype), rows[:, column]
        missing = np.isnan(values)
        if number.kind == "f":
            largest = float(np.finfo(number).max)
            values = np.clip(values, -largest, largest).astype(number)
        elif number.kind == "b":
            values = values > 0
        else:
            ends = np.iinfo(number)
            most = min(float(ends.max), 2.0**31)
            values = np.rint(np.clip(values, max(float(ends.min), -most), most))
        rows[:, column] = values
        if column in gaps:
            rows[::7, column] = np.nan
        elif missing.any() and not (isinstance(dtype, np.dtype) and number.kind == "f"):
            rows[missing, column] = 0
    return rows


def same_tests(forest: Forest, other: Forest, dtypes: Sequence[np.dtype[Any]]) -> bool:
    """Tell whether the tests of two forests agree on all numbers of some dtypes."""
    nodes = ("left", "right")
    if not all(np.array_equal(getattr(forest, n), getattr(other, n)) for n in nodes):
        return False
    if not np.array_equal(forest.predicate < 0, other.predicate < 0):
        return False
    first, second = (one.predicate[one.predicate >= 0] for one in (forest, other))
    comparison, feature = forest.comparison[first], forest.feature[first]
    # whole numbers and booleans are never missing
    gaps = np.array([own.kind == "f" for own in dtypes])[feature]
    for name in ("feature", "missing", "missing_left"):
        mine, others = getattr(forest, name)[first], getattr(other, name)[second]
        if ((mine != others) & (gaps | (name == "feature"))).any():
            return False
    sets = comparison >= Comparison.IN
    if (sets != (other.comparison[second] >= Comparison.IN)).any():
        return False
    if sets.any() and not (
        np.array_equal(first[sets], second[sets])
        and np.array_equal(comparison[sets], other.comparison[second][sets])
        and np.array_equal(forest.category_offset, other.category_offset)
        and np.array_equal(forest.category_words, other.category_words)
    ):
        return False
    for dtype in {*dtypes}:
        of_dtype = [i for i, own in enumerate(dtypes) if own == dtype]
        here = np.isin(feature, of_dtype) & ~sets
        mine = _canonical(forest, first[here], dtype)
        if not np.array_equal(mine, _canonical(other, second[here], dtype)):
            return False
    return True


def _canonical(forest: Forest, tests: Array, dtype: np.dtype[Any]) -> Array:
    """Return comparisons and thresholds that are equal for tests that are.

    Equal for all numbers of a dtype, which are whole or have the dtype's precision.
    """
    comparison, found = forest.comparison[tests], forest.threshold[tests]
    equal = (comparison == Comparison.EQ) | (comparison == Comparison.NE)
    if dtype.kind == "f":
        found = found.astype(np.float64)
        found[~equal] = round_thresholds(found[~equal], comparison[~equal], dtype)
        return np.stack([comparison, found])
    low, high = (
        (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    )
    # the first number with another answer than the lowest, if any
    after = (comparison == Comparison.LE) | (comparison == Comparison.GT)
    end = np.where(after, np.floor(found) + 1, np.ceil(found))
    end = np.clip(end, float(low), float(high) + 1)
    left = (comparison == Comparison.LE) | (comparison == Comparison.LT)
    left ^= end == low
    end = np.where(end == low, float(high) + 1, end)
    return np.where(equal, [comparison, found], [left + 6.0, end])


def inside(bounds: Bounds, other: Bounds, dtypes: Sequence[np.dtype[Any]]) -> bool:
    """Tell whether all numbers of some dtypes that one accepts are in the other's."""
    largest = np.array(
        [np.finfo(own).max if own.kind == "f" else 2.0**64 for own in dtypes], float
    )
    low, high = np.maximum(bounds.low, -largest), np.minimum(bounds.high, largest)
    fine = (other.low <= low) & (other.high >= high) & (other.nan | ~bounds.nan)
    return bool(fine.all())
