"""Measure the time to read a model and to compile it, also where trees are many."""

from __future__ import annotations

import os
import sys
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
from skforge.compiler.forest.forest import Forest


@dataclass(frozen=True, slots=True)
class CompileTime:
    """Medians of three: reading apart from compiling every default schedule.

    ``first_seconds`` is from the model to the answer for one row; ``added_bytes`` is
    what the first of the three added to the memory of the process.
    """

    model: str
    trees: int
    nodes: int
    read_seconds: float
    first_seconds: float
    compile_seconds: float
    kernels: int
    added_bytes: int


def main(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Parts of names of models; default: the usual."),
    ] = None,
) -> None:
    """Print times as Markdown; without names, of forests with many nodes, too."""
    from cases import cases

    os.environ["SKFORGE_CACHE"] = "off"  # what a first time takes
    times = [
        measure_compile_time(case.name, case.source) for case in cases(models or [])
    ]
    if not models:
        times += [*many_small_trees(), many_unbalanced_trees(), full_trees()]
    print(
        "| compile time | trees | nodes | read the model | read, compile, one row "
        "| compile all kernels | kernels | memory |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for t in times:
        print(
            f"| {t.model} | {t.trees:,} | {t.nodes:,} | {duration(t.read_seconds)} "
            f"| {duration(t.first_seconds)} | {duration(t.compile_seconds)} "
            f"| {t.kernels} | {t.added_bytes / 1e6:.0f} MB |"
        )


def measure_compile_time(name: str, source: Any) -> CompileTime:
    """Read and compile a model three times; LLVM itself is loaded before.

    A forest is taken as it is.
    """
    target = Target.host()
    read, first, compiled, added = [], [], [], []
    for _ in range(3):
        before, start = _resident(), perf_counter()
        forest = source if isinstance(source, Forest) else load_forest(source)
        read.append(perf_counter() - start)
        row = np.zeros((1, forest.n_features), forest.input_dtype)
        compile_forest(forest, target=target).predict_raw(row)
        first.append(perf_counter() - start)
        start = perf_counter()
        module = compile_forest(forest, target=target)
        module.compile_all()
        compiled.append(perf_counter() - start)
        added.append(_resident() - before)
    return CompileTime(
        name,
        forest.n_trees,
        forest.n_nodes,
        median(read),
        median(first),
        median(compiled),
        len(set(module.schedules.values())),
        added[0],
    )


def _resident() -> int:
    """Return the bytes of the process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


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


def many_unbalanced_trees(n_trees: int = 8_000, leaves: int = 58) -> CompileTime:
    """Return the times of many trees that are encoded as lists of operations.

    They are 200 trees of LightGBM again and again, as only each tree's shape matters.
    """
    import lightgbm

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.subset import subset

    random = np.random.default_rng(0)
    X = random.standard_normal((4_000, 28))
    y = X[:, 0] * X[:, 1] + np.sin(3 * X[:, 2]) + random.standard_normal(4_000)
    parameters = {"num_leaves": leaves, "min_data_in_leaf": 5, "verbose": -1}
    trained = lightgbm.train(parameters, lightgbm.Dataset(X, y), 200)
    forest = subset(load_forest(trained), np.arange(n_trees) % 200)
    return measure_compile_time(f"{n_trees:,} trees of {leaves} leaves", forest)


def full_trees(n_trees: int = 100, n_rows: int = 7_500) -> CompileTime:
    """Return the times of scikit-learn's trees of full depth: 1.5 million nodes."""
    from sklearn.ensemble import ExtraTreesRegressor

    random = np.random.default_rng(0)
    X = random.standard_normal((n_rows, 20)).astype(np.float32)
    y = X[:, 0] * X[:, 1] + random.standard_normal(n_rows)
    model = ExtraTreesRegressor(n_trees, random_state=0).fit(X, y)
    return measure_compile_time(f"ExtraTrees of {n_rows:,} rows", model)


if __name__ == "__main__":
    typer.run(main)
