"""Drop-in classes of the docs: saved as a module, they answer as the libraries do."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.sparse import csr_matrix

PAGE = Path(__file__).parents[2] / "docs" / "appendix" / "drop_in.md"
CLASSES = {"binary": 2, "multiclass": 3, "regression": 0, "lambdarank": 2}


def saved(heading, folder):
    """Save the first block of a section as the module that it names; import it."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1]
    text = text.split("\n## ")[0]
    (name,) = re.findall(r"^Save this as `(\w+)\.py`", text, re.MULTILINE)
    code = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[0]
    file = folder / f"{name}.py"
    file.write_text(code, encoding="utf-8")
    assert f"`import {name} as " in text
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def data(classes, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(900, 6)).round(2)
    X[rng.random(X.shape) < 0.05] = np.nan
    score = np.nan_to_num(X[:, 0] - X[:, 1])
    y = score if not classes else np.digitize(score, [-0.5, 0.5][: classes - 1])
    return X, y


@pytest.fixture
def lightgbm():
    return pytest.importorskip("lightgbm")


def train(lightgbm, objective, file):
    X, y = data(CLASSES[objective])
    parameters = {"objective": objective, "verbose": -1, "num_threads": 1}
    if objective == "multiclass":
        parameters["num_class"] = 3
    group = [90] * 10 if objective == "lambdarank" else None
    booster = lightgbm.train(parameters, lightgbm.Dataset(X, y, group=group), 12)
    booster.save_model(file)
    return booster, X


@pytest.mark.sampled(4)
@pytest.mark.parametrize("objective", CLASSES)
@pytest.mark.parametrize("raw", [False, True])
def test_lleaves_class_has_the_answers_of_lightgbm(lightgbm, tmp_path, objective, raw):
    lleaves = saved("A class for lleaves", tmp_path)
    booster, X = train(lightgbm, objective, tmp_path / "model.txt")
    model = lleaves.Model(model_file=str(tmp_path / "model.txt"))
    assert not model.is_compiled
    with pytest.raises(RuntimeError, match=r"Run model\.compile\(\)"):
        model.predict(X)
    model.compile(cache=tmp_path / "m.bin", raw_score=raw, fblocksize=34, finline=False)
    own = booster.predict(X, raw_score=raw)
    for found in (model.predict(X), model.predict(X, n_jobs=1)):
        assert found.dtype == np.float64
        assert_array_equal(found, own)
    assert_array_equal(model.predict(X[:3].tolist(), n_jobs=2), own[:3])
    assert model.num_feature() == booster.num_feature()
    assert model.num_trees() == booster.num_trees()
    assert model.num_model_per_iteration() == booster.num_model_per_iteration()


def test_lleaves_class_takes_frames_and_gives_float32_if_asked(lightgbm, tmp_path):
    pandas = pytest.importorskip("pandas")
    lleaves = saved("A class for lleaves", tmp_path)
    X, y = data(2)
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    frame["c"] = pandas.Categorical.from_codes(np.arange(len(X)) % 3, ["x", "y", "z"])
    parameters = {"objective": "binary", "verbose": -1, "num_threads": 1}
    booster = lightgbm.train(parameters, lightgbm.Dataset(frame, y), 12)
    booster.save_model(tmp_path / "model.txt")
    model = lleaves.Model(tmp_path / "model.txt")
    model.compile(use_fp64=False)
    found = model.predict(frame)
    assert found.dtype == np.float32
    assert_array_equal(found, booster.predict(frame).astype(np.float32))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "objective", ["binary:logistic", "multi:softprob", "reg:squarederror", "rank:ndcg"]
)
@pytest.mark.parametrize("margin", [False, True])
def test_tl2cgen_classes_have_the_answers_of_xgboost(tmp_path, objective, margin):
    xgboost = pytest.importorskip("xgboost")
    tl2cgen = saved("Classes for tl2cgen", tmp_path)
    classes = {"multi:softprob": 3, "reg:squarederror": 0}.get(objective, 2)
    X, y = data(classes)
    parameters = {"objective": objective, "nthread": 1, "max_depth": 4}
    if objective == "multi:softprob":
        parameters["num_class"] = classes
    qid = np.repeat(np.arange(10), 90) if objective == "rank:ndcg" else None
    booster = xgboost.train(parameters, xgboost.DMatrix(X, y, qid=qid), 12)
    booster.save_model(tmp_path / "model.json")

    library = tmp_path / "model.skforge"
    tl2cgen.export_lib(tmp_path / "model.json", toolchain="gcc", libpath=library)
    predictor = tl2cgen.Predictor(library, nthread=1, verbose=True)
    own = booster.predict(xgboost.DMatrix(X), output_margin=margin)
    outputs = own.size // len(X)
    X = X.astype(np.float32)
    forms = (
        tl2cgen.DMatrix(X),
        tl2cgen.DMatrix(X.astype(np.float64), dtype="float32"),
        tl2cgen.DMatrix(np.nan_to_num(X, nan=-99.0), missing=-99.0),
        # what is absent is missing, to XGBoost and to tl2cgen
        tl2cgen.DMatrix(csr_matrix(np.nan_to_num(X, nan=0.0))),
    )
    sparse = np.where(np.nan_to_num(X, nan=0.0) == 0, np.nan, X)
    other = booster.predict(xgboost.DMatrix(sparse), output_margin=margin)
    for rows, expected in zip(forms, (own, own, own, other), strict=True):
        found = predictor.predict(rows, pred_margin=margin)
        assert rows.shape == (900, 6)
        assert found.shape == (900, 1, outputs)
        assert found.dtype == np.float32
        assert_array_equal(found.reshape(own.shape), expected)
    assert (predictor.num_feature, predictor.num_target) == (6, 1)
    assert_array_equal(predictor.num_class, [outputs])
    assert (predictor.threshold_type, predictor.leaf_output_type) == ("float32",) * 2


def test_tl2cgen_classes_read_boosters_of_lightgbm(lightgbm, tmp_path):
    tl2cgen = saved("Classes for tl2cgen", tmp_path)
    booster, X = train(lightgbm, "multiclass", tmp_path / "model.txt")
    tl2cgen.export_lib(booster, libpath=tmp_path / "model.skforge")
    predictor = tl2cgen.Predictor(str(tmp_path / "model.skforge"))
    found = predictor.predict(tl2cgen.DMatrix(X))
    assert_array_equal(found, booster.predict(X)[:, None, :])
    assert predictor.leaf_output_type == "float64"
