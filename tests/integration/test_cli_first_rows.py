"""skforge predict compares its first rows with the library's own answers."""

from __future__ import annotations

import sys
from functools import partial
from io import BytesIO, TextIOWrapper
from pathlib import Path
from shutil import copy

import joblib
import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
    VotingClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import skforge
from skforge.cli import data, library, values
from skforge.cli.main import app
from tests.programs import PICKLE, command
from tests.unit.test_frontend_onnx_steps import ONE_HOT, travel

pytestmark = pytest.mark.doors

pd = pytest.importorskip("pandas")
xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")
catboost = pytest.importorskip("catboost")
pytest.importorskip("pyarrow")

ONNX = Path(__file__).parents[1] / "data" / "onnx_models"

N = 200
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "a": RNG.normal(size=N),
        "city": RNG.choice(["rome", "oslo", "bern"], N),
        "b": RNG.normal(size=N).astype(np.float32),
        "zip": RNG.choice([7, 101, 3000], N),
    }
)
FRAME["flag"] = FRAME["a"] * FRAME["b"] > 0
GAPS = FRAME.copy()
GAPS.loc[::5, "a"] = np.nan
GAPS.loc[::7, "city"] = None
CODED = GAPS.assign(city=GAPS["city"].astype("category"))
TWO = CODED.assign(zip=CODED["zip"].astype("category"))
NUMBERS = ["a", "b", "zip", "flag"]
SCORE = FRAME["a"] + (FRAME["city"] == "rome") + (FRAME["zip"] == 7) - FRAME["flag"]
SCORE += 2 * GAPS["a"].isna()  # so that missing values have a way of their own
Y, CLASSES = (SCORE > 0.5).astype(int).to_numpy(), np.digitize(SCORE, [0, 1])
ONNX_ROWS = pd.DataFrame(RNG.normal(size=(N, 5)).astype(np.float32))
TRAVELLERS = pd.DataFrame(
    {
        "age": RNG.integers(-4, 5, N),
        "city": RNG.choice(["Rome", "Oslo", "Paris"], N),
        "pay": RNG.choice([1.0, 2.5, -3.0], N),
    }
)
SMALL = {"n_estimators": 4, "max_depth": 3, "random_state": 0}


def _xgboost():
    return xgboost.XGBClassifier(**SMALL, enable_categorical=True)


def _lightgbm(kind=lightgbm.LGBMClassifier):
    return kind(n_estimators=4, min_child_samples=5, verbose=-1)


def _catboost(kind=catboost.CatBoostClassifier, **more):
    return kind(iterations=4, verbose=0, allow_writing_files=False, **more)


def _encoded():
    words = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder())
    return make_column_transformer((words, ["city"]), (SimpleImputer(), ["a", "zip"]))


def _softmax(path):
    rows = xgboost.DMatrix(GAPS[NUMBERS], CLASSES)
    params = {"objective": "multi:softmax", "num_class": 3, "max_depth": 2}
    xgboost.train(params, rows, 3).save_model(path)


def _poisson():
    return _catboost(catboost.CatBoostRegressor, loss_function="Poisson")


def _scaled(*more):
    return make_pipeline(StandardScaler(), *more, RandomForestRegressor(**SMALL))


def _votes():
    return VotingClassifier([("a", _forest()), ("b", _lightgbm())], voting="soft")


def _bytes(path):
    graph = travel(*ONE_HOT, width=6, constants=[("shape", [-1, 4])])
    path.write_bytes(graph.SerializeToString())


def _forest():
    return RandomForestClassifier(**SMALL)


def _ordinal():
    encoder = (OrdinalEncoder(), ["city"])
    columns = make_column_transformer(encoder, remainder="passthrough")
    return skforge.CompiledForest(make_pipeline(columns, _forest()), tuning="off")


HISTOGRAM = partial(HistGradientBoostingClassifier, max_iter=4)
#: What makes a model, the frame whose columns it reads, and its target; without one,
#: what writes the file.
MODELS = {
    "xgboost.json": (_xgboost, TWO, Y),
    "xgboost.ubj": (_xgboost, CODED, CLASSES),
    "softmax.json": (_softmax, GAPS[NUMBERS], None),
    "lightgbm.txt": (_lightgbm, CODED, Y),
    "three.txt": (_lightgbm, CODED, CLASSES),
    "catboost.cbm": (partial(_catboost, cat_features=["city", "zip"]), FRAME, Y),
    "poisson.cbm": (_poisson, GAPS[NUMBERS], CLASSES),
    "several.onnx": (partial(copy, ONNX / "rf_several.onnx"), ONNX_ROWS, None),
    "zipmap.onnx": (partial(copy, ONNX / "rf_zipmap.onnx"), ONNX_ROWS, None),
    "columns.onnx": (_bytes, TRAVELLERS, None),
    "xgboost.joblib": (_xgboost, TWO, Y),
    "booster.joblib": (_xgboost, TWO, Y),
    "lightgbm.joblib": (_lightgbm, CODED, Y),
    "catboost.joblib": (partial(_catboost, cat_features=["city"]), FRAME, Y),
    "histogram.joblib": (HISTOGRAM, CODED, CLASSES),
    "encoded.joblib": (lambda: make_pipeline(_encoded(), _forest()), GAPS, Y),
    "scaled.joblib": (_scaled, FRAME[NUMBERS], SCORE),
    "rotated.joblib": (partial(_scaled, PCA(2)), FRAME[NUMBERS], SCORE),
    "voting.joblib": (_votes, FRAME[NUMBERS], Y),
    "compiled.joblib": (_ordinal, FRAME, Y),
}


