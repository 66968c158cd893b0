"""Features of schedules: read off directives, the same one by one and all at once."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from skforge.compiler.backend import backend_of
from skforge.compiler.cost.schedule_facts import FACTS, LAYOUTS, facts_of
from skforge.compiler.cost.shape import ForestShape, Setting
from skforge.compiler.target import Target
from skforge.gpu.cost import GpuWork
from skforge.gpu.cost_model import features
from skforge.schedule.families import bitsliced_schedule, tiled_row_schedule
from skforge.schedule.schedule import Schedule
from skforge.tuning import ScheduleSpace
from skforge.tuning.machines import machine_of
from tests.exactness.forests import drawn

FOREST = drawn(20, 4)
SHAPE = ForestShape.of(FOREST)
TARGET = Target.x86_64("v4")
FORESTS = backend_of(TARGET).shape(FOREST, TARGET)
GPU = replace(Target.cuda("sm_80"), n_cores=108)
POINT = {
    "rows_per_block": 32, "rows_per_thread": 1, "tree_threads": 2, "cache_rows": False,
    "cache_trees": False, "unroll_walks": False, "interleave": 1,
    "shared_reduce": False, "representation": "sparse",
}  # fmt: skip


def facts(schedule):
    return dict(zip(FACTS, facts_of([schedule])[0], strict=True))


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
    assert one["cache_rows"]
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
    assert one["parallel_trees"] and one["rows_inside"]
    assert (one["tree_blocks"], one["row_block"]) == (4, 32)
    two = facts(Schedule().split("tree", "a", "b", 3).peel_walk("b", 2))
    assert two["peel_walk"] == 2
    third_party = facts(Schedule().represent("toy"))
    assert LAYOUTS[int(third_party["layout"])] == "other"


def test_facts_of_gpu_schedules_count_threads():
    space = ScheduleSpace.gpu()
    point = space.sample(1, random_state=0)[0]
    one = facts(space.schedule(point, SHAPE))
    assert one["block_trees"] == point["tree_threads"]
    assert one["block_rows"] * point["rows_per_thread"] == point["rows_per_block"]


@pytest.mark.parametrize("n_rows", [1, 7, 100, 5000])
def test_all_features_are_finite_over_whole_spaces(n_rows):
    for target, space in (
        (Target.cuda(), ScheduleSpace.gpu()),
        (Target.hip(), ScheduleSpace.gpu().with_values(rows_per_block=[8, 32])),
    ):
        schedules = [
            space.schedule(p, SHAPE) for p in space.sample(300, random_state=0)
        ]
        setting = Setting(SHAPE, target, n_rows)
        found = features(GpuWork(setting, facts_of(schedules)))
        assert all(np.isfinite(column).all() for column in found.values())
        assert {column.shape for column in found.values()} == {(len(schedules),)}
        for i, schedule in enumerate(schedules[:20]):
            alone = features(GpuWork(setting, facts_of([schedule])))
            for name, column in found.items():
                # NumPy's exp may differ in the last bit between one value and many.
                np.testing.assert_allclose(alone[name], column[i], rtol=1e-14)


def first_reason(setting, schedule):
    """Return the first reason why a schedule is pruned, or an empty string."""
    found = machine_of(setting.target).pruned(setting, [schedule])
    return next((reason for reason, (is_so,) in found.items() if is_so), "")


def test_pruning_names_its_reasons():
    def reason(schedule, n_rows=100, forest=FORESTS, target=TARGET):
        return first_reason(Setting(forest, target, n_rows), schedule)

    assert reason(bitsliced_schedule(128)) == ""
    assert "memory" in reason(
        Schedule().represent("array"), forest=_deep(FORESTS, depth=30)
    )
    refused = reason(tiled_row_schedule(), target=TARGET, forest=_refusing(FORESTS))
    assert "does not allow" in refused


def gpu_features(n_rows=5000, target=None, **changed):
    target = target or GPU
    schedule = ScheduleSpace.gpu().schedule({**POINT, **changed}, SHAPE)
    found = features(GpuWork(Setting(SHAPE, target, n_rows), facts_of([schedule])))
    return {name: float(column[0]) for name, column in found.items()}


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
        return first_reason(Setting(SHAPE, target, n_rows), schedule)

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
