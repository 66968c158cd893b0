"""``partial_dependence`` against scikit-learn's, which makes all predictions."""

from __future__ import annotations

import inspect
import platform
from functools import cache
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import sklearn
from catboost import CatBoostClassifier, CatBoostRegressor
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn import inspection
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, SplineTransformer, StandardScaler
from xgboost import XGBClassifier, XGBRegressor

import skforge
from skforge import CompiledForest, InvalidInputError, Target, partial_dependence
from skforge.engine import routines
from skforge.engine.explanations import dependence
from tests.plain import plain
from tests.refusals import error_of

RANDOM = np.random.default_rng(0)
#: An argument of scikit-learn from 1.7 on.
CUSTOM_VALUES = "custom_values" in signature(inspection.partial_dependence).parameters

X = RANDOM.normal(size=(600, 5)).astype(np.float32)
Y = X[:, 0] + X[:, 1] * X[:, 2] + np.sin(3 * X[:, 3])
CLASSES = np.digitize(Y, [-0.7, 0.7])
WEIGHTS = RANDOM.random(len(X))
HOLES = np.where(RANDOM.random(X.shape) < 0.1, np.nan, X)
#: Of columns with a tenth of NaN, which are the greatest values.
FINITE = {"percentiles": (0.05, 0.8), "grid_resolution": 8}

MODELS = {
    "forest": (RandomForestRegressor(9, random_state=0), Y),
    "targets": (RandomForestRegressor(9, random_state=0), np.c_[Y, -Y]),
    "classes": (RandomForestClassifier(9, max_depth=5, random_state=0), CLASSES),
    "boosting": (GradientBoostingRegressor(n_estimators=20), Y),
    "histogram": (HistGradientBoostingClassifier(max_iter=15), CLASSES > 0),
    "xgboost": (XGBRegressor(n_estimators=20, n_jobs=1), Y),
    "xgboost, two": (XGBClassifier(n_estimators=10, n_jobs=1), CLASSES > 0),
    "xgboost, three": (XGBClassifier(n_estimators=10, n_jobs=1), CLASSES),
    "lightgbm": (LGBMRegressor(n_estimators=20, n_jobs=1, verbose=-1), Y),
    "zeros": (LGBMRegressor(n_estimators=9, zero_as_missing=True, verbose=-1), Y),
    "lightgbm, two": (LGBMClassifier(n_estimators=9, n_jobs=1, verbose=-1), Y > 0),
    "catboost": (CatBoostRegressor(iterations=20, depth=4, verbose=0), Y),
    "catboost, three": (CatBoostClassifier(iterations=9, depth=4, verbose=0), CLASSES),
}  # fmt: skip


@cache
def fitted(name):
    model, target = MODELS[name]
    rows = X if name in ("boosting", "targets") else HOLES
    return model.fit(rows, target), compiled(model, rows), rows


def compiled(model, rows, **how):
    return plain(model, **how).fit(rows)


def by_counts(fast, *args, **kwargs):
    """Return the result after checking that no predictions were made for it."""
    before = fast.counters()
    result = partial_dependence(fast, *args, **kwargs)
    assert fast.counters() == before
    return result


def assert_close(result, expected):
    """Compare within 1e-12 of the largest response, or 1e-6 if any is of float32."""
    single = np.float32 in [
        expected[key].dtype for key in {*expected} - {"grid_values"}
    ]
    assert result.keys() == expected.keys()
    assert len(result["grid_values"]) == len(expected["grid_values"])
    for ours, theirs in zip(
        result["grid_values"], expected["grid_values"], strict=True
    ):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    size = np.abs(expected.get("individual", expected.get("average"))).max()
    for key in ("average", "individual"):
        if key in expected:
            bound = {"rtol": 0, "atol": size * (1e-6 if single else 1e-12)}
            theirs = expected[key]
            if key == "average" and theirs.dtype == np.float32:  # a mean in float32
                theirs = expected["individual"].mean(axis=1, dtype=float)
            np.testing.assert_allclose(result[key], theirs, **bound)
            assert result[key].shape == expected[key].shape
    if "individual" in expected:
        assert result["individual"].dtype == expected["individual"].dtype


