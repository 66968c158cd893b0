"""A few of each of what ``python -m benchmarks.reliability`` tries many times."""

from __future__ import annotations

import doctest
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import ModuleType

import numpy as np
import pytest

import skforge

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    "formats",
    "fuzz",
    "fuzz_worker",
    "rows",
    "seeds",
    "soak",
    "sanitize",
    "faults_files",
    "faults_machine",
    "faults_process",
)

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, kills children"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def parts() -> Iterator[dict[str, ModuleType]]:
    """The modules of benchmarks/reliability."""
    for name in ("xgboost", "lightgbm", "onnx", "pandas"):
        pytest.importorskip(name)
    from importlib import import_module

    sys.path.insert(0, str(ROOT))
    yield {name: import_module(f"benchmarks.reliability.{name}") for name in PARTS}
    sys.path.remove(str(ROOT))


@pytest.fixture(scope="module")
def seeds(parts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds")
    parts["seeds"].make_seeds(folder)
    return folder


def test_examples_in_the_modules(parts):
    tried = sum(doctest.testmod(module).attempted for module in parts.values())
    assert tried >= 4
    assert not any(doctest.testmod(module).failed for module in parts.values())


# ------------------------------------------------------------ fuzzing

KINDS = ("XGBoost JSON", "XGBoost UBJSON", "LightGBM text", "ONNX", ".skforge")


@pytest.mark.parametrize("kind", KINDS)
def test_changed_files_end_in_our_errors(kind, parts, seeds, tmp_path):
    assert set(KINDS) == set(parts["formats"].FORMATS)
    path = tmp_path / f"mutant{parts['formats'].FORMATS[kind]}"
    ended = {"refused": 0, "read": 0}
    with np.errstate(all="ignore"):
        for number in range(80):
            path.write_bytes(parts["formats"].mutant(kind, number, seeds))
            outcome, what = parts["fuzz_worker"].attempt(path, Random(number))
            assert outcome != "lost", (number, what)
            ended[outcome] += 1
    assert min(ended.values()) > 3


def test_the_same_number_is_the_same_file(parts, seeds):
    for kind in KINDS:
        first, again, other = (
            parts["formats"].mutant(kind, number, seeds) for number in (5, 5, 6)
        )
        assert first == again
        assert first != other


def test_an_error_of_others_is_lost(parts, seeds, tmp_path, monkeypatch):
    path = tmp_path / "model.json"
    path.write_bytes(b"{}")
    assert parts["fuzz_worker"].attempt(path, Random(0))[0] == "refused"

    def fails(_path):
        raise MemoryError("much")

    monkeypatch.setattr(skforge, "load_forest", fails)
    outcome, what = parts["fuzz_worker"].attempt(path, Random(0))
    assert outcome == "lost"
    assert what.startswith("read: MemoryError in ")


@pytest.mark.parametrize(
    ("code", "lost"),
    [
        ("os.kill(os.getpid(), 9)", "the process ended with -9"),
        ("time.sleep(100)", "hangs for 1 s"),
    ],
)
def test_a_worker_that_dies_or_hangs_has_lost_its_file(
    code, lost, parts, monkeypatch, tmp_path
):
    fuzz = parts["fuzz"]
    text = "import os, sys, time; n = int(sys.argv[2]); print(n, flush=True)\n"
    text += 'print(\'["read", "", 0.1, 5]\', flush=True)\n'
    text += f"if n < 3: print(n + 1, flush=True); {code}"
    monkeypatch.setattr(fuzz, "WORKER", (sys.executable, "-c", text))
    monkeypatch.setattr(fuzz, "SECONDS", 1.0)
    tally = fuzz._Tally()
    fuzz._chunk("ONNX", 0, 5, tmp_path, tally)
    assert tally.lost == {lost: [1, 3]}
    assert tally.outcomes == {"read ": 3, "lost": 2}
    row = fuzz._row("ONNX", tally)
    assert (row.tried, row.survived) == (5, 3)
    assert row.lost == [f"{lost} (2 files, such as 1)"]


# ------------------------------------------------------------ faults


def test_files(parts, tmp_path):
    files = parts["faults_files"]
    rows = [
        files.killed_while_saving(tmp_path, 5),
        *files.damaged_everywhere(tmp_path, (0,), 500),
        files.disk_full_while_saving(tmp_path, 1000, by_system=False),
    ]
    assert [row.lost for row in rows] == [[]] * 6
    assert all(row.tried == row.survived >= 5 for row in rows)


def test_a_damaged_file_that_loads_is_lost(parts, tmp_path):
    row = parts["rows"].Row("", "")
    X, _ = parts["seeds"].rows(20)
    parts["seeds"].make_seeds(tmp_path)
    path = tmp_path / "forest.skforge"
    parts["faults_files"]._judge(row, path, X, "another model", "one bit")
    assert row.lost == ["one bit: another model was loaded"]


def test_forks(parts):
    row = parts["faults_process"].fork_while_compiling(2)
    assert (row.tried, row.lost) == (2, [])


def test_lowest_versions_are_those_of_the_project(parts):
    found = parts["faults_machine"].lowest()
    names = {one.partition(">=")[0] for one in found}
    assert names >= {"numpy", "scikit-learn", "llvmlite", "xgboost", "lightgbm", "onnx"}


# ------------------------------------------------------------ soak, sanitizers


def test_soak(parts, tmp_path):
    from sklearn.ensemble import RandomForestClassifier

    soak = parts["soak"]
    X = np.random.default_rng(0).standard_normal((soak._ALL, 5)).astype(np.float32)
    words = np.where(X[:, 0] > 0, "ash", "elm")
    source = RandomForestClassifier(4, max_depth=4, random_state=0)
    source.fit(X[:300], words[:300])
    one = soak._subject("random forest", source, X, ("predict", "predict_proba"))
    calls, memory = soak.soak(300, tmp_path, 4, [one])
    assert (calls.tried, calls.survived, calls.lost) == (300, 300, [])
    assert calls.facts["churned"]["loads"] >= 1
    assert memory.tried == 3
    one.expected["predict_proba"] = one.expected["predict_proba"][::-1]
    calls, _ = soak.soak(40, tmp_path, 2, [one])
    assert calls.lost
    assert calls.survived < 40


def test_sanitizers(parts, tmp_path):
    rows = parts["sanitize"].run(tmp_path, 60, 5, ("isolation forest",))
    assert [row.lost for row in rows] == [[], []]
    for row in rows:
        assert row.left_out or row.tried >= 4


def test_a_value_read_past_the_rows_is_lost(parts, tmp_path, monkeypatch):
    sanitize = parts["sanitize"]
    kind = "address,undefined"
    monkeypatch.setattr(sanitize, "FLAGS", {kind: sanitize.FLAGS[kind]})
    driver = sanitize._DRIVER.replace("(int64_t)n, ", "(int64_t)n + 1, ")
    assert driver != sanitize._DRIVER
    monkeypatch.setattr(sanitize, "_DRIVER", driver)
    (row,) = sanitize.run(tmp_path, 60, 5, ("isolation forest",))
    if row.left_out:
        pytest.skip(row.left_out)
    assert row.survived == 0
    assert all("AddressSanitizer" in what for what in row.lost)


def test_the_table_says_what_was_lost(parts):
    Row = parts["rows"].Row
    lost = Row("faults", "a thing", 30, 5, [f"try {n}" for n in range(25)], "notes")
    left_out = Row("faults", "another", left_out="there is no such machine")
    text = parts["rows"].to_markdown([lost, left_out], "A machine.")
    assert "| faults | a thing | 30 | 5 | 25 | notes |\n" in text
    assert "| faults | another | 0 | 0 | 0 | not tried: there is no such" in text
    assert text.endswith("- try 19\n- and 5 more\n")
