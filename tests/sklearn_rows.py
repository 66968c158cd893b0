"""Rows that show a wrong cast, comparison or sum, and comparisons bit by bit."""

from __future__ import annotations

import numpy as np

from skforge.forest.reference import draw_rows, reference_leaves, reference_raw
from skforge.modules.compiled import compile_forest
from skforge.schedule.schedule import Schedule

#: More than one kernel: the default table, and lanes of rows under blocks.
VECTORISED = (
    Schedule().tile("batch", "b0", "b1", 8).reorder("b0", "tree", "b1").vectorize("b1")
)


def same_bits(actual, expected):
    """Equal shape, dtype and bytes, whatever the order in memory."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
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


def kernels_agree(forest, rows):
    """Return raw scores after comparing compiled kernels with the reference."""
    raw = reference_raw(forest, rows)
    leaves = forest.source_node[reference_leaves(forest, rows)]
    flat = raw[:, 0] if raw.shape[1] == 1 else raw
    for schedule in (None, VECTORISED):
        module = compile_forest(forest, schedule)
        same_bits(module.predict_raw(rows), flat)
        same_bits(module.predict_raw(rows[:1]), flat[:1])
    np.testing.assert_array_equal(module.apply(rows), leaves)
    return raw, leaves
