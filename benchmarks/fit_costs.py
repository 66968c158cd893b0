"""Fit the coefficients of the cost estimate to times of schedules.

    python benchmarks/default_choices.py times.jsonl
    python benchmarks/fit_costs.py times.jsonl benchmarks/times/estimated.jsonl.gz

Each kind of schedule has terms: counts of a forest times nanoseconds of the machine
(``skforge/compiler/cost/estimate.py``). A coefficient says how many of the machine's
units one count takes. They are moved from where they are to where three things have
the smallest sum: what the choice by estimates loses, which counts most; errors of
estimates, less a part that all of a forest and size share, because a shared machine is
faster at one time than at another; and how far coefficients move, because few forests
say much about some of them. Least squares of the errors alone chose schedules that
are 1.065 and 1.057 times as slow as the best of the fitted forests (Zen 4, AVX-512 and
AVX2), and this sum 1.04 and 1.03; of forests that were held out, 1.055 and 1.04.

``times/`` has the times of Zen 4 (AVX-512 and AVX2). For Emerald Rapids, whose times
are lost, and for CPUs that nobody measured, it has estimates that had been fitted to
Emerald Rapids, so that these CPUs keep their schedules where nothing says otherwise.
If one kernel is faster than it was, its forests are timed again, and ``--only`` moves
its terms: other forests and CPUs keep their schedules.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from cost_model_data import targets
from cost_model_family import DRAWN, UNSEEN, get
from harness import lines_of
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from skforge.compiler.cost.coefficients import COEFFICIENTS
from skforge.compiler.cost.estimate import CostEstimate, plan_of
from skforge.compiler.cost.profile import MachineProfile
from skforge.compiler.defaults.cpu import candidates, few_rows
from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.target import Target
from skforge.schedule.schedule import Schedule

OUTPUT = Path(__file__).parents[1] / "skforge/compiler/cost/coefficients.json"

#: CPUs of files of estimates; of the first, caches are a virtual machine's part.
ESTIMATED: dict[str, Callable[[Target], Target]] = {
    "emeraldrapids": lambda host: replace(
        host,
        cpu="emeraldrapids",
        l1_bytes=48 << 10,
        l2_bytes=2 << 20,
        l3_bytes=64 << 20,
    ),
    "x86-64-v4": lambda _: Target.x86_64("v4"),
    "neoverse-n1": lambda _: replace(Target.aarch64(), cpu="neoverse-n1"),
}

#: How much squared errors and distances count beside losses, and estimates' cells.
ERRORS, DISTANCE, KEPT = 0.05, 0.02, 0.3

#: A schedule estimated at ``exp(-x)`` times another's time is chosen ``exp(x / T)``
#: times as often; the second fit begins where the first ends.
TEMPERATURES = (0.3, 0.05)

#: The part of a cell's common error that is the machine's.
MACHINE_SHARE = 0.5

#: Where terms without a coefficient begin, and how far logarithms may move.
FIRST, FARTHEST = 0.3, 3.0

#: Folds of forests: each is held out once.
FOLDS = 4

ABOUT = (
    "How many units of the machine's work each count of a forest takes, by kind of "
    "schedule and term. Written by benchmarks/fit_costs.py from {count:,} times of "
    "schedules of {models} forests on {here}, AVX2 among them, beside {estimated:,} "
    "earlier estimates, not times, for {others}."
)

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Times:
    """Schedules that were timed; those of a cell (forest, CPU, rows) together."""

    cells: list[tuple[str, str, int]]
    terms: list[tuple[str, str]]  # kind and name: a column of ``counts``
    counts: csr_matrix
    ns: Vector
    cell: NDArray[np.int64]
    offered: NDArray[np.bool_]  # whether a default may be this schedule
    known: Vector  # coefficients of before, 0 where there were none

    @property
    def loss(self) -> Vector:
        best = np.full(len(self.cells), np.inf)
        np.minimum.at(best, self.cell, self.ns)
        return np.log(self.ns / best[self.cell])

    def of_cells(self, values: Vector) -> Vector:
        return np.bincount(self.cell, values, len(self.cells))


def main(
    files: Annotated[
        list[Path], typer.Argument(help="Times of default_choices.py.", exists=True)
    ],
    folds: Annotated[bool, typer.Option(help="Also hold forests out.")] = True,
    only: Annotated[
        list[str] | None, typer.Option(help="Terms that move, if not all do.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Where to write them.")] = OUTPUT,
) -> None:
    """Fit, print what choices lose, and write the coefficients."""
    times = read(files)
    labels = np.array([label for _, label, _ in times.cells])
    models = np.array([model for model, *_ in times.cells])
    weight = np.where(np.isin(labels, [*ESTIMATED]), KEPT, 1.0)
    begin = np.log(np.where(times.known > 0, times.known, FIRST))
    if folds:
        names = np.random.default_rng(0).permutation(np.unique(models))
        for fold in range(FOLDS):
            out = np.isin(models, names[fold::FOLDS])
            found = fit(times, begin, np.where(out, 0.0, weight), only)
            show(f"held out {fold + 1}", times, labels, found, begin, out)
    found = fit(times, begin, weight, only)
    show("all", times, labels, found, begin, np.ones(len(labels), np.bool_))
    made: dict[str, dict[str, float]] = {}
    for (kind, name), value in zip(times.terms, np.exp(found), strict=True):
        made.setdefault(kind, {})[name] = float(f"{value:.4g}")
    error = np.abs(np.log(times.counts @ np.exp(found) / times.ns))
    kinds = np.array([kind for kind, _ in times.terms])[times.counts.indices]
    of_row = kinds[times.counts.indptr[:-1]]
    within = ", ".join(
        f"{kind} {np.exp(np.quantile(error[of_row == kind], 0.9)):.2f}" for kind in made
    )
    about = ABOUT.format(
        count=int(np.isin(labels, ["host", "v3"])[times.cell].sum()),
        models=len(np.unique(models)),
        here=Target.host().cpu,
        estimated=int(np.isin(labels, [*ESTIMATED])[times.cell].sum()),
        others=", ".join(label for label in ESTIMATED if label in labels),
    )
    document = {
        "about": [about, f"Nine of ten estimates lie within a factor: {within}."],
        "coefficients": made,
    }
    output.write_text(f"{json.dumps(document, indent=1)}\n", encoding="utf-8")


def machines() -> dict[str, tuple[Target, MachineProfile]]:
    """Return CPUs with their speed; ``v3`` has this machine's without AVX-512."""
    host, v3 = targets().values()
    narrow = MachineProfile.of(replace(host, vector_bits=v3.vector_bits))
    made = {"host": (host, MachineProfile.of(host)), "v3": (v3, narrow)}
    for cpu, of in ESTIMATED.items():
        target = of(host)
        made[cpu] = target, MachineProfile.of(target)
    made["x86-64-v3"] = v3, MachineProfile.of(v3)  # as one that nobody knows
    return made


