"""Forests of scikit-learn's models: the same bits as its own methods."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from joblib.externals.loky import cpu_count
from sklearn import config_context, ensemble, tree
from sklearn.base import is_classifier
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import (
    AdaBoostClassifier,
    AdaBoostRegressor,
    BaggingClassifier,
    BaggingRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.tree import (
    DecisionTreeClassifier,
    DecisionTreeRegressor,
    ExtraTreeClassifier,
    ExtraTreeRegressor,
)
from threadpoolctl import threadpool_limits

from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.arrays import Comparison
from skforge.forest.reference import reference_leaves, reference_raw
from skforge.frontends import load_forest, read_forest
from skforge.frontends.sklearn.histogram import model_columns
from skforge.frontends.sklearn.leaf_weights import load_with_payloads
from skforge.sources.find import source_of
from tests import answers_of
from tests.by_reference import answer
from tests.comparing import METHODS
from tests.refusals import error_of
from tests.sklearn_rows import same_bits, tie_rows

N = 300

cpu_count(only_physical_cores=True)  # it asks another program once


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine, threads that wait for each other cost seconds."""
    with threadpool_limits(1):
        yield


def data(missing=0.0):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 5))
    X[rng.random(X.shape) < missing] = np.nan
    return X, rng


def check(model, rows, forest=None, given=None):
    """Compare all answers, of one row and more, and leaves; return the forest.

    ``given`` are the rows as the model takes them.
    """
    forest = load_forest(model) if forest is None else forest
    given = rows if given is None else given
    source = source_of(model, forest)
    methods = [method for method in METHODS if hasattr(model, method)]
    for n, method in product((1, 2, 3, len(rows)), methods):
        own = getattr(model, method)(given[:n])
        found = answer(source, model, method, given[:n])
        several = isinstance(own, list)
        for mine, theirs in zip(found, own, strict=True) if several else [(found, own)]:
            same_bits(mine, theirs)
    leaves = reference_leaves(forest, rows)
    leaves = forest.source_node[leaves]
    if hasattr(model, "apply"):
        own = model.apply(given)
        np.testing.assert_array_equal(leaves.reshape(own.shape), own)
    if hasattr(model, "estimators_features_"):
        whole = isinstance(model, IsolationForest) and model._max_features == 5
        own = rows if whole else rows[:, model.estimators_features_[2]]
        own = model.estimators_[2].tree_.apply(own.astype(np.float32))
        np.testing.assert_array_equal(leaves[:, 2], own)
    return forest


def words(n_classes):
    return lambda X, rng: np.array(
        [f"class {i:02}" for i in rng.integers(n_classes, size=N)]
    )


TARGETS = {
    "two classes": words(2),
    "three classes": lambda X, rng: rng.integers(5, 8, N),
    "one class": lambda X, rng: np.zeros(N, int),
    "many": lambda X, rng: rng.integers(0, [3, 2, 4], (N, 3)),
    "values": lambda X, rng: rng.normal(size=N).round(2),
    "several values": lambda X, rng: rng.normal(size=(N, 3)).round(2),
}
TREES = ("DecisionTree", "ExtraTree", "RandomForest", "ExtraTrees")


def make(name, **params):
    module = tree if name in tree.__all__ else ensemble
    if module is ensemble:
        params["n_estimators"] = 7
    return getattr(module, name)(random_state=0, **params)


@pytest.mark.sampled(13)
@pytest.mark.parametrize("missing", [0.0, 0.15])
@pytest.mark.parametrize(("name", "target"), [*product(TREES, TARGETS)])
def test_trees_and_forests(name, target, missing):
    X, rng = data(missing)
    kind = "Regressor" if "values" in target else "Classifier"
    model = make(f"{name}{kind}").fit(X, TARGETS[target](X, rng))
    forest = load_forest(model)
    rows = np.concatenate([X, tie_rows(forest, 150, missing)])
    check(model, rows, forest)
    assert forest.vector_leaves == (target not in ("values", "one class"))