def _write(name, path):
    make, rows, target = MODELS[name]
    if target is None:
        make(path)
        return
    rows = rows.to_numpy(float) if name == "scaled.joblib" else rows
    model = make().fit(rows, target)
    if path.suffix == ".joblib":
        joblib.dump(model.get_booster() if name == "booster.joblib" else model, path)
    else:
        getattr(model, "booster_", model).save_model(str(path))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("models"), {}

    def model(name):
        if name not in made:
            _write(name, folder / name)
            made[name] = folder / name
        return made[name]

    return model


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*args):
        code, out, err = command(capsys, "predict", *args)
        return code, out, err.rpartition(PICKLE.partition("{}")[2])[2]

    return call


def _written(frame, ending, named=True):
    """Write a file in which a model with names finds its columns in another order."""
    path = Path(f"rows.{ending}")
    if named:
        frame = frame[frame.columns[::-1]].assign(note="any")
    write = {"csv": frame.to_csv, "parquet": frame.to_parquet}
    write.get(ending, frame.to_feather)(
        path, **({"index": False} if ending == "csv" else {})
    )
    return path


@pytest.mark.parametrize("name", MODELS)
def test_the_library_agrees(run, models, name):
    """Nothing is said of kinds that are compared; and they are: see planted faults."""
    named = name not in ("scaled.joblib", "several.onnx", "zipmap.onnx")
    frame = MODELS[name][1].rename(columns=str)
    for ending, method in (("csv", "raw"), ("parquet", "predict")):
        path = _written(frame, ending, named)
        code, out, err = run(models(name), path, "--method", method, "-o", "out.csv")
        assert (code, out) == (0, "")
        assert err.startswith("saved out.csv: 200 rows, "), err


@pytest.mark.parametrize("method", ["proba", "contribs"])
@pytest.mark.parametrize("name", ["xgboost.json", "softmax.json", "three.txt"])
def test_probabilities_and_contributions(run, models, name, method):
    path = _written(MODELS[name][1], "feather")
    code, _, err = run(models(name), path, "--method", method, "-o", "out.npy")
    assert code == 0 and err.startswith("saved out.npy: 200 rows, "), err


# ------------------------------------------------------------ planted faults

CATEGORIES, NUMBERS_OF, TEXTS = values.categories, values.numbers, values.texts


def categories_by_position(monkeypatch):
    def wrong(*args):
        made = CATEGORIES(*args)
        return made.rename_categories([*made.categories[1:], made.categories[0]])

    monkeypatch.setattr(values, "categories", wrong)


def missing_as_zero(monkeypatch):
    def wrong(column, dtype=np.float64):
        return np.nan_to_num(NUMBERS_OF(column, dtype))

    monkeypatch.setattr(values, "numbers", wrong)


def numbers_as_whole(monkeypatch):
    def wrong(column, dtype=np.float64):
        return np.trunc(NUMBERS_OF(column, dtype))

    monkeypatch.setattr(values, "numbers", wrong)


def columns_by_position(monkeypatch):
    def wrong(file, columns):
        return [*range(file.spec.width)]

    monkeypatch.setattr(data.RowsFile, "_chosen", wrong)


def texts_as_codes(monkeypatch):
    def wrong(column, known=(), spelled=True):
        found = TEXTS(column, known, spelled)
        other = dict(
            zip(sorted(known), sorted(known)[1:] + sorted(known)[:1], strict=True)
        )
        return np.array([other.get(word, word) for word in found], object)

    monkeypatch.setattr(values, "texts", wrong)


#: All but models with several outputs predict labels.
RAW = dict.fromkeys(MODELS, ("--method", "raw")) | {"several.onnx": ()}
FAULTS = [
    ("xgboost.json", categories_by_position),
    ("xgboost.joblib", categories_by_position),
    ("lightgbm.txt", categories_by_position),
    ("three.txt", categories_by_position),
    ("histogram.joblib", categories_by_position),
    ("xgboost.json", missing_as_zero),
    ("booster.joblib", missing_as_zero),
    ("lightgbm.joblib", missing_as_zero),
    ("poisson.cbm", missing_as_zero),
    ("softmax.json", missing_as_zero),
    ("several.onnx", numbers_as_whole),
    ("encoded.joblib", missing_as_zero),
    ("softmax.json", columns_by_position),
    ("poisson.cbm", columns_by_position),
    ("rotated.joblib", columns_by_position),
    ("encoded.joblib", texts_as_codes),
    ("compiled.joblib", texts_as_codes),
]


