"""Exactness tests verify the IR after each pass, and thread the smallest work."""

from __future__ import annotations

import pytest

from skforge.engine import shares
from tests.exactness import checks


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKFORGE_VERIFY", "1")
    monkeypatch.setattr(shares, "WAKE", 0.0)
    for saved in ("SAVED", "SAVED_BY_ANOTHER"):
        monkeypatch.setattr(shares, saved, -1e9)
    checks.lowered.cache_clear()  # what a test patches makes other kernels
