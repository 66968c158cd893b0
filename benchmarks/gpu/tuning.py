"""How close strategies come to the best of Table 5 on GPUs, by the model: no device.

    python -m benchmarks.gpu.tuning --output benchmarks/results

models all 5184 schedules of SilvanForge's Table 5 for some forests, batch sizes and
GPUs, lets every strategy search with modelled times (``modelled.py``),
and draws Figures 2, 5, 11 and 12 of its evaluation. **No time in it is a measurement.**
Needs NVRTC, hiprtc for the AMD GPU, and nvdisasm.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import harness
import joblib
import numpy as np
import typer
from models import cache_folder, get
from numpy.typing import NDArray
from tuning_plots import Rows, Whole, figures, strategies

from benchmarks.gpu.chips import CHIPS, Chip
from benchmarks.gpu.cost import Known, Modeller
from benchmarks.gpu.designs import designs
from benchmarks.gpu.modelled import ModelledGpu
from skforge import load_forest
from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.defaults.gpu import default_gpu_schedules
from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule.schedule import Schedule
from skforge.exceptions import SkforgeError, TuningWarning
from skforge.tuning import Heuristic, ScheduleSpace, Tuner

NAMES = (
    "airline.json",
    "year_prediction_msd.json",
    "epsilon.json",
    "lightgbm/NYC_taxi.txt",
    "lightgbm/multiclass.txt",
)
#: Candidates of random searches: as many as the heuristic has, and as few as successive
#: halving begins with, which without noise is a random search; and how many searches.
DRAWN, SEARCHES = (111, 48), 200

#: Designs of skforge that are modelled beside Table 5.
OURS = (
    "4 trees in flight, padded",
    "8 trees in flight, padded",
    "codes, array, 16 trees in shared",
    "tiles of 3 levels, 4 in flight",
    "shared predicates, 256 rows",
    "shared predicates, 1024 rows",
    "32 rows by 16 parts of trees",
    "16 rows by 32 parts of trees",
    "2 rows, trees by 128 threads",
)

Array = NDArray[Any]

BATCHES = (512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True, eq=False)
class Searched(Whole):
    """Table 5 of one forest on one chip, and what else is modelled."""

    default: Array  # of the static default schedules, by batch size
    ours: Array  # the best of skforge's own designs
    ours_names: tuple[str, ...]


def main(names: harness.Names = None, output: harness.Output = None) -> None:
    """Model, search, print and write."""
    wholes: list[Searched] = []
    rows: Rows = []
    codes: dict[Any, Any] = {}
    for name in names or NAMES:
        model = get(name)
        forest, sample = load_forest(model.path), np.load(model.rows)
        start = time.process_time()
        machines, known = [], Known()
        for chip in CHIPS:
            modeller = Modeller(forest, sample, "exact", chip, known, codes)
            machines.append(ModelledGpu(modeller))
        kept = cache_folder() / f"gpu-table-5-{name.replace('/', '-')}.joblib"
        if not kept.exists():
            joblib.dump(table_5(forest, machines), kept)
        tables = joblib.load(kept)
        keep(forest, machines, tables)
        print(f"{name}: {time.process_time() - start:.0f} s", flush=True)
        for machine, seconds in zip(machines, tables, strict=True):
            whole = whole_of(name, forest, machine, seconds)
            wholes.append(whole)
            rows += list(searches(whole, forest, machine))
            spent = time.process_time() - start
            print(f"  {whole.machine}: {whole.legal} legal, {spent:.0f} s", flush=True)
    document = harness.rounded(document_of(wholes, rows))
    print(page(document))
    harness.publish(output, "gpu_tuning", document, page, "model")
    if output is not None:
        figures(wholes, BATCHES, output / "gpu-tuning", ": modelled, not measured")
        found = [
            r | {"machine": r["chip"], "batch": f"{r['batch']:,} rows"}
            for r in rows
            if r["strategy"] == "heuristic"
        ]
        file = output / "gpu-tuning-heuristic.png"
        title = "Algorithm 1 against all of Table 5: modelled, not measured"
        strategies(found, "batch", "share of legal schedules timed", file, title)


def table_5(forest: Forest, machines: Sequence[ModelledGpu]) -> Array:
    """Return the seconds of all points on all chips; NaN where they are not legal."""
    space, shape = ScheduleSpace.gpu(), ForestShape.of(forest)
    seconds = np.full((len(machines), len(space), len(BATCHES)), np.nan)
    for place, point in enumerate(space):
        schedule = space.schedule(point, shape)
        for machine, rows in zip(machines, seconds, strict=True):
            with suppress(SkforgeError):
                rows[place] = [*machine.times(schedule, BATCHES).values()]
    return seconds


def keep(forest: Forest, machines: Sequence[ModelledGpu], tables: Array) -> None:
    """Tell each machine the times of Table 5 that are known."""
    space, shape = ScheduleSpace.gpu(), ForestShape.of(forest)
    for place, point in enumerate(space):
        schedule = space.schedule(point, shape)
        for machine, seconds in zip(machines, tables[:, place], strict=True):
            if not np.isnan(seconds[0]):
                # A build asks for one row, whose time no search looks at.
                known = dict(zip(BATCHES, seconds.tolist(), strict=True))
                machine.keep(schedule, {1: known[BATCHES[0]], **known})


def whole_of(
    name: str, forest: Forest, machine: ModelledGpu, seconds: Array
) -> Searched:
    """Model the defaults and skforge's designs beside Table 5."""
    chip = machine.modeller.chip
    default = [
        machine.seconds(default_schedule(forest, chip, batch), batch)
        for batch in BATCHES
    ]
    best = [(float("inf"), "none")] * len(BATCHES)
    for design in designs(forest):
        if design.name not in OURS:
            continue
        for i, batch in enumerate(BATCHES):
            try:
                one = machine.seconds(design.schedule, batch)
            except SkforgeError:
                break
            best[i] = min(best[i], (one, design.name))
    return Searched(
        name,
        chip.name,
        seconds,
        np.array(default),
        np.array([one for one, _ in best]),
        tuple(words for _, words in best),
    )


