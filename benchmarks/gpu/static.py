"""Rank GPU schedules without a GPU: counted in their machine code, and modelled.

    python -m benchmarks.gpu.static [NAMES] --output benchmarks/results

compiles every design for one architecture and prints its registers, shared memory,
occupancy and instructions of a hop, which are facts, and what a model makes of them
(``cost.py``), which is not. Needs NVRTC and nvdisasm, from their wheels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer
from models import get
from store import rounded
from systems import load_estimator

from benchmarks.gpu.chips import H200
from benchmarks.gpu.cost import Modeller
from benchmarks.gpu.cost_nvforest import nvforest_like
from benchmarks.gpu.cost_records import FIRST_LAUNCH, NEXT_LAUNCH, Cost
from benchmarks.gpu.designs import designs
from skforge import load_forest
from skforge.cli.report import count
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.exceptions import SkforgeError

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
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of models; default: some of each.")
    ] = None,
    reduction: Annotated[str, typer.Option(help="exact, reproducible, fast")] = "exact",
    output: Annotated[
        Path | None, typer.Option(help="Folder for gpu_static.json and .md.")
    ] = None,
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
        if output is not None:
            write(found, reduction, output)
    print(summary(found))


def of_model(name: str, reduction: Reduction, batches: Sequence[int]) -> dict[str, Any]:
    """Return the costs of all designs of a model, as JSON has them."""
    model = get(name)
    source = load_estimator(model.path) if model.kind == "sklearn" else model.path
    forest = load_forest(source)
    rows = np.load(model.rows)
    found = costs(forest, rows, reduction, batches)
    return {"model": name, "facts": model.facts, **found}


def costs(
    forest: Forest, rows: Any, reduction: Reduction, batches: Sequence[int]
) -> dict[str, Any]:
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


def _record(one: Cost) -> dict[str, Any]:
    return {**asdict(one), "row_trees": one.row_trees}


# ------------------------------------------------------------ tables


def table(found: dict[str, Any]) -> str:
    """Return one model's designs."""
    facts, like = found["facts"], found["nvforest_like"]
    words = ", ".join(f"{key} {value}" for key, value in facts.items())
    sizes = list(found["designs"][0]["seconds"]) if found["designs"] else []
    head = (
        "| schedule | registers | spilled | shared | occupancy | launches "
        "| instructions | hops | node | row | B/row | 10⁹ row-trees/s | bound by "
        "| **× nvForest-like** | " + " | ".join(f"{n:,}" for n in sizes) + " |"
    )
    lines = [
        f"## {found['model']}\n",
        f"{words}.\n",
        head,
        "|---|" + "--:|" * (13 + len(sizes)),
        _line(like, like, sizes),
    ]
    lines += [_line(one, like, sizes) for one in found["designs"]]
    missing = "; ".join(f"{name}: {why}" for name, why in found["missing"].items())
    return "\n".join([*lines, "", f"Not compiled – {missing}\n" if missing else ""])


def _line(one: dict[str, Any], like: dict[str, Any], sizes: Sequence[Any]) -> str:
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
    cells += [f"{times[n] * 1e6:,.1f}" if n in times else "" for n in sizes]
    return "| " + " | ".join(cells) + " |"


def summary(found: Sequence[dict[str, Any]]) -> str:
    """Return the best design of each model, for large batches and for some sizes."""
    lines = [
        "| model | best bound | instructions | × nvForest-like | "
        + " | ".join(f"{count(n, 'row')}, µs" for n in BATCHES)
        + " |",
        "|---|---|--:|--:|" + "---|" * len(BATCHES),
    ]
    ratios = []
    for one in found:
        if not one["designs"]:
            continue
        best = max(one["designs"], key=lambda d: d["row_trees"])
        ratios.append(best["row_trees"] / one["nvforest_like"]["row_trees"])
        row = [one["model"], best["name"], f"{best['instructions']:.2f}"]
        row.append(f"**{ratios[-1]:.2f}**")
        for n in BATCHES:
            soon = min(one["designs"], key=lambda d: d["seconds"][n])
            row.append(f"{soon['seconds'][n] * 1e6:,.1f} {soon['name']}")
        lines.append("| " + " | ".join(row) + " |")
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines.append(f"| geomean | | | **{mean:.2f}** |" + " |" * len(BATCHES))
    return "\n".join(lines)


def write(found: Sequence[dict[str, Any]], reduction: str, folder: Path) -> None:
    """Write gpu_static.json and gpu_static.md."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"chip": asdict(H200), "reduction": reduction, "models": found}
    text = json.dumps(rounded(document), separators=(",", ":"))
    text = text.replace('{"name"', '\n{"name"').replace('{"model"', '\n{"model"')
    (folder / "gpu_static.json").write_text(text + "\n", encoding="utf-8")
    words = MODEL_IN_WORDS.format(
        name=H200.name,
        arch=H200.arch,
        processors=H200.processors,
        clock=H200.clock / 1e9,
        issue=H200.issue,
        l2=H200.l2_bytes_per_cycle,
        far=H200.far,
        first=FIRST_LAUNCH * 1e6,
        next=NEXT_LAUNCH * 1e6,
    )
    parts = [
        "# GPU kernels: counted and modelled\n",
        words,
        f'Sums are {reduction}. A column such as "256 rows" has the modelled µs of a '
        "batch.\n",
        summary(found),
        "",
        *map(table, found),
    ]
    (folder / "gpu_static.md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