def read(files: list[Path]) -> Times:
    """Return the terms of each schedule that was timed."""
    timed: dict[tuple[str, str, int], dict[str, float]] = {}
    for record in (one for file in files for one in lines_of(file)):
        key = record["model"], record["target"], record["rows"]
        if key[0] not in UNSEEN | DRAWN:  # they judge
            timed.setdefault(key, {})[record["schedule"]] = record["seconds"]
    for (model, cpu, n), times in [*timed.items()]:
        if cpu == "v3":
            timed[model, "x86-64-v3", n] = times
    names: dict[tuple[str, str], int] = {}
    ns, cell, offered = [], [], []
    rows, columns, values = [], [], []
    estimates: dict[tuple[str, str], tuple[CostEstimate, set[Schedule]]] = {}
    cpus = machines()
    for number, ((model, cpu, n), times) in enumerate(timed.items()):
        if (model, cpu) not in estimates:
            estimate = CostEstimate(get(model).forest, *cpus[cpu])
            counts, target = estimate.counts, estimate.target
            own = {*walking_schedules(counts, target).values(), few_rows(counts)}
            own |= set(candidates(counts, target))
            estimates[model, cpu] = estimate, own
        estimate, own = estimates[model, cpu]
        for text, seconds in times.items():
            schedule = Schedule.from_json(text)
            if (plan := plan_of(schedule)) is None:
                continue
            for name, count in estimate.terms(plan, n).items():
                rows.append(len(ns))
                columns.append(names.setdefault((plan.kind, name), len(names)))
                values.append(float(count))
            ns.append(seconds * 1e9)
            cell.append(number)
            offered.append(schedule in own)
    terms = list(names)
    return Times(
        list(timed),
        terms,
        csr_matrix((values, (rows, columns)), shape=(len(ns), len(terms))),
        np.array(ns),
        np.array(cell),
        np.array(offered),
        np.array([COEFFICIENTS[kind].get(name, 0.0) for kind, name in terms]),
    )


