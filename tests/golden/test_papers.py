"""The papers' example schedules: loop nests, MIR and legalised MIR as texts.

Every text is also run by the interpreter, so that none is only plausible.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.ir.mir.printer import print_mir
from skforge.compiler.ir.mir.verifier import verify_mir
from skforge.forest.reference import reference_raw
from skforge.schedule.schedule import Schedule
from tests.mir_stages import SAMPLE, draw_values, forest_of, hir_of, stages_of
from tests.oracles.mir_interpreter import interpret_mir

FIGURE_1B = (
    Schedule()
    .reorder("tree", "batch")
    .split("tree", "t_depth1", "t_depth2", 2)
    .unroll_walk("t_depth1", 1)
    .unroll_walk("t_depth2", 2)
)
FIGURE_1C = (
    Schedule()
    .tile("tree", "t0", "t1", -2)
    .reorder("batch", "t1", "t0")
    .split("t0", "t0_depth1", "t0_depth2", 2)
    .unroll_walk("t0_depth1", 1)
    .unroll_walk("t0_depth2", 2)
    .gpu_dimension("batch", "grid.x")
    .gpu_dimension("t1", "block.x")
)
SECTION_5 = (
    Schedule().tile("tree", "t0", "t1", -2).reorder("t0", "t1", "batch").parallel("t0")
)
# Treebeard draft §4: two nested conflicting loops, so two stages of reduction
NESTED = (
    Schedule()
    .tile("tree", "i0", "rest", -2)
    .tile("rest", "i1", "i2", -2)
    .reorder("i0", "i1", "i2", "batch")
    .parallel("i0")
    .parallel("i1")
)
# Treebeard draft §4.2
BOTH = (
    Schedule()
    .tile("batch", "i0", "i1", -2)
    .tile("tree", "t0", "t1", -2)
    .reorder("i0", "t0", "t1", "i1")
    .parallel("t0")
    .parallel("i0")
)
CASES = {
    "000-figure-1b": (FIGURE_1B, SAMPLE),
    "000-figure-1c": (FIGURE_1C, SAMPLE),
    "000-xgboost": (Schedule.preset("xgboost"), SAMPLE),
    "000-tahoe-direct": (Schedule.preset("tahoe-direct"), SAMPLE),
    "000-tahoe-shared-data": (Schedule.preset("tahoe-shared-data"), SAMPLE),
    "000-section-5": (SECTION_5, SAMPLE),
    "001-section-4-nested": (NESTED, SAMPLE * 2),
    "001-section-4.2": (BOTH, SAMPLE),
}


@pytest.mark.parametrize("name", CASES)
def test_schedule(name: str, golden: Callable[[str, str], None]) -> None:
    schedule, shapes = CASES[name]
    forest = forest_of(shapes)
    rows = draw_values(forest, 7)
    expected = reference_raw(forest, rows)
    modes: tuple[Reduction, ...] = ("exact", "fast")
    for reduction in modes:
        hir = hir_of(forest, schedule, reduction)
        stages = stages_of(hir)
        for stage, function in stages.items():
            legal = stage not in ("lower-to-mir", "insert-caches")
            verify_mir(function, legal=legal, final=stage == "expand-walks")
            result = interpret_mir(function, hir, rows)
            if reduction == "exact":
                np.testing.assert_array_equal(result, expected, stage)
            else:
                np.testing.assert_allclose(result, expected, 1e-6, 1e-6)
        golden(str(hir.nest) + "\n", "loops")
        if reduction == "exact":
            golden(print_mir(stages["lower-to-mir"]), "mir")
            golden(print_mir(stages["interleave-walks"]), "walks")
        golden(print_mir(stages["legalize-reductions"]), f"legal-{reduction}")
