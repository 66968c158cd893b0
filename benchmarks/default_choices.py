"""How far the default schedules are from the best of their rivals, by batch size.

    python benchmarks/default_choices.py times.jsonl --unseen --output results
    python benchmarks/default_choices.py times.jsonl NAME ...
    python benchmarks/default_choices.py times.jsonl --table --sizes 64,512,4096,65536

Every kind of schedule that a default may be, and variants of each, are timed beside the
others, in rounds, as processor time of one thread; the medians are appended to the
file. What is in the file already is not timed again: rules and coefficients can be
changed and judged in a minute. ``fit_costs.py`` fits the estimate to such files;
``--unseen`` takes the forests that nothing was fitted to, ``--drawn`` those of sizes
that nobody chose, ``--table`` those of the benchmark. The page also lists where a row
takes longer in a larger batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import harness
import models
import numpy as np
import typer
from cost_model_data import HOPELESS, Timed, targets, write
from cost_model_family import DRAWN, MAKERS, UNSEEN, Sample
from cost_model_family import get as of_family
from machine import in_words, machine

from skforge import load_forest
from skforge.compiler.cost.estimate import plan_of
from skforge.compiler.defaults.cpu import (
    TREE_TILES,
    candidates,
    default_schedules,
    few_rows,
)
from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.target import Target
from skforge.exceptions import plural
from skforge.forest.forest import Forest
from skforge.schedule.families import (
    bitsliced_schedule,
    row_blocks,
    tiled_schedule,
    unchecked,
)
from skforge.schedule.schedule import Schedule

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)

#: Batch sizes of the tables.
SHOWN_SIZES = (1, 8, 64, 512, 4096)

#: What a default loses that is listed, and how much longer a row may take in a larger
#: batch.
SHOWN, GROWTH = 1.25, 1.1

Times = dict[tuple[str, str, int], dict[str, float]]


def main(
    file: Path,
    names: Annotated[list[str] | None, typer.Argument()] = None,
    unseen: Annotated[
        bool, typer.Option(help="Forests nothing was fitted to.")
    ] = False,
    drawn: Annotated[bool, typer.Option(help="Forests of sizes nobody chose.")] = False,
    table: Annotated[bool, typer.Option(help="Forests of the benchmark.")] = False,
    only: Annotated[str, typer.Option(help="One target: host or v3.")] = "",
    sizes: Annotated[str, typer.Option(help="Rows of a call.")] = "",
    output: harness.Output = None,
) -> None:
    """Time what is missing, and print what today's defaults lose."""
    found = read(file)
    machines = {k: t for k, t in targets().items() if not only or k == only}
    chosen = names or [*(UNSEEN if unseen else ()), *(DRAWN if drawn else ())]
    chosen = (chosen or list(MAKERS)) if not table else [*chosen, *models.names()]
    wanted = harness.numbers(sizes) if sizes else list(SIZES)
    for name in chosen:
        sample = get(name)
        for label, target in machines.items():
            missing = [n for n in wanted if (name, label, n) not in found]
            for size, times in timed(sample, target, missing):
                found[name, label, size] = times
                write(file, (name, label, size), times)
    losses = {
        (name, label, size): loss(
            get(name).forest, target, size, found[name, label, size]
        )
        for name in chosen
        for label, target in machines.items()
        for size in wanted
        if (name, label, size) in found
    }
    seconds = {key: (taken, words) for key, (_, taken, words) in losses.items()}
    document = {
        "machine": machine(),
        "cpus": {label: target.cpu for label, target in machines.items()},
        "loss": [[*key, value, words] for key, (value, _, words) in losses.items()],
        "growth": [[*key, *value] for key, value in growth(seconds).items()],
    }
    text = json.dumps(document).replace('["', '\n["')
    print(harness.publish(output, "defaults", document, page, text=text))


def get(name: str) -> Sample:
    if name in MAKERS | UNSEEN | DRAWN:
        return of_family(name)
    model = models.get(name)
    source = Path(model.source) if isinstance(model.source, str) else model.source
    return Sample(name, load_forest(source), np.load(model.rows))


