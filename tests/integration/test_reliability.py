"""A few of each of what ``python -m tests.reliability`` tries many times."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest

import skforge
from tests.reliability import (
    faults_files,
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


# ------------------------------------------------------------ fuzzing

OF_XGBOOST = "XGBoost JSON", "XGBoost UBJSON", "XGBoost binary"
LIBRARIES = (*OF_XGBOOST, "LightGBM text", "ONNX")
KINDS = (*LIBRARIES, ".skforge", "tuning record")


@pytest.fixture(scope="module", params=KINDS)
def judged(request, seeds):
    """Return a kind of file, and the library that judges it; None if there is none."""
    kind = request.param
    if kind not in LIBRARIES:
        yield kind, None
        return
    if kind == "ONNX":
        pytest.importorskip("onnxruntime")
    oracle = libraries.Oracle(kind, formats.files(kind, seeds)[0])
    yield kind, oracle
    oracle.close()


def attempted(path, number, judged, seeds):
    with np.errstate(all="ignore"):
        return fuzz_worker.attempt(path, Random(number), judged[1], seeds)


def test_changed_files_are_predicted_as_their_library_does(judged, seeds, tmp_path):
    assert set(KINDS) == set(formats.FORMATS)
    assert set(LIBRARIES) == set(libraries.LIBRARIES)
    path = tmp_path / f"mutant{formats.FORMATS[judged[0]]}"
    ended = Counter()
    for number in range(30):
        path.write_bytes(formats.mutant(judged[0], number, seeds))
        found = attempted(path, number, judged, seeds)
        assert found[0] != "lost", (number, found)
        ended[found[0]] += 1
    assert min(30 - ended["read"], ended["read"]) > 2


def test_good_files_are_read_by_both(judged, seeds, monkeypatch):
    """And a bit that is not the library's is lost, or an error of others."""
    files = formats.files(judged[0], seeds)[-6:]
    for file in files:
        found = attempted(file, 1, judged, seeds)
        assert found[0] == "read", (file.name, found)
    if judged[1] is None:
        return
    real = fuzz_worker.reference_raw
    with monkeypatch.context() as patch:
        patch.setattr(
            fuzz_worker, "reference_raw", lambda *a: np.nextafter(real(*a), 9)
        )
        outcome, what = attempted(files[-1], 1, judged, seeds)
    assert (outcome, what[:7]) == ("lost", "wrong: ")

    def fails(_path):
        raise MemoryError("much")

    monkeypatch.setattr(skforge, "load_forest", fails)
    outcome, what = attempted(files[-1], 1, judged, seeds)
    assert (outcome, what[:20]) == ("lost", "read: MemoryError in")


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


# ------------------------------------------------------------ forms of models


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
        *faults_files.damaged_everywhere(tmp_path, (0,), 61),
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


# ------------------------------------------------------------ soak, sanitizers


def test_soak(tmp_path):
    from sklearn.ensemble import RandomForestClassifier

    X = np.random.default_rng(0).standard_normal((soak._ALL, 5)).astype(np.float32)
    words = np.where(X[:, 0] > 0, "ash", "elm")
    source = RandomForestClassifier(4, max_depth=4, random_state=0)
    source.fit(X[:300], words[:300])
    one = soak._subject("random forest", source, X)
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
    rows = sanitize.run(tmp_path, 60, 5, ("isolation",))
    assert [row.lost for row in rows] == [[], []]
    for row in rows:
        assert row.left_out or row.tried >= 4


def test_a_value_read_past_the_rows_is_lost(tmp_path, monkeypatch):
    kind = "address,undefined"
    monkeypatch.setattr(sanitize, "FLAGS", {kind: sanitize.FLAGS[kind]})
    driver = sanitize._DRIVER.replace("(int64_t)n, ", "(int64_t)n + 1, ")
    assert driver != sanitize._DRIVER
    monkeypatch.setattr(sanitize, "_DRIVER", driver)
    (row,) = sanitize.run(tmp_path, 60, 5, ("isolation",))
    if row.left_out:
        pytest.skip(row.left_out)
    assert row.survived == 0
    assert all("AddressSanitizer" in what for what in row.lost)


def test_a_profile_that_chooses_slower_schedules_is_lost(monkeypatch, tmp_path):
    monkeypatch.setenv("SKFORGE_MODELS", str(tmp_path))
    target = skforge.Target.x86_64("v3")
    monkeypatch.setattr(profiles.Target, "host", classmethod(lambda cls: target))
    quiet = profiles.MachineProfile.of(target)
    other = replace(quiet, mux=400 * quiet.mux)
    row = profiles._schedules(quiet, [quiet, other], 2)
    assert (row.tried, row.survived, len(row.lost)) == (2, 1, 1)
    assert row.lost[0].startswith("59 trees of depth 4, 7 features: estimated ")
