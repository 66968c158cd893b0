"""Tests of ``unit/test_cli.py`` that compile or start processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

import skforge
from skforge.cli.bench import estimator_pairs
from skforge.cli.report import check, speed
from skforge.compiler.target import Target
from skforge.modules.compiled import CompiledModule
from tests.plain import plain
from tests.unit import test_cli
from tests.unit.test_cli import text_console

pytestmark = pytest.mark.doors

run, small_model = test_cli.run, test_cli.small_model

pd = pytest.importorskip("pandas")

ROOT = Path(__file__).parents[2]


# -- options ----------------------------------------------------------------------


def test_the_version(run):
    assert run("--version") == (0, f"skforge {skforge.__version__}\n", "")


@pytest.mark.parametrize("cache", ["on", "off"])
def test_doctor_shows_machine_profile_cache_and_libraries(
    run, monkeypatch, tmp_path, cache
):
    monkeypatch.setenv("SKFORGE_CACHE", cache)
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = run("doctor", "--measure")
    assert (code, err) == (0, "")
    assert str(Target.host()) in out
    assert f"numpy         {np.__version__}" in out
    assert 'target="auto"' in out and "measured now" in out
    if cache == "off":
        assert "SKFORGE_CACHE is off" in out
    else:
        assert str(tmp_path / "kept") in out


def test_warm_fills_the_cache(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SKFORGE_CACHE", "on")
    path, X = tmp_path / "m.skforge", np.random.default_rng(0).normal(size=(50, 3))
    model = RandomForestRegressor(3, random_state=0).fit(X, X[:, 0])
    skforge.save(skforge.CompiledForest(model, tuning="off").fit(X), path)
    code, out, _ = run("warm", path, path)
    entries = [*(tmp_path / "cache").glob("*/*")]
    assert code == 0
    assert out.startswith(f"{tmp_path / 'cache'}: {len(entries)} entries, ")
    assert {entry.stat().st_mode & 0o777 for entry in entries} == {0o600}
    keep = tmp_path / "cache" / "kernels" / "mine.txt"
    keep.write_text("not an entry")
    keep.chmod(0o600)
    assert run("warm", path, "--shared")[0] == 0
    assert {entry.stat().st_mode & 0o777 for entry in entries} == {0o644}
    assert keep.stat().st_mode & 0o777 == 0o600
    other = tmp_path / "other.skforge"
    model = RandomForestRegressor(3, random_state=1).fit(X, X[:, 1])
    skforge.save(skforge.CompiledForest(model, tuning="off").fit(X), other)
    before = os.umask(0o077)
    try:
        assert run("warm", other)[0] == 0
    finally:
        os.umask(before)
    more = {*(tmp_path / "cache").glob("*/*")} - {keep}
    assert more > {*entries}
    assert {entry.stat().st_mode & 0o777 for entry in more} == {0o644}


def test_methods_are_timed_bare_and_their_warnings_are_hidden():
    """What silences a call took six times as long as a compiled row."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.random((60, 3)), columns=list("abc"))
    model = RandomForestClassifier(3, random_state=0).fit(frame, frame.a > 0.5)
    fast = skforge.CompiledForest(model, tuning="off").fit(frame)
    pairs = estimator_pairs(fast)
    assert [pair.compiled for pair in pairs] == [fast.predict_proba, fast.predict]
    X, console = frame.to_numpy(), text_console()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # X has no names
        speed(console, pairs, X, [1], seconds=0.01)
        assert check(console, pairs, {"nameless": X})


@pytest.fixture
def nudged(monkeypatch):
    """Make the last bit of the fourth row's raw score wrong."""
    right = CompiledModule.predict_raw

    def predict_raw(self, X, **options):
        raw = right(self, X, **options)
        if len(raw) > 3:
            raw[3] = np.nextafter(raw[3], np.float32(np.inf))
        return raw

    monkeypatch.setattr(CompiledModule, "predict_raw", predict_raw)


BENCH = ("--seconds=0.02", "--batch-sizes=1,5")


def test_bench_of_equal_predictions(run, small_model):
    code, out, err = run("bench", small_model, *BENCH)
    assert (code, err) == (0, "")
    assert "small.json: 3 trees, " in out
    assert "Schedules" not in out
    code, out, _ = run("bench", small_model, "--verbose", *BENCH)
    parts = ("Time of one call", "bit by bit", "read in", "Schedules", "batches of 1")
    assert [*parts] == sorted(parts, key=out.index)
    module = skforge.compile_forest(skforge.load_forest(small_model))
    for schedule in module.schedules.values():
        nest = str(schedule.loop_nest(module.forest)).splitlines()[1:]
        assert "\n".join(f"    {line}" for line in nest) in out
    assert out.count("identical") == 2
    assert out.count("×") == 2


def test_bench_of_different_predictions(run, small_model, nudged):
    code, out, _ = run("bench", small_model, *BENCH)
    assert code == 1
    assert out.count("1 differ, the first in row 3") == 2
    assert "identical" not in out


