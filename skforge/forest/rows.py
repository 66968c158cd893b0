"""Which columns of rows a forest reads, and which numbers columns hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge.forest.forest import Forest


def read_columns(forest: Forest, rows: Any) -> Any:
    width = forest.n_features
    wide = forest.wider_rows and rows.ndim == 2 and rows.shape[1] > width
    return rows[:, :width] if wide else rows


def whole_range(bits: int, dtype: Any) -> tuple[int, int]:
    """Return the least and the greatest whole number that is read of a column."""
    if bits == 1:
        return 0, 1
    if dtype == np.float32:  # onnxruntime rounds to it, as we do
        return -(1 << bits - 1), 1 << bits - 1
    most = 1 << min(bits - 1, 53)
    least = -most if bits < 54 else 1 - most  # 2**53 may be another, rounded
    return least, most - 1
