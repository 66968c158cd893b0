"""Columns that models drop: queries of XGBoost's rankers, what CatBoost never uses."""

from __future__ import annotations

import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skforge
from skforge import CompiledForest
from skforge.exceptions import InvalidInputError, PerformanceWarning, SourceNeededError
from tests.comparing import in_every_state, saved
from tests.plain import fit_both, plain
from tests.programs import command
from tests.sklearn_rows import same_bits

pd = pytest.importorskip("pandas")
pytest.importorskip("scipy")
xgboost = pytest.importorskip("xgboost")

N_ROWS = 90
QUERIES = np.repeat(np.arange(9), 10)
rng = np.random.default_rng(0)
ROWS = pd.DataFrame(rng.normal(size=(N_ROWS, 3)), columns=list("abc"))
MIXED = ROWS.astype({"b": "float32"}).assign(
    i=rng.integers(0, 5, N_ROWS), k=pd.Categorical(rng.choice(list("xyz"), N_ROWS))
)
y = (ROWS["a"] > 0).astype(int)
METHODS = ("predict", "predict_raw", "apply")


def ranker() -> Any:
    return xgboost.XGBRanker(n_estimators=6, n_jobs=1, enable_categorical=True)


def at(place: int, values: Any) -> Callable[[Any], Any]:
    def insert(frame: Any) -> Any:
        frame = frame.copy()
        frame.insert(place, "qid", values)
        return frame

    return insert


#: Frames with queries: at any place, of any dtype.
FRAMES: dict[str, Callable[[Any], Any]] = {
    "last": lambda frame: frame.assign(qid=QUERIES),
    "first": at(0, QUERIES),
    "between": at(1, QUERIES.astype(np.float64)),
    "large": at(0, QUERIES + (1 << 60)),
    "texts": at(2, QUERIES.astype(str).astype(object)),
    "categories": at(1, pd.Categorical(QUERIES)),
    "nullable": lambda frame: at(0, QUERIES)(frame).convert_dtypes(),
    "dates": at(2, pd.Timestamp(2020, 1, 1)),
    "twice": lambda frame: pd.concat([at(0, 1)(frame), at(0, 1)(frame)["qid"]], axis=1),
    "infinite": lambda frame: at(0, 1)(frame.assign(a=np.inf)),
    "sparse": lambda frame: at(0, 1)(frame.astype({"a": pd.SparseDtype(float)})),
    "a row": lambda frame: at(0, QUERIES)(frame).iloc[[5]],
    "no rows": lambda frame: at(0, QUERIES)(frame).iloc[:0],
    "another order": lambda frame: at(0, QUERIES)(frame)[["qid", *frame.columns[::-1]]],
    "in place of a feature": lambda frame: frame.rename(columns={"a": "qid"}),
}


@pytest.fixture(scope="module", params=[ROWS, MIXED], ids=["numbers", "mixed"])
def fitted(request: Any, tmp_path_factory: Any) -> Any:
    """Return a model, its rows, and the compiled one: live, unpickled, loaded."""
    rows = request.param
    model, fast = fit_both(ranker(), rows.assign(qid=QUERIES), y)
    kept = saved(fast, tmp_path_factory.mktemp("ranker"))
    return model, rows, (fast, pickle.loads(pickle.dumps(fast)), kept)


def own(model: Any, method: str, X: Any) -> Any:
    if method == "predict_raw":
        return model.predict(X, output_margin=True)
    return getattr(model, method)(X)


#: Frames that kernels answer.
KERNELS = ("last", "first", "between", "large", "texts")


@pytest.mark.parametrize("form", FRAMES)
def test_frames_with_queries(fitted: Any, form: str) -> None:
    model, rows, compiled = fitted
    X = FRAMES[form](rows)
    before = [fast.counters()["library"] for fast in compiled]
    for method in METHODS:
        try:
            wanted = own(model, method, X)
        except Exception as error:  # noqa: BLE001 - of any class
            kinds = (type(error), InvalidInputError, SourceNeededError)
            for fast in compiled:
                with pytest.raises(kinds):
                    getattr(fast, method)(X)
            continue
        for fast in compiled if len(X) else compiled[:2]:
            same_bits(getattr(fast, method)(X), wanted)
    if form in KERNELS:
        assert [fast.counters()["library"] for fast in compiled] == before


