"""The order of passes: what is checked before a compile is lowered once."""

from __future__ import annotations

import pytest

from skforge.compiler import driver
from skforge.compiler.ir.hir.nodes import HirCache
from skforge.compiler.target import Target
from skforge.schedule import families
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import drawn

#: Schedules that the passes check, and one whose loops are checked without them.
SCHEDULES = {
    "bits": families.bitsliced_schedule(64),
    "lanes": families.lanes_schedule(),
    "tiles": families.tiled_schedule(64, codes=False),
    "walks": Schedule(),
}
CONTRIBUTIONS = families.row_blocks(32).vectorize("b1").represent("contributions")


@pytest.mark.parametrize(
    ("schedule", "element"),
    [
        *((schedule, "accumulator") for schedule in SCHEDULES.values()),
        (CONTRIBUTIONS, "contribution"),
    ],
)
def test_the_lowering_goes_on_where_the_check_ended(schedule, element):
    made, target = drawn(5, 4, covers=True), Target.x86_64("v3")
    hir = driver.build_hir(made, schedule, "exact", element=element)
    checked = driver.lower(hir, target, element=element)
    anew = driver.lower(hir, target, element=element)
    assert checked.stages == anew.stages
    assert [*checked.stages] == [*anew.stages]
    assert checked.text("lir") == anew.text("lir")


def test_a_thread_may_take_the_check_that_another_has_just_found() -> None:
    class Racing(HirCache):
        """Another thread lowers the schedule as soon as its check is known."""

        def __contains__(self, key: object) -> bool:
            known = super().__contains__(key)
            if isinstance(key, tuple) and key[0] == "checked":
                self.pop(key, None)
            return known

    made, cache, target = drawn(5, 4), Racing(), Target.x86_64("v3")
    for _ in range(2):
        hir = driver.build_hir(made, SCHEDULES["bits"], "exact", cache)
    lowered = driver.lower(hir, target)
    assert lowered.text("lir") == driver.lower(hir, target).text("lir")
