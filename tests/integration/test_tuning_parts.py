"""Tests of ``unit/test_tuning_parts.py`` that compile or start processes."""

from __future__ import annotations

import numpy as np

from skforge.compiler.target import Target
from skforge.forest.reference import reference_raw
from skforge.schedule.schedule import Schedule
from skforge.tuning.measure.bench import SampleRows
from skforge.tuning.measure.measure import KernelMeasurer
from skforge.tuning.search.strategies import Round
from skforge.tuning.search.trial import Candidate
from skforge.tuning.tuner import Tuner
from tests.unit.test_tuning_parts import FOREST, A, B


class Listed:
    """A strategy that proposes one schedule."""

    name = "listed"

    def rounds(self, problem):
        yield Round([Candidate(B, {}, self.name)])


# -------------------------------------------------------------- measuring


def _kernel_and_batches(n_rows):
    measurer = KernelMeasurer(FOREST, Target.host(), "exact", None)
    runner = measurer.build(measurer.lower(A))
    return runner, SampleRows(FOREST, None).batches(n_rows)


def test_calls_are_timed_in_machine_code():
    runner, batches = _kernel_and_batches(16)
    assert len(batches) == 64
    assert 0 < runner.time(batches, 3) < 1.0
    assert np.array_equal(runner.predict(batches[0]), reference_raw(FOREST, batches[0]))


def test_gpu_schedules_are_measured_on_the_emulated_target():
    measurer = KernelMeasurer(FOREST, Target.parse("emulated"), "exact", None)
    schedule = Schedule.preset("tahoe-direct", rows=32)
    runner = measurer.build(measurer.lower(schedule))
    batch = SampleRows(FOREST, None).batches(64)[0]
    assert np.array_equal(runner.predict(batch), reference_raw(FOREST, batch))
    assert runner.time([batch], 1) > 0


def test_a_search_prints_each_candidate(capfd):
    result = Tuner(Listed()).tune(FOREST, ranges={(1, 1): 1}, verbose=2, random_state=0)
    lines = capfd.readouterr().err.splitlines()
    schedules = [repr(t.schedule) for t in result.trials]
    assert len(lines) == 1 + len(schedules) == 3
    for line, schedule in zip(lines, schedules, strict=False):
        assert line.startswith("tuning: 1 row: ") and line.endswith(f": {schedule}")
