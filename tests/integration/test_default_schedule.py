"""Tests of ``unit/test_default_schedule.py`` that compile or start processes."""

from __future__ import annotations

import pytest

from skforge.compiler.defaults import cpu as default_schedule
from skforge.tuning import tune
from tests.exactness.forests import forest_of
from tests.unit.test_default_schedule import V4, kinds


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_forest_of_no_trees_has_walks_and_can_be_tuned() -> None:
    none = forest_of([])
    assert default_schedule.candidates(none, V4) == []
    assert set(kinds(none, V4).values()) <= {"rows", "trees"}
    found = tune(none, budget=0.2, records=None)
    assert found.table
