"""From a model to answers: by an entry, a file, an export, searched schedules."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.inspection import partial_dependence

import skforge
from skforge import CompiledForest
from skforge.tuning import Random, ScheduleSpace, Tuner
from tests.oracles.shap_values import shap_values

pytestmark = pytest.mark.doors

X = np.random.default_rng(0).normal(size=(300, 4))
Y = np.array(["no", "yes"])[(X[:, 0] > X[:, 1] ** 2).astype(int)]

ANSWER = """
import sys
import numpy as np
import skforge

fast = skforge.load(sys.argv[1])
assert "sklearn.ensemble" not in sys.modules
np.save(sys.argv[2], fast.predict_proba(np.load(sys.argv[3])))
"""


@pytest.fixture(scope="module")
def fast() -> CompiledForest:
    model = RandomForestClassifier(9, max_depth=5, random_state=0)
    return CompiledForest(model, tuning="off").fit(X, Y)


def test_an_entry_answers_small_batches(fast: CompiledForest) -> None:
    before = fast.counters()["entry"]["calls"]
    for n in (1, 2, 7):
        for rows in np.array_split(X[: 20 * n], 20):
            np.testing.assert_array_equal(
                fast.predict_proba(rows), fast.estimator_.predict_proba(rows)
            )
            assert fast.predict(rows).tolist() == fast.estimator_.predict(rows).tolist()
    assert fast.counters()["entry"]["calls"] > before
    assert fast.counters()["library"]["calls"] == 0


def test_a_file_answers_without_its_library(fast, tmp_path):
    model, rows, out = (tmp_path / name for name in ("m.skforge", "X.npy", "y.npy"))
    skforge.save(fast, model)
    np.save(rows, X)
    command = [sys.executable, "-c", ANSWER, str(model), str(out), str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(out), fast.estimator_.predict_proba(X))


def test_an_export_answers_without_python(fast: CompiledForest, tmp_path: Path) -> None:
    folder = skforge.export(fast, tmp_path / "model", "shared")
    facts = json.loads((folder / "model.json").read_text())
    assert facts["verified_here"]
    library = ctypes.CDLL(str(folder / facts["library"]))
    handle, rows = ctypes.c_void_p(), np.ascontiguousarray(X)
    assert library.model_open(ctypes.c_int64(1), ctypes.byref(handle)) == 0
    probabilities = np.zeros((len(X), 2))
    error = library.model_predict_proba_f64(
        handle,
        ctypes.c_void_p(rows.ctypes.data),
        *(ctypes.c_int64(number) for number in (len(rows), rows.shape[1], 1)),
        ctypes.c_void_p(probabilities.ctypes.data),
    )
    assert error == 0
    library.model_close(handle)
    np.testing.assert_array_equal(probabilities, fast.estimator_.predict_proba(X))


def test_a_search_measures_and_changes_no_prediction(fast: CompiledForest) -> None:
    walks = ScheduleSpace.cpu(threads=False).with_values(walk=["rows", "trees"])
    tuner = Tuner(Random(2), walks, budget=20)
    tuned = CompiledForest(fast.estimator_, tuning=tuner, batch_sizes=[32]).fit(X)
    result = tuned.tuning_result_
    assert {t.status for t in result.trials} <= {"measured", "stopped", "same code"}
    assert result.complete and tuned.schedule_ == dict(result.table)
    for rows in (X, X[:1], X[:20]):
        np.testing.assert_array_equal(
            tuned.predict_proba(rows), fast.estimator_.predict_proba(rows)
        )


def test_contributions_are_those_of_all_subsets(fast: CompiledForest) -> None:
    found = fast.predict_contribs(X[:9])
    expected = shap_values(fast.forest_, X[:9]).astype(float)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ["average", "individual", "both"])
def test_partial_dependence_is_that_of_the_model(fast, kind):
    given = {"kind": kind, "grid_resolution": 6}
    found = skforge.partial_dependence(fast, X, (0, 1), **given)
    expected = partial_dependence(fast.estimator_, X, (0, 1), method="brute", **given)
    assert found.keys() == expected.keys()
    for name in ("average", "individual"):
        if name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)
