"""Check after every pass that HIR represents its forest, on whole columns at once."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from skforge._typing import Array
from skforge.compiler.ir.hir import nodes
from skforge.exceptions import CompilerError
from skforge.forest.arrays import Comparison
from skforge.forest.forest import Forest


def verify(hir: nodes.PredictEnsemble) -> None:
    """Raise CompilerError, naming item and condition, unless this tiles the forest."""
    _check_whole(hir)
    _check_predicates(hir)
    verify_tiles(hir.tiles, hir.forest)


def verify_tiles(tiles: nodes.TiledForest, forest: Forest) -> None:
    _check_arrays(tiles, forest)
    _check_tree_of_items(tiles)
    _check_depths(tiles)
    _check_leaves(tiles, forest)
    _check_slots(tiles, forest)


def _fail(what: str) -> NoReturn:
    raise CompilerError(f"HIR is not valid: {what}.")


def _refuse(tiles: nodes.TiledForest, bad: Array, what: str) -> None:
    if bad.any():
        item = int(bad.argmax())
        position = int(np.searchsorted(tiles.item_offset, item, side="right")) - 1
        _fail(
            f"item {item} of tree {tiles.tree_order[position]} "
            f"at position {position} {what}"
        )


def _check_whole(hir: nodes.PredictEnsemble) -> None:
    if hir.nest.n_trees != hir.forest.n_trees:
        _fail(
            f"the loop nest is for {hir.nest.n_trees} trees, "
            f"the forest has {hir.forest.n_trees}"
        )
    grouped_here = hir.nest.tile_kind != "complete"
    if (hir.nest.tile_nodes if grouped_here else 1) != hir.tiles.tile_size:
        _fail(
            f"the schedule tiles {hir.nest.tile_nodes} nodes, "
            f"the tiles have {hir.tiles.tile_size}"
        )


def _check_predicates(hir: nodes.PredictEnsemble) -> None:
    order = Comparison[hir.comparison.upper()]
    allowed = (order, Comparison.EQ, Comparison.IN, Comparison.MEMBER)
    bad = ~np.isin(hir.forest.comparison, allowed)
    if bad.any():
        at = int(bad.argmax())
        name = Comparison(hir.forest.comparison[at]).name.lower()
        _fail(f"predicate {at} compares by {name}, not {hir.comparison}, eq or in")


def _check_arrays(tiles: nodes.TiledForest, forest: Forest) -> None:
    size, n_items, n_trees = tiles.tile_size, tiles.n_items, forest.n_trees
    if not 1 <= size <= nodes.MAX_TILE_SIZE:
        _fail(f"the tile size is {size}, outside 1..{nodes.MAX_TILE_SIZE}")
    expected: dict[str, tuple[int, ...]] = dict.fromkeys(nodes.OF_ITEMS, (n_items,))
    expected |= {"item_offset": (n_trees + 1,), "tree_order": (n_trees,)}
    expected |= {"predicate": (n_items, size), "child": (n_items, size + 1)}
    for name, shape in expected.items():
        array = getattr(tiles, name)
        dtype = np.int64 if name == "item_offset" else np.int32
        if array.dtype != dtype or array.shape != shape:
            _fail(
                f"{name} is {array.dtype} {array.shape}, not {np.dtype(dtype)} {shape}"
            )
        if array.flags.writeable:
            _fail(f"{name} is writeable")
    if not np.array_equal(np.sort(tiles.tree_order), np.arange(n_trees)):
        _fail(f"tree_order is not a permutation of {n_trees} trees")
    offset = tiles.item_offset
    if offset[0] != 0 or offset[-1] != n_items or (np.diff(offset) < 1).any():
        _fail(f"item_offset does not divide {n_items} items among the trees")


def _check_tree_of_items(tiles: nodes.TiledForest) -> None:
    """Check level order: each non-root item has exactly one parent, in its tree."""
    _refuse(
        tiles,
        (tiles.leaf < 0) & (tiles.child < 0).all(axis=1),
        "is a tile without children",
    )
    exits = tiles.child >= 0
    children = tiles.child[exits]
    expected = np.ones(tiles.n_items, dtype=np.bool_)
    expected[tiles.item_offset[:-1]] = False
    numbers = np.flatnonzero(expected)
    parents = np.repeat(np.arange(tiles.n_items), exits.sum(axis=1))
    n = min(len(children), len(numbers))
    wrong = np.zeros(tiles.n_items, dtype=np.bool_)
    wrong[parents[:n][children[:n] != numbers[:n]]] = True
    wrong[parents[n:]] = True
    wrong[numbers[n:]] = True
    _refuse(tiles, wrong, "breaks the level order of children")


def _check_depths(tiles: nodes.TiledForest) -> None:
    expected = np.zeros(tiles.n_items, dtype=np.int64)
    parents, _ = np.nonzero(tiles.child >= 0)
    expected[tiles.child[tiles.child >= 0]] = tiles.depth[parents] + 1
    _refuse(tiles, tiles.depth != expected, "has a depth other than its parent's + 1")


def _check_leaves(tiles: nodes.TiledForest, forest: Forest) -> None:
    outside = (tiles.node < 0) | (tiles.node >= forest.n_nodes)
    _refuse(tiles, outside, "stands on no node of the forest")
    start = tiles.item_offset[:-1]
    wrong = np.zeros(tiles.n_items, dtype=np.bool_)
    wrong[start] = tiles.node[start] != forest.tree_offset[:-1][tiles.tree_order]
    _refuse(tiles, wrong, "is a root that does not stand on its tree's root")
    leaf = tiles.leaf >= 0
    wrong = leaf & (tiles.leaf != forest.leaf[tiles.node])
    _refuse(tiles, wrong, "has another leaf than its node")
    wrong = leaf & ((tiles.child >= 0).any(axis=1) | (tiles.predicate >= 0).any(axis=1))
    _refuse(tiles, wrong, "is a leaf with predicates or children")
    known = nodes.shapes(tiles.tile_size).n_shapes
    wrong = (tiles.shape < 0) | (tiles.shape >= known) | (leaf & (tiles.shape != 0))
    _refuse(tiles, wrong, f"has a shape outside 0..{known - 1}, or is a leaf with one")


def _check_slots(tiles: nodes.TiledForest, forest: Forest) -> None:
    """Follow every tile's shape along the Forest nodes of its slots.

    Roots match roots, slots follow the forest's children, and every exit leads to the
    item of its node. So each node of the forest is in one item, and tiles are
    connected.
    """
    size = tiles.tile_size
    at = np.flatnonzero(tiles.leaf < 0)
    rows = np.arange(len(at))
    edge = nodes.shapes(size).edge[tiles.shape[at]]
    standing = np.full((len(at), size), -1, dtype=np.int32)
    leaving = np.full((len(at), size + 1), -1, dtype=np.int32)
    standing[:, 0] = tiles.node[at]

    def check(bad: Any, what: str) -> None:
        if bad.any():
            marked = np.zeros(tiles.n_items, dtype=np.bool_)
            marked[at[bad]] = True
            _refuse(tiles, marked, what)

    for slot in range(size):
        node, predicate = standing[:, slot], tiles.predicate[at, slot]
        real = predicate >= 0
        check(real & (node < 0), f"tests a node in slot {slot}, where no row comes")
        check(
            real & (predicate != forest.predicate[node]),
            f"has another predicate in slot {slot} than its node",
        )
        # a dummy sends every row to the right, still standing on the same node
        for side, child in enumerate((forest.left, forest.right)):
            stays = node if side else np.int32(-1)
            under = np.where(real, child[node], stays)
            target = edge[:, 2 * slot + side]
            inside = target >= 0
            standing[rows[inside], target[inside]] = under[inside]
            leaving[rows[~inside], ~target[~inside]] = under[~inside]
    exits = tiles.child[at]
    astray = (leaving >= 0) != (exits >= 0)
    check(astray.any(axis=1), "has a wrong set of exits")
    arrives = np.where(exits >= 0, tiles.node[exits], np.int32(-1))
    check((arrives != leaving).any(axis=1), "has an exit to another node's item")
    # maximal: only leaves hang below a tile with a dummy
    small = (tiles.predicate[at] < 0).any(axis=1)
    inner = (leaving >= 0) & (forest.leaf[leaving] < 0)
    check(small & inner.any(axis=1), "has a dummy though an inner node hangs below")
