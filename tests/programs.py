"""Python in a process of its own, and the command line in this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
#: What is said before a file is opened that may run code.
PICKLE = (
    "warning: {} is a pickle, and opening a pickle can run any code in it. Open it "
    "only if you trust where it comes from.\n"
)


def run_python(
    code: str, *arguments: Any, cwd: Path = ROOT, seconds: float = 200, **more: str
) -> str:
    """Return what code prints, which has to end well; ``more`` is its environment."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def benchmark_modules(patch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Give what imports modules of ``benchmarks/``, and forget these afterwards."""
    for folder in (ROOT, ROOT / "benchmarks"):
        patch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield import_module
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and ROOT / "benchmarks" in Path(file).parents:
            del sys.modules[name]


def command(capture: Any, *arguments: Any) -> tuple[int, str, str]:
    """Return what ``skforge`` ends with and prints, to its output and of errors."""
    from skforge.cli.main import app

    with pytest.raises(SystemExit) as stopped:
        app([*map(str, arguments)], prog_name="skforge")
    out, err = capture.readouterr()
    return int(stopped.value.code or 0), out, err


_UNEXECUTABLE = """
import ctypes, pathlib, sys
from skforge.exceptions import CompilerError
from skforge.runtime.loading import load_object
path, name, *symbols = sys.argv[1:]
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE
    sys.exit("no such rule")
try:
    load_object(pathlib.Path(path).read_bytes(), [name], dict.fromkeys(symbols, 1))
except CompilerError as error:
    print(error)
"""


def without_executable_memory(folder: Path, code: bytes, *names: str) -> str:
    """Return what is said of machine code where a process may not execute it."""
    (folder / "object").write_bytes(code)
    try:
        return run_python(_UNEXECUTABLE, folder / "object", *names)
    except AssertionError as error:
        if "no such rule" in str(error):
            pytest.skip("this kernel is older than 6.3")
        raise
