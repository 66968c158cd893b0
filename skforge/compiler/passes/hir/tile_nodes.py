r"""Group the inner nodes of every tree into tiles (Treebeard §3.2 to §3.5).

Before: binary trees of a Forest. After: one tree of tiles for each, under the paper's
conditions: the tiles partition the inner nodes, each is connected, none has fewer than
``size`` nodes while an inner node hangs below it, and leaves are items of their own.

*complete* tiles are whole top levels of a subtree. Node depths alone then determine the
tiles, so this pass keeps single nodes, and the representation groups them.

Tiles of other kinds grow from their roots. *uniform* adds the next node in
breadth-first order, *probability* the node below the tile that most training rows
reached, and a registered kind, or tiles given by number, the next node with the tile's
number. A tile that ends up smaller gets dummy nodes, false for every row, in a chain
above it, up to ``size``, so that its exits in use are the last ones::

    two nodes, size 4      dummy
                               \
                              dummy
                                  \
                                   a        exits: -1 -1 l0 l1 l2
                                  / \
                                 b   l2
                                / \
                               l0  l1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from skforge._typing import Array, Bools, Int32s, Int64s
from skforge.compiler.ir.hir.nodes import (
    MAX_TILE_SIZE,
    OF_ITEMS,
    TiledForest,
    shape_id,
    shapes,
)
from skforge.exceptions import ScheduleError, UnsupportedModelError
from skforge.forest.arrays import level_order
from skforge.forest.forest import Forest
from skforge.schedule.directives import TILE_KINDS, TileKind

_PART = 1 << 13  # number of tiles grown together

#: Numbers of nodes, trees and tiles.
_Bools = Bools

#: Returns the number of each node's tile, given the forest and the size of tiles.
TilingRule: TypeAlias = Callable[[Forest, int], Int64s]

_TILINGS: dict[str, TilingRule] = {}


def register(kind: str, description: str, tiling: TilingRule) -> None:
    """Add a kind of tiling, for ``tile_nodes(size, kind)`` (Treebeard §3.5).

    ``description`` says how it groups nodes, after "grouped", for ``explain``.
    ``tiling`` takes the forest and the size, and returns an integer for each node of
    the forest: inner nodes of a tree with equal numbers share a tile. Leaves have -1,
    or a number of their own.
    """
    if kind in TILE_KINDS:
        raise ScheduleError(f"a kind of tiles named {kind!r} is there already.")
    TILE_KINDS[kind] = description
    _TILINGS[kind] = tiling


def _custom_tiling(forest: Forest, size: int, kind: TileKind) -> Int64s | None:
    if isinstance(kind, str):
        if kind not in _TILINGS:
            return None
        who = f"tile_nodes({size}, {kind!r})"
        tiling = np.asarray(_TILINGS[kind](forest, size))
        if tiling.shape != (forest.n_nodes,) or tiling.dtype.kind not in "iu":
            raise ScheduleError(
                f"{who} needs an integer for each of the {forest.n_nodes} nodes; its "
                f"tiling returned shape {tiling.shape}, dtype {tiling.dtype}."
            )
        return _checked(forest, tiling.astype(np.int64), size, who)
    who = f"tile_nodes({size}, ...)"
    if len(kind) != forest.n_trees:
        raise ScheduleError(
            f"{who} has numbers for {len(kind)} trees, but the forest has "
            f"{forest.n_trees}."
        )
    for tree, (ids, nodes) in enumerate(
        zip(kind, np.diff(forest.tree_offset), strict=True)
    ):
        if len(ids) != nodes:
            raise ScheduleError(
                f"{who} has {len(ids)} numbers for tree {tree}, which has {nodes} "
                "nodes, leaves included."
            )
    flat = np.fromiter(chain.from_iterable(kind), np.int64, forest.n_nodes)
    return _checked(forest, flat, size, who)


def _checked(forest: Forest, ids: Int64s, size: int, directive: str) -> Int64s:
    start = forest.tree_offset
    tree = np.repeat(np.arange(forest.n_trees), np.diff(start))
    is_leaf = forest.leaf >= 0
    inner = np.flatnonzero(~is_leaf)
    _, number = np.unique(np.stack([tree, ids], 1), axis=0, return_inverse=True)
    number = number.reshape(-1)

    def refuse(bad: Int64s, why: str) -> None:
        if len(bad):
            node = int(bad[0])
            raise ScheduleError(
                f"{directive}: tile {ids[node]} of tree {tree[node]} {why} (see node "
                f"{node - start[tree[node]]} of the tree)."
            )

    refuse(inner[ids[inner] < 0], "has an inner node; use 0 or more, -1 for leaves")
    counts = np.bincount(number[inner], minlength=forest.n_nodes)
    refuse(inner[counts[number[inner]] > size], f"has more than {size} nodes")
    shared = np.bincount(number, minlength=forest.n_nodes)[number] > 1
    beside = is_leaf & (ids >= 0) & shared
    refuse(np.flatnonzero(beside), "has a leaf beside other nodes; give leaves -1")
    parent = np.full(forest.n_nodes, -1, np.int64)
    parent[forest.left[inner]] = parent[forest.right[inner]] = inner
    starts = inner[(parent[inner] < 0) | (number[parent[inner]] != number[inner])]
    _, first = np.unique(number[starts], return_index=True)
    refuse(np.delete(starts, first), "is not connected")
    above = parent[starts[parent[starts] >= 0]]
    small = counts[number[above]] < size
    refuse(above[small], f"has fewer than {size} nodes, with an inner node below it")
    return number


def run(forest: Forest, size: int = 1, kind: TileKind = "uniform") -> TiledForest:
    """Return the forest as trees of tiles, in the model's tree order.

    ``size`` is 1 to 8 nodes, or 3, 7, 15 or 31 for a complete tile. ``probability``
    acts as ``uniform`` where covers are unknown. Other values raise ScheduleError.
    """
    if kind == "complete":
        return _single_nodes(forest)
    if not 1 <= size <= MAX_TILE_SIZE:
        raise ScheduleError(
            f"tile_nodes({size}) needs a size from 1 to {MAX_TILE_SIZE}."
        )
    if isinstance(kind, str) and kind not in TILE_KINDS:
        known = ", ".join(map(repr, TILE_KINDS))
        raise ScheduleError(f"tile_nodes({size}, {kind!r}) needs one of {known}.")
    if size == 1:
        return _single_nodes(forest)
    by_cover = kind == "probability" and len(forest.cover) > 0
    ids = _custom_tiling(forest, size, kind)
    levels: list[Level] = []
    position = np.arange(forest.n_trees, dtype=np.int32)
    front = forest.tree_offset[:-1].astype(np.int32)
    while front.size:
        leaf = forest.leaf[front]
        inner = leaf < 0
        node, shape, exits = _grow(forest, front[inner], size, by_cover, ids)
        predicate = np.where(node >= 0, forest.predicate[node], np.int32(-1))
        is_exit = exits >= 0
        levels.append(Level(position, leaf, front, predicate, shape, is_exit))
        position = np.repeat(position[inner], is_exit.sum(axis=1))
        front = exits[is_exit]
    return assemble(levels, size, np.arange(forest.n_trees, dtype=np.int32))


def _grow(
    forest: Forest, roots: Int32s, size: int, by_cover: bool, ids: Int64s | None
) -> tuple[Int32s, Int32s, Int32s]:
    # in parts, so that the tables of a part stay in the cache
    parts = [
        _grow_part(forest, roots[at : at + _PART], size, by_cover, ids)
        for at in range(0, max(1, len(roots)), _PART)
    ]
    if len(parts) == 1:
        return parts[0]
    node, shape, exits = zip(*parts, strict=True)
    return np.concatenate(node), np.concatenate(shape), np.concatenate(exits)


def _grow_part(
    forest: Forest, roots: Int32s, size: int, by_cover: bool, ids: Int64s | None
) -> tuple[Int32s, Int32s, Int32s]:
    n = len(roots)
    rows = np.arange(n)
    node = np.full((n, size), -1, dtype=np.int32)
    # heap numbering: the root is 1, the children of h are 2h and 2h + 1
    heap = np.zeros((n, size), dtype=np.int32)
    node[:, 0], heap[:, 0] = roots, 1
    score = np.full((n, 2 * size), -np.inf)  # of the edges that leave the tile
    below = np.full((n, 2 * size), -1, dtype=np.int32)
    count = np.ones(n, dtype=np.int64)
    for slot in range(size):
        if slot:
            best = score[rows].argmax(axis=1)
            grows = score[rows, best] > -np.inf
            rows, best = rows[grows], best[grows]
            node[rows, slot] = below[rows, best]
            heap[rows, slot] = 2 * heap[rows, best // 2] + best % 2
            score[rows, best] = -np.inf
            count[rows] += 1
        for side, child in enumerate((forest.left, forest.right)):
            under = child[node[rows, slot]]
            rank = forest.cover[under] if by_cover else -2.0 * heap[rows, slot] - side
            joins = forest.leaf[under] < 0
            if ids is not None:
                joins &= ids[under] == ids[node[rows, slot]]
            score[rows, 2 * slot + side] = np.where(joins, rank, -np.inf)
            below[rows, 2 * slot + side] = under
    _put_below_dummies(heap, count)

    order = np.argsort(heap, axis=1, kind="stable")
    heap = np.take_along_axis(heap, order, axis=1)
    node = np.take_along_axis(node, order, axis=1)
    shape = shape_id(_inside(heap))
    edge = np.empty((n, 2 * size), dtype=np.int32)
    edge[:, 0::2] = np.where(node >= 0, forest.left[node], np.int32(-1))
    edge[:, 1::2] = np.where(node >= 0, forest.right[node], np.int32(-1))
    exits = np.take_along_axis(edge, shapes(size).exit_edge[shape].astype(int), axis=1)
    return node, shape, exits


def _put_below_dummies(heap: Int32s, count: Int64s) -> None:
    slot = np.arange(heap.shape[1])
    n_dummies = (heap.shape[1] - count)[:, None]
    digits = np.frexp(heap)[1]  # the path of a node, after those of the dummies
    below = heap | ((1 << n_dummies) - 1) << digits
    chain = (2 << (slot - count[:, None]).clip(0)) - 1
    heap[:] = np.where(slot < count[:, None], below, chain)


def _inside(heap: Int32s) -> _Bools:
    n, size = heap.shape
    inside = np.zeros((n, 2 * size), dtype=np.bool_)
    rows = np.arange(n)
    for slot in range(1, size):
        parent = (heap[:, :slot] == (heap[:, slot] >> 1)[:, None]).argmax(axis=1)
        inside[rows, 2 * parent + (heap[:, slot] & 1)] = True
    return inside


def _single_nodes(forest: Forest) -> TiledForest:
    node, depth = level_order(forest.left, forest.right, forest.tree_offset)
    leaf = forest.leaf[node]
    inner = np.flatnonzero(leaf < 0)
    n_inner = np.diff(forest.tree_offset) // 2
    # a tree of m inner nodes has 2m + 1 nodes, so in level order inner node g of the
    # whole forest, in tree t, has its children at 2g + t + 1 and 2g + t + 2
    left = np.arange(0, 2 * n_inner.sum(), 2, dtype=np.int32)
    left += np.repeat(np.arange(1, forest.n_trees + 1, dtype=np.int32), n_inner)
    child = np.full((forest.n_nodes, 2), -1, dtype=np.int32)
    child[inner, 0] = left
    left += 1
    child[inner, 1] = left
    return TiledForest(
        tile_size=1,
        item_offset=forest.tree_offset,
        tree_order=np.arange(forest.n_trees, dtype=np.int32),
        predicate=forest.predicate[node][:, None],
        shape=np.zeros(forest.n_nodes, dtype=np.int32),
        child=child,
        leaf=leaf,
        node=node,
        depth=depth,
    )


# ---------------------------------------------------------------- level by level

# A sweep from the roots emits the items of all trees level by level. ``assemble`` then
# lays out each tree separately: root first, then level order, so that the children of
# a tile are neighbours.


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The items of one level, ordered by tree and then left to right.

    The last three arrays have one row for each tile (``leaf == -1``). The next level
    holds the items behind the true entries of ``taken``, in order.
    """

    position: Int32s  # (n,) walking position of the item's tree
    leaf: Int32s  # (n,)
    node: Int32s  # (n,)
    predicate: Int32s  # (n_tiles, tile_size)
    shape: Int32s  # (n_tiles,)
    taken: Bools  # (n_tiles, tile_size + 1) exits that lead to an item


def assemble(
    levels: Sequence[Level], tile_size: int, tree_order: Int32s
) -> TiledForest:
    n_items = sum(len(level.leaf) for level in levels)
    if n_items >= 2**31:
        raise UnsupportedModelError(
            f"the forest has {n_items} tiles and leaves, more than 32-bit indices can "
            "number; compile it in parts."
        )
    position = _joined([level.position for level in levels], np.int32)
    order = np.argsort(position, kind="stable")  # old number at each new number
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
    )


def join_trees(one: TiledForest, two: TiledForest) -> TiledForest:
    below = np.where(two.child >= 0, two.child + np.int32(one.n_items), two.child)
    both: dict[str, Any] = {
        name: np.concatenate([getattr(one, name), getattr(two, name)])
        for name in (*OF_ITEMS, "tree_order")
    }
    both["item_offset"] = np.append(one.item_offset, two.item_offset[1:] + one.n_items)
    both["child"] = np.concatenate([one.child, below.astype(np.int32)])
    return replace(one, **both)


def _joined(parts: list[Array], dtype: Any) -> Array:
    return np.concatenate([np.zeros(0, dtype), *parts])
