"""What walks of contributions share: numbers of edges, sums of subtrees, one row."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.compiler.layouts.background.tables import Preorder
from skforge.compiler.layouts.contributions.contributions import walk_data
from skforge.compiler.layouts.contributions.paths import trace
from skforge.compiler.runtime.kernels import KernelCache
from skforge.compiler.target import Target
from tests.exactness.forests import drawn
from tests.exactness.test_contributions import in_blocks

FOREST = drawn(3, 6, covers=True, n_features=4)


def features_above(node: int) -> list[tuple[int, int]]:
    """Return each ancestor and the child that leads to a node, the nearest first."""
    forest, steps = FOREST, []
    while True:
        above = np.flatnonzero((forest.left == node) | (forest.right == node))
        if not len(above):
            return steps
        steps.append((int(above[0]), node))
        node = int(above[0])


@pytest.mark.parametrize("layout", ["clusters", "preorder"])
def test_the_edge_before_is_the_nearest_one_of_the_same_feature(layout: str) -> None:
    if layout == "clusters":
        data = walk_data(FOREST, by_pairs=False, in_lanes=False, looks_up=True)
        trees, node = data.trees, data.order.node
    else:
        order = Preorder.of(FOREST)
        trees, node = order.trees, order.node
    place = {int(number): i for i, number in enumerate(node)}
    feature = FOREST.node_feature
    tree = np.searchsorted(FOREST.tree_offset, node, "right") - 1
    assert (np.diff(tree) >= 0).all()
    assert len(set(trees.before)) > 5  # none of the cases below is missing
    for i, number in enumerate(node):
        wanted = 0
        for above, child in features_above(int(number)):
            if feature[above] == feature[number]:
                own = place[above] - trees.start[tree[i]]
                wanted = 2 * own + 1 + (FOREST.right[above] == child)
                break
        assert trees.before[i] == wanted


def test_sums_below_count_the_inner_nodes_of_subtrees() -> None:
    paths, inner = trace(FOREST), FOREST.left >= 0
    wanted = inner.astype(np.int64)
    for node in np.flatnonzero(inner):
        for above, _ in features_above(int(node)):
            wanted[above] += 1
    np.testing.assert_array_equal(paths.sums_below(inner.astype(np.int64)), wanted)


def test_one_row_has_no_loops_over_rows_and_vectors() -> None:
    cache = KernelCache(FOREST, Target.host(), "exact")
    loops = {
        block: {
            name
            for name in ("%v.", "%r.", "%row.")
            if f"for {name}" in cache.text(in_blocks(block), "contribution", "lir")
        }
        for block in (1, 16)
    }
    assert loops == {1: set(), 16: {"%v.", "%r.", "%row."}}
