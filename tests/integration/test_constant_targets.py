"""Models whose target was constant, as of one shop or one label: saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.ensemble import VotingClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline

import skforge
from tests.kinds import CLASSIFIERS, SCALER, THREE, X
from tests.plain import plain

NONE = np.zeros(len(X), int)
TARGETS = {
    "zeros": NONE,
    "texts": np.full(len(X), "a"),
    "one of two": np.column_stack([THREE, NONE]),
}
METHODS = "predict", "predict_proba", "predict_log_proba", "decision_function"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["hist", "lightgbm", "xgboost"])
def test_saved_models(name: str, target: str, tmp_path: Path) -> None:
    model, y = CLASSIFIERS[name], TARGETS[target]
    if y.ndim > 1:
        models = [MultiOutputClassifier(model)]
    else:
        models = [model, VotingClassifier([("a", model)])]
    compared = 0
    for part in (*models, make_pipeline(SCALER, models[0])):
        own: Any = clone(part)
        try:
            own.fit(X, y)
        except ValueError:  # the library refuses such a target
            continue
        fast = plain(own).fit(X)
        skforge.save(fast, tmp_path / "a.skforge")
        loaded = skforge.load(tmp_path / "a.skforge")
        for method in METHODS:
            if hasattr(own, method):
                expected = getattr(own, method)(X)
                for one in (fast, loaded):
                    found = getattr(one, method)(X)
                    pairs = [(found, expected)]
                    if isinstance(expected, list):
                        pairs = [*zip(found, expected, strict=True)]
                    for got, wanted in pairs:
                        assert got.dtype == wanted.dtype
                        assert_array_equal(got, wanted)
                    compared += 1
    assert compared or name == "xgboost"


def test_entries_have_a_label_for_each_class() -> None:
    """Code that chooses one of two classes never reads a table with one label."""
    from skforge.engine.entry.entry import _labels

    assert _labels(np.array([5])) is None
    assert _labels(np.array([0])) is None
    assert _labels(np.array([5, 7])) == (5, 7)
