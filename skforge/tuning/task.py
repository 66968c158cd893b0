"""One search with its arguments resolved, and its steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from skforge._compat import cached_property
from skforge.compiler.defaults.walks import BatchRange, ForestShape
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.layouts import base as representations
from skforge.compiler.runtime import machine
from skforge.compiler.runtime.kernels import KernelCache
from skforge.compiler.runtime.targets import default_table
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.config import tuning_seconds
from skforge.exceptions import (
    ScheduleError,
    SkforgeError,
    TuningError,
    TuningWarning,
    warn,
)
from skforge.tuning.measure.measure import (
    KernelMeasurer,
    Measurer,
    ModuleMeasurer,
    measurer_for,
)
from skforge.tuning.measure.rows import BATCH_BYTES
from skforge.tuning.records import Record, RecordKey, TuningRecords
from skforge.tuning.result import TuningResult
from skforge.tuning.search.progress import Progress
from skforge.tuning.search.ranges import RangePlan, merged, plan_ranges, range_text
from skforge.tuning.search.session import Session, likely_seconds, pays
from skforge.tuning.search.strategies import Problem, Strategy
from skforge.tuning.search.trial import DEFAULT, RECORD
from skforge.tuning.space.space import LISTED, ScheduleSpace
from skforge.tuning.store import UserStore

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
                f"reused from a record of a {kept.strategy} search of "
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
        how = self.target, self.reduction, n_jobs, self.kernels
        return measurer_for(self.forest, *how)

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
        _check_anything_legal(result)
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


def _check_anything_legal(result: TuningResult) -> None:
    """Raise TuningError if every proposed schedule is illegal."""
    proposed = [t for t in result.trials if t.candidate.origin == result.strategy]
    if proposed and result.complete and all(t.status == "illegal" for t in proposed):
        raise TuningError(
            f"none of the {len(proposed)} schedules tried is legal for this forest "
            f"and target; the reason for the first: {proposed[0].reason}"
        )
