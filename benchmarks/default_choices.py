"""How far the default schedules are from the best of their rivals, by batch size.

    python benchmarks/default_choices.py times.jsonl [NAME ...]

Every kind of schedule that a default may be is timed beside the others, in rounds, as
processor time of one thread; the medians are appended to the file, in the form that
``train_cost_model.py fit`` reads, and the table says what today's default loses. What
is in the file already is not timed again: the rules of ``defaults/cpu.py`` can be
changed and judged in a minute.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean, median
from typing import Annotated, Any

import typer
from cost_model_data import targets
from cost_model_family import MAKERS, get
from threadpoolctl import threadpool_limits

from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule.families import (
    bitsliced_schedule,
    lanes_schedule,
    tiled_row_schedule,
    tiled_schedule,
)
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.tuning.measure.measure import KernelMeasurer
from skforge.tuning.measure.rows import SampleRows

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
ROUNDS, SLOT, HOPELESS = 9, 4e-4, 4.0

#: What a default loses that is shown.
SHOWN = 1.08


def main(
    file: Path, names: Annotated[list[str] | None, typer.Argument()] = None
) -> None:
    """Time what is missing, and print what today's defaults lose."""
    found: dict[tuple[str, str, int], dict[str, float]] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        record = json.loads(line)
        key = record["model"], record["target"], record["rows"]
        found.setdefault(key, {})[record["schedule"]] = record["seconds"]
    losses: dict[tuple[str, int], list[float]] = {}
    for name in names or MAKERS:
        sample = get(name)
        for label, target in targets().items():
            missing = [n for n in SIZES if (name, label, n) not in found]
            for size, times in timed(sample, target, missing):
                found[name, label, size] = times
                write(file, (name, label, size), times, sample.forest, target)
            for size in SIZES:
                times = found[name, label, size]
                own = default(sample.forest, target, size).to_json()
                if own in times:
                    best = min(times, key=lambda s, t=times: t[s])  # type: ignore[misc]
                    loss = times[own] / times[best]
                    losses.setdefault((label, size), []).append(loss)
                    if loss > SHOWN:
                        print(f"{name}, {label}, {size}: {loss:.2f}\n  {own}\n  {best}")
    for (label, size), some in sorted(losses.items()):
        print(
            f"{label}, {size} rows: {geometric_mean(some):.3f} geomean of {len(some)}, "
            f"{max(some):.2f} worst"
        )


def rivals(forest: Forest, target: Target) -> list[Schedule]:
    """Return the schedules that a default may be."""
    walks = walking_schedules(forest, target)
    return list(
        dict.fromkeys(
            [
                *default_schedules(forest, target).values(),
                lanes_schedule(),
                *(tiled_row_schedule(nodes) for nodes in (7, 15)),
                *(tiled_schedule(512, nodes) for nodes in (7, 15)),
                tiled_schedule(256, 7, codes=False),
                walks[1, 1],
                walks[16, 127],
                *(bitsliced_schedule(rows) for rows in (64, 128, 256, 512, 1024)),
            ]
        )
    )


def default(forest: Forest, target: Target, size: int) -> Schedule:
    """Return today's default of a batch size."""
    table = default_schedules(forest, target)
    return next(s for (a, b), s in table.items() if a <= size <= (b or size))


def timed(
    sample: Any, target: Target, sizes: list[int]
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the median seconds of all rivals that are not hopeless, by batch size."""
    if not sizes:
        return
    machine = KernelMeasurer(sample.forest, target, "exact", 1)
    runners = {}
    for schedule in rivals(sample.forest, target):
        try:
            plan = machine.lower(schedule)
        except ScheduleError:
            continue
        runners[schedule.to_json()] = machine.build(plan)
    rows = SampleRows(sample.forest, sample.rows, 0)
    for size in sizes:
        batches = rows.batches(size)
        with threadpool_limits(limits=1):
            once = {
                s: min(r.time(batches, 1) for _ in range(2)) for s, r in runners.items()
            }
            near = [s for s in once if once[s] < HOPELESS * min(once.values())]
            taken: dict[str, list[float]] = {s: [] for s in near}
            for _ in range(ROUNDS):
                for s in near:
                    count = max(1, int(SLOT / (once[s] * len(batches))))
                    taken[s].append(runners[s].time(batches, count))
        yield size, {s: median(values) for s, values in taken.items()}


def write(
    file: Path, key: tuple[str, str, int], times: dict[str, float], forest: Forest,
    target: Target,
) -> None:  # fmt: skip
    """Append times as ``cost_model_data`` writes them."""
    name, label, size = key
    own = default(forest, target, size).to_json()
    with file.open("a", encoding="utf-8") as out:
        for schedule, seconds in times.items():
            record = {
                "model": name,
                "target": label,
                "rows": size,
                "schedule": schedule,
                "seconds": seconds,
                "ratio": seconds / times.get(own, seconds),
                "default": int(schedule == own),
            }
            out.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    typer.run(main)
