"""Building a TiledForest level by level, all trees at once.

A sweep from the roots emits, for each level, the items of every tree side by side;
``assemble`` then lays each tree out on its own: root first, then level order, so
that the children of a tile are neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.ir.hir.nodes import TiledForest
from skforge.compiler.ir.hir.tile_shapes import exit_table
from skforge.exceptions import UnsupportedModelError


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The items of one level, ordered by tree and then left to right.

    The tiles among them (``leaf == -1``) have a row each in the last three arrays.
    The next level holds the items behind the true entries of ``taken``, in order.
    """

    position: NDArray[np.int32]  # (n,) of the item's tree in the walking order
    leaf: NDArray[np.int32]  # (n,)
    node: NDArray[np.int32]  # (n,)
    predicate: NDArray[np.int32]  # (n_tiles, tile_size)
    shape: NDArray[np.int32]  # (n_tiles,)
    taken: NDArray[np.bool_]  # (n_tiles, tile_size + 1) exits that lead to an item


def assemble(
    levels: Sequence[Level], tile_size: int, tree_order: NDArray[np.int32]
) -> TiledForest:
    """Lay out the items of a sweep tree by tree.

    Parameters
    ----------
    levels : sequence of Level
        From the roots down; every tree has one item in the first.
    tile_size : int
        Slots of a tile.
    tree_order : ndarray of int32, shape (n_trees,)
        Tree at each position.

    Returns
    -------
    TiledForest
    """
    n_items = sum(len(level.leaf) for level in levels)
    if n_items >= 2**31:
        raise UnsupportedModelError(
            f"the forest has {n_items} tiles and leaves, more than a 32-bit child "
            "index can reach; compile a part of its trees."
        )
    position = _joined([level.position for level in levels], np.int32)
    order = np.argsort(position, kind="stable")  # old number by new number
    renumbered = np.empty(n_items, dtype=np.int32)
    renumbered[order] = np.arange(n_items, dtype=np.int32)
    sizes = np.bincount(position, minlength=len(tree_order))
    leaf = _joined([level.leaf for level in levels], np.int32)
    tiles = renumbered[leaf < 0]

    predicate = np.full((n_items, tile_size), -1, dtype=np.int32)
    shape = np.zeros(n_items, dtype=np.int32)
    child = np.full((n_items, tile_size + 1), -1, dtype=np.int32)
    start = stop = 0
    below = len(levels[0].leaf) if levels else 0
    for level in levels:
        stop = start + len(level.shape)
        rows = tiles[start:stop]
        predicate[rows] = level.predicate
        shape[rows] = level.shape
        numbers = np.full(level.taken.shape, -1, dtype=np.int32)
        count = int(level.taken.sum())
        numbers[level.taken] = renumbered[below : below + count]
        child[rows] = numbers
        start, below = stop, below + count
    leaf = leaf[order]
    node = _joined([level.node for level in levels], np.int32)[order]
    depth = np.repeat(
        np.arange(len(levels), dtype=np.int32), [len(lv.leaf) for lv in levels]
    )[order]
    item_offset = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    shallow, deep = leaf_depths(item_offset, leaf, depth)
    return TiledForest(
        tile_size=tile_size,
        item_offset=item_offset,
        tree_order=tree_order,
        predicate=predicate,
        shape=shape,
        child=child,
        leaf=leaf,
        node=node,
        depth=depth,
        exit_table=exit_table(tile_size),
        min_depth=shallow,
        max_depth=deep,
    )


def take_trees(tiles: TiledForest, order: NDArray[np.int64]) -> TiledForest:
    """Return the trees now at positions ``order``, in that order."""
    sizes = np.diff(tiles.item_offset)[order]
    offset = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    # how far down the items of each new position come from
    shift = np.repeat(tiles.item_offset[:-1][order] - offset[:-1], sizes)
    items = np.arange(len(shift)) + shift
    child = tiles.child[items]
    child = np.where(child >= 0, child - shift[:, None].astype(np.int32), child)
    return replace(
        tiles,
        item_offset=offset,
        tree_order=tiles.tree_order[order],
        predicate=tiles.predicate[items],
        shape=tiles.shape[items],
        child=child,
        leaf=tiles.leaf[items],
        node=tiles.node[items],
        depth=tiles.depth[items],
        min_depth=tiles.min_depth[order],
        max_depth=tiles.max_depth[order],
    )


def join_trees(one: TiledForest, two: TiledForest) -> TiledForest:
    """Return the trees of one, then those of two."""
    below = np.where(two.child >= 0, two.child + np.int32(one.n_items), two.child)
    return replace(
        one,
        item_offset=np.concatenate(
            [one.item_offset, two.item_offset[1:] + one.n_items]
        ),
        tree_order=np.concatenate([one.tree_order, two.tree_order]),
        predicate=np.concatenate([one.predicate, two.predicate]),
        shape=np.concatenate([one.shape, two.shape]),
        child=np.concatenate([one.child, below.astype(np.int32)]),
        leaf=np.concatenate([one.leaf, two.leaf]),
        node=np.concatenate([one.node, two.node]),
        depth=np.concatenate([one.depth, two.depth]),
        min_depth=np.concatenate([one.min_depth, two.min_depth]),
        max_depth=np.concatenate([one.max_depth, two.max_depth]),
    )


def leaf_depths(
    item_offset: NDArray[np.int64],
    leaf: NDArray[np.int32],
    depth: NDArray[np.int32],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the depth of the shallowest and the deepest leaf of every tree."""
    if len(item_offset) == 1:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    start = item_offset[:-1]
    far = np.int32(np.iinfo(np.int32).max)
    shallow = np.minimum.reduceat(np.where(leaf >= 0, depth, far), start)
    return shallow, np.maximum.reduceat(depth, start)  # the deepest item is a leaf


def _joined(parts: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    """Concatenate, also when there is nothing to."""
    return np.concatenate([np.zeros(0, dtype), *parts])
