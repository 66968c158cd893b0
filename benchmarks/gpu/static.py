"""Rank GPU schedules without a GPU: counted in their machine code, and modelled.

    python -m benchmarks.gpu.static [NAMES] --output benchmarks/results

compiles every design for one architecture and prints its registers, shared memory,
occupancy and instructions of a hop, which are facts, and what a model makes of them
(``cost.py``), which is not. Needs NVRTC and nvdisasm, from their wheels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import geometric_mean
from typing import Annotated, Any, cast

import numpy as np
import typer
from harness import Document, Names, Output, publish, rounded
from harness import table as table_of
from models import get
from systems import load_estimator

from benchmarks.gpu.chips import H200, Chip
from benchmarks.gpu.cost import Modeller
from benchmarks.gpu.cost_nvforest import nvforest_like
from benchmarks.gpu.cost_records import FIRST_LAUNCH, NEXT_LAUNCH, Cost
from benchmarks.gpu.designs import designs
from skforge import load_forest
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.exceptions import SkforgeError, plural

NAMES = (
    "airline.json",
    "year_prediction_msd.json",
    "epsilon.json",
    "lightgbm/NYC_taxi.txt",
    "lightgbm/multiclass.txt",
    "airline.onnx",
    "xgb-categories",
    "lgbm-255-leaves",
    "IsolationForest",
    "synthetic-300x64-7",
    "synthetic-1000x8-8",
    "synthetic-100x1024-8",
)
BATCHES = (1, 16, 256, 4096, 65536)

MODEL_IN_WORDS = """\
Registers, spills, shared bytes, occupancy (and what limits it), launches and
instructions are read from the machine code for {arch}. **All times are modelled,
not measured**, for a {name}: {processors} processors at {clock:.2f} GHz that issue
{issue:.0f} warp instructions a cycle.

- Reads are simulated with real rows and trees. Shared memory takes the cycles of its
  most used bank, global nodes those of the cache lines they touch.
- Where the forest is larger than the rest of the first cache, the second cache delivers
  {l2:.0f} bytes a cycle and processor of the sectors that a block touches.
- A bound is what the scarcest of these resources allows a large batch, in row-trees a
  second.
- The time of a batch has {far:.0f} cycles for a node from the second cache,
  {first:.1f} µs for the first launch and {next:.1f} µs for each further one.
- The nvForest-like loop is what that library's source compiles to: 23 instructions, 32
  rows a warp, rows side by side in shared memory, nodes of 8 bytes. Its barriers and
  its own categories are left out.

"""


def main(
    names: Names = None,
    reduction: Annotated[str, typer.Option(help="exact, reproducible, fast")] = "exact",
    output: Output = None,
) -> None:
    """Compile, model and print."""
    found = []
    for name in names or NAMES:
        try:
            found.append(of_model(name, cast(Reduction, reduction), BATCHES))
        except (FileNotFoundError, ImportError) as error:
            print(f"{name} is left out: {error}")
            continue
        print(table(found[-1]), flush=True)
        known = {"chip": asdict(H200), "reduction": reduction, "models": found}
        publish(output, "gpu_static", rounded(known), page, "name", "model")
    print(summary(found))


def of_model(name: str, reduction: Reduction, batches: Sequence[int]) -> Document:
    """Return the costs of all designs of a model, as JSON has them."""
    model = get(name)
    source = load_estimator(model.path) if model.kind == "sklearn" else model.path
    forest = load_forest(source)
    rows = np.load(model.rows)
    found = costs(forest, rows, reduction, batches)
    return {"model": name, "facts": model.facts, **found}


def costs(
    forest: Forest, rows: Any, reduction: Reduction, batches: Sequence[int]
) -> Document:
    """Return what every design of a forest costs, and why some are missing."""
    made: list[Cost] = []
    missing: dict[str, str] = {}
    modeller = Modeller(forest, rows, reduction, H200)
    for design in designs(forest):
        try:
            lowered = modeller.made(design.schedule)
            made.append(modeller.cost(lowered, batches, design.name))
        except SkforgeError as error:
            missing[design.name] = str(error).partition("\n")[0]
    like = nvforest_like(forest, rows, H200)
    return {
        "nvforest_like": _record(like),
        "designs": [_record(one) for one in made],
        "missing": missing,
    }


def _record(one: Cost) -> Document:
    return {**asdict(one), "row_trees": one.row_trees}


# ------------------------------------------------------------ tables


def table(found: Document) -> str:
    """Return one model's designs."""
    facts, like = found["facts"], found["nvforest_like"]
    words = ", ".join(f"{key} {value}" for key, value in facts.items())
    sizes = list(found["designs"][0]["seconds"]) if found["designs"] else []
    rows = [_cells(one, like, sizes) for one in (like, *found["designs"])]
    lines = table_of([*HEADS, *(f"{int(n):,}" for n in sizes)], rows)
    missing = "; ".join(f"{name}: {why}" for name, why in found["missing"].items())
    head = [f"## {found['model']}\n", f"{words}.\n"]
    return "\n".join(
        [*head, *lines, "", f"Not compiled – {missing}\n" if missing else ""]
    )


