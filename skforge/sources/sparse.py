"""What sparse rows hold, whatever they have noted of themselves."""

from __future__ import annotations

from typing import Any

import numpy as np


def most_entries(X: Any) -> int:
    """Return how many entries a place has at most; matrices may hold several.

    Parameters
    ----------
    X : CSR matrix or array of shape (n_rows, n_features)
        What it has noted of its own order and entries may be out of date.

    Returns
    -------
    int
    """
    fresh = type(X)((X.data, X.indices, X.indptr), shape=X.shape)
    if fresh.has_canonical_format:
        return min(1, int(fresh.nnz))
    at = np.repeat(np.arange(X.shape[0], dtype=np.int64), np.diff(X.indptr))
    _, counts = np.unique(at * X.shape[1] + X.indices, return_counts=True)
    return int(counts.max(initial=0))
