"""GradientBoosting* of scikit-learn: the same bits as its own methods."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import config_context
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
from sklearn.linear_model import LinearRegression

from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.reference import reference_raw
from skforge.frontends import load_forest
from tests.answers_of import apply_transform, decide, decision_function, predict_proba
from tests.sklearn_rows import kernels_agree, same_bits, tie_rows

N = 300


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, 5)), rng


REGRESSORS = [
    {},
    {"loss": "absolute_error"},
    {"loss": "huber", "learning_rate": 0.37},
    {"loss": "quantile", "alpha": 0.2},
    {"init": "zero"},
    {"init": DummyRegressor(strategy="constant", constant=3.25)},
    {"learning_rate": 1, "subsample": 0.5},
    {"n_iter_no_change": 2, "max_leaf_nodes": 5},
]


@pytest.mark.parametrize("params", REGRESSORS, ids=str)
def test_regressors(params):
    X, rng = data()
    y = (X[:, 0] * 2 + rng.normal(size=N)).round(3)
    model = GradientBoostingRegressor(n_estimators=9, random_state=0, **params)
    model.fit(X, y)
    forest = load_forest(model)
    rows = tie_rows(forest, 300)
    raw, leaves = kernels_agree(forest, rows)
    same_bits(apply_transform(forest, raw), model.predict(rows))
    np.testing.assert_array_equal(leaves, model.apply(rows))


CLASSIFIERS = [
    (2, {}),
    (2, {"loss": "exponential"}),
    (2, {"init": "zero"}),
    (2, {"init": DummyClassifier(strategy="most_frequent")}),
    (3, {}),
    (3, {"init": "zero", "learning_rate": 0.05}),
    (3, {"init": DummyClassifier(strategy="uniform")}),
    (11, {"max_depth": 2}),
]


@pytest.mark.parametrize(("n_classes", "params"), CLASSIFIERS, ids=str)
def test_classifiers(n_classes, params):
    X, rng = data()
    y = np.array([f"class {i:02}" for i in rng.integers(0, n_classes, N)])
    model = GradientBoostingClassifier(n_estimators=5, random_state=0, **params)
    model.fit(X, y)
    forest = load_forest(model)
    assert forest.task == ("binary" if n_classes == 2 else "multiclass")
    rows = tie_rows(forest, 200)
    raw, leaves = kernels_agree(forest, rows)
    for n in (1, 2, 3, len(rows)):
        part, cut = rows[:n], raw[:n]
        same_bits(decision_function(forest, cut), model.decision_function(part))
        same_bits(predict_proba(forest, cut), model.predict_proba(part))
        same_bits(apply_transform(forest, cut), model.predict_proba(part))
        label = model.classes_[decide(forest, cut)]
        np.testing.assert_array_equal(label, model.predict(part))
    shape = (len(rows), 5, 1 if n_classes == 2 else n_classes)
    np.testing.assert_array_equal(leaves.reshape(shape), model.apply(rows))


def test_a_score_of_zero_is_the_second_class():
    """``>= 0`` here, ``> 0`` in HistGradientBoosting."""
    X = np.array([[0.0], [1.0]])
    model = GradientBoostingClassifier(n_estimators=1, init="zero").fit(X, [0, 1])
    for tree in model.estimators_.ravel():
        tree.tree_.value[:] = 0.0
    forest = load_forest(model)
    label = decide(forest, reference_raw(forest, X))
    np.testing.assert_array_equal(label, model.predict(X))
    np.testing.assert_array_equal(label, [1, 1])


class Shifted(GradientBoostingRegressor):
    def predict(self, X):
        return super().predict(X) + 1


def test_refusals():
    X, rng = data()
    y = rng.normal(size=N)
    label = (y > 0).astype(int)
    model = GradientBoostingRegressor(n_estimators=2, init=LinearRegression())
    with pytest.raises(UnsupportedModelError) as error:
        load_forest(model.fit(X, y))
    assert str(error.value) == (
        "GradientBoostingRegressor starts from the predictions of LinearRegression, "
        "which depend on the row, so that it cannot be one Forest. CompiledForest "
        "compiles its trees, and its init if it can."
    )
    drawn = DummyClassifier(strategy="stratified", random_state=0)
    classifier = GradientBoostingClassifier(n_estimators=2, init=drawn)
    with pytest.raises(UnsupportedModelError) as error:
        load_forest(classifier.fit(X, label))
    assert str(error.value) == (
        "GradientBoostingClassifier starts from "
        "DummyClassifier(strategy='stratified'), which predicts at random; fit with "
        "another strategy."
    )
    with pytest.raises(UnsupportedModelError) as error:
        load_forest(Shifted(n_estimators=2).fit(X, y))
    assert str(error.value) == (
        "Shifted overrides predict, so its predictions cannot be reproduced."
    )
    with pytest.raises(InvalidModelError) as invalid:
        load_forest(GradientBoostingRegressor())
    assert str(invalid.value) == (
        "This GradientBoostingRegressor is not fitted; call fit before load_forest."
    )
    fitted = GradientBoostingRegressor(n_estimators=2).fit(X, y)
    with pytest.raises(UnsupportedModelError) as error:
        load_forest(fitted, iteration_range=(0, 1))
    assert str(error.value) == (
        "GradientBoostingRegressor.predict takes no iteration_range; leave it out, or "
        "fit with fewer estimators."
    )


def test_unchecked_missing_values_go_right():
    """Its walk ignores what its trees say of missing values; ``apply`` does not."""
    X, _ = data()
    X[:, 0] = np.arange(N)
    model = GradientBoostingRegressor(n_estimators=5).fit(X, np.arange(N) > N / 3)
    tree = model.estimators_[0, 0].tree_
    rows = X.copy()
    rows[:, 0] = np.nan
    with config_context(assume_finite=True):
        expected = model.predict(rows)
    raw, leaves = kernels_agree(load_forest(model), rows)
    same_bits(raw[:, 0], expected)
    assert tree.missing_go_to_left[0] == 0 or (model.apply(rows) != leaves).any()
