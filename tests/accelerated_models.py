"""Small models under ``accelerate()``, compiled in the call that may be the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import ensemble
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skforge import Schedule
from skforge.acceleration import api
from skforge.acceleration.records import record_of
from skforge.acceleration.settings import Settings
from tests.compared_calls import called

lgb, xgb = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
catboost = pytest.importorskip("catboost")

random = np.random.default_rng(0)
X = random.normal(size=(200, 5))
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
OTHER = random.normal(size=(50, 5))
FRAME = pd.DataFrame(X, columns=[*"abcde"])
EAGER = Settings(min_calls=1, eager=True, schedule=Schedule())
FEW: dict[str, Any] = {"n_estimators": 4, "max_depth": 3, "random_state": 0}
LIGHT = {"n_estimators": 4, "min_child_samples": 5, "verbose": -1, "n_jobs": 1}
CAT = {"iterations": 4, "depth": 3, "verbose": 0, "allow_writing_files": False}
SCALED = make_pipeline(StandardScaler(), ensemble.RandomForestClassifier(**FEW))
MODELS: dict[str, Any] = {
    "forest": ensemble.RandomForestClassifier(**FEW),
    "forest of values": ensemble.RandomForestRegressor(**FEW),
    "extra": ensemble.ExtraTreesClassifier(**FEW),
    "boosting": ensemble.GradientBoostingClassifier(**FEW),
    "histogram": ensemble.HistGradientBoostingClassifier(max_iter=4),
    "isolation": ensemble.IsolationForest(n_estimators=4, random_state=0),
    "adaboost": ensemble.AdaBoostClassifier(n_estimators=4, random_state=0),
    "xgboost": xgb.XGBClassifier(n_estimators=4, max_depth=3, n_jobs=1),
    "lightgbm": lgb.LGBMClassifier(**LIGHT),
    "catboost": catboost.CatBoostClassifier(**CAT),
    "pipeline": SCALED,
}
METHODS = ("predict", "predict_proba", "decision_function", "score_samples")


def forest(**more: Any) -> Any:
    return ensemble.RandomForestClassifier(**FEW, **more).fit(X, Y)


def by_kernels(model: Any) -> int:
    """Return how many calls of a model kernels have answered."""
    record = record_of(model)
    tallies = {} if record is None else record.tallies
    sides = [(tally.before, *tally.by_kernels.values()) for tally in tallies.values()]
    return sum(calls for side in sides for calls, _, _ in side)


def warm(model: Any, rows: Any = X, method: str = "predict_proba") -> Any:
    """Ask until kernels answer."""
    before = by_kernels(model)
    for _ in range(3):
        answer = getattr(model, method)(rows)
    assert by_kernels(model) > before, record_of(model) and record_of(model).why
    return answer


def plainly(call: Callable[[Any], Any], model: Any) -> Any:
    """Return what a call gives without acceleration; what was compiled stays."""
    api.ACTIVE.thread.inside = True
    try:
        return called(call, model)
    finally:
        api.ACTIVE.thread.inside = False
