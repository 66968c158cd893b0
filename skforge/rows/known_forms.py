"""Reads further rows of a form whose first ones were read: only values are checked.

Names, dtypes and places of columns belong to the form, and whoever recognises it has
compared them; see :mod:`skforge.prediction.forms_met`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np

from skforge._typing import Array
from skforge.rows import frames, pandas_blocks

#: Returns rows for an entry; None for those that need every check.
ReadForm: TypeAlias = Callable[[Any], "Array | None"]
#: Tells of rows, as given and as read, whether the model must read them all the same.
PassedOn: TypeAlias = Callable[[Any, Array], bool]

_FLOATS = np.dtype(np.float32), np.dtype(np.float64)


def of_list(dtype: Any, X: Any) -> Array | None:
    try:
        rows = np.asarray(X)
    except ValueError:
        return None
    if rows.dtype != np.float64 or rows.ndim != 2:
        return None
    # the entry rounds few rows, and declines many
    return rows if len(rows) == 1 else _cast(rows, dtype)


def of_pandas(
    X: Any, writes: list[pandas_blocks.WriteBlock], dtype: Any, width: int, most: int
) -> ReadForm:
    """Return what reads frames with such blocks, of up to ``most`` values."""
    if pandas_blocks.are_rows(writes, X):
        return partial(_one_block, dtype, most)
    return partial(_blocks, dtype, width, writes, most)


def _one_block(dtype: Any, most: int, X: Any) -> Array | None:
    rows: Array = X._mgr.blocks[0].values.T
    if len(rows) == 1:  # the entry rounds it
        return rows
    return _cast(rows, dtype) if 0 < rows.size <= most else None


def _cast(values: Array, dtype: Any) -> Array | None:
    with np.errstate(all="ignore", over="raise"):
        try:
            return np.ascontiguousarray(values, dtype)
        except FloatingPointError:
            return None


def _blocks(
    dtype: Any, width: int, writes: list[pandas_blocks.WriteBlock], most: int, X: Any
) -> Array | None:
    shape = len(X._mgr.axes[1]), width
    if not 0 < shape[0] * width <= most:
        return None
    try:
        with np.errstate(all="ignore", over="raise"):
            rows: Array | None = pandas_blocks.rows_of(writes, shape, dtype, X)
            return rows
    except pandas_blocks.DECLINED:
        return None


def of_table(
    values_of: Callable[[Any], Array | None], whole: list[bool], dtype: Any
) -> ReadForm:
    """Return what reads tables; columns that are ``whole`` must fit in float64."""
    check = any(whole)

    def further(X: Any) -> Array | None:
        values = values_of(X)
        if values is None or not len(values) or not frames.is_plain(values.dtype):
            return None
        if check:
            with np.errstate(all="ignore"):  # missing values
                if frames.has_large(values[:, whole]):
                    return None
        one = len(values) == 1 and values.dtype in _FLOATS
        return values if one else _cast(values, dtype)

    return further


def of_source(read: Callable[[Any], Any], most: int, said: str, X: Any) -> ReadForm:
    """Return what reads rows as the source does, unless otherwise warned of."""
    n_rows = _N_ROWS.get(frames.kind_of(X))

    def taken(X: Any) -> Array | None:
        found = None if n_rows is not None and n_rows(X) > most else read(X)
        return None if found is None or found[1] != said else found[0]

    return taken


def without(passed_on: PassedOn, read: ReadForm, X: Any) -> Array | None:
    """Read rows but for those that the model must read."""
    rows = read(X)
    return None if rows is None or passed_on(X, rows) else rows


_N_ROWS: dict[str, Callable[[Any], int]] = {
    "pandas": lambda X: len(X._mgr.axes[1]),
    "polars": attrgetter("height"),
}
