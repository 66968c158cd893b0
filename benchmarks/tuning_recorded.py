"""A machine that runs each schedule once and remembers: searches are replayed on it.

Strategies are compared on the same numbers, and a search that took minutes once takes
none again. Its clock says what searching would have taken: the processor time of this
thread, and for all that is recorded what that took when it was done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

import numpy as np
from cost_model_data import SLOT, ThreadTimed
from harness import add_line, lines_of, take_turns
from threadpoolctl import threadpool_limits

from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError, SkforgeError
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_raw
from skforge.schedule.schedule import Schedule
from skforge.tuning.measure.bench import SampleRows
from skforge.tuning.measure.measure import KernelMeasurer, LoweredCandidate

SAMPLES = 5

#: Of a sweep: samples of a first look and their seconds; how many times slower than the
#: best a schedule is given up after one call; how near it is timed again beside the
#: others that are, and how often.
LOOKS, LOOK = 3, 3e-4
HOPELESS, NEAR, ROUNDS = 3.0, 1.25, 11


class ReplayRunner:
    """A schedule whose times are known or found out."""

    def __init__(self, machine: Recorded, schedule: Schedule) -> None:
        self._machine, self._schedule = machine, schedule

    def predict(self, rows: Any) -> Any:
        """Return the reference's scores: nothing is run."""
        return self._machine.expected(rows)

    def time(self, batches: Sequence[Any], rounds: int) -> float:
        """Return the seconds of a call, and let the clock go on."""
        one = self._machine.seconds(self._schedule, len(batches[0]))
        self._machine.now += one * rounds * len(batches)
        return one


