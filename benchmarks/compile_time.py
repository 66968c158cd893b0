"""Measure the time to read a model and to compile it, also where trees are many."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer

from skforge import Target, compile_forest, load_forest
from skforge.cli.report import duration


@dataclass(frozen=True, slots=True)
class CompileTime:
    """Medians of three: reading apart from compiling every default schedule."""

    model: str
    trees: int
    read_seconds: float
    compile_seconds: float
    kernels: int


def main(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Parts of names of models; default: the usual."),
    ] = None,
) -> None:
    """Print times as Markdown; without names, of 20,000 small trees, too."""
    from cases import cases

    os.environ["SKFORGE_CACHE"] = "off"  # what a first time takes
    times = [
        measure_compile_time(case.name, case.source) for case in cases(models or [])
    ]
    if not models:
        times += many_small_trees()
    print("| compile time | trees | read the model | compile all kernels | kernels |")
    print("|---|--:|--:|--:|--:|")
    for t in times:
        print(
            f"| {t.model} | {t.trees:,} | {duration(t.read_seconds)} "
            f"| {duration(t.compile_seconds)} | {t.kernels} |"
        )


def measure_compile_time(name: str, source: Any) -> CompileTime:
    """Read and compile a model three times; LLVM itself is loaded before."""
    target = Target.host()
    read, compiled = [], []
    for _ in range(3):
        start = perf_counter()
        forest = load_forest(source)
        read.append(perf_counter() - start)
        start = perf_counter()
        module = compile_forest(forest, target=target)
        module.compile_all()
        compiled.append(perf_counter() - start)
    kernels = len(set(module.schedules.values()))
    return CompileTime(name, forest.n_trees, median(read), median(compiled), kernels)


def many_small_trees(n_trees: int = 20_000, depth: int = 3) -> list[CompileTime]:
    """Return the times of a boosted model of many small trees, read in three ways."""
    import xgboost

    random = np.random.default_rng(0)
    X = random.standard_normal((256, 20)).astype(np.float32)
    y = X[:, 0] * X[:, 1] + random.standard_normal(256)
    booster = xgboost.train(
        {"max_depth": depth, "eta": 0.01, "nthread": 1, "tree_method": "exact"},
        xgboost.DMatrix(X, y),
        n_trees,
    )
    name = f"{n_trees:,} trees of depth {depth}"
    times = [measure_compile_time(f"{name}, Booster", booster)]
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("ubj", "json"):
            file = Path(folder) / f"model.{suffix}"
            booster.save_model(file)
            times.append(measure_compile_time(f"{name}, .{suffix} file", file))
    return times


if __name__ == "__main__":
    typer.run(main)
