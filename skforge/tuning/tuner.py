"""``tune``: find the fastest schedules of a forest on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from skforge._docs import documented
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.target import Target
from skforge.engine.cpu.threads import resolve_n_jobs
from skforge.engine.kernels import KernelCache
from skforge.exceptions import InvalidInputError, TuningError, TuningWarning, warn
from skforge.forest.forest import Forest
from skforge.forest.leaves import leaf_finder
from skforge.runtime.float_errors import own_arithmetic
from skforge.schedule.ranges import BatchRange
from skforge.tuning.machines import machine_of
from skforge.tuning.measure.bench import SampleRows
from skforge.tuning.measure.measure import Measurer
from skforge.tuning.records import AUTO, TuningRecords, alone, as_records
from skforge.tuning.result import TuningResult
from skforge.tuning.search import strategies
from skforge.tuning.search.heuristic import Heuristic
from skforge.tuning.search.learned import Learned
from skforge.tuning.search.run import INTERRUPTED, Run
from skforge.tuning.search.search import Search, untimed_note
from skforge.tuning.search.strategies import Random, Strategy, SuccessiveHalving
from skforge.tuning.space.space import ScheduleSpace

#: Strategies by their names.
STRATEGIES: dict[str, type[Strategy]] = {
    "heuristic": Heuristic,
    "learned": Learned,
    "exhaustive": strategies.Exhaustive,
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
        On a CPU, "heuristic" uses less if it expects a smaller gain.
        Without a budget, a search that uses the user's store times the default schedule
        only where it also times another one.
    records : TuningRecords, path, "auto" or None, default="auto"
        A file of results. A record for a forest of the same shape is reused without
        measuring; new results are added. "auto" is the user's store in the cache of
        machine code, which the heuristic on the target's whole space reads and writes:
        a result is reused for forests of a similar shape (same columns, dtypes and
        kinds of tests; trees, nodes and depths within a factor of 1.25), on the same
        machine, with the same budget, by the same release. With ``SKFORGE_CACHE=off``
        or None, every search measures again.
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
    records: TuningRecords | str | os.PathLike[str] | None = AUTO
    measurer: Measurer | None = None

    def __repr__(self) -> str:
        """Return the call that makes it, without what is as by default."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        given = (f"{n}={v!r}" for n, v in values if v != getattr(Tuner, n))
        return f"Tuner({', '.join(given)})"

    @own_arithmetic
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
        verbose: int | None = None,
        kernels: KernelCache | None = None,
    ) -> TuningResult:
        """Find the fastest schedule of each range of batch sizes.

        Parameters
        ----------
        forest : Forest
            The forest to traverse.
        rows : array-like of shape (n_rows, n_features), default=None
            Sample rows. If they are None or do not fill a batch, random rows around the
            forest's thresholds are used.
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
        verbose : int or None, default=None
            Progress: None shows a bar once the search has taken a second, in a terminal
            or notebook only. 0 shows nothing, 1 a bar or the lines of a log, 2 also a
            line for each candidate.
        kernels : KernelCache, default=None
            The cache of a compiled module of this forest, target and reduction. Kernels
            of the schedules found that the search compiled are put into it.

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
        space = self.space
        if space is None:
            threads, plain = resolve_n_jobs(n_jobs), isinstance(strategy, Heuristic)
            space = machine_of(machine).space(threads, plain)
        check_space(space)
        search = Search(
            leaf_finder(forest),  # the traversal, even if scores are not sums
            machine,
            reduction if forest.aggregate == "sum" else "exact",
            ranges,
            n_jobs,
            strategy,
            space,
            self.budget if budget is None else budget,
            random_state,
            kernels,
        )
        if not self._uses_store():
            records = as_records(self.records)
            earlier = None if records is None else search.from_records(records)
            return earlier or self._searched(search, rows, verbose, begin, records)
        store = search.store()
        if (earlier := search.from_store(store)) is not None:
            return earlier
        patience = search.budget or search.promised()
        if not patience:  # compiles nothing, and needs no lock
            return search.result(
                notes=(untimed_note(plan.batch for plan in search.plans),),
                seconds=time.perf_counter() - begin,
                budget=float(search.seconds),
            )
        waiting = time.perf_counter()
        with alone(patience) as quiet:
            if (earlier := search.from_store(store)) is not None:
                return earlier  # found while this process waited
            if not quiet:
                why = "other processes on this machine were searching for"
                notes = (f"{why} {patience:.2g} s: nothing was measured",)
                return search.result(notes=notes, complete=False)
            begin += time.perf_counter() - waiting
            result = self._searched(search, rows, verbose, begin)
            if is_timed(result) and INTERRUPTED not in result.notes:
                search.put(store, result)
            return result

    def _uses_store(self) -> bool:
        plain = self.space is None and self.measurer is None
        return plain and self.strategy == "heuristic" and self.records == AUTO

    def _searched(
        self,
        search: Search,
        rows: Any,
        verbose: int | None,
        begin: float,
        records: TuningRecords | None = None,
    ) -> TuningResult:
        ours = search.measurer()
        measurer = self.measurer or ours
        if not getattr(search.strategy, "measures", True):
            result = search.predicted(measurer, begin)
        else:
            seed = int(search.problem.random.integers(1 << 31))
            sample = SampleRows(search.forest, rows, seed, search.reduction)
            # Setup time counts towards the budget, except with a custom clock.
            real = self.measurer is None
            start = measurer.clock() - (time.perf_counter() - begin) * real
            lean = self._uses_store() and search.budget is None
            run = Run(search, measurer, sample, start, lean=lean, verbose=verbose)
            result = run.result()
            ours.keep(result.table.values())
        keep(search, result, records)
        return result


def is_timed(result: TuningResult) -> bool:
    return any(trial.usable for trial in result.trials)


def keep(search: Search, result: TuningResult, records: TuningRecords | None) -> None:
    if search.budget is not None and not is_timed(result) and not result.complete:
        warn(
            f"A budget of {search.budget:g} s is too short to measure a single "
            "schedule; the default schedules are used.",
            TuningWarning,
        )
    tried = [t for t in result.trials if t.candidate.origin == result.strategy]
    if tried and result.complete and all(t.status == "illegal" for t in tried):
        raise TuningError(
            f"none of the {len(tried)} schedules tried is legal for this forest "
            f"and target; the reason for the first: {tried[0].reason}"
        )
    if records is None or not is_timed(result):
        return
    try:
        records.add(search.record(result))
    except OSError as error:
        warn(
            f"the result of the search was not recorded: {records.path} cannot be "
            f"written ({error.strerror or error}).",
            TuningWarning,
        )


def strategy_of(value: str | Strategy) -> Strategy:
    if isinstance(value, str):
        if value not in STRATEGIES:
            raise InvalidInputError(
                f"strategy must be one of {', '.join(STRATEGIES)}, or an object with "
                f"a method 'rounds'. Got {value!r} instead."
            )
        return STRATEGIES[value]()
    if not isinstance(value, Strategy):
        raise InvalidInputError(
            "a strategy must have a name and a method rounds(problem). Got "
            f"{type(value).__name__} instead."
        )
    return value


def check_space(space: object) -> None:
    if not isinstance(space, ScheduleSpace):
        raise InvalidInputError(
            f"space must be a ScheduleSpace. Got {type(space).__name__} instead."
        )
    if next(iter(space), None) is None:
        raise TuningError(
            f"the space {space.name!r} is empty: no point obeys all of its "
            f"{len(space.constraints)} constraints."
        )


@documented(Tuner.tune, Tuner)
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
    verbose: int | None = None,
) -> TuningResult:
    """Find the fastest schedules of a forest, without scikit-learn.

    Parameters
    ----------
    records : TuningRecords, path, "auto" or None, default=None
        As for :class:`Tuner`; None measures again.

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
