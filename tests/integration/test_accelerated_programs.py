"""What scikit-learn and a service ask of models: the bytes with and without kernels."""

from __future__ import annotations

import logging
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import (
    AdaBoostClassifier,
    GradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
)
from sklearn.inspection import PartialDependenceDisplay, permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skforge
from benchmarks import own_tests_plugin
from skforge.acceleration import patching
from skforge.acceleration.kernels import unlike
from skforge.acceleration.records import GONE, record_of

APP = Path(__file__).parents[2] / "benchmarks" / "unedited" / "app.py"
X = np.random.default_rng(0).normal(size=(120, 4))
Y = (X[:, 0] + X[:, 1] > 0).astype(int)


def forest() -> Any:
    return RandomForestClassifier(3, max_depth=3, random_state=0)


def importances() -> Any:
    model = forest().fit(X, Y)
    return permutation_importance(model, X, Y, n_repeats=2, random_state=0).importances


def dependence() -> Any:
    pytest.importorskip("matplotlib").use("agg")
    how: Any = {"features": [0], "grid_resolution": 4}
    shown = PartialDependenceDisplay.from_estimator(forest().fit(X, Y), X, **how)
    return shown.pd_results[0]["average"]


def folds() -> Any:
    return cross_val_predict(forest(), X, Y, cv=2, method="predict_proba")


def stack() -> Any:
    parts = [
        ("a", forest()),
        ("b", GradientBoostingClassifier(n_estimators=2, random_state=0)),
    ]
    model = StackingClassifier(parts, LogisticRegression(), cv=2).fit(X, Y)
    return model.predict_proba(X)


def search() -> Any:
    line = make_pipeline(StandardScaler(), forest())
    grid = {"randomforestclassifier__n_estimators": [2, 3]}
    found = GridSearchCV(line, grid, cv=2, scoring="neg_log_loss").fit(X, Y)
    return np.vstack([found.predict_proba(X), found.cv_results_["mean_test_score"][:2]])


def service() -> Any:
    pytest.importorskip("fastapi")
    joblib.dump(forest().fit(X, Y), "model.joblib")
    predict = runpy.run_path(str(APP))["predict"]
    return np.array(predict(X.tolist()))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let kernels answer each call of a model that they can, also the first."""
    monkeypatch.setattr(patching, "answering", patching.answering)  # as it was, later
    monkeypatch.setenv("SKFORGE_ACCELERATE", "1")
    GONE.clear()
    yield
    skforge.restore()
    GONE.clear()


@pytest.mark.parametrize(
    "program", [importances, dependence, folds, stack, search, service]
)
def test_programs_give_the_same_bytes(
    kernels: None,
    program: Callable[[], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = program()
    own_tests_plugin.pytest_configure()
    assert unlike(program(), expected) == ""
    report = skforge.acceleration_report()
    assert sum(line.kernel_calls for line in report) > 0
    assert not any(line.differed for line in report)


def test_boosted_models_of_other_kinds_are_left_without_a_complaint(
    kernels: None, caplog: pytest.LogCaptureFixture
) -> None:
    own_tests_plugin.pytest_configure()
    for other in (DummyClassifier(strategy="prior"), LogisticRegression()):
        model = AdaBoostClassifier(other, n_estimators=2).fit(X, Y)
        model.predict(X)
        record = record_of(model)
        assert record is not None and record.why.startswith(
            f"not compiled: AdaBoostClassifier over {type(other).__name__} cannot be"
        )
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_classes_of_catboost_come_as_a_column(kernels: None) -> None:
    catboost = pytest.importorskip("catboost")
    options: Any = {"iterations": 3, "verbose": 0, "allow_writing_files": False}
    classes = (X[:, 0] * 2).astype(int)
    model = catboost.CatBoostClassifier(depth=2, **options).fit(X, classes)
    expected = model.predict(X)
    own_tests_plugin.pytest_configure()
    assert unlike(model.predict(X), expected) == ""
    assert [line.kernel_calls for line in skforge.acceleration_report()] == [1]