@pytest.mark.parametrize("wrong", [False, True])
def test_bench_without_xgboost_compares_with_the_reference(
    run, small_model, monkeypatch, request, wrong
):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    if wrong:
        request.getfixturevalue("nudged")
    code, out, _ = run("bench", small_model, *BENCH)
    assert code == (1 if wrong else 0)
    assert "bits are compared with skforge's reference walk" in out
    assert ("1 differ, the first in row 3" in out) == wrong
    assert "per row" in out
    assert "speedup" not in out


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("library", "name", "predictor"),
    [
        ("xgboost", "airline.json", "inplace_predict"),
        ("onnxruntime", "airline.onnx", "onnxruntime"),
        ("lightgbm", "lightgbm/NYC_taxi.txt", "Booster.predict"),
        ("lightgbm", "lightgbm/multiclass.txt", "Booster.predict"),
        ("lightgbm", "lightgbm/mixed_categorical.txt", "Booster.predict"),
    ],
)
def test_bench_compares_with_the_file_s_own_library(
    run, shared_models, library, name, predictor
):
    pytest.importorskip(library)
    code, out, _ = run("bench", shared_models / name, *BENCH)
    assert code == 0, out
    assert len(re.findall(f"{predictor} .* identical$", out, re.MULTILINE)) == 2
    assert out.count("×") == 2


@pytest.fixture
def of_categories(tmp_path):
    """Return a CatBoost model with categories, and the file of its rows."""
    catboost = pytest.importorskip("catboost")
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"city": random.choice([*"abcdef"], 40), "size": range(40)})
    how = {"verbose": 0, "allow_writing_files": False, "thread_count": 1}
    model = catboost.CatBoostRegressor(iterations=3, cat_features=["city"], **how)
    model.fit(frame, frame["size"] + (frame["city"] > "c") * 9)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    return model, tmp_path / "rows.csv"


@pytest.mark.parametrize(
    ("name", "judge"),
    [
        ("m.cbm", "CatBoost.predict"),
        ("m.json", "reference"),
        ("m.skforge", "reference"),
    ],
)
def test_bench_of_categories(run, of_categories, tmp_path, name, judge):
    model, rows = of_categories
    if name == "m.cbm":
        model.save_model(tmp_path / name)
    elif name == "m.skforge":
        skforge.save(plain(model).fit(pd.read_csv(rows)), tmp_path / name)
    else:
        pool = sys.modules["catboost"].Pool(pd.read_csv(rows), cat_features=["city"])
        model.save_model(tmp_path / name, format="json", pool=pool)
    code, out, err = run("bench", tmp_path / name, f"--data={rows}", *BENCH)
    assert (code, err) == (0, "")
    assert re.search(f"{judge} +40 of rows.csv +identical", out)
    assert out.startswith("catboost reads the numbers") == (name == "m.json")


def test_bench_draws_no_rows_with_categories(run, of_categories, tmp_path):
    model, _ = of_categories
    model.save_model(tmp_path / "m.cbm")
    code, out, err = run("bench", tmp_path / "m.cbm", *BENCH)
    assert (code, out) == (2, "")
    assert "for which no random rows can be made; give rows with --data." in err


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_bench_of_an_onnx_classifier_of_integers(run, dtype, tmp_path):
    onnx, _ = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    from tests.onnx_models import RandomTrees, make_model

    trees = RandomTrees(0, n_trees=3, dtype=dtype)
    weights = trees.weights("class", lambda tree: range(3))
    attributes = {**trees.table(), **weights, "classlabels_int64s": [0, 1, 2]}
    model = make_model("TreeEnsembleClassifier", attributes, 4, dtype)
    onnx.save(model, tmp_path / "m.onnx")
    code, out, err = run("bench", tmp_path / "m.onnx", *BENCH)
    assert (code, err) == (0, "")
    assert len(re.findall("onnxruntime .* identical$", out, re.MULTILINE)) == 2


def test_an_early_stopped_file_predicts_with_its_best_rounds(run, tmp_path):
    xgboost = pytest.importorskip("xgboost")
    random = np.random.default_rng(0)
    X, y = random.normal(size=(400, 3)), random.normal(size=400)
    model = xgboost.XGBRegressor(n_estimators=50, early_stopping_rounds=3, n_jobs=1)
    model.fit(X[:200], y[:200], eval_set=[(X[200:], y[200:])], verbose=False)
    used, built = model.best_iteration + 1, model.get_booster().num_boosted_rounds()
    assert used < built
    path = tmp_path / "early.json"
    model.save_model(path)
    code, out, _ = run("bench", path, *BENCH)
    assert code == 0
    assert f"early.json: {used} tree" in out
    assert out.count("identical") == 2


def test_inspect_tells_what_save_compared(run, small_model, tmp_path):
    code, out, err = run("inspect", small_model, "--level=compared")
    assert (code, out) == (2, "")
    assert err == (
        "error: small.json does not say on which rows it was compared with its model; "
        "files of CompiledForests do that were saved with their model at hand.\n"
    )
    from sklearn.tree import DecisionTreeClassifier

    rows = np.random.default_rng(0).normal(size=(60, 2))
    tree = DecisionTreeClassifier(max_depth=3).fit(rows, rows[:, 0] > 0)
    path = tmp_path / "tree.skforge"
    skforge.save(skforge.CompiledForest(tree, tuning="off").fit(rows), path)
    code, out, _ = run("inspect", path, "--level=compared")
    lines = dict(line.split("  ", 1) for line in out.splitlines())
    methods = "predict, predict_proba, predict_raw, predict_log_proba, apply"
    assert code == 0
    assert lines["ndarray"].strip() == lines["list, made"].strip() == methods


def test_output_that_cannot_say_times(small_model):
    command = [sys.executable, "-m", "skforge", "bench", str(small_model), *BENCH]
    done = subprocess.run(
        command,
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"speedup" in done.stdout
    assert len(re.findall(rb"predict_raw \|.*[\d.,]+x$", done.stdout, re.M)) == 2
    assert b"?" not in done.stdout
