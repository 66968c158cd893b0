"""The latency benchmark runs, and calls as often as it says."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from skforge import load_forest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from cases import Case
from conditions import Limits, time_calls
from latency import Plan, batches_of, checked_systems, measure

BATCHES = [np.full((1, 1), i) for i in range(64)]
FEW = Limits(24)
PLAN = Plan(("hot",), Limits(1000), Limits(1000, 0.0, 40), 16, 1 << 10, 0.0, 0.0)


@pytest.mark.parametrize("calls", [0, 1, 63, 64, 65, 1000])
def test_as_many_calls_as_asked_each_on_other_rows(calls: int) -> None:
    seen = []
    taken = time_calls(lambda X: seen.append(int(X[0, 0])), BATCHES, Limits(calls))
    assert len(taken) == len(seen) == calls
    assert seen == [i % 64 for i in range(calls)]


def test_caches_are_evicted_before_each_call() -> None:
    events: list[str] = []
    time_calls(
        lambda X: events.append("call"), BATCHES, FEW, lambda: events.append("evict")
    )
    assert events == ["evict", "call"] * 24


@pytest.mark.parametrize(
    ("condition", "ours", "theirs"),
    [("evicted", 16, 16), ("busy", 1000, 40)],
)
def test_a_line_for_each_system_with_its_calls(
    condition: str, ours: int, theirs: int
) -> None:
    X = np.random.default_rng(0).random((64, 3), np.float32)
    model = RandomForestClassifier(3, max_depth=3, random_state=0)
    model.fit(X, (X[:, 0] > 0.5).astype(int))
    case = Case("small", model, load_forest(model), X, "trained on")
    systems = checked_systems(case, [1], ())
    lines = measure(case, systems, 1, condition, PLAN)
    assert [line.system for line in lines] == [s.name for s in systems]
    for system, line in zip(systems, lines, strict=True):
        least = ours if system.ours else theirs
        # a few more where the calls between two looks at the time are
        most = least if system.ours else max(least, 8 * 64)
        assert least <= line.calls <= most
        assert (line.others_calls > 0) == (condition == "busy")
        assert line.p50 <= line.p99 <= line.p999 <= line.slowest


def test_batches_are_rows_in_their_own_memory() -> None:
    rows = np.arange(12.0).reshape(4, 3)
    batches = batches_of(rows, 3)
    assert {b.shape for b in batches} == {(3, 3)} and len(batches) == 4096
    wide = batches_of(np.zeros((1, 4000)), 1)  # a megabyte, or 64 batches
    assert len(wide) == 64
    assert all(b.base is None and b.flags.c_contiguous for b in batches)
