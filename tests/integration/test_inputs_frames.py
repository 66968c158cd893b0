"""Data frames with categories and gaps: answered by kernels, with the source's bits."""

from __future__ import annotations

import string
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import skforge
from skforge.exceptions import InvalidInputError, SourceNeededError
from skforge.rows.frames import FrameColumns
from tests.comparing import in_every_state, refusal, saved
from tests.plain import plain
from tests.programs import command
from tests.sklearn_rows import same_bits

xgb = pytest.importorskip("xgboost")
lgb = pytest.importorskip("lightgbm")
pd = pytest.importorskip("pandas")

N = 240
COLORS = ["red", "green", "blue", "teal", "re", ""]
CODES = [30, -10, 20, 7]


def make_frame(seed=0, colors=COLORS, codes=CODES):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "x": rng.normal(size=N),
            "color": pd.Categorical(rng.choice(colors, N), categories=colors),
            "n": rng.integers(0, 9, N),
            "code": pd.Categorical(rng.choice(codes, N), categories=codes),
        }
    )


def target(frame):
    color = frame["color"].astype(object).map(dict(zip(COLORS, range(9), strict=False)))
    return color.astype(float) % 3 + frame["code"].astype(float) / 9 + frame["x"]


XGB = {"max_depth": 4, "enable_categorical": True, "n_jobs": 1}
LIGHTGBM = {"min_child_samples": 5, "cat_smooth": 1, "min_data_per_group": 5}
LIGHTGBM |= {"n_jobs": 1, "verbose": -1}


def trained(name):
    """Return a model of a library and kind; of a booster, that of the regressor."""
    library, _, kind = name.partition("-")
    frame = make_frame()
    y = target(frame) > 1 if kind == "classifier" else target(frame)
    of = "Classifier" if kind == "classifier" else "Regressor"
    if library == "xgboost":
        model = getattr(xgb, f"XGB{of}")(n_estimators=6, **XGB).fit(frame, y * 1)
        return model.get_booster() if kind == "booster" else model
    model = getattr(lgb, f"LGBM{of}")(n_estimators=6, **LIGHTGBM).fit(frame, y)
    return model.booster_ if kind == "booster" else model


MODELS = [
    f"{one}{kind}"
    for one in ("xgboost", "lightgbm")
    for kind in ("", "-classifier", "-booster")
]
METHODS = ("predict", "predict_proba", "apply")


@pytest.fixture(scope="module", params=MODELS)
def pair(request):
    model = trained(request.param)
    return model, plain(model).fit(make_frame())


def answer(model, method, frame):
    if isinstance(model, xgb.Booster):
        data = xgb.DMatrix(frame, enable_categorical=True)
        return model.predict(data, pred_leaf=method == "apply")
    if method == "apply" and "lightgbm" in type(model).__module__:
        return model.predict(frame, pred_leaf=True)
    return getattr(model, method)(frame)


def check(pair, frame, monkeypatch):
    """Compare with the source, which must not be asked in the compiled call."""
    model, fast = pair
    fast.predict(make_frame())  # compiles after unpickling, finds its entries
    for method in METHODS:
        if hasattr(fast, method):
            expected = answer(model, method, frame)
            with monkeypatch.context() as alone:
                source = type(fast._predictor.source)
                alone.setattr(fast._predictor, "door", None)
                alone.setattr(source, "call", lambda *_: pytest.fail("asked"))
                found = getattr(fast, method)(frame)
            assert found.dtype == expected.dtype
            assert np.array_equal(found, expected)


def with_gaps(kind):
    """Return a frame of which a nullable column has some."""
    frame = make_frame(5)
    values = frame["n"] % 2 == 0 if kind == "boolean" else frame["n"]
    column = values.astype(kind)
    column[::7] = pd.NA
    return frame.assign(n=column)


def other_orders():
    frame = make_frame(2, colors=COLORS[::-1], codes=[20, 7, 30])
    frame.loc[::3, "color"] = None
    frame.loc[::4, "code"] = None
    frame.loc[::5, "x"] = np.nan
    return frame


