"""``skforge run``: a program under ``accelerate()``, and the processes that it starts.

A folder with a ``sitecustomize`` comes first in ``PYTHONPATH``, so that Python itself
accelerates the libraries as it starts, in the program and in each Python that it starts
with this environment. The program's own ``sitecustomize`` runs afterwards.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
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
    folder = tempfile.mkdtemp(prefix="skforge-") if report else ""
    environment = with_hook(os.environ, folder, min_rows, min_calls)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *command], environment)


def with_hook(
    environment: os._Environ[str] | dict[str, str],
    report: str,
    min_rows: int,
    min_calls: int,
) -> dict[str, str]:
    """Return the environment of a program; its processes count into a folder."""
    before = environment.get("PYTHONPATH")
    folders = [HOOK, *(before.split(os.pathsep) if before else ())]
    changed = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(folders)), _ON: "1"}
    changed |= {_ROWS: str(min_rows), _CALLS: str(min_calls)}
    if report:
        changed[_REPORT] = f"{os.getpid()}:{report}"  # the program's, and no child's
    return {**environment, **changed}


def begin() -> None:
    """Accelerate this process, as its environment says; called as Python starts."""
    if not config.accelerates():
        return
    from skforge.acceleration.api import start

    known = Settings()
    rows, calls = _number(_ROWS, known.min_rows), _number(_CALLS, known.min_calls)
    start((), Settings(min_rows=rows, min_calls=calls))
    number, _, folder = os.environ.get(_REPORT, "").partition(":")
    if folder:
        _count_into(Path(folder), int(number))


def _count_into(folder: Path, program: int) -> None:
    """Tell the report as the program ends, or count for it in a child."""
    from skforge.acceleration.shared_counts import SHARED

    if os.getpid() == program:
        atexit.register(_tell, folder, program)
    else:
        SHARED.begin(folder)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: SHARED.begin(folder))


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else otherwise


def _tell(folder: Path, program: int) -> None:
    if os.getpid() != program:
        return  # a forked child
    from skforge.acceleration.report import report_with
    from skforge.acceleration.shared_counts import counted_in

    processes, totals = counted_in(folder)
    shutil.rmtree(folder, ignore_errors=True)
    print(report_with(totals), file=sys.stderr)
    if processes:
        others = f"{processes:,} of the processes that it started"
        print(f"Counted in the program, and in {others}.", file=sys.stderr)
