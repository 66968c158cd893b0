"""Tests of ``unit/test_combine.py`` that compile or start processes."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from skforge import Schedule, compile_forest, load_forest
from skforge.forest.forest import Forest
from tests.unit.test_combine import ROUNDS, X, Y, same_bits


def compiled(forest):
    return compile_forest(forest, schedule=Schedule())


# ------------------------------------------------------------ select_trees


@pytest.mark.parametrize("booster", ["gbtree", "dart", "parallel"])
def test_the_first_rounds_are_those_of_xgboost(booster):
    xgb = pytest.importorskip("xgboost")
    params = {
        "gbtree": {"objective": "multi:softprob", "num_class": 3},
        "dart": {"booster": "dart", "rate_drop": 0.5, "objective": "reg:squarederror"},
        "parallel": {"num_parallel_tree": 2, "subsample": 0.5},
    }[booster]
    data = xgb.DMatrix(X, Y)
    model = xgb.train({"max_depth": 3, "seed": 0, **params}, data, 6)
    forest = load_forest(model)
    for k in ROUNDS:
        few = forest.select_trees(slice(0, k * forest.n_trees // 6))
        own = model.predict(data, iteration_range=(0, k))
        same_bits(compiled(few).predict(X), own)
        assert few.content_hash() == (
            load_forest(model, iteration_range=(0, k)).content_hash()
        )


@pytest.mark.parametrize("kind", ["binary", "multiclass", "rf"])
def test_the_first_rounds_are_those_of_lightgbm(kind):
    lgb = pytest.importorskip("lightgbm")
    params = {"objective": kind, "num_class": 3 if kind == "multiclass" else 1}
    if kind == "rf":
        params = {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}
    rows = X.astype(np.float64)
    data = lgb.Dataset(rows, Y if kind == "multiclass" else Y > 0)
    model = lgb.train({"verbose": -1, "num_leaves": 5, **params}, data, 6)
    forest = load_forest(model)
    for k in ROUNDS:
        few = forest.select_trees(range(k * forest.n_trees // 6))
        same_bits(compiled(few).predict(rows), model.predict(rows, num_iteration=k))
    if kind == "rf":
        assert few.outputs.divisor == 6


@pytest.mark.parametrize("kind", [RandomForestClassifier, RandomForestRegressor])
def test_the_first_estimators_are_those_of_scikit_learn(kind):
    model = kind(6, max_depth=4, random_state=0).fit(X, Y)
    for k in ROUNDS:
        few = copy.copy(model)
        few.estimators_ = model.estimators_[:k]
        module = compiled(load_forest(model).select_trees(slice(k)))
        assert module.forest.divisor == k
        raw = few.predict_proba(X) if hasattr(few, "predict_proba") else few.predict(X)
        same_bits(module.predict_raw(X), raw)


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
