"""Interventional interactions of pairs of features, without machine code."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

from skforge.compiler.layouts.background import interactions
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
from skforge.forest.means import Means
from skforge.forest.reference import draw_rows
from skforge.frontends import load_forest
from tests.exactness.forests import drawn
from tests.exactness.test_contributions import in_blocks
from tests.oracles.shap_values import interventional_interactions


@pytest.mark.parametrize(
    ("how", "depth", "most"),
    [
        ({"n_features": 4, "divisor": 3}, 4, 4),
        ({"n_features": 3, "n_outputs": 2, "vector": True}, 5, 3),
        # more than have a table of all patterns
        ({"n_features": 8, "n_outputs": 2, "shape": "chain"}, 30, 8),
    ],
)
def test_interactions_are_those_of_all_subsets(how, depth, most) -> None:
    forest = drawn(3, depth, **how)
    rows, background = draw_rows(forest, 3, 0), draw_rows(forest, 5, 1)
    found = interactions.interactions(forest, background, rows)
    wanted = interventional_interactions(forest, rows, background)
    assert trace(forest).distinct.max() == most
    assert (wanted != 0).mean() > 0.2
    limit = 1e-13 * np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted.astype(float), rtol=0, atol=limit)


def test_features_that_all_rows_meet_change_no_interactions() -> None:
    """Leaves of more than 63 features, whose patterns are no bits of a number."""
    random = np.random.default_rng(0)
    few = random.random((2, 5, 40)) < 0.6
    always = np.ones((2, 65, 40), bool)
    wanted, which = interactions._table(*few)
    many, places = interactions._table(*np.concatenate([few, always], axis=1))
    own = [k for k, pair in enumerate(combinations(range(70), 2)) if max(pair) < 5]
    found = many[:, places]
    np.testing.assert_allclose(found[own], wanted[:, which], rtol=0, atol=1e-15)
    assert np.abs(wanted).max() > 0.01
    assert (np.delete(found, own, axis=0) == 0).all()


# ------------------------------------------------------------ contribution walks


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


# ------------------------------------------------------------ means


random = np.random.default_rng(0)
X = random.normal(size=(80, 3))
Y = np.column_stack([X[:, 0] * 3 + 5, X[:, 1] ** 2])
MODELS = {
    "a tree": DecisionTreeRegressor(max_depth=4).fit(X, Y[:, 0]),
    "a leaf": DecisionTreeRegressor(max_depth=1, min_samples_leaf=80).fit(X, Y[:, 0]),
    "trees": RandomForestRegressor(4, max_depth=4, random_state=0).fit(X, Y[:, 0]),
    "two outputs": ExtraTreesRegressor(3, max_depth=4, random_state=0).fit(X, Y),
}


def trees_of(model: Any) -> list[Any]:
    return [one.tree_ for one in getattr(model, "estimators_", [model])]


@pytest.mark.parametrize("name", MODELS)
def test_the_mean_of_a_tree_is_that_of_its_training(name: str) -> None:
    model = MODELS[name]
    means = Means.of(load_forest(model))
    roots = np.array([tree.value[0, :, 0] for tree in trees_of(model)])
    np.testing.assert_allclose(means.of_tree, roots)
    np.testing.assert_allclose(means.bias, roots.mean(axis=0))
    assert means.complete.all()


@pytest.mark.parametrize("name", MODELS)
def test_the_mean_of_a_node_is_that_of_its_training(name: str) -> None:
    model = MODELS[name]
    forest = load_forest(model)
    found = Means.of(forest).of_node
    for i, tree in enumerate(trees_of(model)):
        begin, end = forest.tree_offset[i : i + 2]
        own = tree.value[forest.source_node[begin:end], :, 0]
        np.testing.assert_allclose(found[begin:end], own)


def test_leaves_are_centred_by_trees_whose_covers_add_up() -> None:
    forest = load_forest(MODELS["trees"])
    leaf = np.flatnonzero(forest.leaf >= 0)
    values = forest.leaf_value[forest.leaf[leaf]]
    means = Means.of(forest)
    tree = np.repeat(np.arange(4), np.diff(forest.tree_offset))[leaf]
    np.testing.assert_allclose(means.centred(leaf), values - means.of_tree[tree])
    cover = forest.cover.copy()
    cover[forest.left[forest.tree_offset[1]]] *= 1.5
    means = Means.of(replace(forest, cover=cover))
    assert means.complete.tolist() == [True, False, True, True]
    mean = np.where(tree == 1, 0.0, means.of_tree[tree, 0])
    np.testing.assert_allclose(means.centred(leaf)[:, 0], values[:, 0] - mean)
