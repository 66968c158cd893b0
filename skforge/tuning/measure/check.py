"""Compare a candidate's predictions with the reference before it may win."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.tuning.measure.builds import Build
from skforge.tuning.measure.measure import Runner

Array = NDArray[Any]


class Checker:
    """Compares predictions with the reference, once for each code and batch size.

    ``limit`` holds each row's maximum absolute error; all zero demands equal bits.
    """

    def __init__(self, rows: Array, expected: Array, limit: Array) -> None:
        self._rows, self._expected, self._limit = rows, expected, limit
        self._done: dict[tuple[str, int], str] = {}

    def problem(self, build: Build, n_rows: int) -> str:
        """Return a description of the first wrong row; empty if all are right."""
        key = build.digest, n_rows
        if key not in self._done:
            self._done[key] = self._compare(build.runner, n_rows)
        return self._done[key]

    def _compare(self, runner: Runner | None, n_rows: int) -> str:
        assert runner is not None
        order = np.arange(max(n_rows, len(self._rows))) % len(self._rows)
        for first in range(0, len(order), n_rows):
            at = order[first : first + n_rows]  # the last may be shorter: remainders
            found = runner.predict(np.ascontiguousarray(self._rows[at]))
            bad = _differ(found, self._expected[at], self._limit[at])
            if len(bad):
                row = bad[0]
                return (
                    f"in a batch of {len(at)}, row {row} gives {found[row].tolist()}, "
                    f"expected {self._expected[at[row]].tolist()}"
                )
        return ""


def _differ(found: Array, expected: Array, limit: Array) -> Array:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return np.arange(len(expected))
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    if not limit.any():
        bits = f"i{found.itemsize}"
        same = found.view(bits) == expected.view(bits)
    gap = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    good = same | (gap <= limit.reshape(-1, 1))
    return np.flatnonzero(~good.all(axis=1))
