"""Train a cost model of CPUs, and say how good it is on unseen models.

    python benchmarks/train_cost_model.py measure times.jsonl     # 15 to 25 minutes
    python benchmarks/train_cost_model.py fit times.jsonl my_cpu.npz

``measure`` times schedules of the family; ``fit`` trains, validates by leaving out one
model at a time, prints what that gives, and writes the model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from cost_model_data import measure as measure_one
from cost_model_data import records, targets
from cost_model_family import MAKERS, get
from harness import of_size
from numpy.typing import NDArray

from skforge import load_forest
from skforge.compiler.cost.counts import shape_on
from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule.ranges import BatchRange
from skforge.compiler.schedule.schedule import Schedule
from skforge.tuning.cost.cost_model import CostModel
from skforge.tuning.cost.features import NAMES, Featured, Setting, featurize

app = typer.Typer(add_completion=False)

PARAMETERS: dict[str, Any] = {
    "objective": "regression",
    "num_leaves": 24,
    "learning_rate": 0.06,
    "min_data_in_leaf": 12,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
    "verbose": -1,
    "num_threads": 1,
    "seed": 0,
    "deterministic": True,
}
ROUNDS = 300

#: Gains that have to be predicted before the default is left, which are compared.
MARGINS = (1.0, 1.1, 1.2, 1.3, 1.5, 2.0)


@dataclass(frozen=True, slots=True)
class Group:
    """The schedules of one model, target and batch size that were timed."""

    model: str
    target: str
    n_rows: int
    featured: Featured
    log_row: NDArray[np.float64]  # of nanoseconds
    default: int | None = None  # where today's was timed
    sharpness: float = 1.0

    @property
    def weight(self) -> NDArray[np.float64]:
        """Schedules near the best are to be told apart, the rest to be avoided."""
        off = self.log_row.min() - self.log_row
        return np.asarray(np.exp(self.sharpness * off))

    def slowdown(self, predicted: NDArray[np.float64]) -> float:
        """Return the time of the predicted best, by that of the best."""
        return float(np.exp(self.log_row[predicted.argmin()] - self.log_row.min()))


def boosted(
    groups: Sequence[Group], names: Sequence[str], rounds: int, **parameters: Any
) -> Forest:
    """Train on the error of the estimate."""
    import lightgbm

    X = np.concatenate([g.featured.matrix for g in groups])
    y = np.concatenate([g.log_row - g.featured.log_estimate for g in groups])
    weight = np.concatenate([g.weight for g in groups])
    data = lightgbm.Dataset(X, y, weight=weight, feature_name=list(names))
    return load_forest(lightgbm.train(PARAMETERS | parameters, data, rounds))


def left_out(
    groups: Sequence[Group], train: Callable[[list[Group]], CostModel]
) -> list[tuple[Group, NDArray[np.float64]]]:
    """Return each group with what a model predicts that has not seen its forest."""
    rows = []
    for name in dict.fromkeys(g.model for g in groups):
        trained = train([g for g in groups if g.model != name])
        own = (g for g in groups if g.model == name)
        rows += [(g, trained.log_row(g.featured)) for g in own]
    return rows


@app.command()
def measure(
    file: Path, models: Annotated[list[str] | None, typer.Argument()] = None
) -> None:
    """Append times to a file; models that are there for a target are left out."""
    done = {(r["model"], r["target"]) for r in records(file)}
    machines = targets()
    for place, name in enumerate(np.random.default_rng(0).permutation(list(MAKERS))):
        if models and not any(part in name for part in models):
            continue
        for target in ("host", "v3") if place % 2 == 0 else ("host",):
            if (name, target) not in done:
                measure_one(get(str(name)), target, machines[target], file)


@app.command()
def fit(file: Path, output: Path, validate: bool = True) -> None:
    """Train on all times, and validate by leaving one model out."""
    groups = list(_groups(file))
    margin = 1.1
    if validate:
        rows = left_out(groups, _train)
        margin = _report([(g, p) for g, p in rows if g.default is not None])
    count = sum(len(g.log_row) for g in groups)
    model = _train(groups, margin=margin, schedules=float(count))
    model.save(output)
    print(f"{output}: {output.stat().st_size / 1e3:.0f} kB, {model.forest}")


def without(file: Path, models: Collection[str]) -> Forest:
    """Return a cost model's forest that was trained on all models but some."""
    kept = [g for g in _groups(file) if g.model not in models]
    return boosted(kept, NAMES, ROUNDS)


