"""A fact that several pages tell is told by all of them in the same way.

Each fact has a pattern, whose group is what a page says, and the one thing that may
stand there, taken from the code or a stored file. Figures of benchmarks have a test of
their own, ``test_running_text.py``, and so have times of tests, ``test_ring_times.py``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from benchmarks import running_text
from skforge import __version__
from skforge.modules.auto import GPU_MIN_ROWS
from skforge.prediction.verification import DRAWN_ROWS, SAMPLE_ROWS
from tests import ring_times

ROOT = Path(__file__).parents[2]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def pages() -> dict[str, str]:
    """Return what users read: pages, notebooks' words, and what is not released yet."""
    names = ["README.md", "CONTRIBUTING.md", "benchmarks/README.md"]
    for pattern in ("*.md", "included/*.md"):
        names += (p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").glob(pattern))
    found = {name: text_of(name) for name in sorted(names)}
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        words = ("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
        found[f"docs/notebooks/{notebook.name}"] = "\n".join(words)
    found["CHANGELOG.md"] = text_of("CHANGELOG.md").split("\n## [")[1]
    return {name: " ".join(text.split()) for name, text in found.items()}


@dataclass(frozen=True)
class Fact:
    #: What it is about.
    name: str
    #: Its group is what a page says; blanks stand for ends of lines, too.
    told: str
    true: str


def first(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    assert found, pattern
    return found[1]


def pythons() -> str:
    """Return the Pythons whose versions CONTRIBUTING lists as tested."""
    tested = re.findall(r"^\| (3\.\d+)\.\d+ \|", text_of("CONTRIBUTING.md"), re.M)
    return f"{tested[0]} to {tested[-1]}"


def own_fit() -> str:
    """Return how long ``fit`` took, the least and the most of when_not.md's table."""
    rows = re.findall(r"^\|[^|]+\| (0\.\d+) s \|", text_of("docs/when_not.md"), re.M)
    return f"{min(map(float, rows)):.1f} to {max(map(float, rows)):.1f}"


RINGS = ring_times.texts_of(json.loads(ring_times.STORED.read_text("utf-8")))
STARTS = running_text.starts(running_text.RESULTS)
FACTS = [
    Fact(
        "the oldest Python",
        r"Python (3\.\d+) or later",
        first(r'^requires-python = ">=(3\.\d+)"$', text_of("pyproject.toml")),
    ),
    Fact(
        "the oldest XGBoost",
        r"(?:in memory of XGBoost|XGBoost's estimators before|, XGBoost) (\d\.\d\.\d)",
        first(r'^xgboost = \["xgboost>=(.+)"\]$', text_of("pyproject.toml")),
    ),
    Fact("tests of core", r"(?:core, |core \| )(\d,\d{3})", RINGS["core tests"]),
    Fact("the time of core", r"(\d+ \w+) on 2 cores of Zen 4", RINGS["core time"]),
    Fact(
        "the start of a process",
        r"(\d+(?: to \d+)?) ms after NumPy is imported",
        STARTS["skforge start"],
    ),
    Fact("tested Pythons", r"with Python (3\.\d+ to 3\.\d+)", pythons()),
    Fact(
        "rows of yours that fit compares",
        r"up to (\d+) of (?:the rows you|your|them\b|these\b)",
        str(SAMPLE_ROWS),
    ),
    Fact(
        "random rows that fit compares",
        r"(\d+) random (?:ones|rows on and) around",
        str(DRAWN_ROWS),
    ),
    Fact(
        "rows from which a GPU is used unmeasured",
        r"batches of (\d+) rows and more go to the GPU",
        str(GPU_MIN_ROWS),
    ),
    Fact(
        "the seconds of fit",
        r"`fit` takes (0\.\d to 0\.\d) seconds",
        own_fit(),
    ),
    Fact(
        "this version",
        r"(?:and|of) skforge (\d+\.\d+\.\d+)(?:\.dev\d+)?(?: reads|, from)",
        first(r"^(\d+\.\d+\.\d+)", __version__),
    ),
]
#: What was true once, or is true of something else, and must not come back.
UNTRUE = {
    "kernels ran on GPUs": r"(?i)\bno kernels?\b[^.|]{0,40}\bGPU|no GPU was at hand",
    "two GPUs": r"(?:ran|run) on an? (?:NVIDIA )?H[12]00\b(?! and an H)",
    "linear trees compile": (
        r"(?i)\b(?:linear (?:leaves|trees)|boosters and leaves)\b[^.|]{0,60}"
        r"(?<!contributions of )\b(?:are|is) not (?:supported|compiled|read)"
    ),
    "macOS is not tested": r"(?i)tested on (?:Linux and )?macOS|Linux, macOS on Apple",
}


def contradictions(texts: dict[str, str]) -> list[str]:
    """Return what pages say otherwise than the facts."""
    found = [
        f"{page}: {match[0]!r}, but {fact.name}: {fact.true}"
        for page, text in texts.items()
        for fact in FACTS
        for match in re.finditer(fact.told, text)
        if match[1] != fact.true
    ]
    found += [
        f"{page}: {match[0]!r}, but {fact}"
        for page, text in texts.items()
        for fact, pattern in UNTRUE.items()
        for match in re.finditer(pattern, text)
    ]
    return found


def test_no_page_contradicts_a_fact() -> None:
    assert contradictions(pages()) == []


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
def test_a_fact_is_told_and_another_one_is_found(fact: Fact) -> None:
    telling = [name for name, text in pages().items() if re.search(fact.told, text)]
    assert telling
    for name in telling:
        text = pages()[name]
        told = re.search(fact.told, text)
        assert told is not None
        start, end = told.span(1)
        (*_, last) = re.finditer(r"\d", fact.true)
        other = str((int(last[0]) + 1) % 10)
        other = fact.true[: last.start()] + other + fact.true[last.end() :]
        planted = text[:start] + other + text[end:]
        (found,) = contradictions({name: planted})
        assert found.startswith(f"{name}: ")
        assert found.endswith(f", but {fact.name}: {fact.true}")


@pytest.mark.parametrize(
    ("sentence", "fact"),
    [
        ("On GPUs: no kernel has run on a GPU yet.", "kernels ran on GPUs"),
        ("No GPU was at hand.", "kernels ran on GPUs"),
        ("GPU kernels ran on an NVIDIA H100, exactly.", "two GPUs"),
        ("Linear boosters and leaves are not supported.", "linear trees compile"),
        ("LightGBM's linear trees are not supported.", "linear trees compile"),
        ("It is tested on Linux and macOS.", "macOS is not tested"),
    ],
)
def test_what_was_once_said_is_found(sentence: str, fact: str) -> None:
    planted = {"page": f"Words. {sentence} More."}
    assert [found.split(", but ")[1] for found in contradictions(planted)] == [fact]
