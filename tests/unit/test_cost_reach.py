"""How many lines of a forest's data rows reach, counted beside simulated rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.tree import DecisionTreeRegressor

from skforge import load_forest
from skforge.compiler.cost import counts
from skforge.compiler.cost.counts import (
    LINE,
    RAREST,
    ForestCounts,
    Reach,
    rarity,
    shares,
)
from skforge.compiler.layouts.tiles.tile_layout import top_levels
from skforge.compiler.target import Target
from tests.forests_by_hand import forest_of_nodes

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(4000, 6)).astype(np.float32)
Y = X[:, 0] * X[:, 1] + RANDOM.normal(size=len(X))


def test_shares_follow_the_training_rows():
    tree = DecisionTreeRegressor(max_depth=5, random_state=0).fit(X, Y)
    forest = load_forest(tree)
    share = shares(forest)
    inner = forest.leaf < 0
    below = share[forest.left[inner]] + share[forest.right[inner]]
    assert share[0] == 1 and np.allclose(below, share[inner])
    reached = tree.decision_path(X).toarray().mean(axis=0)
    assert np.allclose(np.sort(share), np.sort(reached))


def test_without_weights_all_leaves_are_as_likely():
    tree = DecisionTreeRegressor(max_leaf_nodes=9, random_state=0).fit(X, Y)
    forest = replace(load_forest(tree), cover=np.zeros(0))
    assert np.allclose(shares(forest)[forest.leaf >= 0], 1 / 9)


def test_missed_leaves_are_those_that_a_cache_lost():
    """Beside a cache of some lines, of which the one not read for longest goes."""
    model = ExtraTreesRegressor(20, max_depth=9, bootstrap=False, random_state=0)
    model.fit(X, Y)
    forest = load_forest(model)
    leaves = Reach.of(rarity(shares(forest)[forest.leaf >= 0]), LINE)
    rows = np.array([1.0, float(len(X))])
    for lines in (100, 300, 1000):
        held: dict[tuple[int, int], None] = {}
        lost = 0
        for row in model.apply(X):
            for leaf in enumerate(row.tolist()):
                lost += held.pop(leaf, 0) == 0
                held[leaf] = None
                if len(held) > lines:
                    del held[next(iter(held))]
        few, many = leaves.missed(lines * LINE, rows)
        assert few == 0 and lost / len(X) / 1.2 < many < lost / len(X) * 1.2
    assert not leaves.missed(1 << 30, rows).any()


def test_skewed_trees_miss_a_smaller_part_of_their_lines_than_bushy_ones():
    one, rows = np.ones(1), np.array([4096.0])
    lines = 2.0 ** np.arange(10)
    bushy = Reach(np.pad([lines.sum()], (9, RAREST - 10)))
    skewed = Reach(np.pad(lines, (0, RAREST - 10)))
    few, many = (
        float((reach.missed(bushy.size / 2, rows) / reach.distinct(one))[0])
        for reach in (skewed, bushy)
    )
    assert 0 < few < many / 3
    assert skewed.beside(bushy, 2).size == 3 * bushy.size


@pytest.mark.parametrize("rows", [1, 8, 64, 512])
def test_distinct_leaves_are_those_that_rows_reach(rows):
    model = ExtraTreesRegressor(20, max_depth=9, bootstrap=False, random_state=0)
    model.fit(X, Y)
    forest = load_forest(model)
    leaves = rarity(shares(forest)[forest.leaf >= 0])
    expected = Reach.of(leaves, LINE).distinct(np.array([float(rows)]))[0]
    drawn = [RANDOM.choice(len(X), rows) for _ in range(20)]
    found = np.mean(
        [sum(len(set(column)) for column in model.apply(X[d]).T) for d in drawn]
    )
    assert found / 1.2 < expected < found * 1.2


def test_lines_of_small_items_are_shared():
    rare = np.repeat(np.arange(8), 2 ** np.arange(8))  # a whole tree, by levels
    apart, together = Reach.of(rare, LINE), Reach.of(rare, LINE / 8)
    assert together.size == apart.size / 8
    one = np.array([1.0])
    assert together.distinct(one)[0] < apart.distinct(one)[0]


@pytest.mark.parametrize("level", ["v3", "v4"])
def test_rows_pass_as_many_tiles_as_their_walks_have(level):
    model = ExtraTreesRegressor(5, max_depth=15, random_state=0).fit(X, Y)
    forest, target = load_forest(model), Target.x86_64(level)
    found = ForestCounts(forest, target)
    walked = np.mean([e.decision_path(X).sum() / len(X) - 1 for e in model.estimators_])
    assert found.walk_depth == pytest.approx(walked)
    assert found.values.visits == found.three.visits
    depths = np.concatenate(
        [e.decision_path(X).sum(1).A1 - 1 for e in model.estimators_]
    )
    for levels, tiles in ((3, found.three), (4, found.four)):
        below = np.maximum(depths - top_levels(forest, levels, target), 0)
        passed = np.ceil(below / levels).mean()
        assert tiles.visits == pytest.approx(passed, rel=0.1)  # of rounded shares


def test_some_trees_of_a_large_forest_stand_for_all(monkeypatch):
    model = ExtraTreesRegressor(120, max_depth=9, random_state=0).fit(X, Y)
    forest, here = load_forest(model), Target.parse("cpu")
    whole = ForestCounts(forest, here)
    for first, last in ((0, 7), (50, 120)):
        part = slice(*forest.tree_offset[[first, last]])
        assert np.array_equal(shares(forest, first, last), shares(forest)[part])
    monkeypatch.setattr(counts, "COUNTED", forest.n_nodes // 3)
    some = ForestCounts(forest, here)
    rows = np.array([1.0, 500.0])
    for name in ("three", "four", "values"):
        one, all_ = getattr(some, name), getattr(whole, name)
        assert one.visits == pytest.approx(all_.visits, rel=0.03)
        assert one.lines.distinct(rows) == pytest.approx(
            all_.lines.distinct(rows), 0.05
        )
        assert one.top == all_.top
    assert some.walk_depth == pytest.approx(whole.walk_depth, rel=0.03)
    assert some.walk_depth != whole.walk_depth
    for name in ("leaves", "walked", "rest"):
        sizes = getattr(some, name).size, getattr(whole, name).size
        assert sizes[0] == pytest.approx(sizes[1], rel=0.05)


def test_rows_end_half_way_down_a_tree_deeper_than_16_bits_count():
    n = 40_000
    inner = np.arange(n)
    children = np.full((2, 2 * n + 1), -1)
    children[:, 2 * inner] = 2 * inner + 1, 2 * inner + 2
    feature = np.zeros(n, int)
    forest = forest_of_nodes(*children, feature=feature).validate()
    passed = shares(forest)[forest.leaf < 0]
    assert passed.sum() == pytest.approx(n / 2, rel=1e-3)
    assert (np.diff(passed) < 0).all()


def test_what_no_training_row_reached_is_as_rare_as_can_be() -> None:
    share = np.array([1.0, 0.25, 2.0**-60, 0.0])
    assert rarity(share).tolist() == [0, 2, RAREST - 1, RAREST - 1]
