"""Order-independent sums: leaves as 64-bit integers with a common scale.

``reproducible`` reductions add ``round(leaf * 2 ** exponent)``; integer sums are the
same in any order. The exponent is the largest for which no sum over trees overflows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.ir.hir.nodes import PredictEnsemble

_BITS = 61  # bits of the largest sum; one more is left for rounding the leaves
_FINEST = 1074  # 2 ** -1074 is the smallest double


def scale_exponent(hir: PredictEnsemble) -> int:
    """Return the exponent of the power of two that leaves are multiplied by.

    The sum over trees of each tree's largest leaf bounds the largest sum.
    """
    forest, tiles = hir.forest, hir.tiles
    values = np.abs(forest.leaf_value.astype(np.float64)).max(axis=1, initial=0.0)
    is_leaf = tiles.leaf >= 0
    tree = np.repeat(np.arange(tiles.n_trees), np.diff(tiles.item_offset))[is_leaf]
    largest = np.zeros(tiles.n_trees)
    np.maximum.at(largest, tree, values[tiles.leaf[is_leaf]])
    most = float(largest.max(initial=0.0))
    if most == 0.0:
        return 0
    # The sum itself may be too large for a double, or all of it subnormal.
    power = int(np.frexp(most)[1])
    total = float(np.ldexp(largest, -power).sum())
    return min(int(_BITS - power - np.ceil(np.log2(total))), _FINEST)


def scaled_leaves(hir: PredictEnsemble, exponent: int) -> NDArray[np.int64]:
    """Return the leaf values as integers."""
    scaled = np.ldexp(hir.forest.leaf_value.astype(np.float64), exponent)
    return np.rint(scaled).astype(np.int64)
