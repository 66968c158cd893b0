"""Rows to measure and check with: the caller's, and rows around the thresholds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from skforge.compiler.forest.arrays import Array, Missing
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.reference import (
    differing_rows,
    draw_rows,
    reference_leaves,
    reference_raw,
    sum_limits,
)
from skforge.compiler.forest.rows import prepare_rows

#: Distinct rows over all calls, so that branch predictors cannot memorise them, and the
#: maximum number of batches of one size.
DISTINCT_ROWS, MOST_BATCHES = 1024, 256

#: Maximum rows compared with the reference, and maximum row-tree pairs: the NumPy
#: reference handles about 10 million pairs a second.
CHECKED_ROWS, CHECKED_WALKS = 256, 1_000_000

#: Maximum values drawn for batches, and for rows to check, at about 30 ns each (rows
#: repeat if more are needed); and the minimum number of rows drawn.
DRAWN_VALUES, CHECKED_VALUES, FEWEST_ROWS = 2_000_000, 500_000, 16

#: Maximum bytes of all batches of one size.
BATCH_BYTES = 256 << 20


class SampleRows:
    """Batches of the caller's rows, filled up with rows drawn around the thresholds.

    All rows are drawn if the caller gives none, or only missing values. ``note`` says
    why rows were drawn; it is empty if none were.
    """

    def __init__(
        self, forest: Forest, rows: Any, seed: int = 0, reduction: str = "exact"
    ) -> None:
        self._forest, self._seed, self._reduction = forest, seed, reduction
        self.note = ""
        given = None if rows is None else prepare_rows(forest, rows)
        if given is not None and len(given) and bool(np.isnan(given).all()):
            self.note = (
                "all values of the sample are missing; rows were drawn at random "
                "instead"
            )
            given = None
        if given is None:
            empty = np.empty((0, forest.n_features), forest.input_dtype)
            given, self.note = (
                empty,
                self.note or "no sample was given; rows were drawn at random",
            )
        self._rows = given
        self._checked: tuple[Array, Array, Array] | None = None
        #: What is wrong with a code's predictions, by digest and batch size.
        self._wrong: dict[tuple[str, int], str] = {}

    def take(self, n: int) -> Array:
        """Return ``n`` rows, the caller's first."""
        if len(self._rows) < n:
            if not self.note:
                self.note = (
                    f"the sample has {len(self._rows)} rows; the other rows were "
                    "drawn around the model's thresholds"
                )
            missing = n - len(self._rows)
            missing = min(missing, max(FEWEST_ROWS, self._affordable(DRAWN_VALUES)))
            drawn = draw_rows(self._forest, missing, self._seed)
            drawn = prepare_rows(self._forest, drawn)
            rows = np.concatenate([self._rows, drawn])
            self._rows = rows[np.arange(n) % len(rows)]
        return self._rows[:n]

    def _affordable(self, values: int) -> int:
        return values // max(1, self._forest.n_features)

    def batches(self, n_rows: int) -> list[Array]:
        """Return distinct, contiguous batches of ``n_rows`` rows."""
        row_bytes = max(1, self._forest.n_features * self._forest.input_dtype.itemsize)
        fit = max(1, BATCH_BYTES // (n_rows * row_bytes))
        count = max(1, min(DISTINCT_ROWS // n_rows, MOST_BATCHES, fit))
        rows = np.ascontiguousarray(self.take(count * n_rows))
        return [rows[i * n_rows : (i + 1) * n_rows] for i in range(count)]

    def wrong(self, predict: Callable[[Array], Array], digest: str, n_rows: int) -> str:
        """Describe the first row that code predicts wrongly; empty if all are right.

        Each code is compared with the reference once for each batch size.
        """
        key = digest, n_rows
        if key not in self._wrong:
            self._wrong[key] = self._compare(predict, n_rows)
        return self._wrong[key]

    def _compare(self, predict: Callable[[Array], Array], n_rows: int) -> str:
        if self._checked is None:
            self._checked = self._reference()
        rows, expected, limit = self._checked
        order = np.arange(max(n_rows, len(rows))) % len(rows)
        for first in range(0, len(order), n_rows):
            at = order[first : first + n_rows]  # the last may be shorter: remainders
            found = predict(np.ascontiguousarray(rows[at]))
            bad = differing_rows(found, expected[at], limit[at])
            if len(bad):
                row = bad[0]
                return (
                    f"in a batch of {len(at)}, row {row} gives {found[row].tolist()}, "
                    f"expected {expected[at[row]].tolist()}"
                )
        return ""

    def _reference(self) -> tuple[Array, Array, Array]:
        """Return rows, their scores, and each row's largest allowed error.

        Up to half of the rows are the caller's; the others lie on and around the
        thresholds. The error is 0 in exact mode, which demands equal bits.
        """
        forest = self._forest
        most = CHECKED_WALKS // max(1, forest.n_trees)
        most = min(CHECKED_ROWS, most, self._affordable(CHECKED_VALUES))
        half = max(FEWEST_ROWS, most) // 2
        rows = self._rows[:half]
        missing = 0.02 if bool((forest.missing != Missing.NEVER).any()) else 0.0
        drawn = draw_rows(forest, 2 * half - len(rows), self._seed + 1, missing)
        rows = np.concatenate([rows, prepare_rows(forest, drawn)])
        limit = np.zeros(len(rows))
        if self._reduction != "exact":
            limit = sum_limits(forest, reference_leaves(forest, rows))
        return np.ascontiguousarray(rows), reference_raw(forest, rows), limit
