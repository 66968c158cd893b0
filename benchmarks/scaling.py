"""How calls scale to many threads: counted, modelled for 2 to 64, timed on two.

    python -m benchmarks.scaling --output benchmarks/results

A call follows the plan that `n_jobs` would have: its kernel, and the threads that are
worth it. The time of the largest share is the estimate's, in proportion to the measured
time of one thread. What comes from memory takes at least as long as a server's memory
needs for it. One and two threads are timed in turns, on other rows at each call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import harness
import numpy as np
import typer
from cases import Case, cases
from machine import in_words, machine

from skforge import Target, compile_forest
from skforge.compiler.cost.estimate import CostEstimate, ScheduleSizes, plan_of
from skforge.compiler.defaults.cpu import default_schedules
from skforge.engine.machine import known_profile
from skforge.engine.shares import WAKE, Shares

THREADS = (2, 4, 8, 16, 32, 64)

#: Bytes a second of a server's memory, eight channels of DDR4-3200 of which programs
#: get four fifths: EPYC 7763, 64 cores with 32 MB of L3 for each eight.
MEMORY = 0.8 * 204.8e9

#: Twice the threads are not worth it if they are less than this much faster.
WORTH = 1.3

#: Bytes of a cache line, and lines that a row reaches in a tree of millions of nodes.
LINE, REACHED = 64, 6

NAMES = (
    *("airline.json", "epsilon.json", "lgbm-255-leaves", "xgb-26-classes"),
    *("RandomForestClassifier-full", "ExtraTreesRegressor-full"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """What a plan does with so many threads."""

    threads: int  # that it takes
    seconds: float  # modelled
    limit: str  # why it is not faster


@dataclass(frozen=True, slots=True)
class Cell:
    """Calls of one model and number of rows."""

    model: str
    rows: int
    kernel: str  # of one thread
    tables: int  # bytes that threads share
    memory: int  # bytes of rows and answers, and of tables that L3 does not hold
    seconds: float  # of one thread
    two: float  # times as fast that two threads are, measured
    steps: dict[int, Step]


def sizes_of(schedule: object) -> ScheduleSizes:
    plan = plan_of(schedule)  # type: ignore[arg-type]
    assert plan is not None, "defaults are estimated"
    return plan


def table_bytes(estimate: CostEstimate, plan: ScheduleSizes) -> int:
    """Return the bytes of a kernel's tables."""
    f = estimate.counts
    match plan.kind:
        case "bitsliced":
            size = 2.0 * f.folded_nodes + 8 * f.listed + LINE * f.look_ups
        case "lanes" | "pairs":
            size = f.lanes.size + f.leaves.size
        case "pieces":
            size = 16 * f.inner_nodes + f.leaves.size
        case "tiles" | "tile-row" | "values" | "value-row":
            tiles = f.tiles_of(plan.kind, plan.levels)
            size = tiles.lines.size + tiles.tops + f.leaves.size
        case _:
            size = f.walked.size
    return int(size)


