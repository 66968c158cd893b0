"""``vectorize-trees``: the MIR it makes, and that it keeps the meaning."""

from __future__ import annotations

import pytest

from skforge.compiler import driver
from skforge.compiler.ir.mir.printer import print_mir
from skforge.compiler.passes.mir import vectorize_trees
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.schedule.families import lanes_schedule, tiled_row_schedule
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import drawn
from tests.mir_stages import stages_of

BEFORE, AFTER = "legalize-reductions", "vectorize-trees"
SCHEDULES = {
    "default": lanes_schedule(),
    "values": tiled_row_schedule(7, codes=False),
    "blocks": Schedule().tile("batch", "b0", "b1", 8).parallel("b0").quantize("b1")
    .vectorize("tree").represent("lanes"),
    "parts": Schedule().split("batch", "s0", "s1", 3).quantize("s0").quantize("s1")
    .vectorize("tree").represent("lanes"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_loops_before_and_after(name, golden):
    made = stages_of(driver.build_hir(drawn(9, 4), SCHEDULES[name], "exact"))
    text = f"{print_mir(made[BEFORE])}\nafter {AFTER}:\n\n{print_mir(made[AFTER])}"
    golden(text, "mir")


def test_other_loops_are_left_alone() -> None:
    plain = stages_of(driver.build_hir(drawn(9, 4), Schedule(), "exact"))[BEFORE]
    assert vectorize_trees.run(plain) == plain


def test_trees_that_are_stored_first_are_refused() -> None:
    schedule = lanes_schedule().reorder_trees()
    with pytest.raises(ScheduleError, match="leave out reorder_trees"):
        driver.build_hir(drawn(9, 4), schedule, "exact")


def test_a_part_of_the_trees_is_refused() -> None:
    schedule = Schedule().split("tree", "a", "b", 3).vectorize("a").quantize("batch")
    with pytest.raises(ScheduleError, match="in one piece, without split"):
        driver.lower(
            driver.build_hir(drawn(9, 4), schedule.represent("lanes"), "exact"),
            Target.x86_64("v4"),
        )