def as_by_scikit_learn(model, fast, rows, features, **how):
    """Return the result, counted, after comparing it with that of all predictions."""
    result = by_counts(fast, rows, features, **how)
    how["method"] = "brute"
    assert_close(result, inspection.partial_dependence(model, rows, features, **how))
    return result


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_all_kinds_of_models_depend_on_features_as_in_scikit_learn(name):
    model, fast, rows = fitted(name)
    for features, weights in (([0], None), ([1, 2], WEIGHTS), (3, WEIGHTS)):
        how = {"kind": "both", "sample_weight": weights, **FINITE}
        result = as_by_scikit_learn(model, fast, rows, features, **how)
        assert result["average"].dtype == np.float64
        only = by_counts(fast, rows, features, sample_weight=weights, **FINITE)
        np.testing.assert_array_equal(only["average"], result["average"])
        assert {*only} == {"grid_values", "average"}


@pytest.mark.parametrize("name", ["histogram", "lightgbm, two"])
def test_a_decision_function_is_a_response(name):
    model, fast, rows = fitted(name)
    how = {"response_method": "decision_function", "kind": "both", **FINITE}
    as_by_scikit_learn(model, fast, rows, [0], **how)


@pytest.mark.parametrize("name", ["xgboost, three", "catboost"])
def test_raw_scores_are_a_response(name):
    _, fast, rows = fitted(name)
    how = {"response_method": "predict_raw", "kind": "both", **FINITE}
    result = by_counts(fast, rows, [0], **how)
    assert_close(result, partial_dependence(fast, rows, [0], exact=True, **how))
    changed = rows.copy()
    changed[:, 0] = result["grid_values"][0][4]
    mean = fast.predict_raw(changed).mean(axis=0, dtype=float)
    np.testing.assert_allclose(result["average"][:, 4], mean, rtol=1e-5)


def test_exact_results_have_the_bits_of_scikit_learn():
    model, fast, rows = fitted("xgboost, two")
    how = {"kind": "both", "sample_weight": WEIGHTS, **FINITE}
    result = partial_dependence(fast, rows, [0, 2], exact=True, **how)
    theirs = inspection.partial_dependence(model, rows, [0, 2], method="brute", **how)
    for key in ("average", "individual"):
        np.testing.assert_array_equal(result[key], theirs[key])
        assert result[key].dtype == theirs[key].dtype


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["forest", "xgboost, two", "zeros"])
def test_rows_as_lists_and_blocks_of_them_give_the_same(name, monkeypatch):
    """Rows of deep forests are lists of numbers, and large X is laid out by parts."""
    _, fast, rows = fitted(name)
    how = {"kind": "both", **FINITE}
    expected = by_counts(fast, rows, [0, 1], **how)
    weighted = by_counts(fast, rows, [0], sample_weight=WEIGHTS, **how)
    monkeypatch.setattr(dependence, "MOST_LINES", 0)
    assert_close(by_counts(fast, rows, [0, 1], **how), expected)
    assert_close(by_counts(fast, rows, [0], sample_weight=WEIGHTS, **how), weighted)
    monkeypatch.setattr(dependence, "BYTES", 1 << 10)
    monkeypatch.setattr(dependence, "BYTES_OF_SUMS", 1 << 14)
    assert_close(by_counts(fast, rows, [0, 1], **how), expected)
    monkeypatch.undo()
    monkeypatch.setattr(dependence, "BYTES", 1 << 12)
    assert_close(by_counts(fast, rows, [0, 1], **how), expected)


def test_threads_do_not_change_a_bit():
    model, one, rows = fitted("lightgbm")
    rows = np.tile(rows, (10, 1))
    two = compiled(model, rows, n_jobs=2)
    how = {"sample_weight": np.tile(WEIGHTS, 10), **FINITE}
    results = [by_counts(fast, rows, [0], **how)["average"] for fast in (one, two)]
    np.testing.assert_array_equal(*results)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs x86-64")
def test_cpus_do_not_change_a_bit(monkeypatch):
    _, fast, rows = fitted("lightgbm")
    how = {"kind": "both", "sample_weight": WEIGHTS, **FINITE}
    here = by_counts(fast, rows, [0], **how)
    old = SimpleNamespace(host=lambda: Target.x86_64("v1"))
    for module in (dependence, routines):
        monkeypatch.setattr(module, "Target", old)
    routines.routine.cache_clear()
    there = by_counts(fast, rows, [0], **how)
    routines.routine.cache_clear()
    for key in ("average", "individual"):
        np.testing.assert_array_equal(there[key], here[key])


