"""A directive needs only the files that CONTRIBUTING.md names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from skforge.compiler import driver
from skforge.compiler.ir.mir.verifier import verify_mir
from skforge.compiler.ir.mir.walk import loops_in
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError, ScheduleError
from skforge.schedule.directives import BY_NAME, register
from skforge.schedule.schedule import Schedule
from tests import toy_directive
from tests.mir_stages import SAMPLE, forest_of
from tests.refusals import error_of
from tests.toy_directive import Ribbon

FOREST = forest_of(SAMPLE)
TARGET = Target.x86_64("v3")


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register(Ribbon)
    yield
    del BY_NAME["ribbon"]


@pytest.fixture
def with_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = driver.MIR_PASSES
    passes = (first, toy_directive.PASS, *others)
    monkeypatch.setattr(driver, "MIR_PASSES", passes)


def marked(width: int = 1) -> Schedule:
    return Schedule((Ribbon("tree", width),))


def lowered(schedule: Schedule) -> driver.Lowered:
    hir = driver.build_hir(FOREST, schedule, "exact")
    return driver.lower(hir, TARGET)


def test_it_is_written_and_read() -> None:
    schedule = marked(3)
    assert repr(schedule) == 'Schedule().ribbon("tree", 3)'
    assert repr(marked()) == 'Schedule().ribbon("tree")'
    assert Schedule.from_json(schedule.to_json()) == schedule


def test_its_arguments_and_its_place_are_checked() -> None:
    with pytest.raises(ScheduleError, match="needs a positive width"):
        marked(0)
    assert error_of(ScheduleError, Schedule, (Ribbon("batch"),)).splitlines()[0] == (
        'ribbon("batch") needs a loop over trees, but "batch" goes over rows.'
    )


def test_it_is_drawn_behind_the_others_and_explained() -> None:
    schedule = Schedule((Ribbon("tree", 2),)).unroll_walk("tree", 1)
    lines = str(schedule.loop_nest(4)).splitlines()
    assert lines[2] == "  for tree in 0 to 4:   unroll_walk 1, ribbon 2"
    said = 'ribbon("tree", 2): the trees of "tree" wear a ribbon.'
    assert said in schedule.explain(4).splitlines()


def test_it_stands_on_the_loop_of_mir_until_its_pass(with_pass: None) -> None:
    stages = lowered(marked(2)).stages
    before = [loop.mark(Ribbon) for loop in loops_in(stages["insert-caches"].body)]
    after = [loop.marks for loop in loops_in(stages["untie-ribbons"].body)]
    assert before == [None, Ribbon("tree", 2)]
    assert after == [(), ()]


def test_a_mark_without_a_pass_is_found() -> None:
    with pytest.raises(CompilerError, match="directives are left after the last pass"):
        verify_mir(lowered(marked()).stages["expand-walks"], final=True)


def test_the_kernel_is_that_of_the_schedule_without_it(with_pass: None) -> None:
    assert lowered(marked()).text("lir") == lowered(Schedule()).text("lir")


def test_nothing_in_the_package_knows_it() -> None:
    package = Path(driver.__file__).parents[1]
    assert not [f for f in package.rglob("*.py") if "ribbon" in f.read_text()]
