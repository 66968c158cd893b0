"""Bits of the reference for every forest, schedule family and batch size."""

from __future__ import annotations

import pytest

from skforge.exceptions import ScheduleError
from skforge.modules.compiled import compile_forest
from skforge.schedule.schedule import Schedule
from tests import toy_representation
from tests.exactness.checks import (
    BATCHES,
    assert_same_bits,
    check_exact,
    expected,
    raw_of,
)
from tests.exactness.families import FAMILIES
from tests.exactness.forests import MAKERS, forest

REPRESENTATIONS = ("array", "sparse", "reorg", toy_representation.Toy.name)
#: What representations are tried on, in turn.
TURNS = ("scalar", "multiclass", "vector 3", "double extremes", "categories")


def refused_by(schedule: Schedule, representation: str) -> bool:
    """Say whether a representation refuses a schedule that others take."""
    return representation == "reorg" and "tile_nodes" in repr(schedule)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", MAKERS)
def test_default_schedules(name: str) -> None:
    check_exact(name, None, apply=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str) -> None:
    """Forests take turns."""
    turn = list(MAKERS)[list(FAMILIES).index(family) % len(MAKERS)]
    if "split" in repr(FAMILIES[family]) and forest(turn).n_trees < 4:
        turn = "scalar"
    for name in ("mixed trees", turn):
        check_exact(name, FAMILIES[family], apply=True)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("representation", REPRESENTATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_representations(representation: str, family: str) -> None:
    schedule = FAMILIES[family].represent(representation)
    at = list(FAMILIES).index(family) + REPRESENTATIONS.index(representation)
    name = TURNS[at % len(TURNS)]
    if refused_by(schedule, representation):
        with pytest.raises(ScheduleError) as error:
            compile_forest(forest(name), schedule)
        assert str(error.value).partition("\n")[0] == (
            'represent("reorg") stores single nodes; leave out tile_nodes or use '
            'represent("array").'
        )
        return
    check_exact(name, schedule, batches=(1, 3, 65), apply=at % 4 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("representation", REPRESENTATIONS)
@pytest.mark.parametrize("name", MAKERS)
def test_everything_with_everything(name: str, representation: str) -> None:
    for schedule in FAMILIES.values():
        try:
            check_exact(name, schedule.represent(representation), apply=True)
        except ScheduleError as error:
            # only what does not fit: complete trees of the deep forests, node tiles,
            # and parts of trees where there is one tree or none
            few = forest(name).n_trees < 2 and "leaves nothing" in str(error)
            deep = representation in ("array", "reorg") and "represent(" in str(error)
            assert few or deep, error


PARALLEL = [
    name
    for name, schedule in FAMILIES.items()
    if "parallel" in repr(schedule) and not name.startswith("preset xgboost")
]


@pytest.mark.sampled(10)
@pytest.mark.parametrize("family", PARALLEL)
@pytest.mark.parametrize("name", ["mixed trees", "multiclass", "vector 3"])
def test_threads(family: str, name: str) -> None:
    module = compile_forest(forest(name), FAMILIES[family])
    rows, raw, leaves = expected(name)
    for n_jobs in (1, 2, 8):
        for n in (1, 65):
            found = raw_of(module, rows[:n], n_jobs)
            assert_same_bits(found, raw[:n], (n_jobs, n))
    assert_same_bits(module.apply(rows[:65], n_jobs=2), leaves[:65], "apply")


def test_one_table_serves_all_its_ranges() -> None:
    """Ranges with gaps and open ends: each size is right whatever serves it."""
    table = {
        (1, 1): FAMILIES["interleave trees"],
        (2, 62): FAMILIES["vectorize"],
        (64, 64): FAMILIES["node tiles 4"],
        (70, None): FAMILIES["interleave rows 8"].represent("array"),
    }
    module = compile_forest(forest("categories"), table)
    rows, raw, _ = expected("categories")
    for n in (*BATCHES, 62, 69, 70):
        assert_same_bits(raw_of(module, rows[:n]), raw[:n], n)


def test_three_parallel_loops_of_which_one_ends_with_the_rows() -> None:
    # The last block's rows depend on the outermost loop, which is two loops above.
    schedule = (
        Schedule()
        .tile("batch", "b0", "b1", 4)
        .reorder("b0", "tree", "b1")
        .parallel("b0")
        .parallel("tree")
        .parallel("b1")
    )
    check_exact("scalar", schedule, batches=(1, 3, 4, 9))
