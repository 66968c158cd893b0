"""How far the default schedules are from the best of their rivals, by batch size.

    python benchmarks/default_choices.py times.jsonl --unseen --output results
    python benchmarks/default_choices.py times.jsonl NAME ...

Every kind of schedule that a default may be, and variants of each, are timed beside the
others, in rounds, as processor time of one thread; the medians are appended to the
file. What is in the file already is not timed again: rules and coefficients can be
changed and judged in a minute. ``fit_costs.py`` fits the estimate to such files;
``--unseen`` takes the forests that nothing was fitted to, ``--drawn`` those of sizes
that nobody chose.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import harness
import typer
from cost_model_data import HOPELESS, Timed, targets, write
from cost_model_family import DRAWN, MAKERS, UNSEEN, get
from machine import in_words, machine

from skforge.compiler.cost.estimate import plan_of
from skforge.compiler.defaults.cpu import candidates, default_schedules, few_rows
from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.schedule.families import (
    bitsliced_schedule,
    row_blocks,
    tiled_schedule,
    unchecked,
)
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import plural
from skforge.forest.forest import Forest

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)

#: Batch sizes of the tables.
SHOWN_SIZES = (1, 8, 64, 512, 4096)

#: What a default loses that is listed.
SHOWN = 1.25

Times = dict[tuple[str, str, int], dict[str, float]]


def main(
    file: Path,
    names: Annotated[list[str] | None, typer.Argument()] = None,
    unseen: Annotated[
        bool, typer.Option(help="Forests nothing was fitted to.")
    ] = False,
    drawn: Annotated[bool, typer.Option(help="Forests of sizes nobody chose.")] = False,
    only: Annotated[str, typer.Option(help="One target: host or v3.")] = "",
    output: harness.Output = None,
) -> None:
    """Time what is missing, and print what today's defaults lose."""
    found = read(file)
    machines = {k: t for k, t in targets().items() if not only or k == only}
    chosen = names or [*(UNSEEN if unseen else ()), *(DRAWN if drawn else ())]
    chosen = chosen or list(MAKERS)
    for name in chosen:
        sample = get(name)
        for label, target in machines.items():
            missing = [n for n in SIZES if (name, label, n) not in found]
            for size, times in timed(sample, target, missing):
                found[name, label, size] = times
                write(file, (name, label, size), times)
    losses = {
        (name, label, size): loss(
            get(name).forest, target, size, found[name, label, size]
        )
        for name in chosen
        for label, target in machines.items()
        for size in SIZES
        if (name, label, size) in found
    }
    document = {
        "machine": machine(),
        "cpus": {label: target.cpu for label, target in machines.items()},
        "loss": [[*key, value, words] for key, (value, words) in losses.items()],
    }
    text = json.dumps(document).replace('["', '\n["')
    print(harness.publish(output, "defaults", document, page, text=text))


def read(file: Path) -> Times:
    found: Times = {}
    for record in harness.lines_of(file):
        key = record["model"], record["target"], record["rows"]
        found.setdefault(key, {})[record["schedule"]] = record["seconds"]
    return found


def rivals(forest: Forest, target: Target) -> list[Schedule]:
    """Return the schedules that a default may be, and variants of them."""
    walks = walking_schedules(forest, target)
    made = dict.fromkeys([*walks.values(), *candidates(forest, target)])
    kinds = {plan.kind for plan in map(plan_of, made) if plan is not None}
    if "bitsliced" in kinds:
        made |= dict.fromkeys(bitsliced_schedule(rows) for rows in (256, 512, 1024))
    if "tiles" in kinds:
        made |= dict.fromkeys(tiled_schedule(rows, 7) for rows in (256, 1024))
        made[tiled_schedule(512, 15)] = None
    if "values" in kinds:
        made |= dict.fromkeys(tiled_schedule(n, 7, codes=False) for n in (128, 512))
    made[few_rows(forest)] = None
    few = plan_of(walks[16, 127])
    assert few is not None
    for walks_together in (8, 24):
        blocked = row_blocks(64).interleave("b1", walks_together)
        padded = few.unchecked if few.padded else 0
        made[unchecked(blocked, "b1", padded, few.unchecked)] = None
    return list(made)


def default(forest: Forest, target: Target, size: int) -> Schedule:
    return harness.of_size(default_schedules(forest, target), size)


def loss(
    forest: Forest, target: Target, size: int, times: dict[str, float]
) -> tuple[float, str]:
    """Return the default's time as a multiple of the best, and both in words."""
    own = default(forest, target, size)
    taken = times.get(own.to_json()) or times.get(_one_thread(own).to_json())
    best = min(times, key=times.__getitem__)
    if taken is None:  # hopeless
        taken = HOPELESS * times[best]
    fastest = in_short(Schedule.from_json(best))
    return taken / times[best], f"{in_short(own)} | {fastest}"


def _one_thread(schedule: Schedule) -> Schedule:
    """Return lanes without the loop that threads share; one thread takes as long."""
    kept = [d for d in schedule.directives if type(d).__name__ != "Parallel"]
    return Schedule(tuple(kept)) if "lanes" in repr(schedule) else schedule


def in_short(schedule: Schedule) -> str:
    plan = plan_of(schedule)
    assert plan is not None
    block = f" by {plan.block}" if plan.block else ""
    nodes = f", tiles of {2**plan.levels - 1}" if plan.levels > 1 else ""
    return f"{plan.kind}{block}{nodes}"


def timed(
    sample: Any, target: Target, sizes: list[int]
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the median seconds of all rivals that are not hopeless, by batch size."""
    if sizes:
        machine, schedules = Timed(sample, target), rivals(sample.forest, target)
        for size in sizes:
            yield size, machine.times(schedules, size)


def page(document: harness.Document) -> str:
    losses, cpus = document["loss"], document["cpus"]
    n_forests = len({name for name, *_ in losses})
    parts: list[Any] = [
        "# Default schedules beside the best",
        "A cell is the time of the default schedule divided by that of the fastest of "
        "all schedules that were tried: the geometric mean over the forests / the "
        f"worst. There are {n_forests} forests; everything runs on one thread. The "
        "sizes of *drawn* forests are random; nobody chose them.",
    ]
    rows = []
    for (label, cpu), are_drawn in product(cpus.items(), (False, True)):
        by_size = {
            size: [
                value
                for name, target, rows, value, _ in losses
                if (target, rows, name in DRAWN) == (label, size, are_drawn)
            ]
            for size in SHOWN_SIZES
        }
        every = [v for values in by_size.values() for v in values]
        if every:
            cells = [
                " / ".join(harness.mean_and_worst(v))
                for v in (*by_size.values(), every)
            ]
            rows.append([f"{cpu}, drawn" if are_drawn else cpu, *cells])
    sizes = [plural(n, "row") for n in SHOWN_SIZES]
    parts.append(harness.table(["target", *sizes, "all"], rows))
    bad = [
        [name, label, f"{size:,}", f"{value:.2f}", words]
        for name, label, size, value, words in sorted(losses)
        if value > SHOWN and size in SHOWN_SIZES
    ]
    if bad:
        heads = ["forest", "target", "rows", "slowdown", "default", "fastest"]
        parts += [
            f"## Above {SHOWN}",
            "*host* is the first CPU of the table above, *v3* is x86-64-v3 (AVX2).",
            harness.table(heads, bad, kinds="ttnntt"),
        ]
    return harness.paragraphs(*parts, in_words(document["machine"]))


if __name__ == "__main__":
    typer.run(main)