# ------------------------------------------------------------ the grid


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "how",
    [
        {"percentiles": (0, 1)},
        {"percentiles": (0.2, 0.4), "grid_resolution": 2},
        {"grid_resolution": 5000},
        {"custom_values": {0: [1.0, -2.0, np.nan, 0.25]}},
        {"custom_values": {2: [0.5]}, "features": [2, 0]},
        {"features": [2, 0, 1], "grid_resolution": 4},
        {"features": np.array([4])},
        {"features": [False, False, True, False, False]},
        {"categorical_features": ["c"], "feature_names": [*"abcde"], "features": [2]},
    ],
    ids=str,
)
def test_the_grid_is_scikit_learns(how):
    if "custom_values" in how and not CUSTOM_VALUES:
        pytest.skip("this scikit-learn has no custom_values")
    model, fast, _ = fitted("xgboost")
    how = {"features": [0], "kind": "both", **how}
    theirs = inspection.partial_dependence(model, X, method="brute", **how)
    assert_close(partial_dependence(fast, X, **how), theirs)


@pytest.mark.skipif(not CUSTOM_VALUES, reason="scikit-learn before 1.7")
def test_a_feature_without_tests_and_one_value_are_flat():
    rows = np.c_[X, np.zeros(len(X), np.float32)]
    fast = compiled(LGBMRegressor(n_estimators=3, verbose=-1).fit(rows, Y), rows)
    result = by_counts(fast, rows, [5], custom_values={5: [0.0, 1.0, 2.0]})
    np.testing.assert_array_equal(np.ptp(result["average"]), 0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("library", ["lightgbm", "xgboost", "histogram"])
def test_frames_with_categories(library):
    names = np.array(["blue", "green", "red"])
    frame = pd.DataFrame(HOLES.astype(float), columns=[*"abcde"]).assign(
        colour=pd.Categorical(names[RANDOM.integers(0, 3, len(X))])
    )
    target = Y + 2 * (frame["colour"] == "red")
    model = {
        "lightgbm": LGBMRegressor(n_estimators=9, n_jobs=1, verbose=-1),
        "xgboost": XGBRegressor(n_estimators=9, enable_categorical=True, n_jobs=1),
        "histogram": HistGradientBoostingRegressor(
            max_iter=9, categorical_features="from_dtype"
        ),
    }[library].fit(frame, target)
    fast = compiled(model, frame)
    for features in (["a"], ["colour"], ["b", "colour"]):
        how = {"categorical_features": ["colour"], "kind": "both", **FINITE}
        as_by_scikit_learn(model, fast, frame, features, **how)


# ------------------------------------------------------------ sources


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["gb_several", "lgb_sets", "rf_targets"])
def test_onnx_files(name):
    file = Path(__file__).parents[1] / "data" / "onnx_models" / f"{name}.onnx"
    width = skforge.load_forest(file).n_columns
    rows = RANDOM.normal(size=(200, width)).astype(np.float32).round(1)
    fast = compiled(file, rows)
    how = {"kind": "both", "grid_resolution": 6}
    expected = partial_dependence(fast, rows, [0], exact=True, **how)
    assert_close(by_counts(fast, rows, [0], **how), expected)


def test_boosters_and_loaded_files(tmp_path):
    model, fast, rows = fitted("xgboost, two")
    expected = by_counts(fast, rows, [0], **FINITE)
    assert expected["average"].shape == (1, 8)
    booster = compiled(model.get_booster(), rows)
    assert_close(by_counts(booster, rows, [0], **FINITE), expected)
    skforge.save(fast, tmp_path / "model.skforge")
    loaded = skforge.load(tmp_path / "model.skforge")
    assert_close(by_counts(loaded, rows, [0], **FINITE), expected)


@pytest.mark.filterwarnings("ignore:The step 'splinetransformer'")
def test_pipelines_that_fold_are_counted_and_others_predicted():
    rows = pd.DataFrame(X.astype(float), columns=[*"abcde"]).assign(
        kind=np.array(["x", "y", "z"])[RANDOM.integers(0, 3, len(X))]
    )
    columns = ColumnTransformer(
        [("code", OneHotEncoder(), ["kind"]), ("scale", StandardScaler(), [*"abcde"])]
    )
    forest = ExtraTreesRegressor(5, max_depth=6, random_state=0)
    target = Y + (rows["kind"] == "z")
    model = make_pipeline(columns, forest).fit(rows, target)
    fast = compiled(model, rows)
    how = {"categorical_features": ["kind"], "kind": "both", "grid_resolution": 9}
    for features in (["b"], ["kind", "a"]):
        as_by_scikit_learn(model, fast, rows, features, **how)

    splines = make_pipeline(SplineTransformer(), forest).fit(X, Y)
    before = make_pipeline(StandardScaler().fit(X), fitted("xgboost")[1])
    how = {"kind": "both", "grid_resolution": 5}
    raw = partial_dependence(before, X, [1], response_method="predict_raw", **how)
    assert_close(raw, partial_dependence(before, X, [1], **how))
    for model, ours in ((splines, compiled(splines, X)), (before, before)):
        theirs = inspection.partial_dependence(model, X, [1], method="brute", **how)
        assert_close(partial_dependence(ours, X, [1], **how), theirs)


