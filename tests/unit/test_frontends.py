"""The registry: a frontend is one file that registers itself."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from zipfile import ZipFile

import joblib
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeRegressor

import skforge
from skforge import frontends
from skforge.exceptions import (
    InvalidModelError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from skforge.forest.reference import reference_raw
from skforge.frontends import Frontend, base, load_forest, register
from skforge.frontends.sklearn.ensembles import load_trees as load_sklearn
from tests.refusals import error_of


class Stump:
    """A model of somebody else's library."""

    def __init__(self, threshold):
        self.threshold = threshold

    def forest(self):
        X = np.array([[self.threshold - 1], [self.threshold + 1]])
        return load_sklearn(DecisionTreeRegressor().fit(X, [0.0, 1.0]))


@pytest.fixture(autouse=True)
def restore_registry(monkeypatch):
    frontends._discover()  # registers our own
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))


def stump_frontend(**changes):
    arguments = {
        "name": "stumps",
        "suffixes": (".stump",),
        "detect": lambda model: isinstance(model, Stump),
        "load": lambda model, rounds: model.forest(),
        "load_bytes": lambda data, rounds: Stump(float(data)).forest(),
    }
    return Frontend(**{**arguments, **changes})


def test_a_registered_frontend_reads_objects_and_files(tmp_path):
    register(stump_frontend())
    assert load_forest(Stump(3.0)).threshold.tolist() == [3.0]
    file = tmp_path / "model.STUMP"
    file.write_text("5.0")
    assert load_forest(file).threshold.tolist() == [5.0]
    assert load_forest(str(file)).threshold.tolist() == [5.0]


def test_the_frontend_registered_last_is_asked_first():
    register(stump_frontend())
    register(stump_frontend(name="other", load=lambda m, r: Stump(7.0).forest()))
    assert load_forest(Stump(3.0)).threshold.tolist() == [7.0]
    register(stump_frontend())  # registering again moves it to the front
    assert load_forest(Stump(3.0)).threshold.tolist() == [3.0]


def test_what_a_frontend_returns_is_validated():
    def load_damaged(model, rounds):
        from dataclasses import replace

        return replace(model.forest(), feature=np.array([4]))

    register(stump_frontend(load=load_damaged))
    assert error_of(InvalidModelError, load_forest, Stump(3.0)) == (
        "feature[0] = 4 of predicate 0 (first used in tree 0) is outside 0..0; "
        "the model is damaged, export it again."
    )


def test_an_unreadable_file_is_named(tmp_path):
    def load_bytes(data, rounds):
        raise PermissionError(13, "Permission denied")

    register(stump_frontend(load_bytes=load_bytes))
    file = tmp_path / "a.stump"
    file.write_text("1")
    said = error_of(InvalidModelError, load_forest, file)
    assert said == f"{file} cannot be read: Permission denied."


def test_a_long_quotation_of_a_file_is_cut_short(tmp_path):
    file = tmp_path / "model.json"
    objective = {"name": "y" * 100_000}
    learner = {
        "gradient_booster": {"name": "gbtree", "model": {}},
        "learner_model_param": {},
        "objective": objective,
    }
    file.write_text(json.dumps({"learner": learner}))
    text = error_of(UnsupportedModelError, load_forest, file)
    assert text.startswith("model.json: The objective 'yyy")
    assert text.endswith("so its predictions cannot be reproduced.")
    assert len(text) < 1000


# ------------------------------------------------------------ kinds by content

ANY_NAME = ["model.model", "model.lgb", "model.bin", "model", "model.json", "model.txt"]


SAVED = Path(__file__).parents[1] / "data" / "formats" / "2.zip"


@pytest.mark.filterwarnings("ignore:.*was saved by skforge.save:FutureWarning")
@pytest.mark.parametrize("kind", ["trees", "module", "xgboost"])
def test_saved_models_as_sources(kind, tmp_path):
    with ZipFile(SAVED) as archive:
        path = Path(archive.extract(f"{kind}.skforge", tmp_path))
        trees = archive.extract("trees.skforge", tmp_path)
    assert load_forest(path).content_hash() == load_forest(trees).content_hash()
    fit = skforge.CompiledForest(path).fit
    assert error_of(InvalidModelError, fit, np.zeros((1, 4))) == (
        f"{path} was saved by skforge.save; use skforge.load(path)."
    )
    said = error_of(UnsupportedModelError, load_forest, path, iteration_range=(0, 1))
    assert said == (
        f"{kind}.skforge was saved by skforge.save, which fixes the boosting rounds; "
        "pass iteration_range when you read the original model."
    )


