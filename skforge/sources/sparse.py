"""Sparse rows: entries of one position, and sparse columns of frames."""

from __future__ import annotations

from typing import Any

import numpy as np


def most_entries(X: Any) -> int:
    """Return the largest number of entries at one position of a CSR matrix.

    The matrix's own flags may be out of date, so entries are counted again.
    """
    fresh = type(X)((X.data, X.indices, X.indptr), shape=X.shape)
    if fresh.has_canonical_format:
        return min(1, int(fresh.nnz))
    at = np.repeat(np.arange(X.shape[0], dtype=np.int64), np.diff(X.indptr))
    _, counts = np.unique(at * X.shape[1] + X.indices, return_counts=True)
    return int(counts.max(initial=0))


def dense_columns(X: Any) -> Any:
    """Return a pandas frame with its sparse columns made dense."""
    from pandas import DataFrame, SparseDtype

    sparse = [i for i, one in enumerate(X.dtypes) if isinstance(one, SparseDtype)]
    if not sparse:
        return X
    columns = {i: X.iloc[:, i] for i in range(X.shape[1])}
    columns.update({i: columns[i].sparse.to_dense() for i in sparse})
    return DataFrame(columns).set_axis(X.columns, axis=1)
