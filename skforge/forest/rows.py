"""Which columns of rows a forest reads, and which numbers columns hold."""

from __future__ import annotations

from typing import Any

from skforge.forest.forest import Forest


def read_columns(forest: Forest, rows: Any) -> Any:
    width = forest.n_features
    wide = forest.wider_rows and rows.ndim == 2 and rows.shape[1] > width
    return rows[:, :width] if wide else rows


def whole_range(bits: int) -> tuple[int, int]:
    """Return the least and the greatest whole number that is read of a column."""
    if bits == 1:
        return 0, 1
    most = 1 << min(bits - 1, 52)  # float64 rounds larger ones
    return -most, most
