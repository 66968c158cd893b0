"""``evaluate-predicates``: the MIR it makes, that it keeps the meaning, inspection."""

from __future__ import annotations

import pytest

from skforge.compiler import driver
from skforge.compiler.ir.mir.printer import print_mir
from skforge.compiler.passes.mir import evaluate_predicates
from skforge.schedule.families import bitsliced_schedule
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import drawn
from tests.exactness.sliced import case, sliced
from tests.mir_stages import stages_of

BEFORE, AFTER = "legalize-reductions", "evaluate-predicates"
TREE_TILES = Schedule().tile("batch", "b0", "b1", 64).tile("tree", "t0", "t1", 4)
TREE_TILES = TREE_TILES.reorder("b0", "t0", "t1", "b1")
TREE_TILES = TREE_TILES.vectorize("b1").represent("bitsliced")
SCHEDULES = {
    "default": bitsliced_schedule(),
    "serial": sliced(64, parallel=False),
    "tree-tiles": TREE_TILES.cache_predicates("b0"),
    "by-tree-tiles": TREE_TILES.cache_predicates("t0"),
    "cached-rows": sliced(64).cache("b0"),
}


def stages(name: str, schedule: Schedule) -> tuple[dict, driver.PredictEnsemble]:
    hir = driver.build_hir(case(name)[0], schedule, "exact")
    return stages_of(hir), hir


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_loops_before_and_after(name, golden):
    hir = driver.build_hir(drawn(9, 4), SCHEDULES[name], "exact")
    made = stages_of(hir)
    text = f"{print_mir(made[BEFORE])}\nafter {AFTER}:\n\n{print_mir(made[AFTER])}"
    golden(text, "mir")


def test_later_passes_leave_blocks_alone() -> None:
    made, _ = stages("lt", sliced(64))
    assert made["expand-walks"] == made[AFTER]


def test_other_functions_are_not_touched() -> None:
    made, _ = stages_of_walk()
    assert evaluate_predicates.run(made[BEFORE]) is not None
    assert evaluate_predicates.run(made[BEFORE]) == made[BEFORE]


def stages_of_walk() -> tuple[dict, driver.PredictEnsemble]:
    schedule = Schedule().tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
    return stages("lt", schedule)
