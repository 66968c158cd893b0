"""float64 rows of forests of float32: as the source casts, warns and refuses."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    IsolationForest,
)

from skforge import CompiledForest

X, Y = make_classification(200, n_classes=3, n_informative=6, random_state=0)
SOURCES = {
    "classifier": GradientBoostingClassifier(n_estimators=4, random_state=0),
    "regressor": GradientBoostingRegressor(n_estimators=4, random_state=0),
    "isolation": IsolationForest(n_estimators=4, random_state=0),
}
METHODS = ("predict", "predict_proba", "decision_function", "score_samples")


def answers(model, rows):
    """Return what every method gives, warns of and refuses."""
    found = {}
    for name in (name for name in METHODS if hasattr(model, name)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                value = getattr(model, name)(rows).tobytes()
            except ValueError as error:
                value = str(error)
        found[name] = value, [str(one.message) for one in caught]
    return found


def on_thresholds(model):
    """Return rows whose float64 values stand beside thresholds, not on them."""
    first = np.ravel(np.asarray(model.estimators_, dtype=object))[0].tree_
    inner = first.feature >= 0
    rows = np.repeat(X[:1], 3 * inner.sum(), axis=0)
    cuts = first.threshold[inner]
    sides = np.stack([cuts, np.nextafter(cuts, np.inf), np.nextafter(cuts, -np.inf)])
    rows[np.arange(len(rows)), np.tile(first.feature[inner], 3)] = sides.ravel()
    return rows


@pytest.mark.parametrize("name", SOURCES)
def test_float64_rows_are_cast_as_the_source_casts_them(name):
    source = SOURCES[name].fit(X, Y)
    compiled = CompiledForest(source).fit(X)
    odd = {}
    for value in (1e39, -1e39, np.inf, np.nan, 1e-46, np.finfo(np.float32).max):
        odd[value] = X[:3].copy()
        odd[value][1, 2] = value
    cases = [X, X[:1], X[::2], np.asfortranarray(X), on_thresholds(source)]
    for rows in (*cases, *odd.values(), X[:0], X[:, :5], X[0]):
        assert answers(compiled, rows) == answers(source, rows)
