"""Whole pipelines beside scikit-learn's own: microseconds of a call.

Run ``python -m benchmarks.pipelines``. Calls of both are interleaved, and medians are
compared; their outputs are compared bit by bit first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from skforge import CompiledForest, load_forest

BATCHES = (1, 64, 4096)
SECONDS = 2.0


def data(n: int = 8192, width: int = 12) -> tuple[Any, Any]:
    """Return rows over several orders of magnitude, a tenth of them missing."""
    random = np.random.default_rng(0)
    X = random.normal(size=(n, width)) * np.logspace(-3, 4, width)
    y = X[:, 0] * 1e3 + X[:, 3] + random.normal(size=n) > 0
    X[random.random(X.shape) < 0.1] = np.nan
    return X, y


def pipelines(X: Any, y: Any) -> dict[str, Pipeline]:
    """Return the fitted pipelines."""

    def forest() -> RandomForestClassifier:
        return RandomForestClassifier(100, max_depth=8, random_state=0)

    return {
        "scaler + forest": make_pipeline(StandardScaler(), forest()).fit(X, y),
        "imputer + scaler + forest": make_pipeline(
            SimpleImputer(), StandardScaler(), forest()
        ).fit(X, y),
    }


def medians(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Return the median microseconds of each call; all are timed in turns.

    A turn is 2 ms of calls, or one, so that each call finds the caches as its own left
    them.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    counts = {name: max(1, int(2000 / timed(call, 3))) for name, call in calls.items()}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(times))]) < 5:
        for name, call in calls.items():
            times[name].append(timed(call, counts[name]))
    return {name: float(np.median(values)) for name, values in times.items()}


def timed(call: Callable[[], Any], count: int) -> float:
    """Return the mean microseconds of some calls, after one that is not counted."""
    call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) * 1e6 / count


def main() -> None:
    """Print a line for each pipeline and batch size."""
    X, y = data()
    for name, model in pipelines(X, y).items():
        start = time.perf_counter()
        forest = load_forest(model)
        folding = time.perf_counter() - start
        fast = CompiledForest(model, tuning="off").fit(X)
        print(f"{name}: {forest.n_predicates} thresholds in {folding:.2f} s")
        for size in BATCHES:
            rows = np.ascontiguousarray(X[:size])
            same = np.array_equal(fast.predict_proba(rows), model.predict_proba(rows))
            assert same, f"{name} differs at {size} rows"
            calls: dict[str, Callable[[], Any]] = {
                "ours": partial(fast.predict_proba, rows),
                "sklearn": partial(model.predict_proba, rows),
            }
            found = medians(calls, SECONDS)
            ratio = found["sklearn"] / found["ours"]
            print(
                f"  {size:5} rows: {found['ours']:9.1f} us, scikit-learn "
                f"{found['sklearn']:9.1f} us, {ratio:.0f} times"
            )


if __name__ == "__main__":
    main()
