"""Bagging and AdaBoost over trees: the same bits as their own methods."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import (
    AdaBoostClassifier,
    AdaBoostRegressor,
    BaggingClassifier,
    BaggingRegressor,
    RandomForestClassifier,
    StackingClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.tree import (
    DecisionTreeClassifier,
    DecisionTreeRegressor,
    ExtraTreeClassifier,
    ExtraTreeRegressor,
)

from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.frontends import load_forest
from tests.answers_of import apply_transform, decide, decision_function, predict_proba
from tests.sklearn_rows import kernels_agree, same_bits, tie_rows

N = 300


def data(missing=0.0):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 5))
    X[rng.random(X.shape) < missing] = np.nan
    return X, rng


def check_classifier(model, forest, rows, raw):
    for n in (1, 2, len(rows)):
        part, cut = rows[:n], raw[:n]
        same_bits(predict_proba(forest, cut), model.predict_proba(part))
        label = model.classes_[decide(forest, cut)]
        np.testing.assert_array_equal(label, model.predict(part))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("n_classes", [1, 2, 3, 9])
@pytest.mark.parametrize(
    "params",
    [{}, {"max_features": 0.5}, {"bootstrap_features": True, "max_samples": 8}],
    ids=str,
)
def test_bagging_classifier(n_classes, params):
    X, rng = data(0.1)
    y = rng.integers(0, n_classes, N) * 3
    model = BaggingClassifier(n_estimators=7, random_state=0, **params).fit(X, y)
    forest = load_forest(model)
    rows = tie_rows(forest, 150, missing=0.1)
    raw, leaves = kernels_agree(forest, rows)
    check_classifier(model, forest, rows, raw)
    own = rows[:, model.estimators_features_[2]].astype(np.float32)
    own_leaves = model.estimators_[2].tree_.apply(own)
    np.testing.assert_array_equal(leaves[:, 2], own_leaves)


def test_a_bag_may_miss_classes():
    X, rng = data()
    y = rng.integers(0, 40, N)
    bag = BaggingClassifier(
        ExtraTreeClassifier(), 6, max_samples=30, bootstrap=False, random_state=0
    )
    # members that count rows as weights see every class; drop some from the first
    model = bag.fit(X, y)
    tree = ExtraTreeClassifier(random_state=0).fit(X[y % 2 == 0], y[y % 2 == 0])
    model.estimators_[0] = tree
    assert len(tree.classes_) < 40
    forest = load_forest(model)
    rows = tie_rows(forest, 100)
    raw, _ = kernels_agree(forest, rows)
    check_classifier(model, forest, rows, raw)


@pytest.mark.parametrize("n_targets", [1, 3])
def test_bagging_regressor(n_targets):
    X, rng = data(0.1)
    y = rng.normal(size=(N, n_targets))
    model = BaggingRegressor(
        ExtraTreeRegressor(), 7, max_features=3, bootstrap_features=True, random_state=0
    )
    model.fit(X, y[:, 0] if n_targets == 1 else y)
    forest = load_forest(model)
    rows = tie_rows(forest, 150, missing=0.1)
    raw, _ = kernels_agree(forest, rows)
    same_bits(apply_transform(forest, raw), model.predict(rows))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n_classes", [2, 3, 12])
@pytest.mark.parametrize("tree", [DecisionTreeClassifier, ExtraTreeClassifier])
def test_adaboost_classifier(n_classes, tree):
    X, rng = data()
    y = np.array([f"class {i:02}" for i in rng.integers(0, n_classes, N)])
    member = tree(max_depth=3)
    model = AdaBoostClassifier(member, n_estimators=9, learning_rate=0.7)
    model.set_params(random_state=0).fit(X, y)
    forest = load_forest(model)
    rows = tie_rows(forest, 150)
    raw, _ = kernels_agree(forest, rows)
    check_classifier(model, forest, rows, raw)
    same_bits(decision_function(forest, raw), model.decision_function(rows))
    same_bits(decision_function(forest, raw[:1]), model.decision_function(rows[:1]))


def test_adaboost_that_stopped_early():
    X, _ = data()
    y = X[:, 0] > 0
    model = AdaBoostClassifier(DecisionTreeClassifier(), n_estimators=9).fit(X, y)
    assert len(model.estimators_) == 1
    forest = load_forest(model)
    rows = tie_rows(forest, 50)
    raw, _ = kernels_agree(forest, rows)
    check_classifier(model, forest, rows, raw)


#: Targets with few values, whose trees often predict the same; and with the zero of
#: either sign.
TARGETS = {
    "normal": lambda rng: rng.normal(size=N),
    "few": lambda rng: rng.integers(-2, 3, N) * 1.0,
    "zeros": lambda rng: np.copysign(0.0, rng.normal(size=N)),
    "large": lambda rng: 1e300 * rng.normal(size=N),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(40))
def test_adaboost_regressor(seed):
    rng = np.random.default_rng(seed)
    X, y = data()[0], [*TARGETS.values()][seed % len(TARGETS)](rng)
    tree = [DecisionTreeRegressor, ExtraTreeRegressor][seed % 2]
    model = AdaBoostRegressor(
        tree(max_depth=int(rng.integers(1, 6))),
        n_estimators=int(rng.choice([1, 2, 5, 17, 40])),
        learning_rate=float(rng.choice([1.0, 0.3])),
        loss=str(rng.choice(["linear", "square", "exponential"])),
        random_state=seed,
    )
    with np.errstate(all="ignore"):
        model.fit(X, y)
    if seed % 5 == 0:  # sums of weights that are half of all of them, or nearly
        model.estimator_weights_ = np.round(4 * model.estimator_weights_) / 10
    forest = load_forest(model)
    assert forest.n_outputs == len(model.estimators_)
    rows = tie_rows(forest, 600)
    raw, _ = kernels_agree(forest, rows)
    wanted = [member.predict(rows) for member in model.estimators_]
    same_bits(np.reshape(raw, (len(rows), -1)), np.transpose(wanted))
    for n in (1, 2, len(rows)):
        same_bits(apply_transform(forest, raw[:n]), model.predict(rows[:n]))


class Own(DecisionTreeClassifier):
    def predict(self, X):
        return super().predict(X)[::-1]


def must_be_trees(model, member):
    kind = "Regressor" if model.endswith("Regressor") else "Classifier"
    return (
        f"{model} over {member} cannot be one Forest: its members must be "
        f"DecisionTree{kind} or ExtraTree{kind}. CompiledForest compiles other forests "
        "one by one."
    )


def refusals():
    X, rng = data()
    y = rng.normal(size=N)
    label = rng.integers(0, 3, N)
    linear = LogisticRegression()
    few = {"n_estimators": 2}
    return {
        must_be_trees("AdaBoostRegressor", "KNeighborsRegressor"): AdaBoostRegressor(
            KNeighborsRegressor(), **few
        ).fit(X, y),
        "AdaBoostClassifier was fitted with one class, so there is nothing to "
        "compile.": AdaBoostClassifier(**few).fit(X, np.zeros(N)),
        must_be_trees("AdaBoostClassifier", "LogisticRegression"): AdaBoostClassifier(
            linear, **few
        ).fit(X, label),
        must_be_trees("BaggingRegressor", "KNeighborsRegressor"): BaggingRegressor(
            KNeighborsRegressor(), **few
        ).fit(X, y),
        must_be_trees("BaggingClassifier", "RandomForestClassifier"): BaggingClassifier(
            RandomForestClassifier(2), **few
        ).fit(X, label),
        "Own overrides predict, so its predictions cannot be "
        "reproduced.": AdaBoostClassifier(Own(max_depth=1), **few).fit(X, label),
    }


def test_refusals():
    for text, model in refusals().items():
        with pytest.raises(UnsupportedModelError) as error:
            load_forest(model)
        assert str(error.value) == text
    stacking = StackingClassifier([("a", DecisionTreeClassifier())])
    with pytest.raises(UnsupportedModelError) as error:
        load_forest(stacking)
    assert str(error.value) == (
        "skforge cannot read sklearn.ensemble._stacking.StackingClassifier; it "
        "computes its predictions from those of its members; use "
        "CompiledForest(model), which compiles the members that are forests. It reads "
        "models of catboost, lightgbm, onnx, quantile-forest, scikit-survival, "
        "sklearn, xgboost."
    )
    with pytest.raises(InvalidModelError) as invalid:
        load_forest(BaggingRegressor())
    assert str(invalid.value) == (
        "This BaggingRegressor is not fitted; call fit before load_forest."
    )