@pytest.mark.skipif(not CUSTOM_VALUES, reason="scikit-learn before 1.7")
def test_lists_and_frames_of_float32():
    """pandas refuses the grid's float64 values, so that scikit-learn takes no such."""
    _, fast, _ = fitted("xgboost")
    expected = by_counts(fast, X[:50], [0], grid_resolution=5)
    frame = pd.DataFrame(X[:50])
    assert_close(by_counts(fast, frame, [0], grid_resolution=5), expected)
    result = partial_dependence(fast, X[:50].tolist(), [0], grid_resolution=5)
    np.testing.assert_allclose(result["average"], expected["average"], rtol=1e-5)


# ------------------------------------------------------------ scikit-learn's side


def test_the_display_draws_results():
    import matplotlib

    matplotlib.use("Agg")
    _, fast, _ = fitted("xgboost")
    results = [by_counts(fast, X, f, kind="average") for f in ([0], [0, 1])]
    display = inspection.PartialDependenceDisplay(
        results,
        features=[(0,), (0, 1)],
        feature_names=[*"abcde"],
        target_idx=0,
        deciles={0: np.quantile(X[:, 0], [0.5]), 1: np.quantile(X[:, 1], [0.5])},
    ).plot()
    (line,) = (line for line in display.lines_.ravel() if line is not None)
    np.testing.assert_array_equal(line.get_ydata(), results[0]["average"][0])


def test_the_arguments_are_scikit_learns():
    ours = inspect.signature(partial_dependence).parameters
    theirs = inspect.signature(inspection.partial_dependence).parameters
    assert {*ours} >= {*theirs}
    assert all(ours[name].default == theirs[name].default for name in theirs)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "how",
    [
        {"features": [7]},
        {"features": [-1]},
        {"features": ["a"]},
        {"features": [0.5]},
        {"percentiles": (0.5, 0.5)},
        {"percentiles": (0.1, 0.2, 0.3)},
        {"percentiles": (-1, 0.5)},
        {"percentiles": [0.1, 0.9]},
        {"percentiles": (0.5, 0.5 + 1e-12)},
        {"grid_resolution": 1},
        {"grid_resolution": 0},
        {"kind": "all"},
        {"method": "recursion"},
        {"method": "fast"},
        {"response_method": "predict_proba"},
        {"response_method": "predict"},
        {"categorical_features": []},
        {"categorical_features": [True]},
        {"categorical_features": [0.5]},
        {"custom_values": {0: [[1.0]]}},
        {"sample_weight": [1.0]},
        {"sample_weight": np.zeros(len(X))},
        {"X": np.arange(10).reshape(2, 5)},
        {"X": X[0]},
        {"X": X[:, :3]},
        {"X": X[:0]},
        {"X": "rows"},
    ],
    ids=str,
)
def test_errors_are_scikit_learns(how):
    _, fast, _ = fitted("forest")
    how = {"X": X, "features": [0], **how}
    method = {"method": "brute"} | how
    release = tuple(map(int, sklearn.__version__.split(".")[:2]))
    if release < (1, 9) and getattr(how["X"], "dtype", X.dtype).kind == "i":
        pytest.skip("scikit-learn before 1.9 takes whole numbers")
    with pytest.raises(Exception) as theirs:
        inspection.partial_dependence(fast, **method)
    assert error_of(type(theirs.value), partial_dependence, fast, **how) == str(
        theirs.value
    )


def test_models_that_are_not_compiled_are_refused():
    model, _, rows = fitted("forest")
    assert error_of(InvalidInputError, partial_dependence, model, rows, [0]) == (
        "estimator must be a CompiledForest. Got a RandomForestRegressor instead; "
        "compile the model first: CompiledForest(model).fit(X)."
    )
    with pytest.raises(NotFittedError, match="This CompiledForest instance is not"):
        partial_dependence(CompiledForest(model), rows, [0])
