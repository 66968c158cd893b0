"""Predictions inside Dask, Spark and Ray: skforge against the engine's usual way.

    pip install -e '.[bench,distributed]'
    cd benchmarks && python engines.py --output results --sizing results/sizing.md

In each engine a cluster of two processes is started here, rows are put into its
memory, and systems take turns in rounds; benchmarks/README.md says which. Times are
those of the wall clock and, since machines are shared, of the CPU: the seconds of all
processes of the cluster together. (Not called distributed.py: scripts are found before
packages, and one of Dask's packages has this name.)
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import harness
import numpy as np
import psutil
import typer
from engines_report import page as page_of
from engines_report import sizing
from machine import machine

from skforge import CompiledForest
from skforge.distributed import pack

FEATURES = 20
Run = Callable[[], float]


def models() -> dict[str, tuple[Any, CompiledForest]]:
    import lightgbm
    import xgboost
    from sklearn.datasets import make_classification

    X, y = make_classification(8_000, FEATURES, n_informative=12, random_state=0)
    X = X.astype(np.float32)
    xgb = xgboost.XGBClassifier(n_estimators=100, max_depth=6, n_jobs=1).fit(X, y)
    lgb = lightgbm.LGBMClassifier(n_estimators=100, verbose=-1, n_jobs=1).fit(X, y)
    return {
        "XGBoost": (xgb.get_booster(), CompiledForest(xgb, tuning="off").fit(X[:500])),
        "LightGBM": (lgb.booster_, CompiledForest(lgb, tuning="off").fit(X[:500])),
    }


def own_margin(booster: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return the library's own raw scores, on one thread, as a function of rows."""
    if type(booster).__module__.startswith("xgboost"):

        def margin(rows: np.ndarray) -> np.ndarray:
            booster.set_param({"nthread": 1})
            return booster.inplace_predict(rows, predict_type="margin")

        return margin
    return lambda rows: booster.predict(rows, raw_score=True, num_threads=1)


def rows_of(n_rows: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n_rows, FEATURES)).astype(np.float32)


# ------------------------------------------------------------ engines


