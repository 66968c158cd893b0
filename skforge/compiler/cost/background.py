"""Estimates the time of interventional values, by patterns and by walks.

The constants are nanoseconds of a Zen 4 core, fitted to 12 forests of 300 to 28,000
leaves with 1 to 500 rows and 16 to 1,000 background rows. The time to make tables is
within a fifth of the fit, the other times are within a factor of two. No choice took
more than 1.4 ms longer than walks. Tables are made anew for other background rows, so
that walks are faster for few background rows and, in deep forests, few rows.
"""

from __future__ import annotations

import numpy as np

from skforge.compiler.layouts.background.patterns import SLOTS, Patterns
from skforge.compiler.layouts.background.tables import GROUP


def patterns_pay(patterns: Patterns, n_rows: int, n_background: int) -> bool:
    n_leaves = len(patterns.leaf)
    # Walks to deep leaves take more than twice as long as those to others.
    n_nodes = int(patterns.walked.sum())
    n_walked = int(1.2 * n_nodes)
    by_patterns = _making(patterns, n_background) + _looking_up(patterns, n_rows)
    if n_walked:
        by_patterns += _walking(patterns, n_leaves, n_walked, n_rows, n_background)
    n_leaves += n_nodes // 2
    return by_patterns < _walking(patterns, n_leaves, n_leaves, n_rows, n_background)


def _making(patterns: Patterns, n_background: int) -> float:
    p = patterns
    n_outputs = p.trees.forest.leaf_value.shape[1]
    sets = np.exp2(p.leaf_distinct) * p.leaf_distinct**2
    return float(
        0.2e6
        + 250 * len(p.leaf)
        + 0.3 * sets.sum()
        + 1.1 * np.exp2(p.bits)[p.leaf_group].sum()
        + 1.3 * p.table_size * n_outputs
        + 1.1 * len(p.bits) * n_background
    )


def _looking_up(patterns: Patterns, n_rows: int) -> float:
    n_outputs = patterns.trees.forest.leaf_value.shape[1]
    return len(patterns.column) / SLOTS * (100 + 1.4 * n_rows * n_outputs)


def _walking(
    patterns: Patterns, n_leaves: int, n_walked: int, n_rows: int, n_background: int
) -> float:
    forest = patterns.trees.forest
    n_outputs = forest.leaf_value.shape[1]
    groups = -(-n_background // GROUP)
    each = 21 * groups + 0.14 * n_background + 0.03 * n_rows * n_background
    tests = 10 * forest.n_predicates + 1.7 * n_leaves
    prepared = 1.2e6 + 240 * n_leaves + tests * n_background
    return prepared + n_walked * n_outputs * each
