"""Normalised forests send every row to the same leaf by one comparison."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skforge.compiler.passes.hir import normalize_predicates
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_leaves, reference_raw
from tests.strategies_forest import edge_rows, random_forest

INF = np.inf


def stumps(tests, dtype="float32", missing=Missing.NAN, missing_left=False) -> Forest:
    """One stump for each (comparison, threshold), all on feature 0."""
    n = len(tests)
    start = 3 * np.arange(n)
    left, right, predicate, leaf = (np.full(3 * n, -1) for _ in range(4))
    left[start], right[start], predicate[start] = start + 1, start + 2, np.arange(n)
    leaf[start + 1], leaf[start + 2] = 2 * np.arange(n), 2 * np.arange(n) + 1
    return Forest(
        tree_offset=np.append(start, 3 * n),
        tree_output=np.zeros(n, np.int32),
        predicate=predicate,
        left=left,
        right=right,
        leaf=leaf,
        source_node=np.arange(3 * n) % 3,
        cover=np.zeros(0),
        leaf_value=np.arange(2 * n, dtype=np.float32)[:, None],
        feature=np.zeros(n, np.int32),
        comparison=np.array([c for c, _ in tests], np.uint8),
        threshold=np.array([t for _, t in tests], dtype),
        missing=np.full(n, missing),
        missing_left=np.full(n, missing_left),
        category_offset=np.zeros(n + 1, np.int64),
        category_words=np.zeros(0, np.uint32),
        n_features=1,
        base=np.zeros(1, np.float32),
    ).validate()


@given(random_forest(), st.integers(0, 99))
def test_rows_reach_the_same_leaves(forest, seed):
    result, comparison = normalize_predicates.run(forest)
    result.validate()
    rows = edge_rows(forest, 60, seed)
    np.testing.assert_array_equal(
        reference_leaves(result, rows), reference_leaves(forest, rows)
    )
    np.testing.assert_array_equal(
        reference_raw(result, rows), reference_raw(forest, rows)
    )
    alike = {Comparison[comparison.upper()], Comparison.EQ, Comparison.IN}
    assert set(result.comparison) <= alike


@given(random_forest())
def test_a_second_run_changes_nothing(forest):
    once, comparison = normalize_predicates.run(forest)
    assert normalize_predicates.run(once) == (once, comparison)


@pytest.mark.parametrize(
    ("comparison", "name"), [(Comparison.LT, "lt"), (Comparison.LE, "le")]
)
def test_uniform_forests_are_returned_themselves(comparison, name):
    forest = stumps([(comparison, 1.0), (comparison, 2.0)])
    assert normalize_predicates.run(forest) == (forest, name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("missing", list(Missing))
@pytest.mark.parametrize("missing_left", [False, True])
@pytest.mark.parametrize(
    "tests",
    [
        [(Comparison.LE, INF), (Comparison.LT, 0.0), (Comparison.LT, 1.0)],
        [(Comparison.LT, -INF), (Comparison.LE, 0.0), (Comparison.LE, 1.0)],
        [(Comparison.GT, INF), (Comparison.LT, 0.0), (Comparison.LT, -INF)],
        [(Comparison.GE, -INF), (Comparison.LE, 0.0), (Comparison.LE, INF)],
        [
            (Comparison.LE, 3.4028234663852886e38),
            (Comparison.LT, 0),
            (Comparison.LT, 1),
        ],
        [(Comparison.LT, 0.0), (Comparison.LE, -1e-45), (Comparison.LE, 1e-45)],
    ],
    ids=lambda tests: ", ".join(f"{c.name} {t}" for c, t in tests),
)
def test_thresholds_at_the_ends_of_their_dtype(tests, dtype, missing, missing_left):
    forest = stumps(tests, dtype, missing, missing_left)
    result, _ = normalize_predicates.run(forest)
    info = np.finfo(dtype)
    values = [0.0, -0.0, INF, -INF, np.nan, info.max, -info.max, 1e-35, -1e-36]
    values += [info.smallest_subnormal, -info.smallest_subnormal, 1.0, -1.0]
    rows = np.array(values, dtype)[:, None]
    assert set(result.comparison) in ({Comparison.LT}, {Comparison.LE})
    np.testing.assert_array_equal(
        reference_leaves(result, rows), reference_leaves(forest, rows)
    )


@pytest.mark.parametrize(
    ("tests", "wanted"),
    [
        ([(Comparison.LT, 1.0), (Comparison.GT, 2.0), (Comparison.LE, 3.0)], "le"),
        ([(Comparison.LE, 1.0), (Comparison.LT, 2.0)], "lt"),
    ],
)
def test_the_commoner_comparison_wins_and_less_than_a_tie(tests, wanted):
    assert normalize_predicates.run(stumps(tests))[1] == wanted


def test_opposite_tests_become_one_predicate():
    forest = stumps([(Comparison.LT, 1.0), (Comparison.GE, 1.0)])
    forest = replace(forest, missing_left=np.array([True, False]))
    result, _ = normalize_predicates.run(forest)
    assert result.n_predicates == 1
    assert result.left.tolist() == [1, -1, -1, 5, -1, -1]
    assert result.right.tolist() == [2, -1, -1, 4, -1, -1]
