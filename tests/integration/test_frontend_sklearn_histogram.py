"""HistGradientBoosting* of scikit-learn: the same bits as its own methods."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from threadpoolctl import threadpool_limits

from skforge.exceptions import InvalidModelError
from skforge.forest.arrays import Comparison
from skforge.forest.reference import reference_raw
from skforge.frontends import load_forest, read_forest
from skforge.frontends.sklearn.histogram import model_columns
from tests.answers_of import apply_transform, decide, decision_function, predict_proba
from tests.sklearn_rows import kernels_agree, same_bits, tie_rows

N = 400

#: Known and unknown categories, and everything that only looks like one.
CATEGORIES = [
    *(0.0, -0.0, 3.0, 6.0, 9.0, 117.0, 1.0, 2.0, 120.0, 255.0, 256.0, 259.0, 65536.0),
    *(-1.0, -0.5, -3.0, 0.5, 2.5, 3.5, 1e10, -1e10, 2.0**31, 2.0**32 + 3, np.nan),
    *(np.nextafter(3.0, 9), np.nextafter(3.0, 0), 5e-324),
]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine, threads that wait for each other cost seconds."""
    with threadpool_limits(1):
        yield


def data(missing=0.1):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 5))
    X[rng.random(X.shape) < missing] = np.nan
    return X, rng


REGRESSORS = [
    {},
    {"loss": "absolute_error"},
    {"loss": "poisson"},
    {"loss": "gamma"},
    {"loss": "quantile", "quantile": 0.3},
    {"monotonic_cst": [1, 0, 0, -1, 0], "interaction_cst": "no_interactions"},
    {"early_stopping": True, "n_iter_no_change": 2, "max_iter": 40},
]


@pytest.mark.parametrize("params", REGRESSORS, ids=str)
def test_regressors(params):
    X, rng = data()
    y = np.exp(np.nan_to_num(X[:, 0]) + rng.normal(size=N) / 4)
    params = {"max_iter": 7, "random_state": 0, **params}
    model = HistGradientBoostingRegressor(**params).fit(X, y)
    forest = load_forest(model)
    rows = tie_rows(forest, 200, missing=0.1)
    rows[:20] *= 1e300
    rows[20:24, 0] = np.inf, -np.inf, 1e-320, -0.0
    raw, _ = kernels_agree(forest, rows)
    same_bits(apply_transform(forest, raw), model.predict(rows))
    same_bits(apply_transform(forest, raw[:1]), model.predict(rows[:1]))


def test_float32_rows_beside_float64_thresholds():
    X, _ = data(0)
    model = HistGradientBoostingRegressor(max_iter=9).fit(X, X[:, 0] + X[:, 1] ** 2)
    forest = load_forest(model)
    rows = tie_rows(forest, 200)
    narrow = rows.astype(np.float32)
    expected = model.predict(narrow)
    assert (expected != model.predict(rows)).any()
    same_bits(kernels_agree(forest, narrow)[0][:, 0], expected)


@pytest.mark.parametrize("n_classes", [2, 3, 5, 11])
def test_classifiers(n_classes):
    X, rng = data()
    y = np.array([f"class {i:02}" for i in rng.integers(0, n_classes, N)])
    model = HistGradientBoostingClassifier(max_iter=4, random_state=0).fit(X, y)
    forest = load_forest(model)
    assert forest.task == ("binary" if n_classes == 2 else "multiclass")
    rows = tie_rows(forest, 150, missing=0.1)
    raw, _ = kernels_agree(forest, rows)
    for n in (1, 2, 3, len(rows)):
        part, cut = rows[:n], raw[:n]
        same_bits(decision_function(forest, cut), model.decision_function(part))
        same_bits(predict_proba(forest, cut), model.predict_proba(part))
        label = model.classes_[decide(forest, cut)]
        np.testing.assert_array_equal(label, model.predict(part))


def test_a_score_of_zero_is_the_first_class():
    """``> 0`` here, ``>= 0`` in GradientBoosting."""
    X = np.linspace(0, 1, 60)[:, np.newaxis]
    model = HistGradientBoostingClassifier(max_iter=1).fit(X, X[:, 0] > 0.5)
    model._baseline_prediction[:] = 0.0
    for (tree,) in model._predictors:
        tree.nodes["value"] = 0.0
    forest = load_forest(model)
    label = model.classes_[decide(forest, reference_raw(forest, X))]
    np.testing.assert_array_equal(label, model.predict(X))
    assert not label.any()


