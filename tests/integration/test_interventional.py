"""Interventional SHAP values: predict_contribs with background rows.

The oracle plays every game in full: it evaluates each subset of features for each pair
of a row and a background row, in float64.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from skforge import (
    InvalidInputError,
    UnsupportedModelError,
    compile_forest,
    load_forest,
)
from skforge.compiler.cost.background import patterns_pay
from skforge.compiler.driver import verify_lir
from skforge.compiler.layouts.background import fill, patterns
from skforge.engine.explanations import background as kernels
from skforge.engine.explanations.background import LOOK_UP
from skforge.exceptions import ScheduleError
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.reference import draw_rows
from tests import kinds
from tests.exactness.forests import NUMERIC, drawn, forest_of, tree
from tests.integration.test_estimator_onnx import CLASSIFIER, REGRESSOR
from tests.oracles.shap_values import (
    interventional_interactions,
    interventional_values,
)
from tests.plain import plain

#: Errors are below this times the sum of a row's absolute values.
LIMITS = {np.dtype(np.float32): 1e-7, np.dtype(np.float64): 1e-12}

N_FEATURES = 5
#: Which of the rows are explained, and which are background.
PARTS = slice(4), slice(50, 56)


def oracle(forest, rows, background):
    return interventional_values(forest, rows, background).astype(float)


def check(found, expected):
    limit = LIMITS[found.dtype]
    found = found.reshape(expected.shape)
    # Terms of both signs add up to a value, so that each is measured by all.
    size = np.abs(expected).sum(axis=-1, keepdims=True)
    assert (np.abs(found - expected) <= limit * size).all()


@lru_cache
def data():
    random = np.random.default_rng(0)
    X = random.normal(size=(400, N_FEATURES))
    X[:, 1] = np.round(X[:, 1] * 2)
    y = np.sin(X[:, 0] * 2) + X[:, 1] * X[:, 2] + np.maximum(X[:, 3], 0) + X[:, 4]
    return X.astype(np.float32), y


def with_gaps(X):
    X = X.copy()
    X[np.random.default_rng(1).random(X.shape) < 0.15] = np.nan
    return X


def with_categories(X):
    X = with_gaps(X)
    X[:, 1] = np.abs(X[:, 1])
    return X


def xgboost(**options):
    X, y = data()
    given = with_categories(X)
    model = pytest.importorskip("xgboost").XGBRegressor(
        n_estimators=6,
        max_depth=5,
        feature_types=["q", "c", "q", "q", "q"],
        enable_categorical=True,
        **options,
    )
    return model.fit(given, y), given


def lightgbm():
    X, y = data()
    given = with_categories(X)
    model = pytest.importorskip("lightgbm").LGBMRegressor(
        n_estimators=6, num_leaves=12, min_child_samples=5, verbose=-1
    )
    return model.fit(given, y, categorical_feature=[1]), given


def fitted(model, classifies=False, change=lambda X: X):
    X, y = data()
    given = change(X)
    return clone(model).fit(given, np.digitize(y, [-1, 1]) if classifies else y), given


def outputs():
    X, y = data()
    model = clone(kinds.MODELS["extra of columns"].model)
    return model.fit(X, np.stack([y, y**2], axis=1)), X


MODELS = {
    "xgboost": xgboost,
    "xgboost-dart": lambda: xgboost(booster="dart", rate_drop=0.5),
    "xgboost-classes": lambda: fitted(kinds.CLASSIFIERS["xgboost"], True, with_gaps),
    "lightgbm": lightgbm,
    "forest": lambda: fitted(kinds.REGRESSORS["forest"]),
    "boosting": lambda: fitted(kinds.REGRESSORS["gb"]),
    "histogram": lambda: fitted(kinds.REGRESSORS["hist"], change=with_gaps),
    "forest-classes": lambda: fitted(kinds.SMALL, True),
    "outputs": outputs,
}


@lru_cache
def trained(name):
    return MODELS[name]()


@lru_cache
def compiled(name):
    return compile_forest(load_forest(trained(name)[0]))


def take(monkeypatch, way):
    """Take one way of computing, whatever the estimate says."""
    by_patterns = way == "patterns"
    monkeypatch.setattr(kernels, "patterns_pay", lambda *_: by_patterns)


@pytest.fixture(params=["patterns", "walks"])
def way(request, monkeypatch):
    take(monkeypatch, request.param)
    return request.param


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_every_subset_of_features(name, way):
    forest, X = load_forest(trained(name)[0]), trained(name)[1]
    rows, background = X[:5].astype(forest.input_dtype), X[50:57]
    background = background.astype(forest.input_dtype)
    found = compiled(name).predict_contribs(rows, background=background)
    check(found, oracle(forest, rows, background))


@pytest.mark.parametrize("model", [CLASSIFIER, REGRESSOR], ids=["classes", "targets"])
def test_onnx_models_need_no_covers(model):
    module = compile_forest(load_forest(model))
    random = np.random.default_rng(0)
    rows = random.normal(size=(6, 3)).astype(np.float32)
    background = random.normal(size=(9, 3)).astype(np.float32)
    rows[0, 1], background[0, 1] = np.nan, 0.25
    found = module.predict_contribs(rows, background=background)
    check(found, oracle(module.forest, rows, background))
    with pytest.raises(UnsupportedModelError, match="pass background rows"):
        module.predict_contribs(rows)


@pytest.mark.parametrize("seed", range(4))
def test_random_forests(seed, way):
    forest = random_forest(seed)
    rows = draw_rows(forest, 4, seed, missing=0.1)
    background = draw_rows(forest, 5, seed + 100, missing=0.1)
    found = compile_forest(forest).predict_contribs(rows, background=background)
    check(found, oracle(forest, rows, background))


def random_forest(seed):
    """Return trees of any shape: all kinds of tests, single leaves, unused outputs."""
    random = np.random.default_rng(seed)
    shapes = [("full", 3), ("random", 6), ("chain", 9), ("full", 0), ("random", 4)]
    return forest_of(
        [tree(shape, size, random) for shape, size in shapes],
        seed=seed,
        dtype=("float32", "float64")[seed % 2],
        sums=("float32", "float64")[seed // 2],
        comparisons=NUMERIC,
        missing=tuple(Missing),
        category_words=2,
        n_outputs=(7, 3, 1, 7)[seed],
        vector=seed % 2 == 1,
        divisor=(1, 5)[seed % 2],
    )


@pytest.mark.parametrize("name", ["xgboost-classes", "forest-classes", "lightgbm"])
def test_a_background_of_one_row_and_of_equal_rows(name):
    X, module = trained(name)[1], compiled(name)
    one = module.predict_contribs(X[:70], background=X[80:81])
    many = module.predict_contribs(X[:70], background=X[80:81].repeat(300, axis=0))
    size = np.abs(one).sum(axis=-1, keepdims=True)
    assert (np.abs(one - many) <= LIMITS[one.dtype] * size).all()


@pytest.mark.parametrize("name", ["xgboost", "lightgbm", "forest-classes"])
def test_the_same_bits_in_any_batch_and_thread(name, way):
    """A row's bits depend neither on the rows beside it nor on who computes them."""
    X, module = trained(name)[1], compiled(name)
    background = X[200:390]
    whole = module.predict_contribs(X[:150], background=background)
    threads = module.predict_contribs(X[:150], background=background, n_jobs=2)
    np.testing.assert_array_equal(threads, whole)
    for n in (1, 7, 8, 63, 64, 65):
        part = module.predict_contribs(X[:n], background=background)
        np.testing.assert_array_equal(part, whole[:n])
    order = np.random.default_rng(0).permutation(150)
    mixed = module.predict_contribs(X[:150][order], background=background)
    np.testing.assert_array_equal(mixed, whole[order])


