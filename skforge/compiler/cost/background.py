"""Estimates the time of interventional values, by patterns and by walks.

The constants are nanoseconds on a Zen 4 core at 256 bits, fitted to 12 forests of 800
to 28,000 leaves. Fits are within a tenth of the time to make tables, and within a half
of the other times. Tables are made anew for other background rows, so that walks are
faster for a few rows and background rows of deep trees.
"""

from __future__ import annotations

import numpy as np

from skforge.compiler.layouts.background.patterns import SLOTS, Patterns
from skforge.compiler.layouts.background.tables import GROUP


def patterns_pay(patterns: Patterns, n_rows: int, n_background: int) -> bool:
    """Return whether patterns are estimated to be faster than walks."""
    n_leaves = len(patterns.leaf)
    n_walked = int(patterns.walked.sum()) // 2
    by_patterns = _making(patterns, n_background) + _looking_up(patterns, n_rows)
    if n_walked:
        by_patterns += _walking(patterns, n_leaves, n_walked, n_rows, n_background)
    n_leaves += n_walked
    return by_patterns < _walking(patterns, n_leaves, n_leaves, n_rows, n_background)


def _making(patterns: Patterns, n_background: int) -> float:
    p = patterns
    n_outputs = p.trees.forest.leaf_value.shape[1]
    sets = np.exp2(p.leaf_distinct) * p.leaf_distinct**2
    return float(
        1.1e6
        + 66 * len(p.leaf)
        + 0.21 * sets.sum()
        + 1.3 * np.exp2(p.bits)[p.leaf_group].sum()
        + 2.3 * p.table_size * n_outputs
        + 0.9 * len(p.bits) * n_background
    )


def _looking_up(patterns: Patterns, n_rows: int) -> float:
    n_outputs = patterns.trees.forest.leaf_value.shape[1]
    return len(patterns.column) / SLOTS * (100 + 1.4 * n_rows * n_outputs)


def _walking(
    patterns: Patterns, n_leaves: int, n_walked: int, n_rows: int, n_background: int
) -> float:
    """Return the time to prepare walks for all leaves, and to walk to some."""
    n_outputs = patterns.trees.forest.leaf_value.shape[1]
    groups = -(-n_background // GROUP)
    each = 21 * groups + 0.14 * n_background + 0.03 * n_rows * n_background
    prepared = n_leaves * (200 + 12 * n_background)
    return 1.3e6 + prepared + n_walked * n_outputs * each
