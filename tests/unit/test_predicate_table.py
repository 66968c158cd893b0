"""The table of predicates: every predicate a line, searches that find every code."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
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
    CATEGORY,
    DIRECT,
    DIRECT_LIMIT,
    SETS,
    SPARE_LINES,
    PredicateTable,
    plan_predicates,
    search_bits,
)
from skforge.compiler.passes.hir import normalize_predicates
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.reference import evaluate_predicates
from tests.exactness.sliced import COUNTS, counted
from tests.strategies_forest import NUMERIC, edge_rows, random_forest

#: lanes and levels as targets have them: AVX-512, AVX2, SSE; float32 and float64
MACHINES = ((16, 8), (8, 6), (8, 5), (8, 8), (4, 0), (2, 0))
AVX512 = Registers(16, 8, 4, 2)


def registers(lanes: int, levels: int) -> Registers:
    """Return those of a target; with eight lanes and levels, AVX2's."""
    return Registers(lanes, levels, 1, 1, buckets=6 if lanes == levels else 9)


def evaluate(
    table: PredicateTable, forest: Forest, comparison: str, lanes: int, rows: np.ndarray
) -> np.ndarray:
    """Return each predicate's line for the rows, from the table's data alone."""
    lines = np.zeros((table.n_lines, len(rows)), bool)
    sets = np.flatnonzero(forest.comparison == Comparison.IN)
    jobs = table.jobs
    for tile, start in enumerate(table.tile_start.tolist()):
        for j in range(table.tile_jobs[tile], table.tile_jobs[tile + 1]):
            column = jobs["column"][j]
            assert 0 <= column < lanes
            x = _clean(table, rows[:, start + column].copy())
            first, count, at = jobs["line"][j], jobs["count"][j], jobs["offset"][j]
            assert at % lanes == 0
            if jobs["kind"][j] == DIRECT:
                for i in range(count):
                    lines[first + i] = _right(
                        table, comparison, x, table.numbers[at + i]
                    )
            elif jobs["kind"][j] == CATEGORY:
                for i in range(count):
                    p = sets[int(table.numbers[at + i])]
                    lines[first + i] = ~_inside(forest, p, x) & ~np.isnan(x)
            elif jobs["kind"][j] in SETS:
                entries = SETS[int(jobs["kind"][j])]
                entry = _entry(forest, x, entries)
                for i in range(count):
                    byte = table.set_tables[at + i // 8 * entries + entry]
                    lines[first + i] = byte >> (7 - i % 8) & 1
            elif jobs["kind"][j] > BUCKETS:
                find = _by_few if jobs["kind"][j] > BUCKETS_OF_FEW else _by_bucket
                bits = search_bits(int(jobs["kind"][j]))
                code = np.minimum(find(table, comparison, at, x), (1 << bits) - 1)
                for i in range(count):
                    lines[first + i] = code > i
            else:
                levels = int(jobs["kind"][j])
                code = _search(table, comparison, lanes, levels, at, x)
                for i in range(count):
                    lines[first + i] = code > i
            right = table.right_lines[table.right_offset[j] : table.right_offset[j + 1]]
            assert set(right.tolist()) <= set(range(first, first + count))
            if not table.unordered:
                lines[right] |= np.isnan(x)
    return lines[table.line_of]


def _entry(forest: Forest, x: np.ndarray, entries: int) -> np.ndarray:
    above = x > -1 if forest.truncate_categories else x >= 0
    known = above & (x < entries - 2)
    entry = np.where(known, np.where(known, x, 0).astype(np.int64), entries - 1)
    return np.where(np.isnan(x), entries - 2, entry)


def _clean(table: PredicateTable, x: np.ndarray) -> np.ndarray:
    if table.missing == Missing.NEVER:
        x[np.isnan(x)] = 0
    if table.missing == Missing.ZERO:
        x[np.abs(x) <= np.float32(1e-35)] = np.nan
    return x


def _right(table: PredicateTable, comparison: str, x, number) -> np.ndarray:
    right = x >= number if comparison == "lt" else x > number
    return right | np.isnan(x) if table.unordered else right


def _search(table, comparison, lanes, levels, at, x) -> np.ndarray:
    """Look the pivots up level by level, as the kernel does in registers."""
    index = np.zeros(len(x), np.int64)
    code = np.zeros(len(x), np.int64)
    for j in range(levels):
        entries = max(lanes, 1 << j)
        pivot = table.numbers[at : at + entries][index % entries]
        right = _right(table, comparison, x, pivot)
        index |= right.astype(np.int64) << j
        code |= right.astype(np.int64) << (levels - 1 - j)
        at += entries
    return code


def _by_bucket(table, comparison, at, x) -> np.ndarray:
    """Compare with the threshold of one bucket, as the kernel does."""
    bucket = _bucket(table, at, x)
    threshold, codes = (table.numbers[at + 4 + k + 2 * bucket] for k in (0, 1))
    codes = codes.view(np.uint32)
    right = _right(table, comparison, x, threshold)
    return np.where(right, codes // 256, codes % 256).astype(np.int64)


def _by_few(table, comparison, at, x) -> np.ndarray:
    """Compare with the four thresholds from those of one bucket on."""
    first = int(table.numbers[at + 3])
    code = table.before[first + _bucket(table, at, x)].astype(np.int64)
    thresholds = [table.numbers[at + 4 + code + k] for k in range(4)]
    passed = [_right(table, comparison, x, t).astype(np.int64) for t in thresholds]
    return np.minimum(code + sum(passed), 255)


def _bucket(table, at, x) -> np.ndarray:
    scale, shift, last = table.numbers[at : at + 3]
    with np.errstate(over="ignore"):
        y = x * scale + shift
    empty = last if table.unordered else 0
    return np.where(np.isnan(y), empty, np.clip(y, 0, last)).astype(np.int64)


def _inside(forest: Forest, predicate: int, x: np.ndarray) -> np.ndarray:
    first, last = forest.category_offset[predicate : predicate + 2]
    bits = np.unpackbits(
        forest.category_words[first:last].view(np.uint8), bitorder="little"
    )
    above = x > -1 if forest.truncate_categories else x >= 0
    possible = above & (x < len(bits))
    number = np.where(possible, x, 0).astype(np.int64)
    return possible & (bits[number] != 0)


def check(forest: Forest, lanes: int, levels: int, n: int = 200) -> PredicateTable:
    normal, comparison = normalize_predicates.run(forest)
    table = plan_predicates(normal, registers(lanes, levels))
    rows = edge_rows(normal, n, seed=5)
    with np.errstate(invalid="ignore"):
        got = evaluate(table, normal, comparison, lanes, rows)
    for p in range(normal.n_predicates):
        value = rows[:, normal.feature[p]]
        left = evaluate_predicates(normal, np.full(n, p), value)
        np.testing.assert_array_equal(got[p], ~left, err_msg=f"predicate {p}")
    # every predicate has a line of its own; spare ones come after those of searches
    assert len(np.unique(table.line_of)) == normal.n_predicates
    in_tables = np.isin(table.jobs["kind"], tuple(SETS))
    padding = -table.jobs["count"][in_tables] % 8
    assert table.n_lines == normal.n_predicates + padding.sum() + SPARE_LINES
    assert table.line_of.max(initial=0) < table.n_lines
    searched = ~np.isin(table.jobs["kind"], (DIRECT, CATEGORY, *SETS))
    others = table.jobs["line"][~searched]
    if searched.any() and len(others):
        end = table.jobs["count"][searched].sum() + SPARE_LINES
        assert others.min() == end
    assert table.numbers.dtype == normal.threshold.dtype
    assert table.jobs["count"].sum() == normal.n_predicates
    return table


@settings(max_examples=25)
@given(st.data())
def test_random_forests(data: st.DataObject) -> None:
    missing = data.draw(st.sampled_from(list(Missing)))
    options = {"max_depth": 5, "max_features": 9, "comparisons": NUMERIC}
    forest = data.draw(random_forest(missing=(missing,), **options))
    if forest.n_predicates:
        check(forest, *data.draw(st.sampled_from(MACHINES)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("lanes", "levels"), MACHINES)
@pytest.mark.parametrize("comparison", [Comparison.LT, Comparison.LE])
@pytest.mark.parametrize("sides", ["left", "right", "mixed"])
def test_every_number_of_thresholds(lanes, levels, comparison, sides):
    check(
        counted(COUNTS, comparison=comparison, sides=sides, infinite=True),
        lanes,
        levels,
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("comparison", [Comparison.LT, Comparison.LE])
@pytest.mark.parametrize("sides", ["left", "right", "mixed"])
@pytest.mark.parametrize("infinite", [False, True])
def test_buckets(comparison: Comparison, sides: str, infinite: bool) -> None:
    given = dict(comparison=comparison, sides=sides, infinite=infinite, even=True)
    for counts in (COUNTS, (100,)):
        table = check(counted(counts, twice=counts == (100,), **given), 8, 8)
        found = table.jobs["kind"][table.jobs["kind"] > BUCKETS]
        assert {*found.tolist()} >= {BUCKETS + 8}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("comparison", [Comparison.LT, Comparison.LE])
@pytest.mark.parametrize("sides", ["left", "right", "mixed"])
@pytest.mark.parametrize("infinite", [False, True])
def test_buckets_of_several_thresholds(comparison, sides, infinite):
    given = dict(comparison=comparison, sides=sides, infinite=infinite)
    table = check(counted((64, 100, 127, 128, 200, 255), **given), 8, 8)
    assert np.count_nonzero(table.jobs["kind"] > BUCKETS_OF_FEW) >= 4


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
        check(counted((100, 40) + (0,) * (n - 2), even=True), 8, 8)
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


@pytest.mark.parametrize(("lanes", "levels"), MACHINES)
def test_the_same_threshold_for_both_sides_of_missing(lanes: int, levels: int) -> None:
    check(counted((5, 20, 130), twice=True), lanes, levels)


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
