"""Compiled pipelines with values that a step inside refuses, warns about or knows not.

Random pipelines found each of these; see exactness/test_pipelines_by_hypothesis.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import feature_selection as fs
from sklearn import preprocessing as pre
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline

from skforge import UnsupportedModelError, load_forest
from tests.compared_calls import difference
from tests.plain import plain

pd = pytest.importorskip("pandas")


def texts(n=200, **more):
    random = np.random.default_rng(0)
    columns = {
        "a": pd.Series(random.choice(["S", "C", "Q"], n), dtype=object),
        "b": pd.Series(random.choice(["x", "y"], n), dtype=object),
        "n": random.normal(size=n),
    }
    return pd.DataFrame(columns | more)


def fitted(step, X):
    codes = X.iloc[:, 0].astype("category").cat.codes.to_numpy()
    y = (codes + np.arange(len(X)) % 3 > 1).astype(int)
    return make_pipeline(step, RandomForestClassifier(5, random_state=0)).fit(X, y)


def assert_alike(model, *rows):
    fast = plain(model).fit(rows[0])
    for one in rows:
        for method in ("predict", "predict_proba"):
            assert not difference(getattr(fast, method), getattr(model, method), one)
    return fast


def with_value(X, column, value):
    found = X[:3].copy()
    found.loc[1, column] = value
    return found


@pytest.mark.parametrize("value", [np.nan, None])
def test_a_missing_text_where_an_imputer_knows_another_mark(value):
    filled = make_pipeline(
        SimpleImputer(missing_values="?", strategy="most_frequent"),
        pre.OneHotEncoder(handle_unknown="ignore"),
    )
    X = texts()
    model = fitted(make_column_transformer((filled, ["a", "b"])), X)
    assert_alike(model, X, with_value(X, "a", value), with_value(X, "b", value))


@pytest.mark.parametrize("drop", [None, "if_binary"])
def test_none_is_another_category_than_nan(drop):
    X = texts()
    X.loc[::5, "b"] = None
    X.loc[::9, "a"] = np.nan
    codes = pre.OneHotEncoder(drop=drop, handle_unknown="ignore", sparse_output=False)
    columns = ColumnTransformer([("codes", codes, ["a", "b"])], remainder="passthrough")
    bad = [with_value(X, "b", np.nan), with_value(X, "a", None)]
    assert_alike(fitted(columns, X), X, *bad)


def test_numbers_held_as_objects_are_refused():
    X = np.array([[1, 2.5], [2, 3.5], [3, 2.5]] * 20, object)
    model = make_pipeline(pre.OneHotEncoder(), RandomForestClassifier(3))
    model.fit(X, [0, 1, 1] * 20)
    with pytest.raises(UnsupportedModelError, match="was fitted on numbers of dtype"):
        load_forest(model)


@pytest.mark.parametrize("clip", [False, True])
def test_an_overflow_that_is_clipped_or_dropped_draws_a_warning(clip):
    X = texts()[["n", "n"]].to_numpy() * [1e-3, 1.0]
    y = (X[:, 1] > 0).astype(int)
    model = make_pipeline(
        pre.MinMaxScaler(clip=clip),
        fs.SelectKBest(k=1),
        RandomForestClassifier(5, random_state=0),
    ).fit(X, y)
    assert model[1].get_support().sum() == 1
    rows = []
    for column in (0, 1):
        for value in (1e308, -1e308, 1e305, 1e300, np.inf):
            rows.append(X[:3].copy())
            rows[-1][1, column] = value
    assert_alike(model, X, *rows)


def test_names_of_frames_are_written_down_in_each_call():
    """Nothing was fitted again: the pipeline is not taken for a changed one."""
    X = texts()
    columns = make_column_transformer((pre.StandardScaler(), ["n"]))
    model = fitted(columns.set_output(transform="pandas"), X)
    single = X.astype({"n": np.float32})
    assert_alike(model, X, single, X, single)


def test_an_unknown_number_that_becomes_nan_where_a_step_refuses_it():
    codes = pre.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    X = np.random.default_rng(0).integers(0, 4, (200, 2)).astype(float)
    y = (X[:, 0] > X[:, 1]).astype(int)
    for steps in (
        [GradientBoostingClassifier(n_estimators=3)],
        [pre.Binarizer(threshold=1), RandomForestClassifier(3)],
    ):
        model = make_pipeline(codes, *steps).fit(X, y)
        assert_alike(model, X, X[:5], X + 1, X[:1] + 9, X[:1] + 0.5)


def test_sparse_columns_before_gradient_boosting():
    X = np.random.default_rng(0).normal(size=(200, 3))
    y = (X[:, 0] > X[:, 1]).astype(int)
    bins = pre.KBinsDiscretizer(
        3, encode="onehot", quantile_method="averaged_inverted_cdf"
    )
    model = make_pipeline(bins, GradientBoostingClassifier(n_estimators=3)).fit(X, y)
    assert_alike(model, X, X[:1], X[:3] + 1)


@pytest.mark.parametrize("rest", ["passthrough", pre.StandardScaler(with_mean=False)])
def test_numbers_that_only_a_cast_makes_zero_are_not_missing(rest):
    """In a sparse matrix XGBoost lacks zeros; the cast to float32 comes afterwards."""
    xgb = pytest.importorskip("xgboost")
    random = np.random.default_rng(0)
    X = np.c_[random.integers(0, 3, 300), random.choice([-2.0, -1, 0, 1, 2], 300)]
    y = np.where(X[:, 1] == 0, 5, X[:, 1]) + X[:, 0]
    codes = make_column_transformer(
        (pre.OneHotEncoder(), [0]), remainder=rest, sparse_threshold=1.0
    )
    model = make_pipeline(codes, xgb.XGBRegressor(n_estimators=5, max_depth=3))
    model.fit(X, y)
    fast = plain(model).fit(X)
    assert "runs in" not in fast.inspect("pipeline")
    new = [0, -0.0, 5e-324, -5e-324, 1e-46, -1e-46, 7e-46, 7.1e-46, -7.1e-46, 1e-45]
    rows = np.c_[np.arange(30) % 3, np.repeat(new, 3)]
    assert len(np.unique(model.predict(rows[::3]))) > 1
    assert not difference(fast.predict, model.predict, rows)
