"""``tune``: find the fastest schedules of a forest on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from skforge.compiler.defaults.cpu import BatchRange, ForestShape
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
from skforge.tuning.search.by_name import strategy_of
from skforge.tuning.search.dispatch import main_size, probe_sizes
from skforge.tuning.search.heuristic import Heuristic
from skforge.tuning.search.progress import Progress
from skforge.tuning.search.session import RangePlan, Session
from skforge.tuning.search.strategies import Problem, Strategy
from skforge.tuning.search.trial import RECORD
from skforge.tuning.space.space import LISTED, ScheduleSpace, generator

#: Default budget of a search in seconds, on a CPU and on a GPU.
DEFAULT_SECONDS, DEFAULT_SECONDS_GPU = 4.0, 10.0


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
        forest = leaf_finder(forest)  # the traversal, even if scores are not sums
        machine = Target.parse(target)
        strategy = strategy_of(self.strategy)
        threads = resolve_n_jobs(n_jobs)
        space = self.space
        if space is None:
            space = default_space(strategy, machine, threads)
        check_space(space)
        records = as_records(self.records)
        key = RecordKey.of(forest, machine, reduction, threads, ranges)
        made = partial(
            TuningResult,
            target=str(machine),
            reduction=reduction,
            n_threads=threads,
        )
        kept = None if records is None else _kept(records, key, forest, ranges)
        if kept is not None:
            note = (
                f"from a record of {kept.strategy}, {kept.seconds:.2f} s: nothing was"
            )
            return made(
                table=kept.table,
                trials=(),
                strategy=RECORD,
                notes=(f"{note} measured",),
                complete=kept.complete,
            )
        given = self.budget if budget is None else budget
        seconds = given
        if seconds is None:
            few = DEFAULT_SECONDS_GPU if machine.is_gpu else DEFAULT_SECONDS
            seconds = tuning_seconds(few) or few  # 0 disables only implicit tuning
        measurer = self.measurer
        real = measurer is None
        if measurer is None:
            measurer = measurer_for(forest, machine, reduction, n_jobs)
        defaults = default_table(forest, machine, reduction)
        row_bytes = forest.n_features * forest.input_dtype.itemsize
        fitting = max(1, BATCH_BYTES // max(1, row_bytes))
        plans = [bounded(plan, fitting) for plan in plan_ranges(defaults, ranges)]
        problem = Problem(
            forest,
            ForestShape.of(forest),
            machine,
            reduction,
            (1, None),
            1,
            threads,
            space,
            generator(random_state),
            defaults[min(defaults)],
            tuple(dict.fromkeys(defaults.values())),
        )
        made = partial(
            made, strategy=strategy.name, space=f"{space.name}, {size_text(space)}"
        )
        if not getattr(strategy, "measures", True):
            found = {
                plan.batch: _first(strategy, plan.problem(problem), measurer)
                for plan in plans
            }
            return made(
                table=merged(found),
                trials=(),
                seconds=time.perf_counter() - begin,
                notes=("schedules are as predicted: nothing was measured",),
            )
        sample = SampleRows(forest, rows, int(problem.random.integers(1 << 31)))
        notes = []
        with Progress(verbose, seconds) as progress:
            # Setup time counts towards the budget, except with a custom clock.
            start = measurer.clock() - (time.perf_counter() - begin) * real
            session = Session(
                problem, strategy, measurer, sample, seconds, progress.tell, start
            )
            try:
                session.run(plans)
            except KeyboardInterrupt:
                notes.append("interrupted; what follows is the best so far")
                warn(
                    "The search for schedules was interrupted; the best so far are "
                    "used.",
                    TuningWarning,
                )
        complete = session.complete and not notes
        if sample.note:
            notes.append(sample.note)
        result = made(
            table=merged(session.table(plans)),
            trials=session.trials,
            budget=float(seconds),
            seconds=session.seconds,
            n_points=None if space.size is None else space.size * len(plans),
            n_tried=session.n_tried,
            trying_seconds=session.trying_seconds,
            notes=tuple(notes),
            complete=complete,
        )
        timed = any(trial.usable for trial in result.trials)
        if given is not None and not timed:
            warn(
                f"A budget of {given:g} s is too short to measure one schedule; the "
                "default schedules are used.",
                TuningWarning,
            )
        _check_anything_legal(result)
        if records is not None and timed:
            _record(records, key, result)
        return result


def _record(records: TuningRecords, key: RecordKey, result: TuningResult) -> None:
    """Add a result to the records; warn if the file cannot be written."""
    try:
        records.add(
            Record(
                key,
                dict(result.table),
                result.strategy,
                result.complete,
                result.seconds,
                result.target,
            )
        )
    except OSError as error:
        warn(
            f"the search is not recorded: {records.path} cannot be written "
            f"({error.strerror or error}).",
            TuningWarning,
        )


def _first(strategy: Strategy, problem: Problem, measurer: Measurer) -> Schedule:
    """Return the first legal proposal for a range, else the default."""
    proposed = next(strategy.rounds(problem), None)
    for candidate in proposed.candidates if proposed is not None else ():
        if candidate.schedule is None:
            continue
        with suppress(ScheduleError):
            measurer.lower(candidate.schedule)
            return candidate.schedule
    return problem.default


def _kept(
    records: TuningRecords,
    key: RecordKey,
    forest: Forest,
    ranges: Mapping[BatchRange, int] | None,
) -> Record | None:
    """Return the record of an earlier search; warn if none can be used."""
    reasons: list[str] = []

    def usable(record: Record) -> bool:
        reason = _unusable(record, forest, ranges)
        if reason:
            reasons.append(reason)
        return not reason

    found = records.find(key, usable)
    if reasons and found is None:
        warn(
            f"{len(reasons)} record(s) in {records.path} cannot be used for this "
            f"forest: {reasons[-1]}.",
            TuningWarning,
        )
    return found


def _unusable(
    kept: Record, forest: Forest, ranges: Mapping[BatchRange, int] | None
) -> str:
    """Return why a record cannot be used; empty if it can."""
    wanted = [(1, None)] if ranges is None else sorted(ranges, key=lambda r: r[0])
    if _joined(sorted(kept.table, key=lambda r: r[0])) != _joined(wanted):
        return "its batch sizes are not those that were asked for"
    for schedule in kept.table.values():
        try:
            representations.get(schedule.loop_nest(forest).representation)
        except ScheduleError as error:
            return error.why.rstrip(".")
    return ""


def _joined(ranges: Sequence[BatchRange]) -> list[BatchRange]:
    """Return sorted ranges with adjacent ones merged."""
    made: list[BatchRange] = []
    for first, last in ranges:
        if made and made[-1][1] == first - 1:
            made[-1] = made[-1][0], last
        else:
            made.append((first, last))
    return made


def plan_ranges(
    defaults: Mapping[BatchRange, Schedule], ranges: Mapping[BatchRange, int] | None
) -> list[RangePlan]:
    """Return the plan of each requested range, or of the default ranges."""
    if ranges is None:
        return [
            RangePlan(batch, probe_sizes(batch), main_size(batch), schedule)
            for batch, schedule in sorted(defaults.items(), key=lambda item: item[0][0])
        ]
    starts = sorted(defaults, key=lambda batch: batch[0])
    made = []
    for batch, size in sorted(ranges.items(), key=lambda item: item[0][0]):
        below = [start for start in starts if start[0] <= size]
        default = defaults[(below or starts)[-1 if below else 0]]
        made.append(RangePlan(batch, (size,), size, default))
    return made


def bounded(plan: RangePlan, most: int) -> RangePlan:
    """Return the plan with batch sizes limited to ``most`` rows."""
    sizes = tuple(sorted({min(size, most) for size in plan.sizes}))
    return replace(plan, sizes=sizes, main=min(plan.main, most))


def merged(table: Mapping[BatchRange, Schedule]) -> dict[BatchRange, Schedule]:
    """Return the table with adjacent ranges of equal schedules merged."""
    made: list[tuple[BatchRange, Schedule]] = []
    for batch, schedule in sorted(table.items(), key=lambda item: item[0][0]):
        if made and made[-1][1] == schedule and made[-1][0][1] == batch[0] - 1:
            made[-1] = (made[-1][0][0], batch[1]), schedule
        else:
            made.append((batch, schedule))
    return dict(made)


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


def size_text(space: ScheduleSpace) -> str:
    """Return the number of points of a space, as text."""
    size = space.size
    return f"more than {LISTED:,} schedules" if size is None else f"{size:,} schedules"


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


__all__: Sequence[str] = ["Tuner", "tune"]
