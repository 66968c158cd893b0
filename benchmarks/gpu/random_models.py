"""SilvanForge's Figures 6 to 9: skforge beside the strategies of other systems.

    python -m benchmarks.gpu.random_models --target cuda --output benchmarks/results

times the default schedules and the strategies of ``strategies.py`` on a GPU, for the
paper's 700 random models and its eight real ones. Times are kept as they come, model by
model, and another run goes on from there.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Any

import numpy as np
import typer
from harness import Document, Output, add_line, lines_of, publish, rounded, table
from models import EIGHT, cache_folder, get
from synthetic import N_RANDOM, random_file, random_models, shape_of

from benchmarks.gpu.strategies import OURS, STRATEGIES, TAHOE, system, times
from skforge import load_forest
from skforge.forest.forest import Forest

#: Batch sizes of Figures 8 and 9, and of Figures 6 and 7.
RANDOM_BATCHES = (512, 4096)
REAL_BATCHES = (512, 1024, 2048, 4096, 8192, 16384)

Record = dict[str, Any]


def main(
    number: Annotated[int, typer.Option(help="Random models.")] = N_RANDOM,
    target: Annotated[str, typer.Option(help="cuda or hip.")] = "cuda",
    output: Output = None,
) -> None:
    """Take the times that are missing, print and write."""
    kept = cache_folder() / f"gpu-random-{target}.jsonl"
    random = sweep(random_models(number), RANDOM_BATCHES, target, kept)
    real = sweep(EIGHT, REAL_BATCHES, target, kept)
    write(random, real, target, output)


def sweep(
    names: Sequence[str], batches: Sequence[int], target: str, kept: Path
) -> list[Record]:
    """Return the times of models; those in a file of JSON lines are not taken again."""
    known = {one["model"]: one for one in lines_of(kept)}
    for name in names:
        if name not in known:
            found = times(*load(name), target, batches)
            known[name] = {"model": name, "batches": [*batches], "times": found}
            add_line(kept, known[name])
    return [known[name] for name in names]


def load(name: str) -> tuple[Forest, Any]:
    """Return a forest and rows; random ones are not kept."""
    if not name.startswith("synthetic-"):
        model = get(name)
        return load_forest(model.source), np.load(model.rows)
    text, rows = random_file(name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.json"
        file.write_text(text, encoding="utf-8")
        return load_forest(file), rows


# ------------------------------------------------------------ ratios


def speedups(records: Sequence[Record], name: str) -> list[Record]:
    """Return a system's times by skforge's, where both are legal."""
    found = []
    for record in records:
        theirs, own = system(record["times"], name), record["times"][OURS]
        for n, a, b in zip(record["batches"], theirs, own, strict=True):
            if a is not None and b is not None:
                found.append({"model": record["model"], "rows": n, "ratio": a / b})
    return found


def at(found: Sequence[Record], rows: int) -> list[float]:
    return [one["ratio"] for one in found if one["rows"] == rows]


def grid(found: Sequence[Record], rows: int) -> dict[tuple[int, int], float]:
    places: dict[tuple[int, int], list[float]] = {}
    for one in found:
        if one["rows"] == rows:
            shape, _ = shape_of(one["model"])
            places.setdefault((shape.trees, shape.features), []).append(one["ratio"])
    return {place: geometric_mean(values) for place, values in places.items()}


def winners(records: Sequence[Record], rows: int) -> Counter[str]:
    """Return how often each of Tahoe's four is the fastest."""
    found: Counter[str] = Counter()
    for record in records:
        known = {name: taken(record, (name,), rows) for name in TAHOE}
        legal = {name: x for name, x in known.items() if x is not None}
        if legal:
            found[min(legal, key=legal.__getitem__)] += 1
    return found


def taken(record: Record, names: Iterable[str], rows: int) -> float | None:
    """Return the least time of some schedules, None if none is known."""
    if rows not in record["batches"]:
        return None
    place = record["batches"].index(rows)
    times = [record["times"][name][place] for name in names if name in record["times"]]
    return min((x for x in times if x is not None), default=None)


# ------------------------------------------------------------ the report