SEED = {"random_state": 0}
BOOSTED = GradientBoostingRegressor(n_estimators=9, **SEED)
BOOSTED_CLASSES = GradientBoostingClassifier(n_estimators=5, **SEED)
HISTOGRAM = HistGradientBoostingRegressor(max_iter=7, **SEED)
HISTOGRAM_CLASSES = HistGradientBoostingClassifier(max_iter=4, **SEED)
BAG, STEPS = BaggingClassifier(n_estimators=7, **SEED), AdaBoostClassifier(**SEED)
BAG_OF_VALUES = BaggingRegressor(ExtraTreeRegressor(), 7, **SEED)
ISOLATION = IsolationForest(n_estimators=11, **SEED)


def rounded(X, rng):
    return (np.nan_to_num(X[:, 0]) * 2 + rng.normal(size=N)).round(3)


def positive(X, rng):
    return np.exp(np.nan_to_num(X[:, 0]) + rng.normal(size=N) / 4)


#: A model, its target, and parameters, each of which make a case.
SETTINGS = (
    (BOOSTED, rounded, [
        {},
        {"loss": "absolute_error"},
        {"loss": "huber", "learning_rate": 0.37},
        {"loss": "quantile", "alpha": 0.2},
        {"init": "zero"},
        {"init": DummyRegressor(strategy="constant", constant=3.25)},
        {"learning_rate": 1, "subsample": 0.5},
        {"n_iter_no_change": 2, "max_leaf_nodes": 5},
    ]),
    (BOOSTED_CLASSES, words(2), [
        {},
        {"loss": "exponential"},
        {"init": "zero"},
        {"init": DummyClassifier(strategy="most_frequent")},
    ]),
    (BOOSTED_CLASSES, words(3), [
        {},
        {"init": "zero", "learning_rate": 0.05},
        {"init": DummyClassifier(strategy="uniform")},
    ]),
    (BOOSTED_CLASSES, words(11), [{"max_depth": 2}]),
    (HISTOGRAM, positive, [
        {},
        {"loss": "absolute_error"},
        {"loss": "poisson"},
        {"loss": "gamma"},
        {"loss": "quantile", "quantile": 0.3},
        {"monotonic_cst": [1, 0, 0, -1, 0], "interaction_cst": "no_interactions"},
        {"early_stopping": True, "n_iter_no_change": 2, "max_iter": 40},
    ]),
    *((HISTOGRAM_CLASSES, words(n), [{}]) for n in (2, 3, 5, 11)),
    *(
        (BAG, words(n), [
            {},
            {"max_features": 0.5},
            {"bootstrap_features": True, "max_samples": 8},
        ])
        for n in (1, 3, 9)
    ),
    *(
        (BAG_OF_VALUES, TARGETS[name], [
            {"max_features": 3, "bootstrap_features": True},
        ])
        for name in ("values", "several values")
    ),
    *(
        (STEPS, words(n), [
            {"estimator": kind(max_depth=3), "n_estimators": 9, "learning_rate": 0.7}
            for kind in (DecisionTreeClassifier, ExtraTreeClassifier)
        ])
        for n in (2, 3, 12)
    ),
    (STEPS, lambda X, rng: X[:, 0] > 0, [{"estimator": DecisionTreeClassifier()}]),
    (ISOLATION, lambda X, rng: None, [
        {},
        {"max_samples": 1},
        {"max_samples": 2},
        {"max_samples": 17, "max_features": 2},
        {"contamination": 0.2, "max_features": 0.5, "bootstrap": True},
    ]),
)  # fmt: skip
CASES = [
    pytest.param(model, target, params, id=f"{type(model).__name__} {i} {params}")
    for i, (model, target, several) in enumerate(SETTINGS)
    for params in several
]


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize(("model", "target", "params"), CASES)
def test_ensembles(model, target, params):
    takes_gaps = not isinstance(
        model,
        (GradientBoostingRegressor, GradientBoostingClassifier, AdaBoostClassifier),
    )
    X, rng = data(0.1 * takes_gaps)
    model = type(model)(**model.get_params(deep=False) | params)
    model.fit(X, target(X, rng))
    forest = load_forest(model)
    rows = tie_rows(forest, 150, missing=0.1 * takes_gaps)
    if isinstance(model, (IsolationForest, type(HISTOGRAM))):
        rows[:20] *= 1e300
        rows[20:24, 0] = np.inf, -np.inf, 1e-320, -0.0
    check(model, rows, forest)
    n_classes = len(getattr(model, "classes_", ()))
    tasks = {0: "regression", 2: "binary"}
    outlier = isinstance(model, IsolationForest)
    task = "outlier" if outlier else tasks.get(n_classes, "multiclass")
    assert forest.task == task or isinstance(model, BaggingClassifier)