FRAMES = {
    "training": make_frame(),
    "one row": make_frame(1).iloc[:1],
    "another order, and missing ones": other_orders(),
    "ordered": other_orders().assign(
        color=lambda frame: frame["color"].cat.as_ordered()
    ),
    "few names": make_frame(3, colors=["teal"], codes=[-10, 30]),
    **{kind: with_gaps(kind) for kind in ("Int64", "Float32", "boolean")},
}


@pytest.mark.parametrize("form", FRAMES)
def test_kernels_answer_frames(pair, form, monkeypatch):
    check(pair, FRAMES[form], monkeypatch)


WIDTHS = ["int8", "uint8", "int16", "int32", "int64"]


@pytest.mark.parametrize("width", WIDTHS)
def test_xgboost_tells_the_widths_of_integer_categories_apart(width, tmp_path):
    frame = make_frame(codes=[30, 10, 20, 7])

    def rows(dtype):
        return frame.assign(code=frame["code"].astype(dtype).astype("category"))

    model = xgb.XGBRegressor(n_estimators=3, enable_categorical=True, n_jobs=1)
    model.fit(rows(width), target(frame))
    fast = plain(model).fit(rows(width))
    kept = saved(fast, tmp_path)
    for dtype in WIDTHS:
        for some in (rows(dtype), rows(dtype)[:1]):
            try:
                expected = model.predict(some)
            except xgb.core.XGBoostError:
                with pytest.raises(xgb.core.XGBoostError, match="data type doesn't"):
                    fast.predict(some)
                with pytest.raises(SourceNeededError):
                    kept.predict(some)
            else:
                assert np.array_equal(fast.predict(some), expected)
                assert np.array_equal(kept.predict(some), expected)


def test_tables_of_categories_for_xgboost():
    """XGBoost 3.2 asserts that texts have no bitmap of gaps; those of pandas have."""
    pa = pytest.importorskip("pyarrow")
    frame = make_frame()[["x", "color"]]
    model = xgb.XGBRegressor(n_estimators=3, enable_categorical=True, n_jobs=1)
    model.fit(frame, frame["x"])
    fast = plain(model).fit(frame)
    expected = model.predict(frame)
    color = pa.array(frame["color"].astype(object)).dictionary_encode()
    plainly = pa.table({"x": frame["x"].to_numpy(), "color": color})
    assert np.array_equal(model.predict(plainly), expected)
    assert np.array_equal(fast.predict(plainly), expected)
    assert np.array_equal(fast.predict(pa.Table.from_pandas(frame)), expected)
    names = pa.array(COLORS).cast(pa.string_view())  # another type of texts
    views = pa.DictionaryArray.from_arrays(pa.array(frame["color"].cat.codes), names)
    table = pa.table({"x": frame["x"].to_numpy(), "color": views})
    for one in (model, fast):
        with pytest.raises(TypeError, match="Only string-based"):
            one.predict(table)

    frame = make_frame()[["x", "code"]]
    model.fit(frame, frame["x"])
    table = pa.Table.from_pandas(frame)
    for one in (model, plain(model).fit(frame)):
        with pytest.raises(TypeError, match="Only string-based"):
            one.predict(table)


def test_numbers_as_codes_of_arrow_may_be_missing():
    pa = pytest.importorskip("pyarrow")
    rows = np.array([[1.0, 5.0], [2.0, np.nan], [3.0, 7.0]])
    model = xgb.XGBRegressor(n_estimators=3, n_jobs=1, min_child_weight=0)
    forest = skforge.compile_forest(skforge.load_forest(model.fit(rows, [3, 9, 5])))
    coded = pa.array([5, None, 7]).dictionary_encode()
    column = pd.array([5, None, 7], pd.ArrowDtype(coded.type))
    frame = pd.DataFrame({"f0": rows[:, 0], "f1": column})
    assert np.array_equal(forest.predict(frame), forest.predict(rows))