class Recorded:
    """A measurer of one forest on one target, which runs here; what is known runs not.

    The file has a line of JSON for each schedule built, and for each batch size timed.
    Nothing is checked in a search: ``predict`` is the reference.
    """

    parallel = False
    label = ""

    def __init__(self, file: Path, forest: Forest, rows: Any, target: Target) -> None:
        self.forest, self.now = forest, 0.0
        self._expected: dict[Any, Any] = {}
        self._file = file
        self._machine = KernelMeasurer(forest, target, "exact", 1)
        self._sample = SampleRows(forest, rows, 0)
        self._built: dict[str, dict[str, Any]] = {}
        self._seconds: dict[tuple[str, int], float] = {}
        self._compile: dict[str, float] = {}
        self._batches: dict[int, Sequence[Any]] = {}
        self._runners: dict[str, ThreadTimed] = {}
        for record in lines_of(file):
            self._take(record)

    def clock(self) -> float:
        return thread_time() + self.now

    def check(self, _plan: LoweredCandidate) -> str:
        """Return nothing: what does not run is refused when it is lowered."""
        return ""

    def lower(self, schedule: Schedule) -> LoweredCandidate:
        record = self._record(schedule)
        self.now += record["lower"]
        if record["refused"]:
            raise ScheduleError(record["refused"])
        return LoweredCandidate(
            schedule, record["digest"], record["weight"], record["bytes"], None
        )

    def build(self, plan: LoweredCandidate) -> ReplayRunner:
        self.now += self._built[plan.schedule.to_json()]["compile"]
        return ReplayRunner(self, plan.schedule)

    def seconds(self, schedule: Schedule, n_rows: int) -> float:
        """Return what a call takes, from the file or measured now."""
        key = schedule.to_json(), n_rows
        if key not in self._seconds:
            start = thread_time()
            self._record(schedule)
            self._note(*key, self._time(*key))
            self.now -= thread_time() - start
        return self._seconds[key]

    def sweep(self, schedules: Iterable[Schedule], sizes: Sequence[int]) -> int:
        """Time all schedules at all sizes, each code once; return how many codes.

        What is near the best is timed again, in rounds of all that are.
        """
        best = dict.fromkeys(sizes, float("inf"))
        codes: dict[str, Schedule] = {}
        known_before = len(self._seconds)
        for schedule in dict.fromkeys(schedules):
            record, key = self._record(schedule), schedule.to_json()
            if record["refused"]:
                continue
            twin = codes.setdefault(record["digest"], schedule)
            for n in sizes:
                if (key, n) not in self._seconds:
                    known = self._seconds.get((twin.to_json(), n))
                    self._note(key, n, known or self._look(key, n, best[n]))
                best[n] = min(best[n], self._seconds[key, n])
            near = any(self._seconds[key, n] < NEAR * best[n] for n in sizes)
            if not near:
                self._runners.pop(key, None)
        if len(self._seconds) == known_before:
            return len(codes)
        for n in sizes:
            self._compare(codes.values(), n)
        for schedule in schedules:  # what was timed again holds for the same code
            record, key = self._built[schedule.to_json()], schedule.to_json()
            if not record["refused"]:
                for n in sizes:
                    twin = codes[record["digest"]].to_json()
                    if self._seconds[key, n] != self._seconds[twin, n]:
                        self._note(key, n, self._seconds[twin, n])
        return len(codes)

    def times(self, n_rows: int) -> dict[str, float]:
        """Return what is known at a batch size, by the schedule's text."""
        return {s: t for (s, n), t in self._seconds.items() if n == n_rows}

    @property
    def build_seconds(self) -> float:
        """What lowering and compiling all that is known took."""
        return sum(r["lower"] + r["compile"] for r in self._built.values())

    def _look(self, key: str, n_rows: int, best: float) -> float:
        """Time a schedule a few times; once, if it is hopeless."""
        runner, batches = self._runner(key), self._batches_of(n_rows)
        cold = runner.time(batches, 1)
        rounds = max(1, int(LOOK / (cold * len(batches))))
        once = runner.time(batches, rounds)  # what is new takes longer, once
        if once > HOPELESS * best:
            return once
        rounds = max(1, int(LOOK / (once * len(batches))))
        return min(runner.time(batches, rounds) for _ in range(LOOKS))

    def _compare(self, schedules: Iterable[Schedule], n_rows: int) -> None:
        """Time what is near the best again, beside each other."""
        keys = [s.to_json() for s in schedules]
        best = min(self._seconds[key, n_rows] for key in keys)
        near = [k for k in keys if self._seconds[k, n_rows] < NEAR * best]
        batches = self._batches_of(n_rows)
        calls = {}
        for key in near:
            rounds = max(1, int(SLOT / (self._seconds[key, n_rows] * len(batches))))
            calls[key] = partial(self._runner(key).time, batches, rounds)
        for key, seconds in take_turns(calls, ROUNDS).items():
            self._note(key, n_rows, median(seconds))

    def _note(self, key: str, n_rows: int, seconds: float) -> None:
        self._write({"s": key, "rows": n_rows, "seconds": seconds})

    def expected(self, rows: Any) -> Any:
        """Return the reference's scores, in no time."""
        start = thread_time()
        # Batches that are checked are the sample's rows over and over.
        key = len(rows), rows[:2].tobytes(), rows[-2:].tobytes()
        if key not in self._expected:
            self._expected[key] = np.asarray(reference_raw(self.forest, rows))
        self.now -= thread_time() - start
        return self._expected[key]

    def forget(self) -> None:
        """Let go of compiled code; what is known of it stays."""
        self._runners.clear()

    # ----------------------------------------------------------------- the file

    def _record(self, schedule: Schedule) -> dict[str, Any]:
        key = schedule.to_json()
        if key not in self._built:
            begin = thread_time()
            record: dict[str, Any] = {"s": key, "refused": "", "compile": 0.0}
            try:
                plan = self._machine.lower(schedule)
            except SkforgeError as error:
                record["refused"] = str(error).splitlines()[0]
                record["lower"] = thread_time() - begin
            else:
                record["lower"] = thread_time() - begin
                record |= {"digest": plan.digest, "weight": plan.weight}
                record["bytes"] = plan.n_bytes
                if plan.digest in self._compile:  # timed once, for all it stands for
                    record["compile"] = self._compile[plan.digest]
                else:
                    start = thread_time()
                    self._runners[key] = ThreadTimed(self._machine.build(plan))
                    record["compile"] = thread_time() - start
            self._write(record)
            self.now -= thread_time() - begin
        return self._built[key]

    def _time(self, key: str, n_rows: int) -> float:
        runner, batches = self._runner(key), self._batches_of(n_rows)
        with threadpool_limits(limits=1):
            runner.time(batches, 1)
            once = runner.time(batches, 1)
            rounds = max(1, int(SLOT / (once * len(batches))))
            return min(runner.time(batches, rounds) for _ in range(SAMPLES))

    def _runner(self, key: str) -> ThreadTimed:
        if key not in self._runners:
            plan = self._machine.lower(Schedule.from_json(key))
            self._runners[key] = ThreadTimed(self._machine.build(plan))
        return self._runners[key]

    def _batches_of(self, n_rows: int) -> Sequence[Any]:
        if n_rows not in self._batches:
            self._batches[n_rows] = self._sample.batches(n_rows)
        return self._batches[n_rows]

    def _write(self, record: dict[str, Any]) -> None:
        add_line(self._file, record)
        self._take(record)

    def _take(self, record: dict[str, Any]) -> None:
        if "rows" in record:
            self._seconds[record["s"], record["rows"]] = record["seconds"]
        else:
            self._built[record["s"]] = record
            if record["compile"]:
                self._compile[record["digest"]] = record["compile"]
