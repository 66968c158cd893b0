"""Fit the coefficients of the cost estimate to times of schedules.

    python benchmarks/default_choices.py times.jsonl
    python benchmarks/fit_costs.py times.jsonl

Each kind of schedule has terms: counts of a forest times nanoseconds of the machine
(``skforge/compiler/cost/estimate.py``). A coefficient says how many of the machine's
units one count takes. All targets are fitted together, by non-negative least squares of
relative errors, in which schedules near the best count most. Terms that rise and fall
together are told apart by what the code of a kernel suggests (``EXPECTED``). A shared
machine is faster at one time than at another, so the times of one forest and size,
which were taken together, share a factor that is fitted, too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from cost_model_data import targets
from cost_model_family import get
from harness import lines_of
from numpy.typing import NDArray
from scipy.optimize import nnls

from skforge.compiler.cost.estimate import CostEstimate, plan_of
from skforge.compiler.schedule.schedule import Schedule

OUTPUT = Path(__file__).parents[1] / "skforge/compiler/cost/coefficients.json"

#: Units of work that the code of a count consists of, and how much they weigh against
#: the times.
EXPECTED: dict[str, dict[str, float]] = {
    "bitsliced": {
        "folded": 1.0, "listed": 1.5, "line": 1.0, "compare": 1.0, "level": 1.0,
        "look_up": 1.5, "column": 1.5, "set_table": 1.0, "set": 1.5, "load": 3.0,
        "far_line": 1.0,
    },
    "lanes": {
        "hop": 10.0, "search": 0.3, "test": 0.2, "value": 1.0, "row": 30.0,
    },
    "tiles": {
        "value": 1.0, "column": 10.0, "level": 1.0, "tree": 6.0, "tile": 6.0,
        "block": 30.0, "gather": 3.0, "fetch": 1.0, "leaf": 10.0,
        "leaf_fetch": 1.0, "row": 1.0,
    },
    "pieces": {
        "value": 1.0, "column": 10.0, "level": 1.0, "test": 1.0, "transpose": 20.0,
        "bucket": 5.0, "piece": 20.0, "fetch": 1.0, "leaf": 10.0,
    },
    "values": {
        "value": 1.0, "column": 10.0, "tree": 6.0, "tile": 6.0, "block": 30.0,
        "gather": 6.0, "fetch": 1.0, "leaf": 10.0, "leaf_fetch": 1.0, "row": 1.0,
    },
    "tile-row": {"value": 1.0, "search": 5.0, "tree": 60.0, "row": 100.0},
    "rows": {
        "value": 1.0, "walk": 8.0, "hop": 7.0, "checked_hop": 14.0, "leaf": 10.0,
        "fetch": 1.0, "wait": 0.3, "wait_alone": 1.0,
    },
    "trees": {
        "value": 1.0, "walk": 8.0, "hop": 7.0, "checked_hop": 14.0, "leaf": 10.0,
        "row": 20.0, "wait": 1.0, "wait_alone": 1.0,
    },
}  # fmt: skip
WEIGHT = 0.2

#: Rounds of least squares; each weighs by the errors of the one before.
ROUNDS = 8

#: Rounds in which coefficients and the machine's speed at each time are fitted in turn,
#: and how much of a common error is the machine's.
TURNS, MACHINE_SHARE = 5, 0.5

ABOUT = (
    "How many units of the machine's work each count of a forest takes, by kind of "
    "schedule and term. Written by benchmarks/fit_costs.py from times of {count:,} "
    "schedules of {models} forests on {machines}."
)


#: A forest, a target and a number of rows.
Cell = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Timed:
    cell: Cell
    kind: str
    ns: float
    weight: float
    terms: dict[str, float]


def main(
    files: Annotated[
        list[Path], typer.Argument(help="Times of default_choices.py.", exists=True)
    ],
    output: Annotated[Path, typer.Option(help="Where to write them.")] = OUTPUT,
) -> None:
    """Fit, print the errors, and write the coefficients."""
    records = [*chain.from_iterable(map(lines_of, files))]
    timed = read(records)
    cells = sorted({one.cell for one in timed})
    kinds = sorted({one.kind for one in timed})
    speed = dict.fromkeys(cells, 0.0)
    found: dict[str, dict[str, float]] = {}
    spread: dict[str, float] = {}
    for _ in range(TURNS):
        common: dict[Cell, list[tuple[float, float]]] = defaultdict(list)
        for kind in kinds:
            own = [one for one in timed if one.kind == kind]
            scale = np.exp([speed[one.cell] for one in own])
            found[kind], error = fit(kind, own, scale)
            spread[kind] = round(float(np.exp(np.quantile(np.abs(error), 0.9))), 2)
            for one, off in zip(own, error - np.log(scale), strict=True):
                common[one.cell].append((-off, one.weight))
        for cell in cells:
            errors, weights = np.transpose(common[cell])
            speed[cell] = MACHINE_SHARE * float(np.average(errors, weights=weights))
        mean = float(np.mean(list(speed.values())))
        speed = {cell: value - mean for cell, value in speed.items()}
    for kind in kinds:
        print(f"{kind}: within {spread[kind]}")
    factors = ", ".join(f"{kind} {factor}" for kind, factor in spread.items())
    about = ABOUT.format(
        count=len(records),
        models=len({r["model"] for r in records}),
        machines=" and ".join(str(target) for target in targets().values()),
    )
    within = f"Nine of ten estimates lie within a factor: {factors}."
    document = {"about": [about, within], "coefficients": found}
    output.write_text(f"{json.dumps(document, indent=1)}\n", encoding="utf-8")


def read(records: list[dict[str, Any]]) -> list[Timed]:
    estimates: dict[tuple[str, str], CostEstimate] = {}
    best: dict[Cell, float] = {}
    for r in records:
        cell = r["model"], r["target"], r["rows"]
        best[cell] = min(best.get(cell, np.inf), r["seconds"])
    made = []
    for r in records:
        cell = model, label, n = r["model"], r["target"], r["rows"]
        if (model, label) not in estimates:
            forest = get(model).forest
            estimates[model, label] = CostEstimate(forest, targets()[label])
        estimate, schedule = estimates[model, label], Schedule.from_json(r["schedule"])
        plan = plan_of(schedule)
        if plan is not None:
            weight = (best[cell] / r["seconds"]) ** 0.5
            terms = {k: float(v) for k, v in estimate.terms(plan, n).items()}
            made.append(Timed(cell, plan.kind, r["seconds"] * 1e9, weight, terms))
    return made


def fit(
    kind: str, timed: list[Timed], speed: NDArray[np.float64]
) -> tuple[dict[str, float], NDArray[np.float64]]:
    """Return a kind's coefficients, and the logarithms of its relative errors.

    ``speed`` is how much longer than usual the machine took at each time.
    """
    names = sorted({name for one in timed for name in one.terms})
    counts = np.array([[one.terms.get(name, 0.0) for name in names] for one in timed])
    taken = np.array([one.ns for one in timed]) / speed
    weight = np.array([one.weight for one in timed])
    expected = np.array([EXPECTED.get(kind, {}).get(name, 0.0) for name in names])
    known = expected > 0
    pull = np.diag(WEIGHT / np.where(known, expected, 1.0))[known]
    scale, own = taken, weight
    for _ in range(ROUNDS):
        left = np.vstack([counts / scale[:, None] * own[:, None], pull])
        right = np.concatenate([taken / scale * own, np.full(known.sum(), WEIGHT)])
        solved, _ = nnls(left, right, maxiter=5000)
        made = np.maximum(counts @ solved, 1e-3)
        error = np.log(made / taken)
        # Errors of the logarithm: half as much counts as much as twice as much.
        scale = np.sqrt(made * taken)
        own = weight / np.sqrt(np.maximum(0.15, np.abs(error)))
    used = {n: float(f"{v:.4g}") for n, v in zip(names, solved, strict=True) if v > 0}
    return used, error


if __name__ == "__main__":
    typer.run(main)
