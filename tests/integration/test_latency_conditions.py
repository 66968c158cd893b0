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
from conditions import Limits
from latency import Plan, checked_systems, measure

PLAN = Plan(("hot",), Limits(1000), Limits(1000, 0.0, 40), 16, 1 << 10, 0.0, 0.0)


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
