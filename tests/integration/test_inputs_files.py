"""Rows for models that come from files: names and dtypes, as the libraries have it."""

from __future__ import annotations

import json

import joblib
import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

from skforge import compile_forest, load_forest
from skforge.exceptions import InvalidInputError, SourceNeededError
from tests.comparing import refusal, saved
from tests.plain import plain

xgb = pytest.importorskip("xgboost")
lgb = pytest.importorskip("lightgbm")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")
sp = pytest.importorskip("scipy.sparse")

N = 120
NAMES = {"integers": [10, 2, 33, 0], "digits": ["10", "2", "33", "0"]}
NAMES["texts"] = ["u", "", "wide", "v"]


def make_frame(names, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=N).astype(np.float32)
    held = pd.Categorical(rng.choice(names, N), categories=names)
    return pd.DataFrame({"x": x, "c": held, "n": rng.integers(0, 9, N)})


class Case:
    """A model, its Booster as XGBoost reads it from a file, and all our forms."""

    def __init__(self, kind, wrapped, folder):
        self.names, self.folder = NAMES[kind], folder
        self.frame = make_frame(self.names)
        y = self.frame["c"].cat.codes * 2 + self.frame["x"]
        settings = {"max_depth": 4, "tree_method": "hist", "nthread": 1}
        model = xgb.XGBRegressor(
            n_estimators=4, enable_categorical=True, n_jobs=1, **settings
        ).fit(self.frame, y)
        if not wrapped:
            model = model.get_booster()
        self.booster = xgb.Booster()
        self.forms = {"memory": plain(model).fit(self.frame)}
        for suffix in ("json", "ubj"):
            path = folder / f"m.{suffix}"
            model.save_model(path)
            self.booster.load_model(path)
            fast = plain(path).fit(self.frame)
            self.forms[suffix] = fast
            self.forms[f"{suffix} core"] = compile_forest(load_forest(path))
        for name in ("memory", "ubj"):
            self.forms[f"{name} saved"] = saved(self.forms[name], folder)
        joblib.dump(self.forms["json"], folder / "a.joblib")
        self.forms["json dumped"] = joblib.load(folder / "a.joblib")

    def expected(self, rows):
        data = xgb.DMatrix(rows, enable_categorical=True)
        return self.booster.predict(data, output_margin=True)


@pytest.fixture(scope="module", params=[(k, w) for k in NAMES for w in (True, False)])
def case(request, tmp_path_factory):
    return Case(*request.param, tmp_path_factory.mktemp("files"))


def permuted(frame, names):
    return frame.assign(c=frame["c"].cat.reorder_categories(names[::-1]))


def a_part(frame, names):
    return frame[frame["c"] != names[1]].assign(
        c=lambda part: part["c"].cat.remove_unused_categories()
    )


def with_gaps(frame, names):
    return frame.assign(c=frame["c"].where(np.arange(len(frame)) % 3 > 0))


CHANGES = {"same": lambda frame, names: frame, "permuted": permuted}
CHANGES |= {"a part": a_part, "with gaps": with_gaps}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("change", CHANGES)
def test_categories_of_xgboost_go_by_name(case, change):
    rows = CHANGES[change](make_frame(case.names, 1), case.names)
    expected = case.expected(rows)
    codes = rows.assign(c=rows["c"].cat.codes.replace(-1, np.nan))
    if change in ("permuted", "a part"):  # the test can fail
        assert (case.expected(codes.rename(columns=str)) != expected).any()
    for form, model in case.forms.items():
        np.testing.assert_array_equal(model.predict_raw(rows), expected, form)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("library", ["pyarrow", "batch", "chunks", "polars", "enum"])