@pytest.mark.sampled(17)
@pytest.mark.parametrize(("name", "plant"), FAULTS)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_planted_faults_are_found(run, models, monkeypatch, name, plant, ending):
    frame = MODELS[name][1].rename(columns=str)
    if plant is columns_by_position:
        frame = frame[frame.columns[::-1]]
    path = _written(frame, ending, named=False)
    Path("out.csv").write_text("of yesterday")
    plant(monkeypatch)
    code, out, err = run(models(name), path, "-o", "out.csv", *RAW.get(name, ()))
    assert (code, out) == (3, ""), err
    assert f" of {path} differs from " in err and "No result was kept." in err
    assert Path("out.csv").read_text() == "of yesterday"
    assert {p.name for p in Path().iterdir()} == {"out.csv", path.name}
    monkeypatch.setenv("SKFORGE_CHECK", "off")
    assert run(models(name), path, "-o", "out.csv")[0] == 0


def test_rows_that_the_library_refuses(run, models, monkeypatch):
    frame = MODELS["catboost.cbm"][1].astype({"city": object})[:9]
    frame.loc[3, "city"] = None
    path = _written(frame, "csv", named=False)
    hashed = values.hashed

    def wrong(column, booleans):
        return hashed(column.fill_null(""), booleans)

    assert run(models("catboost.cbm"), path)[0] == 2
    monkeypatch.setattr(values, "hashed", wrong)
    code, out, err = run(models("catboost.cbm"), path)
    assert (code, out) == (3, "")
    assert err.startswith(f"error: predict of {path} differs from CatBoost itself: row")
    assert "row 4 has " in err
    assert ", and CatBoost refuses it: CatBoostError: Invalid type for cat_f" in err


def test_what_it_says(run, models, monkeypatch, tmp_path):
    frame = pd.DataFrame({"a": [np.nan, 0.25], "b": [0, 0], "zip": 7, "flag": 1})
    path = _written(frame, "csv", named=False)
    fast = skforge.CompiledForest(models("softmax.json"), tuning="off").fit(frame)
    right = fast.predict_raw(frame)[0].tolist()
    wrong = fast.predict_raw(frame.fillna(0))[0].tolist()
    missing_as_zero(monkeypatch)
    assert run(models("softmax.json"), path, "--method", "raw") == (
        3,
        "",
        "error: predict_raw of rows.csv differs from XGBoost itself in 1 of 2 rows: "
        f"row 1 has {wrong!r}, and XGBoost says {right!r}. No result was kept. Please "
        "report it with the model and these rows, and predict with the library until "
        "then; SKFORGE_CHECK=off skips this comparison.\n",
    )


def test_pipes_are_compared_too(models, monkeypatch, capsysbinary):
    lines = MODELS["encoded.joblib"][1].to_csv(index=False).encode()
    for plant, code in ((None, 0), (texts_as_codes, 3)):
        if plant:
            plant(monkeypatch)
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(lines)))
        with pytest.raises(SystemExit) as stopped:
            app(["predict", str(models("encoded.joblib")), "-"], prog_name="skforge")
        out, err = capsysbinary.readouterr()
        assert (stopped.value.code or 0) == code
        assert out.count(b"\n") == (0 if code else N + 1)
    assert b"predict of standard input differs from a Pipeline itself in" in err


@pytest.mark.parametrize(
    ("name", "missing", "why"),
    [
        ("softmax.json", "xgboost", "xgboost is not installed"),
        ("three.txt", "lightgbm", "lightgbm is not installed"),
        ("poisson.cbm", "catboost", "catboost is not installed"),
        ("several.onnx", "onnxruntime", "onnxruntime is not installed"),
        ("softmax.json", "pandas", "pandas is not installed"),
    ],
)
def test_where_nothing_can_be_compared(run, models, monkeypatch, name, missing, why):
    frame = MODELS[name][1].rename(columns=str)
    if missing == "pandas":
        find = library.find_spec
        monkeypatch.setattr(library, "find_spec", lambda m: m != missing and find(m))
    else:
        path = models(name)
        monkeypatch.setitem(sys.modules, missing, None)
    path = _written(frame, "csv", named=False)
    code, _, err = run(models(name), path, "-o", "out.csv")
    said, done = err.splitlines()
    assert (code, said) == (
        0,
        f"warning: the first rows were not compared with the library: {why}.",
    )
    assert done.startswith("saved out.csv")


def test_saved_models_have_no_library_to_ask(run, models, monkeypatch):
    frame = MODELS["scaled.joblib"][1]
    fast = skforge.CompiledForest(joblib.load(models("scaled.joblib")), tuning="off")
    skforge.save(fast.fit(frame.to_numpy(float)), "m.skforge")
    missing_as_zero(monkeypatch)
    code, _, err = run("m.skforge", _written(frame, "csv", False), "-o", "out.csv")
    assert code == 0 and err.startswith("saved out.csv: 200 rows")
