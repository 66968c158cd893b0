"""What benchmarks/regression.py compares, and a run of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import regression
from benchmarks.regression import Comparison, Line, report, worse
from skforge import load_forest

pytest.importorskip("xgboost")
from executed import executed
from regression_worker import calls_of
from sklearn.tree import DecisionTreeRegressor

ROOT = Path(__file__).parents[2]


LINES = [
    Line("a", 1, "code bytes", 100, 103),
    Line("a", 1, "model bytes", 100, 101),
    Line("b", 1, "code bytes", 100, 50),
    Line("b", 64, "Python calls", 0, 2),
    Line("a", 1, "µs a call", 2.0, 3.0, True),
]


def test_counts_that_grew_are_worse_and_times_are_apart():
    assert [(line.model, line.ratio) for line in worse(LINES, 0.02)] == [
        ("b", float("inf")),
        ("a", 1.03),
    ]
    assert worse(LINES, 0.02, times=True) == [LINES[-1]]
    assert Line("a", 1, "code bytes", 0, 0).ratio == 1.0


def test_the_report_names_what_got_worse():
    found = Comparison(LINES, ["a, 1 rows: 3 of 4 values"], {"GPU": "no nvdisasm"})
    text = report(found, "old", "new", 0.02, 0.1)
    assert text.startswith(
        "## new by old\n\n"
        "**Answers differ, or are missing**\n\n"
        "- a, 1 rows: 3 of 4 values\n\n"
        "Counts that got worse, by more than 2%:\n\n"
    )
    assert "| a | 1 | code bytes | 100 | 103 | **1.030** |" in text
    assert "| a | 1 | µs a call | 2.00 | 3.00 | **1.500** |" in text
    assert "model bytes | 100" not in text
    assert "| code bytes | 2 | 0.500 | 0.765 | 1.030 |" in text
    assert text.endswith("Not compared – GPU: no nvdisasm")


class Told:
    """A remote whose answers are known."""

    def __init__(self, **answers):
        self.answers = answers

    def ask(self, command, seconds=None, **arguments):
        return self.answers.get(command)

    def array(self, command, **arguments):
        return self.answers[command]


def test_answers_are_compared_by_bits():
    zero = np.zeros(3, np.float32)
    for other, said in (
        (zero, []),
        (np.array([0, -0.0, np.nan], np.float32), ["m, 3 rows: 2 of 3 values"]),
        (zero.astype(float), ["m, 3 rows: float32[3] and float64[3]"]),
    ):
        remotes = {"base": Told(answer=zero), "head": Told(answer=other)}
        model = type("Model", (), {"name": "m"})
        assert regression._different(model, 3, remotes) == said


def test_only_what_both_count_is_compared():
    remotes = {
        "base": Told(counts={"counts": {"x": 2}, "reasons": {"y": "none"}}),
        "head": Told(counts={"counts": {"x": 3, "y": 1}, "reasons": {}}),
    }
    left_out = {}
    model = type("Model", (), {"name": "m"})
    lines = regression._counted(model, 8, remotes, left_out)
    assert lines == [Line("m", 8, "x", 2, 3)]
    assert left_out == {"y": "none (base, m)"}


def test_calls_of_python_and_c_are_counted():
    assert calls_of(lambda: None) == 0
    assert calls_of(lambda: len(str(abs(-1)))) == 2  # str is a type, not a call


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("valgrind"), reason="needs valgrind")
@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_executed_instructions_grow_with_the_rows():
    rows = np.random.default_rng(0).random((64, 4)).astype(np.float32)
    forest = load_forest(DecisionTreeRegressor(max_depth=4).fit(rows, rows[:, 0]))
    few, more = executed(forest, rows[:1]), executed(forest, rows)
    assert executed(forest, rows[:1]) == few
    assert 5 < few < more


@pytest.mark.slow
def test_a_commit_by_itself_is_never_worse(tmp_path):
    command = [sys.executable, "-m", "benchmarks.regression", ".", "."]
    options = ["--models", "synthetic-5x4-3", "--batches", "8", "--rounds", "3"]
    done = subprocess.run(
        [*command, *options, "--json", str(tmp_path / "found.json")],
        cwd=ROOT,
        env={**os.environ, "SKFORGE_BENCH_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Counts that got worse, by more than 2%: none" in done.stdout
    assert re.search(r"\| kernel instructions \| 1 \| 1.000 ", done.stdout)
    assert re.search(r"\| µs a call \| 1 \| ", done.stdout)
