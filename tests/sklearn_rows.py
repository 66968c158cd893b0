"""Rows that show a wrong cast, comparison or sum, and comparisons bit by bit."""

from __future__ import annotations

import numpy as np

from skforge.forest.reference import draw_rows


def same_bits(actual, expected):
    """Equal shape, dtype and bytes, whatever the order in memory."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    if expected.dtype == object:
        return np.testing.assert_array_equal(actual, expected)
    a, b = np.ascontiguousarray(actual), np.ascontiguousarray(expected)
    if a.tobytes() != b.tobytes():
        differ = (a != b) & ~((a != a) & (b != b))
        at = tuple(np.argwhere(differ)[0]) if differ.any() else "the sign of a zero"
        raise AssertionError(f"{differ.sum()} values differ, first at {at}")


def tie_rows(forest, n, missing=0.0, seed=1):
    """Float64 rows drawn on thresholds, and their neighbours in float64."""
    drawn = draw_rows(forest, n, seed=seed, missing=missing).astype(np.float64)
    up, down = np.nextafter(drawn, np.inf), np.nextafter(drawn, -np.inf)
    return np.concatenate([drawn, up, down])
