r"""Move shallow leaves down with padding tiles, so that hops need no leaf check.

Before: a leaf at depth 1 of a tree whose walks take 3 unchecked hops. After: two
padding tiles above it. All tests of a padding tile are false, so a walk leaves it by
the last exit (SilvanForge, figure 1a)::

    a            a
   / \          / \
  l0  b   ->   *   b         * is padding; its other exits lead nowhere
     / \        \ / \
    l1  l2      l0 l1 l2
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from skforge._typing import Int64s
from skforge.compiler.ir.hir.nodes import TiledForest
from skforge.compiler.passes.hir import tile_nodes
from skforge.compiler.passes.hir.tile_nodes import Level, join_trees
from skforge.exceptions import ScheduleError
from skforge.schedule.bound import BoundNest, leaf_paths, tree_positions
from skforge.schedule.directives import UnrollWalk

MAX_GROWTH = 64  # padded items per item
_ALWAYS_ALLOWED = 1 << 16  # items: small forests may grow by more
_MAX_ITEMS = 2**31 - 1


def run(
    tiles: TiledForest, depths: ArrayLike, nest: BoundNest | None = None
) -> TiledForest:
    """Return trees with leaves at least ``depths`` tiles below roots, by position.

    Raises ScheduleError, which shows the nest, if that needs too much memory.
    """
    wanted = np.asarray(depths, dtype=np.int64)
    positions = np.flatnonzero(wanted > tiles.min_depth)
    if not len(positions):
        return tiles
    _check_growth(tiles, wanted, nest)
    grown = _padded(tiles, positions, wanted)
    if len(positions) == tiles.n_trees:
        return grown
    rest = np.flatnonzero(wanted <= tiles.min_depth)
    back = np.argsort(np.concatenate([rest, positions]), kind="stable")
    return join_trees(tiles.take(rest), grown).take(back)


def required_depths(nest: BoundNest, tiles: TiledForest) -> Int64s:
    """Return the least leaf depth at each position; 0 where any depth will do.

    This is the deepest ``unroll_walk`` around the tree's walk; ``pad_trees`` requires
    all leaves of a tree at its greatest depth.
    """
    depths = np.zeros(tiles.n_trees, dtype=np.int64)
    if nest.pad_trees:
        depths += tiles.max_depth
    paths = (path for loop in nest.loops for path in leaf_paths(loop, (loop,)))
    for path in paths:
        marks = [loop.mark(UnrollWalk) for loop in path]
        unchecked = max((mark.depth for mark in marks if mark is not None), default=0)
        if unchecked:
            reached = tree_positions(path)[1]
            depths[reached] = np.maximum(depths[reached], unchecked)
    return depths


def _check_growth(tiles: TiledForest, depths: Int64s, nest: BoundNest | None) -> None:
    leaves = np.flatnonzero(tiles.leaf >= 0)
    short = np.repeat(depths, np.diff(tiles.item_offset))[leaves] - tiles.depth[leaves]
    # as float: depths near 2 ** 63 must not wrap around
    total = tiles.n_items + float(np.maximum(short, 0).sum(dtype=np.float64))
    limit = min(_MAX_ITEMS, max(MAX_GROWTH * tiles.n_items, _ALWAYS_ALLOWED))
    if total > limit:
        raise ScheduleError(
            f"unroll_walk or pad_trees would pad {tiles.n_items} tiles and leaves to "
            f"{total:.0f}, more than the {limit} allowed here; unroll fewer hops, or "
            "use peel_walk, which needs no padding.",
            "" if nest is None else str(nest),
        )


def _padded(tiles: TiledForest, positions: Int64s, depths: Int64s) -> TiledForest:
    levels: list[Level] = []
    front = tiles.item_offset[positions].astype(np.int32)
    tree = np.arange(len(positions), dtype=np.int32)
    hops = depths[positions]
    while front.size:
        waits = (tiles.leaf[front] >= 0) & (hops[tree] > len(levels))
        leaf = np.where(waits, np.int32(-1), tiles.leaf[front])
        inner = leaf < 0
        at = front[inner]
        # a leaf's own rows already match a padding tile: no predicate, shape 0
        exits = tiles.child[at]
        exits[waits[inner], -1] = front[waits]
        is_exit = exits >= 0
        node = tiles.node[front]
        levels.append(
            Level(tree, leaf, node, tiles.predicate[at], tiles.shape[at], is_exit)
        )
        tree = np.repeat(tree[inner], is_exit.sum(axis=1))
        front = exits[is_exit]
    return tile_nodes.assemble(levels, tiles.tile_size, tiles.tree_order[positions])
