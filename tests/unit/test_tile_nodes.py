"""Node tiling: the same leaves, and the validity conditions of Treebeard §3.4."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skforge.compiler.ir.hir.nodes import TiledForest, shapes
from skforge.compiler.passes.hir import tile_nodes
from skforge.exceptions import ScheduleError
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_leaves
from tests.refusals import error_of
from tests.strategies_forest import edge_rows, random_forest
from tests.tile_walk import tile_leaves

KINDS = ("uniform", "probability")


def tile_members(tiles: TiledForest, forest: Forest, item: int) -> list[int]:
    """Return the Forest node in each slot of a tile, -1 for dummies."""
    edge = shapes(tiles.tile_size).edge[tiles.shape[item]]
    stands = [-1] * tiles.tile_size
    stands[0] = int(tiles.node[item])
    for slot in range(tiles.tile_size):
        real = tiles.predicate[item, slot] >= 0
        for side, child in enumerate((forest.left, forest.right)):
            target = edge[2 * slot + side]
            if target < 0 or stands[slot] < 0:
                continue
            # a dummy sends every row to the right, still standing on the same node
            stays = stands[slot] if side else -1
            stands[target] = int(child[stands[slot]]) if real else stays
    return [
        node if predicate >= 0 else -1
        for node, predicate in zip(stands, tiles.predicate[item], strict=True)
    ]


@given(random_forest(), st.integers(1, 8), st.sampled_from(KINDS), st.integers(0, 99))
def test_rows_reach_the_same_leaves(forest, size, kind, seed):
    tiles = tile_nodes.run(forest, size, kind)
    rows = edge_rows(forest, 40, seed)
    np.testing.assert_array_equal(
        tile_leaves(tiles, forest, rows), reference_leaves(forest, rows)
    )


@given(random_forest(), st.integers(1, 8), st.sampled_from(KINDS))
def test_tilings_are_valid(forest, size, kind):
    tiles = tile_nodes.run(forest, size, kind)
    seen: list[int] = []
    for item in np.flatnonzero(tiles.leaf < 0):
        members = tile_members(tiles, forest, item)
        real = [node for node in members if node >= 0]
        seen += real
        assert 1 <= len(real) <= size
        # connected: every node but the first has its parent in the tile
        for node in real[1:]:
            assert any(node in (forest.left[m], forest.right[m]) for m in real)
        # maximal: a small tile has nothing but leaves below
        below = {int(c) for m in real for c in (forest.left[m], forest.right[m])}
        if len(real) < size:
            assert all(forest.leaf[node] >= 0 for node in below - set(real))
        np.testing.assert_array_equal(
            tiles.predicate[item],
            [forest.predicate[m] if m >= 0 else -1 for m in members],
        )
    assert sorted(seen) == np.flatnonzero(forest.leaf < 0).tolist()
    leaves = np.flatnonzero(tiles.leaf >= 0)
    np.testing.assert_array_equal(
        np.sort(tiles.node[leaves]), np.flatnonzero(forest.leaf >= 0)
    )
    np.testing.assert_array_equal(tiles.leaf[leaves], forest.leaf[tiles.node[leaves]])


@given(random_forest(), st.integers(1, 8), st.sampled_from(KINDS))
def test_items_lie_in_level_order(forest, size, kind):
    tiles = tile_nodes.run(forest, size, kind)
    for start, stop in zip(tiles.item_offset, tiles.item_offset[1:], strict=False):
        child = tiles.child[start:stop]
        # read item by item, the children count up from the root's first
        assert child[child >= 0].tolist() == list(range(start + 1, stop))
        depth = tiles.depth[start:stop]
        assert depth[0] == 0
        for item in range(start, stop):
            below = tiles.child[item][tiles.child[item] >= 0]
            assert (tiles.depth[below] == tiles.depth[item] + 1).all()
        at_leaf = depth[tiles.leaf[start:stop] >= 0]
        tree = int(np.searchsorted(tiles.item_offset, start))
        assert tiles.min_depth[tree] == at_leaf.min()
        assert tiles.max_depth[tree] == at_leaf.max()


@given(random_forest(covers=False), st.integers(2, 8))
def test_probability_is_uniform_where_covers_are_unknown(forest, size):
    one = tile_nodes.run(forest, size, "uniform")
    two = tile_nodes.run(forest, size, "probability")
    np.testing.assert_array_equal(one.predicate, two.predicate)
    np.testing.assert_array_equal(one.child, two.child)


@given(random_forest(), st.integers(2, 8))
def test_probability_takes_the_most_covered_frontier_node(forest, size):
    if not len(forest.cover):
        return
    tiles = tile_nodes.run(forest, size, "probability")
    for item in np.flatnonzero(tiles.leaf < 0):
        real = {n for n in tile_members(tiles, forest, item) if n >= 0}
        grown = {int(tiles.node[item])}
        while len(grown) < len(real):
            frontier = [
                int(c)
                for m in grown
                for c in (forest.left[m], forest.right[m])
                if c not in grown and forest.leaf[c] < 0
            ]
            top = max(forest.cover[f] for f in frontier)
            best = [f for f in frontier if forest.cover[f] == top]
            taken = [f for f in best if f in real]
            assert taken, "the tile passed over a node with the greatest cover"
            grown.add(taken[0])


@given(random_forest(shapes=("full",)), st.integers(2, 8))
def test_uniform_fills_breadth_first(forest, size):
    tiles = tile_nodes.run(forest, size, "uniform")
    for item in np.flatnonzero(tiles.leaf < 0):
        members = [n for n in tile_members(tiles, forest, item) if n >= 0]
        queue = [int(tiles.node[item])]
        for node in queue:
            queue += [
                int(c)
                for c in (forest.left[node], forest.right[node])
                if forest.leaf[c] < 0
            ]
        assert members == queue[: len(members)]


@given(random_forest(), st.sampled_from(KINDS))
def test_growing_tiles_in_parts_changes_nothing(forest, kind):
    whole = tile_nodes.run(forest, 3, kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_nodes, "_PART", 2)
        parts = tile_nodes.run(forest, 3, kind)
    for name in ("predicate", "shape", "child", "leaf", "node", "depth"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


def stump_chain() -> Forest:
    """One tree: node 0 tests feature 0, its left child 1 feature 1; three leaves."""
    return Forest(
        tree_offset=np.array([0, 5]), tree_output=np.array([0]),
        predicate=np.array([0, 1, -1, -1, -1]), left=np.array([1, 3, -1, -1, -1]),
        right=np.array([2, 4, -1, -1, -1]), leaf=np.array([-1, -1, 0, 1, 2]),
        source_node=np.arange(5), cover=np.zeros(0),
        leaf_value=np.zeros((3, 1), np.float32), feature=np.array([0, 1]),
        comparison=np.zeros(2, np.uint8), threshold=np.zeros(2, np.float32),
        missing=np.zeros(2, np.uint8), missing_left=np.zeros(2, bool),
        category_offset=np.zeros(3, np.int64), category_words=np.zeros(0, np.uint32),
        n_features=2, base=np.zeros(1, np.float32),
    ).validate()  # fmt: skip


def test_left_children_alone_do_not_make_a_level_order():
    # node 0 has children 1 and 4, node 1 has 3 and 2: only the left ones are in place
    forest = replace(
        stump_chain(),
        right=np.array([4, 2, -1, -1, -1]),
        leaf=np.array([-1, -1, 0, 1, 2]),
    ).validate()
    tiles = tile_nodes.run(forest)
    assert tiles.node.tolist() == [0, 1, 4, 3, 2]
    assert tiles.child.tolist() == [[1, 2], [3, 4], [-1, -1], [-1, -1], [-1, -1]]


def test_arrays_are_read_only():
    tiles = tile_nodes.run(stump_chain(), 2)
    assert not tiles.child.flags.writeable


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "tile_nodes(0) needs a size from 1 to 8."),
        ((9,), "tile_nodes(9) needs a size from 1 to 8."),
        (
            (2, "best"),
            "tile_nodes(2, 'best') needs one of 'uniform', 'probability', 'complete'.",
        ),
    ],
)
def test_other_sizes_and_kinds_are_refused(arguments, message):
    assert error_of(ScheduleError, tile_nodes.run, stump_chain(), *arguments) == message
