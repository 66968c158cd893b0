"""skforge predict: the same bits as in Python, in every format, with names."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeRegressor

import skforge
from tests.plain import plain
from tests.programs import command

xgboost = pytest.importorskip("xgboost")
pd = pytest.importorskip("pandas")

ROOT = Path(__file__).parents[2]
NAMES = ["age", "size", "rooms"]


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    return partial(command, capsys, "predict")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with models and rows."""
    folder = tmp_path_factory.mktemp("predict")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)).astype(np.float32), columns=NAMES)
    frame.iloc[::7, 1] = np.nan
    y = (frame["age"] + frame["rooms"] > 0).to_numpy()
    named = xgboost.XGBClassifier(n_estimators=3, max_depth=3).fit(frame, y)
    named.save_model(folder / "model.json")
    words = np.array(["no, never", "yes"])[y.astype(int)]
    forest = RandomForestClassifier(3, max_depth=3).fit(frame.fillna(0), words)
    fast = plain(forest).fit(frame.fillna(0))
    skforge.save(fast, folder / "words.skforge")
    tree = DecisionTreeRegressor(max_depth=3).fit(frame.fillna(0).to_numpy(), y)
    skforge.save(skforge.load_forest(tree), folder / "tree.skforge")
    frame[["rooms", "age", "size"]].to_csv(folder / "rows.csv", index=False)
    frame.fillna(0).to_csv(folder / "full.csv", index=False)
    np.save(folder / "rows.npy", frame.to_numpy())
    return folder


def rows(files, name="rows.csv"):
    return pd.read_csv(files / name)[NAMES].to_numpy(np.float32)


METHODS = {
    "predict": "predict",
    "proba": "predict_proba",
    "raw": "predict_raw",
    "contribs": "predict_contribs",
}


@pytest.mark.parametrize("method", METHODS)
def test_printed_csv_has_the_bits_of_python(run, files, method):
    code, out, err = run(files / "model.json", files / "rows.csv", "--method", method)
    assert code == 0
    time = r"[\d.]+ m?s"
    told = rf"60 rows in {time}: {time} to open, then [\d,]+ rows/s\n"
    assert re.fullmatch(told, err)
    fast = plain(files / "model.json").fit(rows(files))
    expected = getattr(fast, METHODS[method])(rows(files))
    head, *lines = csv.reader(io.StringIO(out))
    values = np.array(lines).astype(expected.dtype)
    assert values.tobytes() == np.ascontiguousarray(expected).tobytes()
    names = {
        "predict": ["prediction"],
        "proba": ["probability_0", "probability_1"],
        "raw": ["raw"],
        "contribs": [f"contribution_{name}" for name in (*NAMES, "bias")],
    }
    assert head == names[method]


@pytest.mark.parametrize("ending", ["csv", "parquet", "npy"])
def test_every_format_holds_the_same(run, files, tmp_path, ending):
    path = tmp_path / f"out.{ending}"
    given = files / ("rows.npy" if ending == "npy" else "rows.csv")
    code, out, err = run(files / "model.json", given, "--contribs", "-o", path)
    assert (code, out) == (0, "")
    assert err.startswith(f"saved {path}: 60 rows, 4 columns in ")
    fast = plain(files / "model.json").fit(rows(files))
    expected = fast.predict_contribs(rows(files))
    if ending == "npy":
        found = np.load(path)
    else:
        table = (pd.read_csv if ending == "csv" else pd.read_parquet)(path)
        assert list(table) == [f"contribution_{name}" for name in (*NAMES, "bias")]
        found = table.to_numpy(np.float32)
    assert found.tobytes() == expected.tobytes()


def test_saved_models_and_labels_that_are_texts(run, files, tmp_path):
    model, given = files / "words.skforge", files / "full.csv"
    labels = skforge.load(model).predict(pd.read_csv(given)).tolist()
    code, out, _ = run(model, given)
    assert code == 0
    assert pd.read_csv(io.StringIO(out))["prediction"].tolist() == labels
    assert run(model, given, "-o", "out.npy")[0] == 0
    assert np.load(tmp_path / "out.npy").ravel().tolist() == labels
    _, out, _ = run(model, given, "--contribs")
    head = next(csv.reader(io.StringIO(out)))
    assert head[:4] == [f"contribution_no, never_{name}" for name in (*NAMES, "bias")]
    code, out, _ = run(files / "tree.skforge", given, "--columns", "0:3")
    assert code == 0 and out.startswith("prediction\n")


def test_texts_of_a_saved_pipeline_that_was_trained_without_names(run, tmp_path):
    frame = pd.DataFrame({"x": np.arange(30.0) % 7, "city": [*"abcab"] * 6})
    X, y = frame.to_numpy(object), frame["city"] == "b"
    steps = make_column_transformer((OneHotEncoder(), [1]), remainder="passthrough")
    model = make_pipeline(steps, RandomForestClassifier(2)).fit(X, y)
    skforge.save(plain(model).fit(X), tmp_path / "model.skforge")
    frame.to_csv("rows.csv", index=False)
    code, out, _ = run("model.skforge", "rows.csv", "--method=proba")
    found = pd.read_csv(io.StringIO(out)).to_numpy(float)
    assert code == 0 and found.tobytes() == model.predict_proba(X).tobytes()
    frame.replace("c", "new").to_csv("rows.csv", index=False)
    why = "row 2 has 'new' in column 1 (object), a text that training rows did not have"
    assert why in run("model.skforge", "rows.csv")[2]


def test_a_range_of_columns_with_other_names_warns(run, files):
    model, given = files / "model.json", files / "rows.csv"
    code, out, err = run(model, given, "--columns", "0:3")
    assert code == 0 and out != run(model, given)[1]
    assert err.startswith(
        "warning: --columns 0:3 takes rooms,age,size; the model's columns are "
        "age,size,rooms. Without --columns they are found by name.\n"
    )
    # those of the model, or chosen by their names
    for path, columns in ((files / "full.csv", "0:3"), (given, "rooms,age,size")):
        assert "warning" not in run(model, path, "--columns", columns)[2]


def test_a_reader_that_has_seen_enough_is_no_error(files):
    script = f"{sys.executable} -m skforge predict {files}/model.json {files}/rows.csv"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {script} --contribs | true"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")  # no rows a second either


def test_values_that_the_source_refuses(run, files, tmp_path):
    X = np.random.default_rng(0).normal(size=(50, 3))
    model = GradientBoostingRegressor(n_estimators=2).fit(X, X[:, 0])
    fast = plain(model).fit(X)
    skforge.save(fast, tmp_path / "boosting.skforge")
    for option in ("--method=predict", "--contribs"):
        found = run("boosting.skforge", files / "rows.npy", option)
        why = "error: rows.npy is refused: Input X contains NaN.\n"
        assert found == (2, "", why)
