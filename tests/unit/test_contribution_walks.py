"""What walks of contributions share: numbers of edges, sums of subtrees, one row."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.compiler.layouts.background.tables import Preorder
from skforge.compiler.layouts.blocks.paths import trace
from skforge.compiler.layouts.contributions.contributions import walk_data
from skforge.compiler.layouts.contributions.subtrees import (
    FEW,
    LEFT_ABOVE,
    WENT_LEFT,
    WENT_RIGHT,
    find,
)
from skforge.compiler.target import Target
from skforge.engine.kernels import KernelCache
from skforge.forest.forest import Forest
from tests.exactness.forests import drawn
from tests.exactness.test_contributions import in_blocks

FOREST = drawn(3, 6, covers=True, n_features=4)


def features_above(forest: Forest, node: int) -> list[tuple[int, int]]:
    """Return each ancestor and the child that leads to a node, the nearest first."""
    steps = []
    while True:
        above = np.flatnonzero((forest.left == node) | (forest.right == node))
        if not len(above):
            return steps
        steps.append((int(above[0]), node))
        node = int(above[0])


@pytest.mark.parametrize("layout", ["clusters", "preorder"])
def test_the_edge_before_is_the_nearest_one_of_the_same_feature(layout: str) -> None:
    if layout == "clusters":
        data = walk_data(FOREST, by_pairs=False, in_lanes=False)
        trees, node = data.trees, data.order.node
        assert trees.forest.n_trees < FOREST.n_trees  # some have several roots
    else:
        order = Preorder.of(FOREST)
        trees, node = order.trees, order.node
    place = {int(number): i for i, number in enumerate(node)}
    forest = trees.forest
    feature = forest.node_feature
    tree = np.searchsorted(forest.tree_offset, node, "right") - 1
    assert (np.diff(tree) >= 0).all()
    assert len(set(trees.before)) > 5  # none of the cases below is missing
    for i, number in enumerate(node):
        wanted = 0
        for above, child in features_above(forest, int(number)):
            if feature[above] == feature[number]:
                own = place[above] - trees.start[tree[i]]
                wanted = 2 * own + 1 + (forest.right[above] == child)
                break
        assert trees.before[i] == wanted


def test_sums_below_count_the_inner_nodes_of_subtrees() -> None:
    paths, inner = trace(FOREST), FOREST.left >= 0
    wanted = inner.astype(np.int64)
    for node in np.flatnonzero(inner):
        for above, _ in features_above(FOREST, int(node)):
            wanted[above] += 1
    np.testing.assert_array_equal(paths.sums_below(inner.astype(np.int64)), wanted)


def test_the_cases_of_subtrees_are_what_rows_do_at_their_nodes() -> None:
    paths = trace(FOREST)
    subtrees = find(FOREST, paths)
    sizes = (subtrees.node >= 0).sum(axis=1)
    states = [
        subtrees[i : i + 1].states(FOREST, paths, size)[0]
        for i, size in enumerate(sizes.tolist())
    ]
    assert {2, 3, 6} <= {*subtrees.cases.tolist()}  # with features tested above, too
    assert (subtrees.cases > FEW).any()
    random = np.random.default_rng(0)
    seen = [set() for _ in subtrees.cases]
    for _ in range(3000):
        goes_left = random.random(FOREST.n_nodes) < random.random()
        passed = np.ones(FOREST.n_nodes, np.bool_)
        for node in paths.inner:  # of children: whether the row passed up to their edge
            before = paths.before[node]
            comes = before < 0 or passed[before]
            passed[FOREST.left[node]] = comes and goes_left[node]
            passed[FOREST.right[node]] = comes and not goes_left[node]
        for i, members in enumerate(subtrees.node):
            at = members[members >= 0]
            left, right = passed[FOREST.left[at]], passed[FOREST.right[at]]
            state = np.where(left, WENT_LEFT, np.where(right, WENT_RIGHT, LEFT_ABOVE))
            adds = subtrees.by_right[i, : len(at)], subtrees.by_left_above[i, : len(at)]
            case = right @ adds[0] + ~(left | right) @ adds[1]
            assert (states[i][case] == state).all()
            seen[i].add(int(case))
    for count, cases in zip(subtrees.cases.tolist(), seen, strict=True):
        assert cases == {*range(count)}


def test_subtrees_are_whole_and_none_has_a_root() -> None:
    paths = trace(FOREST)
    subtrees = find(FOREST, paths)
    members = subtrees.node[subtrees.node >= 0]
    assert len({*members.tolist()}) == len(members) > len(paths.inner) / 2
    top = subtrees.node[:, 0]
    assert (paths.parent[top] >= 0).all()
    assert not np.isin(paths.parent[top], members).any()
    for node in subtrees.node:
        below = np.concatenate([FOREST.left[node], FOREST.right[node]])[
            np.tile(node >= 0, 2)
        ]
        inner = below[FOREST.left[below] >= 0]
        assert {*inner.tolist()} == {*node[node >= 0][1:].tolist()}


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
