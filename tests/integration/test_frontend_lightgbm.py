"""Tests of ``unit/test_frontend_lightgbm.py`` that compile or start processes."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from skforge.exceptions import UnsupportedModelError
from skforge.forest.arrays import ZERO_THRESHOLD, Comparison, Missing
from skforge.frontends import load_forest
from tests.unit.test_frontend_lightgbm import (
    SCHEDULES,
    N,
    check_booster,
    make_rows,
    make_target,
    model_text,
    odd_rows,
    train,
)

lgb = pytest.importorskip("lightgbm")


def missing_types(booster):
    """Return the missing types of the nodes that have thresholds."""
    lines = re.findall(r"decision_type=(.*)", booster.model_to_string())
    kinds = [int(kind) for line in lines for kind in line.split()]
    return {kind >> 2 for kind in kinds if not kind & 1}


MISSING = {
    "none": ({"use_missing": False}, 0, Missing.NEVER),
    "zero": ({"zero_as_missing": True}, 1, Missing.ZERO),
    "nan": ({}, 2, Missing.NAN),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("categories", [(), (3,)], ids=["numbers", "categories"])
@pytest.mark.parametrize("objective", ["regression", "multiclass"])
def test_missing_types_and_categories_compiled(missing, categories, objective):
    X, rng = make_rows()
    y = make_target(X, rng, objective)
    options, kind, compiled = MISSING[missing]
    booster = train(
        X,
        y,
        categories=categories,
        objective=objective,
        num_class=3 if objective == "multiclass" else 1,
        cat_smooth=1,
        min_data_per_group=5,
        **options,
    )
    forest = check_booster(booster, X, compiled=("default", *SCHEDULES))
    assert missing_types(booster) >= {kind}
    if not categories and missing != "nan":
        assert set(forest.missing) == {compiled}
    assert bool((forest.comparison == Comparison.IN).any()) == bool(categories)


def test_missing_types_by_feature_become_one():
    """Features without NaN in training have the type none, the others NaN."""
    X, rng = make_rows(missing=0.0)
    y = make_target(X, rng, "regression")
    X[:, 0][rng.random(N) < 0.2] = np.nan
    booster = train(X, y)
    assert missing_types(booster) == {0, 2}
    forest = check_booster(booster, X, ("default", *SCHEDULES))
    assert set(forest.missing) == {Missing.NAN}


@pytest.mark.parametrize("seed", range(2))
def test_categories_of_every_kind(seed):
    """Unseen, negative, cut, huge and missing categories, sets of several words."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 90, (N, 2)).astype(float)
    X[rng.random(N) < 0.05, 0] = np.nan
    y = np.sin(X[:, 1]) + (np.nan_to_num(X[:, 0]) % 3)
    booster = train(
        X, y, categories=(0, 1), cat_smooth=1, min_data_per_group=2, max_bin=255
    )
    forest = load_forest(booster)
    assert (np.diff(forest.category_offset) > 1).any()
    values = np.array([-1, -0.5, -0.999999, -1e-40, -1.0000001, 0, 0.999, 1.5, 89.99])
    huge = [90, 95.5, 96, 1e5, 2**24, 2.0**31 - 1, 2.0**31, 2.0**32, 2.0**32 + 1, 1e300]
    huge += [-(2.0**31), -(2.0**32), np.nan, np.inf, -np.inf]
    values = np.concatenate([values, huge, np.arange(-3, 99)])
    rows = rng.choice(values, (1000, 2))
    check_booster(booster, rows, compiled=("default", *SCHEDULES))


@pytest.mark.sampled(10)
@pytest.mark.parametrize("missing", [0, 2, 4, 6, 8, 10])
@pytest.mark.parametrize(
    "threshold",
    [0.0, -0.0, 1e-36, -1e-36, ZERO_THRESHOLD, -ZERO_THRESHOLD, 1e-35, 2e-35, -2e-35],
)
def test_thresholds_near_zero(threshold, missing):
    """LightGBM takes |x| <= kZeroThreshold for 0.0 before any comparison."""
    trees = [f"num_leaves=2\nnum_cat=0\nsplit_feature=0\nthreshold={threshold!r}\n"]
    trees[0] += f"decision_type={missing}\nleft_child=-1\nright_child=-2\n"
    trees[0] += "leaf_value=1 2\nshrinkage=1\n"
    booster = lgb.Booster(model_str=model_text(trees))
    forest = load_forest(booster)
    compiled = ("default", "vectorized") if threshold == -1e-36 else ()
    check_booster(booster, odd_rows(forest, 200), compiled, forest)


def test_trees_of_one_leaf():
    X, rng = make_rows()
    booster = train(X, np.full(N, 3.25))
    forest = check_booster(booster, X, ("default",))
    assert forest.n_nodes == forest.n_trees >= 1
    booster = train(X, make_target(X, rng, "regression"), min_data_in_leaf=190)
    check_booster(booster, X)


def test_overridden_predict():
    class Mine(lgb.LGBMRegressor):
        def predict(self, X):
            return super().predict(X) + 1

    X, rng = make_rows()
    model = Mine(n_estimators=1, verbose=-1).fit(X, make_target(X, rng, ""))
    with pytest.raises(UnsupportedModelError) as info:
        load_forest(model)
    assert str(info.value) == (
        "Mine overrides predict, so its predictions cannot be reproduced."
    )


def test_custom_objective_of_a_classifier():
    def nothing(y_true, y_pred):
        return y_pred - y_true, np.ones(len(y_true))

    X, rng = make_rows()
    model = lgb.LGBMClassifier(objective=nothing, n_estimators=1, verbose=-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, make_target(X, rng, "binary").astype(int))
    assert load_forest(model).task == "regression"  # raw scores are all it has
    check_booster(model.booster_, X)


def test_early_stopping_of_predictions():
    X, rng = make_rows()
    model = lgb.LGBMRegressor(n_estimators=1, verbose=-1, pred_early_stop=True)
    model.fit(X, make_target(X, rng, "regression"))
    with pytest.raises(UnsupportedModelError) as info:
        load_forest(model)
    assert str(info.value) == (
        "This LGBMRegressor predicts with pred_early_stop=True, which skips trees; "
        "call set_params(pred_early_stop=False)."
    )
    assert load_forest(model.set_params(pred_early_stop=False)).n_trees == 1
