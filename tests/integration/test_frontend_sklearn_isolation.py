"""IsolationForest: the same bits as its score_samples, decision_function, predict."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import config_context
from sklearn.ensemble import IsolationForest, RandomForestRegressor

from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.reference import reference_raw
from skforge.frontends import load_forest
from tests.answers_of import apply_transform, decision_function, score_samples
from tests.sklearn_rows import kernels_agree, same_bits, tie_rows

PARAMS = [
    {},
    {"max_samples": 1},
    {"max_samples": 2},
    {"max_samples": 17, "max_features": 2},
    {"contamination": 0.2, "max_features": 0.5, "bootstrap": True},
]


@pytest.fixture(scope="module")
def X():
    X = np.random.default_rng(0).normal(size=(400, 5))
    X[::9, 2] = np.nan
    return X


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_scores(X, params):
    model = IsolationForest(n_estimators=11, random_state=0, **params).fit(X)
    forest = load_forest(model)
    assert forest.task == "outlier"
    rows = tie_rows(forest, 250, missing=0.1)
    rows[:4, 0] = np.inf, -np.inf, 1e300, -1e300
    raw, leaves = kernels_agree(forest, rows)
    for n in (1, 2, len(rows)):
        part, cut = rows[:n], raw[:n]
        same_bits(score_samples(forest, cut), model.score_samples(part))
        same_bits(decision_function(forest, cut), model.decision_function(part))
        same_bits(apply_transform(forest, cut), model.predict(part))
    drawn = model.estimators_features_[3]
    own = rows[:, drawn] if model._max_features < 5 else rows
    own_leaves = model.estimators_[3].tree_.apply(own.astype(np.float32))
    np.testing.assert_array_equal(leaves[:, 3], own_leaves)
    assert {-1, 1} >= set(apply_transform(forest, raw).tolist())


def test_chunks_of_rows_change_nothing(X):
    """scikit-learn cuts rows where their scores would not fit its working memory."""
    model = IsolationForest(n_estimators=5, random_state=0).fit(X)
    forest = load_forest(model)
    rows = tie_rows(forest, 2000, missing=0.1)
    scores = score_samples(forest, reference_raw(forest, rows))
    with config_context(working_memory=0.001):  # 13 rows at a time
        same_bits(scores, model.score_samples(rows))


def test_refusals(X):
    with pytest.raises(InvalidModelError) as invalid:
        load_forest(IsolationForest())
    assert str(invalid.value) == (
        "This IsolationForest is not fitted; call fit before load_forest."
    )
    forest = load_forest(RandomForestRegressor(2).fit(X, X[:, 0]))
    with pytest.raises(UnsupportedModelError) as error:
        score_samples(forest, np.zeros((1, 1)))
    assert str(error.value) == (
        "A forest with the transform 'identity' has neither decision_function nor "
        "score_samples."
    )
