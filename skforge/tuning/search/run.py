"""Run a search: measure each range's candidates in rounds, within a time budget.

Its progress is shown as a bar, or as lines of a log.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from multiprocessing import current_process
from statistics import median
from typing import Any, TypeAlias

from skforge.exceptions import TuningError, TuningWarning, plural, warn
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule
from skforge.tuning.measure.bench import Bench, Sampled, SampleRows
from skforge.tuning.measure.builds import Build, CandidateBuilder
from skforge.tuning.measure.measure import Measurer, Runner
from skforge.tuning.result import TuningResult
from skforge.tuning.search.ranges import RangePlan, choose, rows_text
from skforge.tuning.search.search import (
    TRIAL,
    Search,
    likely_seconds,
    pays,
    untimed_note,
)
from skforge.tuning.search.strategies import Round
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

Trials: TypeAlias = dict[tuple[int, Any], Trial]

#: The note of a search that a keyboard interrupt ended.
INTERRUPTED = "interrupted: these are the best schedules so far"

#: Reason of candidates that are compiled too late.
LATE = "the budget ended before it was timed"


class Run:
    """A search that measures within its budget: the clock, the trials, the choices.

    The budget starts at ``start`` on the measurer's clock. If the run is ``lean``, a
    default is not timed where the strategy has nothing to compare it with.
    """

    def __init__(
        self,
        search: Search,
        measurer: Measurer,
        rows: SampleRows,
        start: float,
        *,
        lean: bool,
        verbose: int | None,
    ) -> None:
        self._search, self._rows, self._lean = search, rows, lean
        self._clock = measurer.clock
        self._builder = CandidateBuilder(search.forest, measurer)
        self._slot = max(SHORTEST_SLOT, min(SLOT, search.seconds / 4000))
        self._start, self._end = start, start + search.seconds
        self._progress = Progress(verbose, search.seconds)
        #: Ranges for which the strategy proposed nothing that was worth its time.
        self._untimed: list[BatchRange] = []
        #: Number of candidates tried, with any status; the seconds that they took, and
        #: those that they were likely to take.
        self._n_tried, self._trying_seconds, self._likely_seconds = 0, 0.0, 0.0
        #: The latest trial by size and schedule (or point), of each range so far.
        self._trials: dict[BatchRange, Trials] = {}
        #: The choice for each range that is finished.
        self._tables: dict[BatchRange, dict[BatchRange, Schedule]] = {}

    @property
    def seconds(self) -> float:
        return self._clock() - self._start

    def result(self) -> TuningResult:
        """Tune all ranges; each gets an equal share of the remaining time."""
        search, notes = self._search, []
        complete = True
        with self._progress:
            try:
                for number, plan in enumerate(search.plans):
                    now = self._clock()
                    share = (self._end - now) / (len(search.plans) - number)
                    complete = self._tune(plan, now + share) and complete
            except KeyboardInterrupt:
                complete = False
                notes.append(INTERRUPTED)
                warn(
                    "The search for schedules was interrupted; the best schedules so "
                    "far are used.",
                    TuningWarning,
                )
            finally:
                self._builder.close()
        if self._untimed:
            notes.append(untimed_note(self._untimed))
        if self._rows.note:
            notes.append(self._rows.note)
        size = search.space.size
        table: dict[BatchRange, Schedule] = {}
        for plan in search.plans:
            table |= self._tables.get(plan.batch) or self._first_choice(plan)
        return search.result(
            table,
            trials=tuple(t for some in self._trials.values() for t in some.values()),
            budget=float(search.seconds),
            seconds=self.seconds,
            n_points=None if size is None else size * len(search.plans),
            n_tried=self._n_tried,
            trying_seconds=self._trying_seconds,
            notes=tuple(notes),
            complete=complete,
        )

    def _tune(self, plan: RangePlan, deadline: float) -> bool:
        self._plan, self._deadline = plan, deadline
        self._default = Candidate(plan.default, {}, DEFAULT)
        self._benches: dict[int, Bench] = {}
        self._trials_of_range = self._trials[plan.batch] = {}
        proposals = self._search.strategy.rounds(self._search.problem.at(plan))
        asked = next(proposals, None)
        new = None if self._builder.has(plan.default) else plan.default
        if asked is not None and not (asked.candidates and self._pays(asked, new)):
            asked = None
        if asked is None and self._lean:
            self._tables[plan.batch] = {plan.batch: plan.default}
            self._untimed.append(plan.batch)
            return True
        if asked is not None and asked.worth < 1:  # other ranges will need little
            self._deadline = max(deadline, (self._clock() + self._end) / 2)
        # Leave time for the finalists.
        samples = FINAL_SAMPLES * (FINALISTS + 1) * len(plan.sizes)
        share = FINAL_SHARE * (self._deadline - self._clock())
        end = self._deadline - min(share, FINAL_CARE * samples * self._slot)
        bench = self._begin()
        if bench is None:
            return False
        complete = True
        while asked is not None:
            begin = self._clock()
            trials = []
            for build in self._builder.stream(asked.candidates, end):
                trials.append(self._try(bench, build, asked.samples, end))
                self._report(trials[-1])
            self._trying_seconds += self._clock() - begin
            self._likely_seconds += likely_seconds(asked)
            late = sum(t.status == "no time" for t in trials)
            self._n_tried += len(trials) - late
            complete = not late and self._clock() < end
            if not complete:
                break
            try:
                asked = proposals.send(trials)
            except StopIteration:
                break
            if not self._pays(asked):
                break
        proposals.close()
        return self._finish() and complete

    def _pays(self, asked: Round, default: Schedule | None = None) -> bool:
        speed = (TRIAL + self._trying_seconds) / (TRIAL + self._likely_seconds)
        seconds = speed * likely_seconds(asked, default)
        return pays(asked, seconds, self._search.seconds)

    def _first_choice(self, plan: RangePlan) -> dict[BatchRange, Schedule]:
        ratios = {
            t.schedule: t.relative
            for t in self._trials.get(plan.batch, {}).values()
            if t.n_rows == plan.main and t.status == "measured"
            if t.schedule is not None
        }
        seconds = {plan.main: 1.0} if ratios else {}
        return choose(plan.batch, plan.default, seconds, {plan.main: ratios})

    # ------------------------------------------------------------- candidates

    def _begin(self) -> Bench | None:
        n_rows = self._plan.main
        # Every default is needed, so no single range pays for compiling it.
        half = self._start + self._search.seconds / 2
        build = self._builder.build(self._default, max(self._deadline, half))
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
        self._report(self._record(n_rows, build, "measured", "", sampled))
        return bench

    def _try(self, bench: Bench, build: Build, samples: int, end: float) -> Trial:
        n_rows = self._plan.main
        if build.runner is None:
            return self._record(n_rows, build, build.status, build.reason)
        key = n_rows, build.candidate.key
        before, alike = self._trials_of_range.get(key), self._trials_of(n_rows)
        alike = [t for t in alike if t.digest == build.digest and t.samples]
        if alike and before is None:
            twin = alike[0]  # another schedule with the same code
            known: Status = "same code" if twin.usable else twin.status
            reason = twin.reason or f"as {twin.schedule!r}"
            times = Sampled(twin.samples, (twin.relative,))
            return self._record(n_rows, build, known, reason, times)
        late = partial(self._late, end)
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
            self._tables[plan.batch] = {plan.batch: plan.default}
            self._update_default(plan.main)
            return True
        seconds: dict[int, float] = {}
        ratios: dict[int, dict[Schedule, float]] = {}
        for size in sorted(plan.sizes, key=lambda size: size != plan.main):
            late = bool(seconds) and self._late()
            times = None if late else self._final_at(size, finalists)
            if times is None:
                self._tables[plan.batch] = {plan.batch: plan.default}
                return False
            seconds[size], ratios[size] = times
        self._tables[plan.batch] = choose(plan.batch, plan.default, seconds, ratios)
        return True

    def _final_at(
        self, size: int, finalists: Sequence[Candidate]
    ) -> tuple[float, dict[Schedule, float]] | None:
        runners: dict[Build, Runner] = {}
        for candidate in (self._default, *finalists):
            build = self._builder.build(candidate, self._deadline)
            if build.runner is not None and not self._wrong(build, size):
                runners[build] = build.runner
            elif candidate is self._default:
                return None
        bench = self._bench(size, runners.pop(next(iter(runners))))
        sampled = bench.together(runners, FINAL_SAMPLES, self._late)
        ratios: dict[Schedule, float] = {}
        for build, samples in sampled.items():
            trial = self._record(size, build, "measured", "", samples)
            assert trial.schedule is not None
            ratios[trial.schedule] = trial.relative
        self._update_default(size)
        return median(bench.baseline), ratios

    def _finalists(self) -> list[Candidate]:
        promising = [
            t
            for t in self._trials_of(self._plan.main)
            if t.status == "measured" and t.relative < PROMISING
            if t.schedule != self._plan.default
        ]
        promising.sort(key=lambda t: t.relative)
        return [t.candidate for t in promising[:FINALISTS]]

    # ------------------------------------------------------------------ parts

    def _report(self, trial: Trial) -> None:
        n_trials = sum(map(len, self._trials.values()))
        self._progress.tell(trial, n_trials, self._best_ratio(), self.seconds)

    def _late(self, end: float | None = None) -> bool:
        return self._clock() >= (self._deadline if end is None else end)

    def _trials_of(self, n_rows: int) -> list[Trial]:
        return [t for t in self._trials_of_range.values() if t.n_rows == n_rows]

    def _best_ratio(self) -> float:
        rows = self._trials_of(self._plan.main)
        return min((t.relative for t in rows if t.usable), default=1.0)

    def _bench(self, n_rows: int, yardstick: Runner) -> Bench:
        if n_rows not in self._benches:
            batches = self._rows.batches(n_rows)
            self._benches[n_rows] = Bench(batches, yardstick, self._slot)
        return self._benches[n_rows]

    def _wrong(self, build: Build, n_rows: int) -> str:
        assert build.runner is not None
        return self._rows.wrong(build.runner.predict, build.digest, n_rows)

    def _record(
        self,
        n_rows: int,
        build: Build,
        status: Status,
        reason: str,
        sampled: Sampled | None = None,
    ) -> Trial:
        key = n_rows, build.candidate.key
        before = self._trials_of_range.get(key)
        self._trials_of_range[key] = Trial(
            self._plan.batch,
            n_rows,
            build.candidate,
            status,
            reason,
            sampled.samples if sampled else (),
            sampled.relative if sampled else float("nan"),
            max(build.seconds, before.compile_seconds if before else 0.0),
            build.digest,
            self._search.target.kind,
        )
        return self._trials_of_range[key]

    def _update_default(self, n_rows: int) -> None:
        key = n_rows, self._default.key
        before = self._trials_of_range.get(key)
        if before is None:
            main = self._trials_of_range[self._plan.main, self._default.key]
            before = replace(main, n_rows=n_rows, compile_seconds=0.0)
        samples = tuple(self._benches[n_rows].baseline)
        self._trials_of_range[key] = replace(before, samples=samples, relative=1.0)


# ------------------------------------------------------------ progress

#: Seconds after which a search shows a bar without being asked.
PATIENCE = 1.0


class Progress:
    """Shows the progress of a search.

    ``verbose=None`` shows a bar once a search has run for ``PATIENCE`` seconds, if
    standard error is a terminal or this is a notebook with ipywidgets, and only in the
    main process: never in pipes, logs and workers. 0 shows nothing. With 1, terminals
    and such notebooks get the bar at once, and other streams one line for each range of
    batch sizes. 2 adds a line for each candidate with its time and schedule. Lines go
    to ``stream``, or to standard error.
    """

    def __init__(self, verbose: int | None, seconds: float, stream: Any = None) -> None:
        self._patient = verbose is None
        self._verbose, self._seconds, self._stream = verbose or 0, seconds, stream
        self._bar: Any = None
        self._task: Any = None
        self._last: tuple[BatchRange, str] | None = None

    def __enter__(self) -> Progress:
        if self._verbose:
            self._start()
        return self

    def _start(self) -> None:
        from rich.console import Console

        console = Console(file=self._stream, stderr=self._stream is None)
        if console.is_terminal or (console.is_jupyter and _has_widgets()):
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("tuning"),
                BarColumn(),
                TextColumn("{task.completed:.1f} of {task.total:.1f} s"),
                TextColumn("{task.fields[what]}"),
                console=console,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=self._seconds, what="")

    def tell(self, trial: Trial, n_trials: int, best: float, seconds: float) -> None:
        line = (
            f"{rows_text(trial.batch)}, {plural(n_trials, 'trial')}, {1 / best:.2f} "
            f"times as fast as the default, {seconds:.1f} s"
        )
        before, self._last = self._last, (trial.batch, line)
        if self._patient and seconds > PATIENCE:
            self._patient = False
            if _is_watched(self._stream or sys.stderr):
                self._start()
        if self._bar is not None:
            self._bar.update(self._task, completed=seconds, what=line)
        elif self._verbose and before is not None and before[0] != trial.batch:
            self._print(before[1])
        if self._verbose > 1:
            self._print(str(trial))

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._verbose and self._last is not None:
            self._print(self._last[1])

    def _print(self, text: str) -> None:
        text = f"tuning: {text}"
        if self._bar is not None:  # prints above the bar
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self._stream or sys.stderr, flush=True)


def _is_watched(stream: Any) -> bool:
    if current_process().name != "MainProcess":
        return False
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return bool(stream.isatty() or (hasattr(shell, "kernel") and _has_widgets()))


def _has_widgets() -> bool:
    return find_spec("ipywidgets") is not None
