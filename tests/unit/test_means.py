"""Expected values of trees and nodes: leaves weighted by the covers of their paths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

from skforge.forest.means import Means
from skforge.frontends import load_forest

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
