"""LightGBM's lists of categories belong to columns of the dtype category, in order.

Which features are tested by sets is another question: ordered categories are numbers,
and users name other features. A value is never taken for a code.
"""

from __future__ import annotations

import importlib
import pickle
import warnings
import zipfile
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingRegressor,
    VotingRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, OneHotEncoder

import skforge
from skforge import load_forest
from skforge.exceptions import InvalidInputError, PerformanceWarning, SourceNeededError
from skforge.rows.prepare import prepare_rows
from tests.comparing import assert_alike, in_every_state, refusal, saved
from tests.plain import fit_both, plain
from tests.programs import command

lgb = pytest.importorskip("lightgbm")
pd = pytest.importorskip("pandas")

N = 240
rng = np.random.default_rng(0)
x, shop, flag = rng.normal(size=N), rng.integers(0, 3, N), rng.integers(0, 2, N)
sizes = pd.Categorical(rng.choice(["S", "M", "L"], N), ["S", "M", "L"], ordered=True)
towns = pd.Categorical(np.where(rng.random(N) < 0.1, None, rng.choice(["a", "b"], N)))
stars = pd.Categorical(rng.integers(1, 6, N), [1, 2, 3, 4, 5], ordered=True)
zips = pd.Categorical(rng.choice([10, 20, 30], N))
counts, nothing = rng.integers(0, 4, N), pd.Categorical([None] * N)


def nullable(values: Any, dtype: str) -> Any:
    return pd.Series(values).astype(dtype).astype("category")


#: Frames, and the features that LightGBM is told to test by sets.
FRAMES: dict[str, tuple[Any, Any]] = {
    "auto": ({"x": x, "town": towns}, "auto"),
    "ordered numbers": ({"x": x, "stars": stars}, "auto"),
    "ordered texts": ({"x": x, "size": sizes, "town": towns}, "auto"),
    "no category": ({"none": nothing, "x": x, "town": towns}, "auto"),
    "none named": ({"x": x, "zip": zips}, []),
    "one of two": ({"x": x, "zip": zips, "stars": stars}, ["zip"]),
    "a number named, too": ({"x": x, "shop": shop, "town": towns}, ["town", "shop"]),
    "a number in place": ({"x": x, "stars": stars, "shop": shop}, ["shop"]),
    "a flag in place": ({"x": x, "zip": zips, "flag": flag}, ["flag"]),
    "booleans": ({"flag": pd.Categorical(flag == 1), "x": x, "town": towns}, "auto"),
    "fractions": ({"x": x, "half": pd.Categorical(counts / 2), "flag": flag}, "auto"),
    "Int64": ({"x": x, "count": nullable(counts, "Int64")}, "auto"),
    "UInt8": ({"x": x, "count": nullable(counts, "UInt8")}, "auto"),
    "Float64": ({"x": x, "half": nullable(counts / 2, "Float64")}, "auto"),
    "boolean": ({"x": x, "flag": nullable(flag == 1, "boolean")}, "auto"),
}


def trained(name: str) -> tuple[Any, Any]:
    columns, named = FRAMES[name]
    frame = pd.DataFrame(columns)
    model = lgb.LGBMRegressor(n_estimators=6, min_child_samples=5, n_jobs=1, verbose=-1)
    return model.fit(frame, score(frame), categorical_feature=named), frame


def score(frame: Any) -> Any:
    codes = [c.cat.codes if c.dtype == "category" else c for _, c in frame.items()]
    return np.sum(codes, axis=0) + 3 * (codes[-1] == 1)


def values_of(frame: Any) -> dict[str, list[Any]]:
    columns = {name: frame[name].astype(object) for name in frame}
    return {
        name: [None if pd.isna(value) else value for value in column]
        for name, column in columns.items()
    }


def other_frames(frame: Any) -> dict[str, Any]:
    """Return frames with the same columns that list other categories."""
    coded = [name for name in frame if frame[name].dtype == "category"]

    def made(change: Any) -> Any:
        return frame.assign(**{name: change(frame[name]) for name in coded})

    return {
        "training": frame,
        "one row": frame.iloc[[3]],
        "reversed": made(lambda c: c.cat.set_categories(c.cat.categories[::-1])),
        "fewer": made(lambda c: c[:7].cat.remove_unused_categories()).iloc[:7],
        "unknown": made(lambda c: c.cat.remove_categories(c.cat.categories[:1])),
    }


