"""Which columns of rows a forest reads."""

from __future__ import annotations

from typing import Any

from skforge.forest.forest import Forest


def read_columns(forest: Forest, rows: Any) -> Any:
    width = forest.n_features
    wide = forest.wider_rows and rows.ndim == 2 and rows.shape[1] > width
    return rows[:, :width] if wide else rows
