"""docs/papers.md: whatever it names in this repository exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from skforge.schedule import PRESETS

ROOT = Path(__file__).parents[2]
FILES = (ROOT / "docs" / "papers.md", ROOT / "docs" / "appendix" / "papers.md")
PAGE = "\n".join(file.read_text(encoding="utf-8") for file in FILES)
PAPER = ROOT / "benchmarks" / "paper.py"
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
WORDS = BLOCK.sub("", PAGE)
CODE = sorted(set(re.findall(r"`([^`\n]+)`", WORDS)))


@cache
def sources() -> tuple[frozenset[str], str]:
    """Return the words of the sources, with the names of modules, and their text."""
    files = [
        f for name in ("skforge", "benchmarks") for f in (ROOT / name).rglob("*.py")
    ]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return frozenset(re.findall(r"\w+", text)) | {file.stem for file in files}, text


@cache
def paths() -> tuple[str, ...]:
    """Return each file and folder of the code, without those of environments."""
    folders = [ROOT / name for name in ("skforge", "tests", "benchmarks")]
    found = [*folders, *(path for one in folders for path in one.rglob("*"))]
    return tuple(f"/{path.relative_to(ROOT).as_posix()}" for path in found)


def is_there(code: str) -> bool:
    """Return whether the repository has what a piece of code on the page names."""
    if code.startswith("test_"):
        code = code.removesuffix(".py") + ".py"
    if command := re.fullmatch(r"python -m ([\w.]+)(?: (\w+))?( --quick)?", code):
        module = ROOT / command[1].replace(".", "/")
        figures = re.findall('"(fig\\d+)"', PAPER.read_text(encoding="utf-8"))
        known = command[2] is None or command[2] in figures
        return known and (module.exists() or module.with_suffix(".py").exists())
    if "/" in code or code.endswith(".py"):
        return any(path.endswith(f"/{code.rstrip('/')}") for path in paths())
    quoted = re.findall(r'"([^"]*)"', code)
    if code.startswith("preset("):
        return {*quoted} <= {*PRESETS}
    names, text = sources()
    words = re.findall(r"[^\W\d]\w*", re.sub(r'"[^"]*"', "", code))
    known = all(f'"{one}"' in text or one in PRESETS for one in quoted)
    return {*words} <= names and known


@pytest.mark.parametrize("code", CODE)
def test_what_is_named_in_code_exists(code):
    assert is_there(code)


def test_presets_of_the_papers_are_on_the_page():
    systems = ("xgboost", "treebeard", "tahoe", "rapids", "hummingbird")
    named = [name for name in PRESETS if name.startswith(systems)]
    assert [name for name in named if f'"{name}"' not in PAGE] == []


def test_rows_of_tables_have_as_many_cells_as_their_heads():
    tables = re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE)
    assert sum(table.count("\n") for table in tables) > 60
    for table in tables:
        head, *rows = table.splitlines()
        cells = 5 if "| command |" in head else 4
        assert [row for row in (head, *rows) if row.count("|") != cells + 1] == []


def test_each_figure_that_has_a_command_is_on_the_page():
    figures = {*re.findall('"(fig\\d+)"', PAPER.read_text(encoding="utf-8"))}
    section = PAGE.split("## The evaluation\n")[1].split("\n## ")[0]
    commands = dict(
        re.findall(r"^\| Fig\. ([\d, ]+):.*?paper (fig\d+)`", section, re.M)
    )
    assert {f"fig{n}" for some in commands for n in some.split(", ")} == figures
    assert {*commands.values()} <= figures


@pytest.mark.parametrize(
    "code",
    [
        'preset("tensors")',
        "test_paper",
        "unroll_tree.py",
        "Layout.load_thresholds",
        'reduction="hurried"',
        "python -m benchmarks.tpu",
        "python -m benchmarks.paper fig10",
    ],
)
def test_what_is_not_there_is_noticed(code):
    assert not is_there(code)
