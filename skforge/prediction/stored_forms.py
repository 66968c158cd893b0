"""The forms in which services have rows, made of rows in the form that ``fit`` saw."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from skforge.prediction.door import part_of
from skforge.prediction.made_rows import Made
from skforge.rows.frames import is_category, is_pandas

Change = Callable[[Any], Any]

#: Forms whose values are rounded.
NARROWER = ("float32 columns",)
#: Forms that are tried if another package is imported.
IF_IMPORTED = ("Arrow columns", "Arrow dictionaries", "pyarrow batch", "polars frame")
#: Columns that get another dtype: those of a dtype are read by the same code.
_COLUMNS = 4


def changed(change: Change, batch: Made) -> list[Made]:
    """Return rows in another form; none if some of their values have no such form."""
    with suppress(Exception), np.errstate(all="ignore"):
        rows = change(batch.rows)
        if not isinstance(rows, Mapping):
            return [Made(rows, batch.ends)]
        # columns have no slices
        parts = pairwise((0, *(batch.ends or (None,))))
        return [Made(change(part_of(batch.rows, *part)), ()) for part in parts]
    return []


# ------------------------------------------------------------ of most services


def main_forms(predictor: Any, seen: Any) -> Iterator[tuple[str, Change]]:
    yield type(seen).__name__, lambda rows: rows
    if is_pandas(seen):
        yield "mappings", lambda frame: _with_none(frame).to_dict("records")
        yield "columns", _columns
        if all(map(_is_number, seen.dtypes)):
            yield "float32 array", lambda frame: frame.to_numpy(np.float32)
            yield "float64 array", lambda frame: frame.to_numpy(np.float64)
        if "pyarrow" in sys.modules and _in_arrow(predictor, seen):
            yield "pyarrow table", _table
    elif isinstance(seen, np.ndarray) and seen.ndim == 2:
        yield "list", _lists
        if seen.dtype.kind == "f":
            yield "float32 array", lambda rows: rows.astype(np.float32)
            yield "float64 array", lambda rows: rows.astype(np.float64)
        names = predictor.forest.column_names
        if names is not None and len(names) == seen.shape[1]:
            yield "mappings", partial(_mappings, list(names))


def _lists(rows: Any) -> list[list[Any]]:
    """Return lists of Python's values, in which some missing ones are None."""
    gaps = rows != rows
    gaps[::2] = False
    values = rows.astype(object) if gaps.any() else rows
    if gaps.any():
        values[gaps] = None
    lists: list[list[Any]] = values.tolist()
    return lists


def _mappings(names: list[Any], rows: Any) -> list[dict[Any, Any]]:
    return [dict(zip(names, row, strict=True)) for row in _lists(rows)]


def _with_none(frame: Any) -> Any:
    """Return a frame, or a column, of objects."""
    return frame.astype(object).where(frame.notna(), None)


def _columns(frame: Any) -> dict[str, list[Any]]:
    plain = _with_none(frame)
    return {str(name): plain[name].tolist() for name in plain.columns}


def _arrays(frame: Any) -> dict[str, Any]:
    return {str(name): column.to_numpy() for name, column in frame.items()}


def _table(frame: Any) -> Any:
    # the index of sampled rows would be one column more
    return sys.modules["pyarrow"].Table.from_pandas(frame, preserve_index=False)


def _in_arrow(predictor: Any, frame: Any) -> bool:
    # LightGBM prints what it thinks of others to the terminal
    return predictor.forest.source != "lightgbm" or not any(
        map(is_category, frame.dtypes)
    )


# ------------------------------------------------------------ others


def other_forms(predictor: Any, seen: Any) -> Iterator[tuple[str, Change]]:
    """Yield forms of frames; containers alone if training had arrays.

    Their names are some that the model may not know.
    """
    if "pandas" not in sys.modules:
        return
    import pandas as pd

    if is_pandas(seen):
        yield from _of_dtypes(predictor, seen)
        yield from _of_containers(predictor, seen)
    if not isinstance(seen, np.ndarray) or seen.ndim != 2:
        return
    names = predictor.forest.column_names
    if names is None or len(names) != seen.shape[1]:
        names = [f"c{i}" for i in range(seen.shape[1])]
    named = partial(pd.DataFrame, columns=list(names))
    yield "DataFrame", named
    for form, change in _of_containers(predictor, named(seen)):
        yield form, partial(_in_turn, named, change)


def _in_turn(first: Change, then: Change, rows: Any) -> Any:
    return then(first(rows))


def _of_dtypes(predictor: Any, first: Any) -> Iterator[tuple[str, Change]]:
    places = [i for i, dtype in enumerate(first.dtypes) if _is_number(dtype)]
    tested = np.bincount(predictor.forest.feature, minlength=len(first.columns))
    some = sorted(places, key=lambda i: -tested[i])[:_COLUMNS]
    yield "columns of arrays", _arrays
    yield "objects", _by_column(some, _with_none)
    yield "float32 columns", _by_column(some, _narrow)
    yield "nullable columns", _by_column(some, _nullable)
    yield "sparse columns", _by_column(places, _filled)
    if "pyarrow" in sys.modules:
        yield "Arrow columns", _by_column(some, _of_arrow)
        yield "Arrow dictionaries", _by_column(some, _dictionary)


def _of_containers(predictor: Any, first: Any) -> Iterator[tuple[str, Change]]:
    numbers = all(map(_is_number, first.dtypes))
    if numbers and "scipy.sparse" in sys.modules:
        sparse = sys.modules["scipy.sparse"]
        yield "csr_matrix", lambda frame: sparse.csr_matrix(frame.to_numpy(np.float64))
        yield "csc_matrix", lambda frame: sparse.csc_matrix(frame.to_numpy(np.float64))
    if _in_arrow(predictor, first):
        # XGBoost takes texts of digits in batches for numbers
        coded = any(map(is_category, first.dtypes))
        known = not coded or predictor.forest.source != "xgboost"
        if known and "pyarrow" in sys.modules:
            yield "pyarrow batch", lambda frame: _table(frame).to_batches()[0]
        if "polars" in sys.modules:
            yield "polars frame", sys.modules["polars"].from_pandas


def _is_number(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "fiub"


def _by_column(places: list[int], changed: Change) -> Change:
    """Return a change of frames that changes some of their columns."""

    def change(frame: Any) -> Any:
        frame = frame.copy()
        for i in places:
            frame.isetitem(i, changed(frame.iloc[:, i]))
        return frame

    return change


def _narrow(column: Any) -> Any:
    return column.astype(np.float32)


def _nullable(column: Any) -> Any:
    return column.convert_dtypes(convert_floating=True, convert_integer=False)


def _filled(column: Any) -> Any:
    import pandas as pd

    return column.astype(pd.SparseDtype(column.dtype, column.iloc[0]))


def _of_arrow(column: Any) -> Any:
    import pandas as pd
    import pyarrow as pa

    return column.astype(pd.ArrowDtype(pa.from_numpy_dtype(column.dtype)))


def _dictionary(column: Any) -> Any:
    import pandas as pd
    import pyarrow as pa

    values = pa.array(column, from_pandas=True).dictionary_encode()
    return pd.Series(values, column.index, pd.ArrowDtype(values.type))