def growth(
    seconds: dict[tuple[str, str, int], tuple[float, str]],
) -> dict[tuple[str, str, int], tuple[float, str]]:
    """Return how many times as long a row takes as in the best of smaller batches.

    Also the words of both, by the forest, the target and the size of the larger batch.
    """
    best: dict[tuple[str, str], tuple[float, str]] = {}
    found = {}
    for name, label, size in sorted(seconds):
        taken, words = seconds[name, label, size]
        each, key = taken / size, (name, label)
        fewest, before = best.get(key, (each, words))
        own = words.partition(" | ")[0]
        if key in best:
            found[name, label, size] = each / fewest, f"{before} | {own}"
        if key not in best or each < fewest:
            best[key] = each, f"{own}, {size:,} rows"
    return found


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
        few = [trees for trees in TREE_TILES if trees < forest.n_trees]
        made |= dict.fromkeys(bitsliced_schedule(512, trees) for trees in few)
    if "tiles" in kinds:
        made |= dict.fromkeys(tiled_schedule(rows, 7) for rows in (256, 1024))
        made[tiled_schedule(512, 15)] = None
    if "values" in kinds:
        made |= dict.fromkeys(tiled_schedule(n, 7, codes=False) for n in (128, 512))
    made[few_rows(forest)] = None
    walked = plan_of(walks[16, 127])
    assert walked is not None
    for walks_together in (8, 24):
        blocked = row_blocks(64).interleave("b1", walks_together)
        padded = walked.unchecked if walked.padded else 0
        made[unchecked(blocked, "b1", padded, walked.unchecked)] = None
    return list(made | dict.fromkeys(default_schedules(forest, target).values()))


def default(forest: Forest, target: Target, size: int) -> Schedule:
    return harness.of_size(default_schedules(forest, target), size)


def loss(
    forest: Forest, target: Target, size: int, times: dict[str, float]
) -> tuple[float, float, str]:
    """Return the default's time as a multiple of the best, in seconds, and in words."""
    own = default(forest, target, size)
    taken = times.get(own.to_json()) or times.get(_one_thread(own).to_json())
    best = min(times, key=times.__getitem__)
    if taken is None:  # hopeless
        taken = HOPELESS * times[best]
    fastest = in_short(Schedule.from_json(best))
    return taken / times[best], taken, f"{in_short(own)} | {fastest}"


def _one_thread(schedule: Schedule) -> Schedule:
    """Return lanes without the loop that threads share; one thread takes as long."""
    kept = [d for d in schedule.directives if type(d).__name__ != "Parallel"]
    return Schedule(tuple(kept)) if "lanes" in repr(schedule) else schedule


def in_short(schedule: Schedule) -> str:
    plan = plan_of(schedule)
    assert plan is not None
    block = f" by {plan.block}" if plan.block else ""
    nodes = f", tiles of {2**plan.levels - 1}" if plan.levels > 1 else ""
    trees = f", {plan.tests_of} trees at a time" if plan.tests_of else ""
    return f"{plan.kind}{block}{nodes}{trees}"


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
    shown = [n for n in SHOWN_SIZES if any(n == size for _, _, size, *_ in losses)]
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
            for size in shown
        }
        every = [v for values in by_size.values() for v in values]
        if every:
            cells = [
                " / ".join(harness.mean_and_worst(v))
                for v in (*by_size.values(), every)
            ]
            rows.append([f"{cpu}, drawn" if are_drawn else cpu, *cells])
    sizes = [plural(n, "row") for n in shown]
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
    if found := document.get("growth"):
        parts += ["## More rows", *_more_rows(found)]
    return harness.paragraphs(*parts, in_words(document["machine"]))


def _more_rows(found: list[Any]) -> list[Any]:
    """Return the table of batches in which a row takes longer than in smaller ones."""
    slower = [cell for cell in found if cell[3] > GROWTH]
    words = (
        f"In {len(slower)} of {len(found)} cells, a row of the default takes more than "
        f"{GROWTH} times as long as in the best of the smaller batches."
    )
    rows = []
    for name, label, size, value, both in sorted(slower):
        before, own = both.split(" | ")
        rows.append([name, label, f"{size:,}", f"{value:.2f}", before, own])
    heads = ["forest", "target", "rows", "times", "smaller batch", "this one"]
    return [words, harness.table(heads, rows, kinds="ttnntt")] if rows else [words]


if __name__ == "__main__":
    typer.run(main)
