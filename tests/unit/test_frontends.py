"""The registry: a frontend is one file that registers itself."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

import skforge
from skforge.compiler import frontends
from skforge.compiler.frontends import Frontend, base, load_forest, register
from skforge.compiler.frontends.sklearn.ensembles import load_trees as load_sklearn
from skforge.exceptions import (
    InvalidModelError,
    ModelNotFoundError,
    UnsupportedModelError,
)


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


def test_only_the_frontends_that_may_read_a_model_are_imported():
    script = """
import sys
from sklearn.tree import DecisionTreeRegressor
from skforge import load_forest
from tests.unit.test_frontends import Stump, register, stump_frontend

load_forest(DecisionTreeRegressor().fit([[0.0], [1.0]], [0.0, 1.0]))
names = ["lightgbm", "onnx", "xgboost"]
print([n for n in names if f"skforge.compiler.frontends.{n}" in sys.modules])
Booster = type("Booster", (Stump,), {"__module__": "xgboost.core"})
register(stump_frontend(detect=lambda model: isinstance(model, Booster)))
print(load_forest(Booster(3.0)).threshold.tolist())  # asked before skforge's own
print([n for n in names if f"skforge.compiler.frontends.{n}" in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[]", "[3.0]", "['xgboost']"]


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
    with pytest.raises(InvalidModelError) as error:
        load_forest(Stump(3.0))
    assert str(error.value) == (
        "feature[0] = 4 of predicate 0 (first used in tree 0) is outside 0..0; "
        "the model is damaged, export it again."
    )


def test_an_unreadable_file_is_named(tmp_path):
    def load_bytes(data, rounds):
        raise PermissionError(13, "Permission denied")

    register(stump_frontend(load_bytes=load_bytes))
    file = tmp_path / "a.stump"
    file.write_text("1")
    with pytest.raises(InvalidModelError) as error:
        load_forest(file)
    assert str(error.value) == f"{file} cannot be read: Permission denied."


def test_a_long_quotation_of_a_file_is_cut_short(tmp_path):
    file = tmp_path / "model.json"
    objective = {"name": "y" * 100_000}
    learner = {
        "gradient_booster": {"name": "gbtree", "model": {}},
        "learner_model_param": {},
        "objective": objective,
    }
    file.write_text(json.dumps({"learner": learner}))
    with pytest.raises(UnsupportedModelError) as error:
        load_forest(file)
    text = str(error.value)
    assert text.startswith("model.json: The objective 'yyy")
    assert text.endswith("so its predictions cannot be reproduced.")
    assert len(text) < 1000


# ------------------------------------------------------------ kinds by content

ANY_NAME = ["model.model", "model.lgb", "model.bin", "model", "model.json", "model.txt"]


def _files(folder):
    """Return files of every kind, and the forests that they hold."""
    lgb, xgb = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 3))
    gbm = lgb.train(
        {"verbose": -1, "num_threads": 1},
        lgb.Dataset(X, X[:, 0], free_raw_data=False),
        3,
    )
    gbt = xgb.train({"nthread": 1}, xgb.DMatrix(X, X[:, 0]), 3)
    tree = DecisionTreeRegressor().fit(X, X[:, 0])
    skforge.save(load_forest(tree), folder / "forest")
    skforge.save(skforge.compile_forest(load_forest(tree)), folder / "module")
    skforge.save(skforge.CompiledForest(tree, tuning="off").fit(X), folder / "fitted")
    held = {
        "lightgbm": (gbm.model_to_string().encode(), gbm),
        "json": (bytes(gbt.save_raw("json")), gbt),
        "spaced json": (b"\n " + bytes(gbt.save_raw("json")), gbt),
        "ubj": (bytes(gbt.save_raw("ubj")), gbt),
    }
    for kind in ("forest", "module", "fitted"):
        held[kind] = ((folder / kind).read_bytes(), tree)
    return held, X, gbm, gbt, tree


@pytest.mark.filterwarnings("ignore:.*was saved by skforge.save:FutureWarning")
def test_files_are_known_by_their_content(tmp_path):
    for data, model in _files(tmp_path)[0].values():
        expected = load_forest(model).content_hash()
        for name in [*ANY_NAME, "model.ubj", "model.onnx", "model.skforge"]:
            path = tmp_path / name
            path.write_bytes(data)
            assert load_forest(path).content_hash() == expected
            assert load_forest(str(path)).content_hash() == expected


def test_onnx_files_are_known_by_their_content(tmp_path):
    skl2onnx = pytest.importorskip("skl2onnx")
    X = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    tree = DecisionTreeRegressor().fit(X, X[:, 0])
    proto = skl2onnx.to_onnx(tree, X[:1])
    expected = load_forest(proto).content_hash()
    for name in ANY_NAME:
        (tmp_path / name).write_bytes(proto.SerializeToString())
        assert load_forest(tmp_path / name).content_hash() == expected


@pytest.mark.filterwarnings("ignore:.*was saved by skforge.save:FutureWarning")
def test_saved_models_as_sources(tmp_path):
    held, X, *_, tree = _files(tmp_path)
    path = tmp_path / "x.skforge"
    for kind in ("forest", "module", "fitted"):
        path.write_bytes(held[kind][0])
        assert (
            skforge.compile_forest(load_forest(path)).predict(X) == tree.predict(X)
        ).all()
        with pytest.raises(InvalidModelError) as error:
            skforge.CompiledForest(path).fit(X)
        assert str(error.value) == (
            f"{path} was saved by skforge.save; use skforge.load(path)."
        )
        with pytest.raises(UnsupportedModelError) as error:
            load_forest(path, iteration_range=(0, 1))
        assert str(error.value) == (
            "x.skforge was saved by skforge.save, which fixes the boosting rounds; "
            "pass iteration_range when you read the original model."
        )


def test_files_that_are_no_models_say_what_they_are(tmp_path):
    _, _, _, gbt, tree = _files(tmp_path)
    joblib = pytest.importorskip("joblib")
    joblib.dump(tree, tmp_path / "zipped", compress=3)
    gbt.dump_model(tmp_path / "text dump")
    gbt.dump_model(tmp_path / "json dump", dump_format="json")
    binary = np.float32(0.5).tobytes() + bytes(132)
    binary += (14).to_bytes(8, "little") + b"binary:logistic"[:14]
    binary += (6).to_bytes(8, "little") + b"gbtree" + bytes(200)
    trees = (
        "holds a dump of XGBoost's trees, which XGBoost itself cannot read; save the "
        "model with Booster.save_model."
    )
    old = (
        "is in XGBoost's old binary format, which any XGBoost before 3.1 can convert: "
        "pip install 'xgboost<3.1', and in Python "
        "xgboost.Booster(model_file='old.bin').save_model('new.json')."
    )
    pickled = (
        "is pickled or compressed, as by joblib.dump, and skforge does not open it, "
        "because a pickle can run any code; load it yourself and pass the model."
    )
    base64 = (
        "is in XGBoost's base64 format; load it with the XGBoost that wrote it and "
        "save it as .json."
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
        (binary, old),
        (b"binf" + binary, old),
        (pickle.dumps(tree), pickled),
        (pickle.dumps(tree, 2), pickled),
        ((tmp_path / "zipped").read_bytes(), pickled),
        (b"bs64\tYmluZg==", base64),
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
            with pytest.raises(UnsupportedModelError) as error:
                load_forest(path)
            assert str(error.value) == f"{name} {sentence}", number


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
