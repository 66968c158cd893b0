"""docs/papers.md: whatever it names in this repository exists."""

from __future__ import annotations

import ast
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
def said_in_sources() -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that the sources define, and the texts in them."""
    names: set[str] = set()
    texts: set[str] = set()
    for folder in ("skforge", "benchmarks"):
        for file in (ROOT / folder).rglob("*.py"):
            names.add(file.stem)
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                match node:
                    case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                        names.add(name)
                    case ast.arg(arg=name) | ast.AnnAssign(target=ast.Name(id=name)):
                        names.add(name)
                    case ast.Constant(value=str(text)):
                        texts.add(text)
                    case _:
                        pass
    return frozenset(names), frozenset(texts)


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
    names, texts = said_in_sources()
    words = re.findall(r"[^\W\d]\w*", re.sub(r'"[^"]*"', "", code))
    return {*words} <= names and {*quoted} <= {*texts, *PRESETS}


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
