"""Says which rows are left to the model itself, and which conversion mends that."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import _num_samples

from skforge.exceptions import with_article
from skforge.prediction.predictor import Predictor
from skforge.prediction.verification import sampled, take_rows

#: How a column of each library is converted to float64.
_CASTS = {
    "pandas": '.astype("float64")',
    "polars": ".cast(float)",
    "pyarrow": '.cast("float64")',
}
#: Columns that are tried one by one, and named.
_TRIED, _NAMED = 16, 3


def why_left(predictor: Predictor, X: Any) -> str:
    """Return why the model itself answers rows like some of ``X``, and the mend.

    Return "" if compiled code answers. ``predictor`` has counted the calls with which
    ``fit`` compared its answers to ``X``.
    """
    counts = predictor.counters.read()
    compiled = sum(counts[route]["calls"] for route in ("entry", "kernel"))
    if compiled or not _num_samples(X):
        return ""
    at = sampled(X)
    X = take_rows(X, at)
    if not _is_left(predictor, X):
        return ""
    places = np.arange(len(at))
    while len(places) > 1:  # a row that is left by itself, if one is
        half = places[: len(places) // 2]
        if not _is_left(predictor, take_rows(X, half)):
            half = places[len(places) // 2 :]
            if not _is_left(predictor, take_rows(X, half)):
                break
        places = half
    row = take_rows(X, places)
    which = "Rows like those given to fit"
    if places[0]:
        which = f"Batches with rows like row {at[places[0]]} of X"
    model = type(predictor.source.model).__name__
    said = f"{which} are answered by the {model} itself, at its speed"
    return f"{said}{_mend(predictor, row)}"


def who_answers(state: Mapping[str, Any]) -> str:
    """Return who answers rows like those of ``fit``; "" for a loaded object."""
    left, split = state.get("_left"), state.get("_split")
    if left is not None and not left:
        first = 0 if split is None else split.start or 0
        steps = f" after {first} step{'s'[: first > 1]} in their library" * bool(first)
        return f"Rows like those given to fit are answered by compiled code{steps}."
    return left or ""


def _answer(predictor: Predictor, X: Any) -> tuple[Any, bool]:
    """Return predictions, and whether the model made them; None after an error."""
    predictor.counters.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = predictor.predict(X)
        except Exception:  # noqa: BLE001 - of any library
            return None, False
    return found, predictor.counters.read()["library"]["calls"] > 0


def _is_left(predictor: Predictor, X: Any) -> bool:
    return _answer(predictor, X)[1]


def _mend(predictor: Predictor, row: Any) -> str:
    """Return which columns are to blame, and the conversion to compiled code."""
    expected, _ = _answer(predictor, row)

    def mends(other: Any) -> bool:
        found, left = _answer(predictor, other)
        return found is not None and not left and np.array_equal(found, expected)

    library = type(row).__module__.partition(".")[0]
    if library in _CASTS and hasattr(row, "columns"):
        names = [*(row.schema.names if library == "pyarrow" else row.columns)]
        blamed = _blamed(row, names, mends)
        if blamed:
            return _told(names, blamed, _CASTS[library])
    for call, made in ("X.toarray()", "toarray"), ('numpy.asarray(X, "float64")', ""):
        try:
            other = getattr(row, made)() if made else np.asarray(row, np.float64)
        except (AttributeError, TypeError, ValueError):
            continue
        if mends(other):
            array = isinstance(row, np.ndarray)
            kind = "an array" if array else with_article(type(row).__name__)
            of = f" of {row.dtype}" if hasattr(row, "dtype") else ""
            return f": X is {kind}{of}. Convert it with {call}."
    return "; skforge found no form of them that its kernels read."


def _blamed(
    row: Any, names: Sequence[Any], mends: Callable[[Any], bool]
) -> dict[int, str]:
    """Return the dtypes of the fewest columns whose conversion mends a row."""
    columns: dict[int, Any] = {}
    dtypes: dict[int, str] = {}
    for place, name in enumerate(names):
        column = row.iloc[:, place] if hasattr(row, "iloc") else row[name]
        dtype = str(column.type if hasattr(column, "type") else column.dtype)
        if dtype.lower() in ("float64", "double"):
            continue
        try:
            columns[place] = _cast(column)
        except Exception:  # noqa: BLE001 - texts, of any library
            continue
        objects = dtype == "object" and hasattr(column, "iloc")
        of = f" of {type(column.iloc[0]).__name__}" if objects else ""
        dtypes[place] = f"{dtype}{of}"

    def mended(places: Sequence[int]) -> bool:
        other = row.copy() if hasattr(row, "iloc") else row
        for place in places:
            other = _with_column(other, place, names[place], columns[place])
        return mends(other)

    places = [*columns]
    if not mended(places):
        return {}
    groups = [[i for i in places if dtypes[i] == one] for one in {*dtypes.values()}]
    for group in groups:
        places = _fewer(places, group, mended)
    if len(places) <= _TRIED:
        for place in [*places]:
            places = _fewer(places, [place], mended)
    return {place: dtypes[place] for place in places}


def _fewer(
    places: list[int], group: list[int], mended: Callable[[Sequence[int]], bool]
) -> list[int]:
    """Return the places without a group, if these are enough."""
    rest = [i for i in places if i not in group]
    return rest if rest and mended(rest) else places


def _cast(column: Any) -> Any:
    if hasattr(column, "astype"):
        return column.astype("float64")
    return column.cast("float64" if hasattr(column, "type") else float)


def _with_column(X: Any, place: int, name: Any, column: Any) -> Any:
    if hasattr(X, "isetitem"):
        X.isetitem(place, column)
        return X
    if hasattr(X, "set_column"):
        return X.set_column(place, name, column)
    return X.with_columns(column)


def _told(names: Sequence[Any], blamed: dict[int, str], cast: str) -> str:
    """Return the columns with their dtypes, and how to convert them."""
    listed = [f"{names[i]!r} is {dtype}" for i, dtype in blamed.items()]
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    one = len(listed) == 1
    what, each = ("column", "it with") if one else ("columns", "each as in")
    how = f"Convert {each} X[{names[next(iter(blamed))]!r}]{cast}."
    return f": {what} {', '.join(listed[:_NAMED])}{more}. {how}"
