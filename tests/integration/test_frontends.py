"""Tests of ``unit/test_frontends.py`` that compile or start processes."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

import skforge
from skforge import frontends
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.frontends import base, load_forest
from tests.programs import run_python
from tests.unit.test_frontends import ANY_NAME


@pytest.fixture(autouse=True)
def restore_registry(monkeypatch):
    frontends._discover()  # registers our own
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))


def test_only_the_frontends_that_may_read_a_model_are_imported():
    script = """
import sys
from sklearn.tree import DecisionTreeRegressor
from skforge import load_forest
from tests.unit.test_frontends import Stump, register, stump_frontend

load_forest(DecisionTreeRegressor().fit([[0.0], [1.0]], [0.0, 1.0]))
names = ["lightgbm", "onnx", "xgboost"]
print([n for n in names if f"skforge.frontends.{n}" in sys.modules])
Booster = type("Booster", (Stump,), {"__module__": "xgboost.core"})
register(stump_frontend(detect=lambda model: isinstance(model, Booster)))
print(load_forest(Booster(3.0)).threshold.tolist())  # asked before skforge's own
print([n for n in names if f"skforge.frontends.{n}" in sys.modules])
"""
    assert run_python(script).splitlines() == ["[]", "[3.0]", "['xgboost']"]


@pytest.mark.parametrize(
    ("library", "names", "trees"),
    [
        ("lightgbm", ["4.7.0-dart.txt", "4.7.0-multiclass.txt"], "[4, 12]"),
        ("xgboost", ["3.2.0-dart.json", "3.2.0-softprob.ubj"], "[3, 18]"),
    ],
)
def test_files_load_without_their_library(library, names, trees):
    code = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from skforge.frontends import load_forest\n"
        "print([load_forest(p).n_trees for p in sys.argv[1:]])"
    )
    data = Path(__file__).parents[1] / "data" / library
    assert run_python(code, *(data / name for name in names)) == f"{trees}\n"


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
            with pytest.raises(UnsupportedModelError) as error:
                load_forest(path)
            assert str(error.value) == f"{name} {sentence}", number
