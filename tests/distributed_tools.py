"""Models, rows and comparisons that the tests of all engines share."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier

from skforge import CompiledForest, Schedule
from skforge.distributed import _artifact

NAMES = ["age", "income", "rooms", "tax"]


def n_kept() -> int:
    """Return how many models this process has asked for and keeps."""
    return _artifact._slot.cache_info().currsize


def same_bits(found: Any, expected: Any) -> None:
    """Compare values, dtype and shape, to the last bit."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)
    if expected.dtype.kind == "f":  # also the sign of zeros
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@cache
def table(n_rows: int = 600) -> pd.DataFrame:
    """Return rows with names and some missing values."""
    X, _ = _drawn(n_rows)
    X[::7, 2] = np.nan
    return pd.DataFrame(X, columns=NAMES)


def _drawn(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(
        n_rows, 4, n_informative=4, n_redundant=0, n_classes=3,
        n_clusters_per_class=1, random_state=0,
    )  # fmt: skip
    return X.astype(np.float32), np.array(["high", "low", "mid"])[y]


@cache
def categorical_model() -> tuple[CompiledForest, pd.DataFrame, np.ndarray]:
    """Return a model of CatBoost with categories, rows, and its own answers."""
    catboost = pytest.importorskip("catboost")
    random = np.random.default_rng(0)
    cities = random.choice([f"città {i}" for i in range(20)], 400)
    rows = pd.DataFrame(
        {"city": cities.astype(object), "size": random.normal(size=400)}
    )
    rows["code"] = random.integers(-3, 9, 400)
    y = pd.factorize(rows["city"])[0] % 5 + rows["size"] + (rows["code"] == 2)
    model = catboost.CatBoostRegressor(
        iterations=15,
        cat_features=["city", "code"],
        verbose=0,
        allow_writing_files=False,
    ).fit(rows, y)
    return CompiledForest(model).fit(rows[:50]), rows, model.predict(rows)


@cache
def named_model() -> CompiledForest:
    """Return a forest of three classes with text labels, trained with names."""
    frame, (_, y) = table(), _drawn(600)
    forest = RandomForestClassifier(12, max_depth=5, random_state=0).fit(frame, y)
    return CompiledForest(forest).fit(frame[:100])


@cache
def _deep_forest() -> RandomForestClassifier:
    X, y = _drawn(2000)
    return RandomForestClassifier(100, max_depth=9, random_state=0).fit(X, y)


@cache
def slow_model() -> CompiledForest:
    """Return a forest that takes long enough to be killed in the middle."""
    rows = many_rows(100)
    return CompiledForest(_deep_forest(), schedule=Schedule()).fit(rows)


@cache
def quick_model() -> CompiledForest:
    """Return the same forest with the default schedules, which has the same bits."""
    return CompiledForest(_deep_forest()).fit(many_rows(100))


def many_rows(n_rows: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(n_rows, 4)).astype(np.float32)


def kill(pids: list[int]) -> None:
    """Kill processes as a machine that goes away does."""
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(pid, signal.SIGKILL)


def wait_for(done: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Return the first true answer."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = done()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"nothing came in {seconds} s")
