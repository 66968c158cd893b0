"""Features of schedules: read off directives, the same one by one and all at once."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from skforge.compiler.cost.schedule_facts import FACTS, LAYOUTS, facts_of
from skforge.compiler.defaults.walks import ForestShape
from skforge.compiler.schedule.families import (
    bitsliced_schedule,
    lanes_schedule,
    tiled_row_schedule,
    tiled_schedule,
)
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.tuning import ScheduleSpace
from skforge.tuning.cost.features import NAMES, Setting, featurize
from skforge.tuning.cost.forest_facts import ForestFacts
from skforge.tuning.space.pruning import REASONS, reasons
from tests.exactness.forests import drawn

FOREST = drawn(20, 4)
SHAPE = ForestShape.of(FOREST)
TARGET = Target.x86_64("v4")
FORESTS = ForestFacts.of(FOREST, TARGET)


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


@pytest.mark.parametrize("n_rows", [1, 7, 100, 5000])
@pytest.mark.parametrize("threads", [1, 4])
def test_all_features_are_finite_over_whole_spaces(n_rows, threads):
    for target, space in (
        (TARGET, ScheduleSpace.cpu()),
        (Target.cuda(), ScheduleSpace.gpu()),
    ):
        schedules = [
            space.schedule(p, SHAPE) for p in space.sample(300, random_state=0)
        ]
        setting = Setting(ForestFacts.of(FOREST, target), target, n_rows, threads)
        found = featurize(setting, schedules)
        assert found.matrix.shape == (len(schedules), len(NAMES))
        assert np.isfinite(found.matrix).all()
        assert np.isfinite(found.log_estimate).all()
        alone = [featurize(setting, [s]).matrix[0] for s in schedules[:20]]
        assert np.array_equal(alone, found.matrix[:20])


def test_features_say_what_their_names_say():
    block = features(bitsliced_schedule(128), n_rows=100)
    assert block["lane_utilization"] == pytest.approx(100 / 128)
    assert block["idle_lane_wastage"] == 28
    assert block["predicates_per_row"] == pytest.approx(1.28 * FOREST.n_predicates)
    assert block["layout_bitsliced"] == 1
    assert block["num_scalars"] == 100 * FOREST.n_trees
    many = features(bitsliced_schedule(64), n_rows=1000, threads=4)
    assert many["num_tasks"] == many["num_blocks"] == 16
    assert many["idle_core_wastage"] == 1
    assert features(lanes_schedule())["searches_per_row"] == FORESTS.n_columns
    tiles = features(tiled_schedule(64, 7))
    assert tiles["code_bytes_read_per_realization"] == 64 * 2 * FORESTS.n_columns
    walk = Schedule().interleave("tree", 8)
    peeled = features(walk.peel_walk("tree", 64))
    assert peeled["hops_unchecked"] == FORESTS.min_depth
    assert peeled["walks_in_flight"] == 8
    unrolled = features(walk.unroll_walk("tree", FORESTS.max_depth))
    assert unrolled["hops_checked"] == 0 <= unrolled["padding_share"]
    narrow = features(bitsliced_schedule(128), target=Target.x86_64("v3"))
    assert narrow["vector_lanes"] == block["vector_lanes"] / 2
    assert (block["mask_registers"], narrow["mask_registers"]) == (1, 0)


def test_every_feature_is_in_the_table_of_the_page():
    page = Path(__file__).parents[2] / "docs" / "cost_model.md"
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", text))
    lost = [n for n in NAMES if n not in named and not n.startswith("layout_")]
    assert not lost
    assert "layout_" in text


def test_pruning_names_its_reasons():
    def reason(schedule, n_rows=100, threads=1, forest=FORESTS, target=TARGET):
        setting = Setting(forest, target, n_rows, threads)
        return REASONS[int(reasons(setting, [schedule])[0])]

    assert reason(bitsliced_schedule(128)) == ""
    assert "padding" in reason(bitsliced_schedule(1024), n_rows=8)
    rows = Schedule().tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")
    many = drawn(300, 4)
    facts_many = ForestFacts.of(many, TARGET)
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
    wide = ScheduleSpace.gpu().schedule(
        {
            "rows_per_block": 64,
            "rows_per_thread": 1,
            "tree_threads": 50,
            "cache_rows": False,
            "cache_trees": False,
            "unroll_walks": False,
            "interleave": 1,
            "shared_reduce": False,
            "representation": "sparse",
        },
        SHAPE,
    )
    assert "threads in a block" in reason(wide, target=Target.cuda())
    refused = reason(tiled_row_schedule(), target=TARGET, forest=_refusing(FORESTS))
    assert "does not allow" in refused


def _deep(one, depth):
    return replace(one, max_depth=depth, min_depth=depth, tree_depth=float(depth))


def _refusing(one):
    return replace(one, allows_tile_rows=False)
