"""Reordering: like trees become neighbours, and rows reach the same leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skforge.compiler.ir.hir.verifier import verify_tiles
from skforge.compiler.passes.hir import reorder_trees, tile_nodes
from skforge.forest.combine import subset
from skforge.forest.reference import reference_leaves
from tests.strategies_forest import edge_rows, random_forest
from tests.tile_walk import tile_leaves


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
def test_rows_reach_the_same_leaves(forest, size):
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
