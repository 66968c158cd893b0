"""Arrays as kernels read them: two-dimensional, one dtype, features contiguous."""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.forest import mistakes
from skforge.forest.forest import Forest
from skforge.forest.rows import read_columns


def is_ready(forest: Forest, X: Any) -> bool:
    """Tell whether kernels can read an array as it is."""
    return (
        type(X) is np.ndarray
        and X.dtype == forest._dtypes[0]
        and X.ndim == 2
        and X.shape[1] == forest.n_features
        and X.flags.c_contiguous
        and X.flags.aligned
        and isnan(forest.missing_value)
    )


def forest_rows(forest: Forest, rows: Array, given: Any = None) -> Array:
    """Return an array of numbers as kernels read it; errors speak of what was given."""
    if is_ready(forest, rows):
        return rows
    rows = read_columns(forest, rows)
    mistakes.check_shape(rows.shape, forest.n_features)
    kind = rows.dtype
    if kind.kind not in "fiub":
        rows = mistakes.numbers(rows, rows if given is None else given)
    with np.errstate(all="ignore"):
        # LightGBM accepts two dtypes and casts all others to float32.
        if forest.source == "lightgbm" and kind not in (np.float32, np.float64):
            rows = np.asarray(rows, np.float32)
        rows = np.asarray(rows, forest.input_dtype)
    width = rows.dtype.itemsize
    if rows.strides[1] != width or rows.strides[0] % width or not rows.flags.aligned:
        rows = np.ascontiguousarray(rows)
    if not isnan(forest.missing_value):
        marker = rows.dtype.type(forest.missing_value)
        rows = np.where(rows == marker, rows.dtype.type(np.nan), rows)
    return rows
