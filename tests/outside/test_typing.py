"""What type checkers say to users: strict mypy on programs of theirs, in data/typing.

skforge is found as an installed package is, so that ``py.typed`` has to be there.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "data" / "typing"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


def mypy(cache: Path, *programs: Path) -> subprocess.CompletedProcess[str]:
    """Check programs with the defaults of a user, out of the repository."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", *programs]
    return subprocess.run(
        [*map(str, command), "--cache-dir", str(cache / "cache")],
        cwd=cache,
        # On sys.path, which mypy takes for the place of installed packages.
        env={**os.environ, "PYTHONPATH": str(ROOT), "MYPYPATH": ""},
        capture_output=True,
        text=True,
    )


def test_users_get_the_errors_they_should(cache: Path) -> None:
    # Expected errors are excused in wrong.py, each with its code: a mistake that is
    # not found is an excuse that is not used, and an error, too.
    done = mypy(cache, PROGRAMS / "right.py", PROGRAMS / "wrong.py")
    assert done.stdout == "Success: no issues found in 2 source files\n", done.stdout


@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright needs Node.js")
def test_pyright_agrees(tmp_path: Path) -> None:
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"extraPaths": [str(ROOT)]})
    )
    program = shutil.copy(PROGRAMS / "right.py", tmp_path)
    done = subprocess.run(
        ["pyright", "--pythonpath", sys.executable, program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_a_mistake_without_its_excuse_is_an_error(cache: Path) -> None:
    text = (PROGRAMS / "wrong.py").read_text(encoding="utf-8")
    excuse = "  # type: ignore[attr-defined]\n    Schedule()"
    assert text.count(excuse) == 1
    program = cache / "wrong.py"
    program.write_text(text.replace(excuse, "\n    Schedule()"), encoding="utf-8")
    line = 1 + text[: text.index(excuse)].count("\n")
    assert mypy(cache, program).stdout == (
        f'wrong.py:{line}: error: Module has no attribute "Halving"  [attr-defined]\n'
        "Found 1 error in 1 file (checked 1 source file)\n"
    )


def test_the_program_that_is_right_runs() -> None:
    assert runpy.run_path(str(PROGRAMS / "right.py"))["main"]() == 0
