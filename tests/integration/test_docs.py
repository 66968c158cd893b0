"""README and docs: their Python runs, and prints exactly what they say it prints.

Blocks of a page run in order in one namespace. A ``text`` block right after a
``python`` block is its output; ``--update-golden`` writes it anew. Whatever
docs/papers.md names in this repository exists.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from unittest import mock

import pytest

from skforge.schedule import PRESETS
from skforge.schedule.directives import BY_NAME

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    page
    for page in (ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("appendix/*.md"))
    if "```python\n" in page.read_text(encoding="utf-8")
)
FRONT_PAGES = [ROOT / "README.md", DOCS / "index.md"]
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:```text\n(?P<text>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)

#: What the front pages say of their example: a call that measures, and what it prints.
GAINED = re.compile(r"from `(print\(.*?\))`[^\n]*\n\n```text\n(.*?)^```\n", re.S | re.M)


def with_true_outputs(page: str, name: str) -> tuple[str, list[str]]:
    """Return the page with every output as it really is, and the code blocks."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    blocks: list[str] = []

    def run(block: re.Match[str]) -> str:
        code, text = block["code"], block["text"]
        line = page.count("\n", 0, block.start()) + 1
        blocks.append(code)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + code, name, "exec"), namespace)
        out = printed.getvalue()
        if text is None:
            assert out == "", f"{name}, line {line}: what it prints is not shown"
            return block[0]
        return f"```python\n{code}```\n```text\n{out}```\n"

    return BLOCK.sub(run, page), blocks


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_prints_what_the_page_says(page, request, tmp_path, monkeypatch):
    pytest.importorskip("xgboost")
    if page.name == "distributed.md":
        pytest.importorskip("dask", reason="needs skforge[dask]")
    if page.name == "leaf_weights.md":
        pytest.importorskip("quantile_forest")
    if page.name == "queries.md":
        pytest.importorskip("polars")
        pytest.importorskip("duckdb")
    if page.name == "explain.md":
        pytest.importorskip("shap")
        pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    written = page.read_text(encoding="utf-8")
    with mock.patch.dict(os.environ):  # pages set variables
        true, blocks = with_true_outputs(written, page.name)
    if request.config.getoption("--update-golden") and true != written:
        page.write_text(true, encoding="utf-8")
        pytest.skip(f"wrote {page.name}; read the diff")
    assert true == written
    assert len(blocks) == written.count("```python\n")


def test_the_front_pages_show_what_summary_prints(request, tmp_path, monkeypatch):
    pytest.importorskip("xgboost")
    pages = {page: page.read_text("utf-8") for page in FRONT_PAGES}
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    readme = pages[FRONT_PAGES[0]]
    exec(BLOCK.search(readme)["code"], namespace)
    call, shown = GAINED.search(readme).groups()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(call, namespace)
    # the sizes and what answers are facts; the times are one machine's
    lines = printed.getvalue().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("  batch size"))
    table = "\n".join(lines[first : first + len(shown.splitlines())]) + "\n"
    if request.config.getoption("--update-golden"):
        for page, text in pages.items():
            page.write_text(text.replace(shown, table), encoding="utf-8")
        pytest.skip("wrote the front pages; read the diff")
    assert unmeasured(shown) == unmeasured(table)
    assert all(GAINED.search(text)[2] == shown for text in pages.values())


def unmeasured(table):
    """Return a table of times without them, and without the width of its columns."""
    return re.sub(" +", " ", re.sub(r"[\d,.]+ [nµm]?s|[\d,.]+×", "t", table))


def test_a_wrong_output_is_noticed():
    page = "```python\nprint(1 + 1)\n```\n```text\n3\n```\n"
    true, _ = with_true_outputs(page, "page")
    assert true == page.replace("3", "2")


def test_an_output_that_is_not_shown_is_noticed():
    with pytest.raises(AssertionError) as error:
        with_true_outputs("Words\n\n```python\nprint(1)\n```\n", "page")
    assert str(error.value).startswith("page, line 3: what it prints is not shown")


def test_every_directive_has_its_section():
    page = (ROOT / "docs" / "schedules.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (\w+)$", page, re.MULTILINE)
    assert sorted(sections) == sorted([*BY_NAME, "Presets"])
    for name in BY_NAME:
        section = page.split(f"## {name}\n")[1].split("\n## ")[0]
        for said in ("- Legal when: ", "- Good for: ", "- Costs: ", "\ncompare("):
            assert said in section, (name, said)
        assert f"[{name}](#{name})" in page


@pytest.mark.parametrize("module", ["skforge", "skforge.tuning", "skforge.exceptions"])
def test_the_api_reference_has_every_public_name(module):
    page = (ROOT / "docs" / "api.rst").read_text(encoding="utf-8")
    module = import_module(module)
    names = getattr(module, "__all__", [n for n in vars(module) if n[0].isupper()])
    listed = re.findall(r"^(?:   |\.\. autoexception:: )(\w+)$", page, re.MULTILINE)
    assert set(names) - {"__version__"} <= set(listed)


@pytest.mark.parametrize(
    "page", ["README.md", "benchmarks/README.md", "docs/README.md", "docs/index.md"]
)
def test_links_lead_to_files(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert targets
    missing = [t for t in targets if not (ROOT / page).parent.joinpath(t).exists()]
    assert missing == []


def test_the_quick_start_is_two_commands():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    quick_start = readme.split("## Quick start\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", quick_start, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    assert all(block.count("\n") == 1 for block in blocks)
    assert readme.count("```sh") == 2
    assert blocks[0].rstrip().endswith("/skforge demo")
    assert blocks[1].rstrip().endswith("-m pytest -n auto --dist worksteal")


FILES = (
    ROOT / "docs" / "papers.md",
    ROOT / "docs" / "appendix" / "papers.md",
)
PAGE = "\n".join(file.read_text(encoding="utf-8") for file in FILES)
PAPER = ROOT / "benchmarks" / "paper.py"
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
WORDS = FENCED.sub("", PAGE)
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
