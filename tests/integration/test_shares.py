"""Tests of ``unit/test_shares.py`` that compile or start processes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor
from threadpoolctl import threadpool_limits

from skforge import CompiledForest
from skforge.compiler.cost import estimate
from skforge.engine import shares
from skforge.engine.cpu import threads as runtime
from skforge.engine.shares import Share, Shares
from skforge.modules.compiled import compile_forest
from skforge.schedule.families import bitsliced_schedule
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import drawn
from tests.integration.test_directive_counts import run_counted
from tests.noted import calls_of
from tests.unit.test_shares import FOREST, LARGE, SMALL, Cost, Stated, blocks


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls use 64 threads wherever the tests run."""
    monkeypatch.setattr(shares, "thread_limit", lambda: lambda: 64)
    monkeypatch.setattr(shares, "resolve_n_jobs", lambda n_jobs: n_jobs)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("threads", [2, 3, 4])
@pytest.mark.parametrize("schedule", [LARGE, SMALL], ids=["512", "64"])
def test_shares_are_those_of_the_kernel(schedule: Schedule, threads: int) -> None:
    """The loop has so many iterations that no thread has more rows than is said."""
    (loop,) = Shares(FOREST, [schedule], [1], None).loops.values()
    made = drawn(3, 3)
    for n in (65, 128, 512, 600, 1200, 3000):
        rows = np.zeros((n, made.n_features), made.input_dtype)
        counted, _ = run_counted(made, schedule, rows, threads=threads)
        tasks = counted[0] if counted else 1
        largest = float(loop.largest(np.float64(n), np.float64(threads)))
        assert largest % loop.group == 0 or largest == n
        assert largest <= -(-tasks // threads) * loop.block
        assert largest * threads >= n


# ------------------------------------------------------------------------ calls


@pytest.fixture
def two_threads() -> Iterator[None]:
    with threadpool_limits(2, user_api="openmp"):
        yield


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, two_threads: None) -> list[Any]:
    """Return a list of the forests that calls count."""
    return calls_of(monkeypatch, estimate, "CostEstimate")


def test_few_rows_are_not_estimated(counted: list[Any]) -> None:
    module = compile_forest(FOREST, bitsliced_schedule(64), n_jobs=2)
    rows = np.zeros((3000, FOREST.n_features), FOREST.input_dtype)
    module.compile_all()
    entry = module.entry()
    for _ in range(5):
        module.predict_raw(rows[:1])
    assert entry(rows[:1]) is not None and not counted
    for _ in range(3):
        module.predict_raw(rows)
        module.predict_raw(rows[:2000])
    assert len(counted) == 1
    assert entry(rows) is not None


def test_warming_up_plans_threads(counted: list[Any]) -> None:
    module = compile_forest(FOREST, bitsliced_schedule(64), n_jobs=2).warm_up()
    rows = np.zeros((3000, FOREST.n_features), FOREST.input_dtype)
    assert len(counted) == 2  # the forest, and the one with an output for each tree
    module.predict_raw(rows)
    module.apply(rows)
    assert len(counted) == 2


def test_an_estimator_that_warms_up_plans_threads(counted: list[Any]) -> None:
    rows = np.random.default_rng(0).normal(size=(3000, 4)).astype(np.float32)
    model = RandomForestRegressor(20, max_depth=4).fit(rows, rows[:, 0])
    fast = CompiledForest(model, tuning="off", n_jobs=2).fit(rows[:50]).warm_up()
    planned = len(counted)
    assert planned > 0
    fast.predict(rows)
    fast.apply(rows)
    assert len(counted) == planned


def test_entries_run_batches_as_the_module_does(
    monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    """Kernels are replaced by one that notes its number and threads."""
    table = {(1, 256): SMALL, (257, None): LARGE}
    module = compile_forest(FOREST, table, n_jobs=8)
    costs: dict[Schedule, Cost] = {SMALL: blocks(64, 20), LARGE: blocks(512, 100)}
    estimate: Any = Stated(costs)
    module._estimate = lambda: estimate
    module._shares = module._shares_of("accumulator")
    kernel_type = ctypes.CFUNCTYPE(
        None, ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p, ctypes.c_int64
    )
    calls = []
    fakes = [
        kernel_type(lambda slots, pfor, threads, k=k: calls.append(Share(k, threads)))
        for k in (0, 1)
    ]
    for k, fake in enumerate(fakes):
        address = ctypes.cast(fake, ctypes.c_void_p).value
        module.kernels.table.fill(k, address or 0, b"", fake)
    entry = module.entry()
    rows = np.zeros((5000, FOREST.n_features), FOREST.input_dtype)
    assert entry(rows[:1]) is not None and calls == [(0, 1)]
    assert entry(rows[:512]) is None  # not planned yet
    runtime.parallel_for_pointer(2)
    limit = runtime.thread_limit()
    most = 2 if limit is None else min(2, limit())
    monkeypatch.setattr(shares, "thread_limit", lambda: lambda: most)
    for n in (2, 64, 65, 128, 200, 256, 257, 400, 512, 800, 1024, 2000, 5000):
        planned = module._share(n, None)
        calls.clear()
        assert entry(rows[:n]) is not None and calls == [planned]
