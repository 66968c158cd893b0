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
from skforge.acceleration import api, calls
from skforge.acceleration.settings import Settings

#: By test, the outcome of its worst part: set-up, call, or what follows it.
OUTCOMES: dict[str, str] = {}
_once = calls._answer


def thrice(*call: Any) -> Any:
    for _ in range(2):
        with warnings.catch_warnings(), suppress(Exception):
            warnings.simplefilter("ignore")
            _once(*call)
    return _once(*call)


def pytest_configure() -> None:
    if config.accelerates():
        calls._answer = thrice
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
