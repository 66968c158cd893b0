"""What a search looks for, and the results that need no measurements."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from skforge._compat import cached_property
from skforge.compiler.backend import backend_of
from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.layouts import base as representations
from skforge.compiler.target import Target
from skforge.config import tuning_seconds
from skforge.engine import machine
from skforge.engine.cpu.threads import resolve_n_jobs
from skforge.engine.kernels import KernelCache
from skforge.engine.targets import default_table
from skforge.exceptions import (
    ScheduleError,
    SkforgeError,
    TuningWarning,
    warn,
    with_article,
)
from skforge.forest.forest import Forest
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule
from skforge.tuning.machines import machine_of
from skforge.tuning.measure.bench import BATCH_BYTES
from skforge.tuning.measure.measure import KernelMeasurer, Measurer
from skforge.tuning.records import (
    Record,
    RecordKey,
    TuningRecords,
    UserStore,
    forest_key,
    shape_key,
    sizes_of,
    target_key,
)
from skforge.tuning.result import TuningResult
from skforge.tuning.search.odds import LARGE, kind_of
from skforge.tuning.search.ranges import (
    RangePlan,
    first_row,
    merged,
    plan_ranges,
    range_text,
)
from skforge.tuning.search.strategies import Problem, Round, Strategy
from skforge.tuning.search.trial import DEFAULT, RECORD
from skforge.tuning.space.space import LISTED, ScheduleSpace, generator

#: Likely seconds to compile and time a schedule (20 forests); and of bit slices and
#: tiles of values, which have several times the code.
TRIAL, LARGE_TRIAL = 0.1, 0.25


@dataclass(frozen=True)
class Search:
    """What is searched, for whom and how; ``Run`` measures it."""

    forest: Forest
    target: Target
    reduction: Reduction
    ranges: Mapping[BatchRange, int] | None  # None: those of the defaults
    n_jobs: int | None
    strategy: Strategy
    space: ScheduleSpace
    budget: float | None  # as given; see ``seconds``
    random_state: Any = None
    kernels: KernelCache | None = None  # a module's

    @cached_property
    def defaults(self) -> dict[BatchRange, Schedule]:
        return default_table(self.shape, self.target, self.reduction)

    @cached_property
    def shape(self) -> ForestShape:
        return backend_of(self.target).shape(self.forest, self.target)

    @cached_property
    def problem(self) -> Problem:
        return Problem(
            self.forest,
            self.shape,
            self.target,
            self.reduction,
            (1, None),
            1,
            self.n_threads,
            self.space,
            generator(self.random_state),
            self.defaults[min(self.defaults)],
            known=tuple(dict.fromkeys(self.defaults.values())),
        )

    @cached_property
    def n_threads(self) -> int:
        return resolve_n_jobs(self.n_jobs)

    @property
    def seconds(self) -> float:
        if self.budget is not None:
            return self.budget
        few = machine_of(self.target).budget
        return tuning_seconds(few) or few  # 0 disables only implicit tuning

    @cached_property
    def plans(self) -> list[RangePlan]:
        row_bytes = self.forest.n_features * self.forest.input_dtype.itemsize
        most = max(1, BATCH_BYTES // max(1, row_bytes))
        return plan_ranges(self.defaults, self.ranges, most)

    @cached_property
    def key(self) -> RecordKey:
        asked = tuple(sorted((self.ranges or {}).items(), key=first_row))
        keys = forest_key(self.forest), target_key(self.target)
        return RecordKey(*keys, self.reduction, self.n_threads, asked)

    def measurer(self) -> KernelMeasurer:
        how = self.reduction, self.n_jobs, self.kernels
        return KernelMeasurer(self.forest, self.target, *how)

    def first_round(self, plan: RangePlan) -> Round | None:
        return next(self.strategy.rounds(self.problem.at(plan)), None)

    def promised(self) -> float:
        """Return the seconds that a search is worth, 0 for none, without compiling."""
        rounds = [(plan, self.first_round(plan)) for plan in self.plans]
        worth = sum(
            asked.worth
            for plan, asked in rounds
            if asked is not None and asked.candidates
            if pays(asked, likely_seconds(asked, plan.default), self.seconds)
        )
        return min(worth, 1.0) * self.seconds

    # ---------------------------------------------------------------- results

    def result(
        self, table: Mapping[BatchRange, Schedule] | None = None, **facts: Any
    ) -> TuningResult:
        """Return a result with the shared facts, of the default schedules for None."""
        if table is None:
            table = {plan.batch: plan.default for plan in self.plans}
        size = self.space.size
        count = f"more than {LISTED:,}" if size is None else f"{size:,}"
        facts = {
            "strategy": self.strategy.name,
            "space": f"{self.space.name}, {count} schedules",
            "trials": (),
            **facts,
        }
        return TuningResult(
            merged(table),
            target=str(self.target),
            reduction=self.reduction,
            n_threads=self.n_threads,
            **facts,
        )

    def predicted(self, measurer: Measurer, begin: float) -> TuningResult:
        table = {}
        for plan in self.plans:
            table[plan.batch] = plan.default
            proposed = self.first_round(plan)
            for candidate in () if proposed is None else proposed.candidates:
                if candidate.schedule is None:
                    continue
                with suppress(ScheduleError):
                    if not measurer.check(measurer.lower(candidate.schedule)):
                        table[plan.batch] = candidate.schedule
                        break
        note = "the schedules are predictions of the cost model: nothing was measured"
        seconds = time.perf_counter() - begin
        return self.result(table, seconds=seconds, notes=(note,))

    # ------------------------------------------------------- earlier searches

    def record(self, result: TuningResult) -> Record:
        table, strategy = dict(result.table), result.strategy
        seconds, where = result.seconds, result.target
        return Record(self.key, table, strategy, result.complete, seconds, where)

    def _reused(
        self, table: Mapping[BatchRange, Schedule], source: str, complete: bool
    ) -> TuningResult:
        notes = (f"reused from {source}: nothing was measured",)
        how = str(self.target), self.reduction, self.n_threads
        return TuningResult(table, (), RECORD, *how, notes=notes, complete=complete)

    def from_records(self, records: TuningRecords) -> TuningResult | None:
        reasons: list[str] = []

        def usable(record: Record) -> bool:
            reason = self._unusable(record)
            reasons.extend([reason] if reason else [])
            return not reason

        record = records.find(self.key, usable)
        if record is not None:
            search = f"a record of {with_article(record.strategy)} search"
            source = f"{search} of {record.seconds:.2f} s"
            return self._reused(record.table, source, record.complete)
        if reasons:
            warn(
                f"{len(reasons)} record(s) in {records.path} cannot be used for "
                f"this forest: {reasons[-1]}.",
                TuningWarning,
            )
        return None

    def store(self) -> UserStore:
        profile = machine_of(self.target).speed(self.target)
        shape = shape_key(self.forest, self.defaults.values(), self.seconds)
        sizes = *sizes_of(self.forest), *profile
        return UserStore(replace(self.key, forest=shape), sizes)

    def from_store(self, store: UserStore) -> TuningResult | None:
        record = store.find(self._fits)
        if record is None:
            return None
        table = self.result().table if record.strategy == DEFAULT else record.table
        source = (
            f"a search of {record.seconds:.2f} s for a forest of this shape on this "
            "machine"
        )
        return self._reused(table, source, record.complete)

    def put(self, store: UserStore, result: TuningResult) -> None:
        record = self.record(result)
        if result.table == self.result().table:
            record = replace(record, strategy=DEFAULT)
        store.add(record, doubtful=not result.complete or machine.is_busy(self.target))

    def _fits(self, record: Record) -> bool:
        if record.strategy == DEFAULT:
            return True
        if self._unusable(record):
            return False
        lowering = self.measurer()
        with suppress(SkforgeError):
            for schedule in {*record.table.values()} - {*self.defaults.values()}:
                lowering.lower(schedule)
            return True
        return False

    def _unusable(self, record: Record) -> str:
        wanted = [(1, None)] if self.ranges is None else self.ranges
        if merged(dict.fromkeys(record.table)) != merged(dict.fromkeys(wanted)):
            return "it is for other batch sizes"
        for schedule in record.table.values():
            try:
                representations.get(schedule.loop_nest(self.forest).representation)
            except ScheduleError as error:
                return error.why.rstrip(".")
        return ""


def likely_seconds(asked: Round, default: Schedule | None = None) -> float:
    schedules = [candidate.schedule for candidate in asked.candidates]
    kinds = [kind_of(s) for s in (*schedules, default) if s is not None]
    large = sum(kind in LARGE for kind in kinds)
    return LARGE_TRIAL * large + TRIAL * (len(kinds) - large)


def pays(asked: Round, seconds: float, budget: float) -> bool:
    return asked.worth >= 1 or seconds <= asked.worth * budget


def untimed_note(ranges: Iterable[BatchRange]) -> str:
    text = ", ".join(map(range_text, ranges))
    return (
        f"for {text} rows, no schedule promised enough gain to be worth timing: "
        "nothing was measured there"
    )
