"""A plugin of pytest: notes each test's outcome, and the calls that kernels answered.

``OWN_TESTS`` names the file that it writes. In an accelerated process, models are
compiled in their first call, and kernels answer even where they are slower. Tests ask
most models once, and kernels answer from the third call on: so each call is made three
times, and the test gets the last answer.
"""

from __future__ import annotations

import json
import os
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skforge import Schedule, acceleration_report, config
from skforge.acceleration import api, patching
from skforge.acceleration.settings import ACTIVE, Settings

#: By test, the outcome of its worst part: set-up, call, or what follows it.
OUTCOMES: dict[str, str] = {}
_answering = patching.answering


def answering_thrice(own: Any, method: str) -> Any:
    """Return what takes the place of a library's method, and asks three times."""
    once = _answering(own, method)

    def asked(*args: Any, **named: Any) -> Any:
        if not ACTIVE.thread.inside:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for _ in range(2):
                    with suppress(Exception):
                        once(*args, **named)
        return once(*args, **named)

    return asked


def pytest_configure() -> None:
    if config.accelerates():
        patching.answering = answering_thrice
        eager = Settings(min_rows=0, min_calls=1, eager=True, schedule=Schedule())
        api.start((), eager)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or not report.passed:
        expected = "xfail, " if hasattr(report, "wasxfail") else ""
        OUTCOMES[report.nodeid] = f"{expected}{report.outcome}"


def pytest_sessionfinish() -> None:
    lines: list[Any] = [line._asdict() for line in acceleration_report()]
    document = {"outcomes": OUTCOMES, "report": lines}
    Path(os.environ["OWN_TESTS"]).write_text(json.dumps(document), encoding="utf-8")
