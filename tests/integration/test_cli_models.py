"""skforge predict: every kind of model and of file gives the bits of Python.

Files are read some rows at a time, and the parts differ in what they hold: the first
rows of a column look like whole numbers, missing values and new texts come later.
"""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import skforge
from skforge.cli import tables
from skforge.cli.models import drawable
from skforge.exceptions import InvalidInputError
from tests.plain import plain
from tests.programs import PICKLE, command

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow", exc_type=ImportError)
xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")

N = 90


def frame(**changed):
    random = np.random.default_rng(0)
    found = pd.DataFrame(
        {
            "id": np.arange(N),
            "size": np.where(
                np.arange(N) < 40, np.arange(N) % 7, random.normal(size=N)
            ),
            "city": np.array(["Oslo", "Bern", "None", "7"], object)[np.arange(N) % 4],
            "age": random.normal(size=N).round(2),
        }
    )
    return found.assign(**changed)


TRAINED = frame()
Y = (TRAINED["size"] + TRAINED["age"] + (TRAINED["city"] == "Oslo") > 0.5).to_numpy()
#: What is predicted: a missing text, a text not seen in training, gaps in numbers.
GIVEN = frame()
GIVEN.loc[50:, "size"] = np.where(np.arange(40) % 5, GIVEN["size"][50:], np.nan)
GIVEN.loc[[60, 77], "city"] = [np.nan, "Rome"]
NAMES = ["size", "city", "age"]


def as_category(data):
    return data.assign(city=pd.Categorical(data["city"]))


def with_texts(*steps):
    texts = make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")
    )
    columns = make_column_transformer(
        (texts, ["city"]), (SimpleImputer(), ["size"]), ("passthrough", ["age"])
    )
    columns.sparse_threshold = 0
    forest = RandomForestClassifier(4, max_depth=4, random_state=0)
    return make_pipeline(columns, *steps, forest)


def lightgbm_model():
    model = lightgbm.LGBMClassifier(n_estimators=4, min_child_samples=2, verbose=-1)
    return model.fit(as_category(TRAINED[NAMES]), Y)


def xgboost_model():
    model = xgboost.XGBClassifier(n_estimators=4, enable_categorical=True, n_jobs=1)
    return model.fit(as_category(TRAINED[NAMES]), Y)


MODELS = {
    "lightgbm": lightgbm_model,
    "xgboost": xgboost_model,
    "histogram": lambda: HistGradientBoostingClassifier(
        max_iter=4, min_samples_leaf=2, categorical_features="from_dtype"
    ).fit(as_category(TRAINED[NAMES]), Y),
    "pipeline": lambda: with_texts().fit(TRAINED, Y),
    "scaled": lambda: with_texts(StandardScaler()).fit(TRAINED, Y),
    "reduced": lambda: with_texts(PCA(2, random_state=0)).fit(TRAINED, Y),
    "calibrated": lambda: CalibratedClassifierCV(
        make_pipeline(SimpleImputer(), RandomForestClassifier(3, random_state=0)), cv=2
    ).fit(TRAINED[["age", "size"]], Y),
    "ordinal": lambda: make_pipeline(
        make_column_transformer(
            (
                OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
                ["city"],
            ),
            remainder="passthrough",
        ),
        HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=2),
    ).fit(TRAINED[NAMES], Y),
    "plain": lambda: RandomForestClassifier(4, random_state=0).fit(
        TRAINED[["size", "age"]], np.array(["no", "yes, so"], object)[Y.astype(int)]
    ),
    "array": lambda: RandomForestRegressor(4, random_state=0).fit(
        TRAINED[["size", "age"]].to_numpy(), TRAINED["age"] * 1.1
    ),
}
#: Not known to the model in training, which these do not take.
KNOWN_ONLY = {"xgboost"}


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "_ROWS", 16)

    def call(*args):
        with warnings.catch_warnings():
            return command(capsys, "predict", *args)

    return call


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Return each model's file, its rows, and its answers in Python, by name."""
    made = {}

    def get(name):
        if name not in made:
            model, given = MODELS[name](), GIVEN
            if name in KNOWN_ONLY:
                given = given.replace({"city": {"Rome": "Bern"}})
            rows = given
            if hasattr(model, "feature_names_in_"):
                rows = given[[*model.feature_names_in_]]
            if name in ("lightgbm", "xgboost", "histogram"):
                rows = as_category(rows)
            if name == "array":
                given = rows = given[["size", "age"]]
            fast = skforge.CompiledForest(model, tuning="off").fit(rows)
            path = tmp_path_factory.mktemp(name) / "model.joblib"
            joblib.dump(model, path)
            made[name] = path, given, rows, fast
        return made[name]

    return get


