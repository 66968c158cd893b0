"""Tests of ``unit/test_transforms.py`` that compile or start processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import (
    AdaBoostClassifier,
    AdaBoostRegressor,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
)

from skforge.compiler.frontends import load_forest
from tests.outputs_of import outputs_of


def test_importing_the_transforms_loads_no_llvm():
    code = (
        "import sys, skforge.compiler.outputs.answers\n"
        "print([m for m in ('llvmlite', 'scipy.special', 'xgboost') "
        "if m in sys.modules])"
    )
    output = subprocess.check_output(
        [sys.executable, "-c", code], text=True, cwd=Path(__file__).parents[2]
    )
    assert output == "[]\n"


def models():
    """Yield models of every kind of output, and the names of their outputs."""
    random = np.random.default_rng(0)
    X = random.standard_normal((60, 3))
    two, three = (X[:, 0] > 0) * 1, np.digitize(X[:, 0], [-0.5, 0.5])
    yield RandomForestClassifier(2).fit(X, three), "identity"
    yield AdaBoostClassifier(n_estimators=2).fit(X, two), "samme"
    yield AdaBoostClassifier(n_estimators=2).fit(X, three), "samme"
    yield AdaBoostRegressor(n_estimators=2).fit(X, X[:, 1]), "weighted_median"
    yield IsolationForest(n_estimators=2).fit(X), "path_length"
    for loss, y, kind in (
        ("log_loss", two, "gb_logistic"),
        ("log_loss", three, "gb_softmax"),
        ("exponential", two, "gb_exponential"),
    ):
        yield GradientBoostingClassifier(loss=loss, n_estimators=2).fit(X, y), kind
    for y, kind in ((two, "hist_logistic"), (three, "hist_softmax")):
        yield HistGradientBoostingClassifier(max_iter=2).fit(X, y), kind
    poisson = HistGradientBoostingRegressor(loss="poisson", max_iter=2)
    yield poisson.fit(X, three), "hist_exp"


def check_outputs(forest, name):
    spec = forest.outputs
    fitted = ["divisor", "cutoff"]
    if name in ("samme", "path_length", "logistic"):
        fitted.append("parameter")
    if name == "weighted_median":
        fitted.append("weights")
    constants = {constant: getattr(spec, constant) for constant in fitted}
    task, source = forest.task, forest.source
    assert spec == outputs_of(name, task, source, forest.n_outputs, **constants)


def test_frontends_fill_the_outputs_of_their_library():
    for model, name in models():
        check_outputs(load_forest(model), name)


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_frontends_of_libraries_fill_the_outputs_of_their_library(library):
    module = pytest.importorskip(library)
    prefix = {"xgboost": "XGB", "lightgbm": "LGBM"}[library]
    X = np.random.default_rng(0).standard_normal((60, 3))
    labels = [(X[:, 0] > 0) * 1, np.digitize(X[:, 0], [-0.5, 0.5])]
    if library == "xgboost":
        labels += [np.stack([labels[0], 1 - labels[0]], axis=1)]
    made = [(f"{prefix}Classifier", y) for y in labels]
    for name, y in [*made, (f"{prefix}Regressor", X[:, 1])]:
        quiet = {"verbose": -1} if library == "lightgbm" else {}
        forest = load_forest(getattr(module, name)(n_estimators=2, **quiet).fit(X, y))
        check_outputs(forest, forest.outputs.function)
