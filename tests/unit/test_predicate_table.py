"""The table of predicates: every predicate a line, searches that find every code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skforge.compiler.binning.buckets import bucket_of
from skforge.compiler.binning.search import Registers
from skforge.compiler.binning.transpose import WIDE
from skforge.compiler.layouts.bitsliced import predicate_table
from skforge.compiler.layouts.bitsliced.bucket_search import (
    FEW,
    bucket_table,
    table_of_few,
)
from skforge.compiler.layouts.bitsliced.predicate_table import (
    BUCKETS,
    BUCKETS_OF_FEW,
    DIRECT,
    DIRECT_LIMIT,
    plan_predicates,
)
from skforge.compiler.passes.hir import normalize_predicates
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_leaves, reference_raw
from tests.exactness.sliced import counted
from tests.forests_by_hand import stumps
from tests.strategies_forest import edge_rows, random_forest

AVX512 = Registers(16, 8, 4, 2)


def registers(lanes: int, levels: int) -> Registers:
    """Return those of a target; with eight lanes and levels, AVX2's."""
    return Registers(lanes, levels, 1, 1, buckets=6 if lanes == levels else 9)


def test_few_thresholds_of_a_bucket() -> None:
    even = np.linspace(0, 1, 100, dtype=np.float32)
    near = np.nextafter(even[50], np.float32(1))
    assert table_of_few(np.append(even, [near, near, even[50]])) is not None
    assert table_of_few(np.append(even, [near, near, even[50], even[50]])) is None
    # three at each end lie apart from the others
    far = np.array([-3e38, -2e38, -1e38, 1e38, 2e38, 3e38], np.float32)
    assert table_of_few(np.append(even, far)) is not None
    for few in ([1.0] * 100, [np.inf] * 100, [-np.inf] * 50 + [0.0] * 50):
        assert table_of_few(np.array(few, np.float32)) is None


@pytest.mark.parametrize("few", [False, True])
def test_the_number_after_a_threshold_is_compared_with_it(few: bool) -> None:
    """As float64 it may be below the threshold; it was in the next bucket, unseen."""
    apart, random = 0, np.random.default_rng(0)
    for _ in range(40):
        steps = np.arange(200) + random.uniform(0, 0.5, 200)
        t = (1000 + steps / 100).astype(np.float32)
        after = np.nextafter(t, np.float32(np.inf))
        made = table_of_few(t) if few else bucket_table(t)
        if made is None:
            continue
        scale, shift, last = (made[0] if few else made)[:3]
        buckets = bucket_of(after, scale, shift, last)
        apart += np.sum(buckets != bucket_of(t, scale, shift, last))
        if few:
            first = made[1][buckets]
            assert np.all((first <= np.arange(200)) & (np.arange(200) < first + FEW))
        else:
            np.testing.assert_array_equal(made[4::2][buckets], t)
    assert apart


def test_buckets_of_a_forest_take_a_few_megabytes_at_most(monkeypatch):
    monkeypatch.setattr(predicate_table, "MOST_BYTES", 1 << 20)
    many = normalize_predicates.run(counted((255,) * 400, even=True, depth=8))[0]
    kind = plan_predicates(many, registers(8, 8)).jobs["kind"]
    used = kind > BUCKETS
    assert used[0] and not used[-1] and 100 < used.sum() < 350


def test_buckets_of_wide_rows_take_few_bytes() -> None:
    """Each part of a block reads them again."""
    narrow, wide = (
        plan_predicates(counted((100, 40) + (0,) * (n - 2), even=True), registers(8, 8))
        for n in (WIDE, WIDE + 1)
    )
    kinds = [{*table.jobs["kind"].tolist()} for table in (narrow, wide)]
    assert kinds[0] == {BUCKETS + 6, BUCKETS + 7}
    assert kinds[1] == {BUCKETS_OF_FEW + 6, BUCKETS_OF_FEW + 7}
    assert 2 * (wide.numbers.nbytes + wide.before.nbytes) < narrow.numbers.nbytes


