"""``np.seterr`` is for users' arithmetic: skforge's own may round and underflow."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer

import skforge
from skforge import CompiledForest, compile_forest
from skforge.tuning import Tuner
from tests.plain import plain

pytestmark = pytest.mark.doors

random = np.random.default_rng(0)
X = random.normal(size=(300, 5)) * np.logspace(-3, 3, 5)
FOREST = RandomForestClassifier(5, max_depth=4, random_state=0)
BINS = KBinsDiscretizer(4, encode="onehot-dense", quantile_method="linear")
MODELS = [FOREST, make_pipeline(BINS, FOREST)]


@pytest.mark.filterwarnings("error::skforge.exceptions.VerificationWarning")
@pytest.mark.parametrize("model", MODELS, ids=["forest", "pipeline"])
def test_errors_of_floats_are_about_the_users_arithmetic(tmp_path, model):
    model.fit(X, X[:, 0] > 0)
    expected, frame = model.predict_proba(X), X.astype(np.float32)
    with np.errstate(all="raise"):
        made = CompiledForest(model, tuning="off") if model is FOREST else plain(model)
        fast = made.fit(X).warm_up()
        assert np.array_equal(fast.predict_proba(X), expected)
        assert np.array_equal(fast.predict_proba(frame), model.predict_proba(frame))
        skforge.save(fast, tmp_path / "model.skforge")
        loaded = skforge.load(tmp_path / "model.skforge").warm_up()
        assert np.array_equal(loaded.predict_proba(X), expected)
        assert np.array_equal(fast.drop_estimator().predict_proba(X), expected)


def test_a_module_and_a_search(tmp_path):
    FOREST.fit(X, X[:, 0] > 0)
    with np.errstate(all="raise"):
        module = compile_forest(FOREST)
        module.warm_up()
        skforge.export(module, tmp_path / "exported")
        found = Tuner(budget=0.2).tune(module.forest, X)
        with pytest.raises(FloatingPointError):
            _ = np.float64(1e-300) * np.float64(1e-300)
    assert found.table