@pytest.mark.filterwarnings("error::skforge.exceptions.PerformanceWarning")
@pytest.mark.parametrize("name", FRAMES)
def test_kernels_answer_frames_and_values(name, tmp_path):
    model, frame = trained(name)
    fast = plain(model).fit(frame)
    columns = values_of(frame)
    rows = [{name: column[i] for name, column in columns.items()} for i in range(N)]
    expected = model.predict(frame)
    for form, other in in_every_state(fast, tmp_path).items():
        for which, given in other_frames(frame).items():
            answer = other.predict(given)
            assert np.array_equal(answer, model.predict(given)), (form, which)
        for given in (columns, rows):
            assert np.array_equal(other.predict(given), expected), form
        assert other.predict(rows[3]) == expected[3], form
        assert other.counters()["library"]["calls"] == 0, form


@pytest.mark.parametrize("name", FRAMES)
def test_a_file_answers_frames_and_values(name):
    """By the order of categories; values where it tells their columns."""
    model, frame = trained(name)
    text = model.booster_.model_to_string()
    module = skforge.compile_forest(text)
    for which, given in other_frames(frame).items():
        assert np.array_equal(module.predict(given), model.predict(given)), which
    dump = skforge.load_forest(model.booster_.dump_model())
    for field in ("category_names", "category_lists", "feature_names", "threshold"):
        held = getattr(dump, field), getattr(module.forest, field)
        assert np.array_equal(*map(repr, held)), field
    file, expected = plain(text).fit(np.zeros(frame.shape)), model.predict(frame)
    if file.forest_.category_lists:
        told = {"no category": UNPLACED.replace("1 column", "2 columns")}
        told |= dict.fromkeys(("a number in place", "a flag in place"), UNPLACED)
        told["fractions"] = UNPLACED
        said = refusal(InvalidInputError, file.predict, values_of(frame))
        assert said == f"the rows are mappings, and {told[name]}"
        file = plain(text).fit(frame)  # as it advises
    assert np.array_equal(file.predict(values_of(frame)), expected)


UNPLACED = (
    "LightGBM's file lists the categories of 1 column without saying which these are, "
    "so that a value might be taken for a code; pass a pandas frame whose columns have "
    "the dtypes of training, or give fit of CompiledForest the model and its training "
    "frame."
)


def test_a_file_that_mistakes_the_column_of_texts_refuses_its_numbers():
    columns = {"x": x, "kind": pd.Categorical(np.where(flag, "p", "q"), ordered=True)}
    frame = pd.DataFrame({**columns, "flag": flag[::-1]})
    model = lgb.LGBMRegressor(n_estimators=4, n_jobs=1, verbose=-1)
    model.fit(frame, score(frame), categorical_feature=["flag"])
    forest = skforge.load_forest(model.booster_)
    assert forest.category_names == ((), (), ("p", "q"))
    file = plain(forest).fit(np.zeros((1, 3)))
    assert np.array_equal(file.predict(frame), model.predict(frame))
    assert refusal(
        InvalidInputError, file.predict, {"x": 0.5, "kind": None, "flag": 1}
    ) == (
        "'flag' of the row is 1, but its categories are texts; pass a text, or None if "
        "it is missing."
    )


def test_plain_numbers_in_place_of_categories_are_refused(tmp_path):
    model, frame = trained("ordered numbers")
    numbers = frame.astype({"stars": "float64"})
    for form, fast in in_every_state(plain(model).fit(frame), tmp_path).items():
        if form in ("dropped", "file"):
            assert refusal(InvalidInputError, fast.predict, numbers) == (
                "1 column held categories in training, but no column here holds them; "
                "give the same columns the dtype category, or pass an array of their "
                "codes."
            )
        else:
            with pytest.raises(ValueError, match="categorical_feature do not match"):
                fast.predict(numbers)
        codes = frame.assign(stars=frame["stars"].cat.codes).to_numpy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the live model says
            assert np.array_equal(fast.predict(codes), model.predict(frame))


