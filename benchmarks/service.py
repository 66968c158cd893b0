"""A predictor that answers requests while it trains its next model.

    python -m benchmarks.service --output benchmarks/results

The model is XGBoost's, 200 trees of depth 6 for a quantile, as routers of language
models train anew every few seconds. A request is JSON, and comes when the clock says,
whether or not the one before is answered; its latency counts from then. One thread
answers, another trains, compiles and swaps. Answers are compared with XGBoost's first.

Pauses are the longest times in which a thread that only reads the clock did not run:
Python gives a thread's turn to another after 5 ms, so what exceeds that is code that
keeps the lock. A process that has imported much spends 100 ms in a full collection of
Python's garbage, which any code may set off; ``gc.freeze`` takes what lives at the
start of the service out of it, here for all systems.
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from harness import Document, paragraphs, publish, sampler, seconds, table, take_turns
from machine import in_words, machine
from peers import boosted_onnx, onnx_session

from skforge import CompiledForest

NUMBERS = ["cache_use", "input_tokens", "waiting", "running", "generated", "prefix"]
DERIVED, POD, BUCKET = "tokens_left", "pod", "bucket"
PODS, BUCKETS = ["", "decode", "prefill"], [0, 1, 2, 3]
N_TRAINED, N_BULK, N_SWAPS = 3000, 100, 200
#: Seconds between two trainings, and of a sample of calls.
PERIOD, SLOT = 1.0, 0.01


@dataclass(frozen=True, slots=True)
class Service:
    """Latencies of one system at one rate, in milliseconds."""

    system: str
    rate: int
    trains: bool
    p50: float
    p99: float
    p999: float
    slowest: float
    models: int


def draw(n: int, seed: int) -> tuple[dict[str, Any], Any]:
    """Return columns of requests, as JSON has them, and seconds to be predicted."""
    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "cache_use": random.random(n),
        "input_tokens": random.integers(1, 4000, n),
        "waiting": random.poisson(4, n),
        "running": random.poisson(9, n),
        "generated": random.integers(0, 900, n),
        "prefix": np.round(random.random(n), 2),
        "pod": random.choice(PODS, n),
    }
    y = columns["input_tokens"] * (1 - columns["prefix"]) / 900 + columns["waiting"]
    y = y * (1 + (columns["pod"] == "decode")) * random.gamma(9, 1 / 9, n)
    return {name: values.tolist() for name, values in columns.items()}, y


def in_arrays(columns: dict[str, Any]) -> dict[str, Any]:
    """Add what follows from the columns; make no frame."""
    prefix, tokens = np.array(columns["prefix"]), np.array(columns["input_tokens"])
    bucket = np.minimum((np.clip(prefix, 0, 1) * 4).astype(int), 3)
    return {**columns, DERIVED: (1 - prefix) * tokens, BUCKET: bucket.tolist()}


def in_frame(columns: dict[str, Any]) -> Any:
    """Return the same as a frame, with the columns in the order of training."""
    import pandas as pd

    frame = pd.DataFrame(columns)
    frame[DERIVED] = (1 - frame["prefix"]) * frame["input_tokens"]
    bucket = (frame["prefix"].clip(0, 1) * 4).astype(int).clip(upper=3)
    frame[BUCKET] = pd.Categorical(bucket, categories=BUCKETS)
    frame[POD] = pd.Categorical(frame[POD], categories=PODS)
    return frame[[*NUMBERS, DERIVED, POD, BUCKET]].astype(dict.fromkeys(NUMBERS, float))


@cache
def trained(seed: int, categories: bool = True) -> Any:
    """Train a model of one quantile; without categories, ONNX can hold it."""
    from xgboost import XGBRegressor

    columns, y = draw(N_TRAINED, seed)
    frame = in_frame(columns)
    frame = frame if categories else frame[[*NUMBERS, DERIVED]]
    options = {"objective": "reg:quantileerror", "quantile_alpha": 0.9, "n_jobs": 1}
    model = XGBRegressor(
        n_estimators=200, max_depth=6, enable_categorical=categories, **options
    )
    return model.fit(frame, y)


def compiled(model: Any, categories: bool = True) -> Any:
    frame = in_frame(draw(256, 1)[0])
    frame = frame if categories else frame[[*NUMBERS, DERIVED]]
    fast = CompiledForest(model, tuning="off", n_jobs=1).fit(frame)
    return fast.warm_up([1, N_BULK])


# ------------------------------------------------------------ single requests


def _skforge(model: Any) -> Callable[[dict[str, Any]], float]:
    predict = compiled(model, categories=False).predict
    return lambda request: float(predict(request)[0])


def _xgboost(model: Any) -> Callable[[dict[str, Any]], float]:
    names = [*NUMBERS, DERIVED]

    def answer(request: dict[str, Any]) -> float:
        row = np.array([[request[name] for name in names]])
        return float(model.predict(row, validate_features=False)[0])

    return answer


def _onnx(model: Any) -> Callable[[dict[str, Any]], float]:
    names = [*NUMBERS, DERIVED]
    booster = model.get_booster()
    kept, booster.feature_names = booster.feature_names, None
    graph = boosted_onnx("xgboost", model, len(names))
    booster.feature_names = kept
    run = onnx_session(graph).run

    def answer(request: dict[str, Any]) -> float:
        row = np.array([[request[name] for name in names]], np.float32)
        return float(run(None, {"X": row})[0].ravel()[0])

    return answer


SYSTEMS = {"skforge": _skforge, "XGBoost": _xgboost, "ONNX Runtime": _onnx}


def _requests(n: int) -> list[str]:
    columns = in_arrays(draw(n, 7)[0])
    names = [*NUMBERS, DERIVED]
    rows = np.column_stack([columns[name] for name in names]).tolist()
    return [json.dumps(dict(zip(names, row, strict=True))) for row in rows]


def check() -> None:
    """Raise unless all systems answer as XGBoost, to float32's rounding for ONNX."""
    model = trained(0, categories=False)
    bodies = [json.loads(one) for one in _requests(300)]
    expected = [_xgboost(model)(one) for one in bodies]
    if [_skforge(model)(one) for one in bodies] != expected:
        raise SystemExit("skforge's answers are not XGBoost's")
    if not np.allclose([_onnx(model)(one) for one in bodies[:20]], expected[:20]):
        raise SystemExit("ONNX Runtime's answers are not XGBoost's")
    columns, whole = draw(N_BULK, 5)[0], trained(0)
    found = compiled(whole).predict(in_arrays(columns))
    if not np.array_equal(found, whole.predict(in_frame(columns))):
        raise SystemExit("skforge's answers to columns are not XGBoost's")


