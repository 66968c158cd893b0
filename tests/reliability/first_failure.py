"""A plugin of pytest: it writes which tests failed, or files that cannot be imported.

The file is named by ``SKFORGE_FAILURES``; each line is what pytest takes to run it.
"""

from __future__ import annotations

import os

import pytest


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ["SKFORGE_FAILURES"], "a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


pytest_runtest_logreport = pytest_collectreport = _note
