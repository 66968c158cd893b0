"""Exactness tests verify the IR after each pass, and thread the smallest work."""

from __future__ import annotations

import pytest

from skforge.compiler.layouts.lanes import lane_levels, lane_masks, lanes
from skforge.engine import shares
from tests.exactness import checks


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKFORGE_VERIFY", "1")
    monkeypatch.setattr(shares, "WAKE", 0.0)
    for saved in ("SAVED", "SAVED_BY_ANOTHER"):
        monkeypatch.setattr(shares, saved, -1e9)
    checks.lowered.cache_clear()  # what a test patches makes other kernels


@pytest.fixture(params=["levels", "masks"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trees in lanes evaluate top levels, or all nodes where that is possible."""

    def chosen(made, shape):
        small = lanes.leaf_counts(made).max() <= lane_masks.MOST_LEAVES
        one_bank = shape.tables * shape.lanes <= lane_levels.BANK
        return request.param == "masks" and small and one_bank

    monkeypatch.setattr(lanes, "masks_are_cheaper", chosen)