def serve(system: str, rate: int, trains: bool, seconds: float) -> Service:
    make, bodies = SYSTEMS[system], _requests(512)
    held = {"answer": make(trained(0, categories=False)), "models": 1}
    stop = threading.Event()

    def train() -> None:
        seed = 100
        while not stop.wait(PERIOD):
            seed += 1
            held["answer"] = make(trained.__wrapped__(seed, categories=False))
            held["models"] += 1

    trainer = threading.Thread(target=train, daemon=True)
    if trains:
        trainer.start()
    taken = []
    n = int(rate * seconds)
    begin = time.perf_counter() + 0.1
    for i in range(n):
        due = begin + i / rate
        while (left := due - time.perf_counter()) > 0:
            time.sleep(left)
        json.dumps(held["answer"](json.loads(bodies[i % len(bodies)])))
        taken.append(time.perf_counter() - due)
    stop.set()
    if trains:
        trainer.join()
    p50, p99, p999, slowest = np.quantile(taken, [0.5, 0.99, 0.999, 1.0]) * 1e3
    return Service(system, rate, trains, p50, p99, p999, slowest, held["models"])


# ------------------------------------------------------------ compiling


@contextmanager
def clock_watched(found: list[float]) -> Iterator[None]:
    """Add the longest time in which a thread did not run to a list."""
    stop = threading.Event()

    def watch() -> None:
        longest, last = 0.0, time.perf_counter()
        while not stop.is_set():
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        found.append(longest)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def pauses(n: int, first: int = 200) -> dict[str, list[float]]:
    """Return the longest pauses, in seconds, of compiling, training and neither."""
    found: dict[str, list[float]] = {"nothing": [], "training": [], "compiling": []}
    for seed in range(first, first + n):
        with clock_watched(found["nothing"]):
            time.sleep(0.3)
        with clock_watched(found["training"]):
            model = trained.__wrapped__(seed)
        with clock_watched(found["compiling"]):
            compiled(model)
    return found


def compile_seconds(n: int) -> list[float]:
    """Return how long fit and warm-up of new models take; the first is left out."""
    models = [trained.__wrapped__(seed) for seed in range(300, 300 + n)]
    compiled(models[0])
    return [seconds(compiled, model) for model in models[1:]]


