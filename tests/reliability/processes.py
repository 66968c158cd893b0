"""Programs of a few lines in processes of their own, which may be killed or fail."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return this process's environment, with the package found; None removes."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    for name, value in (changes or {}).items():
        found.pop(name, None)
        if value is not None:
            found[name] = value
    return found


def start(
    code: str,
    *arguments: str | os.PathLike[str],
    changes: Mapping[str, str | None] | None = None,
    command: Sequence[str] = (sys.executable,),
) -> subprocess.Popen[str]:
    """Start a program; what it writes can be read."""
    return subprocess.Popen(
        [*command, "-c", code, *map(os.fspath, arguments)],
        env=environment(changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(
    code: str,
    *arguments: str | os.PathLike[str],
    changes: Mapping[str, str | None] | None = None,
    command: Sequence[str] = (sys.executable,),
    seconds: float = 300,
) -> tuple[int | str, str, str]:
    """Return a program's exit code ("hangs" for none), what it wrote, its errors."""
    process = start(code, *arguments, changes=changes, command=command)
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "hangs", "", f"no end after {seconds:.0f} s"
    return process.returncode, out, err


def module(
    name: str, *arguments: str, changes: Mapping[str, str | None] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a module of this folder to its end; without changes on one thread."""
    return subprocess.run(
        (sys.executable, "-m", f"tests.reliability.{name}", *arguments),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(ONE_THREAD if changes is None else changes),
        check=False,
    )


def said(code: int | str, err: str) -> str:
    """Return one line about how a program failed."""
    last = err.strip().splitlines()[-1:] or [""]
    return f"ended with {code}: {last[0][:200]}"
