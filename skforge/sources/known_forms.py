"""Reads further rows of a form whose first ones were read: only values are checked.

Names, dtypes and places of columns belong to the form, and whoever recognises it has
compared them; see :mod:`skforge.prediction.forms_met`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from skforge._typing import Array
from skforge.compiler.forest import frames

#: Returns rows for an entry; None for those that need every check.
ReadForm: TypeAlias = Callable[[Any], "Array | None"]

_FLOATS = np.dtype(np.float32), np.dtype(np.float64)


def of_list(X: Any) -> Array | None:
    try:
        rows = np.asarray(X)
    except ValueError:
        return None
    return rows if rows.dtype == np.float64 and rows.ndim == 2 else None


def of_pandas(X: Any, dtype: Any, width: int, most: int) -> ReadForm | None:
    """Return what reads frames of numbers, of up to ``most`` values."""
    blocks = X._mgr.blocks
    numbers = [_number_of(block.values) for block in blocks]
    if any(number is None for number in numbers):  # float64 == None
        return None
    if len(blocks) == 1 and blocks[0].values.dtype in _FLOATS:
        return partial(_one_block, dtype, most)
    whole = [d.itemsize == 8 and d.kind in "iu" for d in numbers]
    gaps = [hasattr(block.values, "_mask") for block in blocks]
    places = [block.mgr_locs.indexer for block in blocks]
    plan = [*zip(places, whole, gaps, strict=True)]
    return partial(_blocks, dtype, width, plan, most)


def _number_of(values: Any) -> Any:
    """Return the dtype of an array's numbers, or of pandas' nullable ones, or None."""
    if hasattr(values, "_mask"):
        values = values._data
    dtype = getattr(values, "dtype", None)
    return dtype if frames.is_plain(dtype) else None


def _one_block(dtype: Any, most: int, X: Any) -> Array | None:
    rows: Array = X._mgr.blocks[0].values.T
    if len(rows) == 1:  # the entry rounds it, and declines what is too large
        return rows
    return _cast(rows, dtype) if 0 < rows.size <= most else None


def _cast(values: Array, dtype: Any) -> Array | None:
    with np.errstate(all="ignore", over="raise"):
        try:
            return np.ascontiguousarray(values, dtype)
        except FloatingPointError:
            return None


def _blocks(
    dtype: Any, width: int, plan: list[tuple[Any, bool, bool]], most: int, X: Any
) -> Array | None:
    manager = X._mgr
    shape = len(manager.axes[1]), width
    if not 0 < shape[0] * width <= most:
        return None
    rows = np.empty(shape, dtype)
    try:
        with np.errstate(all="ignore", over="raise"):
            for block, (places, whole, gaps) in zip(manager.blocks, plan, strict=True):
                values = block.values
                numbers = values._data[None] if gaps else values
                if whole and frames.has_large(numbers):
                    return None
                rows[:, places] = numbers.T
                if gaps and values._mask.any():
                    rows[values._mask, places] = np.nan
    except FloatingPointError:
        return None
    return rows


def of_table(
    values_of: Callable[[Any], Array | None], whole: list[bool], dtype: Any
) -> ReadForm:
    """Return what reads tables; columns that are ``whole`` must fit in float64."""
    check = any(whole)

    def read(X: Any) -> Array | None:
        values = values_of(X)
        if values is None or not len(values) or not frames.is_plain(values.dtype):
            return None
        if check:
            with np.errstate(all="ignore"):  # missing values
                if frames.has_large(values[:, whole]):
                    return None
        one = len(values) == 1 and values.dtype in _FLOATS
        return values if one else _cast(values, dtype)

    return read


def of_source(read: Callable[[Any], Any], most: int, said: str, X: Any) -> Array | None:
    """Read rows as the source does, unless they are large or otherwise warned of."""
    manager = getattr(X, "_mgr", None)
    n = len(manager.axes[1]) if manager is not None else getattr(X, "height", 0)
    found = read(X) if n <= most else None
    return None if found is None or found[1] != said else found[0]
