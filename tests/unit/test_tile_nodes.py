"""Node tiling: the same leaves, and the validity conditions of Treebeard §3.4."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeRegressor

from skforge import load_forest
from skforge.compiler.ir.hir.nodes import TiledForest, exit_table, shape_id, shapes
from skforge.compiler.ir.hir.verifier import verify_tiles
from skforge.compiler.passes.hir import pad_trees, reorder_trees, tile_nodes
from skforge.compiler.passes.hir.pad_trees import required_depths
from skforge.exceptions import ScheduleError
from skforge.forest.combine import subset
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_leaves
from skforge.schedule.bind import bind
from skforge.schedule.schedule import Schedule
from tests.forests_by_hand import forest_of_nodes
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
    children = [1, 3, -1, -1, -1], [2, 4, -1, -1, -1]
    return forest_of_nodes(*children, feature=[0, 1]).validate()


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


# ------------------------------------------------------------ tile shapes


def walk(edge: np.ndarray, bits: tuple[int, ...]) -> int:
    """Follow one row of edges with the comparison of slot s in ``bits[s]``."""
    slot = 0
    while slot >= 0:
        slot = int(edge[2 * slot + (1 - bits[slot])])
    return ~slot


def catalan(n: int) -> int:
    """Equation 1 of Treebeard."""
    counts = [1]
    for size in range(1, n + 1):
        counts.append(sum(counts[k] * counts[size - 1 - k] for k in range(size)))
    return counts[n]


@pytest.mark.parametrize("size", range(1, 9))
def test_there_are_catalan_many_distinct_shapes(size):
    known = shapes(size)
    assert known.edge.shape == (catalan(size), 2 * size)
    assert len(np.unique(known.edge >= 0, axis=0)) == catalan(size)


@pytest.mark.parametrize("size", range(1, 9))
def test_every_shape_is_a_binary_tree_in_level_order(size):
    for edge in shapes(size).edge:
        inner = edge[edge >= 0]
        # level order: the children appear in the order of their parents
        assert inner.tolist() == list(range(1, size))
        assert sorted(~edge[edge < 0]) == list(range(size + 1))


@pytest.mark.parametrize("size", range(1, 9))
def test_exits_are_numbered_left_to_right(size):
    def in_order(edge, slot=0):
        for target in edge[2 * slot : 2 * slot + 2]:
            yield from [~target] if target < 0 else in_order(edge, target)

    for edge in shapes(size).edge:
        assert list(in_order(edge)) == list(range(size + 1))


@pytest.mark.parametrize("size", range(1, 9))
def test_shape_ids_name_their_rows(size):
    known = shapes(size)
    np.testing.assert_array_equal(
        shape_id(known.edge >= 0), np.arange(known.n_shapes, dtype=np.int32)
    )


@pytest.mark.parametrize("size", range(1, 9))
def test_exit_edges_lead_to_their_exits(size):
    known = shapes(size)
    reached = np.take_along_axis(known.edge, known.exit_edge.astype(int), axis=1)
    assert (reached == ~np.arange(size + 1)).all()


@pytest.mark.parametrize("size", range(1, 6))
def test_the_table_holds_what_walking_the_shape_gives(size):
    table = exit_table(size)
    for edge, row in zip(shapes(size).edge, table, strict=True):
        for number in range(2**size):
            bits = tuple(int(bit) for bit in f"{number:0{size}b}")  # node 0 first
            assert row[number] == walk(edge, bits)


def test_the_table_of_single_nodes():
    assert exit_table(1).tolist() == [[1, 0]]


def test_the_papers_example():
    # Treebeard §3.6: with 011 a tile whose root has no right child is left by its
    # fourth exit, the balanced one by its third
    left_chain = shape_id(np.array([[1, 0, 1, 0, 0, 0]], dtype=bool))[0]
    balanced = shape_id(np.array([[1, 1, 0, 0, 0, 0]], dtype=bool))[0]
    assert exit_table(3)[left_chain, 0b111] == 0
    assert exit_table(3)[left_chain, 0b110] == 1
    assert exit_table(3)[left_chain, 0b011] == 3
    assert exit_table(3)[balanced, 0b011] == 2


@pytest.mark.parametrize("size", range(1, 9))
def test_all_false_takes_the_last_exit_and_all_true_the_first(size):
    table = exit_table(size)
    assert (table[:, 0] == size).all()
    assert (table[:, -1] == 0).all()


def test_tables_are_cached_and_read_only():
    assert exit_table(4) is exit_table(4)
    assert not exit_table(4).flags.writeable


@pytest.mark.parametrize("size", [0, 9])
def test_sizes_outside_the_range_are_refused(size):
    said = error_of(ValueError, exit_table, size)
    assert said == f"tiles have 1 to 8 nodes, not {size}."


# ------------------------------------------------------------ pad trees


@given(random_forest(), st.sampled_from([1, 2, 3, 8]), st.data())
def test_leaves_are_as_deep_as_asked_and_rows_reach_the_same(forest, size, data):
    tiles = reorder_trees.run(tile_nodes.run(forest, size))
    depths = np.array([data.draw(st.integers(0, 6)) for _ in range(tiles.n_trees)])
    padded = pad_trees.run(tiles, depths)
    verify_tiles(padded, forest)
    np.testing.assert_array_equal(padded.min_depth, np.maximum(tiles.min_depth, depths))
    np.testing.assert_array_equal(padded.max_depth, np.maximum(tiles.max_depth, depths))
    short = np.repeat(depths, np.diff(tiles.item_offset)) - tiles.depth
    extra = np.maximum(short, 0)[tiles.leaf >= 0].sum()
    assert padded.n_items == tiles.n_items + extra
    rows = edge_rows(forest, 40)
    np.testing.assert_array_equal(
        tile_leaves(padded, forest, rows), reference_leaves(forest, rows)
    )


@given(random_forest(), st.sampled_from([1, 3]))
def test_pad_trees_puts_all_leaves_of_a_tree_at_one_depth(forest, size):
    tiles = tile_nodes.run(forest, size)
    nest = bind(Schedule().pad_trees(), forest.n_trees)
    padded = pad_trees.run(tiles, required_depths(nest, tiles))
    np.testing.assert_array_equal(padded.min_depth, tiles.max_depth)
    np.testing.assert_array_equal(padded.max_depth, tiles.max_depth)


@given(random_forest())
def test_deep_enough_forests_are_returned_themselves(forest):
    tiles = tile_nodes.run(forest)
    assert pad_trees.run(tiles, tiles.min_depth) is tiles


@given(random_forest(max_trees=1, shapes=("chain right",)))
def test_padding_tiles_lead_on_by_their_last_exit(forest):
    tiles = tile_nodes.run(forest, 2)
    padded = pad_trees.run(tiles, tiles.max_depth + 1)
    padding = np.flatnonzero((padded.leaf < 0) & (padded.predicate < 0).all(axis=1))
    assert len(padding) == padded.n_items - tiles.n_items > 0
    assert (padded.child[padding, :-1] == -1).all()
    below = padded.child[padding, -1]
    np.testing.assert_array_equal(padded.node[padding], padded.node[below])


class FourTrees:
    """Stands for tiles of four trees of depth 1, 2, 3 and 4."""

    n_trees = 4
    max_depth = np.array([1, 2, 3, 4], np.int32)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(), [0, 0, 0, 0]),
        (Schedule().unroll_walk("tree", 2), [2, 2, 2, 2]),
        (
            Schedule()
            .reorder("tree", "batch")
            .split("tree", "shallow", "deep", 3)
            .unroll_walk("shallow", 1)
            .unroll_walk("deep", 5),
            [1, 1, 1, 5],
        ),
        (
            Schedule()
            .tile("tree", "t0", "t1", -2)
            .reorder("batch", "t1", "t0")
            .split("t0", "first", "second", 2)
            .unroll_walk("first", 1)
            .unroll_walk("second", 2),
            [1, 1, 2, 2],
        ),
        (Schedule().pad_trees().unroll_walk("tree", 3), [3, 3, 3, 4]),
        (Schedule().unroll_walk("batch", 4), [4, 4, 4, 4]),
        (Schedule().peel_walk("tree", 3), [0, 0, 0, 0]),
    ],
)
def test_required_depths_follow_the_loops(schedule, expected):
    nest = bind(schedule, 4)
    assert required_depths(nest, FourTrees()).tolist() == expected


@given(random_forest(max_trees=1, shapes=("stump",)))
def test_padding_beyond_the_limit_is_refused(forest):
    tiles = tile_nodes.run(forest)
    nest = bind(Schedule().pad_trees(), 1)
    with pytest.raises(ScheduleError) as error:
        pad_trees.run(tiles, [40_000], nest)
    assert error.value.why == (
        "unroll_walk or pad_trees would pad 3 tiles and leaves to 80001, more than "
        "the 65536 allowed here; unroll fewer hops, or use peel_walk, which needs no "
        "padding."
    )
    assert error.value.nest == str(nest)


# ------------------------------------------------------------ reorder trees


def structure(tiles, position):
    """Return the tree of tiles at a position as nested tuples of shapes and exits."""
    start, stop = tiles.item_offset[position], tiles.item_offset[position + 1]
    child = tiles.child[start:stop]
    return (
        tuple((tiles.leaf[start:stop] >= 0).tolist()),
        tuple(tiles.shape[start:stop].tolist()),
        tuple(map(tuple, np.where(child >= 0, child - start, -1).tolist())),
    )


@given(random_forest(max_trees=12, max_depth=3), st.sampled_from([1, 2, 3, 8]))
def test_reordered_rows_reach_the_same_leaves(forest, size):
    tiles = reorder_trees.run(tile_nodes.run(forest, size))
    verify_tiles(tiles, forest)
    rows = edge_rows(forest, 40)
    np.testing.assert_array_equal(
        tile_leaves(tiles, forest, rows), reference_leaves(forest, rows)
    )


@given(random_forest(max_trees=12, max_depth=3), st.sampled_from([1, 2, 4]))
def test_positions_are_sorted_by_depth_then_structure(forest, size):
    tiles = reorder_trees.run(tile_nodes.run(forest, size))
    depths = list(zip(tiles.max_depth, tiles.min_depth, strict=True))
    assert depths == sorted(depths)
    # every structure occupies one run of positions, in model order
    runs: dict[object, list[int]] = {}
    for position in range(tiles.n_trees):
        runs.setdefault(structure(tiles, position), []).append(position)
    for positions in runs.values():
        assert positions == list(range(positions[0], positions[-1] + 1))
        trees = tiles.tree_order[positions].tolist()
        assert trees == sorted(trees)


@given(random_forest(max_trees=8, max_depth=3))
def test_a_second_run_changes_nothing(forest):
    tiles = reorder_trees.run(tile_nodes.run(forest, 2))
    assert reorder_trees.run(tiles) is tiles


@given(random_forest(max_trees=1, max_depth=2, shapes=("chain left",)))
def test_mirror_images_are_told_apart(forest):
    # four trees alike in size and depths, of two structures, by turns
    repeated = subset(forest, [0, 0, 0, 0])
    mirrored = np.isin(np.arange(repeated.n_nodes) // forest.n_nodes, [1, 3])
    repeated = replace(
        repeated,
        left=np.where(mirrored, repeated.right, repeated.left),
        right=np.where(mirrored, repeated.left, repeated.right),
    )
    tiles = reorder_trees.run(tile_nodes.run(repeated))
    alike = forest.tree_depths()[0] == 1
    orders = [[0, 1, 2, 3]] if alike else [[0, 2, 1, 3], [1, 3, 0, 2]]
    assert tiles.tree_order.tolist() in orders


def test_memory_is_bounded(monkeypatch):
    forest = load_forest(DecisionTreeRegressor().fit([[0], [1], [2]], [0, 1, 2]))
    tiles = tile_nodes.run(forest)
    depths = tiles.max_depth + 3
    total = pad_trees.run(tiles, depths).n_items
    monkeypatch.setattr(pad_trees, "MAX_GROWTH", 0)
    monkeypatch.setattr(pad_trees, "_ALWAYS_ALLOWED", total)
    assert pad_trees.run(tiles, depths).n_items == total
    monkeypatch.setattr(pad_trees, "_ALWAYS_ALLOWED", total - 1)
    assert error_of(ScheduleError, pad_trees.run, tiles, depths) == (
        f"unroll_walk or pad_trees would pad {tiles.n_items} tiles and leaves to "
        f"{total}, more than the {total - 1} allowed here; unroll fewer hops, or use "
        "peel_walk, which needs no padding."
    )
