"""Bring trees of similar depth and shape next to each other (Treebeard §2.1).

Before: trees in model order. After: positions sorted by greatest leaf depth, then least
leaf depth, then size, then the structure of the tree of tiles. Walks interleaved or
unrolled over neighbouring trees then end together, and loops can be split where depths
change. Trees with equal keys keep their order; ``tree_order`` says which tree is at
which position.
"""

from __future__ import annotations

import numpy as np

from skforge._typing import Uint64s
from skforge.compiler.ir.hir.nodes import TiledForest


def run(tiles: TiledForest) -> TiledForest:
    sizes = np.diff(tiles.item_offset)
    order = np.lexsort((_signature(tiles), sizes, tiles.min_depth, tiles.max_depth))
    if np.array_equal(order, np.arange(tiles.n_trees)):
        return tiles
    return tiles.take(order)


def _signature(tiles: TiledForest) -> Uint64s:
    """Return a hash for each tree, equal for trees of the same structure.

    In level order a tree's structure is the sequence of its items' kinds: a leaf, or a
    shape and the exits in use. Different structures may collide; they are then only
    placed side by side.
    """
    if not tiles.n_trees:
        return np.zeros(0, np.uint64)
    start = tiles.item_offset[:-1]
    kind = tiles.shape.astype(np.uint64) << np.uint64(32)
    used = tiles.child >= 0
    for column in range(tiles.tile_size + 1):
        kind |= used[:, column].astype(np.uint64) << np.uint64(column)
    place = np.arange(tiles.n_items, dtype=np.uint64) - np.repeat(
        start, np.diff(tiles.item_offset)
    ).astype(np.uint64)
    return np.add.reduceat(_mixed(_mixed(place) ^ kind), start)


def _mixed(value: Uint64s) -> Uint64s:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    value ^= value >> np.uint64(31)
    return value