def test_categories_of_tables_go_by_name(case, library):
    frame = with_gaps(permuted(make_frame(case.names, 1), case.names), case.names)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    if library in ("polars", "enum"):
        if isinstance(case.names[0], int):
            pytest.skip("categories of polars are texts")
        rows = pl.from_pandas(frame)
        kind = pl.Enum(case.names[::-1]) if library == "enum" else pl.Categorical
        rows = rows.with_columns(pl.col("c").cast(pl.String).cast(kind))
    elif library == "chunks":  # each with a dictionary of its own
        parts = [frame[:50], a_part(frame[50:], case.names)]
        parts = [pa.Table.from_pandas(one, preserve_index=False) for one in parts]
        rows = pa.concat_tables(parts)
        frame = pd.concat([frame[:50], a_part(frame[50:], case.names)]).assign(
            c=lambda both: both["c"].astype(frame["c"].dtype)
        )
    else:
        rows = table.to_batches()[0] if library == "batch" else table
    if isinstance(case.names[0], int) and library != "batch":
        with pytest.raises(TypeError, match="Only string-based categorical index"):
            case.forms["memory"].predict_raw(rows)  # XGBoost's own error
    if isinstance(case.names[0], int):
        return
    expected = case.expected(frame)
    for form, model in case.forms.items():
        if form == "memory" and library == "batch":
            continue  # XGBoost does not take them
        np.testing.assert_array_equal(model.predict_raw(rows), expected, form)
        swapped = rows.select(["c", "x", "n"])
        if form != "memory":
            with pytest.raises((InvalidInputError, SourceNeededError)) as info:
                model.predict_raw(swapped)
            assert "x, c, n" in str(info.value) or "['x', 'c', 'n']" in str(info.value)


NUMBER = "holds categories, but it held numbers in training; convert it to numbers."
ORDER = "the model was trained on ['x', 'c', 'n']; pass X[names] with the columns in "
ORDER += "that order."
TEXT = "has the dtype object, which is not plain numbers; convert it to float64."


def refusals(names):
    """Return frames that a model file refuses, and how."""
    frame = make_frame(names, 1)
    more = 57 if isinstance(names[0], int) else "new"
    used = frame["c"].cat.add_categories([more])
    used[3] = more
    other = [str(n) if isinstance(n, int) else len(n) for n in names]
    new = (
        f"column 'c' has the category {more!r}, which did not occur in training; "
        "replace it by a missing value or a known category."
    )
    lost = (
        "column 'c' held categories in training, but holds none here; convert it to "
        "categories, or pass an array of their codes."
    )
    order, numbers = frame[["c", "x", "n"]], frame["n"].astype(str).astype(object)
    found = {
        "new": (frame.assign(c=used), new),
        "codes": (frame.assign(c=frame["c"].cat.codes), lost),
        "objects": (frame.assign(c=frame["c"].astype(object)), lost),
        "number": (frame.assign(n=frame["c"]), f"column 'n' {NUMBER}"),
        "order": (order, f"the columns are ['c', 'x', 'n'], but {ORDER}"),
        "text": (frame.assign(n=numbers), f"column 'n' {TEXT}"),
    }
    if isinstance(names[0], int):
        found["kind"] = (
            frame.assign(c=frame["c"].cat.rename_categories(other)),
            "the categories of column 'c' were integers in training, but here they "
            f"begin with {other[:3]}; use the same kind of categories.",
        )
    return found


def test_frames_that_model_files_refuse(case):
    for rows, sentence in refusals(case.names).values():
        for form in ("json", "ubj", "json core", "ubj saved", "json dumped"):
            ask = case.forms[form].predict_raw
            assert refusal(InvalidInputError, ask, rows) == sentence
        with pytest.raises((InvalidInputError, SourceNeededError)):
            case.forms["memory saved"].predict_raw(rows)


def test_new_categories_that_no_row_has_change_nothing_in_files(case):
    rows = make_frame(case.names, 1)
    expected = case.expected(rows)
    more = [57] if isinstance(case.names[0], int) else ["a", "zz"]
    rows["c"] = rows["c"].cat.add_categories(more)
    for form in ("json", "json core", "ubj saved", "json dumped"):
        found = case.forms[form].predict_raw(rows)
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(xgb.core.XGBoostError):
        case.expected(rows)
    with pytest.raises(xgb.core.XGBoostError):
        case.forms["memory"].predict_raw(rows)


