"""Fit the coefficients of the cost estimate to times of schedules.

    python benchmarks/default_choices.py times.jsonl
    python benchmarks/fit_costs.py times.jsonl

Each kind of schedule has terms: counts of a forest times nanoseconds of the machine
(``skforge/compiler/cost/terms.py``). A coefficient says how many of the machine's units
one count takes. All targets are fitted together, by non-negative least squares of
relative errors, in which schedules near the best count most. Terms that rise and fall
together are told apart by what the code of a kernel suggests (``EXPECTED``).
"""

from __future__ import annotations

import json
import pprint
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from cost_model_data import targets
from cost_model_family import get
from numpy.typing import NDArray
from scipy.optimize import nnls

from skforge.compiler.cost.estimate import CostEstimate
from skforge.compiler.schedule.schedule import Schedule

OUTPUT = Path(__file__).parents[1] / "skforge" / "compiler" / "cost" / "coefficients.py"

#: Units of work that the code of a count consists of, and how much they weigh against
#: the times.
EXPECTED: dict[str, dict[str, float]] = {
    "bitsliced": {
        "folded": 1.0, "listed": 1.5, "line": 1.0, "compare": 1.0, "level": 1.0,
        "look_up": 1.5, "column": 1.5, "set_table": 1.0, "set": 1.5, "load": 3.0,
        "far_line": 1.0,
    },
    "lanes": {
        "hop": 10.0, "set": 1.0, "search": 0.3, "test": 0.2, "value": 1.0, "tree": 5.0,
        "row": 30.0,
    },
    "tiles": {
        "value": 1.0, "column": 10.0, "level": 1.0, "tree": 6.0, "tile": 6.0,
        "block": 30.0, "gather": 3.0, "fetch": 1.0, "leaf": 4.0,
    },
    "values": {
        "value": 1.0, "column": 10.0, "tree": 6.0, "tile": 6.0, "block": 30.0,
        "gather": 6.0, "fetch": 1.0, "leaf": 4.0,
    },
    "tile-row": {"value": 1.0, "search": 5.0, "tree": 60.0, "row": 100.0},
    "rows": {
        "value": 1.0, "walk": 8.0, "hop": 7.0, "checked_hop": 14.0, "leaf": 4.0,
        "block": 10.0, "fetch": 1.0, "wait": 0.3,
    },
    "trees": {
        "value": 1.0, "walk": 8.0, "hop": 7.0, "checked_hop": 14.0, "leaf": 4.0,
        "row": 20.0, "wait": 1.0,
    },
}  # fmt: skip
WEIGHT = 0.5

#: Rounds of least squares; each weighs by the errors of the one before.
ROUNDS = 8

HEADER = '''"""How many units of the machine's work each count of a forest takes.

By kind of schedule and term. Written by benchmarks/fit_costs.py from times of {count:,}
schedules of {models} forests on
{machines}.
The units are those of ``MachineProfile``; ``terms.py`` has the counts. ``SPREAD`` is
the factor within which nine of ten estimates lie.
"""

'''


def main(
    files: Annotated[list[Path], typer.Argument(help="Times of default_choices.py.")],
    output: Annotated[Path, typer.Option(help="Where to write them.")] = OUTPUT,
) -> None:
    """Fit, print the errors, and write the coefficients."""
    items: dict[str, list[tuple[str, float, float, dict[str, float]]]] = defaultdict(
        list
    )
    estimates: dict[tuple[str, str], CostEstimate] = {}
    records = [json.loads(line) for f in files for line in f.open(encoding="utf-8")]
    best: dict[Any, float] = {}
    for r in records:
        key = r["model"], r["target"], r["rows"]
        best[key] = min(best.get(key, np.inf), r["seconds"])
    for r in records:
        model, label, n = r["model"], r["target"], r["rows"]
        if (model, label) not in estimates:
            forest = get(model).forest
            estimates[model, label] = CostEstimate(forest, targets()[label])
        estimate, schedule = estimates[model, label], Schedule.from_json(r["schedule"])
        kind = estimate.kind(schedule)
        if kind is not None:
            weight = (best[model, label, n] / r["seconds"]) ** 0.5
            terms = estimate.terms(schedule, n)
            items[kind].append((label, r["seconds"] * 1e9, weight, terms))
    found: dict[str, dict[str, float]] = {}
    spread: dict[str, float] = {}
    for kind, own in sorted(items.items()):
        found[kind], errors = fit(kind, own)
        spread[kind] = round(float(np.exp(np.quantile(np.abs(errors), 0.9))), 2)
        print(f"{kind}: {len(own)} times, within {spread[kind]}")
    header = HEADER.format(
        count=len(records),
        models=len({r["model"] for r in records}),
        machines=" and\n".join(str(target) for target in targets().values()),
    )
    values = pprint.pformat(found, sort_dicts=False, width=80)
    text = f"{header}COEFFICIENTS = {values}\n\nSPREAD = {pprint.pformat(spread)}\n"
    output.write_text(text, encoding="utf-8")


def fit(
    kind: str, items: list[tuple[str, float, float, dict[str, float]]]
) -> tuple[dict[str, float], NDArray[np.float64]]:
    """Return a kind's coefficients, and the logarithms of its relative errors."""
    names = sorted({name for *_, terms in items for name in terms})
    counts = np.array([[t.get(name, 0.0) for name in names] for *_, t in items])
    taken = np.array([seconds for _, seconds, _, _ in items])
    weight = np.array([one for _, _, one, _ in items])
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
