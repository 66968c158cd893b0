"""Tests of ``unit/test_combine.py`` that compile or start processes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from skforge import Schedule, compile_forest, load_forest
from skforge.forest.forest import Forest
from tests.unit.test_combine import X, Y, same_bits


def compiled(forest):
    return compile_forest(forest, schedule=Schedule())


# ------------------------------------------------------------ select_trees


# ------------------------------------------------------------ concatenate


def test_the_halves_of_random_forests_are_the_whole():
    for kind in (RandomForestClassifier, RandomForestRegressor):
        model = kind(5, max_depth=4, random_state=0).fit(X, Y)
        forest = load_forest(model)
        halves = forest.select_trees([0]), forest.select_trees(slice(1, None))
        assert [half.divisor for half in halves] == [1, 4]
        whole = Forest.concatenate(halves)
        assert whole.content_hash() == forest.content_hash()
        trees = [load_forest(tree) for tree in model.estimators_]
        averaged = compiled(Forest.concatenate(trees, average=True))
        same_bits(averaged.predict_raw(X), compiled(forest).predict_raw(X))


def test_weights_multiply_bases_and_leaves():
    xgb = pytest.importorskip("xgboost")
    models = [
        xgb.train({"base_score": b, "seed": 0}, xgb.DMatrix(X, Y), 3) for b in (0.5, 2)
    ]
    forests = [*map(load_forest, models)]
    mean = Forest.concatenate(iter(forests), weights=[0.25, 0.75])
    by_hand = Forest.concatenate(
        replace(
            forest,
            base=forest.base * np.float32(weight),
            leaf_value=forest.leaf_value * np.float32(weight),
        )
        for forest, weight in zip(forests, (0.25, 0.75), strict=True)
    )
    assert mean.content_hash() == by_hand.content_hash()
    own = [model.predict(xgb.DMatrix(X)) for model in models]
    made = compiled(mean).predict(X)
    np.testing.assert_allclose(made, own[0] * 0.25 + own[1] * 0.75, rtol=1e-5)
