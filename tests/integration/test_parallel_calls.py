"""Fit, predict, save and load in many threads at once, shared models and own ones.

Run it with a free-threaded Python and ``PYTHON_GIL=0``, where the calls are parallel.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier

import skforge
from tests.plain import plain

pytestmark = pytest.mark.timeout(120)

N_THREADS, N_TURNS = 6, 4


@pytest.fixture(scope="module")
def models() -> list[tuple[Any, Any]]:
    random = np.random.default_rng(0)
    X = random.standard_normal((400, 5)).astype(np.float32)
    y = X.sum(axis=1)
    sources = (
        RandomForestClassifier(8, max_depth=5, random_state=0).fit(X, y > 0),
        GradientBoostingRegressor(n_estimators=8, random_state=0).fit(X, y),
    )
    return [(source, X) for source in sources]


def _forms(rows: Any) -> list[Any]:
    return [rows, rows.astype(float), np.asfortranarray(rows), rows.tolist()]


def _wrong(fast: Any, source: Any, X: Any, random: np.random.Generator) -> list[str]:
    """Return the methods whose results differ for some rows, in each form."""
    start = int(random.integers(len(X)))
    rows = X[start : start + int(random.choice([1, 2, 7, 64, 300]))]
    methods = [name for name in ("predict", "predict_proba") if hasattr(source, name)]
    return [
        f"{name} of {len(rows)} rows"
        for name in methods
        for given in _forms(rows)
        if not np.array_equal(getattr(fast, name)(given), getattr(source, name)(given))
    ]


def test_threads_fit_predict_save_and_load(models: Any, tmp_path: Path) -> None:
    shared = [plain(source).fit(X) for source, X in models]
    for k, fast in enumerate(shared):
        skforge.save(fast, tmp_path / f"shared{k}.skforge")
    barrier = threading.Barrier(N_THREADS)

    def work(number: int) -> list[str]:
        random, wrong = np.random.default_rng(number), []
        barrier.wait(60)
        for turn in range(N_TURNS):
            k = (number + turn) % len(models)
            source, X = models[k]
            wrong += _wrong(shared[k], source, X, random)
            file = tmp_path / f"shared{k}.skforge"
            if turn == number % N_TURNS:
                own = plain(source).fit(X)
                wrong += _wrong(own, source, X, random)
                skforge.save(own, file)  # others read it, or write it, too
            wrong += _wrong(skforge.load(file), source, X, random)
        return wrong

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(N_THREADS) as pool:
            found = [
                wrong for each in pool.map(work, range(N_THREADS)) for wrong in each
            ]
    finally:
        sys.setswitchinterval(interval)
    assert found == []
