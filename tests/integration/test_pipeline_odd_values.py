"""Compiled pipelines with values that a step inside refuses, warns about or knows not.

Random pipelines found each of these; see exactness/test_pipelines_by_hypothesis.py.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn import feature_selection as fs
from sklearn import preprocessing as pre
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline, make_union
from sklearn.tree import DecisionTreeRegressor

from skforge import UnsupportedModelError, load_forest
from skforge.exceptions import SourceNeededError
from skforge.prediction.predictor import ForestPredictor
from tests.compared_calls import difference
from tests.comparing import assert_alike, saved
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


def alike(model, *rows):
    fast = plain(model).fit(rows[0])
    assert_alike(fast, model, *rows)
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
    alike(model, X, with_value(X, "a", value), with_value(X, "b", value))


@pytest.mark.filterwarnings("ignore::skforge.PerformanceWarning")
def test_none_that_frames_between_steps_give_as_nan(asked):
    """Pandas makes NaN of None beside texts, and keeps it alone."""
    X = texts().astype({"a": object})[["a"]]
    X.loc[::9, "a"] = None
    imputer = SimpleImputer(missing_values="?", strategy="most_frequent")
    steps = imputer, pre.TargetEncoder(cv=3), DecisionTreeRegressor(random_state=0)
    model = make_pipeline(*steps).set_output(transform="pandas")
    model.fit(X, X["a"].isna())
    fast = plain(model).fit(X)
    assert answers(fast, model, X[1:9], asked) == "kernels"
    for rows in (X, X[:1], X[:9]):
        assert answers(fast, model, rows, asked) == "pipeline"
    assert model.predict(X[:1]) != model.predict(X[:2])[0]


@pytest.mark.parametrize("drop", [None, "if_binary"])
def test_none_is_another_category_than_nan(drop):
    X = texts()
    X.loc[::5, "b"] = None
    X.loc[::9, "a"] = np.nan
    codes = pre.OneHotEncoder(drop=drop, handle_unknown="ignore", sparse_output=False)
    columns = ColumnTransformer([("codes", codes, ["a", "b"])], remainder="passthrough")
    bad = [with_value(X, "b", np.nan), with_value(X, "a", None)]
    alike(fitted(columns, X), X, *bad)


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
    alike(model, X, *rows)


def test_names_of_frames_are_written_down_in_each_call():
    """Nothing was fitted again: the pipeline is not taken for a changed one."""
    X = texts()
    columns = make_column_transformer((pre.StandardScaler(), ["n"]))
    model = fitted(columns.set_output(transform="pandas"), X)
    single = X.astype({"n": np.float32})
    alike(model, X, single, X, single)


def test_an_unknown_number_that_becomes_nan_where_a_step_refuses_it():
    codes = pre.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    X = np.random.default_rng(0).integers(0, 4, (200, 2)).astype(float)
    y = (X[:, 0] > X[:, 1]).astype(int)
    for steps in (
        [GradientBoostingClassifier(n_estimators=3)],
        [pre.Binarizer(threshold=1), RandomForestClassifier(3)],
    ):
        model = make_pipeline(codes, *steps).fit(X, y)
        alike(model, X, X[:5], X + 1, X[:1] + 9, X[:1] + 0.5)


def test_sparse_columns_before_gradient_boosting():
    X = np.random.default_rng(0).normal(size=(200, 3))
    y = (X[:, 0] > X[:, 1]).astype(int)
    bins = pre.KBinsDiscretizer(
        3, encode="onehot", quantile_method="averaged_inverted_cdf"
    )
    model = make_pipeline(bins, GradientBoostingClassifier(n_estimators=3)).fit(X, y)
    alike(model, X, X[:1], X[:3] + 1)


# ------------------------------------------------ errors that the steps raise

WHOLE = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]


def numbers(*values, n=300):
    X = np.random.default_rng(0).choice(values, (n, 3))
    X[: len(values), 0] = values
    return X


def before_a_tree(step, X):
    """Return a pipeline of a step and a tree, and what is compiled of it."""
    score = pd.DataFrame(X).select_dtypes("number").fillna(-3).sum(axis=1)
    model = make_pipeline(step, DecisionTreeRegressor(max_depth=8)).fit(X, score)
    return model, plain(model).fit(X)


@pytest.fixture
def asked(monkeypatch):
    """The methods of the source that were called."""
    calls, ask = [], ForestPredictor.ask

    def counted(self, method, X, **params):
        calls.append(method)
        return ask(self, method, X, **params)

    monkeypatch.setattr(ForestPredictor, "ask", counted)
    return calls


def answers(fast, model, rows, asked):
    """Return who answers, after comparing the answers and the errors."""
    asked.clear()
    assert not difference(fast.predict, model.predict, rows)
    return "pipeline" if asked else "kernels"


@pytest.mark.parametrize("marker", [-1, 0.5, np.nan])
def test_a_missing_value_where_an_indicator_saw_none(marker, asked):
    X = numbers(marker, 0.0, 1.0, 2.0)
    X[:, 2] = 1 + np.arange(len(X)) % 2
    step = make_union("passthrough", MissingIndicator(missing_values=marker))
    model, fast = before_a_tree(step, X)
    bad = X[:4].copy()
    bad[3, 2] = marker
    assert answers(fast, model, X, asked) == "kernels"
    assert answers(fast, model, bad, asked) == "pipeline"
    message = r"The features \[2\] have missing values in transform but have no"
    with pytest.raises(ValueError, match=message):
        fast.predict(bad)
    assert answers(fast, model, pd.DataFrame(bad), asked) == "pipeline"
    assert answers(fast, model, bad.tolist(), asked) == "pipeline"
    if marker == -1:
        assert answers(fast, model, np.abs(X).astype(np.int8), asked) == "kernels"
        assert answers(fast, model, bad.astype(np.int32), asked) == "pipeline"


def test_a_marker_among_texts_where_an_indicator_saw_none(asked, tmp_path):
    X = texts()
    X.loc[::3, "a"] = "?"
    step = make_column_transformer(
        (MissingIndicator(missing_values="?"), ["a", "b"]), ("passthrough", ["n"])
    )
    model, fast = before_a_tree(step, X)
    loaded = saved(fast, tmp_path)
    for rows in (X, X.assign(a="new", b="other"), with_value(X, "a", None)):
        assert answers(fast, model, rows, asked) == "kernels"
        np.testing.assert_array_equal(loaded.predict(rows), model.predict(rows))
    bad = with_value(X, "b", "?")
    row = {"a": "?", "b": "?", "n": 0.5}
    for rows in (bad, bad.astype({"b": "category"}), with_value(X, "a", np.nan)):
        assert answers(fast, model, rows, asked) == "pipeline"
        with pytest.raises(SourceNeededError):
            loaded.predict(rows)
    with pytest.raises(ValueError, match=r"The features \[1\] have missing values"):
        fast.predict(row)
    good = {**row, "b": "x"}
    assert fast.predict(good) == model.predict(pd.DataFrame([good]))
    others = {"missing": None, "none": "NaN", "other": "NaN"}
    assert fast._predictor.source.codes()[1] == {"codes": {"?": None}, **others}


@pytest.mark.parametrize("strategy", ["constant", "most_frequent"])
def test_an_imputer_of_fractions_gets_whole_numbers(strategy, asked, tmp_path):
    """It refuses them, or cuts the fraction off what it fills in."""
    X = numbers(-1, 0.0, 0.5, 0.5, 0.5, 1.0, 2.0)
    step = SimpleImputer(missing_values=-1, strategy=strategy, fill_value=0.5)
    model, fast = before_a_tree(step, X)
    loaded = saved(fast, tmp_path)
    whole = np.random.default_rng(1).integers(-1, 3, (8, 3))
    signed = [code for code in WHOLE if strategy == "constant" or code[0] == "i"]
    for code in signed:
        rows = np.abs(whole).astype(code) if code[0] == "u" else whole.astype(code)
        for form in (rows, rows.tolist(), pd.DataFrame(rows)):
            if code == "i8" or form is rows:
                assert answers(fast, model, form, asked) == "pipeline"
                with pytest.raises(SourceNeededError):
                    loaded.predict(form)
    mixed = pd.DataFrame(whole).astype({1: np.float64})
    assert answers(fast, model, mixed, asked) == "kernels"
    np.testing.assert_array_equal(loaded.predict(mixed), model.predict(mixed))


def test_an_imputer_of_fractions_gets_columns_of_whole_numbers(asked):
    X = pd.DataFrame(numbers(-1, 0.0, 0.5, 1.0, 2.0), columns=list("abc"))
    fill = SimpleImputer(missing_values=-1, strategy="constant", fill_value=0.5)
    step = make_column_transformer((fill, ["a", "b"]), ("passthrough", ["c"]))
    model, fast = before_a_tree(step, X)
    rows = X.iloc[:6].round()
    for dtypes, who in (
        ({"c": "i8"}, "kernels"),
        ({"a": "i8"}, "kernels"),
        ({"a": "i8", "b": "i2"}, "pipeline"),
        ({"a": "i8", "b": "i8", "c": "i8"}, "pipeline"),
        ({"a": "i8", "b": "u8"}, "kernels"),  # they are float64 together
    ):
        assert answers(fast, model, rows.clip(lower=0).astype(dtypes), asked) == who


def test_whole_numbers_that_no_step_treats_in_its_own_way(asked):
    X = numbers(-1, 0.0, 1.0, 2.0, np.nan)
    fill = SimpleImputer(strategy="most_frequent")
    codes = pre.OneHotEncoder(handle_unknown="ignore")
    for step in (make_pipeline(fill, codes), make_pipeline(fill, pre.StandardScaler())):
        model, fast = before_a_tree(step, X)
        for code in WHOLE:
            rows = np.random.default_rng(1).integers(0, 5, (8, 3)).astype(code)
            assert answers(fast, model, rows, asked) == "kernels"


def test_unknown_unsigned_numbers_before_an_encoder_of_negative_ones(asked):
    """It writes the first category in their place, which wraps around."""
    X = numbers(-7.5, 0.5, 1.0, 2.0)
    model, fast = before_a_tree(pre.TargetEncoder(cv=2), X)
    for code in WHOLE:
        who = "pipeline" if code[0] == "u" else "kernels"
        assert answers(fast, model, np.full((2, 3), 9, code), asked) == who


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("strategy", ["constant", "mean", "most_frequent"])
def test_an_imputer_of_a_column_without_values(keep, strategy, asked):
    X = numbers(0.0, 1.0, 2.0, np.nan)
    X[:, 1] = np.nan
    how = {"strategy": strategy, "keep_empty_features": keep}
    how["fill_value"] = 3.5 if strategy == "constant" else None
    for marks in (False, True):
        step = SimpleImputer(add_indicator=marks, **how)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about the column
            model, fast = before_a_tree(step, X)
        filled = np.where(np.isnan(X), 5.0, X)
        who = [answers(fast, model, rows, asked) for rows in (X, filled, X[:1])]
        assert who == ["kernels"] * 3 or not keep or strategy == "most_frequent"
        answers(fast, model, X[:, :2], asked)


@pytest.mark.parametrize("unknown", ["error", "warn"])
def test_an_encoder_that_has_seen_missing_values_alone(unknown, asked):
    X = numbers(0.0, 1.0, 2.0)
    X[:, 1] = np.nan
    codes = pre.OneHotEncoder(handle_unknown=unknown, drop="if_binary")
    model, fast = before_a_tree(codes, X)
    for value in (0.0, 7.5, np.nan):
        rows = X[:3].copy()
        rows[1, 1] = value
        answers(fast, model, rows, asked)


def test_an_encoder_that_knows_no_text_of_its_column(asked):
    """In training it gets other codes than later, those of cross-fitting."""
    X = texts()
    steps = make_pipeline(pre.TargetEncoder(cv=3), pre.OneHotEncoder(drop="first"))
    steps.set_params(onehotencoder__handle_unknown="ignore")
    model, fast = before_a_tree(make_column_transformer((steps, ["a", "b"])), X)
    answers(fast, model, X, asked)
    answers(fast, model, with_value(X, "a", "new"), asked)


def test_a_nested_step_that_names_columns(asked):
    """The frame of a FunctionTransformer has names, so the next step warns."""
    X = numbers(0.0, 1.0, 2.0)
    named = pre.FunctionTransformer(feature_names_out="one-to-one")
    steps = make_pipeline(make_pipeline(named, pre.StandardScaler()), pre.Binarizer())
    model, fast = before_a_tree(steps, X)
    assert answers(fast, model, X, asked) == "kernels"
    answers(fast, model, pd.DataFrame(X), asked)


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