@pytest.mark.parametrize("name", ["ordered numbers", "a number in place"])
def test_polars_and_the_command_line_read_values(name, tmp_path, capsys):
    pl = pytest.importorskip("polars")
    from skforge.polars import predict

    model, frame = trained(name)
    columns = values_of(frame)
    text, path = tmp_path / "model.txt", tmp_path / "model.skforge"
    model.booster_.save_model(text)
    skforge.save(plain(model).fit(frame), path)
    answers = pl.DataFrame(columns).select(predict(path, pl.all())).to_series()
    assert np.array_equal(answers.to_numpy(), model.predict(frame))
    pd.DataFrame(columns).to_csv(tmp_path / "rows.csv", index=False)
    for source in (path, text):
        out = tmp_path / "out.npy"
        call = "predict", source, tmp_path / "rows.csv", "-o", out
        code, _, said = command(capsys, *call)
        if source is text and name == "a number in place":
            why = "error: rows.csv cannot be read as rows of the model:"
            assert (code, " ".join(said.split())) == (2, f"{why} {UNPLACED}")
        else:
            assert code == 0, said
            assert np.array_equal(np.load(out), model.predict(frame))
            out.unlink()


def test_columns_without_names_of_their_own_have_no_values_in_polars():
    pl = pytest.importorskip("polars")
    from skforge.polars import predict

    frame = pd.DataFrame({"Column_0": x, "Column_1": zips})
    model = lgb.LGBMRegressor(n_estimators=2, n_jobs=1, verbose=-1)
    fast = plain(model.fit(frame, score(frame))).fit(frame)
    assert refusal(InvalidInputError, predict, fast, pl.all()) == (
        "The model takes categories by name, and the columns of its training frame "
        "have no names but LightGBM's own (Column_0, …); train it on a frame whose "
        "columns have others."
    )


@pytest.mark.parametrize("known", [True, False])
def test_wheels_take_no_value_for_a_code(known, tmp_path, monkeypatch):
    model, frame = trained("a number in place")
    name = f"stars_{known}".lower()
    source = plain(model).fit(frame) if known else skforge.load_forest(model.booster_)
    path = skforge.export(source, tmp_path / "wheel", name=name, kind="wheel")
    with zipfile.ZipFile(next(path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "unpacked")
    monkeypatch.syspath_prepend(str(tmp_path / "unpacked"))
    package = importlib.import_module(name)
    columns, expected = values_of(frame), model.predict(frame)
    for rows in (columns, frame.astype({"stars": int}), frame):
        if known:
            assert np.array_equal(package.predict(rows), expected)
            continue
        assert refusal(ValueError, package.predict, rows) == (
            "the model knows categories by name, but not the columns that hold them; "
            "pass an array of their codes, or export a CompiledForest that was fitted "
            "with a frame of training"
        )
    codes = frame.assign(stars=frame["stars"].cat.codes).to_numpy(float)
    assert np.array_equal(package.predict(codes), expected)


@pytest.mark.filterwarnings("ignore::skforge.exceptions.PerformanceWarning")
def test_a_vote_whose_first_member_does_not_know_the_columns():
    frame = pd.DataFrame({"x": x, "stars": stars, "flag": flag})
    hist = HistGradientBoostingRegressor(max_iter=3, categorical_features="from_dtype")
    light = lgb.LGBMRegressor(n_estimators=3, n_jobs=1, verbose=-1)
    model = VotingRegressor([("a", hist), ("b", light)]).fit(frame, score(frame))
    fast = plain(model).fit(frame)
    assert np.array_equal(fast.predict(frame), model.predict(frame))
    assert refusal(InvalidInputError, fast.predict, values_of(frame)) == (
        "the rows are mappings, and the LightGBM models in this VotingRegressor do not "
        "tell which columns hold categories; pass a pandas frame whose columns have "
        "the dtypes of training."
    )


@pytest.mark.parametrize("ordered", [False, True])
def test_a_pipeline_does_not_fold_steps_before_categories(ordered):
    held = pd.Categorical(stars, ordered=ordered)
    frame = pd.DataFrame({"x": x, "stars": held, "town": towns})
    model = make_pipeline("passthrough", lgb.LGBMRegressor(n_estimators=3, verbose=-1))
    with pytest.warns(PerformanceWarning, match="knows categories of frames"):
        fast = plain(model.fit(frame, score(frame))).fit(frame)
    assert_alike(fast, model, frame, frame[:1], frame[::-1])
    numbers = frame.astype({"stars": "float64"}).assign(town=flag)
    with pytest.raises(ValueError, match="categorical_feature do not match"):
        model.predict(numbers)
    assert_alike(fast, model, numbers)


@pytest.mark.parametrize("trained_on", ["int64", "float64", "Int64"])
def test_whole_numbers_and_fractions_are_compared_by_value(trained_on, tmp_path):
    frame = pd.DataFrame({"x": x, "count": nullable(counts, trained_on)})
    model = lgb.LGBMRegressor(n_estimators=4, n_jobs=1, verbose=-1)
    model.fit(frame, score(frame))
    for form, fast in in_every_state(plain(model).fit(frame), tmp_path).items():
        for dtype in ("int64", "float64", "UInt8", "float32"):
            given = frame.assign(count=nullable(counts + 1, dtype))
            assert np.array_equal(fast.predict(given), model.predict(given)), form
        assert fast.counters()["library"]["calls"] == 0
        texts = frame.assign(count=nullable(counts, "str"))
        if form in ("dropped", "file"):
            with pytest.raises(InvalidInputError, match="the same kind of categories"):
                fast.predict(texts)
        else:
            assert np.array_equal(fast.predict(texts), model.predict(texts))


def test_forests_with_other_lists_are_not_joined(tmp_path):
    forests = []
    for values in ([10, 20], [10, 30]):
        zips = pd.Categorical(np.where(flag, *values))
        frame = pd.DataFrame({"x": flag[::-1], "zip": zips})
        model = lgb.LGBMRegressor(n_estimators=2, verbose=-1).fit(frame, flag)
        forests.append(skforge.load_forest(model))
    assert [forest.category_lists for forest in forests] == [((10, 20),), ((10, 30),)]
    with pytest.raises(InvalidInputError, match="category_lists of forest 1 is"):
        skforge.Forest.concatenate(forests)
    skforge.save(forests[0], tmp_path / "forest.skforge")
    copies = (
        pickle.loads(pickle.dumps(forests[0])),
        skforge.load(tmp_path / "forest.skforge"),
    )
    for again in copies:
        assert again.category_lists == ((10, 20),)
        assert again.content_hash() == forests[0].content_hash()
    assert forests[0].content_hash() != forests[1].content_hash()


# ------------------------------------------------------------ other frames and rows

N_ROWS = 200
LETTERS = ["red", "green", "blue", "grey"]


def make_frame(seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"x": rng.normal(size=N_ROWS), "n": rng.integers(0, 9, N_ROWS)}
    )
    frame.insert(0, "color", pd.Categorical(rng.choice(LETTERS, N_ROWS)))
    frame["code"] = pd.Categorical(rng.choice([30, 10, 20], N_ROWS))
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
    fast = plain(str(file)).fit(make_frame())
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
    model, fast = fit_both(make_pipeline(columns, *steps, light), X, y)
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
    _, fast = fit_both(lgb.LGBMRegressor(n_estimators=2, verbose=-1), X, X[:, 0])
    columns = {name: arrow.array(X[:3, 0].astype(np.float16)) for name in "ab"}
    with pytest.raises(lgb.basic.LightGBMError, match="half_float"):
        fast.predict(arrow.table(columns))


