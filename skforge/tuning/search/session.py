"""Run a search: measure each range's candidates in rounds, within a time budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from skforge.compiler.schedule.ranges import BatchRange
from skforge.compiler.schedule.schedule import Schedule
from skforge.exceptions import TuningError
from skforge.tuning.measure.bench import Bench, Sampled, SampleRows
from skforge.tuning.measure.builds import Build, Builder
from skforge.tuning.measure.measure import Measurer, Runner
from skforge.tuning.search.odds import LARGE, kind_of
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

#: Likely seconds to compile and time a schedule (20 forests); and of bit slices and
#: tiles of values, which have several times the code.
TRIAL, LARGE_TRIAL = 0.1, 0.25

#: Progress callback: the trial, trials so far, the best ratio, seconds used.
Tell = Callable[[Trial, int, float, float], None]

#: Reason of candidates that are compiled too late.
LATE = "the budget ended before it was timed"


class Session:
    """A running search for the schedules of ``problem``, limited to ``budget`` seconds.

    The budget starts at ``start`` on the measurer's clock. If the search is ``lean``,
    a default is not timed where the strategy has nothing to compare it with.
    """

    def __init__(
        self,
        problem: Problem,
        strategy: Strategy,
        measurer: Measurer,
        rows: SampleRows,
        budget: float,
        start: float,
        lean: bool = False,
    ) -> None:
        self.problem, self.strategy, self.rows = problem, strategy, rows
        self.lean, self.clock = lean, measurer.clock
        self.slot = max(SHORTEST_SLOT, min(SLOT, budget / 4000))
        self.builder = Builder(problem.forest, measurer)
        self._budget, self._start, self._end = budget, start, start + budget
        self.half = start + budget / 2
        self._ranges: dict[BatchRange, _Range] = {}
        self._tell: Tell = lambda *_: None
        self.complete = True
        #: Ranges for which the strategy proposed nothing that was worth its time.
        self.untimed: list[BatchRange] = []
        #: Number of candidates tried, with any status, and the seconds they took.
        self.n_tried, self.trying_seconds = 0, 0.0
        self._likely_seconds = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self.clock() - self._start

    def middle(self) -> float:
        """Return the clock's time when half of what is left of the budget is used."""
        return (self.clock() + self._end) / 2

    def pays(self, asked: Round, default: Schedule | None = None) -> bool:
        """Return whether a round is worth its time, and that of a default with it."""
        speed = (TRIAL + self.trying_seconds) / (TRIAL + self._likely_seconds)
        return pays(asked, speed * likely_seconds(asked, default), self._budget)

    def tried(self, asked: Round, seconds: float) -> None:
        """Note how long a round took."""
        self.trying_seconds += seconds
        self._likely_seconds += likely_seconds(asked)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials so far."""
        return tuple(t for one in self._ranges.values() for t in one.trials.values())

    def run(self, plans: Sequence[RangePlan], tell: Tell) -> None:
        """Tune all ranges; each gets an equal share of the remaining time."""
        self._tell = tell
        try:
            for number, plan in enumerate(plans):
                now = self.clock()
                share = (self._end - now) / (len(plans) - number)
                self._ranges[plan.batch] = _Range(self, plan, now + share)
                finished = self._ranges[plan.batch].search()
                self.complete = self.complete and finished
        finally:
            self.builder.close()

    def tell(self, trial: Trial, best: float) -> None:
        """Report a trial and its range's best ratio."""
        n_trials = sum(len(one.trials) for one in self._ranges.values())
        self._tell(trial, n_trials, best, self.seconds)

    def table(self, plans: Sequence[RangePlan]) -> dict[BatchRange, Schedule]:
        """Return the choice for every range, also of an unfinished search."""
        table: dict[BatchRange, Schedule] = {}
        for plan in plans:
            one = self._ranges.get(plan.batch)
            table |= {plan.batch: plan.default} if one is None else one.table()
        return table


