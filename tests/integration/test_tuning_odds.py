"""Searches that measure: what they count; see the file of this name in tests/unit/."""

from __future__ import annotations

from skforge.compiler.cost.counts import ForestCounts
from skforge.tuning import Tuner
from tests.noted import calls_of
from tests.unit.test_tuning_odds import FOREST, MANY


def test_a_search_counts_its_forest_once(monkeypatch):
    monkeypatch.setenv("SKFORGE_CACHE", "off")
    made = calls_of(monkeypatch, ForestCounts, "__init__")
    Tuner().tune(FOREST, ranges=MANY, target="cpu", budget=0.2)
    assert len(made) == 1
