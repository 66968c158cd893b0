"""The dtypes of a pipeline's rows: what steps compute in, and whether trees notice.

scikit-learn's steps compute in the dtype of the rows that they get. A *form* is the
dtype of an array, or a type for each column of a frame.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from skforge._typing import Array
from skforge.forest.arrays import Comparison
from skforge.forest.forest import Forest
from skforge.forest.predicates import round_thresholds
from skforge.rows.frames import is_date, number_of

if TYPE_CHECKING:
    from skforge.frontends.pipeline.bounds import Bounds

#: The dtype of columns of Python's numbers, None and Decimals.
OBJECT = np.dtype(object)


@dataclass(frozen=True)
class Form:
    #: pandas, polars, pyarrow, or array and list of Python objects.
    kind: str = field(compare=False)
    #: None for columns that are not read, and for texts of pandas frames and of Python
    #: objects.
    types: tuple[Any, ...] = field(compare=False)
    #: By which it is known: the hash of some types takes 3 us.
    text: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        text = f"{self.kind}: {', '.join(map(str, self.types))}"
        object.__setattr__(self, "text", text)

    @property
    def numbers(self) -> list[np.dtype[Any] | None]:
        types = [np.dtype(float) if dtype is OBJECT else dtype for dtype in self.types]
        return [None if dtype is None else number_of(dtype) for dtype in types]


def computed(form: Form | np.dtype[Any], width: int) -> list[np.dtype[Any]]:
    """Return dtypes as steps get them: nullable ones, dates, objects are float64."""
    if isinstance(form, np.dtype):
        return [form] * width
    wide = np.dtype(np.float64)
    if form.kind == "pandas":
        return [d if _is_number(d) and not is_date(d) else wide for d in form.types]
    known = [number or wide for number in form.numbers]
    # whole numbers of these may be missing
    return [wide if d.kind in "iu" and d.itemsize > 2 else d for d in known]


def rows_at(X: Any, places: Any) -> Any:
    """Return rows of an array, a list, a frame or a table."""
    from sklearn.utils import _safe_indexing

    try:
        return _safe_indexing(X, places)
    except NotImplementedError:  # pyarrow takes no texts by views
        from pyarrow import concat_tables

        return concat_tables([X.slice(i, 1) for i in places]).combine_chunks()


def has_objects(form: Any) -> bool:
    types = form.types if isinstance(form, Form) else ()
    return any(dtype is OBJECT for dtype in types)


@lru_cache(maxsize=256)  # one row is asked three times, and texts of types take 30 us
def parts_of(form: Any, bools: bool) -> tuple[Any, ...]:
    """Return the forms that must be read for a frame with objects among its numbers.

    A step gets a matrix of objects if one of its columns holds some, and otherwise
    what it would get if all objects were float64. ``bools`` tells whether booleans are
    taken apart, too, if no column is narrower: beside float32 they make float32. The
    first part is that of objects, the last that of other columns.
    """
    if not isinstance(form, Form) or form.kind != "pandas":
        return (form,)
    wide, known = np.dtype(np.float64), (None, OBJECT, np.dtype(bool))
    bools = bools and all(dtype in known or is_wide(dtype) for dtype in form.types)
    apart = [dtype for dtype in known[1 : 2 + bools] if dtype in form.types]
    others = tuple(wide if dtype in apart else dtype for dtype in form.types)
    parts = (
        Form("pandas", tuple(None if d is None else dtype for d in form.types))
        for dtype in apart
    )
    plain = all(dtype is None or is_wide(dtype) for dtype in others)
    return *parts, None if plain else Form("pandas", others)


def is_wide(dtype: Any) -> bool:
    return _is_number(dtype) and (dtype == np.float64 or dtype.kind in "iu")


def form_text(form: Any) -> str:
    if type(form) is Form:
        return form.text
    if type(form) is tuple:
        return form_text(next(part for part in form if part is not None))
    return "" if form is None else _of_dtype(form)


@lru_cache(maxsize=64)
def _of_dtype(dtype: np.dtype[Any]) -> str:
    return f"ndarray: {dtype.name}"


def nullable(form: Form | np.dtype[Any]) -> list[int]:
    """Return the columns of numbers that may be missing otherwise than by NaN."""
    if isinstance(form, np.dtype):
        return []
    pairs = enumerate(zip(form.numbers, map(_is_number, form.types), strict=True))
    return [i for i, (number, is_plain) in pairs if number and not is_plain]


def _is_number(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype is not OBJECT


def objects_of(numbers: Array, gap: bool, decimals: bool) -> Array:
    """Return objects of several types; with ``gap``, some of the missing are None."""
    objects = numbers.astype(object)
    for i, x in enumerate(objects):
        if x != x:
            objects[i] = None if gap and i % 2 else x
        elif i % 3 == 0 and x.is_integer() and abs(x) < 1 << 24:
            objects[i] = bool(x) if x in (0, 1) else int(x)
        elif i % 3 == 1 and decimals and abs(x) < np.inf:
            objects[i] = Decimal(repr(x))
    return objects


def with_floats(rows: Any, form: Form) -> Any:
    """Return rows of a form with floats in place of None and other objects."""
    places = [i for i, dtype in enumerate(form.types) if dtype is OBJECT]
    if form.kind == "pandas":
        rows = rows.copy()
        for i in places:
            rows.isetitem(i, rows.iloc[:, i].astype(np.float64))
        return rows
    objects = np.array(rows, object)
    for i in places:
        objects[:, i] = objects[:, i].astype(np.float64)
    return objects.tolist() if form.kind == "list" else objects


def alike(made: Any, other: Any) -> bool:
    """Tell whether steps made the same numbers, of whatever dtypes and containers."""
    found, wanted = (
        np.asarray(each.toarray() if hasattr(each, "tocsr") else each, np.float64)
        for each in (made, other)
    )
    return np.array_equal(found, wanted, equal_nan=True)


def fitting(
    rows: Array, form: Form | np.dtype[Any], gaps: Collection[int] = ()
) -> Array:
    """Return rows with the nearest values of a form; columns in ``gaps`` get NaN."""
    rows = rows.astype(np.float64)
    if isinstance(form, np.dtype):
        form = Form("", (form,) * rows.shape[1])
    pairs = zip(form.types, form.numbers, strict=True)
    for column, (dtype, number) in enumerate(pairs):
        if number is None:
            continue
        values = rows[:, column]
        missing = np.isnan(values)
        if number.kind == "f":
            largest = float(np.finfo(number).max)
            values = np.clip(values, -largest, largest).astype(number)
        elif number.kind == "b":
            values = values > 0
        else:
            ends = np.iinfo(number)
            most = 2.0**62 if is_date(dtype) else min(float(ends.max), 2.0**31)
            values = np.rint(np.clip(values, max(float(ends.min), -most), most))
        rows[:, column] = values
        extended = form.kind == "pandas" and not isinstance(dtype, np.dtype)
        if column in gaps:
            rows[::7, column] = np.nan
        elif extended or number.kind != "f":
            rows[missing, column] = 0
    return rows


def as_form(frame: Any, form: Form, gaps: Collection[int], decimals: bool) -> Any:
    tables = form.kind in ("polars", "pyarrow")
    columns = {}
    for column, (name, dtype) in enumerate(zip(frame.columns, form.types, strict=True)):
        values, gap = frame[name], column in gaps
        if tables:
            columns[str(name)] = _column(form.kind, values.to_numpy(object), dtype, gap)
        elif dtype is OBJECT:
            frame[name] = objects_of(values.to_numpy(), gap, decimals)
        elif dtype is not None:
            values = values.astype("Float64") if gap else values
            values = values.astype(np.int64) if is_date(dtype) else values
            with np.errstate(all="ignore"):
                frame[name] = values.astype(dtype)
    if form.kind in ("array", "list"):
        rows = frame.to_numpy(object)
        return rows if form.kind == "array" else rows.tolist()
    if form.kind == "polars":
        import polars

        return polars.DataFrame(columns)
    if form.kind == "pyarrow":
        import pyarrow

        return pyarrow.table(columns)
    return frame


def _column(kind: str, values: Any, dtype: Any, gap: bool) -> Any:
    number = None if dtype is None else number_of(dtype)
    missing = [(gap or number is None) and v != v for v in values]
    if number is not None and number.kind == "f":
        values = values.astype(number)  # NaN is a number of floats
    elif number is not None:
        values = [number.type(0 if v != v else v).item() for v in values]
    objects = [None if out else v for v, out in zip(values, missing, strict=True)]
    texts = dtype is not None and number is None
    if kind == "polars":
        import polars

        column = polars.Series(objects, dtype=polars.String if texts else dtype)
        return column.cast(dtype, strict=False) if texts else column
    return arrow_column(objects, dtype)


def arrow_column(values: list[Any], dtype: Any) -> Any:
    import pyarrow as pa

    if not hasattr(dtype, "index_type"):
        return pa.array(values, dtype)
    # in no order of readers that take places for names; a set's is by chance
    listed = sorted({*values} - {None}, reverse=True)
    place = {value: i for i, value in enumerate(listed)}
    codes, known = [*map(place.get, values)], pa.array(listed, dtype.value_type)
    codes = pa.array(codes, dtype.index_type)
    return pa.DictionaryArray.from_arrays(codes, known, ordered=dtype.ordered)


def same_tests(forest: Forest, other: Forest, dtypes: Sequence[np.dtype[Any]]) -> bool:
    mine, others = _tests_of(forest, dtypes), _tests_of(other, dtypes)
    return len(mine) == len(others) and all(map(np.array_equal, mine, others))


def _tests_of(forest: Forest, dtypes: Sequence[np.dtype[Any]]) -> list[Array]:
    inner = forest.predicate >= 0
    tests = forest.predicate[inner]
    comparison, feature = forest.comparison[tests], forest.feature[tests]
    # whole numbers and booleans are never missing
    gaps = np.array([column_dtype.kind == "f" for column_dtype in dtypes])[feature]
    missing = [np.where(gaps, forest.missing[tests], 0)]
    missing += [np.where(gaps, forest.missing_left[tests], 0)]
    sets = comparison >= Comparison.IN
    ends = np.where(sets, np.stack([comparison, tests]), 0.0)
    for dtype in {*dtypes}:
        of_dtype = [i for i, column_dtype in enumerate(dtypes) if column_dtype == dtype]
        mask = np.isin(feature, of_dtype) & ~sets
        ends[:, mask] = _canonical(forest, tests[mask], dtype)
    tables: list[Array] = []
    if sets.any():
        tables = [forest.category_offset, forest.category_words]
    return [forest.left, forest.right, inner, feature, *missing, sets, ends, *tables]


def _canonical(forest: Forest, tests: Array, dtype: np.dtype[Any]) -> Array:
    """Return comparisons and thresholds, equal for tests that agree on a dtype."""
    comparison, threshold = forest.comparison[tests], forest.threshold[tests]
    equal = (comparison == Comparison.EQ) | (comparison == Comparison.NE)
    if dtype.kind == "f":
        threshold = threshold.astype(np.float64)
        rounded = round_thresholds(threshold[~equal], comparison[~equal], dtype)
        threshold[~equal] = rounded
        return np.stack([comparison, threshold])
    low, high = 0, 1
    if dtype.kind != "b":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    # the first number with another answer than the lowest, if any
    after = (comparison == Comparison.LE) | (comparison == Comparison.GT)
    end = np.where(after, np.floor(threshold) + 1, np.ceil(threshold))
    end = np.clip(end, float(low), float(high) + 1)
    left = (comparison == Comparison.LE) | (comparison == Comparison.LT)
    left ^= end == low
    end = np.where(end == low, float(high) + 1, end)
    return np.where(equal, [comparison, threshold], [left + 6.0, end])


def contains(bounds: Bounds, other: Bounds, dtypes: Sequence[np.dtype[Any]]) -> bool:
    ends = [np.finfo(d).max if d.kind == "f" else 2.0**64 for d in dtypes]
    largest = np.array(ends, float)
    low, high = np.maximum(bounds.low, -largest), np.minimum(bounds.high, largest)
    fine = (other.low <= low) & (other.high >= high) & (other.nan | ~bounds.nan)
    return bool(fine.all())
