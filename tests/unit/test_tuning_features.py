"""Features of schedules: read off directives, the same one by one and all at once."""

from __future__ import annotations

import re
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from skforge.compiler.cost.counts import shape_on
from skforge.compiler.cost.estimate import CostEstimate
from skforge.compiler.cost.schedule_facts import FACTS, LAYOUTS, facts_of
from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.schedule.families import (
    bitsliced_schedule,
    lanes_schedule,
    tiled_row_schedule,
    tiled_schedule,
)
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.tuning import ScheduleSpace
from skforge.tuning.cost.features import GPU_NAMES, NAMES, Setting, featurize
from skforge.tuning.search.learned import REASONS, reasons
from tests.exactness.forests import drawn

FOREST = drawn(20, 4)
SHAPE = ForestShape.of(FOREST)
TARGET = Target.x86_64("v4")
FORESTS = shape_on(FOREST, TARGET)
GPU = replace(Target.cuda("sm_80"), n_cores=108)
POINT = {
    "rows_per_block": 32,
    "rows_per_thread": 1,
    "tree_threads": 2,
    "cache_rows": False,
    "cache_trees": False,
    "unroll_walks": False,
    "interleave": 1,
    "shared_reduce": False,
    "representation": "sparse",
}


def facts(schedule):
    return dict(zip(FACTS, facts_of([schedule])[0], strict=True))


def features(schedule, n_rows=100, threads=1, target=TARGET):
    found = featurize(Setting(FORESTS, target, n_rows, threads), [schedule])
    return dict(zip(NAMES, found.matrix[0], strict=True))


def test_facts_of_walks_are_read_off_the_directives():
    one = facts(
        Schedule()
        .tile("batch", "b0", "b1", 64)
        .reorder("b0", "tree", "b1")
        .parallel("b0")
        .quantize("b0")
        .cache("b0")
        .interleave("b1", 16)
        .unroll_walk("b1", 5)
    )
    assert (one["row_block"], one["rows_in_flight"], one["unroll_walk"]) == (64, 16, 5)
    assert one["rows_inside"] and one["parallel_rows"] and one["codes"]
    assert one["cache_rows"] and not one["trees_outside"]
    assert LAYOUTS[int(one["layout"])] == "sparse"
    other = facts(Schedule().interleave("tree").represent("array"))
    assert (other["trees_in_flight"], other["row_block"]) == (-1, 0)
    assert not other["rows_inside"]
    assert LAYOUTS[int(other["layout"])] == "array"


def test_facts_follow_loops_that_are_tiled_reordered_and_split():
    one = facts(
        Schedule()
        .tile("tree", "t0", "t1", -4)
        .tile("batch", "b0", "b1", 32)
        .reorder("t0", "b0", "t1", "b1")
        .parallel("t0")
    )
    assert one["trees_outside"] and one["parallel_trees"] and one["rows_inside"]
    assert (one["tree_blocks"], one["row_block"]) == (4, 32)
    two = facts(Schedule().split("tree", "a", "b", 3).peel_walk("b", 2))
    assert (two["splits"], two["peel_walk"]) == (1, 2)
    third_party = facts(Schedule().represent("toy"))
    assert LAYOUTS[int(third_party["layout"])] == "other"