def forms_of_categories(x, names, values):
    """A column in each form whose own codes differ from those of training."""
    pa, pl = pytest.importorskip("pyarrow"), pytest.importorskip("polars")
    place = {name: code for code, name in enumerate(names)} | {None: None}
    codes = pa.array([place[value] for value in values], "int8")
    halves = [pa.array(part).dictionary_encode() for part in (values[:5], values[5:])]
    if xgb.__version__ < "3.3":  # later releases refuse them
        column = pl.Series(values, dtype=pl.Categorical)
        yield pl.DataFrame({"x": x, "c": column})
        yield pl.DataFrame({"x": x[3:], "c": column[3:]})
    for column in (
        pd.Categorical(values, categories=names),
        pd.Categorical(values),  # names in order of the alphabet
        pl.Series(values, dtype=pl.Enum(names)),
        pa.DictionaryArray.from_arrays(codes, names),
        pa.chunked_array(halves),
    ):
        module = type(column).__module__.partition(".")[0]
        frame = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}
        yield frame[module]({"x": x, "c": column})


@pytest.mark.parametrize("missing", [-1.0, 0.0, 1.0, 3.0, 0.25])
def test_codes_of_a_frame_may_be_the_marker(missing, tmp_path):
    """XGBoost compares a frame's own codes with ``missing``, not those of training."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=N)
    frame = pd.DataFrame({"x": x, "c": pd.Categorical(rng.choice(COLORS[:4], N))})
    model = xgb.XGBRegressor(
        n_estimators=4, max_depth=3, enable_categorical=True, missing=missing, n_jobs=1
    ).fit(frame, frame["c"].cat.codes % 3 + x)
    fast = plain(model).fit(frame)
    file = saved(fast, tmp_path)
    names = [str(name) for name in rng.permutation(COLORS[:4])]
    values = [None, *map(str, rng.choice(COLORS[:4], 19))]
    for rows in (frame, *forms_of_categories(x[:20], names, values)):
        for one in (fast, file):
            assert np.array_equal(one.predict(rows), model.predict(rows))
            assert np.array_equal(one.apply(rows), model.apply(rows))
        module = skforge.compile_forest(model)
        assert np.array_equal(module.predict(rows), model.predict(rows))


class ByColumn:
    """A frame of a library without pandas' blocks, as Modin's is."""

    def __init__(self, frame):
        self.frame = frame

    def __len__(self):
        return len(self.frame)

    def __getattr__(self, name):
        if name == "_mgr":
            raise AttributeError(name)
        return getattr(self.frame, name)


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_frames_without_blocks_are_read_column_by_column(name):
    module = skforge.compile_forest(trained(name))
    frame = make_frame(1)
    frame["n"] = frame["n"].astype("Int64").mask(frame["x"] > 1)
    assert np.array_equal(module.predict(ByColumn(frame)), module.predict(frame))
    with pytest.raises(InvalidInputError, match="'n' has the dtype"):
        module.predict(ByColumn(frame.assign(n="one")))


NAMES = st.lists(
    st.text(string.printable, max_size=4), min_size=2, max_size=12, unique=True
)


@given(NAMES, st.randoms(use_true_random=False))
def test_texts_are_found_as_xgboost_finds_them(names, random):
    rng = np.random.default_rng(random.getrandbits(32))
    column = pd.Categorical(rng.choice(names, 60), categories=names)
    frame = pd.DataFrame({"c": column, "x": rng.normal(size=60)})
    y = column.codes % 3 + frame["x"]
    model = xgb.XGBRegressor(
        n_estimators=2, max_depth=4, enable_categorical=True, n_jobs=1
    ).fit(frame, y)
    columns = FrameColumns(skforge.load_forest(model).category_names)
    random.shuffle(names)
    other = frame.assign(c=frame["c"].cat.set_categories(names))
    numbers = columns.numbers(other, np.float32, unseen=None)
    assert np.array_equal(numbers[:, 0], column.codes)
    assert np.array_equal(model.predict(numbers), model.predict(other))


# ------------------------------------------------------------ categories of numbers

N_ROWS = 200
rng = np.random.default_rng(0)
PLACES = rng.integers(0, 4, N_ROWS)
DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"]
#: XGBoost before 3.4 fails for these.
NULLABLE = ("Int16", "Int64", "UInt8", "UInt32", "int64[pyarrow]", "int16[pyarrow]")


def of_numbers(dtype: str) -> tuple[Any, Any]:
    if "pyarrow" in dtype:
        pytest.importorskip("pyarrow")
    largest = np.iinfo(dtype.removesuffix("[pyarrow]").lower()).max
    values = pd.Series(np.array([1, 2, 5, min(largest, 3_000_000_000)])[PLACES])
    column = values.astype(dtype).astype("category")
    frame = pd.DataFrame({"x": rng.normal(size=N_ROWS), "k": column})
    model = xgb.XGBRegressor(n_estimators=4, n_jobs=1, enable_categorical=True)
    try:
        model.fit(frame, frame["x"] + PLACES * 3 % 4)
    except (TypeError, xgb.core.XGBoostError):
        pytest.skip("this XGBoost knows no such categories")
    return model, frame


@pytest.mark.filterwarnings("error::skforge.exceptions.PerformanceWarning")
@pytest.mark.parametrize("dtype", [*DTYPES, *NULLABLE])
def test_kernels_answer_frames_and_values(dtype, tmp_path, capsys):
    model, frame = of_numbers(dtype)
    fast, expected = plain(model).fit(frame), model.predict(frame)
    columns = {"x": frame["x"].tolist(), "k": frame["k"].tolist()}
    for form in in_every_state(fast, tmp_path).values():
        for rows in (frame, columns):
            assert np.array_equal(form.predict(rows), expected)
        assert np.array_equal(form.predict(frame[:1]), expected[:1])
        assert form.counters()["library"]["calls"] == 0
    pd.DataFrame(columns).to_csv(tmp_path / "rows.csv", index=False)
    call = "predict", tmp_path / "model.skforge", tmp_path / "rows.csv", "-o"
    code, _, said = command(capsys, *call, tmp_path / "out.npy")
    assert code == 0, said
    assert np.array_equal(np.load(tmp_path / "out.npy"), expected)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize("ending", ["json", "ubj"])
def test_files_hold_numbers_without_sign(dtype, ending, tmp_path):
    """UBJSON has no type for these, so that XGBoost writes others of their size."""
    model, frame = of_numbers(dtype)
    path = tmp_path / f"model.{ending}"
    model.save_model(path)
    module = skforge.compile_forest(path)
    assert module.forest.category_names[1] == tuple(frame["k"].cat.categories)
    assert np.array_equal(module.predict(frame), model.predict(frame))


# ------------------------------------------------------------ names of several levels

VALUES = np.random.default_rng(0).normal(size=(120, 3))
LABELS = [("sales", 1), ("sales", 2), ("price", "b")]
LEVELS = pd.DataFrame(VALUES, columns=pd.MultiIndex.from_tuples(LABELS))


@pytest.mark.filterwarnings("error::skforge.exceptions.PerformanceWarning")
def test_names_of_several_levels_are_joined_by_spaces(tmp_path):
    model = xgb.XGBRegressor(n_estimators=4, n_jobs=1).fit(LEVELS, VALUES.sum(axis=1))
    fast, expected = plain(model).fit(LEVELS), model.predict(LEVELS)
    model.save_model(tmp_path / "a.json")
    flat = LEVELS.set_axis(["sales 1", "sales 2", "price b"], axis=1)
    states = in_every_state(fast, tmp_path)
    for form in (plain(tmp_path / "a.json").fit(LEVELS), *states.values()):
        for rows in (LEVELS, LEVELS[:1], LEVELS.copy(), flat):
            same_bits(form.predict(rows), expected[: len(rows)])
        assert form.counters()["library"]["calls"] == 0
    module = skforge.compile_forest(tmp_path / "a.json")
    same_bits(module.predict(LEVELS), expected)
    labels = [("sales", 1.0), *LABELS[1:]]  # equal to those before, but another text
    other = LEVELS.set_axis(pd.MultiIndex.from_tuples(labels), axis=1)
    # pandas takes one level of tuples for equal to several; XGBoost has their texts
    tuples = LEVELS.set_axis(LEVELS.columns.to_flat_index(), axis=1)
    for rows in (other, tuples):
        with pytest.raises(ValueError, match="feature_names mismatch"):
            fast.predict(rows)
    assert refusal(InvalidInputError, states["dropped"].predict, other) == (
        "the rows have no column 'sales 1'; the column nearest to 'sales 1' is "
        "'sales 1.0'. Give every column of the model, with NaN where values are "
        "missing."
    )
