"""Run a search: measure each range's candidates in rounds, within a time budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from skforge.compiler.defaults.cpu import BatchRange
from skforge.compiler.schedule.schedule import Schedule
from skforge.exceptions import TuningError
from skforge.tuning.measure.bench import Bench, Sampled
from skforge.tuning.measure.builds import Build, Builder
from skforge.tuning.measure.measure import Measurer, Runner
from skforge.tuning.measure.rows import SampleRows
from skforge.tuning.search.ranges import RangePlan, choose
from skforge.tuning.search.strategies import Problem, Round, Strategy
from skforge.tuning.search.trial import DEFAULT, Candidate, Status, Trial

#: Candidates of a range that are timed again, interleaved with the default.
FINALISTS = 3

#: Interleaved samples of each finalist.
FINAL_SAMPLES = 11

#: A first relative time below this makes a candidate a finalist.
PROMISING = 0.99

#: Longest and shortest sample in seconds; short budgets use shorter samples. Of many
#: short samples, a smaller share is disturbed than of a few long ones.
SLOT, SHORTEST_SLOT = 2e-3, 2e-4

#: Maximum share of a range's time reserved for its finalists; and the factor from the
#: time of their samples to the time reserved, which includes setup.
FINAL_SHARE, FINAL_CARE = 0.25, 2.0

#: Progress callback: the trial, trials so far, the best ratio, seconds used.
Tell = Callable[[Trial, int, float, float], None]


class Session:
    """A running search for the schedules of ``problem``, limited to ``budget`` seconds.

    The budget starts at ``start`` on the measurer's clock.
    """

    def __init__(
        self,
        problem: Problem,
        strategy: Strategy,
        measurer: Measurer,
        rows: SampleRows,
        budget: float,
        start: float,
    ) -> None:
        self._problem, self._strategy = problem, strategy
        self._measurer, self.rows = measurer, rows
        self._start, self._end = start, start + budget
        self._slot = max(SHORTEST_SLOT, min(SLOT, budget / 4000))
        self._builder = Builder(problem.forest, measurer)
        self._benches: dict[tuple[BatchRange, int], Bench] = {}
        #: The latest trial by range, size and schedule (or point).
        self._trials: dict[tuple[Any, ...], Trial] = {}
        self._tables: dict[BatchRange, dict[BatchRange, Schedule]] = {}
        self.complete = True
        #: Number of candidates tried, with any status, and the seconds they took.
        self.n_tried, self.trying_seconds = 0, 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self._measurer.clock() - self._start

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials so far."""
        return tuple(self._trials.values())

    def run(self, plans: Sequence[RangePlan], tell: Tell) -> None:
        """Tune all ranges; each gets an equal share of the remaining time."""
        self._tell = tell
        try:
            for default in dict.fromkeys(plan.default for plan in plans):
                # Every default is needed, so no single range pays for compiling it.
                half = (self._start + self._end) / 2
                self._builder.build(Candidate(default, {}, DEFAULT), half)
            for number, plan in enumerate(plans):
                now = self._measurer.clock()
                share = (self._end - now) / (len(plans) - number)
                self._tune(plan, now + share)
        finally:
            self._builder.close()

    def table(self, plans: Sequence[RangePlan]) -> dict[BatchRange, Schedule]:
        """Return the choice for every range, also of an unfinished search."""
        table: dict[BatchRange, Schedule] = {}
        for plan in plans:
            table |= self._tables.get(plan.batch) or self._so_far(plan)
        return table

    # ------------------------------------------------------------- one range

    def _tune(self, plan: RangePlan, deadline: float) -> None:
        final = self._final_seconds(plan, deadline)
        bench = self._begin(plan, deadline)
        if bench is None:
            self.complete = False
            return
        proposals = self._strategy.rounds(self._problem.at(plan))
        trials: Sequence[Trial] | None = None
        while True:
            try:
                asked = next(proposals) if trials is None else proposals.send(trials)
            except StopIteration:
                break
            begin = self._measurer.clock()
            trials = self._round(plan, bench, asked, deadline - final)
            self.trying_seconds += self._measurer.clock() - begin
            self.n_tried += sum(t.status != "no time" for t in trials)
            if self._measurer.clock() >= deadline - final or any(
                t.status == "no time" for t in trials
            ):
                self.complete = False
                proposals.close()
                break
        self._finish(plan, deadline)

    def _final_seconds(self, plan: RangePlan, deadline: float) -> float:
        """Return the seconds to reserve for the finalists of a range."""
        samples = FINAL_SAMPLES * (FINALISTS + 1) * len(plan.sizes)
        share = FINAL_SHARE * (deadline - self._measurer.clock())
        return min(share, FINAL_CARE * samples * self._slot)

    def _begin(self, plan: RangePlan, deadline: float) -> Bench | None:
        """Compile and time the default; return None if time is too short."""
        candidate = Candidate(plan.default, {}, DEFAULT)
        build = self._builder.build(candidate, deadline)
        if build.runner is None:
            if build.status in ("failed", "illegal", "too large"):
                raise TuningError(
                    f"the default schedule cannot be measured: {build.reason}"
                )
            self._record(plan, plan.main, build, build.status, build.reason)
            return None
        if self._measurer.clock() >= deadline:
            reason = "the budget ended before it was timed"
            self._record(plan, plan.main, build, "no time", reason)
            return None
        wrong = self._check(build, plan.main)
        if wrong:
            raise TuningError(f"the default schedule predicts wrong values: {wrong}")
        bench = self._bench(plan, plan.main, build.runner)
        base = tuple(bench.baseline)
        sampled = Sampled(base, (1.0,))
        default = self._record(plan, plan.main, build, "measured", "", sampled)
        self._tell_of(plan, default)
        return bench

    def _round(
        self, plan: RangePlan, bench: Bench, asked: Round, deadline: float
    ) -> list[Trial]:
        made = []
        for build in self._builder.stream(asked.candidates, deadline):
            made.append(self._try(plan, bench, build, asked.samples, deadline))
            self._tell_of(plan, made[-1])
        return made

    def _tell_of(self, plan: RangePlan, trial: Trial) -> None:
        self._tell(trial, len(self._trials), self._best_ratio(plan), self.seconds)

    def _try(
        self, plan: RangePlan, bench: Bench, build: Build, samples: int, deadline: float
    ) -> Trial:
        n_rows = plan.main
        if build.runner is None:
            return self._record(plan, n_rows, build, build.status, build.reason)
        key = self._key(plan, n_rows, build.candidate)
        before, twin = self._trials.get(key), self._twin(plan, n_rows, build)
        if twin is not None and before is None:
            self._trials[key] = replace(
                twin,
                candidate=build.candidate,
                status="same code" if twin.usable else twin.status,
                reason=twin.reason or f"as {twin.schedule!r}",
                compile_seconds=build.seconds,
            )
            return self._trials[key]
        if self._measurer.clock() >= deadline:
            reason = "the budget ended before it was timed"
            return self._record(plan, n_rows, build, "no time", reason)
        try:
            wrong = self._check(build, n_rows)
            if wrong:
                return self._record(plan, n_rows, build, "wrong", wrong)
            sampled = bench.compare(
                build.runner,
                samples,
                self._best_ratio(plan),
                lambda: self._measurer.clock() >= deadline,
            )
        except Exception as error:  # noqa: BLE001  a row with its reason, not a crash
            reason = f"{type(error).__name__}: {error}"
            return self._record(plan, n_rows, build, "failed", reason)
        if before is not None and before.usable and not sampled.stopped:
            sampled = _joined(before, sampled)
        status: Status = "stopped" if sampled.stopped else "measured"
        return self._record(plan, n_rows, build, status, sampled.stopped, sampled)

    def _finish(self, plan: RangePlan, deadline: float) -> None:
        """Time the finalists in interleaved rounds at every size, and choose."""
        finalists = self._finalists(plan)
        seconds: dict[int, float] = {}
        ratios: dict[int, dict[Schedule, float]] = {}
        if not finalists:
            self._tables[plan.batch] = {plan.batch: plan.default}
            base = tuple(self._benches[plan.batch, plan.main].baseline)
            self._update_default(plan, plan.main, base)
            return
        for size in sorted(plan.sizes, key=lambda size: size != plan.main):
            if self._measurer.clock() >= deadline and seconds:
                self.complete = False
                break
            found = self._final_at(plan, size, finalists, deadline)
            if found is None:
                self.complete = False
                break
            seconds[size], ratios[size] = found
        if len(seconds) < len(plan.sizes):
            # Not every size was timed: keep the default for the range.
            seconds = {}
        self._tables[plan.batch] = choose(plan.batch, plan.default, seconds, ratios)

    def _final_at(
        self,
        plan: RangePlan,
        size: int,
        finalists: Sequence[Schedule],
        deadline: float,
    ) -> tuple[float, dict[Schedule, float]] | None:
        """Return the default's seconds, and the finalists' ratios to it."""
        builds: dict[Schedule, Build] = {}
        runners: dict[Schedule, Runner] = {}
        for schedule in (plan.default, *finalists):
            build = self._builder.build(self._origin(plan, schedule), deadline)
            if build.runner is not None and not self._check(build, size):
                builds[schedule], runners[schedule] = build, build.runner
            elif schedule == plan.default:
                return None
        bench = self._bench(plan, size, runners.pop(plan.default))
        sampled = bench.together(
            runners, FINAL_SAMPLES, lambda: self._measurer.clock() >= deadline
        )
        for schedule, one in sampled.items():
            self._record(plan, size, builds[schedule], "measured", "", one)
        self._update_default(plan, size, tuple(bench.baseline))
        ratios = {schedule: one.relative for schedule, one in sampled.items()}
        return median(bench.baseline), ratios

    def _so_far(self, plan: RangePlan) -> dict[BatchRange, Schedule]:
        """Return the choice for an unfinished range, from its first measurements."""
        ratios = {
            t.schedule: t.relative
            for t in self._of(plan, plan.main)
            if t.schedule is not None and t.status == "measured"
        }
        seconds = {plan.main: 1.0} if ratios else {}
        return choose(plan.batch, plan.default, seconds, {plan.main: ratios})

    # ------------------------------------------------------------------ parts

    def _finalists(self, plan: RangePlan) -> list[Schedule]:
        rows = [
            t
            for t in self._of(plan, plan.main)
            if t.status == "measured" and t.relative < PROMISING
        ]
        rows.sort(key=lambda t: t.relative)
        found = [t.schedule for t in rows if t.schedule not in (None, plan.default)]
        return [one for one in found[:FINALISTS] if one is not None]

    def _of(self, plan: RangePlan, n_rows: int) -> list[Trial]:
        return [
            t
            for t in self._trials.values()
            if t.batch == plan.batch and t.n_rows == n_rows
        ]

    def _best_ratio(self, plan: RangePlan) -> float:
        rows = self._of(plan, plan.main)
        return min((t.relative for t in rows if t.usable), default=1.0)

    def _twin(self, plan: RangePlan, n_rows: int, build: Build) -> Trial | None:
        """Return the trial of another schedule with the same code, if any."""
        for trial in self._of(plan, n_rows):
            if trial.digest == build.digest and trial.samples:
                return trial
        return None

    def _origin(self, plan: RangePlan, schedule: Schedule) -> Candidate:
        for trial in self._of(plan, plan.main):
            if trial.schedule == schedule:
                return trial.candidate
        return Candidate(schedule, {}, DEFAULT)

    def _bench(self, plan: RangePlan, n_rows: int, yardstick: Runner) -> Bench:
        key = plan.batch, n_rows
        if key not in self._benches:
            batches = self.rows.batches(n_rows)
            self._benches[key] = Bench(batches, yardstick, self._slot)
        return self._benches[key]

    def _check(self, build: Build, n_rows: int) -> str:
        assert build.runner is not None
        return self.rows.wrong(build.runner.predict, build.digest, n_rows)

    @staticmethod
    def _key(plan: RangePlan, n_rows: int, candidate: Candidate) -> tuple[Any, ...]:
        what: Any = candidate.schedule
        if what is None:
            what = repr(sorted(candidate.params.items(), key=lambda item: item[0]))
        return plan.batch, n_rows, what

    def _record(
        self,
        plan: RangePlan,
        n_rows: int,
        build: Build,
        status: Status,
        reason: str,
        sampled: Sampled | None = None,
    ) -> Trial:
        key = self._key(plan, n_rows, build.candidate)
        before = self._trials.get(key)
        made = Trial(
            plan.batch,
            n_rows,
            build.candidate,
            status,
            reason,
            sampled.samples if sampled else (),
            sampled.relative if sampled else float("nan"),
            max(build.seconds, before.compile_seconds if before else 0.0),
            build.digest,
            self._problem.target.kind,
        )
        self._trials[key] = made
        return made

    def _update_default(
        self, plan: RangePlan, n_rows: int, samples: tuple[float, ...]
    ) -> None:
        key = self._key(plan, n_rows, Candidate(plan.default))
        before = self._trials.get(key)
        if before is None:
            main = self._trials[self._key(plan, plan.main, Candidate(plan.default))]
            before = replace(main, n_rows=n_rows, compile_seconds=0.0)
        self._trials[key] = replace(before, samples=samples, relative=1.0)


def _joined(before: Trial, sampled: Sampled) -> Sampled:
    """Join the samples of two measurements; the first keeps only its median ratio."""
    ratios = (before.relative,) * len(before.samples) + sampled.ratios
    return Sampled((*before.samples, *sampled.samples), ratios)
