"""CatBoost after ``drop_unused_features()``: columns that have a place but no name."""

import pickle
import sys
import zipfile

import joblib
import numpy as np
import pytest
from typer.testing import CliRunner

import skforge
from skforge.cli.main import app
from tests.plain import plain

cb = pytest.importorskip("catboost")
pd = pytest.importorskip("pandas")

NAMES = ["age", "city", "rooms", "pay"]


def same(answer, expected):
    kinds = answer.dtype == expected.dtype, answer.shape == expected.shape
    return all(kinds) and answer.tobytes() == expected.tobytes()


def trained(categories, names=NAMES, dropped="rooms"):
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(120, 4)), columns=NAMES)
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
    live = plain(model).fit(rows)
    skforge.save(live, tmp_path / "model.skforge")
    yield "live", live
    yield "unpickled", pickle.loads(pickle.dumps(live))
    yield "loaded", skforge.load(tmp_path / "model.skforge")
    yield "dropped", plain(model).fit(rows).drop_estimator()
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


@pytest.mark.parametrize("categories", [False, True])
@pytest.mark.parametrize("dropped", ["rooms", "age"])
@pytest.mark.parametrize("file", ["model.cbm", "model.joblib", "model.skforge"])
def test_the_command_line_needs_no_dropped_column(categories, dropped, file, tmp_path):
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
        paths = [str(tmp_path / file), str(tmp_path / "rows.csv"), "-o", str(out)]
        result = CliRunner().invoke(app, ["predict", *paths])
        assert result.exit_code == 0, result.output
        assert "not compared" not in result.output  # with CatBoost
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