def category_rows(X, columns, rng):
    rows = np.concatenate([X, X, X])
    for column in columns:
        rows[N:, column] = rng.choice(CATEGORIES, 2 * N)
    return rows


@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_categories(missing):
    X, rng = data(0)
    X[:, 1] = rng.integers(0, 40, N) * 3
    X[:, 3] = rng.integers(0, 5, N)
    y = X[:, 1] * 7 % 11 + X[:, 3] ** 2 + X[:, 0]
    X[rng.random(X.shape) < missing] = np.nan
    model = HistGradientBoostingRegressor(
        max_iter=20, categorical_features=[1, 3], random_state=0
    ).fit(X, y)
    forest = load_forest(model)
    in_sets = forest.comparison == Comparison.MEMBER
    assert set(forest.feature[in_sets]) == {1, 3}
    rows = category_rows(X, [1, 3], rng)
    raw, _ = kernels_agree(forest, rows)
    same_bits(apply_transform(forest, raw), model.predict(rows))
    both = {
        bool(node["missing_go_to_left"])
        for (tree,) in model._predictors
        for node in tree.nodes[tree.nodes["is_categorical"] == 1]
    }
    assert missing == 0 or both == {False, True}


def test_numbers_of_data_frames_are_the_categories_themselves():
    pandas = pytest.importorskip("pandas")
    X, rng = data(0)
    frame = pandas.DataFrame(X, columns=list("abcde"))
    frame["d"] = pandas.Categorical(rng.integers(0, 9, N) * 10)
    frame["b"] = pandas.Categorical(rng.random(N) < 0.5)
    y = frame["d"].astype(int) % 7 + frame["b"].astype(int) * 2
    model = HistGradientBoostingClassifier(max_iter=9, random_state=0).fit(frame, y)
    forest = load_forest(model)
    assert forest.category_names == ()
    rows = frame.astype(float).to_numpy()
    raw, _ = kernels_agree(forest, rows)
    same_bits(predict_proba(forest, raw), model.predict_proba(frame))


def test_names_keep_their_codes():
    pandas = pytest.importorskip("pandas")
    X, rng = data(0)
    names = np.array(["pear", "apple", "fig", "plum", "quince"])
    frame = pandas.DataFrame(X, columns=list("abcde"))
    frame["d"] = pandas.Categorical(names[rng.integers(0, 5, N)])
    y = frame["d"].astype(str).str.len() + X[:, 0]
    model = HistGradientBoostingRegressor(max_iter=9, random_state=0).fit(frame, y)
    forest = load_forest(model)
    assert forest.feature_names == ("a", "b", "c", "d", "e")
    assert forest.category_names == (
        *((), (), ()),
        ("apple", "fig", "pear", "plum", "quince"),
        (),
    )
    assert [column.feature for column in model_columns(model)] == [3, 0, 1, 2, 4]
    rows = X.copy()
    known = forest.category_names[3]
    rows[:, 3] = [known.index(name) for name in frame["d"]]
    rows[:9, 3] = np.nan
    frame.loc[:8, "d"] = np.nan
    raw, _ = kernels_agree(forest, rows)
    same_bits(apply_transform(forest, raw), model.predict(frame))


@pytest.mark.parametrize("value", [0.5, -1.0, 65536.0])
def test_other_numbers_are_codes(value):
    X, rng = data(0)
    X[:, 1] = rng.choice([0.0, 1.0, value], N)
    model = HistGradientBoostingRegressor(max_iter=2, categorical_features=[1])
    forest = read_forest(model.fit(X, X[:, 0]))
    known = tuple(sorted((0.0, 1.0, value)))
    assert forest.category_names == ((), known, (), (), ())
    rows = X.copy()
    rows[:, 1] = np.searchsorted(known, X[:, 1])
    raw, _ = kernels_agree(forest, rows)
    same_bits(apply_transform(forest, raw), model.predict(X))


def test_damaged_models_are_refused():
    X, _ = data(0)
    model = HistGradientBoostingRegressor(max_iter=2).fit(X, X[:, 0])
    model._predictors[1][0].nodes["left"][0] = 10_000
    with pytest.raises(InvalidModelError) as error:
        load_forest(model)
    last = len(model._predictors[1][0].nodes) - 1
    assert str(error.value) == (
        f"left[0] = 10000 of tree 1 is outside 0..{last}; the model is damaged, fit it "
        "again."
    )
    with pytest.raises(InvalidModelError) as error:
        load_forest(HistGradientBoostingClassifier())
    assert str(error.value) == (
        "This HistGradientBoostingClassifier is not fitted; call fit before "
        "load_forest."
    )
