"""Reports of ``demo`` and ``bench``: speed side by side, then proof of equal bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from timeit import Timer
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from skforge._compat import no_warnings
from skforge._typing import Array, Float64s
from skforge.cli.screen import show
from skforge.exceptions import duration, plural, three_digits
from skforge.forest.forest import Forest
from skforge.forest.reference import differing_rows
from skforge.prediction.answers import as_array
from skforge.schedule.schedule import Schedule
from skforge.tuning.search.ranges import merged

if TYPE_CHECKING:
    from skforge.modules.compiled import CompiledModule


TimedCall = Callable[[], object]


def interleave(
    calls: Mapping[str, TimedCall],
    *,
    rounds: int = 11,
    seconds: float = 1.0,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, Float64s]:
    """Return seconds of each call in ``rounds``, at least 3, and ``seconds``.

    Each is called before the clock starts. The samples share the time equally.

    >>> times = interleave({"a": lambda: sum(range(9))}, rounds=3, seconds=0.01)
    >>> times["a"].shape
    (3,)
    """
    from skforge.tuning.measure.bench import in_rounds  # imports what estimates times

    slot = seconds / max(1, rounds * len(calls))
    timed = [_sampler(call, slot, clock) for call in calls.values()]
    end = clock() + 2 * seconds
    samples = np.array([*in_rounds(timed, rounds, lambda: clock() > end)]).T
    return dict(zip(calls, samples, strict=True))


def _sampler(
    call: TimedCall, slot: float, clock: Callable[[], float]
) -> Callable[[], float]:
    call()
    time, repeats = Timer(call, timer=clock).timeit, 1
    while (taken := time(repeats)) < slot / 2 and repeats < 1 << 24:
        # Too short to measure: grow at least twofold, at most tenfold.
        repeats *= max(2, min(10, round(slot / max(taken, 1e-9))))
    return lambda: time(repeats) / repeats


RowArray = NDArray[np.floating[Any]]
Predict = Callable[[RowArray], Array]


@dataclass(frozen=True, slots=True)
class Pair:
    """A compiled function and the source's function that must return the same bits."""

    name: str
    compiled: Predict
    source_name: str
    source: Predict
    is_timed: bool = True  # whether the source's time says something


def describe(console: Console, name: str, forest: Forest) -> None:
    facts = (
        plural(forest.n_trees, "tree"),
        plural(forest.n_nodes, "node"),
        plural(forest.n_predicates, "distinct predicate"),
        plural(forest.n_columns, "feature"),
        plural(forest.n_outputs, "output"),
    )
    console.print(Text.assemble((name, "bold"), ": ", ", ".join(facts)))


def show_schedules(console: Console, module: CompiledModule) -> None:
    from skforge.display.summary import ranges_of

    served: dict[Schedule, list[tuple[int, int | None]]] = {}
    for ends, schedule in module.schedules.items():
        served.setdefault(schedule, []).append(ends)
    title(console, f"Schedules and their loops, on {module.target}")
    for schedule, ranges in served.items():
        console.print(Text(f"  batches of {ranges_of(merged(dict.fromkeys(ranges)))}:"))
        nest = str(schedule.loop_nest(module.forest)).splitlines()[1:]
        for line, style in [(repr(schedule), "cyan"), *((n, "dim") for n in nest)]:
            console.print(Text(f"    {line}", style=style), soft_wrap=True)  # to copy


def title(console: Console, text: str) -> None:
    console.print(Text(f"\n{text}", style="bold"))


def new_table(*columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    for column in columns:
        justify: Any = "right" if column in right else "left"
        table.add_column(column, justify=justify, overflow="fold")
    return table


@no_warnings()
def check(
    console: Console, pairs: Sequence[Pair], rows: Mapping[str, RowArray]
) -> bool:
    title(console, "Predictions, compared bit by bit")
    table = new_table("skforge", "source", "rows", "bits")
    good = True
    for pair in pairs:
        for kind, X in rows.items():
            difference = describe_difference(pair.compiled(X), pair.source(X))
            good = good and difference is None
            table.add_row(
                pair.name,
                pair.source_name,
                f"{len(X):,} {kind}",
                Text(difference or "identical", style="red" if difference else "green"),
            )
    show(console, table)
    return good


def describe_difference(ours: Array, theirs: Array) -> str | None:
    ours, theirs = as_array(ours), as_array(theirs)
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype} {ours.shape} is not {theirs.dtype} {theirs.shape}"
    if ours.dtype == object:  # labels
        ours, theirs = ours.astype(str), theirs.astype(str)
    bad = differing_rows(ours, theirs)
    return None if bad.size == 0 else f"{bad.size:,} differ, the first in row {bad[0]}"


@no_warnings()  # of all calls: in each it would take as long as some predictions
def speed(
    console: Console,
    pairs: Sequence[Pair],
    X: RowArray,
    batch_sizes: Sequence[int],
    *,
    seconds: float = 1.0,
) -> None:
    from skforge.prediction.given_rows import take_rows

    title(console, "Time of one call on one thread, median of interleaved rounds")
    both = all(pair.is_timed for pair in pairs)
    right = ("rows", "time", "per row", "its time", "speedup")
    others = ("source", "its time", "speedup") if both else ("per row",)
    table = new_table("rows", "skforge", "time", *others, right=right)
    calls = {f"skforge {pair.name}": pair.compiled for pair in pairs}
    if both:
        calls |= {f"source {pair.name}": pair.source for pair in pairs}
    for size in batch_sizes:
        batch = take_rows(X, np.arange(size) % len(X))
        bound = {name: partial(predict, batch) for name, predict in calls.items()}
        times = interleave(bound, seconds=seconds)
        for pair in pairs:
            rows = f"{size:,}" if pair is pairs[0] else ""
            ours = times[f"skforge {pair.name}"]
            taken = median(ours)
            more = [duration(taken / size)]
            if both:
                theirs = times[f"source {pair.name}"]
                # a slow phase slows both calls of a round
                speedup = f"{three_digits(median(theirs / ours))}×"
                more = [pair.source_name, duration(median(theirs)), speedup]
            table.add_row(rows, pair.name, duration(taken), *more)
    show(console, table)
