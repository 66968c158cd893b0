"""A plugin of pytest: it writes which tests failed, or files that cannot be imported.

The file is named by ``SKFORGE_FAILURES``; each line is what pytest takes to run it.
While a test runs, the file named by ``SKFORGE_RUNNING`` has it: it may end pytest.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

IN_WORKER = "PYTEST_XDIST_WORKER" in os.environ


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.failed and not IN_WORKER:
        with open(os.environ["SKFORGE_FAILURES"], "a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


pytest_runtest_logreport = pytest_collectreport = _note


def pytest_runtest_logstart(nodeid: str) -> None:
    if not IN_WORKER:
        Path(os.environ["SKFORGE_RUNNING"]).write_text(nodeid, encoding="utf-8")


def pytest_runtest_logfinish() -> None:
    if not IN_WORKER:
        Path(os.environ["SKFORGE_RUNNING"]).unlink(missing_ok=True)
