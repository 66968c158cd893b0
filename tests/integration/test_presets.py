"""Tests of ``unit/test_presets.py`` that compile or start processes."""

from __future__ import annotations

import numpy as np
import pytest

from skforge import compile_forest
from skforge.forest.reference import reference_raw
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import forest, rows_for
from tests.gpu_gates import build, launches_of


@pytest.mark.parametrize("name", ["scalar", "multiclass"])
def test_hummingbird_has_the_bits_of_the_source(name):
    schedule = Schedule.preset("hummingbird", rows=4, trees=8)
    made, rows = forest(name), rows_for(name, 70)
    found = compile_forest(made, schedule, "emulated").predict_raw(rows)
    np.testing.assert_array_equal(found, reference_raw(made, rows).reshape(found.shape))
    launches = list(launches_of([build(made, schedule, "exact", "sm_90", "s")]))
    assert len(launches) == 3  # base, walks, sums
