"""AdaBoost's own check lets None pass, and its trees take it for a missing value."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import AdaBoostClassifier, AdaBoostRegressor

import skforge
from tests.plain import plain

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(150, 3))


@pytest.mark.parametrize("kind", [AdaBoostClassifier, AdaBoostRegressor])
@pytest.mark.parametrize("form", [np.asarray, pd.DataFrame, np.ndarray.tolist])
def test_none_among_objects(kind, form, tmp_path):
    y = X[:, 0] + X[:, 1]
    y = (y > 0).astype(int) if kind is AdaBoostClassifier else y
    model = kind(n_estimators=7, random_state=0).fit(X, y)
    objects = X.astype(object)
    objects[RANDOM.random(X.shape) < 0.3] = None
    rows = form(objects)
    live = plain(model).fit(X)
    skforge.save(live, tmp_path / "model.skforge")
    loaded = skforge.load(tmp_path / "model.skforge")
    for fast in (live, loaded, plain(model).fit(X).drop_estimator()):
        for method in ("predict", "predict_proba", "decision_function"):
            if hasattr(model, method):
                found, wanted = (
                    getattr(fast, method)(rows),
                    getattr(model, method)(rows),
                )
                assert found.dtype == wanted.dtype
                assert found.tobytes() == wanted.tobytes()
    one = [
        fast.predict_raw(rows[:1])
        for fast in (live, loaded)
        for rows in (X, X.astype(object))
    ]
    assert {raw.strides for raw in one} == {one[0].strides}
    for refused in (np.nan, np.inf):
        other = objects.copy()
        other[3, 1] = refused
        for fast in (model, live, loaded):
            with pytest.raises(ValueError, match=r"contains (NaN|infinity)"):
                fast.predict(form(other))
