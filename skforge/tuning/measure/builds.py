"""Compile candidates to machine code, in another thread while others are timed.

Builds keep the order of their candidates. Schedules that lower to the same code are
compiled once. Illegal, too large or late candidates yield builds with a reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from itertools import islice
from threading import Lock

import numpy as np

from skforge.exceptions import ScheduleError
from skforge.forest.forest import Forest
from skforge.schedule.directives import UnrollWalk
from skforge.schedule.schedule import Schedule
from skforge.tuning.measure.measure import LoweredCandidate, Measurer, Runner
from skforge.tuning.search.trial import DEFAULT, Candidate, Status

#: Candidates compiled ahead of the one being timed.
AHEAD = 2

#: Maximum bytes of one candidate's trees, and of all cached candidates.
CANDIDATE_BYTES, KEPT_BYTES = 512 << 20, 1 << 30

#: Approximate bytes of a padded node.
NODE_BYTES = 16

#: Initial estimate of the seconds to compile a line of LIR, for a fast machine.
LINE_SECONDS = 3e-5

#: Safety factor on estimated compile times.
CARE = 1.25


@dataclass(frozen=True, slots=True, eq=False)
class Build:
    candidate: Candidate
    status: Status  # "measured" if there is a runner
    reason: str = ""
    runner: Runner | None = None
    digest: str = ""
    seconds: float = 0.0


class CandidateBuilder:
    def __init__(self, forest: Forest, measurer: Measurer) -> None:
        self._forest, self._measurer = forest, measurer
        # Seconds of lowering, and of compiling a line, to estimate the next ones.
        self._lower_seconds, self._line_seconds = 0.0, LINE_SECONDS
        self._plans: dict[Schedule, LoweredCandidate] = {}
        self._runners: dict[str, tuple[Runner, int]] = {}
        # A compilation that ran out of time goes on beside the caller's next one.
        self._lock = Lock()
        self._executor: ThreadPoolExecutor | None = None
        if measurer.parallel:
            self._executor = ThreadPoolExecutor(1, "skforge-tune")

    def close(self) -> None:
        """Release the thread without waiting for its current compilation."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def build(self, candidate: Candidate, deadline: float = float("inf")) -> Build:
        clock, digest = self._measurer.clock, ""
        start = clock()
        try:
            plan = self._lowered(candidate, deadline)
            digest = plan.digest
            runner = self._compiled(candidate, plan, deadline)
            return Build(candidate, "measured", "", runner, digest, clock() - start)
        except _Refused as refused:
            seconds = clock() - start if digest else 0.0
            return Build(candidate, refused.status, str(refused), None, digest, seconds)
        except ScheduleError as error:
            return Build(candidate, "illegal", str(error).splitlines()[0])
        except Exception as error:  # noqa: BLE001  a row with its reason, not a crash
            first = (str(error).splitlines() or [""])[0]
            reason = f"{type(error).__name__}: {first}".rstrip(": ")
            return Build(candidate, "failed", reason, seconds=clock() - start)

    def has(self, schedule: Schedule) -> bool:
        plan = self._plans.get(schedule)
        return plan is not None and plan.digest in self._runners

    def stream(
        self, candidates: Iterable[Candidate], deadline: float
    ) -> Iterator[Build]:
        if self._executor is None:
            for candidate in candidates:
                yield self.build(candidate, deadline)
            return
        waiting: deque[tuple[Candidate, Future[Build]]] = deque()
        source = iter(candidates)
        try:
            while True:
                for candidate in islice(source, AHEAD + 1 - len(waiting)):
                    job = self._executor.submit(self.build, candidate, deadline)
                    waiting.append((candidate, job))
                if not waiting:
                    return
                yield self._result(*waiting.popleft(), deadline)
        finally:
            for _, job in waiting:
                job.cancel()

    def _result(
        self, candidate: Candidate, job: Future[Build], deadline: float
    ) -> Build:
        left = max(0.0, deadline - self._measurer.clock())
        try:
            return job.result(left if left < 1e6 else None)
        except (FutureTimeout, CancelledError):
            job.cancel()
            return Build(candidate, "no time", "the budget ended while it was compiled")

    def _lowered(self, candidate: Candidate, deadline: float) -> LoweredCandidate:
        schedule, start = candidate.schedule, self._measurer.clock()
        if schedule is None:
            raise _Refused("illegal", candidate.refused)
        plan = self._plans.get(schedule)
        ready = self.has(schedule)  # a finalist
        if not ready and start + CARE * self._lower_seconds > deadline:
            raise _Refused("no time", "the budget ended before it could be lowered")
        if plan is not None:
            return plan
        _check_padding(self._forest, schedule)
        plan = self._measurer.lower(schedule)
        seconds = self._measurer.clock() - start
        self._lower_seconds = max(0.5 * self._lower_seconds, seconds)
        if plan.n_bytes > CANDIDATE_BYTES:
            raise _too_large("its trees take", plan.n_bytes)
        self._plans[schedule] = plan
        return plan

    def _compiled(
        self, candidate: Candidate, plan: LoweredCandidate, deadline: float
    ) -> Runner:
        known = self._runners.get(plan.digest)
        if known is not None:
            return known[0]
        begin = self._measurer.clock()
        if begin + CARE * self._line_seconds * plan.weight > deadline:
            raise _Refused(
                "no time", "compiling it would have taken longer than the budget"
            )
        if candidate.origin != DEFAULT:  # the default is the yardstick, always built
            against = self._measurer.check(plan)
            if against:
                raise _Refused("spills", against)
        runner = self._measurer.build(plan)
        seconds = (self._measurer.clock() - begin) / max(1.0, plan.weight)
        self._line_seconds = max(0.7 * self._line_seconds, seconds)
        self._keep(plan, runner)
        return runner

    def _keep(self, plan: LoweredCandidate, runner: Runner) -> None:
        with self._lock:
            self._runners[plan.digest] = runner, plan.n_bytes
            total = sum(size for _, size in self._runners.values())
            for digest in list(self._runners):
                if total <= KEPT_BYTES or digest == plan.digest:
                    break
                total -= self._runners.pop(digest)[1]


class _Refused(Exception):
    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _too_large(what: str, size: int) -> _Refused:
    limit = f"{size >> 20} MiB, more than the limit of {CANDIDATE_BYTES >> 20}"
    return _Refused("too large", f"{what} {limit}")


def _check_padding(forest: Forest, schedule: Schedule) -> None:
    depths = [d.depth for d in schedule.directives if isinstance(d, UnrollWalk)]
    if not depths:
        return
    missing = np.maximum(max(depths) - forest.node_depths()[forest.leaf >= 0], 0)
    size = (forest.n_nodes + 2 * int(missing.sum())) * NODE_BYTES
    if size > CANDIDATE_BYTES:
        raise _too_large(f"trees padded to {max(depths)} levels take about", size)