class _Range:
    """The search for the schedules of one range of batch sizes."""

    def __init__(self, session: Session, plan: RangePlan, deadline: float) -> None:
        self._session, self._plan, self._deadline = session, plan, deadline
        self._default = Candidate(plan.default, {}, DEFAULT)
        self._benches: dict[int, Bench] = {}
        self._table: dict[BatchRange, Schedule] | None = None
        #: The latest trial by size and schedule (or point).
        self.trials: dict[tuple[int, Any], Trial] = {}

    def search(self) -> bool:
        """Try the strategy's candidates, and choose; return whether all were tried."""
        session, plan = self._session, self._plan
        proposals = session.strategy.rounds(session.problem.at(plan))
        asked = next(proposals, None)
        new = None if session.builder.has(plan.default) else plan.default
        if asked is not None and not (asked.candidates and session.pays(asked, new)):
            asked = None
        if asked is None and session.lean:
            self._table = {plan.batch: plan.default}
            session.untimed.append(plan.batch)
            return True
        if asked is not None and asked.worth < 1:  # other ranges will need little
            self._deadline = max(self._deadline, session.middle())
        # Leave time for the finalists.
        samples = FINAL_SAMPLES * (FINALISTS + 1) * len(plan.sizes)
        share = FINAL_SHARE * (self._deadline - session.clock())
        end = self._deadline - min(share, FINAL_CARE * samples * session.slot)
        bench = self._begin()
        if bench is None:
            return False
        complete = True
        while asked is not None:
            begin = session.clock()
            trials = self._round(bench, asked, end)
            session.tried(asked, session.clock() - begin)
            late = sum(t.status == "no time" for t in trials)
            session.n_tried += len(trials) - late
            complete = not late and session.clock() < end
            if not complete:
                break
            try:
                asked = proposals.send(trials)
            except StopIteration:
                break
            if not session.pays(asked):
                break
        proposals.close()
        return self._finish() and complete

    def table(self) -> dict[BatchRange, Schedule]:
        """Return the choice; of an unfinished search, from the first measurements."""
        if self._table is not None:
            return self._table
        plan = self._plan
        ratios = {
            t.schedule: t.relative
            for t in self._at(plan.main)
            if t.schedule is not None and t.status == "measured"
        }
        seconds = {plan.main: 1.0} if ratios else {}
        return choose(plan.batch, plan.default, seconds, {plan.main: ratios})

    # ------------------------------------------------------------- candidates

    def _begin(self) -> Bench | None:
        """Compile and time the default; return None if time is too short."""
        n_rows = self._plan.main
        # Every default is needed, so no single range pays for compiling it.
        deadline = max(self._deadline, self._session.half)
        build = self._session.builder.build(self._default, deadline)
        if build.runner is None:
            if build.status in ("failed", "illegal", "too large"):
                raise TuningError(
                    f"the default schedule cannot be measured: {build.reason}"
                )
            self._record(n_rows, build, build.status, build.reason)
            return None
        if self._late():
            self._record(n_rows, build, "no time", LATE)
            return None
        wrong = self._wrong(build, n_rows)
        if wrong:
            raise TuningError(f"the default schedule predicts wrong values: {wrong}")
        bench = self._bench(n_rows, build.runner)
        sampled = Sampled(tuple(bench.baseline), (1.0,))
        default = self._record(n_rows, build, "measured", "", sampled)
        self._session.tell(default, self._best_ratio())
        return bench

    def _round(self, bench: Bench, asked: Round, end: float) -> list[Trial]:
        made = []
        for build in self._session.builder.stream(asked.candidates, end):
            made.append(self._try(bench, build, asked.samples, end))
            self._session.tell(made[-1], self._best_ratio())
        return made

    def _try(self, bench: Bench, build: Build, samples: int, end: float) -> Trial:
        n_rows = self._plan.main
        if build.runner is None:
            return self._record(n_rows, build, build.status, build.reason)
        key = _key(n_rows, build.candidate)
        before, alike = self.trials.get(key), self._at(n_rows)
        alike = [t for t in alike if t.digest == build.digest and t.samples]
        if alike and before is None:
            twin = alike[0]  # another schedule with the same code
            self.trials[key] = replace(
                twin,
                candidate=build.candidate,
                status="same code" if twin.usable else twin.status,
                reason=twin.reason or f"as {twin.schedule!r}",
                compile_seconds=build.seconds,
            )
            return self.trials[key]

        def late() -> bool:
            return self._session.clock() >= end

        if late():
            return self._record(n_rows, build, "no time", LATE)
        try:
            wrong = self._wrong(build, n_rows)
            if wrong:
                return self._record(n_rows, build, "wrong", wrong)
            sampled = bench.compare(build.runner, samples, self._best_ratio(), late)
        except Exception as error:  # noqa: BLE001  a row with its reason, not a crash
            reason = f"{type(error).__name__}: {error}"
            return self._record(n_rows, build, "failed", reason)
        if before is not None and before.usable and not sampled.stopped:
            # the first measurement keeps only its median ratio
            ratios = (before.relative,) * len(before.samples) + sampled.ratios
            sampled = Sampled((*before.samples, *sampled.samples), ratios)
        status: Status = "stopped" if sampled.stopped else "measured"
        return self._record(n_rows, build, status, sampled.stopped, sampled)

    # -------------------------------------------------------------- finalists

    def _finish(self) -> bool:
        """Time the finalists at every size, and choose; return whether time sufficed.

        If a size could not be timed, the default stays.
        """
        plan, finalists = self._plan, self._finalists()
        if not finalists:
            self._table = {plan.batch: plan.default}
            self._update_default(plan.main)
            return True
        seconds: dict[int, float] = {}
        ratios: dict[int, dict[Schedule, float]] = {}
        for size in sorted(plan.sizes, key=lambda size: size != plan.main):
            late = bool(seconds) and self._late()
            found = None if late else self._final_at(size, finalists)
            if found is None:
                self._table = {plan.batch: plan.default}
                return False
            seconds[size], ratios[size] = found
        self._table = choose(plan.batch, plan.default, seconds, ratios)
        return True

    def _final_at(
        self, size: int, finalists: Sequence[Candidate]
    ) -> tuple[float, dict[Schedule, float]] | None:
        """Return the default's seconds, and the finalists' ratios to it."""
        builds: dict[Schedule, Build] = {}
        runners: dict[Schedule, Runner] = {}
        default = self._plan.default
        for candidate in (self._default, *finalists):
            build = self._session.builder.build(candidate, self._deadline)
            assert candidate.schedule is not None
            if build.runner is not None and not self._wrong(build, size):
                builds[candidate.schedule] = build
                runners[candidate.schedule] = build.runner
            elif candidate.schedule == default:
                return None
        bench = self._bench(size, runners.pop(default))
        sampled = bench.together(runners, FINAL_SAMPLES, self._late)
        for schedule, one in sampled.items():
            self._record(size, builds[schedule], "measured", "", one)
        self._update_default(size)
        ratios = {schedule: one.relative for schedule, one in sampled.items()}
        return median(bench.baseline), ratios

    def _finalists(self) -> list[Candidate]:
        found = [
            t
            for t in self._at(self._plan.main)
            if t.status == "measured"
            and t.relative < PROMISING
            and t.schedule != self._plan.default
        ]
        found.sort(key=lambda t: t.relative)
        return [t.candidate for t in found[:FINALISTS]]

    # ------------------------------------------------------------------ parts

    def _late(self) -> bool:
        return self._session.clock() >= self._deadline

    def _at(self, n_rows: int) -> list[Trial]:
        return [t for t in self.trials.values() if t.n_rows == n_rows]

    def _best_ratio(self) -> float:
        rows = self._at(self._plan.main)
        return min((t.relative for t in rows if t.usable), default=1.0)

    def _bench(self, n_rows: int, yardstick: Runner) -> Bench:
        if n_rows not in self._benches:
            batches = self._session.rows.batches(n_rows)
            self._benches[n_rows] = Bench(batches, yardstick, self._session.slot)
        return self._benches[n_rows]

    def _wrong(self, build: Build, n_rows: int) -> str:
        assert build.runner is not None
        return self._session.rows.wrong(build.runner.predict, build.digest, n_rows)

    def _record(
        self,
        n_rows: int,
        build: Build,
        status: Status,
        reason: str,
        sampled: Sampled | None = None,
    ) -> Trial:
        key = _key(n_rows, build.candidate)
        before = self.trials.get(key)
        self.trials[key] = Trial(
            self._plan.batch,
            n_rows,
            build.candidate,
            status,
            reason,
            sampled.samples if sampled else (),
            sampled.relative if sampled else float("nan"),
            max(build.seconds, before.compile_seconds if before else 0.0),
            build.digest,
            self._session.problem.target.kind,
        )
        return self.trials[key]

    def _update_default(self, n_rows: int) -> None:
        """Give the default's trial at a size all of its samples so far."""
        key = _key(n_rows, self._default)
        before = self.trials.get(key)
        if before is None:
            main = self.trials[_key(self._plan.main, self._default)]
            before = replace(main, n_rows=n_rows, compile_seconds=0.0)
        samples = tuple(self._benches[n_rows].baseline)
        self.trials[key] = replace(before, samples=samples, relative=1.0)


def likely_seconds(asked: Round, default: Schedule | None = None) -> float:
    """Return the likely seconds of a round, and of compiling a default for it."""
    schedules = [candidate.schedule for candidate in asked.candidates]
    kinds = [kind_of(one) for one in (*schedules, default) if one is not None]
    large = sum(kind in LARGE for kind in kinds)
    return LARGE_TRIAL * large + TRIAL * (len(kinds) - large)


def pays(asked: Round, seconds: float, budget: float) -> bool:
    """Return whether a round that takes some seconds is worth that time."""
    return asked.worth >= 1 or seconds <= asked.worth * budget


def _key(n_rows: int, candidate: Candidate) -> tuple[int, Any]:
    what: Any = candidate.schedule
    if what is None:
        what = repr(sorted(candidate.params.items(), key=lambda item: item[0]))
    return n_rows, what