def fit(
    times: Times, begin: Vector, weight: Vector, only: list[str] | None = None
) -> Vector:
    """Return the logarithms of coefficients with the smallest sum."""
    found, loss, taken = begin, times.loss, np.log(times.ns)
    of_cell = weight[times.cell]
    near = of_cell * np.exp(-0.5 * loss)  # schedules near the best count most
    near_of_cell = np.maximum(times.of_cells(near), 1e-12)

    def total(x: Vector, temperature: float) -> tuple[float, Vector]:
        made = np.maximum(times.counts @ np.exp(x), 1e-6)
        log = np.log(made)
        rank = np.where(times.offered, -log / temperature, -np.inf)
        top = np.full(len(weight), -np.inf)
        np.maximum.at(top, times.cell, rank)
        share = np.exp(rank - top[times.cell])
        share /= times.of_cells(share)[times.cell]
        lost = times.of_cells(share * loss)
        slope = share * (lost[times.cell] - loss) * of_cell
        slope /= temperature * weight.sum()

        error = log - taken
        common = times.of_cells(near * error) / near_of_cell
        own = error - MACHINE_SHARE * common[times.cell]
        pull = 2 * ERRORS / near.sum() * near * own
        shared = times.of_cells(pull) / near_of_cell
        slope += pull - MACHINE_SHARE * near * shared[times.cell]

        moved = x - begin
        value = (
            (lost * weight).sum() / weight.sum()
            + ERRORS * (near * own * own).sum() / near.sum()
            + DISTANCE * (moved * moved).mean()
        )
        gradient = (times.counts.T @ (slope / made)) * np.exp(x)
        return value, gradient + 2 * DISTANCE * moved / len(x)

    far = [FARTHEST * (not only or name in only) for _, name in times.terms]
    bounds = list(zip(begin - far, begin + far, strict=True))
    for temperature in TEMPERATURES:
        found = minimize(
            total, found, (temperature,), jac=True, method="L-BFGS-B", bounds=bounds,
            options={"maxiter": 300},
        ).x  # fmt: skip
    return found


def show(
    title: str, times: Times, labels: Vector, found: Vector, begin: Vector, of: Vector
) -> None:
    """Print how much slower than the best what is chosen is, before and after."""
    lost = []
    for x in (begin, found):
        made = np.where(times.offered, times.counts @ np.exp(x), np.inf)
        order = np.lexsort((made, times.cell))
        first = np.searchsorted(times.cell[order], np.arange(len(times.cells)))
        lost.append(times.loss[order[first]])
    words = []
    for label in np.unique(labels):
        chosen = of & (labels == label)
        before, after = (float(np.exp(one[chosen].mean())) for one in lost)
        words.append(f"{label} {before:.3f} -> {after:.3f}")
    print(f"{title}: {', '.join(words)}", flush=True)


if __name__ == "__main__":
    typer.run(main)
