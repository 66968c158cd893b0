"""Measure single calls: the time each takes, for one row and for a few.

Every call is timed by itself, so that the slow ones can be seen; what the clock costs,
measured around a function that does nothing, is subtracted. Systems take turns within
one process, hot, with caches evicted, and while another thread works. All answers are
compared with the model's own library first: a difference of one bit in an answer of
skforge ends the run.
"""

from __future__ import annotations

import gc
import sys
from array import array
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import harness
import numpy as np
import typer
from cases import Case, cases
from conditions import (
    BUSY_SECONDS,
    CONDITIONS,
    Batches,
    Call,
    Limits,
    another_thread,
    evicting_bytes,
    evictor,
    time_calls,
)
from latency_c import Program, from_c
from latency_calls import MORE_PEERS, OURS, PEERS, System, our_calls, own_calls, peers
from machine import in_words, machine
from numpy.typing import NDArray
from plot import latencies
from threadpoolctl import ThreadpoolController, threadpool_limits

from skforge import load_forest
from skforge.cli.report import describe_difference, duration

ROUNDS = 8
#: Batches that calls take in turn: so many that branches do not learn them by heart, in
#: so few bytes that they stay in the cache.
POOL, POOL_BYTES = 4096, 1 << 20
#: Batches that are frames or lists, which take long to make; and calls before any is
#: timed.
FEW = 64
CHECKED_ROWS = 1024
FEWEST = 400  # calls, however slow
WARM = 8  # calls that are not timed, at each turn
QUANTILES = (0.5, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Line:
    """One system at one number of rows; seconds of a call, without the clock."""

    model: str
    rows: int
    condition: str
    system: str
    answer: str
    calls: int
    p50: float
    p99: float
    p999: float
    mean: float
    slowest: float
    others_calls: int = 0  # of the other thread, meanwhile


@dataclass(frozen=True, slots=True)
class Plan:
    """How often, and under which conditions."""

    conditions: tuple[str, ...]
    ours: Limits
    theirs: Limits
    evicted: int  # calls with evicted caches at most, of anybody
    evicting: int  # bytes read before each of them
    clock: float  # seconds to subtract
    busy_seconds: float = BUSY_SECONDS  # of a system beside another thread, at least

    def limits(self, system: System, condition: str) -> Limits:
        """Return when one system has been called often enough."""
        found = self.ours if system.ours else self.theirs
        if condition == "evicted":
            return replace(found, calls=min(found.calls, self.evicted))
        if condition == "busy":
            return replace(found, least_seconds=self.busy_seconds)
        return found


def main(
    models: harness.Names = None,
    rows: Annotated[str, typer.Option(help="Rows a call.")] = "1,8",
    conditions: Annotated[
        str, typer.Option(help=f"Of {', '.join(CONDITIONS)}.")
    ] = ",".join(CONDITIONS),
    calls: Annotated[
        int, typer.Option(help="Calls of a system: all by skforge, others at most.")
    ] = 20_000,
    seconds: Annotated[
        float, typer.Option(help="Seconds of a peer's calls; 400 calls at least.")
    ] = 0.2,
    evicted_calls: Annotated[
        int, typer.Option(help="Calls with evicted caches, at most.")
    ] = 1000,
    evict_mb: Annotated[
        int, typer.Option(help="MiB read to evict; 0: twice the cache, 64 at least.")
    ] = 0,
    others: Annotated[bool, typer.Option(help="Measure installed peers.")] = True,
    peer_names: Annotated[
        str, typer.Option("--peers", help=f"Also: {', '.join(MORE_PEERS)}.")
    ] = ",".join(PEERS),
    arrays: Annotated[
        bool, typer.Option("--arrays", help="No lists and frames: arrays alone.")
    ] = False,
    c_calls: Annotated[
        bool, typer.Option("--c", help="Also calls from C, which need gcc.")
    ] = False,
    title: Annotated[str, typer.Option(help="Of this run, in latency.md.")] = "Calls",
    output: harness.Output = None,
) -> None:
    """Measure, print Markdown, and write latency.json, .md and .svg where asked."""
    sizes = harness.numbers(rows)
    earlier = harness.stored(output, "latency") if output is not None else {}
    runs = [run for run in earlier if run["title"] != title]
    asked = some_of("--peers", peer_names, PEERS + MORE_PEERS) if others else ()
    plan = Plan(
        some_of("--conditions", conditions, CONDITIONS),
        Limits(calls),
        Limits(calls, seconds, FEWEST),
        evicted_calls,
        evict_mb << 20 or evicting_bytes(),
        cost_of_nothing(),
    )
    lines: list[Line] = []
    run: harness.Document = {}
    for case in all_cases(models or []):
        print(f"{case.name} ({len(case.rows):,} rows, {case.rows_from})", flush=True)
        with threadpool_limits(limits=1), TemporaryDirectory() as folder:
            systems = checked_systems(case, sizes, asked)
            if arrays:
                systems = [s for s in systems if s.form is np.asarray]
            if c_calls:
                systems += from_c(case, Path(folder))
            for size in sizes:
                for condition in plan.conditions:
                    lines += measure(case, systems, size, condition, plan)
        run = {"title": title, **facts_of(plan), "lines": list(map(asdict, lines))}
        harness.publish(output, "latency", [*runs, run], page)
    if output is not None:
        latencies([*runs, run], output / "latency.svg")
    print("\n" + tables(run))


def some_of(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in a list with commas, all of which must be known."""
    names = tuple(dict.fromkeys(harness.parts(text)))
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{option}: {name!r} is none of {list(known)}")
    return names


def all_cases(names: list[str]) -> Iterator[Case]:
    """Yield the other benchmarks' models, and LightGBM's classifier.

    Forests of full depth are left out unless names are given: tl2cgen takes minutes.
    """
    for case in cases(names):
        # The library of ONNX files is one of the peers.
        if case.kind != "onnx" and (names or not case.name.endswith("-full")):
            yield case
    name = "LGBMClassifier-8"
    if names and not any(part in name for part in names):
        return
    try:
        from lightgbm import LGBMClassifier
    except ImportError as error:
        print(f"{name} is left out: {error}")
        return
    X = np.random.default_rng(0).standard_normal((4096, 28))
    y = ((X[:, :6] ** 2).sum(axis=1) > 6).astype(int)
    model = LGBMClassifier(
        n_estimators=100,
        max_depth=8,
        num_leaves=255,
        n_jobs=1,
        verbose=-1,
        random_state=0,
    )
    yield Case(name, model.fit(X, y), load_forest(model), X, "trained on")


# ------------------------------------------------------------ who answers


def checked_systems(
    case: Case, sizes: list[int], asked: tuple[str, ...]
) -> list[System]:
    """Return all that answer for a model, skforge's after a look at their answers."""
    theirs = own_calls(case)
    answers = {s.answer: np.asarray(s.call(case.rows)) for s in theirs}
    ours = our_calls(case, answers)
    for system in ours:
        for size in sizes:
            found = _in_batches(system, case.rows[:CHECKED_ROWS], size)
            expected = answers[system.answer][: len(found)]
            difference = describe_difference(found, expected)
            if difference is not None:
                sys.exit(
                    f"{case.name}: {system.name} of {size} rows differs: {difference}"
                )
    systems = [*ours, *theirs]
    if case.model is not None:
        systems += peers(case.model, asked)
    elif asked:
        print(f"  {', '.join(asked)}: left out, there is no file of the model")
    return systems


def _in_batches(system: System, rows: NDArray[Any], size: int) -> NDArray[Any]:
    parts = (rows[at : at + size] for at in range(0, len(rows) - size + 1, size))
    answers = [system.call(system.form(part)) for part in parts]
    return np.concatenate([np.ascontiguousarray(answer) for answer in answers])


# ------------------------------------------------------------ how long it takes


def measure(
    case: Case, systems: list[System], size: int, condition: str, plan: Plan
) -> list[Line]:
    """Return a line for each system; rows change from call to call."""
    batches = batches_of(case.rows, size)
    if condition == "busy":  # a thread of this process
        systems = [s for s in systems if not isinstance(s.call, Program)]
    formed = {
        s.name: [
            s.form(rows) for rows in batches[: POOL if s.form is np.asarray else FEW]
        ]
        for s in systems
    }
    taken = {s.name: array("q") for s in systems}
    others_calls = dict.fromkeys(taken, 0)
    for system in systems:
        for batch in formed[system.name][:FEW]:  # hot: compiled, cached, allocated
            system.call(batch)
    turn = {name: turns(condition, made, plan) for name, made in formed.items()}
    gc.collect()
    gc.disable()
    try:
        for _ in range(ROUNDS):
            for system in systems:
                limits = plan.limits(system, condition).share(ROUNDS)
                if isinstance(system.call, Program):
                    evicting = plan.evicting if condition == "evicted" else 0
                    found, meanwhile = system.call.timed(batches, limits, evicting), 0
                else:
                    found, meanwhile = turn[system.name](system.call, limits)
                taken[system.name] += found
                others_calls[system.name] += meanwhile
    finally:
        gc.enable()
    lines = []
    for system in systems:
        line = Line(
            case.name,
            size,
            condition,
            system.name,
            system.answer,
            len(taken[system.name]),
            **summary(
                taken[system.name],
                0.0 if isinstance(system.call, Program) else plan.clock,
            ),
            others_calls=others_calls[system.name],
        )
        lines.append(line)
        shown = (line.p50, line.p99, line.p999, line.slowest)
        print(
            f"  {size} row(s), {condition:7} {system.name:32} {line.calls:9,} calls"
            + "".join(f"{duration(x):>10}" for x in shown),
            flush=True,
        )
    return lines


def batches_of(rows: NDArray[Any], size: int) -> Batches:
    """Return some batches of contiguous rows, each in its own memory."""
    count = int(np.clip(POOL_BYTES // (size * rows[0].nbytes), 64, POOL))
    pool = np.resize(rows, (count * size, rows.shape[1]))
    return [part.copy() for part in np.split(pool, count)]


Turn = Callable[[Call, Limits], tuple["array[int]", int]]


def turns(condition: str, batches: Batches, plan: Plan) -> Turn:
    """Return what times a system's turn, and counts the other thread's calls."""

    def warmed(
        call: Call, limits: Limits, before: Callable[[], object] | None = None
    ) -> array[int]:
        for batch in batches[:WARM]:  # another system was here
            call(batch)
        return time_calls(call, batches, limits, before)

    if condition == "hot":
        return lambda call, limits: (warmed(call, limits), 0)
    if condition == "evicted":
        evict = evictor(plan.evicting)
        return lambda call, limits: (warmed(call, limits, evict), 0)
    pools = ThreadpoolController()
    others = deepcopy(batches[::-1])

    def busy(call: Call, limits: Limits) -> tuple[array[int], int]:
        with another_thread(call, others, pools) as tally:
            return warmed(call, limits), tally.calls

    return busy


def summary(taken: array[int], clock: float) -> dict[str, Any]:
    times = np.maximum(np.frombuffer(taken, np.int64) * 1e-9 - clock, 0.0)
    p50, p99, p999 = map(float, np.quantile(times, QUANTILES))
    mean, slowest = float(times.mean()), float(times.max())
    return {"p50": p50, "p99": p99, "p999": p999, "mean": mean, "slowest": slowest}


def cost_of_nothing(before: Callable[[], object] | None = None) -> float:
    """Return the seconds that are measured around a builtin that does nothing."""
    calls = Limits(20_000 if before is None else 100)
    taken = time_calls(id, [np.zeros((1, 1))] * 64, calls, before)
    return float(np.median(np.frombuffer(taken, np.int64))) * 1e-9


# ------------------------------------------------------------ what is printed


def facts_of(plan: Plan) -> harness.Document:
    facts: harness.Document = {"machine": machine(), "clock_seconds": plan.clock}
    if "evicted" in plan.conditions:
        facts["evicting_bytes"] = plan.evicting
        evicted = cost_of_nothing(evictor(plan.evicting))
        facts["nothing_evicted_seconds"] = max(0.0, evicted - plan.clock)
    return facts


INTRODUCTION = """\
# Latency of single calls

Each table is one run of `python benchmarks/latency.py`; [how it is measured](../README.md#latency) explains the columns, and
[latency.json](latency.json) has all figures. The picture shows calls of one row, from the median to the 99.9th percentile (to the 99th if there were
fewer than 1,000 calls).

![Time of a call of one row, median to 99.9th percentile, by model and system](latency.svg)
"""  # noqa: E501
HEADS = ("model", "rows", "condition", "call", "answer", "calls", "p50", "p99", "p99.9",
         "slowest", "× predict")  # fmt: skip


def page(runs: list[harness.Document]) -> str:
    parts = [f"## {run['title']}\n\n{tables(run)}" for run in runs]
    return "\n".join([INTRODUCTION, *parts])


def tables(facts: harness.Document) -> str:
    """Return a run's table; the last column is how many times our predict is faster."""
    lines = harness.records(Line, facts["lines"])
    words = [
        "Calls use one thread. The clock's own "
        f"{duration(facts['clock_seconds'])} are subtracted."
    ]
    if any(line.system.startswith("C: ") for line in lines):
        words.append("Calls from C are timed in C, and its clock is subtracted.")
    if "evicting_bytes" in facts:
        words.append(
            f"Evicted: {facts['evicting_bytes'] >> 20} MiB are read before each call; "
            "a builtin that does nothing then takes "
            f"{duration(facts['nothing_evicted_seconds'])}, which is not subtracted."
        )
    if any(line.condition == "busy" for line in lines):
        words.append("Busy: a second thread makes the same call on rows of its own.")
    words.append(
        "Every skforge answer was bit-identical to the model's own library before it "
        "was timed."
    )
    words.append(in_words(facts["machine"]) + "\n")
    ours = {(x.model, x.rows, x.condition): x.p50 for x in lines if x.system == OURS}
    rows = []
    for x in lines:
        base = ours.get((x.model, x.rows, x.condition))
        head = (x.model, x.rows, x.condition, x.system, x.answer or "its own")
        p999 = duration(x.p999) if x.calls >= 1000 else "–"
        taken = (duration(x.p50), duration(x.p99), p999, duration(x.slowest))
        times = f"{x.p50 / base:.2f}×" if base else ""
        rows.append([*head, f"{x.calls:,}", *taken, times])
    return "\n".join(
        [" ".join(words), *harness.table(HEADS, rows, kinds="tntttnnnnnn"), ""]
    )


if __name__ == "__main__":
    typer.run(main)