HEADS = ("schedule", "registers", "spilled", "shared", "occupancy", "launches",
         "instructions", "hops", "node", "row", "B/row", "10⁹ row-trees/s", "bound by",
         "**× nvForest-like**")  # fmt: skip


def _cells(one: Document, like: Document, sizes: Sequence[Any]) -> list[str]:
    scarce = min(one["bounds"], key=one["bounds"].__getitem__)
    cells = [
        one["name"],
        f"{one['registers']}",
        f"{one['spill_bytes'] + one['stack_bytes']}",
        f"{one['shared_bytes']:,}",
        f"{one['occupancy']:.0%} {one['limit']}",
        f"{one['launches']}",
        f"{one['instructions']:.2f}",
        f"{one['hops']:.1f}",
        f"{one['node_cycles']:.2f}",
        f"{one['row_cycles']:.2f}",
        f"{one['bytes_a_row']:,.0f}",
        f"{one['row_trees'] / 1e9:.0f}",
        scarce,
        f"**{one['row_trees'] / like['row_trees']:.2f}**",
    ]
    times = one["seconds"]
    return cells + [f"{times[n] * 1e6:,.1f}" if n in times else "" for n in sizes]


def summary(found: Sequence[Document]) -> str:
    """Return the best design of each model, for large batches and for some sizes."""
    rows, ratios = [], []
    for one in found:
        if not one["designs"]:
            continue
        best = max(one["designs"], key=lambda d: d["row_trees"])
        ratios.append(best["row_trees"] / one["nvforest_like"]["row_trees"])
        row = [one["model"], best["name"], f"{best['instructions']:.2f}"]
        row.append(f"**{ratios[-1]:.2f}**")
        for n in best["seconds"]:
            soon = min(one["designs"], key=lambda d: d["seconds"][n])
            row.append(f"{soon['seconds'][n] * 1e6:,.1f} {soon['name']}")
        rows.append(row)
    heads = ["model", "best bound", "instructions", "× nvForest-like"]
    heads += [f"{plural(n, 'row')}, µs" for n in BATCHES]
    lines = table_of(heads, rows, kinds="ttnn" + "t" * len(BATCHES))
    if ratios:
        mean = geometric_mean(ratios)
        lines.append(f"| geomean | | | **{mean:.2f}** |" + " |" * len(BATCHES))
    return "\n".join(lines)


def page(document: Document) -> str:
    """Return gpu_static.md."""
    found, chip = document["models"], Chip(**document["chip"])
    words = MODEL_IN_WORDS.format(
        **asdict(chip) | {"clock": chip.clock / 1e9},
        l2=chip.l2_bytes_per_cycle,
        first=FIRST_LAUNCH * 1e6,
        next=NEXT_LAUNCH * 1e6,
    )
    parts = [
        "# GPU kernels: counted and modelled\n",
        words,
        f'Sums are {document["reduction"]}. A column such as "256 rows" has the '
        "modelled µs of a batch.\n",
        summary(found),
        "",
        *map(table, found),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    typer.run(main)
