"""Reading and compiling a large forest: bytes a node, and what is computed once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor

from skforge import load_forest
from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.driver import build_hir, lower
from skforge.compiler.ir.hir.nodes import HirCache
from skforge.compiler.passes.hir import tile_nodes
from skforge.compiler.target import Target
from skforge.forest import arrays
from skforge.forest.forest import Forest


@pytest.fixture(scope="module")
def model() -> Any:
    """Ten trees of 12,000 nodes, too large for bits and lanes."""
    random = np.random.default_rng(0)
    X = random.standard_normal((6000, 8)).astype(np.float32)
    return ExtraTreesRegressor(10, random_state=0).fit(X, X[:, 0] * X[:, 1])


V4 = Target.x86_64("v4")


def laid_out(forest: Forest) -> list[Any]:
    """Return the kernels of all default schedules, as LIR with data."""
    cache = HirCache()
    schedules = {*default_schedules(forest, V4).values()}
    hirs = [build_hir(forest, schedule, "exact", cache) for schedule in schedules]
    return [lower(hir, V4) for hir in hirs]


def traced(work: Callable[[], Any]) -> tuple[Any, int, int]:
    """Return the result, the bytes it holds and the most that were in use."""
    tracemalloc.start()
    try:
        made = work()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return made, held, peak


def test_bytes_a_node(model: Any) -> None:
    """A node has 36 bytes and half a predicate; tiles and codes take as much again."""
    forest, held, peak = traced(lambda: load_forest(model))
    assert forest.n_nodes > 100_000
    assert held <= 55 * forest.n_nodes
    assert peak <= 100 * forest.n_nodes
    _, held, peak = traced(lambda: laid_out(forest))
    assert held <= 90 * forest.n_nodes
    assert peak <= 125 * forest.n_nodes


def test_depths_and_orders_of_nodes_are_computed_once(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls.append(function.__name__)
            return function(*arguments)

        return call

    monkeypatch.setattr(arrays, "node_depths", counted(arrays.node_depths))
    monkeypatch.setattr(tile_nodes, "_single_nodes", counted(tile_nodes._single_nodes))
    assert len(laid_out(load_forest(model))) > 1
    assert sorted(calls) == ["_single_nodes", "node_depths"]
