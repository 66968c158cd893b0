"""Compares a compiled model with its source, and makes the states it travels in."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

import skforge
from skforge.forest.forest import Forest
from tests.compared_calls import difference
from tests.refusals import error_of

METHODS = ("predict", "predict_proba", "decision_function", "score_samples")

refusal = error_of


def assert_alike(
    fast: Any, model: Any, *forms: Any, methods: tuple[str, ...] = METHODS
) -> None:
    """Compare answers, or errors, and warnings of the methods that the model has."""
    for method in methods:
        assert hasattr(fast, method) == hasattr(model, method), method
        for rows in forms if hasattr(model, method) else ():
            ours, theirs = getattr(fast, method), getattr(model, method)
            said = difference(ours, theirs, rows)
            assert not said, f"{method}: {said}"


def assert_by_kernels(fast: Any, model: Any, *forms: Any) -> None:
    """Compare, too; no call may have asked the library."""
    before = fast.counters()["library"]["calls"]
    assert_alike(fast, model, *forms)
    assert fast.counters()["library"]["calls"] == before


def assert_same_forest(forest: Forest, other: Forest) -> None:
    """Compare all fields of two forests, arrays by their bits."""
    for field in fields(Forest):
        mine, others = getattr(forest, field.name), getattr(other, field.name)
        if isinstance(mine, np.ndarray):
            assert mine.dtype == others.dtype, field.name
            assert mine.tobytes() == others.tobytes(), field.name
        elif mine == mine:  # not NaN
            assert mine == others, field.name


def is_read(fast: Any, rows: Any) -> bool:
    """Tell whether the kernels answer such rows, and not the model."""
    return fast._predictor.source.read(rows) is not None


def saved(fast: Any, folder: Any) -> Any:
    """Return a model as it is loaded from a file."""
    skforge.save(fast, folder / "model.skforge")
    return skforge.load(folder / "model.skforge")


def in_every_state(fast: Any, folder: Any) -> dict[str, Any]:
    return {
        "live": fast,
        "pickle": pickle.loads(pickle.dumps(fast)),
        "dropped": fast.drop_estimator(),
        "file": saved(fast, folder),
    }


def in_child(work: Callable[[], Any], seconds: int = 60) -> Any:
    """Run in a forked child; return how it ended, after killing it if it hangs."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"