def test_thresholds_too_close_for_buckets() -> None:
    even = np.linspace(0, 1, 100, dtype=np.float32)
    assert bucket_table(even) is not None
    near = np.sort(np.append(even, np.nextafter(even[50], np.float32(1))))
    assert bucket_table(near) is None
    for few in ([1.0] * 100, [np.inf] * 100, [-np.inf] * 50 + [0.0] * 50):
        assert bucket_table(np.array(few, np.float32)) is None
    # Scales outside of float32 are clamped.
    for size in (1e-44, 1e-38, 3e38):
        found = bucket_table(np.array([-size, 0, size], np.float32))
        assert found is None or np.isfinite(found[:3]).all()


def kinds(counts: tuple[int, ...], lanes: int, levels: int) -> list[int]:
    table = plan_predicates(counted(counts), registers(lanes, levels))
    return table.jobs["kind"].tolist()


@pytest.mark.parametrize(
    ("count", "wanted"),
    [
        (1, [DIRECT]),
        (DIRECT_LIMIT, [DIRECT]),
        (DIRECT_LIMIT + 1, [4]),
        (15, [4]),
        (16, [5]),
        (255, [8]),
        (256, [8, DIRECT]),
        (265, [8, 4]),
        (600, [8, 8, 7]),
    ],
)
def test_how_a_feature_is_evaluated(count: int, wanted: list[int]) -> None:
    assert kinds((count,), 16, 8) == wanted


def test_searches_take_no_more_levels_than_registers_allow() -> None:
    assert kinds((32,), 8, 5) == [5, DIRECT]
    assert kinds((200,), 4, 0) == [DIRECT]


@pytest.mark.parametrize("n_features", [1, 5, 15, 16, 17, 31, 40])
def test_tiles_cover_used_features_and_stay_within_rows(n_features: int) -> None:
    for used in ((0,), (n_features - 1,), (0, n_features // 2, n_features - 1)):
        used = tuple(sorted(set(used)))
        made = counted([3] * len(used), used=used, n_features=n_features)
        table = plan_predicates(made, AVX512)
        for tile, start in enumerate(table.tile_start.tolist()):
            assert 0 <= start <= max(0, n_features - 16)
            jobs = slice(table.tile_jobs[tile], table.tile_jobs[tile + 1])
            assert jobs.stop > jobs.start
            assert (start + table.jobs["column"][jobs] < n_features).all()
        assert table.tile_jobs[-1] == len(used)


def test_unused_features_are_in_no_tile() -> None:
    made = counted((3, 3), used=(2, 900), n_features=1000)
    assert plan_predicates(made, AVX512).tile_start.tolist() == [0, 896]


def test_missing_values_cost_nothing_where_they_go_one_way() -> None:
    right = plan_predicates(counted((3, 20), sides="right"), AVX512)
    assert right.unordered
    left = plan_predicates(counted((3, 20), sides="left"), AVX512)
    assert not left.unordered
    assert left.right_offset.tolist() == [0, 0, 0]
    never = plan_predicates(counted((3, 20), missing=Missing.NEVER), AVX512)
    assert never.missing == Missing.NEVER
    zero = plan_predicates(counted((3, 20), missing=Missing.ZERO), AVX512)
    assert zero.missing == Missing.ZERO


# ------------------------------------------------------------ normalize predicates


INF = np.inf


def table_of(tests, dtype="float32", missing=Missing.NAN, missing_left=False) -> Forest:
    """One stump for each (comparison, threshold), all on feature 0."""
    n = len(tests)
    return stumps(
        n,
        feature=np.zeros(n, int),
        comparison=[c for c, _ in tests],
        threshold=np.array([t for _, t in tests], dtype),
        missing=np.full(n, missing),
        missing_left=np.full(n, missing_left),
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
    forest = table_of([(comparison, 1.0), (comparison, 2.0)])
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
    forest = table_of(tests, dtype, missing, missing_left)
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
    assert normalize_predicates.run(table_of(tests))[1] == wanted


def test_opposite_tests_become_one_predicate():
    forest = table_of([(Comparison.LT, 1.0), (Comparison.GE, 1.0)])
    forest = replace(forest, missing_left=np.array([True, False]))
    result, _ = normalize_predicates.run(forest)
    assert result.n_predicates == 1
    assert result.left.tolist() == [1, -1, -1, 5, -1, -1]
    assert result.right.tolist() == [2, -1, -1, 4, -1, -1]