def written(data, path):
    match path.suffix:
        case ".csv":
            data.to_csv(path, index=False)
        case ".parquet":
            data.to_parquet(path, row_group_size=25)
        case ".arrow":
            with pa.ipc.new_stream(path, pa.Table.from_pandas(data).schema) as file:
                file.write_table(pa.Table.from_pandas(data), 30)
        case ".feather":
            data.to_feather(path)
    return path


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("name", "ending"),
    [
        *((name, "csv") for name in MODELS),
        *(("scaled", ending) for ending in ("parquet", "feather", "arrow")),
        ("xgboost", "parquet"),
    ],
)
def test_files_give_the_bits_of_a_frame(run, fitted, tmp_path, name, ending):
    model, given, rows, fast = fitted(name)
    data = written(given, tmp_path / f"rows.{ending}")
    out = tmp_path / "out.npy"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for method in ("predict", "predict_proba")[name not in ("array", "plain") :]:
            if not hasattr(fast, method):
                continue
            expected = np.asarray(getattr(fast, method)(rows))
            short = method.removeprefix("predict_")
            code, _, err = run(model, data, "--method", short, "-o", out)
            assert code == 0, err
            found = np.load(out)
            if expected.dtype == object:
                expected = expected.astype(found.dtype)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert found.tobytes() == np.ascontiguousarray(expected).tobytes()


# -- other commands ---------------------------------------------------------------


@pytest.fixture
def skf(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERMINAL_WIDTH", "200")

    return partial(command, capsys)


BENCH = ("--batch-sizes=3", "--seconds=0.02")


def test_a_pickled_estimator_in_every_command(skf, fitted, tmp_path):
    model, given, _, fast = fitted("plain")
    warning = PICKLE.format("model.joblib")
    code, out, err = skf("bench", model, *BENCH)
    assert (code, err) == (0, warning)
    assert out.count("identical") == 4 and "predict_proba" in out and "×" in out
    code, out, err = skf("inspect", model, "--level=schedule", "--rows=1")
    assert (code, err) == (0, warning)
    assert out == fast.inspect("schedule", n_rows=1) + "\n"
    assert skf("export", model, "-o", "lib", "--kind=c")[0] == 0
    given[["size", "age"]].fillna(0).to_csv("rows.csv", index=False)
    tune = ("--data=rows.csv", "--budget=0.2", "--batch-sizes=8", "--verbose=0")
    code, out, err = skf("tune", model, *tune, "-o", "tuned.skforge")
    saved = "its schedules: skforge inspect tuned.skforge --level tuning\n"
    assert code == 0 and out.endswith(saved), err
    labels = skforge.load("tuned.skforge").predict(given[["size", "age"]].fillna(0))
    assert labels.tolist() == fast.predict(given[["size", "age"]].fillna(0)).tolist()
    code, out, err = skf("bench", "tuned.skforge", "--data=rows.csv", *BENCH)
    assert (code, err) == (0, "")
    assert out.count("identical") == 3 and "reference" in out and "per row" in out
    assert skf("tune", "tuned.skforge", *tune)[0] == 0


def test_a_pipeline_is_measured_on_rows_of_a_file(skf, fitted):
    model, given, rows, fast = fitted("scaled")
    given.to_csv("rows.csv", index=False)
    code, out, _ = skf("bench", model, "--data=rows.csv", *BENCH)
    assert code == 0 and out.count("identical") == 2
    for name in ("bench", "tune"):
        code, _, err = skf(name, model)
        assert code == 2 and err == PICKLE.format("model.joblib") + (
            "error: model.joblib holds a Pipeline, for which no random rows can be "
            "made; give rows with --data.\n"
        )
    with pytest.raises(InvalidInputError, match="m holds a Ridge, for"):
        drawable(Path("m"), Ridge().fit([[0.0], [1.0]], [0, 1]))
    skforge.save(fast, "saved.skforge")
    assert skf("bench", "saved.skforge", "--data=rows.csv", *BENCH)[0] == 0
    assert skf("predict", "saved.skforge", "rows.csv", "-o", "out.npy")[0] == 0
    assert np.array_equal(np.load("out.npy"), fast.predict(rows))


def test_a_stack_is_answered_and_measured(skf):
    X = np.random.default_rng(0).normal(size=(60, 3))
    members = [("forest", RandomForestRegressor(3, max_depth=3)), ("line", Ridge())]
    stack = StackingRegressor(members, cv=2).fit(X, X[:, 0])
    joblib.dump(stack, "stack.joblib")
    np.save("rows.npy", X)
    assert skf("predict", "stack.joblib", "rows.npy", "-o", "out.npy")[0] == 0
    assert np.array_equal(np.load("out.npy"), stack.predict(X))
    code, out, _ = skf("bench", "stack.joblib", "--data=rows.npy", *BENCH)
    assert code == 0 and out.count("identical") == 1


def test_rows_of_a_graph_are_read_at_once(run):
    """A batch of one row at the end would add its products in another order."""
    skl2onnx = pytest.importorskip("skl2onnx")
    X = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    members = [(str(k), RandomForestRegressor(3, max_depth=4)) for k in range(2)]
    stack = StackingRegressor(members, Ridge(), cv=2).fit(X, X[:, 0] + X[:, 1])
    fast = plain(skl2onnx.to_onnx(stack, X[:1])).fit(X)
    alone = np.array([fast.predict(X[i : i + 1])[0] for i in range(400)])
    last = np.flatnonzero(alone != fast.predict(X))[0]
    rows = np.vstack([X[:16], X[last : last + 1]])
    skforge.save(fast, "stack.skforge")
    np.save("rows.npy", rows)
    run("stack.skforge", "rows.npy", "-o", "answers.npy")
    assert np.array_equal(np.load("answers.npy").ravel(), fast.predict(rows))
