"""Times of schedules of the family, as JSON lines: what the cost model learns from."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

import numpy as np
from cost_model_family import Sample
from harness import add_line, take_turns
from systems import without_avx512
from threadpoolctl import threadpool_limits

from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.schedule.schedule import Schedule
from skforge.tuning.measure.bench import SampleRows
from skforge.tuning.measure.measure import KernelMeasurer, Runner

#: Padding of trees that are walked without leaf checks at most.
MOST_PADDING = 4.0

#: Bytes of trees that are stored complete at most.
MOST_COMPLETE = 32 << 20

#: Rounds of samples, seconds of a sample, and the factor above the best at which a
#: schedule is timed no more.
ROUNDS, SLOT, HOPELESS = 7, 1e-3, 4.0


class ThreadTimed:
    """A runner whose clock stops while other processes have its core."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def predict(self, rows: Any) -> Any:
        return self._runner.predict(rows)

    def time(self, batches: Any, rounds: int) -> float:
        start = thread_time()
        self._runner.time(batches, rounds)
        return (thread_time() - start) / (rounds * len(batches))


class Timed:
    """Times of a forest's schedules, beside each other, as processor time."""

    def __init__(self, sample: Sample, target: Target) -> None:
        self._machine = KernelMeasurer(sample.forest, target, "exact", 1)
        self._rows = SampleRows(sample.forest, sample.rows, 0)
        self._sample = sample
        self._runners: dict[Schedule, ThreadTimed | None] = {}

    def times(self, schedules: Iterable[Schedule], n_rows: int) -> dict[str, float]:
        """Return the median seconds of the legal ones that are not hopeless."""
        batches = self._batches(n_rows)
        runners = {s.to_json(): r for s in schedules if (r := self._runner(s))}
        with threadpool_limits(limits=1):
            once = {
                s: min(r.time(batches, 1) for _ in range(2)) for s, r in runners.items()
            }
            least = min(once.values())
            samples = {
                s: partial(self._timed, runners[s], batches, seconds)
                for s, seconds in once.items()
                if seconds < HOPELESS * least
            }
            taken = take_turns(samples, ROUNDS)
        return {s: median(values) for s, values in taken.items()}

    def _batches(self, n_rows: int) -> list[Any]:
        """Return batches, larger ones of repeated rows.

        Rows drawn around thresholds take longer where rows of doubles are compared as
        float32, so that large batches would seem slow (28 columns: 2.5 times).
        """
        rows = self._sample.rows
        if rows is None or not 0 < len(rows) < n_rows:
            return self._rows.batches(n_rows)
        return [self._rows.take(len(rows))[np.arange(n_rows) % len(rows)]]

    @staticmethod
    def _timed(runner: ThreadTimed, batches: Any, seconds: float) -> float:
        runner.time(batches, 1)  # the others' data left the cache
        return runner.time(batches, max(1, int(SLOT / (seconds * len(batches)))))

    def _runner(self, schedule: Schedule) -> ThreadTimed | None:
        if schedule not in self._runners:
            self._runners[schedule] = None
            with suppress(ScheduleError):
                plan = self._machine.lower(schedule)
                self._runners[schedule] = ThreadTimed(self._machine.build(plan))
        return self._runners[schedule]


def write(file: Path, key: tuple[str, str, int], times: dict[str, float]) -> None:
    known = dict(zip(("model", "target", "rows"), key, strict=True))
    for schedule, seconds in times.items():
        add_line(file, {**known, "schedule": schedule, "seconds": seconds})


def targets() -> dict[str, Target]:
    """Return this machine's CPU, and itself without AVX-512."""
    return {"host": Target.host(), "v3": without_avx512()}


def is_large(point: Any, shape: ForestShape) -> bool:
    """Whether trees are padded, or stored as complete ones, far beyond their size."""
    if point["hops"] == "unroll" and shape.padded_nodes > MOST_PADDING:
        return True
    complete = shape.n_trees * 2.0**shape.max_depth * 16
    return point["layout"] != "sparse" and complete > MOST_COMPLETE