@pytest.mark.parametrize("case", [("digits", True)], indirect=True)
def test_category_dtype_is_refused_where_a_file_has_no_names(case, tmp_path):
    document = json.loads((case.folder / "m.json").read_text())
    del document["learner"]["gradient_booster"]["model"]["cats"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document))
    forest = load_forest(path)
    frame = make_frame(case.names, 1)
    codes = frame.assign(c=frame["c"].cat.codes)
    expected = case.expected(frame)
    for model in (compile_forest(forest), plain(path).fit(codes)):
        assert (model.predict_raw(codes) == expected).all()
        tables = [frame, pa.Table.from_pandas(frame), pl.from_pandas(frame)]
        for rows in tables:
            assert refusal(InvalidInputError, model.predict_raw, rows) == (
                "column 'c' holds categories, but the model does not store their "
                "names; pass the codes that they had in training."
            )


def test_gaps_and_kinds_of_numbers_in_tables(tmp_path):
    frame = pd.DataFrame({"i": [3, 2**53 + 1, 5, 0], "b": [True, False, True, False]})
    frame["f"] = [0.5, np.nan, 1.5, 2.5]
    model = xgb.XGBRegressor(n_estimators=3, n_jobs=1).fit(frame, [1, 2, 3, 4])
    model.save_model(tmp_path / "m.ubj")
    fast = plain(tmp_path / "m.ubj").fit(frame)
    table = pa.table(
        {
            "i": pa.array([None, 2**53 + 1, 5, -1]),
            "b": pa.array([True, None, False, True]),
            "f": pa.array([None, float("nan"), 1.5, 9.0], pa.float64()),
        }
    )
    expected = model.predict(table)
    polars = pl.from_arrow(table)
    nullable = table.to_pandas(types_mapper=pd.ArrowDtype)
    sparse = pl.from_arrow(table).to_pandas()
    sparse["b"] = sparse["b"].astype(float)
    sparse["i"] = sparse["i"].astype("Sparse[float64]")
    for rows in (table, table.to_batches()[0], polars, nullable, sparse):
        np.testing.assert_array_equal(fast.predict(rows), expected)
    with pytest.raises(InvalidInputError, match="'i' has the dtype string, which"):
        fast.predict(table.set_column(0, "i", pa.array(["1", "2", "3", "4"])))
    with pytest.raises(InvalidInputError, match="collect"):
        fast.predict(polars.lazy())


def test_names_of_columns_count_for_forests_of_scikit_learn():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(50, 2)), columns=["a", "b"])
    model = RandomForestRegressor(4, random_state=0).fit(frame, frame["a"])
    module = compile_forest(load_forest(model))
    expected = model.predict(frame)
    tables = [frame, pl.from_pandas(frame), pa.Table.from_pandas(frame)]
    for rows in tables:
        assert (module.predict_raw(rows) == expected).all()
        assert (module.predict_raw(frame.to_numpy()) == expected).all()
        swapped = rows[["b", "a"]] if rows is frame else rows.select(["b", "a"])
        with pytest.raises(InvalidInputError, match="in that order"):
            module.predict_raw(swapped)


# ------------------------------------------------------------ dtypes for LightGBM

FIRST = 2**24


@pytest.fixture(scope="module")
def fine(tmp_path_factory):
    """A LightGBM file whose thresholds lie between integers past 2^24."""
    path = tmp_path_factory.mktemp("lightgbm") / "m.txt"
    values = np.arange(FIRST - 8, FIRST + 9.0)
    rows = np.column_stack([np.repeat(values, 20), np.tile(np.arange(20.0), 17)])
    settings = {"min_data_in_leaf": 1, "min_data_in_bin": 1, "num_leaves": 64}
    settings |= {"learning_rate": 1, "max_bin": 1000, "verbose": -1, "num_threads": 1}
    data = lgb.Dataset(rows, rows[:, 0] - FIRST)
    lgb.train(settings, data, 1).save_model(path)
    booster = lgb.Booster(model_file=path)
    exact = np.column_stack([values, np.zeros(17)])
    assert (booster.predict(exact) != booster.predict(exact.astype("f4"))).any()
    fast = plain(path).fit(exact)
    file = saved(plain(booster).fit(exact), path.parent)
    return booster, [fast, compile_forest(load_forest(path)), file], exact


