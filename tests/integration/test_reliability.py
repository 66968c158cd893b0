"""A few of each of what ``python -m tests.reliability`` tries many times."""

from __future__ import annotations

import doctest
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, replace
from random import Random

import numpy as np
import pytest

import skforge
from benchmarks.reliability import page
from tests.reliability import (
    faults_files,
    faults_machine,
    faults_process,
    formats,
    fuzz,
    fuzz_drawn,
    fuzz_worker,
    profiles,
    sanitize,
    soak,
)
from tests.reliability import oracle as libraries
from tests.reliability import seeds as good_files
from tests.reliability.rows import Row

for library in ("xgboost", "lightgbm", "onnx", "pandas"):
    pytest.importorskip(library)

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, kills children"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds")
    good_files.make_seeds(folder)
    return folder


@pytest.mark.parametrize("module", [faults_machine, libraries, soak])
def test_examples_in_the_modules(module):
    failed, tried = doctest.testmod(module)
    assert tried and not failed


# ------------------------------------------------------------ fuzzing

LIBRARIES = ("XGBoost JSON", "XGBoost UBJSON", "LightGBM text", "ONNX")
KINDS = (*LIBRARIES, ".skforge", "tuning record")


@contextmanager
def oracle_of(kind, seeds):
    """Give the library that judges a kind of file; None if there is none."""
    if kind not in LIBRARIES:
        yield None
        return
    if kind == "ONNX":
        pytest.importorskip("onnxruntime")
    oracle = libraries.Oracle(kind, formats.files(kind, seeds)[0])
    yield oracle
    oracle.close()


@pytest.mark.parametrize("kind", KINDS)
def test_changed_files_are_predicted_as_their_library_does(kind, seeds, tmp_path):
    assert set(KINDS) == set(formats.FORMATS)
    assert set(LIBRARIES) == set(libraries.LIBRARIES)
    path = tmp_path / f"mutant{formats.FORMATS[kind]}"
    ended = Counter()
    with oracle_of(kind, seeds) as oracle, np.errstate(all="ignore"):
        for number in range(40):
            path.write_bytes(formats.mutant(kind, number, seeds))
            found = fuzz_worker.attempt(path, Random(number), oracle, seeds)
            assert found[0] != "lost", (number, found)
            ended[found[0]] += 1
    assert min(40 - ended["read"], ended["read"]) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_good_files_are_read_by_both(kind, seeds, tmp_path):
    files = formats.files(kind, seeds)[-6:]
    with oracle_of(kind, seeds) as oracle, np.errstate(all="ignore"):
        for file in files:
            found = fuzz_worker.attempt(file, Random(1), oracle, seeds)
            assert found[0] == "read", (file.name, found)


@pytest.mark.parametrize("kind", LIBRARIES)
def test_other_bits_than_the_library_s_are_lost(kind, seeds, monkeypatch):
    file = formats.files(kind, seeds)[-1]
    real = fuzz_worker.reference_raw
    monkeypatch.setattr(
        fuzz_worker, "reference_raw", lambda *a: np.nextafter(real(*a), 9)
    )
    with oracle_of(kind, seeds) as oracle:
        outcome, what = fuzz_worker.attempt(file, Random(1), oracle, seeds)
    assert outcome == "lost"
    assert what.startswith("wrong: ")


def test_what_only_one_reads_is_a_class_of_its_own(seeds, tmp_path):
    good = formats.files("LightGBM text", seeds)[-1]
    path = tmp_path / "mutant.txt"
    with oracle_of("LightGBM text", seeds) as oracle:
        path.write_text(good.read_text().replace("\nversion=v4", "\nversion=v4\nnew=1"))
        outcome, what = fuzz_worker.attempt(path, Random(1), oracle, seeds)
        assert (outcome, what[:47]) == (
            "differ",
            "skforge refuses what it reads: UnsupportedModel",
        )
        path.write_text(
            good.read_text().replace("feature_infos=", "feature_infos=[0:1] ")
        )
        outcome, what = fuzz_worker.attempt(path, Random(1), oracle, seeds)
        assert (outcome, what[:30]) == ("differ", "skforge reads what it refuses:")


