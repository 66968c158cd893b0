"""Tests of single parts make no machine code and start no process: they fail if so."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from skforge.compiler.target import Target
from skforge.engine import machine
from tests.guard import modelled, parts_alone


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    with parts_alone():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    with parts_alone():
        yield


@pytest.fixture(autouse=True)
def _modelled_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let schedules be chosen by a profile that nobody measures, with any cache."""
    monkeypatch.setitem(machine.USED, Target.host(), modelled(Target.host()))
