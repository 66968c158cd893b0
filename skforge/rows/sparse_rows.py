"""Sparse rows as dense blocks, filled with what an absent entry means to the source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array
from skforge.exceptions import InvalidInputError
from skforge.forest import mistakes
from skforge.forest.arrays import ZERO_THRESHOLD
from skforge.forest.forest import Forest

#: Bytes of a dense block. The C library keeps less than 32 MiB for the next block; it
#: returns larger ones to the system, and each page faults again.
DENSE_BYTES = 8 << 20


def is_sparse(X: Any) -> bool:
    return hasattr(type(X), "tocsr")  # a frame itself would look for such a column


def value_of_absent(forest: Forest) -> float:
    return float("nan") if forest.source == "xgboost" else 0.0


def checked(forest: Forest, X: Any) -> Any:
    """Return sparse rows as CSR, or raise for those that no library reads surely."""
    by_column = X.format == "csc"
    X = X.tocsr()
    wide = forest.wider_rows and X.shape[1] > forest.n_columns
    X = X[:, : forest.n_columns] if wide else X
    mistakes.check_shape(X.shape, forest.n_columns)
    if most_entries(X) > 1:  # libraries differ in which duplicate they use
        raise InvalidInputError(
            "the sparse rows have several entries for the same place; add them up with "
            "X.sum_duplicates(), or keep only one of them."
        )
    floats = X.dtype in (np.float32, np.float64)
    if forest.source == "lightgbm" and not floats:
        raise InvalidInputError(
            f"LightGBM takes sparse rows of float32 or float64. Got {X.dtype} instead; "
            "use X.astype('float64')."
        )
    if forest.source == "lightgbm" and not by_column and -ZERO_THRESHOLD in X.data:
        raise InvalidInputError(
            f"the sparse rows hold {-ZERO_THRESHOLD!r}, which is 0 to LightGBM unless "
            "rows are sparse, by row; write 0 in its place, or a smaller number."
        )
    return X


def blocks_of(forest: Forest, X: Any) -> Iterator[Array]:
    """Yield sparse rows as dense blocks of the forest's dtype."""
    X = checked(forest, X)
    return dense_blocks(X, value_of_absent(forest), forest.input_dtype)


def most_entries(X: Any) -> int:
    """Count the entries of one position anew: the matrix's flags may be out of date."""
    if len(X.data) == len(X.indices) and _ascends(X.indices, X.indptr):
        return min(1, len(X.indices))
    fresh = type(X)((X.data, X.indices, X.indptr), shape=X.shape)  # checks the format
    rows = np.repeat(np.arange(X.shape[0], dtype=np.int64), np.diff(fresh.indptr))
    _, counts = np.unique(rows * X.shape[1] + X.indices, return_counts=True)
    return int(counts.max(initial=0))


def _ascends(indices: Array, indptr: Array) -> bool:
    whole = len(indptr) and not indptr[0] and indptr[-1] == len(indices)
    if not whole or (indptr[1:] < indptr[:-1]).any():
        return False
    rises = indices[1:] > indices[:-1]
    starts = indptr[(indptr > 0) & (indptr < len(indices))]
    rises[starts - 1] = True
    return bool(rises.all())


def dense_blocks(
    X: Any, fill: float, dtype: np.dtype[Any], columns: NDArray[np.int64] | None = None
) -> Iterator[Array]:
    """Yield sparse rows as dense blocks of bounded size, absent entries filled.

    Of duplicate entries, the last counts. ``columns`` gives the block's column of each
    column of X, -1 for those left out. Raise ``InvalidInputError`` for an entry in no
    column, which libraries read from or write to anyway.
    """
    X = X.tocsr()
    n_rows, n_features = X.shape
    if len(X.indices) and not 0 <= X.indices.min() <= X.indices.max() < n_features:
        raise InvalidInputError(
            f"the sparse rows are damaged: an entry lies in none of their {n_features} "
            "columns; see their check_format(full_check=True)."
        )
    width = n_features if columns is None else int(columns.max(initial=-1)) + 1
    step = max(1, DENSE_BYTES // (max(1, width) * dtype.itemsize))
    for first in range(0, max(1, n_rows), step):  # of 0 rows, an empty one
        starts = X.indptr[first : first + step + 1]
        some = slice(starts[0], starts[-1])
        to, data, n = X.indices[some], X.data[some], len(starts) - 1
        at = np.repeat(np.arange(n), np.diff(starts))
        if columns is not None:
            to = columns.take(to)
            read = np.flatnonzero(to >= 0)
            at, to, data = at.take(read), to.take(read), data.take(read)
        rows = np.full((n, width), fill, dtype)
        with np.errstate(all="ignore"):
            rows[at, to] = data
        yield rows