def test_a_library_that_crashes_or_hangs_ends_nothing(monkeypatch, tmp_path):
    """What answers is a child; its end is an answer, and another child goes on."""
    code = (
        "import os, sys, time\n"
        "from tests.reliability import oracle\n"
        "oracle.SECONDS = 1\n"
        "def read(path):\n"
        "    if path == 'abort': os.abort()\n"
        "    if path == 'sleep': time.sleep(60)\n"
        "    if path == 'refuse': raise ValueError('no model')\n"
        "    return path, oracle.Answer('read', '', 3)\n"
        "def predict(model, rows):\n"
        "    return {'raw': rows + len(model)}\n"
        "oracle.LIBRARIES['toy'] = lambda: (read, predict)\n"
        "oracle.main('toy', 'good')\n"
    )
    real = subprocess.Popen

    def start(command, **options):
        return real((sys.executable, "-c", code), **options)

    monkeypatch.setattr(libraries.subprocess, "Popen", start)
    toy = libraries.Oracle("toy", tmp_path)
    said = []
    for name in ("good", "abort", "good", "sleep", "refuse", "good"):
        answer = toy.load(name)
        said.append((answer.outcome, answer.what))
    assert said == [
        ("read", ""),
        ("crashed", "SIGABRT"),
        ("read", ""),
        ("crashed", "hangs"),
        ("refused", "ValueError: no model"),
        ("read", ""),
    ]
    np.testing.assert_array_equal(toy.predict(np.zeros(2)).outputs["raw"], [4, 4])
    toy.renew()
    assert toy.load("good").n_features == 3
    toy.close()


def test_the_same_number_is_the_same_file(seeds):
    for kind in KINDS:
        first, again, other = (
            formats.mutant(kind, number, seeds) for number in (5, 5, 6)
        )
        assert first == again
        assert first != other


def test_an_error_of_others_is_lost(seeds, tmp_path, monkeypatch):
    path = tmp_path / "model.json"
    path.write_bytes(b"{}")

    def fails(_path):
        raise MemoryError("much")

    with oracle_of("XGBoost JSON", seeds) as oracle:
        attempt = fuzz_worker.attempt
        assert attempt(path, Random(0), oracle, seeds)[0] == "refused"
        monkeypatch.setattr(skforge, "load_forest", fails)
        outcome, what = attempt(path, Random(0), oracle, seeds)
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
    code, lost, monkeypatch, tmp_path
):
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


# ------------------------------------------------------------ forms of models


def test_a_form_that_answers_otherwise_is_lost(monkeypatch):
    made = {
        0: [[0, "onnx", "bytes: same"], [0, "onnx", "path: wrong: raw differs"]],
        25: [[25, "onnx", "bytes: refused"], [25, "onnx", "text: error: x"]],
    }
    monkeypatch.setattr(fuzz_drawn, "chunk", lambda kind, first, last: made[first])
    (row,) = fuzz_drawn.models(fuzz_drawn.CHUNK + 1, 1)
    assert (row.what, row.tried, row.survived) == ("forms of onnx models", 4, 2)
    assert row.lost == ["model 0, path: wrong: raw differs", "model 25, text: error: x"]
    assert row.notes.startswith("2 models; 1 forms have every bit")


def test_a_pipeline_that_answers_otherwise_is_lost(monkeypatch):
    made = {
        0: [[0, "wrappers", "", 3, 30, ["SVC"]], [1, "wrappers", "x", 4, 1000, []]],
        25: [[25, None, "this or the next model: crashed"]],
    }
    monkeypatch.setattr(fuzz_drawn, "chunk", lambda kind, first, last: made[first])
    wrappers, crashes = fuzz_drawn.pipelines(fuzz_drawn.CHUNK + 1, 1)
    assert (wrappers.tried, wrappers.lost) == (2, ["model 1: x"])
    assert wrappers.notes.startswith("7 calls on 1,030 rows")
    assert crashes.lost == ["model 25: this or the next model: crashed"]


