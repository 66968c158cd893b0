"""Exactness tests verify the IR after each pass, and thread the smallest work."""

from __future__ import annotations

import pytest

from skforge.compiler.runtime import module
from tests.exactness import checks


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKFORGE_VERIFY", "1")
    monkeypatch.setattr(module, "WORK_PER_THREAD", 1e-9)
    checks.lowered.cache_clear()  # what a test patches makes other kernels
