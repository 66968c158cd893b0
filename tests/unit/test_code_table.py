"""Codes: every predicate is one comparison of integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeRegressor

from skforge import load_forest
from skforge.compiler.passes.hir import normalize_predicates
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.bins import code_dtype, column_count, plan_codes
from skforge.forest.forest import Forest
from skforge.forest.reference import draw_rows, evaluate_predicates
from tests.oracles.codes import encode_rows
from tests.strategies_forest import edge_rows, random_forest


@given(random_forest(), st.sampled_from([np.uint8, np.uint16]), st.integers(0, 99))
def test_code_above_rank_is_the_predicate(forest, dtype, seed):
    normal, comparison = normalize_predicates.run(forest)
    table = plan_codes(normal, dtype)
    X = edge_rows(normal, 40, seed)
    codes = encode_rows(table, normal, comparison, X)
    for p in range(normal.n_predicates):
        left = evaluate_predicates(normal, np.full(len(X), p), X[:, normal.feature[p]])
        right = codes[:, table.column_of[p]] > table.rank_of[p]
        np.testing.assert_array_equal(right, ~left)


@given(random_forest(), st.integers(0, 99))
def test_tests_for_equality_share_columns(forest: Forest, seed: int) -> None:
    normal, comparison = normalize_predicates.run(forest)
    table = plan_codes(normal, np.uint16, merge=True)
    X = edge_rows(normal, 40, seed)
    codes = encode_rows(table, normal, comparison, X)
    own, rank = codes[:, table.column_of], table.rank_of
    right = np.where(table.equal, own != rank, own > rank)
    for p in range(normal.n_predicates):
        x = X[:, normal.feature[p]]
        left = evaluate_predicates(normal, np.full(len(X), p), x)
        kind = table.ordered[table.column_of[p]], normal.missing[p]
        fine = np.full(len(X), True)  # merged codes do not cover missing values
        if kind[0] and kind[1] != Missing.NEVER:
            fine = ~np.isnan(x) & ((kind[1] == Missing.NAN) | (abs(x) > 1e-30))
        np.testing.assert_array_equal(right[fine, p], ~left[fine])


def test_one_column_holds_all_values_of_a_feature() -> None:
    X = np.random.default_rng(0).choice(5, (300, 1))
    model = make_pipeline(OneHotEncoder(), DecisionTreeRegressor(random_state=0))
    normal, _ = normalize_predicates.run(load_forest(model.fit(X, X[:, 0] % 2)))
    assert (normal.comparison == Comparison.EQ).sum() == 2
    assert column_count(normal) == 2
    assert column_count(normal, merge=True) == 1


def test_long_columns_are_cut(big_forest: Forest) -> None:
    normal, comparison = normalize_predicates.run(big_forest)
    assert code_dtype(normal) is np.uint16
    table = plan_codes(normal, np.uint8)
    assert table.counts.max() == 255
    assert table.n_columns > len(np.unique(normal.feature))
    X = draw_rows(normal, 50, 0)
    codes = encode_rows(table, normal, comparison, X)
    p = np.arange(normal.n_predicates)
    for row, own in zip(X, codes, strict=True):
        left = evaluate_predicates(normal, p, row[normal.feature])
        np.testing.assert_array_equal(own[table.column_of] > table.rank_of, ~left)


@pytest.fixture
def big_forest() -> Forest:
    from sklearn.ensemble import RandomForestRegressor

    from skforge import load_forest

    random = np.random.default_rng(0)
    X = random.standard_normal((2000, 3))
    model = RandomForestRegressor(10, random_state=0).fit(X, X[:, 0] * X[:, 1])
    return load_forest(model)
