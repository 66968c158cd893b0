"""Forests of scikit-learn models: the same bits as scikit-learn's own predict."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn import ensemble, tree
from sklearn.frozen import FrozenEstimator

from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.reference import draw_rows, reference_leaves, reference_raw
from skforge.frontends import load_forest
from skforge.frontends.sklearn.leaf_weights import load_with_payloads
from tests.answers_of import apply_transform, decide, predict_proba
from tests.refusals import error_of
from tests.sklearn_rows import same_bits

N = 300


def make(name, **params):
    module = tree if name in tree.__all__ else ensemble
    if module is ensemble:
        params["n_estimators"] = 7
    return getattr(module, name)(random_state=0, **params)


def make_rows(missing):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 5))
    X[rng.random(X.shape) < missing] = np.nan
    return X, rng


def rows_for(forest, X, missing):
    """Drawn rows, and rows whose float64 lies just beside the float32 they become."""
    drawn = draw_rows(forest, 400, seed=1, missing=missing).astype(np.float64)
    beside = np.nextafter(drawn, np.inf)
    return np.concatenate([X, drawn, beside, np.nextafter(drawn, -np.inf)])


TARGETS = {
    "two classes": lambda rng: np.array(["no", "yes"])[rng.integers(0, 2, N)],
    "three classes": lambda rng: rng.integers(5, 8, N),
    "one class": lambda rng: np.zeros(N, int),
    "many": lambda rng: rng.integers(0, [3, 2, 4], (N, 3)),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("missing", [0.0, 0.15])
@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize(
    "name",
    [
        "DecisionTreeClassifier",
        "ExtraTreeClassifier",
        "RandomForestClassifier",
        "ExtraTreesClassifier",
    ],
)
def test_classifiers(name, target, missing):
    X, rng = make_rows(missing)
    model = make(name).fit(X, TARGETS[target](rng))
    forest = load_forest(model)
    rows = rows_for(forest, X, missing)
    raw = reference_raw(forest, rows)
    probability, label = predict_proba(forest, raw), decide(forest, raw)
    expected = model.predict_proba(rows)
    if target == "many":
        assert isinstance(probability, list)
        for actual, one in zip(probability, expected, strict=True):
            same_bits(actual, one)
        label = np.stack(
            [c[i] for c, i in zip(model.classes_, label.T, strict=True)], axis=1
        )
    else:
        same_bits(probability, expected)
        label = model.classes_[label]
    np.testing.assert_array_equal(label, model.predict(rows))
    leaves = forest.source_node[reference_leaves(forest, rows)]
    np.testing.assert_array_equal(leaves, model.apply(rows).reshape(leaves.shape))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("missing", [0.0, 0.15])
@pytest.mark.parametrize("n_targets", [1, 3])
@pytest.mark.parametrize(
    "name",
    [
        "DecisionTreeRegressor",
        "ExtraTreeRegressor",
        "RandomForestRegressor",
        "ExtraTreesRegressor",
    ],
)
def test_regressors(name, n_targets, missing):
    X, rng = make_rows(missing)
    y = rng.normal(size=(N, n_targets)).round(2)
    model = make(name).fit(X, y[:, 0] if n_targets == 1 else y)
    forest = load_forest(model)
    assert forest.vector_leaves == (n_targets > 1)
    rows = rows_for(forest, X, missing)
    raw = reference_raw(forest, rows)
    same_bits(apply_transform(forest, raw), model.predict(rows))


@pytest.mark.parametrize("name", ["DecisionTreeRegressor", "RandomForestRegressor"])
def test_the_sign_of_zero_is_kept(name):
    """A lone tree returns its leaf; a forest starts its sum from +0.0."""
    X, _ = make_rows(0)
    model = make(name).fit(X, np.zeros(N))
    for one in getattr(model, "estimators_", [model]):
        one.tree_.value[:] = -0.0
    expected = model.predict(X)
    assert np.signbit(expected).all() == (name == "DecisionTreeRegressor")
    forest = load_forest(model)
    same_bits(apply_transform(forest, reference_raw(forest, X)), expected)


def test_float64_rows_are_cast_before_they_are_compared():
    """The peers' classic mistake: a row beside a threshold in float64 only."""
    X = np.array([[0.1], [0.2], [0.3], [0.4]])
    model = tree.DecisionTreeRegressor().fit(X, [0.0, 1.0, 2.0, 3.0])
    forest = load_forest(model)
    exact = np.sort(model.tree_.threshold[model.tree_.feature >= 0])
    rows = np.concatenate([exact + d for d in (0, 1e-9, -1e-9, 1e-12)])[:, np.newaxis]
    same_bits(reference_raw(forest, rows)[:, 0], model.predict(rows))
    assert forest.input_dtype == np.float32
    assert (forest.threshold.astype(np.float64) <= exact).all()


