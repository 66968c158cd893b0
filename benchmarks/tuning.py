"""How close each strategy comes to the best schedule of the whole CPU space.

    python benchmarks/tuning.py

Every schedule of ``ScheduleSpace.cpu(threads=False)`` is timed once for each model,
batch size and target, as processor time of one thread, those near the best again beside
each other; then every strategy searches on what was recorded (``tuning_recorded.py``),
all batch sizes with one budget, as ``fit`` does. Results are tables, and Figures 2, 5,
11 and 12 of SilvanForge for this machine; the other hardware is this CPU without
AVX-512.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import harness
import models as benchmark_models
import numpy as np
import typer
from cost_model_data import is_large, targets
from cost_model_family import MAKERS, Sample, get
from harness import mean_and_worst
from models import cache_folder
from plot import save
from threadpoolctl import threadpool_limits
from tuning_plots import FIGURES, strategies, wholes_of
from tuning_recorded import Recorded

from skforge import load_forest
from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError, TuningWarning
from skforge.schedule.ranges import BatchRange
from skforge.tuning import Heuristic, Random, ScheduleSpace, Tuner
from skforge.tuning.search.learned import Learned
from skforge.tuning.search.strategies import Strategy

#: Models, each with the targets it is timed for.
MODELS = (
    "airline.json",
    "year_prediction_msd.json",
    "xgboost-50x10x28",
    "xgboost-50x10x28@v3",
    "lightgbm-40x31x28x5",
    "lightgbm-100x31x28",
    "lgbm-categories",
    "RandomForestRegressor-100xNonex20",
    "RandomForestClassifier-50xNonex30",
    "RandomForestClassifier-50xNonex30@v3",
    "synthetic-30x32-6",
    "synthetic-1000x8-4",
    "synthetic-50x1024-6",
    "airline.json@v3",
)
#: The sizes that are timed, each standing for a range.
RANGES: dict[BatchRange, int] = {
    (1, 1): 1,
    (2, 8): 8,
    (9, 64): 64,
    (65, 512): 512,
    (513, None): 4096,
}
BATCHES = tuple(RANGES.values())
SEEDS = 1

Rows = list[dict[str, Any]]


def main(
    output: Annotated[Path, typer.Option(help="Folder.")] = Path(__file__).parent
    / "results",
    models: Annotated[
        str, typer.Option(help="Names, by commas, @v3 behind for AVX2.")
    ] = ",".join(MODELS),
    budget: Annotated[float, typer.Option(help="Seconds, all batch sizes.")] = 4.0,
    record_only: Annotated[
        bool, typer.Option(help="Time schedules, then end.")
    ] = False,
) -> None:
    """Record, replay, and write ``tuning.json``, ``tuning.md`` and the figures."""
    space = ScheduleSpace.cpu(threads=False)
    times_of: dict[tuple[str, str], list[dict[str, float]]] = {}
    rows: Rows = []
    sizes: dict[str, tuple[int, int]] = {}
    for spec in harness.parts(models):
        name, machine, target = recorded(spec)
        label = machine.label
        sizes[f"{name}|{label}"] = record(machine, space, target)
        print(f"{spec}: {sizes[f'{name}|{label}']} schedules, codes", flush=True)
        times_of[name, label] = [machine.times(batch) for batch in BATCHES]
        if record_only:
            continue
        for one in compare(machine, space, target, budget):
            rows.append({"model": name, "target": label, **one})
        timed = [size for size, _ in sizes.values()]
        document = {
            "points": len(space),
            "legal": [min(timed), max(timed)],
            "budget": budget,
            "rows": rows,
        }
        text = harness.publish(output, "tuning", document, page, "model")
    if not record_only:
        draw(times_of, rows, output)
        print(text)


def recorded(spec: str) -> tuple[str, Recorded, Target]:
    """Return a model's name, the machine that runs it and is kept, and its target."""
    folder = cache_folder() / "tuning"
    name, _, label = spec.partition("@")
    label = label or "host"
    target, made = targets()[label], sample(name)
    file = folder / f"{name.replace('/', '-')}-{label}.jsonl"
    machine = Recorded(file, made.forest, made.rows, target)
    machine.label = label
    return name, machine, target


#: Of the targets in figures.
LABELS = {"host": "x86-64-v4", "v3": "x86-64-v3"}


def draw(times: dict[Any, Any], rows: Rows, folder: Path) -> None:
    for name, figure in FIGURES.items():
        save(figure(wholes(times), BATCHES), folder / f"tuning-{name}.png", dpi=120)
    draw_searches(rows, folder / "tuning-strategies.png")


def wholes(times: dict[Any, Any]) -> list[Any]:
    named = {(model, LABELS[target]): one for (model, target), one in times.items()}
    return wholes_of(named)


def draw_searches(rows: Rows, file: Path, title: str = "") -> None:
    strategies([{**r, "machine": LABELS[r["target"]]} for r in rows], file, title)


def sample(name: str) -> Sample:
    if name in MAKERS:
        return get(name)
    model = benchmark_models.get(name)
    return Sample(name, load_forest(model.source), np.load(model.rows))


