"""Bagging over models of every library: scikit-learn's bits, whatever members get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import ensemble as e
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.comparing import assert_alike
from tests.kinds import SCORE, Z
from tests.plain import plain

xgb = pytest.importorskip("xgboost")
lgb = pytest.importorskip("lightgbm")
cb = pytest.importorskip("catboost")

CAT: dict[str, Any] = {"iterations": 3, "verbose": 0, "allow_writing_files": False}
LIGHT: dict[str, Any] = {"n_estimators": 3, "verbose": -1, "n_jobs": 1}
LETTERS = np.array(list("abcd"))[np.digitize(SCORE, [-2.0, -0.5, 0.5])]
CLASSIFIERS = {
    "xgboost": xgb.XGBClassifier(n_estimators=3, n_jobs=1),
    "lightgbm": lgb.LGBMClassifier(**LIGHT),
    "linear": lgb.LGBMClassifier(linear_tree=True, **LIGHT),
    "catboost": cb.CatBoostClassifier(**CAT),
    "histogram": e.HistGradientBoostingClassifier(max_iter=3),
    "boosted": e.GradientBoostingClassifier(n_estimators=3),
    "adaboost": e.AdaBoostClassifier(n_estimators=3),
    "pipeline": make_pipeline(StandardScaler(), e.RandomForestClassifier(3)),
}
REGRESSORS = {
    "xgboost": xgb.XGBRegressor(n_estimators=3, n_jobs=1),
    "lightgbm": lgb.LGBMRegressor(**LIGHT),
    "catboost": cb.CatBoostRegressor(**CAT),
    "histogram": e.HistGradientBoostingRegressor(max_iter=3),
    "boosted": e.GradientBoostingRegressor(n_estimators=3),
    "medians": e.AdaBoostRegressor(n_estimators=3),
    "pipeline": make_pipeline(StandardScaler(), e.RandomForestRegressor(3)),
}
WAYS: dict[str, dict[str, Any]] = {
    "all": {},
    "some columns": {"max_features": 0.5},
    "columns twice": {"max_features": 0.8, "bootstrap_features": True},
    "few rows": {"max_samples": 12, "bootstrap": False},
}


def check(model: Any) -> Any:
    fast = plain(model).fit(Z)
    assert None not in fast._split.compiled
    methods = ("predict", "predict_proba", "predict_log_proba")
    assert_alike(fast, model, Z, Z[:1], methods=methods)
    return fast


@pytest.mark.sampled(5)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("member", CLASSIFIERS)
def test_classifiers(member: str, way: str) -> None:
    bag = e.BaggingClassifier(CLASSIFIERS[member], 3, random_state=0, **WAYS[way])
    check(bag.fit(Z, LETTERS))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("member", REGRESSORS)
def test_regressors(member: str, way: str) -> None:
    bag = e.BaggingRegressor(REGRESSORS[member], 3, random_state=0, **WAYS[way])
    check(bag.fit(Z, SCORE))


def test_members_that_lack_classes() -> None:
    """Pipelines take no weights, so that each gets some rows alone."""
    bag = e.BaggingClassifier(CLASSIFIERS["pipeline"], 4, max_samples=6, random_state=0)
    bag.fit(Z, LETTERS)
    assert min(len(member.classes_) for member in bag.estimators_) < len({*LETTERS})
    check(bag)
