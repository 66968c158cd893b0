"""Representations: what they store, what they refuse, and a toy from outside."""

from __future__ import annotations

import pytest

from skforge.compiler.module import compile_forest
from skforge.compiler.schedule import Schedule
from skforge.exceptions import ScheduleError
from tests.exactness.forests import drawn, forest


@pytest.mark.parametrize("name", ["array", "reorg"])
@pytest.mark.parametrize(
    ("depth", "size"),
    [(40, "50,331,648 MiB"), (1200, "over 2**60 bytes")],
)
def test_complete_trees_too_deep_are_refused(name: str, depth: int, size: str) -> None:
    made = drawn(3 if depth == 40 else 1, depth, shape="chain")
    with pytest.raises(ScheduleError) as error:
        compile_forest(made, Schedule().represent(name))
    assert str(error.value) == (
        f'represent("{name}") would take {size} for this forest, over its limit of '
        '4,096 MiB; use represent("sparse").'
    )


def test_what_a_representation_cannot_hold_is_refused_when_it_is_bound() -> None:
    for schedule, message in (
        (
            Schedule().tile_nodes(2).represent("reorg"),
            'represent("reorg") stores single nodes; leave out tile_nodes or use '
            'represent("array").',
        ),
        (
            Schedule().represent("cloud"),
            'there is no representation "cloud"; known are array, reorg, sparse.',
        ),
    ):
        with pytest.raises(ScheduleError) as error:
            compile_forest(forest("scalar"), schedule)
        assert str(error.value) == message
