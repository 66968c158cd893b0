"""One search with its arguments resolved, and its steps."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from importlib.util import find_spec
from multiprocessing import current_process
from typing import Any

import numpy as np

from skforge._compat import cached_property
from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.layouts import base as representations
from skforge.compiler.runtime import machine
from skforge.compiler.runtime.kernels import KernelCache
from skforge.compiler.runtime.targets import default_table
from skforge.compiler.schedule.ranges import BatchRange
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.config import tuning_seconds
from skforge.exceptions import (
    ScheduleError,
    SkforgeError,
    TuningError,
    TuningWarning,
    warn,
    with_article,
)
from skforge.tuning.measure.bench import BATCH_BYTES
from skforge.tuning.measure.measure import KernelMeasurer, Measurer, ModuleMeasurer
from skforge.tuning.records import Record, RecordKey, TuningRecords
from skforge.tuning.result import TuningResult
from skforge.tuning.search.ranges import RangePlan, merged, plan_ranges, range_text
from skforge.tuning.search.session import Session, likely_seconds, pays
from skforge.tuning.search.strategies import Problem, Strategy
from skforge.tuning.search.trial import DEFAULT, RECORD, Trial
from skforge.tuning.space.space import LISTED, ScheduleSpace
from skforge.tuning.store import UserStore

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
        self._last: tuple[BatchRange, int, float, float] | None = None

    def __enter__(self) -> Progress:
        """Start the bar, if it was asked for."""
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
        """Show the result of a candidate."""
        now = (trial.batch, n_trials, best, seconds)
        before, self._last = self._last, now
        if self._patient and seconds > PATIENCE:
            self._patient = False
            if _is_watched(self._stream or sys.stderr):
                self._start()
        if self._bar is not None:
            self._bar.update(self._task, completed=seconds, what=_line(*now))
        elif self._verbose and before is not None and before[0] != trial.batch:
            self._print(_line(*before))
        if self._verbose > 1:
            self._print(trial_line(trial))

    def __exit__(self, *_: object) -> None:
        """Stop the bar, or print the last line."""
        if self._bar is not None:
            self._bar.stop()
        elif self._verbose and self._last is not None:
            self._print(_line(*self._last))

    def _print(self, text: str) -> None:
        text = f"tuning: {text}"
        if self._bar is not None:  # prints above the bar
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self._stream or sys.stderr, flush=True)


def _is_watched(stream: Any) -> bool:
    """Return whether somebody looks at a stream: a terminal's, or a notebook's cell."""
    if current_process().name != "MainProcess":
        return False
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return bool(stream.isatty() or (hasattr(shell, "kernel") and _has_widgets()))


def _has_widgets() -> bool:
    """Return whether rich can draw in a notebook; it warns there if not."""
    return find_spec("ipywidgets") is not None


def trial_line(trial: Trial) -> str:
    """Return the result of a candidate as one line.

    >>> from skforge.compiler.schedule.schedule import Schedule
    >>> from skforge.tuning import Candidate, Trial
    >>> two = Candidate(Schedule().interleave("tree", 2))
    >>> print(trial_line(Trial((1, 1), 1, two, "measured", "", (2.5e-6,), 0.5)))
    1 rows: 2.50 us, 2.00 times as fast as the default: Schedule().interleave("tree", 2)
    >>> trial_line(Trial((1, 1), 1, two, "too large", "1,000 loops."))
    '1 rows: too large, 1,000 loops: Schedule().interleave("tree", 2)'
    """
    what: Any = trial.schedule
    if what is None:
        what = dict(trial.candidate.params)
    told: str = trial.status
    if trial.samples:
        times = 1 / trial.relative
        told = f"{trial.seconds * 1e6:.2f} us, {times:.2f} times as fast as the default"
    if trial.reason:
        told += f", {trial.reason.splitlines()[0].rstrip('.')}"
    return f"{trial.n_rows} rows: {told}: {what!r}"


def _line(batch: BatchRange, n_trials: int, best: float, seconds: float) -> str:
    return (
        f"{range_text(batch)} rows, {n_trials} trials, {1 / best:.2f} times as fast "
        f"as the default, {seconds:.1f} s"
    )


#: Default budget of a search in seconds, on a CPU and on a GPU.
DEFAULT_SECONDS, DEFAULT_SECONDS_GPU = 4.0, 10.0

#: The note of a search that a keyboard interrupt ended.
INTERRUPTED = "interrupted: these are the best schedules so far"


@dataclass(frozen=True)
class SearchTask:
    """The arguments of one search, resolved, and its steps."""

    forest: Forest
    target: Target
    reduction: Reduction
    ranges: Mapping[BatchRange, int] | None
    n_threads: int
    strategy: Strategy
    space: ScheduleSpace
    budget: float | None  # as given; see ``seconds``
    records: TuningRecords | None
    begin: float
    kernels: KernelCache | None = None  # a module's

    @property
    def seconds(self) -> float:
        """The budget, or else the default one."""
        if self.budget is not None:
            return self.budget
        few = DEFAULT_SECONDS_GPU if self.target.is_gpu else DEFAULT_SECONDS
        return tuning_seconds(few) or few  # 0 disables only implicit tuning

    def plans(self) -> list[RangePlan]:
        """Return what is measured of each range; batches fit in memory."""
        row_bytes = self.forest.n_features * self.forest.input_dtype.itemsize
        most = max(1, BATCH_BYTES // max(1, row_bytes))
        return plan_ranges(self.defaults, self.ranges, most)

    @cached_property
    def defaults(self) -> dict[BatchRange, Schedule]:
        """The default schedule of each range."""
        return default_table(self.forest, self.target, self.reduction)

    def _key(self) -> RecordKey:
        return RecordKey.of(
            self.forest, self.target, self.reduction, self.n_threads, self.ranges
        )

    def _result(
        self, table: Mapping[BatchRange, Schedule], **facts: Any
    ) -> TuningResult:
        """Return a result with the facts that all results share."""
        size = self.space.size
        count = f"more than {LISTED:,}" if size is None else f"{size:,}"
        shared = {
            "strategy": self.strategy.name,
            "space": f"{self.space.name}, {count} schedules",
            "trials": (),
        }
        return TuningResult(
            merged(table),
            target=str(self.target),
            reduction=self.reduction,
            n_threads=self.n_threads,
            **{**shared, **facts},
        )

    # ------------------------------------------------------------------ steps

    def from_records(self) -> TuningResult | None:
        """Return the result of an earlier search; warn if none can be used."""
        if self.records is None:
            return None
        reasons: list[str] = []

        def usable(record: Record) -> bool:
            reason = self._unusable(record)
            if reason:
                reasons.append(reason)
            return not reason

        kept = self.records.find(self._key(), usable)
        if kept is not None:
            note = (
                f"reused from a record of {with_article(kept.strategy)} search of "
                f"{kept.seconds:.2f} s"
            )
            return self._reused(kept.table, f"{note}: nothing was measured", kept)
        if reasons:
            warn(
                f"{len(reasons)} record(s) in {self.records.path} cannot be used for "
                f"this forest: {reasons[-1]}.",
                TuningWarning,
            )
        return None

    def _reused(
        self, table: Mapping[BatchRange, Schedule], note: str, kept: Record
    ) -> TuningResult:
        """Return the result that a record gives."""
        return TuningResult(
            table,
            (),
            RECORD,
            str(self.target),
            self.reduction,
            self.n_threads,
            notes=(note,),
            complete=kept.complete,
        )

    def store(self) -> UserStore:
        """Return the user's store for this search."""
        gpu = self.target.is_gpu
        profile = () if gpu else astuple(machine.machine_profile(self.target))
        how = self._key(), self.defaults, self.seconds, profile
        return UserStore.of(self.forest, *how)

    def from_store(self, store: UserStore | None) -> TuningResult | None:
        """Return what an earlier search for a forest of this shape found, or None."""
        kept = None if store is None else store.find(self._fits)
        if kept is None:
            return None
        table = kept.table
        if kept.strategy == DEFAULT:
            table = self._default_result().table
        note = (
            f"reused from a search of {kept.seconds:.2f} s for a forest of this shape "
            "on this machine: nothing was measured"
        )
        return self._reused(table, note, kept)

    def _fits(self, kept: Record) -> bool:
        """Return whether the schedules of a similar forest suit this one."""
        if kept.strategy == DEFAULT:
            return True
        if self._unusable(kept):
            return False
        lowering = self.measurer(self.n_threads)
        with suppress(SkforgeError):
            for schedule in {*kept.table.values()} - {*self.defaults.values()}:
                lowering.lower(schedule)
            return True
        return False

    def put(self, store: UserStore, result: TuningResult) -> None:
        """Keep what was measured in the store, unless it was interrupted."""
        if not any(trial.usable for trial in result.trials):
            return
        if INTERRUPTED in result.notes:
            return
        found = self._record(result)
        if result.table == self._default_result().table:
            found = replace(found, strategy=DEFAULT)
        store.add(found, not result.complete or machine.is_busy(self.target))

    def given_up(self, waited: float) -> TuningResult:
        """Return the defaults, because other processes measure."""
        note = f"other processes on this machine were searching for {waited:.2g} s"
        notes = (f"{note}: nothing was measured",)
        return self._default_result(notes=notes, complete=False)

    def _default_result(self, **facts: Any) -> TuningResult:
        """Return a result with the default schedules."""
        table = {plan.batch: plan.default for plan in self.plans()}
        return self._result(table, **facts)

    def measurer(self, n_jobs: int | None) -> KernelMeasurer | ModuleMeasurer:
        """Return the target's measurer."""
        kind = ModuleMeasurer if self.target.is_gpu else KernelMeasurer
        return kind(self.forest, self.target, self.reduction, n_jobs, self.kernels)

    def _unusable(self, kept: Record) -> str:
        """Return why a record cannot be used; empty if it can."""
        wanted = [(1, None)] if self.ranges is None else self.ranges
        if merged(dict.fromkeys(kept.table)) != merged(dict.fromkeys(wanted)):
            return "it is for other batch sizes"
        for schedule in kept.table.values():
            try:
                representations.get(schedule.loop_nest(self.forest).representation)
            except ScheduleError as error:
                return error.why.rstrip(".")
        return ""

    def problem(self, random: np.random.Generator) -> Problem:
        """Return what all ranges have in common."""
        return Problem(
            self.forest,
            ForestShape.of(self.forest),
            self.target,
            self.reduction,
            (1, None),
            1,
            self.n_threads,
            self.space,
            random,
            self.defaults[min(self.defaults)],
            1.0,
            tuple(dict.fromkeys(self.defaults.values())),
        )

    def promised(self, problem: Problem) -> float:
        """Return the seconds that a search is worth; 0 if it would time nothing.

        Nothing is compiled to tell.
        """
        worth = 0.0
        for plan in self.plans():
            asked = next(self.strategy.rounds(problem.at(plan)), None)
            if asked is None or not asked.candidates:
                continue
            if pays(asked, likely_seconds(asked, plan.default), self.seconds):
                worth += asked.worth
        return min(worth, 1.0) * self.seconds

    def untimed(self) -> TuningResult:
        """Return the defaults, because nothing else promised to be worth its time."""
        notes = (_untimed([plan.batch for plan in self.plans()]),)
        seconds = time.perf_counter() - self.begin
        return self._default_result(
            notes=notes, seconds=seconds, budget=float(self.seconds)
        )

    def predicted(self, problem: Problem, measurer: Measurer) -> TuningResult:
        """Return the first legal proposal for each range, else the default."""
        table = {}
        for plan in self.plans():
            table[plan.batch] = plan.default
            proposed = next(self.strategy.rounds(problem.at(plan)), None)
            for candidate in proposed.candidates if proposed is not None else ():
                if candidate.schedule is None:
                    continue
                with suppress(ScheduleError):
                    if not measurer.check(measurer.lower(candidate.schedule)):
                        table[plan.batch] = candidate.schedule
                        break
        return self._result(
            table,
            seconds=time.perf_counter() - self.begin,
            notes=(
                "the schedules are predictions of the cost model: nothing was measured",
            ),
        )

    def measured(self, session: Session, verbose: int | None) -> TuningResult:
        """Run a session and return its result."""
        plans, notes = self.plans(), []
        with Progress(verbose, self.seconds) as progress:
            try:
                session.run(plans, progress.tell)
            except KeyboardInterrupt:
                notes.append(INTERRUPTED)
                warn(
                    "The search for schedules was interrupted; the best schedules so "
                    "far are used.",
                    TuningWarning,
                )
        complete = session.complete and not notes
        if session.untimed:
            notes.append(_untimed(session.untimed))
        if session.rows.note:
            notes.append(session.rows.note)
        size = self.space.size
        return self._result(
            session.table(plans),
            trials=session.trials,
            budget=float(self.seconds),
            seconds=session.seconds,
            n_points=None if size is None else size * len(plans),
            n_tried=session.n_tried,
            trying_seconds=session.trying_seconds,
            notes=tuple(notes),
            complete=complete,
        )

    def keep(self, result: TuningResult) -> None:
        """Add a result to the records; warn if it, or the file, is of no use."""
        timed = any(trial.usable for trial in result.trials)
        if self.budget is not None and not timed and not result.complete:
            warn(
                f"A budget of {self.budget:g} s is too short to measure a single "
                "schedule; the default schedules are used.",
                TuningWarning,
            )
        tried = [t for t in result.trials if t.candidate.origin == result.strategy]
        if tried and result.complete and all(t.status == "illegal" for t in tried):
            raise TuningError(
                f"none of the {len(tried)} schedules tried is legal for this forest "
                f"and target; the reason for the first: {tried[0].reason}"
            )
        if self.records is None or not timed:
            return
        try:
            self.records.add(self._record(result))
        except OSError as error:
            path = self.records.path
            warn(
                f"the result of the search was not recorded: {path} cannot be written "
                f"({error.strerror or error}).",
                TuningWarning,
            )

    def _record(self, result: TuningResult) -> Record:
        return Record(
            self._key(),
            dict(result.table),
            result.strategy,
            result.complete,
            result.seconds,
            result.target,
        )


def _untimed(ranges: Iterable[BatchRange]) -> str:
    """Return the note about ranges at which nothing was timed."""
    text = ", ".join(map(range_text, ranges))
    return (
        f"for {text} rows, no schedule promised enough gain to be worth timing: "
        "nothing was measured there"
    )