def memory(swaps: int) -> dict[int, float]:
    """Return the resident MiB after some swaps of models that are compiled anew."""
    models = [trained.__wrapped__(seed) for seed in range(400, 404)]
    row = in_arrays(draw(1, 3)[0])
    found, held = {}, None
    for number in range(1, swaps + 1):
        held = compiled(models[number % len(models)])
        held.predict(row)
        if number in (1, swaps // 10, swaps // 2, swaps):
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            found[number] = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return found


def bulk(rounds: int) -> dict[str, float]:
    """Return the median seconds of a call of 100 requests, with two models."""
    models = [trained(0), trained(1)]
    fast = [compiled(one) for one in models]
    columns = draw(N_BULK, 5)[0]
    every = zip(*columns.values(), strict=True)
    requests = [dict(zip(columns, row, strict=True)) for row in every]

    def both(some: list[Any], make: Callable[[Any], Any], rows: Any) -> Any:
        given = make(rows)
        return [one.predict(given) for one in some]

    ways: dict[str, Callable[[], Any]] = {
        "columns": lambda: both(fast, in_arrays, columns),
        "frame": lambda: both(fast, in_frame, columns),
        "XGBoost, frame of columns": lambda: both(models, in_frame, columns),
        "XGBoost, frame of requests": lambda: both(models, in_frame, requests),
    }
    # A sample is one call of each, of a hundred requests.
    samples = {
        name: sampler(lambda _, call=call: call(), [None], SLOT)
        for name, call in ways.items()
    }
    return {name: median(taken) for name, taken in take_turns(samples, rounds).items()}


# ------------------------------------------------------------ the page


def page(facts: Document) -> str:
    worst = {k: max(v) * 1e3 for k, v in facts["pauses"].items()}
    usual = {k: median(v) * 1e3 for k, v in facts["pauses"].items()}
    times, ours = facts["compile_seconds"], facts["bulk"]["columns"]
    heads = ["system", "requests a second", "new models", "p50", "p99", "p99.9"]
    quantiles = ("p50", "p99", "p999", "slowest")
    services = [
        [
            one["system"],
            f"{one['rate']:,}",
            one["models"] - 1,
            *(f"{one[key]:.2f}" for key in quantiles),
        ]
        for one in facts["services"]
    ]
    pauses = [[name, f"{usual[name]:.1f}", f"{worst[name]:.1f}"] for name in worst]
    calls = [
        [name, f"{taken * 1e6:,.0f}", f"{taken / ours:.1f}×"]
        for name, taken in facts["bulk"].items()
    ]
    return paragraphs(
        "# A service that trains",
        "XGBoost, 200 trees of depth 6, a quantile; see `benchmarks/service.py`.",
        in_words(facts["machine"]),
        "## Requests of one row, in JSON: milliseconds from arrival to answer",
        table([*heads, "slowest"], services),
        "## Pauses of another thread, in milliseconds",
        table(["while", "median of the longest", "longest"], pauses),
        "## Compiling a new model, in seconds",
        f"Median {median(times):.3f}, longest {max(times):.3f}, of {len(times)}.",
        "## Memory: resident MiB after some swaps",
        ", ".join(f"{mib:.0f} after {n}" for n, mib in facts["memory"].items()) + ".",
        f"## A call of {N_BULK} requests, two models",
        table(["way", "µs", "of skforge's with columns"], calls),
    )


def main(
    output: Annotated[Path, typer.Option(help="Folder of results.")] = Path(),
    seconds: Annotated[float, typer.Option(help="Of each service.")] = 12.0,
    swaps: Annotated[int, typer.Option(help="Models swapped.")] = N_SWAPS,
) -> None:
    """Measure, print and write service.json and service.md."""
    check()
    for make in SYSTEMS.values():
        make(trained(0, categories=False))
    before = pauses(4, 500)["compiling"]
    gc.collect()
    gc.freeze()
    services = [
        serve(system, rate, trains, seconds)
        for rate in (100, 1000)
        for trains in (False, True)
        for system in SYSTEMS
    ]
    facts = {
        "machine": machine(),
        "services": services,
        "bulk": bulk(15),
        "pauses": {**pauses(8), "compiling, without gc.freeze": before},
        "compile_seconds": compile_seconds(9),
        "memory": memory(swaps),
    }
    print(publish(output, "service", facts, page))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("SKFORGE_CACHE_DIR", folder)
        typer.run(main)
