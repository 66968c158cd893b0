"""A machine that is none: what it takes is said by a function, its clock by itself."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from skforge.forest.reference import reference_raw
from skforge.tuning.measure.measure import LoweredCandidate


class FakeMachine:
    """A measurer whose clock only moves while it works.

    ``seconds(schedule, n_rows)`` is what a call takes, with ``noise`` of it at random;
    ``lower_seconds`` and ``compile_seconds`` what the steps before take. ``broken`` has
    schedules and the exception that building them raises, ``wrong`` those whose
    predictions are off, ``same`` those that share a digest, ``spills`` those that are
    not worth a run and why.
    """

    parallel = False

    def __init__(self, forest, seconds, *, noise=0.0, seed=0, compile_seconds=0.05):
        self.forest, self.seconds_of = forest, seconds
        self.noise, self.random = noise, np.random.default_rng(seed)
        self.lower_seconds, self.compile_seconds = 0.01, compile_seconds
        self.now = 1000.0
        self.broken, self.wrong, self.same, self.spills = {}, set(), {}, {}
        self.built, self.interrupt_after = [], None

    def clock(self):
        return self.now

    def lower(self, schedule):
        self.now += self.lower_seconds
        schedule.loop_nest(self.forest)  # refuses what does not fit
        digest = self.same.get(schedule, repr(schedule))
        return LoweredCandidate(schedule, digest, 100.0, 1000, None)

    def check(self, plan):
        return self.spills.get(plan.schedule, "")

    def build(self, plan):
        if self.interrupt_after is not None and len(self.built) >= self.interrupt_after:
            raise KeyboardInterrupt
        self.now += self.compile_seconds
        self.built.append(plan.schedule)
        if plan.schedule in self.broken:
            raise self.broken[plan.schedule]
        return FakeRunner(self, plan.schedule)


@lru_cache(maxsize=64)
def _raw(forest, shape, rows):
    """Return raw scores of rows, which all schedules of a search predict again."""
    return reference_raw(forest, np.frombuffer(rows, forest.input_dtype).reshape(shape))


class FakeRunner:
    def __init__(self, machine, schedule):
        self.machine, self.schedule = machine, schedule

    def predict(self, rows):
        raw = _raw(self.machine.forest, rows.shape, rows.tobytes())
        return raw + 1 if self.schedule in self.machine.wrong else raw

    def time(self, batches, rounds):
        machine = self.machine
        one = machine.seconds_of(self.schedule, len(batches[0]))
        machine.now += one * rounds * len(batches)
        return one * (1 + machine.noise * machine.random.random())


class Stated:
    """An estimate that is stated: ``seconds(schedule, n_rows)``, the same for all."""

    def __init__(self, seconds=lambda schedule, n_rows: 1e-5):
        self.seconds_of, self.asked = seconds, set()

    def seconds(self, schedule, n_rows, n_threads=1):
        self.asked.add(schedule)
        return self.seconds_of(schedule, n_rows)