@pytest.mark.filterwarnings("ignore:row 0 has keys|the mapping has keys")
def test_mappings_with_queries(fitted: Any) -> None:
    model, rows, compiled = fitted
    X = rows.assign(qid=QUERIES)
    wanted = model.predict(X)
    for fast in compiled:
        np.testing.assert_array_equal(fast.predict(X.to_dict("list")), wanted)
        np.testing.assert_array_equal(fast.predict(X.to_dict("records")), wanted)


def test_a_feature_is_no_column_of_queries() -> None:
    """Without names, a frame of as many columns lacks one when its queries go."""
    model = ranker().fit(ROWS.to_numpy(), y, qid=QUERIES)
    fast = plain(model).fit(ROWS.to_numpy())
    X = ROWS.rename(columns={"a": "qid"})
    for one in (model, fast):
        with pytest.raises(ValueError, match="Feature shape mismatch"):
            one.predict(X)
    same_bits(fast.predict(ROWS.assign(qid=1)), model.predict(ROWS.to_numpy()))
    regressor = xgboost.XGBRegressor(n_estimators=3).fit(X, y)
    same_bits(plain(regressor).fit(X).predict(X), regressor.predict(X))


def test_steps_that_return_frames_with_queries() -> None:
    steps = make_column_transformer(
        (StandardScaler(), list("abc")),
        remainder="passthrough",
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")
    X = ROWS.assign(qid=QUERIES)
    model = make_pipeline(steps, ranker()).fit(X, y)
    with pytest.warns(PerformanceWarning, match="which XGBRanker drops"):
        fast = CompiledForest(model, tuning="off").fit(X)
    np.testing.assert_array_equal(fast.predict(X), model.predict(X))


def test_files_know_which_column_is_dropped(tmp_path: Path) -> None:
    """Other models of XGBoost refuse the frame, and so do their files."""
    for model in (xgboost.XGBRegressor(n_estimators=3), ranker()):
        given = {"qid": QUERIES} if isinstance(model, xgboost.XGBRanker) else {}
        fast = plain(model.fit(ROWS, y, **given)).fit(ROWS)
        loaded = saved(fast, tmp_path)
        X = ROWS.assign(qid=QUERIES)
        if given:
            np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
            continue
        with pytest.raises(InvalidInputError, match="trained on"):
            loaded.predict(X)


# ------------------------------------------------------------ columns without a name

# CatBoost's after ``drop_unused_features()`` have a place alone.

cb = pytest.importorskip("catboost")

PLACES = ["age", "city", "rooms", "pay"]


def same(answer, expected):
    kinds = answer.dtype == expected.dtype, answer.shape == expected.shape
    return all(kinds) and answer.tobytes() == expected.tobytes()


def trained(categories, names=PLACES, dropped="rooms"):
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(120, 4)), columns=PLACES)
    y = frame.rooms + frame.pay if dropped == "age" else frame.age + frame.pay
    if categories:
        frame["city"] = random.choice(["Rome", "Oslo", "Bern"], 120)
        y += 3 * (frame.city == "Oslo")
    rows = frame if names else frame.to_numpy()
    model = cb.CatBoostRegressor(
        iterations=10,
        depth=3,
        thread_count=1,
        ignored_features=[dropped] if names else [2],
        cat_features=(["city"] if names else [1]) if categories else [],
        verbose=0,
        allow_writing_files=False,
    ).fit(rows, y)
    expected = model.predict(rows)
    model.drop_unused_features()
    assert same(model.predict(rows), expected)
    return model, frame, expected


def as_users_have_it(model, rows, tmp_path):
    """Yield the model live, stripped, unpickled, saved and loaded, and from files."""
    yield from in_every_state(plain(model).fit(rows), tmp_path).items()
    for form in ("cbm", "json"):
        path = str(tmp_path / f"model.{form}")
        model.save_model(path, format=form)
        if form == "cbm":  # CatBoost writes other digits to JSON
            yield form, plain(path).fit(rows)
            yield "module", skforge.compile_forest(path)
        else:
            assert skforge.load_forest(path).n_columns == 4


