"""How good the cost model of GPUs is where it was not trained: modelled, no device.

    python -m benchmarks.gpu.learned times.jsonl --output benchmarks/results

leaves each forest of a file of times (``train.py``) out, trains on the others, and lets
``Learned("one-shot")`` choose a schedule of SilvanForge's Table 5 and of
``ScheduleSpace.gpu_full()`` for each GPU and batch size. **No time in it is measured.**
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Any

import harness
import joblib
import numpy as np
import typer
from models import cache_folder

from benchmarks.gpu.learned_times import BATCHES, Machines, gpu, write
from benchmarks.gpu.train import groups, train
from benchmarks.gpu.tuning import BATCHES as TABLE_BATCHES
from skforge.compiler.defaults.gpu import default_gpu_schedules
from skforge.compiler.schedule.schedule import Schedule
from skforge.tuning import Learned, Problem, ScheduleSpace
from skforge.tuning.cost.cost_model import CostModel

SPACES = {"Table 5": ScheduleSpace.gpu, "gpu_full()": ScheduleSpace.gpu_full}
CHIPS = {"H200": ("sm_90", 132), "A100": ("sm_80", 108), "MI210": ("gfx90a", 104)}

Rows = list[dict[str, Any]]

WORDS = """\
# One-shot by the cost model of GPUs: modelled, not measured

`Learned("one-shot")` chooses a schedule without measuring. All times, those that the
cost model was trained on and those that it is judged by, come from the model of
`gpu_static.md`. A real GPU may differ.

- Each forest is left out in turn: the cost model that chooses for it was trained on the
  others ({forests} forests, {times:,} times of schedules in all).
- *Table 5*: the choice by the best of all 5,184 points, for the forests whose table is
  modelled whole (`gpu_tuning.md`), 512 to 16,384 rows.
- *gpu_full()*: the choice by the best that is known of that forest: of all schedules
  that were drawn for training, what any choice here found, and the static default; 512
  to 65,536 rows. The whole space is too large to be modelled.
- Not modelled, and so not taken here: tiles of two and four nodes, and bit logic on the
  AMD GPU.
- One-shot keeps the static default unless the model predicts less time for another. A
  slowdown below 1 is a default that is faster than all of Table 5.
"""


def main(
    file: Annotated[Path, typer.Argument(help="Times from benchmarks.gpu.train.")],
    names: harness.Names = None,
    output: harness.Output = None,
) -> None:
    """Leave each forest out, choose, model what is chosen, and print."""
    found = list(groups(file))
    forests = list(dict.fromkeys(g.model for g in found))
    times = sum(len(g.log_row) for g in found)
    codes: dict[Any, Any] = {}
    rows: Rows = []
    for name in names or forests:
        machines = Machines.of(name, codes)
        model = train([g for g in found if g.model != name])
        rows += list(judged(file, machines, model))
        done = [r["slowdown"] for r in rows if r["model"] == name and r["slowdown"]]
        print(f"{name}: {geometric_mean(done):.3f}, worst {max(done):.2f}", flush=True)
        document = harness.rounded(
            {"forests": len(forests), "times": times, "rows": rows}
        )
        harness.publish(output, "gpu_learned", document, page, "model")
    print(page(document))


def judged(file: Path, machines: Machines, model: CostModel) -> Iterator[Any]:
    """Yield how one-shot's choices of each space compare with the best."""
    chosen = dict(choices(machines, model))
    known = times_of(file, machines.name)
    fresh = {s for some in chosen.values() for s in some} - known.keys()
    write(file, (one for s in fresh for one in machines.records(s)))
    known = times_of(file, machines.name)
    kept = cache_folder() / f"gpu-table-5-{machines.name.replace('/', '-')}.joblib"
    tables = joblib.load(kept) if kept.exists() else None
    for (chip, space, n), some in chosen.items():
        own = {s: t[chip][str(n)] for s, t in known.items() if chip in t}
        best = min(own.values())
        if space == "Table 5":
            if tables is None or n not in TABLE_BATCHES:
                continue
            table = tables[list(CHIPS).index(chip)]
            best = np.nanmin(table[:, TABLE_BATCHES.index(n)])
        # What spills, or does not fit, is not taken; the last one is the default.
        taken = next((own[s] for s in some if s in own), None)
        yield {
            "model": machines.name,
            "chip": chip,
            "space": space,
            "batch": n,
            "slowdown": None if taken is None else taken / best,
            "default": own[some[-1]] / best if some[-1] in own else None,
        }


def choices(
    machines: Machines, model: CostModel
) -> Iterator[tuple[tuple[str, str, int], list[Schedule]]]:
    """Yield what one-shot would take in turn, the default last."""
    for chip, at in CHIPS.items():
        target = gpu(*at)
        defaults = default_gpu_schedules(machines.forest, target)
        for space, make in SPACES.items():
            memory: dict[str, Any] = {}
            for n in BATCHES:
                default = harness.of_size(defaults, n)
                problem = Problem(
                    machines.forest,
                    machines.shape,
                    target,
                    "exact",
                    (n, n),
                    n,
                    1,
                    make(),
                    np.random.default_rng(0),
                    default,
                    memory=memory,
                )
                asked = next(Learned("one-shot", model=model).rounds(problem))
                some = [c.schedule for c in asked.candidates if c.schedule is not None]
                yield (chip, space, n), [*some, default]


def times_of(file: Path, name: str) -> dict[Schedule, dict[str, dict[str, float]]]:
    """Return the seconds of a forest's schedules, by chip and rows."""
    chips = {at: chip for chip, at in CHIPS.items()}
    found: dict[Schedule, dict[str, dict[str, float]]] = {}
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            one = json.loads(line)
            if one["model"] == name:
                schedule = Schedule.from_json(json.dumps(one["schedule"]))
                chip = chips[one["arch"], one["processors"]]
                found.setdefault(schedule, {})[chip] = one["seconds"]
    return found


def page(document: harness.Document) -> str:
    """Return the tables."""
    rows, lines = document["rows"], [WORDS.format(**document)]
    heads = ["", "one-shot: geomean", "worst", "within 15 %", "static default: geomean"]
    for space in SPACES:
        some = [r for r in rows if r["space"] == space and r["slowdown"]]
        keys = [("chip", chip, chip) for chip in CHIPS]
        if space != "Table 5":
            models = dict.fromkeys(r["model"] for r in some)
            keys += [("model", name, name) for name in models]
        keys += [("batch", n, f"{n:,} rows") for n in BATCHES]
        cells = [
            _cells(words, part)
            for key, value, words in keys
            if (part := [r for r in some if r[key] == value])
        ]
        lines += [
            f"## {space}",
            "",
            *harness.table([*heads, "worst", "cases"], cells),
            "",
        ]
    return "\n".join(lines)


def _cells(words: str, rows: Rows) -> list[str]:
    own = [r["slowdown"] for r in rows]
    base = harness.mean_and_worst([r["default"] for r in rows if r["default"]])
    within = f"{np.mean([one <= 1.15 for one in own]):.0%}"
    return [words, *harness.mean_and_worst(own), within, *base, f"{len(own)}"]


if __name__ == "__main__":
    typer.run(main)