def test_facts_of_gpu_schedules_count_threads():
    space = ScheduleSpace.gpu()
    point = space.sample(1, random_state=0)[0]
    one = facts(space.schedule(point, SHAPE))
    assert one["block_trees"] == point["tree_threads"]
    assert one["block_rows"] * point["rows_per_thread"] == point["rows_per_block"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("n_rows", [1, 7, 100, 5000])
@pytest.mark.parametrize("threads", [1, 4])
def test_all_features_are_finite_over_whole_spaces(n_rows, threads):
    for target, space in (
        (TARGET, ScheduleSpace.cpu()),
        (Target.cuda(), ScheduleSpace.gpu()),
        (Target.hip(), ScheduleSpace.gpu().with_values(rows_per_block=[8, 32])),
    ):
        schedules = [
            space.schedule(p, SHAPE) for p in space.sample(300, random_state=0)
        ]
        setting = Setting(shape_on(FOREST, target), target, n_rows, threads)
        found = featurize(setting, schedules)
        names = GPU_NAMES if target.is_gpu else NAMES
        assert found.matrix.shape == (len(schedules), len(names))
        assert np.isfinite(found.matrix).all()
        assert np.isfinite(found.log_estimate).all()
        alone = [featurize(setting, [s]).matrix[0] for s in schedules[:20]]
        # NumPy's exp may differ in the last bit between one value and many.
        np.testing.assert_allclose(alone, found.matrix[:20], rtol=1e-14)


def test_features_of_cpus_are_terms_of_the_estimate_and_directives():
    estimate = CostEstimate(FORESTS, TARGET)
    for schedule in (bitsliced_schedule(64), lanes_schedule(), tiled_schedule(64, 7)):
        for threads in (1, 4):
            one = features(schedule, n_rows=1000, threads=threads)
            ns = sum(value for name, value in one.items() if name.startswith("ns_of_"))
            seconds = float(estimate.seconds(schedule, 1000, threads))
            assert ns * 1000e-9 == pytest.approx(seconds)
            assert 2 ** one["estimate"] == pytest.approx(ns)
            assert one["inner_parallelism"] == threads
    block = features(bitsliced_schedule(64), n_rows=1000)
    assert (block["layout_bitsliced"], block["layout_lanes"]) == (1, 0)
    assert block["ns_of_folded"] > 0 == block["ns_of_hop"]
    assert block["row_block"] == 64
    assert (block["num_rows"], block["num_trees"]) == (1000, FOREST.n_trees)
    many = Schedule().tile("batch", "b0", "b1", 64).parallel("b0")
    assert features(many, n_rows=1000)["num_tasks"] == 16
    walk = Schedule().interleave("tree", 8).peel_walk("tree", 3)
    assert features(walk)["trees_in_flight"] == 8
    assert features(walk)["peel_walk"] == 3


def test_representations_of_others_are_taken_for_walks():
    toy = features(Schedule().represent("toy"))
    walk = features(Schedule())
    assert toy["layout_other"] == 1 == walk["layout_sparse"]
    assert toy["estimate"] == walk["estimate"]


def test_every_feature_is_in_the_table_of_the_page():
    page = Path(__file__).parents[2] / "docs" / "cost_model.md"
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", text))
    names = [*NAMES, *GPU_NAMES]
    groups = ("layout_", "ns_of_")
    assert not [n for n in names if n not in named and not n.startswith(groups)]
    assert all(group in text for group in groups)


def test_pruning_names_its_reasons():
    def reason(schedule, n_rows=100, threads=1, forest=FORESTS, target=TARGET):
        setting = Setting(forest, target, n_rows, threads)
        return REASONS[int(reasons(setting, [schedule])[0])]

    assert reason(bitsliced_schedule(128)) == ""
    assert "padding" in reason(bitsliced_schedule(1024), n_rows=8)
    rows = Schedule().tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")
    many = drawn(300, 4)
    facts_many = shape_on(many, TARGET)
    assert "threads" in reason(rows, 1000, 2, facts_many)
    assert reason(rows.parallel("b0"), 1000, 2, facts_many) == ""
    assert "too long" in reason(
        Schedule().interleave("tree", 64).unroll_walk("tree", 64),
        forest=_deep(FORESTS, depth=40),
    )
    assert "registers" in reason(
        Schedule().interleave("tree", 60), forest=facts_many, target=Target.x86_64("v2")
    )
    assert "memory" in reason(
        Schedule().represent("array"), forest=_deep(FORESTS, depth=30)
    )
    refused = reason(tiled_row_schedule(), target=TARGET, forest=_refusing(FORESTS))
    assert "does not allow" in refused


def gpu_features(n_rows=5000, target=None, **changed):
    target = target or GPU
    found = featurize(
        Setting(shape_on(FOREST, target), target, n_rows),
        [ScheduleSpace.gpu().schedule({**POINT, **changed}, SHAPE)],
    )
    return dict(zip(GPU_NAMES, found.matrix[0], strict=True))


def test_features_of_gpus_say_what_their_names_say():
    one = gpu_features()
    assert (one["num_blocks"], one["num_launches"]) == (157, 1)
    assert (one["num_threads_per_block"], one["num_warps_per_block"]) == (64, 2)
    assert one["blocks_per_core"] == 157 / 108
    # Two blocks on some multiprocessors and one on the others; all fit at once.
    assert one["idle_core_wastage"] == 2 * 108 / 157
    assert one["num_waves"] == 1 and one["wave_tail"] > 10
    assert one["warp_lane_utilization"] == 1
    assert gpu_features(rows_per_block=8)["warp_lane_utilization"] == 0.5
    assert gpu_features(tree_threads=20)["num_threads_per_block"] == 32 * 20
    assert one["rows_per_thread"] == 1
    assert one["trees_per_thread"] == FOREST.n_trees / 2
    assert gpu_features(rows_per_thread=4)["rows_per_thread"] == 4
    assert one["shared_row_bytes"] == 0
    values = 32 * FOREST.n_features * FOREST.input_dtype.itemsize
    cached = gpu_features(cache_rows=True)
    assert cached["shared_row_bytes"] == values
    assert cached["global_lines_of_rows"] == 0 < one["global_lines_of_rows"]
    assert gpu_features(cache_trees=True)["shared_node_bytes"] > 0
    wide = gpu_features(target=replace(Target.hip("gfx90a"), n_cores=104))
    assert (wide["warp_size"], wide["num_warps_per_block"]) == (64, 1)


def test_what_limits_the_occupancy_of_a_gpu():
    many = gpu_features(1 << 20, rows_per_block=64, tree_threads=10)
    assert many["thread_block_limit_factor"] == 1
    assert many["shared_mem_block_limit_factor"] > 1
    assert 0 < many["max_warp_occupancy"] < 1
    more = gpu_features(interleave=4)["working_set_at_thread"]
    assert more > gpu_features()["working_set_at_thread"]


def test_pruning_leaves_no_multiprocessor_or_lane_idle():
    def reason(n_rows, target=GPU, **changed):
        schedule = ScheduleSpace.gpu().schedule({**POINT, **changed}, SHAPE)
        setting = Setting(shape_on(FOREST, target), target, n_rows)
        return REASONS[int(reasons(setting, [schedule])[0])]

    assert reason(5000) == reason(5000, tree_threads=10) == ""
    assert "multiprocessors" in reason(512)  # 16 blocks of 32 rows for 108
    assert reason(512, rows_per_block=8, tree_threads=10) == ""
    assert "lanes" in reason(5000, rows_per_block=8, rows_per_thread=4)
    assert "lanes" in reason(1, rows_per_block=8, tree_threads=10)
    assert "threads in a block" in reason(5000, rows_per_block=64, tree_threads=20)
    small = replace(GPU, shared_bytes=256)
    assert "shared memory" in reason(5000, small, cache_rows=True)


def _deep(one, depth):
    made = copy(one)
    made.max_depth = made.min_depth = depth
    return made


def _refusing(one):
    made = copy(one)
    made.allows_tiles = False
    return made
