"""The oracle, against a walk written one row and one node at a time."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skforge.exceptions import InvalidInputError
from skforge.forest import reference
from skforge.forest.arrays import ZERO_THRESHOLD, Comparison, Missing
from skforge.forest.combine import subset
from skforge.forest.forest import Forest
from skforge.forest.predicates import deduplicate_predicates
from skforge.forest.reference import draw_rows, reference_leaves, reference_raw
from tests.forests_by_hand import stumps
from tests.refusals import error_of

ODD = [0.0, -0.0, 1e-45, -1e-45, 1e-36, -2e-35, 1.0, 3.0, -1.0, 40.0, 70.5, 1e30]
ODD += [-0.5, -0.999, 1e-35, ZERO_THRESHOLD, 1.00000003e-35]


def random_forest(seed, dtype=np.float32, n_outputs=1, vector=False, **changes):
    """A forest of random shapes that uses every comparison and missing kind."""
    rng = np.random.default_rng(seed)
    left, right, offset = [], [], [0]
    for _ in range(7):
        start, grown = offset[-1], [0]
        size = 1
        children = {}
        for node in grown:
            if size < 40 and rng.random() < 0.75:
                children[node] = (size, size + 1)
                grown += [size, size + 1]
                size += 2
        pairs = [children.get(node, (-1 - start, -1 - start)) for node in range(size)]
        left += [start + a for a, _ in pairs]
        right += [start + b for _, b in pairs]
        offset.append(start + size)
    left, right = np.array(left), np.array(right)
    inner = left >= 0
    n = int(inner.sum())
    comparison = rng.integers(0, len(Comparison), n)
    threshold = rng.choice([*ODD, np.inf, -np.inf], n).astype(dtype)
    sets = {
        i: rng.integers(0, 2**32, rng.integers(0, 4), dtype=np.uint32)
        for i in np.flatnonzero(comparison >= Comparison.IN)
    }
    table, index = deduplicate_predicates(
        rng.integers(0, 4, n), comparison, threshold, rng.integers(0, len(Missing), n),
        rng.random(n) < 0.5, sets,
    )  # fmt: skip
    predicate = np.full(len(left), -1)
    predicate[inner] = index
    leaf = np.where(inner, -1, np.cumsum(~inner) - 1)
    width = n_outputs if vector else 1
    arguments = {
        "tree_offset": np.array(offset),
        "tree_output": np.full(7, -1) if vector else rng.integers(0, n_outputs, 7),
        "predicate": predicate,
        "left": left,
        "right": right,
        "leaf": leaf,
        "source_node": np.arange(len(left)),
        "cover": np.zeros(0),
        "leaf_value": rng.normal(size=(int((~inner).sum()), width)).astype(dtype),
        **table,
        "n_features": 4,
        "base": rng.normal(size=n_outputs).astype(dtype),
    }
    return Forest(**{**arguments, **changes}).validate()


def goes_left(forest, p, x):
    """Apply one predicate to one Python number, spelled out case by case."""
    kind = forest.missing[p]
    if math.isnan(x):
        if kind != Missing.NEVER:
            return bool(forest.missing_left[p])
        x = 0.0
    if kind == Missing.ZERO and abs(x) <= ZERO_THRESHOLD:
        return bool(forest.missing_left[p])
    t = float(forest.threshold[p])
    comparison = Comparison(forest.comparison[p])
    if comparison >= Comparison.IN:
        start, stop = forest.category_offset[p : p + 2]
        words = [int(w) for w in forest.category_words[start:stop]]
        bits = {
            i * 32 + b for i, w in enumerate(words) for b in range(32) if w >> b & 1
        }
        possible = x > -1 if forest.truncate_categories else x >= 0
        inside = possible and not math.isinf(x) and int(x) in bits
        if comparison == Comparison.MEMBER:
            return inside and x == int(x)
        return inside == (comparison == Comparison.IN)
    return {
        Comparison.LT: x < t, Comparison.LE: x <= t, Comparison.GT: x > t,
        Comparison.GE: x >= t, Comparison.EQ: x == t, Comparison.NE: x != t,
    }[comparison]  # fmt: skip


def walk(forest, row, tree):
    node = int(forest.tree_offset[tree])
    while forest.leaf[node] < 0:
        p = forest.predicate[node]
        value = float(forest.input_dtype.type(row[forest.feature[p]]))
        if value == forest.missing_value:
            value = math.nan
        left = goes_left(forest, p, value)
        node = int(forest.left[node] if left else forest.right[node])
    return node


def odd_rows(dtype, n=150):
    rng = np.random.default_rng(9)
    return rng.choice([*ODD, np.nan, np.inf, -np.inf, 5.5, 31, 32], (n, 4)).astype(
        dtype
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(6))
def test_leaves_are_those_of_a_walk_by_hand(seed, dtype):
    forest = random_forest(seed, dtype)
    rows = odd_rows(dtype)
    by_hand = [[walk(forest, row, t) for t in range(forest.n_trees)] for row in rows]
    assert_array_equal(reference_leaves(forest, rows), by_hand)


@pytest.mark.parametrize("seed", [0, 3])
def test_categories_cut_toward_zero(seed):
    forest = random_forest(seed, np.float64, truncate_categories=True)
    rows = odd_rows(np.float64)
    by_hand = [[walk(forest, row, t) for t in range(forest.n_trees)] for row in rows]
    leaves = reference_leaves(forest, rows)
    assert_array_equal(leaves, by_hand)
    assert (leaves != reference_leaves(random_forest(seed, np.float64), rows)).any()


def test_together_the_forests_use_everything():
    forests = [random_forest(seed) for seed in range(6)]
    assert {c for f in forests for c in f.comparison} == {*map(int, Comparison)}
    assert {m for f in forests for m in f.missing} == {*map(int, Missing)}
    assert any((np.diff(f.category_offset) > 1).any() for f in forests)


@pytest.mark.parametrize("marker", [3.0, -1.0, 0.0])
def test_the_rows_own_marker_is_missing(marker):
    forest = random_forest(2, missing_value=marker)
    rows = odd_rows(np.float32)
    by_hand = [[walk(forest, row, t) for t in range(forest.n_trees)] for row in rows]
    assert_array_equal(reference_leaves(forest, rows), by_hand)
    plain = reference_leaves(random_forest(2), rows)
    assert (plain != np.array(by_hand)).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("divisor", [1, 7])
def test_sums_are_made_one_tree_at_a_time(dtype, vector, divisor):
    forest = random_forest(1, dtype, n_outputs=3, vector=vector, divisor=divisor)
    rows = odd_rows(dtype, 40)
    raw = reference_raw(forest, rows)
    assert raw.dtype == dtype
    for row, actual in zip(rows, raw, strict=True):
        total = [dtype(b) for b in forest.base]
        for tree in range(forest.n_trees):
            value = forest.leaf_value[forest.leaf[walk(forest, row, tree)]]
            outputs = range(3) if vector else [forest.tree_output[tree]]
            for column, output in enumerate(outputs):
                total[output] = dtype(total[output] + value[column])
        assert_array_equal(actual, [dtype(t / dtype(divisor)) for t in total])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_beyond_the_largest_number_warn_of_nothing(dtype):
    forest = random_forest(1, dtype)
    leaves = np.full_like(forest.leaf_value, np.finfo(dtype).max)
    infinite = np.full_like(forest.base, -np.inf)
    rows = odd_rows(dtype, 9)
    above = replace(forest, leaf_value=leaves)
    assert (reference_raw(above, rows) == np.inf).all()
    never = replace(forest, leaf_value=leaves * 0 + np.inf, base=infinite)
    assert np.isnan(reference_raw(never, rows)).all()


def test_chunks_of_rows_change_nothing(monkeypatch):
    forest = random_forest(3)
    rows = odd_rows(np.float32)
    whole = reference_leaves(forest, rows)
    monkeypatch.setattr("skforge.forest.reference._CELLS", 10 * forest.n_trees)
    assert_array_equal(reference_leaves(forest, rows), whole)


def test_no_rows_and_no_trees():
    forest = random_forest(0, n_outputs=2)
    assert reference_raw(forest, np.zeros((0, 4))).shape == (0, 2)
    nothing = subset(forest, [])
    assert_array_equal(reference_raw(nothing, np.zeros((2, 4))), [forest.base] * 2)
    assert reference_leaves(nothing, np.zeros((2, 4))).shape == (2, 0)


@pytest.mark.parametrize("shape", [(4,), (2, 3), (1, 2, 4)])
def test_rows_of_the_wrong_shape_are_refused(shape):
    said = error_of(InvalidInputError, reference_raw, random_forest(0), np.zeros(shape))
    assert said == (f"X has shape {shape}, but the model takes rows of shape (n, 4).")


def test_the_callers_rows_are_not_changed():
    forest = random_forest(2, missing_value=3.0)
    rows = odd_rows(np.float32)
    before = rows.copy()
    reference_raw(forest, rows)
    assert_array_equal(rows, before)


def line_forest(thresholds, **changes):
    """One feature, one test per tree."""
    n = len(thresholds)
    fields = {"feature": np.zeros(n, int), "n_features": 2, **changes}
    threshold = np.array(thresholds, np.float32)
    return stumps(n, threshold=threshold, **fields).validate()


def test_drawn_rows_hit_thresholds_and_their_neighbours():
    cuts = np.array([-3.5, 0.0, 0.25, 1000.0], np.float32)
    drawn = draw_rows(line_forest(cuts), 4000, seed=0)
    assert drawn.shape == (4000, 2)
    assert drawn.dtype == np.float32
    x = drawn[:, 0]
    low = np.nextafter(cuts, np.float32(-np.inf))
    high = np.nextafter(cuts, np.float32(np.inf))
    for exact in (*cuts, *low, *high):
        assert (x == exact).any(), exact
    assert 0.07 < np.isin(x, np.concatenate([cuts, low, high])).mean() < 0.13
    gap = np.searchsorted(cuts, x)
    assert_array_equal(np.bincount(gap, minlength=5) > 600, [True] * 5)
    assert np.isfinite(drawn).all()


def test_drawn_rows_are_repeatable_and_missing_when_asked():
    forest = line_forest([1.0, 2.0])
    assert_array_equal(draw_rows(forest, 50, 3), draw_rows(forest, 50, 3))
    assert (draw_rows(forest, 50, 3) != draw_rows(forest, 50, 4)).any()
    assert 0.2 < np.isnan(draw_rows(forest, 1000, 0, missing=0.3)).mean() < 0.4
    marked = line_forest([1.0, 2.0], missing_value=-999.0)
    assert 0.2 < (draw_rows(marked, 1000, 0, missing=0.3) == -999).mean() < 0.4


@pytest.mark.parametrize("cuts", [[np.inf], [-np.inf, np.inf], [3e38, -3e38], [1e-45]])
def test_extreme_thresholds_can_be_drawn_around(cuts):
    drawn = draw_rows(line_forest(cuts), 200, seed=0)
    assert np.isfinite(drawn).all()


def test_each_column_is_drawn_around_its_own_thresholds():
    cuts = [1.0, 5.0, 2.0, 2.0, -7.0]
    forest = line_forest(cuts, feature=[3, 1, 3, 3, 0], n_features=5)
    drawn = draw_rows(forest, 3000, seed=0)
    for column, own in {0: [-7], 1: [5], 3: [1, 2]}.items():
        x = drawn[:, column]
        gaps = np.bincount(np.searchsorted(own, x), minlength=len(own) + 1)
        assert (gaps > 3000 / len(gaps) * 0.8).all()
        assert np.isin(own, x).all()
        assert np.abs(x - np.mean(own)).max() < 2
    assert 0.8 < drawn[:, [2, 4]].std() < 1.2  # of no test: the standard normal ones


def test_rows_of_many_columns_are_drawn_at_once():
    forest = line_forest(np.arange(20_000), feature=range(20_000), n_features=20_000)
    calls = list[str]()
    sys.setprofile(lambda frame, event, function: calls.append(event))
    try:
        draw_rows(forest, 100, seed=0)
    finally:
        sys.setprofile(None)
    assert len(calls) < 20_000  # column by column, several for each


def test_drawn_categories_lie_in_and_around_the_sets():
    forest = line_forest(
        [0.0],
        comparison=[Comparison.NOT_IN],
        category_offset=[0, 2],
        category_words=np.array([1, 1 << 31], np.uint32),
    )
    x = draw_rows(forest, 5000, seed=0)[:, 0]
    whole = x[x == np.floor(x)]
    assert {0, 63, 64, 66, -1, 2**24} <= set(whole.tolist())
    assert (x != np.floor(x)).any()
    leaves = reference_leaves(forest, np.stack([x, x], axis=1))[:, 0]
    assert_array_equal(leaves == 2, np.isin(np.floor(x), [0, 63]) & (x >= 0))


def test_rows_of_huge_forests_are_drawn_around_some_thresholds_of_each_column(
    monkeypatch,
):
    cuts = np.concatenate([np.arange(1e6, 2e6, 500), [-7e6]]).astype(np.float32)
    column = np.where(cuts > 0, 0, 2)
    rows = np.zeros((4000, 3), np.float32)
    monkeypatch.setattr(reference, "_MOST_CUTS", 100)
    reference._draw_around(rows, column, cuts, np.random.default_rng(0))
    assert ((rows[:, 0] > 7e5) & (rows[:, 0] < 2.3e6)).all()
    assert len(np.unique(rows[:, 0] // 1e4)) > 100
    assert (rows[:, 2] < -6e6).all()
    assert not rows[:, 1].any()
