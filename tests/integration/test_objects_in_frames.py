"""Values of object columns: numbers to scikit-learn, whatever they are."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.ensemble import AdaBoostClassifier, AdaBoostRegressor

from tests.compared_calls import difference
from tests.comparing import assert_alike, in_every_state
from tests.kinds import CLASSIFIERS, ISOLATION
from tests.plain import plain

NAMES = ["a", "b", "c", "d"]
BIG = 2**53 + 1  # the first integer that float64 does not hold


def numbers(n):
    X = np.random.default_rng(0).normal(size=(n, 4)) * 3
    X[:, 2] = np.round(X[:, 2])
    return X


def frame(X):
    return pd.DataFrame(X, columns=NAMES)


def _target(X):
    return (X[:, 0] + X[:, 2] > 0).astype(int)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("name", ["forest", "hist", "adaboost", "isolation"])
def test_objects_are_numbers_to_scikit_learn(name, gaps):
    X = numbers(200)
    X[::9, 0] = np.nan if gaps and name in ("forest", "isolation") else 0.5
    model = {**CLASSIFIERS, "isolation": ISOLATION}[name]
    model = clone(model).fit(frame(X), _target(np.nan_to_num(X)))
    fast = plain(model).fit(frame(X))
    odd = [None, np.nan, True, np.bool_(False), 3, 2**24 + 1, BIG, 1e300, np.inf]
    odd += [np.float32(0.1), np.int64(BIG), Decimal("0.1"), Decimal("sNaN")]
    odd += ["1", "x", pd.NA, 1j, 10**400]
    objects = frame(X).astype(object)
    rows = [objects, objects[:1], objects.assign(b=frame(X).b)]
    for value in odd:
        one = objects[:3].copy()
        one.iloc[0, 0] = value
        rows += [one, one[:1], one.astype({"c": int}), one.astype({"d": "Float64"})]
    for row in rows:
        assert not difference(fast.predict, model.predict, row)
    before = fast.counters()["library"]["calls"]
    fast.predict(rows[0]), fast.predict(rows[1])
    assert fast.counters()["library"]["calls"] == before
    assert fast._predictor.source.read(rows[1]) is not None


@pytest.mark.parametrize("kind", [AdaBoostClassifier, AdaBoostRegressor])
@pytest.mark.parametrize("form", [np.asarray, pd.DataFrame, np.ndarray.tolist])
def test_none_is_a_missing_value_to_the_trees_of_adaboost(kind, form, tmp_path):
    """Its own check lets None pass."""
    X = numbers(150)
    y = X[:, 0] + X[:, 1]
    y = y > 0 if kind is AdaBoostClassifier else y
    model = kind(n_estimators=7, random_state=0).fit(X, y)
    objects = X.astype(object)
    objects[np.random.default_rng(1).random(X.shape) < 0.3] = None
    states = in_every_state(plain(model).fit(X), tmp_path)
    for fast in states.values():
        assert_alike(fast, model, form(objects))
    raws = [fast.predict_raw(form(X[:1])) for fast in states.values()]
    assert len({raw.strides for raw in raws}) == 1
    for objects[3, 1] in (np.nan, np.inf):
        for fast in (model, *states.values()):
            with pytest.raises(ValueError, match=r"contains (NaN|infinity)"):
                fast.predict(form(objects))