def default_schedule(forest: Forest, chip: Chip, batch: int) -> Schedule:
    """Return the static default for a batch."""
    return harness.of_size(default_gpu_schedules(forest, chip.target), batch)


def searches(whole: Searched, forest: Forest, machine: ModelledGpu) -> Iterator[Any]:
    """Yield how far each strategy's own best is from the best of Table 5."""
    warnings.simplefilter("ignore", TuningWarning)
    random = np.random.default_rng(0)
    chip = machine.modeller.chip
    legal = whole.seconds[~np.isnan(whole.seconds[:, 0])]
    for i, batch in enumerate(BATCHES):
        known = {"model": whole.model, "chip": whole.machine, "batch": batch}
        result = Tuner(Heuristic(), measurer=machine).tune(
            forest,
            target=chip.target,
            ranges={(batch, batch): batch},
            budget=1e9,
            random_state=0,
        )
        own = [
            machine.seconds(t.schedule, batch)
            for t in result.trials
            if t.candidate.origin == "heuristic" and t.samples
        ]
        yield known | {
            "strategy": "heuristic",
            "slowdown": min(own) / whole.best[i],
            "tried": len(own),
            "share": len(own) / whole.legal,
        }
        for n in DRAWN:
            draws = random.random((SEARCHES, len(legal))).argsort(axis=1)[:, :n]
            found = legal[:, i][draws].min(axis=1) / whole.best[i]
            yield known | {
                "strategy": f"random, {n}",
                "slowdown": float(np.exp(np.log(found).mean())),
                "tried": n,
                "share": n / whole.legal,
            }


# ------------------------------------------------------------ the report

WORDS = """\
# Searching SilvanForge's Table 5 on GPUs: modelled, not measured

No GPU was at hand. All times come from the model of `gpu_static.md`, which counts
instructions and registers in machine code and simulates reads with real rows and trees.
A real GPU may differ. Sums are exact.

- All {points:,} points of Table 5 are modelled for each forest, batch size and GPU. A
  point is not legal if it spills, or needs more shared memory or threads than a GPU
  has.
- Registers and instructions are those of sm_90's machine code for all GPUs. Shared
  memory, warps, caches and clocks are each GPU's own.
- *Default* is the static default schedule, *designs* the best of some designs of
  `gpu_static.md`. A slowdown below 1 is faster than all of Table 5.
- The heuristic searches through `Tuner(measurer=...)`. Random searches are geometric
  means over {seeds}. The model has no noise, so successive halving of 48 is a random
  search of 48.
"""