WORDS = """\
# SilvanForge's random and real models on a GPU

Kernels were timed by events, the least of three rounds of 20 calls.

- *skforge* is its default schedule, with exact sums.
- The other systems are strategies, not programs: presets that skforge compiles. RAPIDS,
  Tahoe and XGBoost add in any order. Hummingbird is its perfect tree traversal in one
  launch, and Tahoe the fastest of its four, as it chooses by a model itself.
- A number is a system's time divided by skforge's: above 1, skforge is faster. Times
  are those of kernels, without copies to the GPU.
- The 700 random models have 100 to 1,000 trees, 8 to 1,024 features and leaves from
  depth 2 to 6, 7 or 8. Their trees hold few tests in common and end early.
- Models called *stand-in* are random forests with the trees, features, depth and
  classes of the paper's real models, which are not public.
"""


def page(document: Document) -> str:
    random, real = of_kinds(document)
    lines = [WORDS, f"## Figures 8 and 9: {len(random)} random models", ""]
    lines += _ranges(random, RANDOM_BATCHES)
    lines += ["", f"![{PICTURE}]({document['picture']})", ""]
    lines += ["## Figures 6 and 7: the eight real models", ""]
    lines += _ranges(real, REAL_BATCHES)
    for n in (512, 8192):
        lines += ["", f"The µs of {n:,} rows:", "", *_columns(real, n)]
    lines += ["", "## Tahoe's four strategies", ""]
    return "\n".join([*lines, *_tahoe(random, real), ""])


def of_kinds(document: Document) -> tuple[list[Record], list[Record]]:
    kinds: tuple[list[Record], list[Record]] = ([], [])
    for record in document["models"]:
        kinds[record["model"] in document["real"]].append(record)
    return kinds


PICTURE = "Times faster than what RAPIDS and Hummingbird do, by trees and features"


def _ranges(records: Sequence[Record], batches: Sequence[int]) -> list[str]:
    rows = []
    for name in STRATEGIES:
        found = speedups(records, name)
        rows.append([name, *(_range(at(found, n)) for n in batches)])
    return table(["skforge against", *(f"{n:,} rows" for n in batches)], rows)


def _range(ratios: Sequence[float]) -> str:
    if not ratios:
        return "–"
    mean, least, most = geometric_mean(ratios), min(ratios), max(ratios)
    digits = [f"{x:.2f}" if x < 10 else f"{x:.0f}" for x in (mean, least, most)]
    return f"**{digits[0]}** ({digits[1]}–{digits[2]})"


def _columns(records: Sequence[Record], rows: int) -> list[str]:
    known = {OURS: (OURS,), **STRATEGIES}
    lines = [
        [one["model"], *(_micro(taken(one, names, rows)) for names in known.values())]
        for one in records
    ]
    return table(["model", *known], lines)


def _tahoe(random: Sequence[Record], real: Sequence[Record]) -> list[str]:
    rows = []
    for n in RANDOM_BATCHES:
        won = winners(random, n)
        rows.append(["random models", f"{n:,}", *(str(won[name]) for name in TAHOE)])
    for record in real:
        for n in (512, 16384):
            found = [taken(record, (name,), n) for name in TAHOE]
            best = min((x for x in found if x is not None), default=None)
            cells = [f"**{_micro(x)}**" if x == best else _micro(x) for x in found]
            rows.append([record["model"], f"{n:,}", *cells])
    words = "How often each is the fastest, and its µs for the real models:"
    return [words, "", *table(["", "rows", *TAHOE], rows)]


def _micro(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e6:,.1f}"


def write(
    random: Sequence[Record], real: Sequence[Record], target: str, folder: Path | None
) -> None:
    name = f"gpu_random_{target}"
    document = rounded(
        {
            "picture": f"{name.replace('_', '-')}.png",
            "real": [record["model"] for record in real],
            "models": [*real, *random],
        },
        places=3,
    )
    print(page(document))
    publish(folder, name, document, page, "model")
    if folder is None:
        return
    from benchmarks.gpu.plots import draw_grids

    grids = {
        f"× {which}, {n:,} rows": grid(speedups(random, which), n)
        for which in ("RAPIDS", "Hummingbird")
        for n in RANDOM_BATCHES
    }
    draw_grids(grids, folder / document["picture"])


if __name__ == "__main__":
    typer.run(main)
