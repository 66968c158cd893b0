"""The order of passes: what is checked before a compile is lowered once."""

from __future__ import annotations

import pytest

from skforge.compiler import driver
from skforge.compiler.driver import MIR_PASSES, build_hir, lower
from skforge.compiler.ir.hir.nodes import HirCache
from skforge.compiler.target import Target
from skforge.schedule import families
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import drawn, forest

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


# ------------------------------------------------------------ dump


PASSES = ["lower-to-mir", *(step.name for step in MIR_PASSES)]
NAMES = [*PASSES, "mir", "lower-to-lir", "lir"]


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Compile a forest, and return the first line of every level printed."""
    hir = build_hir(forest("scalar"), Schedule(), "exact")
    lower(hir, Target.x86_64("v3"))
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if line.startswith("-- ")]


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ("", []),
        ("hir", ["-- hir"]),
        ("mir, lir", ["-- mir", "-- lir"]),
        ("lower-to-mir,,hir", ["-- hir", "-- lower-to-mir"]),
    ],
)
def test_levels_are_printed_as_asked(levels, expected, monkeypatch, capsys):
    monkeypatch.setenv("SKFORGE_DUMP", levels)
    assert printed(capsys) == expected


def test_all_prints_every_level_and_pass(monkeypatch, capsys):
    monkeypatch.setenv("SKFORGE_DUMP", "all")
    names = [line.split()[1] for line in printed(capsys)]
    assert names == ["hir", *NAMES]


def test_an_unknown_level_warns_with_the_known_ones(monkeypatch, capsys):
    monkeypatch.setenv("SKFORGE_DUMP", "llvm")
    with pytest.warns(UserWarning) as caught:
        assert printed(capsys) == []
    assert [str(warning.message) for warning in caught] == [
        "SKFORGE_DUMP asks for 'llvm', which is not a level printed while compiling; "
        f"use all, hir, mir, lir, {', '.join(PASSES)}, lower-to-lir."
    ]
    assert [warning.filename for warning in caught] == [__file__]
