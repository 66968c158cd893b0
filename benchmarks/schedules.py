"""Compare schedules of one model: presets and a family around the defaults.

Every schedule is checked bit by bit against the default before it is timed. The
defaults in ``skforge/compiler/defaults/cpu.py`` are chosen with this; the first
line of each batch size says how far its default is from the fastest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import cycle
from time import perf_counter
from typing import Annotated

import numpy as np
import typer
from cases import Case, cases
from threadpoolctl import threadpool_limits

from skforge import Schedule, ScheduleError, compile_forest
from skforge.cli.report import describe_difference, interleave
from skforge.compiler.schedule import PRESETS
from skforge.compiler.schedule.families import (
    bitsliced_schedule,
    lanes_schedule,
    tiled_schedule,
)

AddWalk = Callable[[Schedule, str], Schedule]


def main(
    models: Annotated[list[str], typer.Argument(help="Parts of names of models.")],
    batch_sizes: Annotated[str, typer.Option(help="Rows a call.")] = "1,8,64,512,4096",
    seconds: Annotated[float, typer.Option(help="For a batch and schedule.")] = 0.1,
    presets: Annotated[bool, typer.Option(help="The CPU presets, too.")] = True,
    only: Annotated[
        str, typer.Option(help="Schedules whose name has this regular expression.")
    ] = "",
    best: Annotated[int, typer.Option(help="Schedules to show a batch size.")] = 8,
) -> None:
    """Print the fastest schedules for each model and batch size."""
    for case in cases(models):
        for size in map(int, batch_sizes.split(",")):
            _compare(case, size, seconds, presets, only, best)


def _compare(
    case: Case, size: int, seconds: float, presets: bool, only: str, best: int
) -> None:
    rows = np.resize(case.rows, (max(size, 1024), case.rows.shape[1]))
    batches = [
        np.ascontiguousarray(rows[i : i + size])
        for i in range(0, len(rows) - size + 1, size)
    ][:64]
    default = compile_forest(case.forest)
    expected = default.predict_raw(rows)
    calls, walks = {}, {}
    candidates = {"default": default.schedule_for(size), **family(case, size)}
    if presets:
        candidates |= {f"preset {name}": s for name, s in cpu_presets().items()}
    candidates = {
        name: schedule
        for name, schedule in candidates.items()
        if name == "default" or re.search(only, name)
    }
    compiled = 0.0
    for name, schedule in candidates.items():
        start = perf_counter()
        try:
            module = compile_forest(case.forest, schedule)
            found = module.predict_raw(rows)
        except ScheduleError as error:
            print(f"  {name}: {str(error).splitlines()[0]}")
            continue
        compiled += perf_counter() - start
        difference = describe_difference(found, expected)
        if difference is not None:
            raise SystemExit(f"{case.name}, {schedule}: {difference}")
        following = cycle(batches)
        calls[name] = lambda p=module.predict_raw, f=following: p(next(f))
        walks[name] = schedule
    with threadpool_limits(limits=1):
        timing = interleave(calls, seconds=seconds * len(calls), rounds=9)
    order = sorted(calls, key=timing.seconds)
    fastest = order[0]
    loss = timing.speedup(fastest, over="default")
    print(
        f"\n{case.name}, {size:,} rows: default takes {loss:.2f} of the fastest "
        f"({len(calls)} schedules, compiled in {compiled:.1f} s)"
    )
    for name in [*order[:best], *([] if "default" in order[:best] else ["default"])]:
        print(
            f"  {timing.seconds(name) / size * 1e6:8.3f} us a row  "
            f"{timing.speedup(fastest, over=name):5.2f}  {name:32} {walks[name]}"
        )


def cpu_presets() -> dict[str, Schedule]:
    """Return the presets that are for CPUs."""
    made = {name: Schedule.preset(name) for name in PRESETS}
    return {name: schedule for name, schedule in made.items() if schedule.kind == "cpu"}


def family(case: Case, size: int) -> dict[str, Schedule]:
    """Return schedules around the defaults: loop orders, blocks, walks in flight."""
    found: dict[str, Schedule] = {}
    low, high = case.forest.leaf_depths()
    for walk_name, walk in _walks(int(low.min()), int(high.max())):
        for flight in (8, 10, 12, 16, 24):
            if size <= 64:
                one = Schedule().interleave("tree", flight)
                found[f"row, {flight} trees, {walk_name}"] = walk(one, "tree")
            if size >= 8:
                for name, schedule, inner in _row_loops(size):
                    one = schedule.interleave(inner, flight)
                    found[f"{name}, {flight} rows, {walk_name}"] = walk(one, inner)
                    if inner == "b1" and case.forest.n_features >= 64:
                        one = one.cache("b0")
                        key = f"{name}, {flight} rows, cached, {walk_name}"
                        found[key] = walk(one, inner)
    for block in (64, 128, 256, 512, 1024):
        if block <= max(256, 2 * size):
            found[f"bit-sliced, blocks of {block}"] = bitsliced_schedule(block)
    for block in (64, 512, 1024, 2048):
        if block <= max(512, 2 * size):
            for nodes in (7, 15):
                name = f"tiles of {nodes}, blocks of {block}"
                found[name] = tiled_schedule(block, nodes)
    if size <= 128:
        found["lanes"] = lanes_schedule()
    return found


def _row_loops(size: int) -> Iterator[tuple[str, Schedule, str]]:
    yield "trees outermost", Schedule().reorder("tree", "batch"), "batch"
    for block in (16, 64, 256, 1024):
        if block <= size:
            schedule = (
                Schedule().tile("batch", "b0", "b1", block).reorder("b0", "tree", "b1")
            )
            yield f"blocks of {block}", schedule, "b1"


def _walks(low: int, high: int) -> Iterator[tuple[str, AddWalk]]:
    if high <= 10:
        yield f"unroll {high}", lambda s, i: s.unroll_walk(i, high)
    if low:
        yield f"peel {low}", lambda s, i: s.peel_walk(i, low)
    if high > 10 or not low:
        yield "checked", lambda s, i: s


if __name__ == "__main__":
    typer.run(main)
