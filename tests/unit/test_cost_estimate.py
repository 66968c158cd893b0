"""The estimate of a schedule's time, and the profile of the machine it needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from skforge.compiler.backend import backend_of
from skforge.compiler.binning.search import Registers
from skforge.compiler.cost.coefficients import (
    COEFFICIENTS,
    ON_ARM,
    ON_AVX2,
    WITHOUT_MASKS,
)
from skforge.compiler.cost.counts import ForestCounts, counted
from skforge.compiler.cost.estimate import (
    L3_SHARE,
    SCATTERED,
    TERMS,
    TO_L2,
    CostEstimate,
    plan_of,
)
from skforge.compiler.cost.profile import MODELLED, MachineProfile
from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.defaults.cpu import candidates
from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.layouts.bitsliced.predicate_table import (
    TreeTileTests,
    plan_predicates,
)
from skforge.compiler.layouts.tiles.tiled_trees import STREAMED_BYTES
from skforge.compiler.target import Target
from skforge.engine.compiling import ScheduleLowering
from skforge.forest.arrays import Comparison, Missing
from skforge.schedule.families import (
    bitsliced_schedule,
    lanes_schedule,
    pairs_schedule,
    pieces_schedule,
    tiled_row_schedule,
    tiled_schedule,
)
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import drawn, forest
from tests.exactness.sliced import counted as counted_forest

V3, V4 = Target.x86_64("v3"), Target.x86_64("v4")
SIZES = np.array([1, 7, 64, 512, 4096])


@pytest.mark.parametrize("target", [V3, V4, Target.aarch64()], ids=str)
@pytest.mark.parametrize("name", ["scalar", "categories", "multiclass", "deep"])
def test_every_default_has_a_time_that_grows_with_rows(name, target):
    made = forest(name)
    estimate = CostEstimate(made, target)
    walks = walking_schedules(made, target).values()
    for schedule in {*walks, *candidates(made, target)}:
        seconds = estimate.seconds(schedule, SIZES)
        assert np.isfinite(seconds).all() and (seconds > 0).all()
        assert (np.diff(seconds) >= 0).all()
        assert seconds[-1] > seconds[0]


def test_rows_one_by_one_suffer_most_where_trees_outgrow_their_part_of_l3() -> None:
    # Each row reads its tiles again; a block reads each tile once for its rows.
    made = drawn(100, 11, shape="full", n_features=8)
    row, blocks = tiled_row_schedule(15), tiled_schedule(4096, 7)
    times = []
    for l3 in (0, 1 << 20, 1 << 30):  # unknown, too small, large
        estimate = CostEstimate(made, replace(V4, l3_bytes=l3))
        times.append([float(estimate.seconds(s, 4096)) for s in (row, blocks)])
    unknown, small, large = times
    assert unknown == large
    assert small[0] / large[0] > 1.5 * small[1] / large[1] > 1.5


def test_rows_that_leave_l3_cost_walks_more_than_bit_logic() -> None:
    # Walks wait for lines here and there; bit logic reads them in order.
    wide = drawn(20, 4, shape="full", n_features=3000)
    target = replace(V3, l3_bytes=32 * L3_SHARE << 20)
    few = next(iter(walking_schedules(wide, target).values()))
    estimate = CostEstimate(wide, target)
    added = []
    for schedule in (few, bitsliced_schedule(256)):
        a_row = [float(estimate.seconds(schedule, n)) / n for n in (1024, 8192)]
        added.append(a_row[1] - a_row[0])
    assert added[0] > 1.5 * added[1] > 0
    small = drawn(20, 4, shape="full", n_features=30)
    assert not float(CostEstimate(small, target).terms(plan_of(few), 8192)["memory"])


def test_a_forest_is_counted_once_for_all_who_read_its_sizes() -> None:
    made = forest("categories")
    counts = counted(made, V4)
    assert counted(counts, V4) is counts is ForestShape.of(counts)
    assert CostEstimate(counts, V4).counts is counts is counts.of(counts)
    assert candidates(counts, V4) == candidates(made, V4)
    assert walking_schedules(counts, V4) == walking_schedules(made, V4)
    assert counted(counts, V3) is not counts
    assert isinstance(backend_of(V4).shape(made, V4), ForestCounts)
    assert not isinstance(
        backend_of(Target.cuda("sm_90")).shape(made, Target.cuda("sm_90")), ForestCounts
    )


@pytest.mark.parametrize("name", ["scalar", "categories", "multiclass", "deep"])
def test_sizes_are_those_of_the_forest(name: str) -> None:
    made = forest(name)
    shape, depths = ForestShape(made), made.node_depths()[made.leaf >= 0]
    assert (shape.min_depth, shape.max_depth) == (depths.min(), depths.max())
    assert shape.inner_nodes + len(depths) == made.n_nodes
    assert shape.leaves_per_tree * made.n_trees == pytest.approx(len(depths))
    assert shape.leaf_depth == pytest.approx(depths.mean())
    assert 0 < shape.tree_depth <= shape.max_depth
    assert shape.row_bytes == made.n_features * shape.value_bytes


def test_more_trees_and_more_features_cost_more() -> None:
    few, many = drawn(20, 6), drawn(200, 6)
    for schedule in candidates(few, V4):
        times = [CostEstimate(one, V4).seconds(schedule, 512) for one in (few, many)]
        assert times[0] < times[1]


def test_coefficients_belong_to_terms() -> None:
    assert set(COEFFICIENTS) == set(TERMS)
    estimate = CostEstimate(drawn(20, 6), V4)
    narrow = CostEstimate(drawn(20, 6), V3)
    schedules = {plan_of(s).kind: s for s in candidates(drawn(20, 6), V4)}
    schedules |= {
        plan_of(s).kind: s for s in walking_schedules(drawn(20, 6), V4).values()
    }
    schedules["pieces"], schedules["pairs"] = pieces_schedule(), pairs_schedule()
    permutes = replace(V4, features=f"{V4.features},+avx512vbmi")
    estimates = estimate, narrow, CostEstimate(drawn(20, 6), permutes)
    for kind, own in COEFFICIENTS.items():
        plan = plan_of(schedules[kind])
        terms = {name for one in estimates for name in one.terms(plan, 64)}
        assert set(own) <= terms


def test_arm_has_estimates_of_its_own() -> None:
    made, bits = drawn(100, 6), plan_of(bitsliced_schedule(128))
    for cpu in ("generic", "neoverse-n1", "neoverse-v1", "neoverse-v2"):
        estimate = CostEstimate(made, replace(Target.aarch64(), cpu=cpu))
        compare = estimate.terms(bits, 512)["compare"]
        assert estimate.parts(bits, 512)["compare"] == 0.93 * compare
    assert MachineProfile.of(Target.aarch64()) == MODELLED["neoverse-n1", 128]
    for kind, own in ON_ARM.items():
        assert all(own[term] > COEFFICIENTS[kind][term] for term in own)


def test_steps_below_lanes_take_longer_with_avx2_only() -> None:
    deep, lanes = drawn(100, 12), plan_of(lanes_schedule())
    for target, hop in ((V3, ON_AVX2["lanes"]["hop"]), (V4, None)):
        estimate = CostEstimate(deep, target)
        parts, terms = estimate.parts(lanes, 8), estimate.terms(lanes, 8)
        assert parts["hop"] == (hop or COEFFICIENTS["lanes"]["hop"]) * terms["hop"] > 0


@pytest.mark.parametrize("target", [V3, V4], ids=str)
@pytest.mark.parametrize("name", ["full", "multiclass", "chains", "mixed trees"])
def test_planes_in_vectors_are_estimated_where_kernels_have_them(name, target):
    made = forest(name)
    lowering = ScheduleLowering(made, target, "exact")
    lir = lowering.lowered(bitsliced_schedule(64), "accumulator").text("lir")
    counts = counted(made, target)
    in_vectors = "plane<64, vector>" in lir
    assert counts.muxes_in_vectors == (in_vectors and target is V4)
    estimate = CostEstimate(counts, target)
    few, many = (estimate.terms(plan_of(bitsliced_schedule(n)), n) for n in (64, 512))
    if counts.muxes_in_vectors:  # nearly as long as many
        assert 0.5 * many["muxed"] < few["muxed"] < 0.55 * many["muxed"]
    else:
        assert not few["muxed"] and few["folded"] <= 0.45 * many["folded"]


@pytest.mark.parametrize("level", ["v3", "v4"])
def test_float64_rows_are_searched_as_float32_where_kernels_do(level: str) -> None:
    """Every threshold was counted as a compare in float64."""
    made = counted_forest(
        (100, 30), dtype="float64", comparison=Comparison.LE, missing=Missing.NAN
    )
    wide = replace(made, n_features=1 << 14)
    narrow, whole = (ForestCounts(f, Target.x86_64(level)) for f in (made, wide))
    assert narrow.bit_tests(0).direct == 0 and narrow.bit_tests(0).lines == 130
    assert narrow.bit_lanes == 2 * whole.bit_lanes


def test_tiles_of_trees_are_counted_as_they_are_laid_out() -> None:
    made = counted_forest((300, 200, 40), n_trees=20, seed=2)
    counts = ForestCounts(made, V4)
    whole, tiled = counts.bit_tests(0), counts.bit_tests(6)
    assert counts.bit_tests(20) is whole and counts.bit_tests(99) is whole
    order = np.arange(made.n_trees, dtype=np.int32)
    tests = TreeTileTests.of(made, order, 6)
    table = plan_predicates(made, Registers.of(V4, made.threshold.dtype), tiles=tests)
    assert tiled.tiles == table.tree_tiles == -(-made.n_trees // 6)
    assert tiled.most == table.tests_of_tiles.max() < whole.most == made.n_predicates
    assert tiled.lines + tiled.direct == len(table.tests) > made.n_predicates
    assert tiled.levels > whole.levels


def test_tiles_of_trees_pay_where_l3_is_slow_and_lines_outgrow_l2() -> None:
    made = counted_forest([900] * 30)  # lines of 1.6 MiB
    slow = MachineProfile.of(V4)
    fast = replace(slow, line_l3=slow.line_l2)
    times = {}
    for name, l2, profile in (
        ("slow", 512, slow),
        ("fast", 512, fast),
        ("l2", 8192, slow),
    ):
        estimate = CostEstimate(made, replace(V4, l2_bytes=l2 << 10), profile)
        chosen = [bitsliced_schedule(512, trees) for trees in (0, 25)]
        one, tiled = (float(estimate.seconds(s, 4096)) for s in chosen)
        times[name] = tiled / one
    assert times["slow"] < 0.9 < times["fast"]
    assert times["l2"] > 1  # searches of more columns


def test_scattered_lines_of_memory_take_longer_with_avx2_only() -> None:
    """Lines of tiles that outgrow a share of L3; leaves and nodes below lanes L2."""
    made = drawn(100, 11, shape="full", n_features=8)
    row, lanes = plan_of(tiled_row_schedule(15)), plan_of(lanes_schedule())
    for target, further in ((V3, SCATTERED), (V4, 0.0)):
        near, far = (
            CostEstimate(made, replace(target, l2_bytes=1 << 12, l3_bytes=l3))
            for l3 in (1 << 30, 1 << 12)
        )
        held = CostEstimate(made, replace(target, l2_bytes=1 << 30))
        reads = far.counts.lanes.hops + 100  # of nodes and leaves
        few, many = (one.terms(lanes, 64)["far"] for one in (held, far))
        assert few == 0 and many <= further * 64 * reads
        assert (many > further * 64 * reads / 3) == (further > 0)
        waits = [one.terms(row, 64)["wait"] for one in (near, far)]
        visits = far.counts.four.visits * 64 * 100
        narrow = WITHOUT_MASKS.get(("tile-row", 4), 1.0) if target is V3 else 1.0
        streamed = far.counts.four.lines.size >= STREAMED_BYTES
        ahead = TO_L2 if streamed else 1.0
        profile = MachineProfile.of(target)
        quiet = 3 * profile.line_l3  # what memory takes more than L3
        assert (waits[1] - waits[0]) / visits == pytest.approx(
            narrow * ahead * (quiet + further), rel=0.02
        )


def test_trees_beyond_l1_cost_less_than_they_did_before_avx2_prefetched_tiles() -> None:
    made = drawn(100, 11, shape="full", n_features=8)
    plan, tree = (
        plan_of(tiled_schedule(512, 7)),
        counted(made, V3).three.lines.size / 100,
    )
    held, half = (
        CostEstimate(made, replace(V3, l1_bytes=size)).terms(plan, 512)
        for size in (1 << 30, int(tree / 2))
    )
    assert half["narrow_tile"] == pytest.approx(held["narrow_tile"] / 2, rel=1e-3)


def test_codes_of_blocks_beyond_l1_cost_less_than_trees_that_are_read_again() -> None:
    deep = drawn(100, 13, shape="full", n_features=8)
    estimate = CostEstimate(deep, V4)
    small, large = (tiled_schedule(rows, 15) for rows in (64, 4096))
    few, many = (estimate.terms(plan_of(s), 4096) for s in (small, large))
    assert few["far_row"] == 0 < many["far_row"]
    assert few["row"] == many["row"]
    assert few["fetch"] > 2 * many["fetch"]
    assert estimate.seconds(small, 4096) > estimate.seconds(large, 4096)
    assert estimate.seconds(small, 64) == estimate.seconds(large, 64)


def test_threads_share_blocks() -> None:
    estimate = CostEstimate(drawn(20, 6), V4)
    schedule = bitsliced_schedule(512)
    one, two = (estimate.seconds(schedule, [512, 4096], n) for n in (1, 2))
    assert two[0] == one[0]  # a single block
    assert two[1] == one[1] / 2


def test_schedules_of_gpus_are_not_estimated() -> None:
    estimate = CostEstimate(drawn(20, 6), V4)
    schedule = Schedule.preset("rapids")
    assert plan_of(schedule) is None
    assert np.isinf(estimate.seconds(schedule, 64))