def test_a_bag_may_miss_classes():
    X, rng = data()
    y = rng.integers(0, 40, N)
    bag = BaggingClassifier(ExtraTreeClassifier(), 6, max_samples=30, **SEED)
    # members that count rows as weights see every class; drop some from the first
    model = bag.set_params(bootstrap=False).fit(X, y)
    one = ExtraTreeClassifier(random_state=0).fit(X[y % 2 == 0], y[y % 2 == 0])
    model.estimators_[0] = one
    assert len(one.classes_) < 40
    forest = load_forest(model)
    check(model, tie_rows(forest, 100), forest)


#: Targets with few values, whose trees often predict the same; and with the zero of
#: either sign.
OF_ADABOOST = (
    lambda rng: rng.normal(size=N),
    lambda rng: rng.integers(-2, 3, N) * 1.0,
    lambda rng: np.copysign(0.0, rng.normal(size=N)),
    lambda rng: 1e300 * rng.normal(size=N),
)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(40))
def test_adaboost_regressor(seed):
    rng = np.random.default_rng(seed)
    X, y = data()[0], OF_ADABOOST[seed % len(OF_ADABOOST)](rng)
    member = [DecisionTreeRegressor, ExtraTreeRegressor][seed % 2]
    model = AdaBoostRegressor(
        member(max_depth=int(rng.integers(1, 6))),
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
    rows = tie_rows(forest, 400)
    check(model, rows, forest)
    wanted = [one.predict(rows) for one in model.estimators_]
    same_bits(reference_raw(forest, rows), np.transpose(wanted))


def test_chunks_of_rows_change_no_score_of_an_isolation_forest():
    """scikit-learn cuts rows where their scores would not fit its working memory."""
    model = IsolationForest(n_estimators=5, random_state=0).fit(data(0.1)[0])
    forest = load_forest(model)
    rows = tie_rows(forest, 700, missing=0.1)
    scores = answers_of.score_samples(forest, reference_raw(forest, rows))
    with config_context(working_memory=0.001):  # 13 rows at a time
        same_bits(scores, model.score_samples(rows))


# ------------------------------------------------------------ odd values


@pytest.mark.parametrize("name", ["DecisionTreeRegressor", "RandomForestRegressor"])
def test_the_sign_of_zero_is_kept(name):
    """A lone tree returns its leaf; a forest starts its sum from +0.0."""
    X, _ = data()
    model = make(name).fit(X, np.zeros(N))
    for one in getattr(model, "estimators_", [model]):
        one.tree_.value[:] = -0.0
    assert np.signbit(model.predict(X)).all() == (name == "DecisionTreeRegressor")
    check(model, X)


@pytest.mark.parametrize("of_histograms", [False, True])
def test_a_score_of_zero_is_the_second_class_or_the_first(of_histograms):
    """``>= 0`` in GradientBoosting, ``> 0`` in HistGradientBoosting."""
    X = np.linspace(0, 1, 60)[:, np.newaxis]
    if of_histograms:
        model = HistGradientBoostingClassifier(max_iter=1).fit(X, X[:, 0] > 0.5)
        model._baseline_prediction[:] = 0.0
        model._predictors[0][0].nodes["value"] = 0.0
    else:
        model = GradientBoostingClassifier(n_estimators=1, init="zero")
        model.fit(X, X[:, 0] > 0.5).estimators_[0, 0].tree_.value[:] = 0.0
    check(model, X)
    assert (model.predict(X) != of_histograms).all()


def test_float64_rows_are_cast_before_they_are_compared():
    """The peers' classic mistake: a row beside a threshold in float64 only."""
    X = np.array([[0.1], [0.2], [0.3], [0.4]])
    model = tree.DecisionTreeRegressor().fit(X, [0.0, 1.0, 2.0, 3.0])
    exact = np.sort(model.tree_.threshold[model.tree_.feature >= 0])
    rows = np.concatenate([exact + d for d in (0, 1e-9, -1e-9, 1e-12)])[:, np.newaxis]
    forest = check(model, rows)
    assert forest.input_dtype == np.float32
    assert (forest.threshold.astype(np.float64) <= exact).all()


def test_float32_rows_beside_float64_thresholds():
    X, _ = data()
    model = HistGradientBoostingRegressor(max_iter=9).fit(X, X[:, 0] + X[:, 1] ** 2)
    rows = tie_rows(load_forest(model), 200)
    narrow = rows.astype(np.float32)
    assert (model.predict(narrow) != model.predict(rows)).any()
    check(model, narrow)


@pytest.mark.parametrize("share", [1 / 3, 2 / 3])
def test_unchecked_missing_values_go_right(share):
    """Its walk ignores what its trees say of missing values; ``apply`` does not."""
    X, _ = data()
    X[:, 0] = np.arange(N)
    model = GradientBoostingRegressor(n_estimators=5).fit(X, np.arange(N) > N * share)
    rows = X.copy()
    rows[:, 0] = np.nan
    with config_context(assume_finite=True):
        expected = model.predict(rows)
    forest = load_forest(model)
    same_bits(reference_raw(forest, rows)[:, 0], expected)
    leaves = forest.source_node[reference_leaves(forest, rows)]
    first = model.estimators_[0, 0].tree_
    assert first.missing_go_to_left[0] == 0 or (model.apply(rows) != leaves).any()


# ------------------------------------------------------------ categories

#: Known and unknown categories, and everything that only looks like one.
CATEGORIES = [
    *(0.0, -0.0, 3.0, 6.0, 9.0, 117.0, 1.0, 2.0, 120.0, 255.0, 256.0, 259.0, 65536.0),
    *(-1.0, -0.5, -3.0, 0.5, 2.5, 3.5, 1e10, -1e10, 2.0**31, 2.0**32 + 3, np.nan),
    *(np.nextafter(3.0, 9), np.nextafter(3.0, 0), 5e-324),
]


@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_categories(missing):
    X, rng = data()
    X[:, 1] = rng.integers(0, 40, N) * 3
    X[:, 3] = rng.integers(0, 5, N)
    y = X[:, 1] * 7 % 11 + X[:, 3] ** 2 + X[:, 0]
    X[rng.random(X.shape) < missing] = np.nan
    how = {"max_iter": 20, "categorical_features": [1, 3]}
    model = HistGradientBoostingRegressor(**how, **SEED).fit(X, y)
    rows = np.concatenate([X, X, X])
    for column in (1, 3):
        rows[N:, column] = rng.choice(CATEGORIES, 2 * N)
    forest = check(model, rows)
    assert {*forest.feature[forest.comparison == Comparison.MEMBER]} == {1, 3}
    both = {
        bool(node["missing_go_to_left"])
        for (one,) in model._predictors
        for node in one.nodes[one.nodes["is_categorical"] == 1]
    }
    assert missing == 0 or both == {False, True}


def frame_of(X, **columns):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcde"))
    made = {name: pandas.Categorical(values) for name, values in columns.items()}
    return frame.assign(**made)


def test_numbers_of_data_frames_are_the_categories_themselves():
    X, rng = data()
    frame = frame_of(X, d=rng.integers(0, 9, N) * 10, b=rng.random(N) < 0.5)
    y = frame["d"].astype(int) % 7 + frame["b"].astype(int) * 2
    model = HistGradientBoostingClassifier(max_iter=9, random_state=0).fit(frame, y)
    forest = check(model, frame.astype(float).to_numpy(), given=frame)
    assert forest.category_names == ()


def test_names_keep_their_codes():
    X, rng = data()
    names = np.array(["pear", "apple", "fig", "plum", "quince"])
    frame = frame_of(X, d=names[rng.integers(0, 5, N)])
    y = frame["d"].astype(str).str.len() + X[:, 0]
    model = HistGradientBoostingRegressor(max_iter=9, random_state=0).fit(frame, y)
    known = tuple(sorted(names))
    assert [column.feature for column in model_columns(model)] == [3, 0, 1, 2, 4]
    rows = X.copy()
    rows[:, 3] = [known.index(name) for name in frame["d"]]
    rows[:9, 3] = np.nan
    frame.loc[:8, "d"] = np.nan
    forest = check(model, rows, given=frame)
    assert forest.feature_names == ("a", "b", "c", "d", "e")
    assert forest.category_names == ((), (), (), known, ())


@pytest.mark.parametrize("value", [0.5, -1.0, 65536.0])
def test_other_numbers_are_codes(value):
    X, rng = data()
    X[:, 1] = rng.choice([0.0, 1.0, value], N)
    model = HistGradientBoostingRegressor(max_iter=2, categorical_features=[1])
    forest = read_forest(model.fit(X, X[:, 0]))
    known = tuple(sorted((0.0, 1.0, value)))
    assert forest.category_names == ((), known, (), (), ())
    rows = X.copy()
    rows[:, 1] = np.searchsorted(known, X[:, 1])
    check(model, rows, forest, given=X)


# ------------------------------------------------------------ what a forest says


def test_what_a_forest_says_of_its_source():
    X, rng = data()
    model = make("RandomForestClassifier", max_depth=3)
    y = rng.integers(0, [3, 2, 4], (N, 3))
    forest = load_forest(model.fit(frame_of(X), y))
    assert (forest.source, forest.task) == ("sklearn", "multilabel")
    assert forest.output_sizes == (3, 2, 4)
    assert (forest.n_outputs, forest.divisor, forest.n_trees) == (9, 7, 7)
    assert set(forest.tree_output.tolist()) == {-1}
    assert forest.cover[0] == N
    assert forest.outputs.function == "identity"
    assert forest.feature_names == ("a", "b", "c", "d", "e")


class Renamed(RandomForestRegressor):
    pass


def test_a_subclass_that_changes_nothing_is_read_and_a_frozen_estimator_unwrapped():
    X, rng = data()
    model = Renamed(n_estimators=3).fit(X, rng.normal(size=N))
    forest = check(model, X)
    frozen = load_forest(FrozenEstimator(FrozenEstimator(model)))
    assert frozen.content_hash() == forest.content_hash()


# ------------------------------------------------------------ refusals


class Louder(RandomForestRegressor):
    def predict(self, X):
        return 2 * super().predict(X)


class Shifted(GradientBoostingRegressor):
    def predict(self, X):
        return super().predict(X) + 1


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


REFUSED = {
    "another predict": (Louder(2),
        "Louder overrides predict, so its predictions cannot be reproduced."),
    "another predict of boosting": (Shifted(n_estimators=2),
        "Shifted overrides predict, so its predictions cannot be reproduced."),
    "another predict of members": (AdaBoostClassifier(Own(max_depth=1), n_estimators=2),
        "Own overrides predict, so its predictions cannot be reproduced."),
    "a start that depends on the row": (
        GradientBoostingRegressor(n_estimators=2, init=LinearRegression()),
        "GradientBoostingRegressor starts from the predictions of LinearRegression, "
        "which depend on the row, so that it cannot be one Forest. CompiledForest "
        "compiles its trees, and its init if it can."),
    "a start by chance": (
        GradientBoostingClassifier(
            n_estimators=2, init=DummyClassifier(strategy="stratified")),
        "GradientBoostingClassifier starts from "
        "DummyClassifier(strategy='stratified'), which predicts at random; fit with "
        "another strategy."),
    "one class": (AdaBoostClassifier(n_estimators=2),
        "AdaBoostClassifier was fitted with one class, so there is nothing to "
        "compile."),
    **{f"{type(model).__name__} of others": (model,
        must_be_trees(type(model).__name__, type(model.estimator).__name__))
        for model in (
            AdaBoostRegressor(KNeighborsRegressor(), n_estimators=2),
            AdaBoostClassifier(LogisticRegression(), n_estimators=2),
            BaggingRegressor(KNeighborsRegressor(), n_estimators=2),
            BaggingClassifier(RandomForestClassifier(2), n_estimators=2))},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_forest_is_refused(name):
    model, text = REFUSED[name]
    X, rng = data()
    y = rng.normal(size=N)
    y = np.digitize(y, [-0.5, 0.5]) if is_classifier(model) else y
    model.fit(X, np.zeros(N) if name == "one class" else y)
    assert error_of(UnsupportedModelError, load_forest, model) == text


@pytest.mark.parametrize(
    "kind",
    [
        *(RandomForestClassifier, DecisionTreeRegressor, IsolationForest),
        *(GradientBoostingRegressor, HistGradientBoostingClassifier, BaggingRegressor),
    ],
)
def test_what_is_not_fitted_is_refused(kind):
    assert error_of(InvalidModelError, load_forest, kind()) == (
        f"This {kind.__name__} is not fitted; call fit before load_forest."
    )


def test_stacks_have_members():
    stacking = StackingClassifier([("a", DecisionTreeClassifier())])
    assert error_of(UnsupportedModelError, load_forest, stacking) == (
        "skforge cannot read sklearn.ensemble._stacking.StackingClassifier; it "
        "computes its predictions from those of its members; use "
        "CompiledForest(model), which compiles the members that are forests. It reads "
        "models of catboost, lightgbm, onnx, quantile-forest, scikit-survival, "
        "sklearn, xgboost."
    )


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (RandomForestRegressor(2), "has no boosting rounds to choose from."),
        (GradientBoostingRegressor(n_estimators=2),
         ".predict takes no iteration_range; leave it out, or fit with fewer "
         "estimators."),
    ],
    ids=str,
)  # fmt: skip
def test_boosting_rounds_make_no_sense_here(model, said):
    X, _ = data()
    found = error_of(
        UnsupportedModelError,
        load_forest,
        model.fit(X, X[:, 0]),
        iteration_range=(0, 1),
    )
    assert found.replace(" has", "has") == f"{type(model).__name__}{said}"