SHAPES = {
    "few features": dict(depth=7, n_features=3, sums="float64"),
    "outputs": dict(depth=6, n_features=9, sums="float64", n_outputs=3, vector=True),
    "chains": dict(depth=11, n_features=20, sums="float64", shape="chain"),
    "deep leaves": dict(depth=16, n_features=20, sums="float64", shape="chain"),
    "sets": dict(
        depth=6, n_features=6, sums="float64", comparisons=NUMERIC, category_words=2
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_patterns_and_walks_agree(shape, monkeypatch):
    """Over several blocks of rows and arrays of counts, and with threads."""
    forest = drawn(6, SHAPES[shape]["depth"], **without(SHAPES[shape], "depth"))
    rows = draw_rows(forest, 4500, 0, missing=0.1)
    module = compile_forest(forest)
    found = {}
    for way in ("patterns", "walks"):
        take(monkeypatch, way)
        found[way] = module.predict_contribs(rows[:600], background=rows[100:])
    size = np.abs(found["walks"]).sum(axis=-1, keepdims=True)
    assert (np.abs(found["patterns"] - found["walks"]) <= 1e-12 * size).all()
    assert not np.array_equal(found["patterns"], found["walks"])  # both were taken
    take(monkeypatch, "patterns")
    again = compile_forest(forest)
    for n in (600, 513, 3):
        threads = again.predict_contribs(rows[:n], background=rows[100:], n_jobs=2)
        np.testing.assert_array_equal(threads, found["patterns"][:n])


def without(options, name):
    return {key: value for key, value in options.items() if key != name}


def test_forests_without_room_for_tables_are_walked(monkeypatch):
    X, forest = trained("lightgbm")[1], load_forest(trained("lightgbm")[0])
    expected = compile_forest(forest).predict_contribs(X[:9], background=X[9:30])
    monkeypatch.setattr(patterns, "TABLE_BYTES", 0)
    take(monkeypatch, "patterns")
    found = compile_forest(forest).predict_contribs(X[:9], background=X[9:30])
    check(found[:, None], expected[:, None].astype(np.float64))
    with pytest.raises(ScheduleError, match="has no room for tables"):
        compile_forest(forest, contribs_schedule={(1, None): LOOK_UP})


def test_a_schedule_of_patterns_without_background_rows_reads_no_tables():
    X, forest = trained("lightgbm")[1], load_forest(trained("lightgbm")[0])
    module = compile_forest(forest, contribs_schedule={(1, None): LOOK_UP})
    assert (module.predict_contribs(X[:9])[:, :-1] == 0).all()


def test_the_function_that_fills_tables_is_valid_lir():
    verify_lir(fill.fill_function())


def test_the_estimate_prefers_patterns_for_many_rows_and_background_rows():
    forest = drawn(100, 8, shape="full", n_features=20)
    groups = patterns.Patterns.of(forest)
    assert not patterns_pay(groups, 1, 1)
    assert patterns_pay(groups, 1, 4000)
    assert patterns_pay(groups, 10**6, 100)


def test_backgrounds_are_told_apart_by_content():
    """The code and the last background are kept; new rows give new values."""
    X, module = trained("lightgbm")[1], compiled("lightgbm")
    background = X[:40].copy()
    first = module.predict_contribs(X[50:60], background=background)
    other = module.predict_contribs(X[50:60], background=X[40:50])
    assert not np.array_equal(first, other)
    np.testing.assert_array_equal(
        module.predict_contribs(X[50:60], background=X[:40]), first
    )
    background[:] = X[40:80]  # the user's own array is not what is kept
    changed = module.predict_contribs(X[50:60], background=background)
    assert not np.array_equal(changed, first)


@pytest.mark.parametrize("n", [70, 300])
def test_paths_of_more_features_than_bits_in_a_word(n):
    """Node k tests feature k; a row of ones goes on, and zeros end at leaf k."""
    random = np.random.default_rng(0)
    ones = n - 20
    left, right = np.full(2 * n + 1, -1), np.full(2 * n + 1, -1)
    left[: 2 * n : 2] = np.arange(1, 2 * n, 2)
    right[: 2 * n : 2] = np.arange(2, 2 * n + 1, 2)
    forest = forest_of([(left, right)], sums="float64", n_features=n)
    values = random.normal(size=n + 1)
    leaf = np.full(2 * n + 1, -1)
    leaf[[*range(1, 2 * n, 2), 2 * n]] = np.arange(n + 1)
    predicate = np.full(2 * n + 1, -1)
    predicate[: 2 * n : 2] = np.arange(n)
    forest = replace(
        forest,
        leaf=leaf,
        leaf_value=values[:, None],
        predicate=predicate,
        feature=np.arange(n),
        comparison=np.full(n, Comparison.LT),
        threshold=np.full(n, 0.5, np.float32),
        missing=np.full(n, Missing.NAN),
        missing_left=np.zeros(n, bool),
        category_offset=np.zeros(n + 1, np.int64),
    ).validate()
    x, background = np.zeros((1, n), np.float32), np.zeros((3, n), np.float32)
    x[0, :ones] = 1
    expected = np.zeros(n)
    for k in range(ones):  # only x passes the features before k, only zeros end at k
        expected[:k] += values[k] / (max(k, 1) * (k + 1))
        expected[k] -= values[k] / (k + 1)
    expected[:ones] += values[ones] / ones
    found = compile_forest(forest).predict_contribs(x, background=background)
    check(found[:, None], np.append(expected, values[0] + forest.base)[None, None])


def test_sparse_rows_have_all_columns():
    """Most columns are read by no test; contributions have them all the same."""
    sparse = pytest.importorskip("scipy.sparse")

    X, y = data()
    wide = np.zeros((len(X), 400), np.float32)
    wide[:, 40:45] = np.maximum(X, 0)
    model = RandomForestRegressor(3, max_depth=5, random_state=0).fit(wide, y)
    fast = plain(model).fit(wide)
    expected = fast.predict_contribs(wide[:5], background=wide[5:30])
    assert expected.shape == (5, 401)
    rows, background = sparse.csr_matrix(wide[:5]), sparse.csr_matrix(wide[5:30])
    for x, given in ((wide[:5], background), (rows, background), (rows, wide[5:30])):
        found = fast.predict_contribs(x, background=given)
        np.testing.assert_array_equal(found, expected)
    by_path = fast.predict_contribs(rows)
    np.testing.assert_array_equal(by_path, fast.predict_contribs(wide[:5]))


def test_folded_pipelines():
    """By input column: the columns that a step makes of one play on their own."""
    from sklearn.compose import make_column_transformer

    X, y = data()
    steps = make_column_transformer(
        (OneHotEncoder(sparse_output=False, handle_unknown="ignore"), [1]),
        (StandardScaler(), [0, 2, 3, 4]),
    )
    last = RandomForestRegressor(5, max_depth=8, random_state=0)
    pipeline = make_pipeline(steps, last).fit(X, y)
    found = compile_forest(load_forest(pipeline)).predict_contribs(
        X[:50], background=X[50:150]
    )
    made = steps.transform(X)
    of_last = compile_forest(load_forest(last)).predict_contribs(
        made[:50], background=made[50:150]
    )
    codes = made.shape[1] - 4
    expected = np.zeros_like(found)
    expected[:, 1] = of_last[:, :codes].sum(axis=1)
    expected[:, [0, 2, 3, 4, 5]] = of_last[:, codes:]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("first", [[], [FunctionTransformer(np.copy)]])
def test_the_background_is_read_as_the_rows_are(first):
    """By the forest of the rows' form: that of float32 has other thresholds."""
    X = np.random.default_rng(0).normal(size=(200, 4))
    trees = RandomForestRegressor(5, random_state=0)
    model = make_pipeline(*first, StandardScaler(), trees).fit(X, X[:, 0])
    fast = plain(model).fit(X)
    for rows, others in ((X, X.astype(np.float32)), (X.astype(np.float32), X)):
        values = fast.predict_contribs(rows, background=rows[:20])
        np.testing.assert_allclose(values[:, -1], model.predict(rows[:20]).mean())
        np.testing.assert_allclose(values.sum(axis=1), model.predict(rows))
        with pytest.raises(InvalidInputError, match="answers these"):
            fast.predict_contribs(rows, background=others[:20])


def test_a_background_without_rows_is_refused():
    X, module = trained("forest")[1], compiled("forest")
    with pytest.raises(
        InvalidInputError, match="background has no rows; pass at least"
    ):
        module.predict_contribs(X[:3], background=X[:0])
    assert module.predict_contribs(X[:0], background=X[:3]).shape == (0, N_FEATURES + 1)


@pytest.mark.parametrize("name", ["histogram", "forest-classes"])
def test_interactions_are_those_of_all_subsets(name):
    X, module = trained(name)[1], compiled(name)
    rows, background = (X[part].astype(module.forest.input_dtype) for part in PARTS)
    options = {"interactions": True, "background": background}
    found = module.predict_contribs(np.concatenate([rows] * 3), **options)
    assert (found[:4] == found[4:8]).all()
    found = found[:4].reshape(4, -1, N_FEATURES + 1, N_FEATURES + 1)
    wanted = interventional_interactions(module.forest, rows, background)
    off = ~np.eye(N_FEATURES, dtype=bool)
    pairs = found[..., :-1, :-1][..., off]
    np.testing.assert_allclose(pairs, wanted[..., off], atol=1e-12)
    values = module.predict_contribs(rows, background=background)
    values = values.reshape(4, -1, N_FEATURES + 1)
    sums = found[..., :-1, :].sum(axis=-1)
    np.testing.assert_allclose(sums, values[..., :-1], atol=1e-12)
    assert (found[..., -1, -1] == values[..., -1]).all()
    with pytest.raises(InvalidInputError, match="approximate=True and background"):
        module.predict_contribs(rows, approximate=True, background=background)
