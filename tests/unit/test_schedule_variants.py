"""The ablation has a line for each directive, and no variant predicts otherwise."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from skforge import Schedule, ScheduleError, Target, compile_forest
from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule.families import bitsliced_schedule
from tests.exactness.forests import forest, rows_for

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from ablation import ablate, to_markdown
from cases import Case
from schedule_variants import nearest_legal, other_sizes, without_each

WALK = (
    Schedule()
    .tile("batch", "b0", "b1", 64)
    .reorder("b0", "tree", "b1")
    .parallel("b0")
    .interleave("b1", 16)
    .unroll_walk("b1", 3)
)


def binds(made: Forest):
    return lambda schedule: compile_forest(made, schedule)


@pytest.mark.parametrize("schedule", [WALK, bitsliced_schedule(128)], ids=str)
def test_each_directive_has_a_variant_without_it(schedule: Schedule) -> None:
    variants = without_each(schedule, binds(forest("full")))
    directives = schedule.directives
    assert [v.change for v in variants] == [f"without {d}" for d in directives]
    for directive, variant in zip(directives, variants, strict=True):
        assert variant.schedule is not None
        assert directive not in variant.schedule.directives


def test_what_leans_on_a_directive_goes_with_it_and_is_named() -> None:
    schedule = bitsliced_schedule(128)
    variants = without_each(schedule, binds(forest("full")))
    found = {v.change: (v.note, len(v.schedule.directives)) for v in variants}
    note = 'also without represent("bitsliced")'
    assert found['without cache_predicates("b0")'] == (note, 4)
    assert found['without parallel("b0")'] == ("", 5)


def test_without_a_tile_its_marks_are_on_the_loop_it_divided() -> None:
    variants = without_each(WALK, binds(forest("full")))
    expected = Schedule().reorder("tree", "batch").interleave("batch", 16)
    assert variants[0].schedule == expected.unroll_walk("batch", 3)
    assert variants[0].note == 'also without parallel("batch")'


def test_sizes_are_halved_and_doubled() -> None:
    variants = other_sizes(WALK, binds(forest("full")))
    new = [v.change.partition(" for ")[0] for v in variants]
    assert new == [
        'tile("batch", "b0", "b1", 32)',
        'tile("batch", "b0", "b1", 128)',
        'interleave("b1", 8)',
        'interleave("b1", 32)',
        'unroll_walk("b1", 1)',
    ]


def test_nothing_legal_is_the_error_of_the_whole() -> None:
    def never(schedule: Schedule) -> None:
        raise ScheduleError(f"no {len(schedule.directives)}")

    with pytest.raises(ScheduleError, match=r"^no 5$"):
        nearest_legal(WALK.directives, never)


def test_an_ablation_has_all_lines_and_the_bits_agree() -> None:
    made = forest("full")
    case = Case("full", None, made, rows_for("full", 200), "drawn")
    lines = ablate(case, 130, Target.host(), seconds=0.001)
    bases = list(dict.fromkeys(line.base for line in lines))
    assert bases[-1] == "walk"
    for base in bases:
        own = [line for line in lines if line.base == base]
        whole = own[0]
        assert (whole.kind, whole.cost) == ("whole", 1.0)
        n_directives = len(eval(whole.schedule).directives)
        assert sum(line.kind == "off" for line in own) == n_directives
        for line in own:
            assert (line.cost is None) == (line.schedule == "")
            assert line.schedule or line.note
            assert line.kind == "reduction" or line.same_bits in (True, None)
    assert to_markdown(lines).count("\n| ") == len(lines) + len(bases)
