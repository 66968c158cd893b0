"""Train a cost model of GPUs, and say how good it is.

    python -m benchmarks.gpu.train measure times.jsonl    # on a GPU
    python -m benchmarks.gpu.train fit times.jsonl

``measure`` times random schedules on this machine's GPU. ``fit`` trains on all times of
a file, says how good the model is for forests that it was not trained on, and writes
it. The file has a line for each forest, GPU and schedule::

    {"model": ..., "arch": ..., "processors": ..., "schedule": ..., "seconds": {...}}

with the seconds of a call by its rows. The model that is shipped was trained on those
of an H100: ``fit benchmarks/times/h100.jsonl.gz``.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Any

import numpy as np
import typer
from cost_model_family import get
from harness import add_line, lines_of
from numpy.typing import NDArray

from skforge import load_forest
from skforge.compiler.cost.schedule_facts import facts_of
from skforge.compiler.cost.shape import ForestShape, Setting
from skforge.compiler.target import Target
from skforge.gpu.cost import GpuWork
from skforge.gpu.cost_model import SHIPPED_GPU, CostModel, features
from skforge.gpu.runtime.cupy import current
from skforge.schedule.schedule import Schedule
from skforge.tuning import ScheduleSpace, Tuner
from skforge.tuning.search.strategies import Random

app = typer.Typer(add_completion=False)

PARAMETERS: dict[str, Any] = {
    "objective": "regression",
    "num_leaves": 24,
    "learning_rate": 0.06,
    "min_data_in_leaf": 30,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
    "verbose": -1,
    "num_threads": 1,
    "seed": 0,
    "deterministic": True,
}

ROUNDS = 200
BATCHES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)

#: The forests: random ones of SilvanForge's generator, trained ones, public ones.
FORESTS = (
    *("synthetic-100x64-8", "synthetic-1000x8-4", "synthetic-50x1024-6"),
    *("xgboost-500x6x20", "xgboost-300x4x60", "xgboost-60x5x2400", "xgboost-20x3x10"),
    *("lightgbm-100x31x28", "lightgbm-500x15x20", "RandomForestClassifier-100x10x30"),
    *("ExtraTreesRegressor-100x8x30", "airline.json", "year_prediction_msd.json"),
    "lightgbm/NYC_taxi.txt",
)


@dataclass(frozen=True, slots=True)
class Group:
    """The schedules of one model, GPU and batch size that were timed."""

    model: str
    target: str
    n_rows: int
    work: GpuWork
    log_row: NDArray[np.float64]  # of nanoseconds

    @property
    def weight(self) -> NDArray[np.float64]:
        """Schedules near the best are to be told apart, the rest to be avoided."""
        return np.asarray(np.exp(2.0 * (self.log_row.min() - self.log_row)))

    def slowdown(self, predicted: NDArray[np.float64]) -> float:
        """Return the time of the predicted best, by that of the best."""
        return float(np.exp(self.log_row[predicted.argmin()] - self.log_row.min()))


@app.command()
def measure(
    file: Path,
    names: Annotated[list[str] | None, typer.Argument()] = None,
    n: Annotated[int, typer.Option(help="Schedules of a forest and batch size.")] = 60,
    seconds: Annotated[float, typer.Option(help="For these together.")] = 20.0,
    kind: Annotated[str, typer.Option(help="cuda or hip.")] = "cuda",
) -> None:
    """Append times measured on this machine's GPU."""
    target = current("hip" if kind == "hip" else "cuda").target()
    tuner = Tuner(Random(n), ScheduleSpace.gpu_full(), records=None)
    measured(file, names or FORESTS, target, tuner, seconds)


def measured(
    file: Path, names: Iterable[str], target: Target, tuner: Tuner, seconds: float
) -> None:
    for name in names:
        sample = get(name)
        for rows in BATCHES:
            result = tuner.tune(
                sample.forest,
                sample.rows,
                target=target,
                ranges={(rows, rows): rows},
                budget=seconds,
                random_state=zlib.crc32(name.encode()) + rows,
                verbose=0,
            )
            timed = [t for t in result.trials if t.samples and t.schedule is not None]
            for trial in timed:
                line = {
                    "model": name,
                    "arch": target.cpu,
                    "processors": target.n_cores,
                    "schedule": json.loads(trial.schedule.to_json()),
                    "seconds": {str(rows): float(f"{trial.seconds:.5g}")},
                }
                add_line(file, line)
            print(f"{name}, {rows:,} rows: {len(timed)} times", flush=True)


@app.command()
def fit(
    file: Annotated[Path, typer.Argument(exists=True)],
    output: Path = SHIPPED_GPU,
    validate: bool = True,
) -> None:
    """Train on all times; validate by leaving one forest out."""
    found = list(groups(file))
    if validate:
        report(found)
    train(found).save(output)
    print(f"{output}: {output.stat().st_size / 1e3:.0f} kB")


def groups(file: Path) -> Iterator[Group]:
    found: dict[tuple[str, str, int], dict[str, dict[str, float]]] = {}
    for one in lines_of(file):
        times = found.setdefault((one["model"], one["arch"], one["processors"]), {})
        times.setdefault(json.dumps(one["schedule"]), {}).update(one["seconds"])
    for (name, arch, processors), times in found.items():
        make = Target.hip if arch.startswith("gfx") else Target.cuda
        target = replace(make(arch), n_cores=processors)
        forest = ForestShape.of(get(name).forest)
        facts = facts_of(map(Schedule.from_json, times))
        for n in sorted({int(n) for seconds in times.values() for n in seconds}):
            seconds = np.array([one.get(str(n), np.nan) for one in times.values()])
            known = ~np.isnan(seconds)
            work = GpuWork(Setting(forest, target, n), facts[known])
            yield Group(name, target.cpu, n, work, np.log(seconds[known] / n * 1e9))


def train(kept: Sequence[Group]) -> CostModel:
    """Return a model of the error of the estimate."""
    import lightgbm

    found = [features(g.work) for g in kept]
    names = list(found[0])
    X = np.concatenate([np.column_stack([*one.values()]) for one in found])
    y = np.concatenate([g.log_row - np.log(g.work.estimate) for g in kept])
    weight = np.concatenate([g.weight for g in kept])
    data = lightgbm.Dataset(X, y, weight=weight, feature_name=names)
    forest = load_forest(lightgbm.train(PARAMETERS, data, ROUNDS))
    facts = {"margin": 1.0, **{g.target: 1.0 for g in kept}}
    return CostModel(forest, facts, names)


def report(found: Sequence[Group]) -> None:
    slow: dict[str, list[tuple[float, float]]] = {}
    for name in dict.fromkeys(g.model for g in found):
        trained = train([g for g in found if g.model != name])
        for g in (g for g in found if g.model == name):
            own = g.slowdown(trained.log_row(g.work))
            slow.setdefault(g.target, []).append((own, g.slowdown(g.work.estimate)))
    print("first choice by the best timed: geomean and worst; of the estimate alone")
    for arch, ratios in slow.items():
        cells = (
            f"{geometric_mean(r):.3f} {max(r):.2f}" for r in zip(*ratios, strict=True)
        )
        print(f"  {arch}: {'; '.join(cells)} ({len(ratios)} groups)")


if __name__ == "__main__":
    app()
