"""Data frames for LightGBM's model files: categories by name, or refused."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, OneHotEncoder

from skforge import CompiledForest, load_forest
from skforge.exceptions import InvalidInputError, SourceNeededError
from skforge.rows.prepare import prepare_rows
from tests.comparing import refusal, saved
from tests.plain import plain

lgb = pytest.importorskip("lightgbm")
pd = pytest.importorskip("pandas")

N = 200
LETTERS = ["red", "green", "blue", "grey"]


def make_frame(seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"x": rng.normal(size=N), "n": rng.integers(0, 9, N)})
    frame.insert(0, "color", pd.Categorical(rng.choice(LETTERS, N)))
    frame["code"] = pd.Categorical(rng.choice([30, 10, 20], N))
    return frame


@pytest.fixture(scope="module")
def model():
    frame = make_frame()
    y = frame["color"].cat.codes % 2 + frame["code"].astype(float) / 9 + frame["x"]
    params = {"min_child_samples": 5, "cat_smooth": 1, "min_data_per_group": 5}
    return lgb.LGBMRegressor(n_estimators=4, n_jobs=1, verbose=-1, **params).fit(
        frame, y
    )


@pytest.fixture
def file(model, tmp_path):
    path = tmp_path / "model.txt"
    model.booster_.save_model(path)
    return path


def test_categories_are_found_by_name(model, file):
    other = make_frame(1)
    # the same names under other numbers, one that is new, and a missing one
    other["color"] = pd.Categorical(
        ["new", None, *other["color"].astype(str)[2:]],
        categories=["new", "grey", "red", "blue", "green"],
    )
    other["code"] = other["code"].cat.reorder_categories([20, 30, 10])
    fast = CompiledForest(str(file)).fit(make_frame())
    expected = model.predict(other)
    assert (fast.predict(other) == expected).all()
    wrong = other.assign(
        color=other["color"].cat.codes, code=other["code"].cat.codes
    ).to_numpy(np.float64)
    assert (fast.predict(wrong) != expected).any()


def test_other_columns_of_category_dtype_are_refused(file):
    forest = load_forest(file)
    frame = make_frame()
    numbers = frame.assign(code=frame["code"].astype(int))
    assert refusal(InvalidInputError, prepare_rows, forest, numbers) == (
        "2 columns held categories in training, but 1 column here holds them; give the "
        "same columns the dtype category, or pass an array of their codes."
    )


def test_frames_without_the_columns_of_categories_are_refused(model):
    frame = make_frame()
    fast = plain(model).fit(frame)
    narrow = frame[["n"]].astype(bool)
    for answers in (model, fast):
        with pytest.raises(ValueError, match="categorical_feature do not match"):
            answers.predict(narrow)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_the_limit_of_zeros_is_none_in_tables(library, dtype, tmp_path):
    """LightGBM takes numbers up to it for 0, itself in arrays and pandas' frames."""
    tables = pytest.importorskip(library)
    rng = np.random.default_rng(0)
    X, y, model, _ = of_zeros(rng)
    fast = plain(model.fit(X, y)).fit(X)
    limit = np.float32(1e-35)
    tiny = np.array([0, 1e-36, -1e-36, limit, -limit, np.nan, 1e-20, 3], dtype)
    rows = rng.choice(tiny, (200, 3))
    frame = pd.DataFrame(rows, columns=["a", "b", "c"])
    if library == "polars":
        new = tables.from_pandas(frame, nan_to_null=False)
    else:
        new = tables.Table.from_pandas(frame)
    expected = model.predict_proba(new)
    assert (expected != model.predict_proba(frame)).any()
    assert np.array_equal(fast.predict_proba(new), expected)
    assert np.array_equal(fast.predict_proba(frame), model.predict_proba(frame))
    loaded = saved(fast, tmp_path)
    with pytest.raises(SourceNeededError):
        loaded.predict_proba(new)