DTYPES = ["?", "i1", "i4", "i8", "u2", "u8", "f2", "f4", "f8", ">f8", ">i8", "g", "O"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_are_cast_as_lightgbm_casts_them(fine, dtype):
    booster, forms, exact = fine
    with np.errstate(all="ignore"):
        rows = exact.astype(np.int64).astype(dtype)
    expected = booster.predict(rows)
    for number, model in enumerate(forms):
        if number == 2 and dtype in (">f8", ">i8", "g", "O"):
            continue  # what an artifact declines is refused
        np.testing.assert_array_equal(model.predict_raw(rows), expected)
    if dtype == "i8":
        assert (forms[0].predict_raw(exact) != expected).any()
        for model in forms:
            np.testing.assert_array_equal(model.predict_raw(rows.tolist()), expected)
            np.testing.assert_array_equal(
                model.predict_raw(exact.tolist()), booster.predict(exact)
            )


@pytest.mark.parametrize("dtype", ["int16", "int32", "Int64", "UInt32", "float32"])
def test_frames_are_cast_as_lightgbm_casts_them(fine, dtype):
    booster, forms, exact = fine
    exact = np.minimum(exact, np.iinfo("i2").max) if dtype == "int16" else exact
    frame = pd.DataFrame(exact)
    for rows in (frame.astype(dtype), frame.astype({0: dtype})):
        expected = booster.predict(rows)
        for model in forms:
            np.testing.assert_array_equal(model.predict_raw(rows), expected)
    for kind in (pa.int64(), pa.uint32(), pa.float32(), pa.float64()):
        columns = {"b": pa.array(exact[:, 0]).cast(kind), "a": pa.array(exact[:, 1])}
        table = pa.table(columns)
        expected = booster.predict(table.to_pandas())
        for model in forms:
            for rows in (table, pl.from_arrow(table)):
                np.testing.assert_array_equal(model.predict_raw(rows), expected)


def test_sparse_rows_of_lightgbm_files(fine):
    booster, (fast, _, saved), exact = fine
    for dtype in ("f4", "f8"):
        for form in (sp.csr_matrix, sp.csc_matrix, sp.coo_matrix, sp.csr_array):
            rows = form(exact.astype(dtype))
            np.testing.assert_array_equal(fast.predict(rows), booster.predict(rows))
    for dtype in ("i8", "u4"):
        rows = sp.csr_matrix(exact.astype(dtype))
        with pytest.raises(TypeError):
            booster.predict(rows)
        assert refusal(InvalidInputError, fast.predict, rows) == (
            "LightGBM takes sparse rows of float32 or float64. Got "
            f"{rows.dtype} instead; use X.astype('float64')."
        )
        with pytest.raises((InvalidInputError, SourceNeededError)):
            saved.predict(rows)


def test_sparse_rows_with_several_entries_of_a_place_are_refused(fine):
    """Of these LightGBM takes the last from CSR and the first from CSC."""
    _, (fast, _, _), exact = fine
    width = exact.shape[1]
    twice = sp.csc_matrix(([1.0, 2.0], [0, 0], [0, 2] + [2] * (width - 1)), (1, width))
    for rows in (twice, twice.tocsr(copy=True)):
        rows.has_canonical_format = False
        if rows.nnz < 2:  # SciPy has added them up
            continue
        assert refusal(InvalidInputError, fast.predict, rows) == (
            "the sparse rows have several entries for the same place; add them up "
            "with X.sum_duplicates(), or keep only one of them."
        )


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_are_cast_as_xgboost_and_scikit_learn_cast_them(dtype, tmp_path):
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        rows = (FIRST + rng.integers(-9, 9, (60, 2))).astype(np.int64).astype(dtype)
        plain = np.clip(rows.astype(np.float64), -1e30, 1e30)
    y = rng.normal(size=60)
    model = xgb.XGBRegressor(n_estimators=3, n_jobs=1).fit(plain, y)
    model.save_model(tmp_path / "m.json")
    module = compile_forest(load_forest(tmp_path / "m.json"))
    if dtype not in (">f8", ">i8"):  # XGBoost reads these as if they were native
        np.testing.assert_array_equal(module.predict_raw(rows), model.predict(rows))
    if dtype == "f2":
        return  # infinite, which scikit-learn refuses
    for kind in (DecisionTreeRegressor(), HistGradientBoostingRegressor(max_iter=3)):
        kind.fit(plain, y)
        module = compile_forest(load_forest(kind))
        np.testing.assert_array_equal(module.predict_raw(rows), kind.predict(rows))
