"""Representations: what they store, what they refuse, and a toy from outside."""

from __future__ import annotations

import pytest

from skforge.compiler.module import compile_forest
from skforge.compiler.schedule import Schedule
from skforge.exceptions import ScheduleError
from tests.exactness.forests import drawn


@pytest.mark.parametrize("name", ["array", "reorg"])
@pytest.mark.parametrize(
    ("depth", "size"),
    [(40, "50,331,648 MiB"), (1200, "over 2**60 bytes")],
)
def test_complete_trees_too_deep_are_refused(name: str, depth: int, size: str) -> None:
    module = compile_forest(
        drawn(3 if depth == 40 else 1, depth, shape="chain"), Schedule().represent(name)
    )
    with pytest.raises(ScheduleError) as error:
        module.compile_all()
    assert str(error.value) == (
        f'represent("{name}") would take {size} for this forest, over its limit of '
        '4,096 MiB; use represent("sparse").'
    )