@pytest.mark.parametrize("of", ["wrapper", "Booster"])
def test_files_raise_errors_for_no_rows_where_lightgbm_does(of, tmp_path):
    """It takes no frame without rows."""
    frame = pd.DataFrame({"x": x, "shop": pd.Categorical(shop)})
    model = lgb.LGBMClassifier(n_estimators=2, verbose=-1).fit(frame, shop)
    fast = plain(model if of == "wrapper" else model.booster_).fit(frame)
    loaded = saved(fast, tmp_path)
    for name in ("predict", "predict_proba", "predict_raw"):
        error = refusal(ValueError, getattr(loaded, name), frame[:0])
        assert error == refusal(ValueError, getattr(fast, name), frame[:0])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_tables_without_rows(n_classes, tmp_path):
    """LightGBM has no columns of several classes then, and labels of float64."""
    pl, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"x": x, "z": -x})
    y = np.array(["no", "yes", "so"])[np.arange(len(x)) % n_classes]
    model = lgb.LGBMClassifier(n_estimators=2, verbose=-1).fit(frame, y)
    fast = plain(model).fit(frame)
    loaded = saved(fast, tmp_path)
    nothing = {name: np.zeros(0) for name in frame}
    for none in (pl.DataFrame(nothing), pa.table(nothing)):
        for one in (fast, loaded):
            if n_classes > 2:
                with pytest.raises((ValueError, SourceNeededError)):
                    one.predict(none)
            else:
                found, expected = one.predict(none), model.predict(none)
                assert (found.dtype, found.shape) == (expected.dtype, (0,))
            found, expected = one.predict_proba(none), model.predict_proba(none)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            found, expected = one.predict_raw(none), model.predict(none, raw_score=True)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    for none in (frame[:0], frame.to_numpy()[:0]):
        for one in (fast, loaded):
            refusal(ValueError, one.predict, none)
