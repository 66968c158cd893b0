"""Padding: leaves as deep as asked, rows in the same leaves, memory guarded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeRegressor

from skforge import load_forest
from skforge.compiler.ir.hir.verifier import verify_tiles
from skforge.compiler.passes.hir import pad_trees, reorder_trees, tile_nodes
from skforge.compiler.passes.hir.pad_trees import required_depths
from skforge.exceptions import ScheduleError
from skforge.forest.reference import reference_leaves
from skforge.schedule.bind import bind
from skforge.schedule.schedule import Schedule
from tests.refusals import error_of
from tests.strategies_forest import edge_rows, random_forest
from tests.tile_walk import tile_leaves


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