@pytest.mark.parametrize("categories", [False, True])
def test_answers_are_catboosts(categories, tmp_path):
    model, frame, expected = trained(categories)
    arrow = pytest.importorskip("pyarrow").Table
    polars = pytest.importorskip("polars")
    part = frame.drop(columns="rooms")
    forms = {
        "array": frame.to_numpy(),
        "list": frame.to_numpy().tolist(),
        "frame": frame,
        "frame without the column": part,
        "another column there": frame.rename(columns={"rooms": "floors"}),
        "numbers change places": frame[["pay", "city", "rooms", "age"]],
        "at the end": frame[["age", "city", "pay", "rooms"]],
        "polars": polars.DataFrame(frame.to_dict("list")),
    }
    ours = {
        "arrow": arrow.from_pydict(part.to_dict("list")),
        "mappings": part.to_dict("records"),
        "mappings with the column": frame.to_dict("records"),
        "columns": part.to_dict("list"),
    }
    for form, rows in forms.items():
        assert same(model.predict(rows), expected), form
    for how, fast in as_users_have_it(model, frame, tmp_path):
        for form, rows in (forms | ours).items():
            if how == "module" and form in ours and form != "arrow":
                continue  # which takes no mappings
            answer = fast.predict(rows)
            assert same(answer, expected), (how, form)
        if how != "module":
            assert same(fast.predict(part.iloc[3].to_dict()), expected[3:4]), how


@pytest.mark.parametrize("categories", [False, True])
def test_what_catboost_refuses_is_refused(categories, tmp_path):
    model, frame, _ = trained(categories)
    refused = {
        "array without the column": frame.drop(columns="rooms").to_numpy(),
        "a column is missing": frame.drop(columns="age"),
        "another name": frame.rename(columns={"pay": "wage"}),
    }
    if categories:
        refused["the category elsewhere"] = frame[["city", "age", "rooms", "pay"]]
    for form, rows in refused.items():
        with pytest.raises(cb.CatBoostError):
            model.predict(rows)
        for how, fast in as_users_have_it(model, frame, tmp_path):
            try:
                fast.predict(rows)
            except (cb.CatBoostError, skforge.SkforgeError):
                continue
            pytest.fail(f"{how} answers {form}")


@pytest.mark.parametrize("categories", [False, True])
def test_models_without_names_have_their_columns_by_place(categories, tmp_path):
    model, frame, expected = trained(categories, names=None)
    rows = frame.to_numpy()
    for how, fast in as_users_have_it(model, rows, tmp_path):
        assert same(fast.predict(rows), expected), how


@pytest.mark.sampled(6)
@pytest.mark.parametrize("categories", [False, True])
@pytest.mark.parametrize("dropped", ["rooms", "age"])
@pytest.mark.parametrize("file", ["model.cbm", "model.joblib", "model.skforge"])
def test_the_command_line_needs_no_dropped_column(
    categories, dropped, file, tmp_path, capsys
):
    model, frame, expected = trained(categories, dropped=dropped)
    if file == "model.cbm":
        model.save_model(str(tmp_path / file))
    elif file == "model.joblib":
        joblib.dump(model, tmp_path / file)
    else:
        skforge.save(plain(model).fit(frame), tmp_path / file)
    for rows in (frame, frame.drop(columns=dropped)):
        rows.to_csv(tmp_path / "rows.csv", index=False)
        out = tmp_path / "out.csv"
        paths = tmp_path / file, tmp_path / "rows.csv", "-o", out
        code, *said = command(capsys, "predict", *paths)
        assert code == 0, said
        assert "not compared" not in "".join(said)  # with CatBoost
        assert same(np.loadtxt(out, skiprows=1), expected)


@pytest.mark.parametrize("categories", [False, True])
@pytest.mark.parametrize("dropped", ["rooms", "age"])
def test_dask_needs_no_dropped_column(categories, dropped):
    dask = pytest.importorskip("dask.dataframe")
    from skforge.distributed import dask as parts

    model, frame, expected = trained(categories, dropped=dropped)
    fast = plain(model).fit(frame)
    for rows in (frame, frame.drop(columns=dropped), frame[frame.columns[::-1]]):
        found = parts.predict(fast, dask.from_pandas(rows, npartitions=2)).compute()
        assert same(found.to_numpy(), expected)


@pytest.mark.parametrize("categories", [False, True])
def test_wheels_need_no_dropped_column(categories, tmp_path, monkeypatch):
    model, frame, expected = trained(categories)
    fast = plain(model).fit(frame)
    folder = skforge.export(fast, tmp_path / "wheel", kind="wheel", name="homes")
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "homes", raising=False)
    import homes

    for rows in (frame, frame.drop(columns="rooms")):
        assert same(homes.predict(rows), expected)
        assert same(homes.predict(rows.iloc[0].to_dict()), expected[:1])
    if not categories:
        assert same(homes.predict(frame.to_numpy()), expected)