def of_zeros(rng, **params):
    """Return rows, a model with tests at zero, and rows around its limit of zeros."""
    X = rng.integers(-1, 6, (120, 3)).astype(float)
    model = lgb.LGBMClassifier(
        n_estimators=4, min_child_samples=2, n_jobs=1, verbose=-1, **params
    )
    limit = float(np.float32(1e-35))
    near = [limit, -limit, np.nextafter(-limit, 0), np.nextafter(-limit, -1), -1e-36]
    rows = rng.choice([0, 3, -1, *near], (200, 3))
    return X, (X.sum(axis=1) + rng.integers(0, 3, 120)) % 2, model, rows


@pytest.mark.parametrize("zeros_are_missing", [False, True])
@pytest.mark.parametrize(
    "form", ["csr_matrix", "csr_array", "csc_matrix", "csc_array", "coo_matrix"]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_limit_of_zeros_in_sparse_rows(form, dtype, zeros_are_missing, tmp_path):
    """LightGBM compares it in rows of CSR, and takes it for 0 in columns of CSC."""
    X, y, model, rows = of_zeros(
        np.random.default_rng(0), zero_as_missing=zeros_are_missing
    )
    fast = plain(model.fit(X, y)).fit(X)
    loaded = saved(fast, tmp_path)
    limit = (rows.astype(dtype) == -np.float32(1e-35)).any(axis=1)
    kind = getattr(sparse, form)
    for some in (limit, ~limit):
        given = kind(rows[some].astype(dtype))
        expected = model.predict_proba(given)
        assert np.array_equal(fast.predict_proba(given), expected)
        if some is limit and form != "csc_matrix":
            with pytest.raises(SourceNeededError):
                loaded.predict_proba(given)
        else:
            assert np.array_equal(loaded.predict_proba(given), expected)
    differ = model.predict_proba(kind(rows)) != model.predict_proba(rows)
    assert differ.any() == (form != "csc_matrix" and not zeros_are_missing)


@pytest.mark.parametrize("zeros_are_missing", [False, True])
@pytest.mark.parametrize("step", ["columns", "imputer", "imputer, scaler"])
def test_the_limit_of_zeros_behind_steps_that_give_sparse_rows(step, zeros_are_missing):
    rng = np.random.default_rng(0)
    X, y, light, rows = of_zeros(rng, zero_as_missing=zeros_are_missing)
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), [2]),
        ("passthrough", [0, 1]),
        sparse_threshold=1,
    )
    steps = {"imputer": SimpleImputer(), "scaler": MaxAbsScaler()}
    steps = [steps[name] for name in step.split(", ") if name in steps]
    model = make_pipeline(columns, *steps, light).fit(X, y)
    fast = plain(model).fit(X)
    assert np.array_equal(fast.predict_proba(rows), model.predict_proba(rows))
    # a scaler keeps the format that it gets
    unsure = "scaler" in step and not zeros_are_missing
    assert ("runs in scikit-learn" in fast.inspect("pipeline")) == unsure


def test_steps_that_give_polars_frames_do_not_fold_before_lightgbm():
    pytest.importorskip("polars")
    X, y, light, rows = of_zeros(np.random.default_rng(0))
    steps = make_column_transformer(("passthrough", [0, 1, 2]))
    model = make_pipeline(steps, light).set_output(transform="polars")
    fast = plain(model.fit(X, y)).fit(X)
    assert (model.predict_proba(rows) != light.predict_proba(rows)).any()
    assert np.array_equal(fast.predict_proba(rows), model.predict_proba(rows))


def test_half_floats_of_arrow_are_refused_as_lightgbm_refuses_them():
    arrow = pytest.importorskip("pyarrow")
    X = np.random.default_rng(0).normal(size=(100, 2))
    model = lgb.LGBMRegressor(n_estimators=2, verbose=-1).fit(X, X[:, 0])
    fast = plain(model).fit(X)
    columns = {name: arrow.array(X[:3, 0].astype(np.float16)) for name in "ab"}
    with pytest.raises(lgb.basic.LightGBMError, match="half_float"):
        fast.predict(arrow.table(columns))