def test_files_that_are_no_models_say_what_they_are(tmp_path):
    xgb = pytest.importorskip("xgboost")
    X = np.random.default_rng(0).normal(size=(90, 3))
    tree = DecisionTreeRegressor().fit(X, X[:, 0])
    gbt = xgb.train({"nthread": 1}, xgb.DMatrix(X, X[:, 0]), 3)
    joblib.dump(tree, tmp_path / "zipped", compress=3)
    gbt.dump_model(tmp_path / "text dump")
    gbt.dump_model(tmp_path / "json dump", dump_format="json")
    trees = (
        "holds a dump of XGBoost's trees, which XGBoost itself cannot read; save the "
        "model with Booster.save_model."
    )
    pickled = (
        "is pickled or compressed, as by joblib.dump, and skforge does not open it, "
        "because a pickle can run any code; load it yourself and pass the model."
    )
    pmml = "is PMML, which skforge does not read; give it the model that was exported."
    unknown = (
        "is not a model file that skforge recognises; save the model with "
        "Booster.save_model of XGBoost or LightGBM, save_model of CatBoost, as ONNX, "
        "or with skforge.save."
    )
    cases = [
        ((tmp_path / "text dump").read_bytes(), trees),
        ((tmp_path / "json dump").read_bytes(), trees),
        (pickle.dumps(tree), pickled),
        (pickle.dumps(tree, 2), pickled),
        ((tmp_path / "zipped").read_bytes(), pickled),
        (b'<?xml version="1.0"?>\n<!-- made -->\n<PMML version="4.3">', pmml),
        (b"<PMML version='4.4' xmlns='http://www.dmg.org/PMML-4_4'>", pmml),
        (b'<?xml version="1.0"?>\n<html>', unknown),
        (b"a,b\n1,2\n", unknown),
        (bytes(range(256)), unknown),
    ]
    for number, (data, sentence) in enumerate(cases):
        names = ANY_NAME[:4] if sentence is unknown else ANY_NAME
        for name in names:
            path = tmp_path / name
            path.write_bytes(data)
            said = error_of(UnsupportedModelError, load_forest, path)
            assert said == f"{name} {sentence}", number


def test_paths_without_a_file(tmp_path):
    (tmp_path / "empty.json").touch()
    for path, what in (
        (tmp_path / "empty.json", "is empty; save the model again."),
        (tmp_path, "is a folder; give the path of a model file in it."),
        (tmp_path / "no", "does not exist; give the path of a saved model."),
        (tmp_path / "no.json", "does not exist; give the path of a saved model."),
    ):
        kind = ModelNotFoundError if path.name.startswith("no") else InvalidModelError
        for call in (load_forest, lambda p: skforge.CompiledForest(p).fit([[0.0]])):
            with pytest.raises(kind) as error:
                call(path)
            assert type(error.value) is kind
            assert str(error.value) == f"{path} {what}"
    assert issubclass(ModelNotFoundError, FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        skforge.load(tmp_path / "no.skforge")


# ------------------------------------------------------------ pipeline columns


ROWS = np.random.default_rng(0).integers(0, 4, (60, 2)).astype(float)
TREE = DecisionTreeRegressor(max_depth=4, random_state=0)


def test_numbers_of_several_dtypes_are_joined() -> None:
    steps = (OneHotEncoder(dtype=np.int32), [0]), (StandardScaler(), [1])
    model = make_pipeline(make_column_transformer(*steps), TREE)
    model.fit(ROWS, ROWS @ [1.0, -3.0])
    forest = load_forest(model)
    rows = ROWS.astype(forest.input_dtype)
    assert_array_equal(reference_raw(forest, rows)[:, 0], model.predict(ROWS))
