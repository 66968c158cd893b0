"""``tune``: find the fastest schedules of a forest on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from skforge.compiler.defaults.walks import BatchRange, ForestShape
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.leaves import leaf_finder
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.layouts import base as representations
from skforge.compiler.runtime.cpu.threads import resolve_n_jobs
from skforge.compiler.runtime.targets import default_table
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.config import tuning_seconds
from skforge.exceptions import (
    InvalidInputError,
    ScheduleError,
    TuningError,
    TuningWarning,
    warn,
)
from skforge.tuning.measure.measure import Measurer, measurer_for
from skforge.tuning.measure.rows import BATCH_BYTES, SampleRows
from skforge.tuning.records import Record, RecordKey, TuningRecords, as_records
from skforge.tuning.result import TuningResult
from skforge.tuning.search.heuristic import Heuristic
from skforge.tuning.search.learned import Learned
from skforge.tuning.search.progress import Progress
from skforge.tuning.search.ranges import RangePlan, merged, plan_ranges
from skforge.tuning.search.session import Session
from skforge.tuning.search.strategies import (
    Exhaustive,
    Problem,
    Random,
    Strategy,
    SuccessiveHalving,
)
from skforge.tuning.search.trial import RECORD
from skforge.tuning.space.space import LISTED, ScheduleSpace, generator

#: Default budget of a search in seconds, on a CPU and on a GPU.
DEFAULT_SECONDS, DEFAULT_SECONDS_GPU = 4.0, 10.0

#: Strategies by their names.
STRATEGIES: dict[str, type[Strategy]] = {
    "heuristic": Heuristic,
    "learned": Learned,
    "exhaustive": Exhaustive,
    "random": Random,
    "halving": SuccessiveHalving,
}


@dataclass(frozen=True)
class Tuner:
    """Configures a search for schedules; a value for ``CompiledForest(tuning=...)``.

    Parameters
    ----------
    strategy : str or Strategy, default="heuristic"
        "heuristic", "learned", "exhaustive", "random", "halving", or an object with a
        ``name`` and a method ``rounds``.
    space : ScheduleSpace, default=None
        The space to search; None uses the target's whole space.
    budget : float, default=None
        Seconds for all batch sizes together, including compilation. None uses the
        environment variable ``SKFORGE_TUNING_SECONDS`` if set, else 4, or 10 on a GPU.
    records : TuningRecords or path, default=None
        A file of results. A record for a forest of the same shape is reused without
        measuring; new results are added.
    measurer : Measurer, default=None
        Compiles and times candidates; None uses the target's measurer.

    Examples
    --------
    >>> from skforge.tuning import ScheduleSpace, Tuner
    >>> tuner = Tuner("random", ScheduleSpace.cpu_paper(), budget=2.0)
    """

    strategy: str | Strategy = "heuristic"
    space: ScheduleSpace | None = None
    budget: float | None = None
    records: TuningRecords | str | os.PathLike[str] | None = None
    measurer: Measurer | None = None

    def tune(
        self,
        forest: Forest,
        rows: Any = None,
        *,
        target: Target | str = "cpu",
        reduction: Reduction = "exact",
        ranges: Mapping[BatchRange, int] | None = None,
        n_jobs: int | None = None,
        budget: float | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> TuningResult:
        """Find the fastest schedule of each range of batch sizes.

        Parameters
        ----------
        forest : Forest
            The forest to traverse.
        rows : array-like of shape (n_rows, n_features), default=None
            Sample rows. If they are None or do not fill a batch, rows are drawn around
            the forest's thresholds.
        target : Target or str, default="cpu"
            The machine to compile for; this machine must be able to run it.
        reduction : {"exact", "reproducible", "fast"}, default="exact"
            How leaf values are summed.
        ranges : mapping of (int, int or None) to int, default=None
            Ranges of batch sizes, and the size at which each is measured. None uses the
            ranges of the default schedules, each measured at its ends and its middle.
        n_jobs : int, default=None
            Threads of one call.
        budget : float, default=None
            Seconds; None uses the tuner's budget.
        random_state : int, RandomState instance or None, default=None
            Seed of the random numbers.
        verbose : int, default=0
            Whether to show progress; 2 adds a line for each candidate.

        Returns
        -------
        TuningResult
            Its ``table`` is not slower than the default schedules at the measured
            sizes, apart from noise.

        Raises
        ------
        TuningError
            If the space is empty, no proposed schedule is legal, or the default
            schedule fails.

        Warns
        -----
        TuningWarning
            If a keyboard interrupt ended the search; the result holds the best so far.
            If an explicit budget ended before anything was measured. If records exist
            but cannot be used, or cannot be written.
        """
        begin = time.perf_counter()
        strategy, machine = strategy_of(self.strategy), Target.parse(target)
        threads = resolve_n_jobs(n_jobs)
        space = self.space
        if space is None:
            space = default_space(strategy, machine, threads)
        check_space(space)
        search = _Search(
            leaf_finder(forest),  # the traversal, even if scores are not sums
            machine,
            reduction,
            ranges,
            threads,
            strategy,
            space,
            self.budget if budget is None else budget,
            as_records(self.records),
            begin,
        )
        kept = search.from_records()
        if kept is not None:
            return kept
        measurer = self.measurer
        if measurer is None:
            measurer = measurer_for(search.forest, machine, reduction, n_jobs)
        problem = search.problem(generator(random_state))
        if not getattr(strategy, "measures", True):
            return search.predicted(problem, measurer)
        seed = int(problem.random.integers(1 << 31))
        sample = SampleRows(search.forest, rows, seed, reduction)
        # Setup time counts towards the budget, except with a custom clock.
        real = self.measurer is None
        start = measurer.clock() - (time.perf_counter() - begin) * real
        session = Session(problem, strategy, measurer, sample, search.seconds, start)
        result = search.measured(session, verbose)
        search.keep(result)
        return result


@dataclass(frozen=True)
class _Search:
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
            note = f"from a record of {kept.strategy}, {kept.seconds:.2f} s"
            return TuningResult(
                kept.table,
                (),
                RECORD,
                str(self.target),
                self.reduction,
                self.n_threads,
                notes=(f"{note}: nothing was measured",),
                complete=kept.complete,
            )
        if reasons:
            warn(
                f"{len(reasons)} record(s) in {self.records.path} cannot be used for "
                f"this forest: {reasons[-1]}.",
                TuningWarning,
            )
        return None

    def _unusable(self, kept: Record) -> str:
        """Return why a record cannot be used; empty if it can."""
        wanted = [(1, None)] if self.ranges is None else self.ranges
        if merged(dict.fromkeys(kept.table)) != merged(dict.fromkeys(wanted)):
            return "its batch sizes are not those that were asked for"
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
            tuple(dict.fromkeys(self.defaults.values())),
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
                    measurer.lower(candidate.schedule)
                    table[plan.batch] = candidate.schedule
                    break
        return self._result(
            table,
            seconds=time.perf_counter() - self.begin,
            notes=("schedules are as predicted: nothing was measured",),
        )

    def measured(self, session: Session, verbose: int) -> TuningResult:
        """Run a session and return its result."""
        plans, notes = self.plans(), []
        with Progress(verbose, self.seconds) as progress:
            try:
                session.run(plans, progress.tell)
            except KeyboardInterrupt:
                notes.append("interrupted; what follows is the best so far")
                warn(
                    "The search for schedules was interrupted; the best so far are "
                    "used.",
                    TuningWarning,
                )
        complete = session.complete and not notes
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
        if self.budget is not None and not timed:
            warn(
                f"A budget of {self.budget:g} s is too short to measure one schedule; "
                "the default schedules are used.",
                TuningWarning,
            )
        _check_anything_legal(result)
        if self.records is None or not timed:
            return
        found = Record(
            self._key(),
            dict(result.table),
            result.strategy,
            result.complete,
            result.seconds,
            result.target,
        )
        try:
            self.records.add(found)
        except OSError as error:
            path = self.records.path
            warn(
                f"the search is not recorded: {path} cannot be written "
                f"({error.strerror or error}).",
                TuningWarning,
            )


def strategy_of(value: str | Strategy) -> Strategy:
    """Return the strategy with a name; return a strategy object unchanged."""
    if isinstance(value, str):
        if value not in STRATEGIES:
            raise InvalidInputError(
                f"strategy must be one of {', '.join(STRATEGIES)}, or an object with a "
                f"method rounds. Got {value!r} instead."
            )
        return STRATEGIES[value]()
    if not isinstance(value, Strategy):
        raise InvalidInputError(
            "a strategy is an object with a name and a method rounds(problem); got "
            f"{type(value).__name__}."
        )
    return value


def default_space(strategy: Strategy, machine: Target, n_threads: int) -> ScheduleSpace:
    """Return the default space of a strategy on a machine."""
    if not machine.is_gpu:
        return ScheduleSpace.cpu(threads=n_threads > 1)
    if isinstance(strategy, Heuristic):  # Algorithm 1 searches Table 5
        return ScheduleSpace.gpu()
    return ScheduleSpace.gpu_full()


def check_space(space: object) -> None:
    """Raise unless ``space`` is a ScheduleSpace with at least one point."""
    if not isinstance(space, ScheduleSpace):
        raise InvalidInputError(
            f"space must be a ScheduleSpace, got {type(space).__name__}."
        )
    if next(iter(space), None) is None:
        raise TuningError(
            f"the space {space.name!r} is empty: no point obeys all of its "
            f"{len(space.constraints)} constraints."
        )


def _check_anything_legal(result: TuningResult) -> None:
    """Raise TuningError if every proposed schedule is illegal."""
    proposed = [t for t in result.trials if t.candidate.origin == result.strategy]
    if proposed and result.complete and all(t.status == "illegal" for t in proposed):
        raise TuningError(
            f"no schedule of the {len(proposed)} that were tried is legal for this "
            f"forest and target; the first: {proposed[0].reason}"
        )


def tune(
    forest: Forest,
    rows: Any = None,
    *,
    strategy: str | Strategy = "heuristic",
    space: ScheduleSpace | None = None,
    records: TuningRecords | str | os.PathLike[str] | None = None,
    measurer: Measurer | None = None,
    target: Target | str = "cpu",
    reduction: Reduction = "exact",
    ranges: Mapping[BatchRange, int] | None = None,
    n_jobs: int | None = None,
    budget: float | None = None,
    random_state: Any = None,
    verbose: int = 0,
) -> TuningResult:
    """Find the fastest schedules of a forest, without scikit-learn.

    Parameters
    ----------
    forest : Forest
        A forest from :func:`skforge.load_forest`.
    rows : array-like of shape (n_rows, n_features), default=None
        Sample rows.
    strategy, space, records, measurer
        See :class:`Tuner`.
    target, reduction, ranges, n_jobs, budget, random_state, verbose
        See :meth:`Tuner.tune`.

    Returns
    -------
    TuningResult
        ``compile_forest(forest, dict(result.table))`` compiles the schedules found.
    """
    tuner = Tuner(strategy, space, records=records, measurer=measurer)
    return tuner.tune(
        forest,
        rows,
        target=target,
        reduction=reduction,
        ranges=ranges,
        n_jobs=n_jobs,
        budget=budget,
        random_state=random_state,
        verbose=verbose,
    )


__all__ = ["Tuner", "tune"]
