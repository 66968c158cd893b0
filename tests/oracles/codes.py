"""The codes of rows by NumPy: the oracle for every compiled search."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skforge.forest.arrays import ZERO_THRESHOLD, Missing
from skforge.forest.bins import CodeTable
from skforge.forest.forest import Forest
from skforge.forest.reference import evaluate_predicates


def encode_rows(
    table: CodeTable, forest: Forest, comparison: str, X: ArrayLike
) -> NDArray[Any]:
    """Return the codes of rows.

    Parameters
    ----------
    table : CodeTable
        Of ``forest``.
    forest : Forest
        Normalised.
    comparison : {"lt", "le"}
        How its thresholds compare.
    X : array of shape (n, n_features)
        Rows in ``forest.input_dtype``.

    Returns
    -------
    ndarray of ``table.dtype``, shape (n, n_columns)
    """
    rows = np.asarray(X, forest.input_dtype)
    codes = np.zeros((len(rows), table.n_columns), table.dtype)
    side: Any = "right" if comparison == "lt" else "left"
    for c in range(table.n_columns):
        x = rows[:, table.feature[c]]
        part = slice(table.offset[c], table.offset[c + 1])
        if not table.ordered[c]:
            test = np.full(len(x), table.first[c])
            codes[:, c] = ~evaluate_predicates(forest, test, x)
            continue
        missing = np.isnan(x)
        if table.missing[c] == Missing.NEVER:
            x, missing = np.where(missing, 0, x), np.zeros_like(missing)
        elif table.missing[c] == Missing.ZERO:
            missing = missing | (np.abs(x) <= ZERO_THRESHOLD)
        count = int(table.counts[c])
        passed = np.searchsorted(table.thresholds[part], x, side)
        gone = 0 if table.missing_left[c] else count
        codes[:, c] = np.where(missing, gone, passed)
    return codes