def test_a_process_that_ends_is_lost():
    ((seed, family, what),) = fuzz_drawn.chunk("no such kind", 7, 9)
    assert (seed, family) == (7, None)
    assert what.startswith("this or the next model: the process ended with 1: ")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["models", "pipelines"])
def test_random_models(kind):
    rows = getattr(fuzz_drawn, kind)(30, 2)
    assert len(rows) == 3
    assert all(row.tried >= 10 and not row.lost for row in rows)


def test_files(tmp_path):
    rows = [
        faults_files.killed_while_saving(tmp_path, 5),
        *faults_files.damaged_everywhere(tmp_path, (0,), 500),
        faults_files.disk_full_while_saving(tmp_path, 1000, by_system=False),
    ]
    assert [row.lost for row in rows] == [[]] * 6
    assert all(row.tried == row.survived >= 5 for row in rows)


def test_a_damaged_file_that_loads_is_lost(tmp_path):
    row = Row("", "")
    X, _ = good_files.rows(20)
    good_files.make_seeds(tmp_path)
    path = tmp_path / "forest.skforge"
    faults_files._judge(row, path, X, "another model", "one bit")
    assert row.lost == ["one bit: another model was loaded"]


def test_forks():
    row = faults_process.fork_while_compiling(2)
    assert (row.tried, row.lost) == (2, [])


def test_lowest_versions_are_those_of_the_project():
    found = faults_machine.lowest()
    names = {one.partition(">=")[0] for one in found}
    assert names >= {"numpy", "scikit-learn", "llvmlite", "xgboost", "lightgbm", "onnx"}


# ------------------------------------------------------------ soak, sanitizers


def test_soak(tmp_path):
    from sklearn.ensemble import RandomForestClassifier

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


@pytest.mark.slow  # test_export has them of C, the next test what they find
def test_sanitizers(tmp_path):
    rows = sanitize.run(tmp_path, 60, 5, ("isolation forest",))
    assert [row.lost for row in rows] == [[], []]
    for row in rows:
        assert row.left_out or row.tried >= 4


def test_a_value_read_past_the_rows_is_lost(tmp_path, monkeypatch):
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


def test_the_table_says_what_was_lost():
    lost = Row("faults", "a thing", 30, 5, [f"try {n}" for n in range(25)], "notes")
    left_out = Row("faults", "another", left_out="there is no such machine")
    facts = {"target": "A machine", "python": "3.11", "packages": {}}
    facts |= {"load_average": 0, "measured": "2026-11-20"}
    family = {"machine": facts, "minutes": 2, "quick": True}
    text = page({"faults": family | {"rows": [asdict(lost), asdict(left_out)]}})
    assert "2 minutes in all. A quick run: a few of each.\n" in text
    assert "| faults | a thing | 30 | 5 | 25 |\n" in text
    assert "- **faults, a thing**: notes\n" in text
    assert "| faults | another | 0 | 0 | 0 |\n" in text
    assert "- **faults, another**: not tried: there is no such" in text
    assert text.endswith("- try 19\n- and 5 more\n")


def test_a_profile_that_chooses_slower_schedules_is_lost(monkeypatch, tmp_path):
    monkeypatch.setenv("SKFORGE_MODELS", str(tmp_path))
    target = skforge.Target.x86_64("v3")
    monkeypatch.setattr(profiles.Target, "host", classmethod(lambda cls: target))
    quiet = profiles.MachineProfile.of(target)
    other = replace(quiet, mux=400 * quiet.mux)
    row = profiles._schedules(quiet, [quiet, other], 2)
    assert (row.tried, row.survived, len(row.lost)) == (2, 1, 1)
    assert row.lost[0].startswith("59 trees of depth 4, 7 features: estimated ")
