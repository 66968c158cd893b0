"""Default schedules: each range has one, it fits the forest, and suits its shape."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor

from skforge import load_forest
from skforge.compiler import driver
from skforge.compiler.cost.estimate import CostEstimate, plan_of
from skforge.compiler.cost.profile import MachineProfile
from skforge.compiler.cost.shape import UNROLL_LIMIT, ForestShape
from skforge.compiler.defaults import cpu as default_schedule
from skforge.compiler.defaults import walks as walk_rules
from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.target import Target
from skforge.forest.forest import Forest
from skforge.schedule.directives import Interleave
from skforge.schedule.families import lanes_schedule
from skforge.schedule.ranges import BATCH_RANGES, BatchRange
from tests.exactness.forests import MAKERS, drawn, forest, forest_of, tree
from tests.exactness.sliced import counted
from tests.turns import in_turns

V3, V4 = Target.x86_64("v3"), Target.x86_64("v4")


def test_ranges_cover_every_batch_size_once() -> None:
    """They start as 1, 2-15, 16-127, 128-2048 and above."""
    assert BATCH_RANGES == ((1, 1), (2, 15), (16, 127), (128, 2048), (2049, None))


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "level"), in_turns(MAKERS, ["v2", "v3", "v4", "aarch64"], often=2)
)
def test_every_forest_has_schedules_that_lower(name: str, level: str) -> None:
    target = Target.aarch64() if level == "aarch64" else Target.x86_64(level)
    table = default_schedules(forest(name), target)
    firsts, lasts = zip(*table, strict=True)
    assert firsts == (1, *(last + 1 for last in lasts[:-1]))  # no gap, no overlap
    assert lasts[-1] is None
    if name == "wide records" and level != "v3":
        return  # large; its schedules are those of the others
    for schedule in set(table.values()):
        hir = driver.build_hir(forest(name), schedule, "exact")
        assert driver.lower(hir, target).kernel.data


def kinds(made: Forest, target: Target) -> dict[BatchRange, str]:
    """Return the kind of schedule of each range."""
    table = default_schedules(made, target).items()
    return {rows: plan_of(schedule).kind for rows, schedule in table}


@pytest.mark.parametrize(
    ("l3_bytes", "n_features", "rows"),
    [(0, 8, 256), (1 << 30, 8, 256), (1 << 16, 8, 4096), (1 << 16, 100, 256)],
)
def test_values_are_compared_in_large_blocks_where_trees_outgrow_l3(
    l3_bytes: int, n_features: int, rows: int
) -> None:
    made = drawn(20, 11, shape="full", n_features=n_features)
    target = replace(V3, l2_bytes=1 << 18, l3_bytes=l3_bytes)
    plans = [plan_of(one) for one in default_schedule.candidates(made, target)]
    assert [plan.block for plan in plans if plan.kind == "values"] == [rows]


def test_few_rows_take_lanes_and_batches_take_bits() -> None:
    for target in (V3, V4):
        found = list(kinds(drawn(100, 6), target).values())
        assert found[0] == "lanes" and found[-1] == "bitsliced"
        blocks = [
            schedule.loop_nest(100).loops[0].step
            for schedule in default_schedules(drawn(100, 6), target).values()
        ][1:]
        assert blocks == sorted(blocks)


def test_predicates_go_by_tiles_of_trees_where_lines_outgrow_l2() -> None:
    made = counted([900] * 30)  # lines of 1.6 MiB

    def evaluated(kib: int, target: Target = V4) -> list[int]:
        table = default_schedules(made, replace(target, l2_bytes=kib << 10))
        plans = map(plan_of, table.values())
        return [plan.tests_of for plan in plans if plan.kind == "bitsliced"]

    assert max(evaluated(512)) in default_schedule.TREE_TILES
    assert evaluated(512)[0] == 0  # lines of few rows fit
    assert set(evaluated(8192)) == set(evaluated(8192, V3)) == {0}


def test_each_range_has_the_cheapest_schedule_but_for_little() -> None:
    for made in (drawn(100, 6), drawn(1, 8), deep_forest(None)):
        estimate = CostEstimate(made, V4)
        walks = walking_schedules(made, V4).values()
        offered = [*walks, *default_schedule.candidates(made, V4)]
        table = default_schedules(made, V4)
        for size in default_schedule.SIZES:
            (own,) = (s for (a, b), s in table.items() if a <= size <= (b or size))
            least = min(float(estimate.seconds(one, size)) for one in offered)
            assert estimate.seconds(own, size) <= default_schedule.KEPT * least


def test_a_forest_with_large_sets_of_categories_stays_in_lanes() -> None:
    """Bits test such sets one by one; lanes look up each category once."""
    lightgbm = pytest.importorskip("lightgbm")
    random = np.random.default_rng(0)
    X = random.standard_normal((4000, 8))
    X[:, :3] = random.integers(0, 400, (4000, 3))
    y = random.standard_normal(400)[X[:, :3].astype(int)].sum(1) + X[:, 3]
    data = lightgbm.Dataset(X, y, categorical_feature=[0, 1, 2])
    made = load_forest(lightgbm.train({"verbose": -1, "num_threads": 1}, data, 60))
    assert set(kinds(made, V4).values()) == {"lanes"}
    table = default_schedules(made, V4)
    first = default_schedule.SHARED_ROWS
    assert table[1, first - 1] == lanes_schedule()
    assert table[first, None] == lanes_schedule(parallel=True)


def test_a_machine_with_slow_permutes_leaves_lanes_earlier() -> None:
    made = drawn(100, 6)

    def last_lanes(permute: float) -> int:
        profile = replace(MachineProfile.of(V4), permute=permute)
        table = default_schedules(made, V4, profile=profile).items()
        return max((b or 0 for (_, b), s in table if "lanes" in repr(s)), default=0)

    assert last_lanes(30.0) < last_lanes(0.3)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("level", ["v2", "v3", "v4"])
@pytest.mark.parametrize("name", ["multiclass", "categories", "wide rows", "deep"])
def test_candidates_lower(name: str, level: str) -> None:
    made, target = forest(name), Target.x86_64(level)
    for schedule in default_schedule.candidates(made, target):
        driver.lower(driver.build_hir(made, schedule, "exact"), target)


def deep_forest(depth: int | None, n_trees: int = 40) -> Forest:
    random = np.random.default_rng(0)
    X = random.standard_normal((1500, 8))
    y = X @ random.standard_normal(8) + random.standard_normal(1500)
    return load_forest(
        ExtraTreesRegressor(n_trees, max_depth=depth, random_state=0).fit(X, y)
    )


def test_deep_forests_are_walked_as_tiles() -> None:
    full = deep_forest(None)
    assert set(kinds(full, V4).values()) <= {"tile-row", "tiles", "values"}
    # of AVX2, all tests of pieces take less time than the steps of a walk
    assert list(kinds(full, V3).values())[-1] == "pieces"
    for other in (Target.x86_64("v2"), Target.aarch64()):
        assert set(kinds(full, other).values()) <= {"rows", "trees", "lanes"}
    # one tree: to search a row's columns would cost more than its walk
    few = kinds(deep_forest(None, n_trees=1), V3)
    assert next(iter(few.values())) in ("rows", "trees")


def test_a_single_row_walks_trees_together_and_a_batch_walks_rows() -> None:
    table = walking_schedules(drawn(100, 6), V3)
    assert '.interleave("tree", ' in repr(table[1, 1])
    assert "parallel" not in repr(table[1, 1])
    for batch in BATCH_RANGES[2:]:
        assert '.interleave("b1", ' in repr(table[batch])
        assert '.parallel("b0")' in repr(table[batch])


@pytest.mark.parametrize("n_trees", [0, 1, 2, 9, 100])
def test_no_more_trees_in_flight_than_there_are(n_trees: int) -> None:
    (first, *_) = walking_schedules(drawn(n_trees, 3, shape="full"), V3).values()
    together = first.loop_nest(n_trees).loops[0].body[0].mark(Interleave)
    in_flight = together and together.factor
    at_most = min(n_trees, walk_rules.HEAPS_IN_FLIGHT)
    assert in_flight == (at_most if at_most > 1 else None)


def test_equal_depths_need_no_leaf_check_and_deep_trees_keep_theirs() -> None:
    assert ".unroll_walk(" in repr(walking_schedules(drawn(20, 5, shape="full"), V3))
    chains = walking_schedules(drawn(20, UNROLL_LIMIT + 1, shape="chain"), V3)
    assert ".unroll_walk(" not in repr(chains)
    # all leaves of a chain but one lie higher: only the first hop is certain
    assert '.peel_walk("tree", 1)' in repr(chains[1, 1])
    mixed = walking_schedules(forest("mixed trees"), V3)  # there are single leaves
    assert "_walk(" not in repr(mixed)


def test_padding_is_estimated_by_what_it_adds() -> None:
    random = np.random.default_rng(0)
    full = ForestShape.of(forest_of([tree("full", 4, random)]))
    assert (full.min_depth, full.max_depth, full.padded_nodes) == (4, 4, 1.0)
    # a stump beside: two leaves, three levels short each, two nodes a level
    stump = ForestShape.of(
        forest_of([tree("full", 4, random), tree("full", 1, random)])
    )
    assert stump.padded_nodes == 1 + 2 * (2 * 3) / (31 + 3)


#: A target whose L2 does not hold 50 trees.
SMALL_L2 = replace(V3, l2_bytes=1 << 15)


def test_blocks_of_wide_rows_stay_in_cache() -> None:
    def block(n_features: int) -> int:
        made = replace(drawn(50, 5, shape="full"), n_features=n_features)
        schedule = walking_schedules(made, SMALL_L2)[2049, None]
        (outer,) = schedule.loop_nest(50).loops
        return outer.step

    widths = [block(n) for n in (5, 1000, 20_000, 1_000_000)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > widths[-1] >= walk_rules.ROWS_IN_FLIGHT


def test_rows_are_fetched_ahead_where_they_do_not_fit_a_cache() -> None:
    narrow = walking_schedules(drawn(50, 5), V3)[2049, None]
    made = drawn(50, 5, shape="full", n_features=2000)
    wide = walking_schedules(made, SMALL_L2)[2049, None]
    assert "cache" not in repr(narrow)
    assert '.cache("b0")' in repr(wide)


def test_trees_are_in_flight_where_rows_of_a_group_do_not_fit_a_cache() -> None:
    def large(n_features: int, target: Target = V3) -> str:
        made = replace(drawn(50, 5, shape="full"), n_features=n_features)
        return repr(walking_schedules(made, target)[2049, None])

    most = V3.l1_bytes // 4 // walk_rules.ROWS_IN_FLIGHT
    assert '.interleave("b1", 16)' in large(most)
    wide = large(most + 1)
    assert '.interleave("tree", 10)' in wide and '.parallel("b0")' in wide
    assert '.interleave("b1", 16)' in large(most + 1, SMALL_L2)  # trees are read again


def test_padded_trees_are_heaps_unless_these_are_much_larger() -> None:
    full = walking_schedules(drawn(20, 5, shape="full"), V3)
    assert all('.represent("array")' in repr(s) for s in full.values())
    chains = walking_schedules(drawn(20, 6, shape="chain"), V3)
    assert all("represent" not in repr(s) for s in chains.values())


def test_few_wide_rows_are_fetched_before_their_walks() -> None:
    def few(n_trees: int, n_features: int) -> str:
        made = replace(drawn(n_trees, 5, shape="full"), n_features=n_features)
        return repr(walking_schedules(made, V3)[1, 1])

    assert '.cache("batch")' in few(20, 1000)
    assert "cache" not in few(20, 60)  # four lines: each hop has them soon
    assert "cache" not in few(20, 100_000)  # hops meet a hundredth of the lines


def test_forests_keep_to_what_their_tests_allow() -> None:
    mixed = default_schedules(forest("any missing"), V4)  # in several ways
    assert "cache_predicates" not in repr(mixed)
    # bytes are not permuted in registers
    assert "lanes" not in kinds(drawn(100, 6), Target.x86_64("v1")).values()
    assert set(kinds(forest("leaves"), V4).values()) <= {"rows", "trees"}


@pytest.mark.parametrize("name", ["scalar", "multiclass", "deep", "double"])
def test_reproducible_forests_get_schedules_that_take_them(name: str) -> None:
    for schedule in set(default_schedules(forest(name), V3, "reproducible").values()):
        driver.build_hir(forest(name), schedule, "reproducible")