def memory_bytes(estimate: CostEstimate, plan: ScheduleSizes, rows: int) -> int:
    """Return the bytes that a call moves from and to memory, whatever its threads.

    Tables that L3 does not hold are read for each block, as far as its rows reach.
    """
    f, size = estimate.counts, table_bytes(estimate, plan)
    moved = rows * (f.row_bytes + 8 * f.n_outputs)
    if size > f.target.l3_bytes:
        block = plan.block or 1
        moved += -(-rows // block) * min(size, block * f.trees * REACHED * LINE)
    return int(moved)


def steps(
    case: Case, estimate: CostEstimate, rows: int, alone: float
) -> dict[int, Step]:
    """Return what happens with more threads, where one takes ``alone`` seconds."""
    table = default_schedules(case.forest, estimate.target, profile=estimate.profile)
    schedules, firsts = [*table.values()], [first for first, _ in table]
    shares = Shares(case.forest, schedules, firsts, lambda: estimate)
    one = estimate.seconds(schedules[shares.range_of(rows)], rows)
    found = {}
    for threads in THREADS:
        share = shares.plan(threads).of(rows)
        if share is None:
            found[threads] = Step(1, alone, "waking")
            continue
        schedule, n = schedules[share.number], np.array([float(rows)])
        largest = shares.loops[share.number].largest(n, np.array([share.threads]))
        part = alone * float(estimate.seconds(schedule, largest)[0] / one)
        part = max(part, alone / share.threads)  # rows fit caches, in the estimate
        wake = WAKE * math.ceil(math.log2(share.threads))
        memory = memory_bytes(estimate, sizes_of(schedule), rows) / MEMORY
        uneven = part > WORTH * alone / share.threads
        limit = "memory" if memory > part + wake else "blocks" if uneven else "waking"
        found[threads] = Step(share.threads, max(part + wake, memory), limit)
    return found


def timed(case: Case, rows: int, rounds: int, slot: float) -> tuple[float, float]:
    """Return the seconds of one thread, and times as fast that two are."""
    module, random = compile_forest(case.forest), np.random.default_rng(rows)
    pool = [
        np.ascontiguousarray(case.rows[random.integers(0, len(case.rows), rows)])
        for _ in range(max(2, min(64, (1 << 16) // rows)))
    ]
    calls = {k: partial(module.predict_raw, n_jobs=n) for k, n in WAYS.items()}
    for call in calls.values():
        np.testing.assert_array_equal(call(pool[0]), module.predict_raw(pool[0]))
    taken = harness.medians(calls, dict.fromkeys(calls, pool), slot, rounds)
    return taken["one"][0], taken["one"][1] or 0.0


#: Threads that are timed; ratios are to the first.
WAYS = {"ours": 2, "one": 1}


def cells(
    names: list[str], batches: list[int], rounds: int, slot: float
) -> Iterator[Cell]:
    target = Target.host()
    for case in cases(names):
        estimate = CostEstimate(case.forest, target, known_profile(target))
        table = default_schedules(case.forest, target, profile=estimate.profile)
        for rows in batches:
            plan = sizes_of(harness.of_size(table, rows))
            alone, two = timed(case, rows, rounds, slot)
            yield Cell(
                case.name,
                rows,
                f"{plan.kind}, {plan.block}" if plan.block else plan.kind,
                table_bytes(estimate, plan),
                memory_bytes(estimate, plan, rows),
                alone,
                two,
                steps(case, estimate, rows, alone),
            )


def ends(cell: Cell) -> str:
    """Return from how many threads on more are not worth it, and why.

    >>> few, many = Step(2, 5e-4, "waking"), Step(4, 4.9e-4, "memory")
    >>> ends(Cell("m", 512, "lanes", 0, 0, 1e-3, 2.0, {2: few, 4: many}))
    '2, memory'
    """
    seconds = {1: cell.seconds} | {n: step.seconds for n, step in cell.steps.items()}
    for few, many in pairwise(seconds):
        if seconds[few] < WORTH * seconds[many]:
            return f"{few}, {cell.steps[many].limit}"
    return f"more than {max(seconds)}"


WORDS = (
    "A cell is the time of one thread divided by that of a call with `n_jobs` of 2 to "
    "64, as modelled for a server of 64 cores, eight to 32 MB of L3, with 164 GB/s of "
    "memory; the second column is timed here. *ends* tells from how many threads on "
    f"twice as many are less than {WORTH} times as fast, and why: *blocks*: there are "
    "too few blocks of rows, or smaller ones cost nearly as much as whole ones; "
    "*waking*: that takes longer than it saves; *memory*: rows, answers, and tables "
    "beyond L3, have to be moved. Threads share the tables and read them from their "
    "own caches or from L3. They write nothing that another reads but answers, a "
    "claim for each block, and a count of those that are done."
)


def page(document: harness.Document) -> str:
    found = [
        Cell(**one | {"steps": {int(n): Step(**s) for n, s in one["steps"].items()}})
        for one in document["cells"]
    ]
    heads = ["model", "kernel, rows a block", "rows", "tables, kB", "memory, kB"]
    heads += ["one thread, µs", "2, timed", *map(str, THREADS), "ends"]
    rows = [
        [
            *(cell.model, cell.kernel, f"{cell.rows:,}"),
            *(f"{size / 1e3:,.0f}" for size in (cell.tables, cell.memory)),
            *(harness.micro(cell.seconds), f"{cell.two:.2f}"),
            *(f"{cell.seconds / step.seconds:.1f}" for step in cell.steps.values()),
            ends(cell),
        ]
        for cell in found
    ]
    table = harness.table(heads, rows, kinds="tt" + "n" * (len(heads) - 3) + "t")
    facts = in_words(document["facts"])
    return harness.paragraphs("# Many threads", WORDS, facts, table)


def main(
    models: harness.Parts = "",
    batches: harness.Batches = "512,4096,65536",
    slot: harness.Slot = 0.02,
    rounds: harness.Rounds = 9,
    output: harness.Output = None,
) -> None:
    """Time, model, print each cell, and write scaling.json and scaling.md."""
    facts, sizes = machine(), harness.numbers(batches)
    found = harness.printed(
        cells(harness.parts(models) or [*NAMES], sizes, rounds, slot),
        lambda c: (
            f"{c.model:28}{c.rows:6} {harness.micro(c.seconds):>8} µs {c.two:.2f}; "
            + " ".join(f"{n}:{c.seconds / s.seconds:.1f}" for n, s in c.steps.items())
            + f"; {ends(c)}"
        ),
    )
    harness.publish(output, "scaling", {"facts": facts, "cells": found}, page)


if __name__ == "__main__":
    typer.run(main)