def test_what_a_forest_says_of_its_source():
    X, rng = make_rows(0)
    model = make("RandomForestClassifier", max_depth=3)
    forest = load_forest(model.fit(X, TARGETS["many"](rng)))
    assert (forest.source, forest.task) == ("sklearn", "multilabel")
    assert forest.output_sizes == (3, 2, 4)
    assert (forest.n_outputs, forest.divisor, forest.n_trees) == (9, 7, 7)
    assert set(forest.tree_output.tolist()) == {-1}
    assert forest.cover[0] == N
    assert forest.outputs.function == "identity"


def test_feature_names_are_kept():
    pandas = pytest.importorskip("pandas")
    X, rng = make_rows(0)
    frame = pandas.DataFrame(X, columns=list("abcde"))
    forest = load_forest(make("ExtraTreesRegressor").fit(frame, rng.normal(size=N)))
    assert forest.feature_names == ("a", "b", "c", "d", "e")


class Louder(ensemble.RandomForestRegressor):
    def predict(self, X):
        return 2 * super().predict(X)


class Renamed(ensemble.RandomForestRegressor):
    pass


def test_a_subclass_that_changes_nothing_is_read():
    X, rng = make_rows(0)
    model = Renamed(n_estimators=3).fit(X, rng.normal(size=N))
    forest = load_forest(model)
    same_bits(apply_transform(forest, reference_raw(forest, X)), model.predict(X))


@pytest.mark.parametrize(
    ("make_model", "error", "message"),
    [
        (lambda X, y: ensemble.RandomForestClassifier(), InvalidModelError,
         "This RandomForestClassifier is not fitted; call fit before load_forest."),
        (lambda X, y: tree.DecisionTreeRegressor(), InvalidModelError,
         "This DecisionTreeRegressor is not fitted; call fit before load_forest."),
        (lambda X, y: Louder(n_estimators=2).fit(X, y), UnsupportedModelError,
         "Louder overrides predict, so its predictions cannot be reproduced."),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(make_model, error, message):
    X, rng = make_rows(0)
    model = make_model(X, rng.normal(size=N))
    assert error_of(error, load_forest, model) == message


def test_boosting_rounds_make_no_sense_here():
    X, rng = make_rows(0)
    model = make("RandomForestRegressor").fit(X, rng.normal(size=N))
    with pytest.raises(UnsupportedModelError) as error:
        load_forest(model, iteration_range=(0, 1))
    assert str(error.value) == (
        "RandomForestRegressor has no boosting rounds to choose from."
    )


def test_a_frozen_estimator_is_unwrapped():
    X, rng = make_rows(0)
    model = make("RandomForestRegressor").fit(X, rng.normal(size=N))
    frozen = load_forest(FrozenEstimator(FrozenEstimator(model)))
    assert frozen.content_hash() == load_forest(model).content_hash()


def damaged_tree(**changes):
    """A fitted tree whose state was edited, as a hostile pickle would."""
    X, rng = make_rows(0)
    model = tree.DecisionTreeRegressor(max_depth=2).fit(X, rng.normal(size=N))
    state = model.tree_.__getstate__()
    nodes = state["nodes"].copy()
    for name, (index, value) in changes.items():
        nodes[name][index] = value
    new = tree._tree.Tree(5, np.array([1]), 1)
    new.__setstate__({**state, "nodes": nodes})
    model.tree_ = new
    return model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"left_child": (0, 10**9)},
         "children_left[0] = 1000000000 of tree 0 is outside 0..6; the model is "
         "damaged, fit it again."),
        ({"right_child": (0, 0)},
         "the root of tree 0, node 0, is a child of another node; the model is "
         "damaged, export it again."),
        ({"right_child": (0, 1)},
         "node 1 in tree 0 has 2 parents; the model is damaged, export it again."),
    ],
)  # fmt: skip
def test_damaged_trees_are_refused(change, message):
    assert error_of(InvalidModelError, load_forest, damaged_tree(**change)) == message
    load_forest(damaged_tree())


def test_a_feature_out_of_range_is_refused():
    with pytest.raises(InvalidModelError) as error:
        load_forest(damaged_tree(feature=(0, 10**6)))
    assert str(error.value) == (
        "feature[2] = 1000000 of predicate 2 (first used in tree 0) is outside 0..4; "
        "the model is damaged, export it again."
    )


def test_a_survival_forest_of_one_time_is_refused():
    """A stand-in, because scikit-survival takes one release of scikit-learn."""
    kind = type("_BaseSurvivalForest", (), {"__module__": "sksurv.ensemble.forest"})
    model, tree = kind(), SimpleNamespace(value=np.zeros((1, 1, 2)))
    model.estimators_ = [SimpleNamespace(tree_=tree, low_memory=False)]
    model.unique_times_ = np.ones(1)
    assert error_of(UnsupportedModelError, load_with_payloads, model) == (
        "_BaseSurvivalForest was trained with one time alone, so that its own predict "
        "fails; train it with several times."
    )