def page(document: harness.Document) -> str:
    """Return the tables."""
    tables = [dict(one) for one in document["tables"]]
    rows = document["searches"]
    lines = [WORDS.format(points=len(ScheduleSpace.gpu()), seeds=SEARCHES)]
    heads = [f"{chip.name}: geomean | worst" for chip in CHIPS]
    made = []
    for name in dict.fromkeys(r["strategy"] for r in rows):
        part = [r for r in rows if r["strategy"] == name and r["slowdown"]]
        cells = [name]
        for chip in CHIPS:
            cells += harness.mean_and_worst(
                [r["slowdown"] for r in part if r["chip"] == chip.name]
            )
        within = np.mean([r["slowdown"] <= 1.05 for r in part])
        tried = np.mean([r["tried"] for r in part])
        share = 1 / np.mean([r["share"] for r in part])
        made.append([*cells, f"{within:.0%}", f"{tried:.0f}", f"1/{share:.0f}"])
    found = {
        (r["model"], r["chip"], r["batch"]): r["slowdown"]
        for r in rows
        if r["strategy"] == "heuristic"
    }
    for one in tables:
        best, default, ours = (
            np.array(one[key]) for key in ("best", "default", "ours")
        )
        own = [found[one["model"], one["chip"], n] for n in BATCHES]
        # A search takes the heuristic's best, or the default.
        taken = np.minimum(own, default / best)
        one |= {"taken": taken, "defaults": default / best, "designs": ours / best}
    for words, key in (
        ("heuristic, or the default: what a search takes", "taken"),
        ("static default", "defaults"),
        ("best of the other designs", "designs"),
    ):
        cells = [words]
        for chip in CHIPS:
            own = [r for t in tables if t["chip"] == chip.name for r in t[key]]
            cells += harness.mean_and_worst(own)
        made.append([*cells, "", "", ""])
    heads += ["within 5 %", "schedules timed", "share of legal points"]
    rule = "|---|" + "--:|" * (2 * len(CHIPS) + 3)
    head, _, *some = harness.table(["strategy", *heads], made)
    lines += [head, rule, *some]
    lines += ["", "## By forest and batch size", ""]
    columns = ["forest", "rows", "legal", "best, µs", "median point", "heuristic"]
    for chip in CHIPS:
        mine = [one for one in tables if one["chip"] == chip.name]
        aligned = harness.table(
            [*columns, "default", "designs", ""],
            [
                _cells(one, i, n, found[one["model"], chip.name, n])
                for one in mine
                for i, n in enumerate(BATCHES)
            ],
            kinds="tnnnnnnnt",
        )
        lines += [
            f"### {chip.name}",
            "",
            "The µs of a batch with the best of Table 5, then slowdowns against it.",
            "",
            *aligned,
            "",
        ]
    for name, words in FIGURES.items():
        lines += [f"![{words}](gpu-tuning-{name}.png)", ""]
    return "\n".join(lines)


def _cells(one: harness.Document, i: int, n: int, found: float) -> list[str]:
    best, middle = one["best"][i], one["quantiles"][QUANTILES.index(0.5)][i]
    slowdowns = (middle / best, found, one["default"][i] / best, one["ours"][i] / best)
    shown = [f"{slowdowns[0]:.1f}", *(f"{value:.2f}" for value in slowdowns[1:])]
    head = [one["model"], f"{n:,}", f"{one['legal']:,}", f"{best * 1e6:.1f}"]
    return [*head, *shown, one["ours_names"][i]]


#: Of the times of all points, by batch size.
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9)

FIGURES = {
    "distribution": "Figure 5: all points of Table 5 by the best of each forest",
    "sensitivity": "Figure 2: the best of one batch size or forest at another",
    "heuristic": "Figure 11: slowdown of the heuristic, and its share of Table 5",
    "hardware": "Figure 12: what a GPU's own best schedules are worth on it",
}


def document_of(wholes: Sequence[Searched], rows: Rows) -> harness.Document:
    """Return the results as JSON has them."""
    tables = [
        {
            "model": w.model,
            "chip": w.machine,
            "legal": w.legal,
            "best": w.best.tolist(),
            "quantiles": np.nanquantile(w.seconds, QUANTILES, axis=0).tolist(),
            "default": w.default.tolist(),
            "ours": w.ours.tolist(),
            "ours_names": w.ours_names,
        }
        for w in wholes
    ]
    return {
        "times": "modelled, not measured",
        "batches": BATCHES,
        "tables": tables,
        "searches": rows,
    }


if __name__ == "__main__":
    typer.run(main)