def record(machine: Recorded, space: ScheduleSpace, target: Target) -> tuple[int, int]:
    """Time the space and the defaults; return how many schedules, and codes."""
    shape = ForestShape.of(machine.forest)
    schedules = list(default_schedules(machine.forest, target).values())
    for point in space:
        if is_large(point, shape):
            continue  # trees padded beyond four times their size: never any good
        try:
            schedules.append(space.schedule(point, shape))
        except ScheduleError:
            continue
    with threadpool_limits(limits=1):
        codes = machine.sweep(schedules, BATCHES)
    machine.forget()
    return len(set(schedules)), codes


#: What is compared.
STRATEGIES: dict[str, Strategy] = {
    "heuristic": Heuristic(),
    "random": Random(),
    "learned, one-shot": Learned("one-shot"),
    "learned, top 5": Learned("top-5"),
    "learned, autotune": Learned("autotune"),
}


def compare(
    machine: Recorded, space: ScheduleSpace, target: Target, budget: float
) -> Iterator[dict[str, Any]]:
    """Yield how far each strategy is from the best of all, and its time."""
    best = {n: min(machine.times(n).values()) for n in BATCHES}
    for n in BATCHES:
        default = harness.of_size(default_schedules(machine.forest, target), n)
        slowdown = machine.seconds(default, n) / best[n]
        row = {"strategy": "default", "batch": n, "slowdown": slowdown}
        yield {**row, "alone": slowdown, "seconds": 0.0, "tried": 0}
        row = {"strategy": "exhaustive", "batch": n, "slowdown": 1.0, "alone": 1.0}
        tried = len(machine.times(n)) * len(BATCHES)
        yield {**row, "seconds": machine.build_seconds, "tried": tried}
    for name, strategy in STRATEGIES.items():
        for seed in range(1 if "one-shot" in name else SEEDS):
            start = machine.clock()
            warnings.simplefilter("ignore", TuningWarning)  # nothing to try is fine
            result = Tuner(strategy, space, measurer=machine).tune(
                machine.forest,
                target=target,
                ranges=RANGES,
                n_jobs=1,
                budget=budget,
                random_state=seed,
            )
            seconds = machine.clock() - start
            for n in BATCHES:
                chosen = harness.of_size(result.table, n)
                own = [
                    machine.seconds(t.schedule, n)
                    for t in result.trials
                    if t.candidate.origin == strategy.name
                    and t.samples
                    and t.n_rows == n
                ]
                yield {
                    "strategy": name,
                    "batch": n,
                    "slowdown": machine.seconds(chosen, n) / best[n],
                    "alone": min(own) / best[n] if own else None,
                    "seconds": seconds,
                    "tried": sum(bool(t.samples) for t in result.trials),
                }


def page(document: harness.Document) -> str:
    rows, (least, most) = document["rows"], document["legal"]
    names = list(dict.fromkeys(r["strategy"] for r in rows))
    models = list(dict.fromkeys(r["model"] for r in rows))
    parts: list[Any] = [
        "# Search strategies beside an exhaustive search",
        f"The CPU space of one thread has {document['points']:,} points: {least:,} to "
        f"{most:,} of them are legal for a forest and do not pad its trees "
        f"beyond four times their size. There are {len(models)} "
        f"models and batches of {', '.join(map(str, BATCHES))} rows. Times are "
        f"processor time of one thread; a search has {document['budget']:g} s for all "
        "batch sizes together.",
    ]
    heads = ["strategy", "AVX-512: geomean", "worst", "AVX2: geomean", "worst"]
    heads += ["its own proposals", "within 5 %", "seconds", "share of time"]
    whole = np.mean([r["seconds"] for r in rows if r["strategy"] == "exhaustive"])

    def slow(key: str = "slowdown", **where: str) -> list[float]:
        some = [r for r in rows if all(r[k] == v for k, v in where.items())]
        return [max(1.0, r[key]) for r in some if r[key] is not None]

    made = []
    for name in names:
        part = [r for r in rows if r["strategy"] == name]
        cells = [name]
        for label in ("host", "v3"):
            cells += mean_and_worst(slow(strategy=name, target=label), 3)
        cells.append(mean_and_worst(slow("alone", strategy=name), 3)[0] or "none")
        spent = float(np.mean([r["seconds"] for r in part]))
        within = np.mean([s <= 1.05 for s in slow(strategy=name)])
        share = f"1/{whole / spent:.0f}" if spent > 0 else "0"
        tried = np.mean([r["tried"] for r in part])
        made.append([*cells, f"{within:.0%}", f"{spent:.2f}", share, f"{tried:.0f}"])
    parts += [
        harness.table([*heads, "schedules timed"], made),
        "*Geomean* and *worst* say how many times slower the chosen schedule is than "
        "the best of the space. A search keeps the default unless another schedule is "
        "at least 3 % faster. *Its own proposals*: the same without the default; "
        "better than what was chosen where time was up before the last comparison. "
        "*Within 5 %*: share of searches that end there. *Share of time*: of an "
        "exhaustive search, whose time is that of lowering and compiling.",
    ]
    by_model = [
        [
            m,
            *(mean_and_worst(slow(model=m, strategy=name))[0] for name in names),
        ]
        for m in models
    ]
    parts += [document.get("notes", ""), "## By model"]
    parts.append(harness.table(["model", *names], by_model))
    drawn = ("distribution", "sensitivity", "strategies", "hardware")
    return harness.paragraphs(*parts, [f"![{x}](tuning-{x}.png)" for x in drawn])


if __name__ == "__main__":
    typer.run(main)
