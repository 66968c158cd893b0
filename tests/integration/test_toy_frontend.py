"""A frontend needs its own folder and nothing else: ``tests/toy_frontend.py``."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import skforge
from skforge import CompiledForest, compile_forest, load_forest
from skforge.frontends import base
from tests import toy_frontend
from tests.answers_of import decide, predict_proba
from tests.toy_frontend import ToyClassifier

del base._REGISTRY["toy"]  # other tests list the frontends there are
random = np.random.default_rng(0)
X = random.standard_normal((200, 3))
X[random.random(X.shape) < 0.1] = np.nan


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(base._REGISTRY, "toy", toy_frontend.FRONTEND)


@pytest.fixture
def model():
    features = random.integers(3, size=40).tolist()
    numbers = random.standard_normal((40, 3)).tolist()
    return ToyClassifier(
        [[f, *three] for f, three in zip(features, numbers, strict=True)], 3
    )


def assert_equal(found, expected):
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_a_compiled_module_predicts_the_same_bits(model):
    forest = load_forest(model)
    assert repr(forest).startswith("<Forest toy binary: 40 trees, ")
    module = compile_forest(forest)
    raw = module.predict_raw(X)
    assert_equal(raw, model.scores(X))
    assert_equal(module.predict(X), model.predict_proba(X)[:, 1])
    assert_equal(predict_proba(forest, raw), model.predict_proba(X))
    assert_equal(np.array(model.labels, object)[decide(forest, raw)], model.predict(X))


def test_its_outputs_have_compiled_entries(model):
    module = compile_forest(load_forest(model))
    module.compile_all()
    assert_equal(module.entry("raw")(X), model.scores(X))
    assert_equal(module.entry("transformed")(X), model.predict_proba(X)[:, 1])
    assert_equal(module.entry("probabilities")(X), model.predict_proba(X))
    assert_equal(
        module.entry("labels")(X), (model.predict(X) == "yes").astype(np.int64)
    )


def test_an_estimator_of_its_file_answers_with_labels(model, tmp_path):
    model.save(tmp_path / "model.toy")
    fast = CompiledForest(tmp_path / "model.toy", tuning="off").fit(X)
    for n in (1, 200, 1):  # by a kernel, and then by an entry
        assert_equal(fast.predict(X[:n]), model.predict(X[:n]))
        assert_equal(fast.predict_proba(X[:n]), model.predict_proba(X[:n]))
    assert fast.classes_.tolist() == ["no", "yes"]


def test_it_is_saved(model, tmp_path):
    forest = load_forest(model)
    skforge.save(forest, tmp_path / "m.skforge")
    for again in (
        skforge.load(tmp_path / "m.skforge"),
        pickle.loads(pickle.dumps(forest)),
    ):
        assert again.outputs == forest.outputs
        assert again.content_hash() == forest.content_hash()


def test_it_is_exported(model, tmp_path):
    made = skforge.export(load_forest(model), tmp_path / "m", kind="c", name="m")
    assert made is not None
    assert "predict_class" in (tmp_path / "m" / "m.h").read_text()
