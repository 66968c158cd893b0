"""skforge verify: a saved model beside its source, by all methods, in all forms."""

from __future__ import annotations

import json
from collections import Counter
from importlib.util import find_spec

import joblib
import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import skforge
from skforge.cli import verify
from tests.plain import plain
from tests.programs import command

pd = pytest.importorskip("pandas")
xgboost = pytest.importorskip("xgboost")

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": RNG.normal(size=120),
        "city": pd.Categorical(RNG.choice(["rome", "oslo", "bern"], 120)),
    }
)
FRAME.loc[::9, "age"] = np.nan
Y = ((FRAME["age"] > 0) ^ (FRAME["city"] == "rome")).astype(int)
WORDS = np.array(["no", "yes"])[Y]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    model = xgboost.XGBClassifier(
        n_estimators=3, max_depth=3, enable_categorical=True
    ).fit(FRAME, Y)
    model.save_model(folder / "model.json")
    joblib.dump(model, folder / "model.joblib")
    skforge.save(plain(model).fit(FRAME), folder / "model.skforge")
    steps = make_column_transformer((OneHotEncoder(), ["city"]))
    pipeline = make_pipeline(steps, RandomForestClassifier(3, random_state=0))
    rows = FRAME.assign(city=FRAME["city"].astype(object))
    joblib.dump(pipeline.fit(rows, WORDS), folder / "pipeline.joblib")
    skforge.save(plain(pipeline).fit(rows), folder / "pipeline.skforge")
    FRAME.to_csv(folder / "rows.csv", index=False)
    records = [{**row, "id": 7} for row in FRAME.to_dict("records")]
    lines = [
        json.dumps({k: None if v != v else v for k, v in r.items()}) for r in records
    ]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n\n")
    return folder


@pytest.fixture
def run(capsys, monkeypatch, folder):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERMINAL_WIDTH", "200")

    return lambda text: command(capsys, "verify", *text.split())


def forms(out):
    """Return each method's forms that were compared, and all that was said."""
    lines = [line for line in out.splitlines()[4:] if line.strip()]
    cells = [line.split(None, 1) for line in lines]
    told = Counter(tuple(rest.replace("a ", "").split(None, 3)) for _, rest in cells)
    return {method for method, _ in cells}, told


METHODS = {"predict", "predict_proba", "predict_raw", "apply"}


@pytest.mark.parametrize("model", ["model.json", "model.joblib"])
@pytest.mark.parametrize("data", ["rows.csv", "rows.jsonl"])
def test_equal_in_all_forms(run, model, data):
    code, out, _ = run(f"model.skforge --model {model} --data {data}")
    assert code == 0
    assert out.splitlines()[1] == f"model.skforge beside {model}, bit by bit"
    methods, told = forms(out)
    assert methods == METHODS
    names = ["frame", "mappings", "columns"]
    names += ["Polars"] * bool(find_spec("polars"))
    names += ["Arrow"] * bool(find_spec("pyarrow"))
    assert told == {(name, "120", "0"): 4 for name in names}


def test_pipelines_and_first_rows(run):
    text = "pipeline.skforge --model pipeline.joblib --data rows.csv --rows 50"
    code, out, _ = run(text)
    assert code == 0
    methods, told = forms(out)
    assert methods == {"predict", "predict_proba", "predict_log_proba"}
    for form in ("frame", "mappings", "columns"):
        assert told[form, "50", "0"] == 3


def test_another_model_differs(run, folder):
    other = xgboost.XGBClassifier(n_estimators=2, enable_categorical=True)
    other.fit(FRAME, 1 - Y).save_model(folder / "other.json")
    code, out, _ = run("model.skforge --model other.json --data rows.csv --rows 20")
    assert code == 1
    raw = skforge.load("model.skforge").predict_raw(FRAME[:1])[0].item()
    booster = xgboost.Booster(model_file="other.json")
    rows = xgboost.DMatrix(FRAME[:1], enable_categorical=True)
    wrong = booster.predict(rows, output_margin=True)[0].item()
    line = next(x for x in out.splitlines() if x.startswith("predict_raw"))
    assert line.split() == (
        f"predict_raw a frame 20 20 row 1 has {raw!r}, not {wrong!r}".split()
    )


class WrongMappings:
    """A model whose reader of mappings takes missing values for numbers."""

    def __init__(self, model):
        self.model = model

    def __getattr__(self, name):
        method = getattr(self.model, name)

        def answer(X):
            if isinstance(X, list):
                X = [{k: 9.0 if v is None else v for k, v in r.items()} for r in X]
            return method(X)

        return answer if callable(method) else method


def test_one_wrong_form_is_found(run, monkeypatch):
    monkeypatch.setattr(verify, "fitted", lambda model, rows: WrongMappings(model))
    code, out, _ = run("model.skforge --model model.json --data rows.jsonl")
    assert code == 1
    bad = {line.split()[1] for line in out.splitlines() if " has " in line}
    assert bad == {"mappings"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "model.skforge --model model.skforge --data rows.csv",
            "model.skforge holds no model that its own library can answer for; name "
            "the file or the pickle of the model that was compiled.",
        ),
        (
            "model.skforge --model model.json --data rows.jsonl --columns age,city",
            "--columns chooses columns of tables; in rows.jsonl each value has its "
            "name.",
        ),
        (
            "model.skforge --model model.json --data bad.jsonl",
            'Line 2 of bad.jsonl is no object of JSON such as {"age": 41, "city": '
            '"Rome"}.',
        ),
        (
            "model.skforge --model model.json --data no.jsonl",
            "no.jsonl has no rows; give at least one.",
        ),
        (
            "model.skforge --model model.json --data less.csv",
            "less.csv lacks columns of the model: 'city'. The file's columns are age.",
        ),
    ],
)
def test_bad_use(run, folder, text, why):
    (folder / "bad.jsonl").write_text('{"age": 1, "city": "rome"}\n[1]\n')
    (folder / "no.jsonl").write_text("\n")
    (folder / "less.csv").write_text("age\n1\n")
    assert run(text) == (2, "", f"error: {why}\n")