def _groups(file: Path) -> Iterator[Group]:
    machines = targets()
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for record in records(file):
        key = record["model"], record["target"], record["rows"]
        found.setdefault(key, []).append(record)

    @cache
    def defaults(model: str, target: str) -> dict[BatchRange, Schedule]:
        return default_schedules(get(model).forest, machines[target])

    @cache
    def facts(model: str, target: str) -> ForestShape:
        return shape_on(get(model).forest, machines[target])

    for (model, target, n_rows), timed in found.items():
        schedules = tuple(Schedule.from_json(r["schedule"]) for r in timed)
        own = of_size(defaults(model, target), n_rows)
        setting = Setting(facts(model, target), machines[target], n_rows)
        seconds = np.array([r["seconds"] for r in timed])
        default = schedules.index(own) if own in schedules else None
        log_row = np.log(seconds / n_rows * 1e9)
        featured = featurize(setting, schedules)
        yield Group(model, target, n_rows, featured, log_row, default)


def _train(groups: Sequence[Group], **facts: float) -> CostModel:
    return CostModel(boosted(groups, NAMES, ROUNDS), facts)


def _report(rows: list[tuple[Group, NDArray[np.float64]]]) -> float:
    """Print what one-shot would have given; return the best margin."""
    from scipy.stats import spearmanr

    rank = [float(spearmanr(g.log_row, p)[0]) for g, p in rows]
    estimate = [
        float(spearmanr(g.log_row, g.featured.log_estimate)[0]) for g, _ in rows
    ]
    error = np.concatenate([p - g.log_row for g, p in rows])
    print(f"{len(rows)} groups, {sum(len(p) for _, p in rows):,} schedules timed")
    means = np.nanmean(rank), np.nanmean(estimate)  # none of a single schedule
    print("rank correlation: mean {:.3f}, estimate alone {:.3f}".format(*means))
    off = np.exp(np.median(np.abs(error)))
    print(f"error of a prediction: {off:.2f} times, median")
    print("\nmargin  one-shot to best  default to best  default to one-shot  (v4 | v3)")
    scores = {}
    for margin in MARGINS:
        cells = []
        for target in ("host", "v3"):
            part = [(g, p) for g, p in rows if g.target == target]
            cells.append(_one_shot(part, margin) if part else (1.0, 1.0, 1.0))
        scores[margin] = _one_shot(rows, margin)[2]
        text = " | ".join("  ".join(f"{x:5.3f}" for x in cell) for cell in cells)
        print(f"{margin:6.2f}  {text}")
    best = max(scores, key=lambda m: scores[m])
    print(f"\nmargin {best}: default to one-shot {scores[best]:.3f} over all groups")
    _by(rows, best, "batch", lambda g: 2 ** int(np.log2(g.n_rows) // 2 * 2))
    _by(rows, best, "model", lambda g: g.model)
    return float(best)


def _one_shot(rows: list[Any], margin: float) -> tuple[float, float, float]:
    """Return one-shot to best, default to best, default to one-shot; geomeans."""
    took, base, best = [], [], []
    for group, predicted in rows:
        first = int(np.argmin(predicted))
        if predicted[first] + np.log(margin) > predicted[group.default]:
            first = group.default
        took.append(group.log_row[first])
        base.append(group.log_row[group.default])
        best.append(group.log_row.min())
    mean = lambda a, b: float(np.exp(np.mean(np.subtract(a, b))))  # noqa: E731
    return mean(took, best), mean(base, best), mean(base, took)


def _by(rows: list[Any], margin: float, title: str, key: Any) -> None:
    parts: dict[Any, list[Any]] = {}
    for row in rows:
        parts.setdefault(key(row[0]), []).append(row)
    print(f"\n{title}: one-shot to best, default to best, default to one-shot")
    for name in sorted(parts, key=str if title == "model" else int):
        cells = "  ".join(f"{x:5.2f}" for x in _one_shot(parts[name], margin))
        print(f"  {name!s:36} {cells}  ({len(parts[name])})")


if __name__ == "__main__":
    app()