def test_scores_of_another_kind_are_refused():
    X, _ = data()
    forest = load_forest(RandomForestRegressor(2).fit(X, X[:, 0]))
    said = error_of(
        UnsupportedModelError, answers_of.score_samples, forest, np.zeros((1, 1))
    )
    assert said == (
        "A forest with the transform 'identity' has neither decision_function nor "
        "score_samples."
    )


def damaged_tree(**changes):
    """A fitted tree whose state was edited, as a hostile pickle would."""
    X, rng = data()
    model = tree.DecisionTreeRegressor(max_depth=2).fit(X, rng.normal(size=N))
    state = model.tree_.__getstate__()
    nodes = state["nodes"].copy()
    for name, (index, value) in changes.items():
        nodes[name][index] = value
    new = tree._tree.Tree(5, np.array([1]), 1)
    new.__setstate__({**state, "nodes": nodes})
    model.tree_ = new
    return model


AGAIN = "; the model is damaged, export it again."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"left_child": (0, 10**9)},
         "children_left[0] = 1000000000 of tree 0 is outside 0..6; the model is "
         "damaged, fit it again."),
        ({"right_child": (0, 0)},
         f"the root of tree 0, node 0, is a child of another node{AGAIN}"),
        ({"right_child": (0, 1)}, f"node 1 in tree 0 has 2 parents{AGAIN}"),
        ({"feature": (0, 10**6)},
         "feature[2] = 1000000 of predicate 2 (first used in tree 0) is outside 0..4"
         f"{AGAIN}"),
    ],
)  # fmt: skip
def test_damaged_trees_are_refused(change, message):
    assert error_of(InvalidModelError, load_forest, damaged_tree(**change)) == message
    load_forest(damaged_tree())


def test_damaged_histograms_are_refused():
    X, _ = data()
    model = HistGradientBoostingRegressor(max_iter=2).fit(X, X[:, 0])
    nodes = model._predictors[1][0].nodes
    nodes["left"][0] = 10_000
    assert error_of(InvalidModelError, load_forest, model) == (
        f"left[0] = 10000 of tree 1 is outside 0..{len(nodes) - 1}; the model is "
        "damaged, fit it again."
    )


def test_a_survival_forest_of_one_time_is_refused():
    """A stand-in, because scikit-survival takes one release of scikit-learn."""
    kind = type("_BaseSurvivalForest", (), {"__module__": "sksurv.ensemble.forest"})
    model, tree_ = kind(), SimpleNamespace(value=np.zeros((1, 1, 2)))
    model.estimators_ = [SimpleNamespace(tree_=tree_, low_memory=False)]
    model.unique_times_ = np.ones(1)
    assert error_of(UnsupportedModelError, load_with_payloads, model) == (
        "_BaseSurvivalForest was trained with one time alone, so that its own predict "
        "fails; train it with several times."
    )