@contextlib.contextmanager
def in_dask(n_rows: int, booster: Any, fast: Any) -> Iterator[dict[str, Run]]:
    import dask.array as da
    from distributed import Client, LocalCluster

    from skforge.distributed.dask import predict

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=None,
            local_directory=folder,
        ) as cluster,
        Client(cluster) as client,
    ):
        X = da.from_array(rows_of(n_rows), chunks=(n_rows // 16, FEATURES))
        X = client.persist(X)
        own, artifact = own_margin(booster), pack(fast)

        def peer() -> Any:
            return X.map_blocks(
                lambda b: np.asarray(own(b), np.float64),
                drop_axis=1,
                meta=np.empty(0),  # else it is called with no rows and no columns
            )

        answers = {
            "skforge": lambda: predict(artifact, X, method="predict_raw"),
            "own": peer,
            **_of_xgboost_dask(client, booster, X),
        }
        wanted = own(rows_of(n_rows)[:5000])
        for answer in answers.values():
            np.testing.assert_array_equal(answer()[:5000].compute(), wanted)
        answers["nothing"] = lambda: X.map_blocks(
            lambda b: b[:, 0], drop_axis=1, dtype="f4"
        )
        yield {name: _summed(answer) for name, answer in answers.items()}


def _summed(answer: Callable[[], Any]) -> Run:
    return lambda: answer().sum(dtype="f8").compute()


def _of_xgboost_dask(client: Any, booster: Any, X: Any) -> dict[str, Any]:
    """Return what XGBoost itself has for Dask; nothing for other libraries."""
    if not type(booster).__module__.startswith("xgboost"):
        return {}
    from xgboost import dask as xgboost_dask

    # sent once, as its documentation has it for calls that come again
    sent = client.scatter(booster, broadcast=True)
    return {
        "xgboost.dask.predict": lambda: xgboost_dask.predict(
            client, sent, X, output_margin=True
        ),
        "xgboost.dask.inplace_predict": lambda: xgboost_dask.inplace_predict(
            client, sent, X, predict_type="margin"
        ),
    }


@contextlib.contextmanager
def in_spark(n_rows: int, booster: Any, fast: Any) -> Iterator[dict[str, Run]]:
    import pandas as pd
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    from skforge.distributed.spark import predict_udf

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    names = [f"x{i}" for i in range(FEATURES)]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SPARK_WORKER_DIR"] = folder
        spark = (
            SparkSession.builder.master("local-cluster[2,1,1024]")
            .config("spark.ui.enabled", "false")
            .config("spark.local.dir", folder)
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.log.level", "OFF")
            .getOrCreate()
        )
        pd.DataFrame(rows_of(n_rows), columns=names).to_parquet(
            f"{folder}/rows", compression=None
        )
        frame = spark.read.parquet(f"file://{folder}/rows").repartition(8).cache()
        frame.count()
        own = own_margin(booster)

        def udf_of(answer: Callable[[np.ndarray], np.ndarray]) -> Any:
            def run(batches):  # type: ignore[no-untyped-def]
                for batch in batches:
                    yield pd.Series(np.asarray(answer(batch), np.float64))

            run.__annotations__ = {
                "batches": Iterator[pd.DataFrame],
                "return": Iterator[pd.Series],
            }
            return F.pandas_udf(run, returnType="double")

        whole = F.struct(*names)
        ours = predict_udf(pack(fast), method="predict_raw")(*names).cast("double")
        peer = udf_of(lambda batch: own(batch.to_numpy(np.float32)))(whole)
        nothing = udf_of(lambda batch: batch.iloc[:, 0])(whole)
        few = frame.limit(2000).select(ours.alias("a"), peer.alias("b")).toPandas()
        np.testing.assert_array_equal(few["a"], few["b"])

        def total(column: Any) -> Run:
            return lambda: frame.select(F.sum(column)).first()[0]

        yield {"skforge": total(ours), "own": total(peer), "nothing": total(nothing)}
        spark.stop()


@contextlib.contextmanager
def in_ray(n_rows: int, booster: Any, fast: Any) -> Iterator[dict[str, Run]]:
    import ray

    from skforge.distributed.ray import predict

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=600 << 20,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    data = ray.data.from_numpy(np.array_split(rows_of(n_rows), 8)).materialize()
    artifact, own = pack(fast), own_margin(booster)

    class Own:
        def __call__(self, batch):  # type: ignore[no-untyped-def]
            return {"raw": np.asarray(own(batch["data"]), np.float64)}

    class Nothing:
        def __call__(self, batch):  # type: ignore[no-untyped-def]
            return {"raw": batch["data"][:, 0]}

    pool = {"compute": ray.data.ActorPoolStrategy(size=2), "batch_size": 16_384}

    def ours(rows: Any) -> Any:
        return predict(artifact, rows, method="predict_raw", keep=False, **pool)

    few = ray.data.from_numpy(rows_of(2000))
    np.testing.assert_array_equal(
        ours(few).to_pandas()["raw"].to_numpy(np.float64),
        few.map_batches(Own, **pool).to_pandas()["raw"].to_numpy(np.float64),
    )
    yield {
        "skforge": lambda: ours(data).sum("raw"),
        "own": lambda: data.map_batches(Own, **pool).sum("raw"),
        "nothing": lambda: data.map_batches(Nothing, **pool).sum("raw"),
    }
    ray.shutdown()


ENGINES = {"dask": in_dask, "spark": in_spark, "ray": in_ray}
#: By how much more rows an engine gets: Ray starts its actors anew for each run.
LARGER = {"dask": 1, "spark": 1, "ray": 4}


# ------------------------------------------------------------ measuring


def cpu_seconds() -> float:
    """Return what the whole machine has used; only ours should run.

    Ray's actors end with each run, and nobody sums what processes like them have used.
    """
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def measured(runs: dict[str, Run], rounds: int) -> dict[str, dict[str, list[float]]]:
    def both(run: Run) -> tuple[float, float]:
        cpu, wall = cpu_seconds(), time.perf_counter()
        run()
        return time.perf_counter() - wall, cpu_seconds() - cpu

    for run in runs.values():
        run()  # compiles, imports, warms up
    calls = {name: partial(both, run) for name, run in runs.items()}
    return {
        name: {"wall": [wall for wall, _ in times], "cpu": [cpu for _, cpu in times]}
        for name, times in harness.take_turns(calls, rounds).items()
    }


def alone(booster: Any, fast: CompiledForest, n_rows: int) -> dict[str, float]:
    """Return CPU seconds a row without any engine, in blocks of 16,384 rows."""
    rows, own = rows_of(n_rows), own_margin(booster)
    blocks = np.array_split(rows, max(1, n_rows // 16_384))
    found: dict[str, list[float]] = {"skforge": [], "own": []}
    for _ in range(5):
        for name, call in (("skforge", fast.predict_raw), ("own", own)):
            start = time.process_time()
            for block in blocks:
                call(block)
            found[name].append(time.process_time() - start)
    return {name: min(seconds[1:]) / n_rows for name, seconds in found.items()}


def main(
    engines: harness.Parts = "dask,spark,ray",
    names: Annotated[str, typer.Option("--models")] = "XGBoost,LightGBM",
    rows: int = 1_000_000,
    rounds: harness.Rounds = 5,
    quick: Annotated[
        bool, typer.Option(help="100,000 rows, two rounds: to see it works.")
    ] = False,
    price: Annotated[float, typer.Option(help="Of a core-hour.")] = 0.05,
    output: harness.Output = Path("results"),
    merge: harness.Merge = False,
    page: Annotated[
        Path | None, typer.Option("--sizing", help="Its table is written anew.")
    ] = None,
) -> None:
    """Measure predictions inside Dask, Spark and Ray; write distributed.json, .md."""
    if quick:
        rows, rounds = 100_000, 2
    result: harness.Document = {"rows": rows, "features": FEATURES, "cells": []}
    if merge:
        result = harness.stored(output, "distributed") or result
    for label, (booster, fast) in models().items():
        if label not in harness.parts(names):
            continue
        single = alone(booster, fast, min(rows, 400_000))
        result.setdefault("alone", {})[label] = single
        for engine in harness.parts(engines):
            n_rows = rows * LARGER[engine]
            with ENGINES[engine](n_rows, booster, fast) as runs:
                times = measured(runs, rounds)
            result["cells"] = [
                cell
                for cell in result["cells"]
                if (cell["engine"], cell["model"]) != (engine, label)
            ]
            for system, seconds in times.items():
                where = {"engine": engine, "model": label, "system": system}
                medians = {clock: median(taken) for clock, taken in seconds.items()}
                result["cells"].append(
                    {**where, "rows": n_rows, **medians, "samples": seconds}
                )
            result["machine"] = machine()
            result["price"] = price
            print(harness.publish(output, "distributed", result, page_of), flush=True)
    if page is not None:
        text = page.read_text(encoding="utf-8")
        page.write_text(
            harness.between(text, "sizing", sizing(result)), encoding="utf-8"
        )


if __name__ == "__main__":
    typer.run(main)
