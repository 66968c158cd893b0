"""``skforge run``: a program under ``accelerate()``, and the processes that it starts.

A folder with a ``sitecustomize`` comes first in ``PYTHONPATH``, so that Python itself
accelerates the libraries as it starts, in the program and in each Python that it starts
with this environment. The program's own ``sitecustomize`` runs afterwards.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from skforge import config
from skforge.acceleration.settings import Settings

#: The folder with our ``sitecustomize``.
HOOK = str(Path(__file__).with_name("hook"))
_ON, _REPORT = "SKFORGE_ACCELERATE", "SKFORGE_ACCELERATE_REPORT"
_ROWS, _CALLS = "SKFORGE_ACCELERATE_MIN_ROWS", "SKFORGE_ACCELERATE_MIN_CALLS"


def run(
    command: Sequence[str], report: bool, min_rows: int, min_calls: int
) -> None:  # pragma: no cover - the process is another one afterwards
    """Become a Python that runs a program, as ``python`` with the same words does."""
    environment = with_hook(os.environ, report, min_rows, min_calls)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *command], environment)


def with_hook(
    environment: os._Environ[str] | dict[str, str],
    report: bool,
    min_rows: int,
    min_calls: int,
) -> dict[str, str]:
    """Return the environment of an accelerated program."""
    before = environment.get("PYTHONPATH")
    folders = [HOOK, *(before.split(os.pathsep) if before else ())]
    changed = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(folders)), _ON: "1"}
    changed |= {_ROWS: str(min_rows), _CALLS: str(min_calls)}
    if report:
        changed[_REPORT] = str(os.getpid())  # that of the program, and of no child
    return {**environment, **changed}


def begin() -> None:
    """Accelerate this process, as its environment says; called as Python starts."""
    if not config.accelerates():
        return
    from skforge.acceleration.api import start

    known = Settings()
    rows, calls = _number(_ROWS, known.min_rows), _number(_CALLS, known.min_calls)
    start((), Settings(min_rows=rows, min_calls=calls))
    if os.environ.get(_REPORT) == str(os.getpid()):
        atexit.register(_tell)


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else otherwise


def _tell() -> None:
    if os.environ.get(_REPORT) != str(os.getpid()):
        return  # a forked child
    from skforge.acceleration.report import acceleration_report

    print(acceleration_report(), file=sys.stderr)
