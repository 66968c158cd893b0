"""Tests of ``unit/test_api.py`` that compile or start processes."""

from __future__ import annotations

import io
import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier

import skforge
from skforge import CompiledForest, InvalidModelError
from skforge.exceptions import SkforgeError
from skforge.tuning import Tuner
from tests.plain import plain
from tests.unit.test_api import ROOT

X = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
Y = (X[:, 0] * X[:, 1] > 0).astype(int)
MODEL = RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, Y)


# ------------------------------------------------------------ tuning_budget


def test_the_old_budget_limits_the_search():
    old = CompiledForest(MODEL, tuning_budget=1.5, batch_sizes=[8])
    with pytest.warns(FutureWarning) as told:
        assert old.fit(X).tuning_result_.budget == 1.5
    (one,) = told
    assert one.filename == __file__
    assert str(one.message) == (
        "tuning_budget was deprecated in 0.2 and will be removed in 0.4; use "
        "tuning=Tuner(budget=...), with Tuner of skforge.tuning."
    )
    new = CompiledForest(MODEL, tuning=Tuner(budget=1.5, records=None))
    assert new.fit(X).tuning_result_.budget == 1.5
    with pytest.warns(FutureWarning):
        new.set_params(tuning_budget=3.0).fit(X)
    assert new.tuning_result_.budget == 1.5


def test_the_old_budget_is_a_parameter_like_others(tmp_path):
    fast = plain(MODEL)
    assert fast.get_params()["tuning_budget"] == "deprecated"
    assert "tuning_budget" not in repr(fast)
    assert fast.fit(X).set_params(tuning_budget=2).tuning_budget == 2
    skforge.save(fast, tmp_path / "a.skforge")
    for one in (
        clone(fast),
        pickle.loads(pickle.dumps(fast)),
        skforge.load(tmp_path / "a.skforge"),
    ):
        assert one.get_params()["tuning_budget"] == 2
    for value in (0, -1.0, "soon"):
        with pytest.raises(ValueError, match="'tuning_budget' parameter of") as error:
            fast.set_params(tuning_budget=value).fit(X)
        assert "deprecated" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 2.0),
        ({"tuning": Tuner(budget=3.0)}, 1.5),
        ({"tuning": "random", "tuning_budget": 1.0}, 0.5),
    ],
    ids=["none", "tuner", "old"],
)
def test_members_share_the_budget(options, seconds, monkeypatch):
    monkeypatch.delenv("SKFORGE_TUNING_SECONDS", raising=False)
    steps = make_pipeline(PCA(2), DecisionTreeClassifier(max_depth=2))
    models = [("a", steps), ("b", RandomForestClassifier(2, max_depth=2))]
    model = VotingClassifier(models, voting="soft").fit(X, Y)
    fast = CompiledForest(model, batch_sizes=[4], **options)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fast.fit(X)
    assert fast.tuning_result_.budget == seconds
    old = [one for one in told if one.category is FutureWarning]
    assert len(old) == ("tuning_budget" in options)


# ------------------------------------------------------------ files for the others

DATA = ROOT / "tests" / "data"


def written(library, folder):
    if library == "XGBoost":
        from xgboost import XGBClassifier

        XGBClassifier(n_estimators=1).fit(X, Y).save_model(folder / "m.json")
        return folder / "m.json"
    if library == "LightGBM":
        from lightgbm import LGBMClassifier

        model = LGBMClassifier(n_estimators=1, verbose=-1).fit(X, Y)
        model.booster_.save_model(folder / "m.txt")
        return folder / "m.txt"
    return next((DATA / "onnx_models").glob("*.onnx"))


@pytest.mark.parametrize("library", ["XGBoost", "LightGBM", "ONNX"])
def test_load_names_the_library_and_the_function(library, tmp_path):
    if library != "ONNX":
        pytest.importorskip(library.lower())
    path = written(library, tmp_path)
    content = path.read_bytes()
    for given, name in (
        (path, path),
        (str(path), path),
        (content, "This bytes object"),
        (io.BytesIO(content), "This BytesIO object"),
    ):
        with pytest.raises(InvalidModelError) as error:
            skforge.load(given)
        assert str(error.value) == (
            f"{name} is a model of {library}, not a .skforge file, which skforge.save "
            "writes. For a model of another library, use compile_forest(path) or "
            "CompiledForest(path).fit(X)."
        )
    assert skforge.compile_forest(path).forest.n_trees


@pytest.mark.parametrize("call", [skforge.load_forest, skforge.compile_forest])
def test_saved_models_are_for_load(call, tmp_path):
    path = tmp_path / "a.skforge"
    skforge.save(plain(MODEL).fit(X), path)
    with pytest.warns(FutureWarning) as told:
        call(path)
    (one,) = told
    assert one.filename == __file__
    assert str(one.message) == (
        "a.skforge was saved by skforge.save; use skforge.load(path). Reading only its "
        "trees was deprecated in 0.2 and will be an error in 0.4."
    )
    with pytest.raises(InvalidModelError, match="save; use skforge"):
        CompiledForest(path).fit(X)


def test_saved_models_of_several_forests_are_for_load(tmp_path):
    model = CalibratedClassifierCV(MODEL, cv=2).fit(X, Y)
    skforge.save(plain(model).fit(X), tmp_path / "a.skforge")
    with pytest.warns(FutureWarning), pytest.raises(SkforgeError, match="use skforge"):
        skforge.load_forest(tmp_path / "a.skforge")
