"""Faults of ``python -m tests.reliability mutants`` go into a copy, and are found."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import pytest

from tests.reliability import mutants
from tests.reliability.code_faults import CodeFault, faults_of

CODE = """
def least(n):
    return n < 8


def untested(n):
    return n - 3
"""
TESTS = """
from skforge.grid import least


def test_that_fails_anyhow():
    raise ValueError


def test_least():
    assert least(7)
    assert not least(8)
"""
HOW = mutants.How(("core",), 1, named=True)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    plugin = Path("tests/reliability/first_failure.py")
    root = tmp_path / "tree"
    for path, text in {
        "pyproject.toml": '[tool.pytest]\nmarkers = ["slow: minutes"]\n',
        "skforge/__init__.py": "",
        "skforge/grid.py": CODE,
        "tests/reliability/__init__.py": "",
        "tests/unit/test_grid.py": TESTS,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    shutil.copy(mutants.ROOT / plugin, root / plugin)
    monkeypatch.setattr(mutants, "ROOT", root)
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")  # as in a worker
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # which take seconds
    return root


def _fault(root: Path, old: str, new: str) -> CodeFault:
    faults = faults_of(root, "skforge")["skforge/grid.py"]
    (found,) = (one for one in faults if (one.old, one.place.new) == (old, new))
    return found


def test_a_fault_is_found_by_a_test_that_passes_without_it(tree, tmp_path):
    copy = mutants.Copy(tmp_path / "copy", hang=600)
    for old, new in [("n < 8", "(n <= 8)"), ("8", "7"), ("n < 8", "(n <= 8)")]:
        outcome = mutants.tried(copy, _fault(tree, old, new), HOW)
        assert outcome.ring == "core"
        assert outcome.test == "tests/unit/test_grid.py::test_least"
        assert (copy.root / "skforge/grid.py").read_text("utf-8") == CODE
    assert copy.broken == ["tests/unit/test_grid.py::test_that_fails_anyhow"]
    assert (tree / "skforge/grid.py").read_text("utf-8") == CODE
    outcome = mutants.tried(copy, _fault(tree, "n - 3", "(n + 3)"), HOW)
    assert not outcome.ring  # no test fails
    outcome.seconds = 2.4
    assert mutants.line_of(outcome) == (
        "none         2 s  arithmetic skforge/grid.py:7  n - 3  ->  (n + 3)"
    )


def test_a_fault_that_keeps_tests_from_starting_is_found(tree, tmp_path):
    conftest = "from skforge.grid import least\n\nassert least(7)\n"
    (tree / "tests/unit/conftest.py").write_text(conftest, encoding="utf-8")
    copy = mutants.Copy(tmp_path / "copy", hang=600)
    outcome = mutants.tried(copy, _fault(tree, "8", "7"), HOW)
    assert (outcome.ring, outcome.test) == ("core", "does not start")


def test_a_test_that_crashes_pytest_has_found_a_fault(tree, tmp_path):
    tests = """
        import os, signal

        from skforge.grid import least

        def test_that_crashes_anyhow():
            os.kill(os.getpid(), signal.SIGSEGV)

        def test_least():
            if not least(7):
                os.kill(os.getpid(), signal.SIGSEGV)
    """
    file = tree / "tests/unit/test_grid.py"
    file.write_text(textwrap.dedent(tests), encoding="utf-8")
    copy = mutants.Copy(tmp_path / "copy", hang=600)
    outcome = mutants.tried(copy, _fault(tree, "8", "7"), HOW)
    assert outcome.ring == "core"
    assert outcome.test == "tests/unit/test_grid.py::test_least"
    assert copy.broken == ["tests/unit/test_grid.py::test_that_crashes_anyhow"]


def test_a_crash_while_tests_are_collected_is_found(tree, tmp_path):
    crash = "import os\n\nfrom skforge.grid import least\n\nleast(7) or os.abort()\n"
    (tree / "tests/unit/test_grid.py").write_text(crash, encoding="utf-8")
    copy = mutants.Copy(tmp_path / "copy", hang=600)
    outcome = mutants.tried(copy, _fault(tree, "8", "7"), HOW)
    assert (outcome.ring, outcome.test) == ("core", "does not start")
