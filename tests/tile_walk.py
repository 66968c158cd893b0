"""The oracle of HIR: walk trees of tiles in plain NumPy."""

from __future__ import annotations

import numpy as np

from skforge.compiler.ir.hir.nodes import TiledForest, exit_table
from skforge.forest.forest import Forest
from skforge.forest.reference import evaluate_predicates


def walk_tiles(tiles: TiledForest, forest: Forest, X: np.ndarray) -> np.ndarray:
    """Return the leaf item each row ends in, per position of the walking order."""
    rows = np.asarray(X, dtype=forest.input_dtype)
    at = np.tile(tiles.item_offset[:-1], (len(rows), 1))
    weights = 1 << np.arange(tiles.tile_size)[::-1]  # node 0 is the top bit
    for _ in range(int(tiles.max_depth.max(initial=0))):
        row, tree = np.nonzero(tiles.leaf[at] < 0)
        tile = at[row, tree]
        bits = np.zeros(len(tile), np.int64)
        for slot, weight in enumerate(weights):
            predicate = tiles.predicate[tile, slot]
            real = np.flatnonzero(predicate >= 0)
            value = rows[row[real], forest.feature[predicate[real]]]
            true = evaluate_predicates(forest, predicate[real], value)
            bits[real] += weight * true
        taken = exit_table(tiles.tile_size)[tiles.shape[tile], bits]
        at[row, tree] = tiles.child[tile, taken]
        assert (at >= 0).all(), "a row took the exit of a dummy"
    assert (tiles.leaf[at] >= 0).all()
    return at


def tile_leaves(tiles: TiledForest, forest: Forest, X: np.ndarray) -> np.ndarray:
    """Return what ``reference_leaves`` does: leaf nodes by model order of trees."""
    node = tiles.node[walk_tiles(tiles, forest, X)]
    leaves = np.empty_like(node)
    leaves[:, tiles.tree_order] = node
    return leaves
