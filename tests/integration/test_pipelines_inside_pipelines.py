"""Pipelines that end in pipelines, or in wrappers around these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import ensemble, tree
from sklearn import preprocessing as pre
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline, make_union

from tests.compared_calls import difference
from tests.plain import plain

random = np.random.default_rng(0)
X = np.c_[random.integers(0, 5, 200), random.integers(-9, 10, 200) / 2]
Y = (X.sum(axis=1) + random.normal(size=200) > 1).astype(int)
FOREST = ensemble.RandomForestClassifier(3, random_state=0)
LAST: dict[str, Any] = {
    "forest": make_pipeline(FOREST),
    "scaled": make_pipeline(pre.MinMaxScaler(), FOREST),
    "boosting": make_pipeline(
        pre.StandardScaler(), ensemble.GradientBoostingClassifier(n_estimators=3)
    ),
    "one-hot": make_pipeline(pre.OneHotEncoder(), FOREST),
    "ordinal": make_pipeline(pre.OrdinalEncoder(), FOREST),
    "bins": make_pipeline(
        pre.KBinsDiscretizer(3, quantile_method="averaged_inverted_cdf"), FOREST
    ),
    "marked": make_pipeline(
        SimpleImputer(missing_values=0, add_indicator=True), make_pipeline(FOREST)
    ),
    "threshold": FixedThresholdClassifier(
        make_pipeline(pre.OrdinalEncoder(), FOREST), threshold=0.7
    ),
    "votes": ensemble.VotingClassifier(
        [
            ("a", make_pipeline(pre.OrdinalEncoder(), FOREST)),
            ("b", make_pipeline(pre.StandardScaler(), FOREST)),
        ],
        voting="soft",
    ),
}
STEPS: dict[str, Any] = {
    "identity": pre.FunctionTransformer(),
    "scaler": pre.StandardScaler(),
    "nothing": make_pipeline("passthrough", "passthrough"),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("last", LAST)
def test_the_inner_steps_are_folded_and_refuse_what_they_refuse(
    last: str, step: str
) -> None:
    model = clone(make_pipeline(STEPS[step], LAST[last])).fit(X, Y)
    fast = plain(model).fit(X)
    if last != "votes":  # several pipelines inside
        assert "runs in" not in fast.inspect("pipeline")
    assert not difference(fast.predict_proba, model.predict_proba, X)
    for value in (1e30, 1e39, 1e300, 77, np.nan, 2.5):
        for column in (0, 1):
            rows = X[:24].copy()
            rows[3, column] = value
            found = difference(fast.predict, model.predict, rows)
            assert not found, (value, column)


def test_a_wrapper_s_own_number_of_columns_is_that_before_the_steps() -> None:
    wide = make_pipeline(make_union(PCA(1), pre.FunctionTransformer()), "passthrough")
    inner = make_pipeline(wide, "passthrough", FOREST).fit(X, Y)
    model = CalibratedClassifierCV(FrozenEstimator(inner), ensemble=False).fit(X, Y)
    assert model.n_features_in_ == 2
    assert inner[-1].n_features_in_ == 3
    fast = plain(model).fit(X)
    assert not difference(fast.predict_proba, model.predict_proba, X)


def test_pipelines_without_a_step_store_no_columns() -> None:
    nothing = make_pipeline("passthrough", make_pipeline("passthrough"))
    first = make_pipeline(nothing, tree.DecisionTreeClassifier(random_state=0))
    model = OneVsRestClassifier(CalibratedClassifierCV(first, cv=2)).fit(X, Y)
    fast = plain(model).fit(X)
    assert not difference(fast.predict_proba, model.predict_proba, X)
