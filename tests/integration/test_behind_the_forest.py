"""Wrappers around forests: compiled answers equal the wrapper's own, bit for bit."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
from sklearn import compose, ensemble, linear_model, multiclass, multioutput, tree
from sklearn import preprocessing as pre
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    TunedThresholdClassifierCV,
)
from sklearn.pipeline import make_pipeline

import skforge
from skforge import CompiledForest, UnsupportedModelError, load_forest
from skforge.exceptions import SourceNeededError
from skforge.persistence.artifact import from_bytes, to_bytes
from tests.plain import plain

pd = pytest.importorskip("pandas")
lgb = pytest.importorskip("lightgbm")
xgb = pytest.importorskip("xgboost")

METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function")
WIDTH = 6

random = np.random.default_rng(0)
X = random.normal(size=(300, WIDTH)).round(2)
SCORE = X[:, 0] + np.sin(X[:, 1] * 3) + X[:, 2] * X[:, 3]
TWO = (SCORE > 0).astype(int)
THREE = np.digitize(SCORE, [-0.7, 0.8])
NAMES = np.array(["no", "yes"])[TWO]
THREE_NAMES = np.array(["high", "low", "middle"])[THREE]
TARGETS = np.column_stack([SCORE, X[:, 1] ** 2, SCORE + X[:, 4]])

LIGHT = {"n_estimators": 5, "min_child_samples": 2, "verbose": -1, "n_jobs": 1}
CLASSIFIERS = {
    "forest": ensemble.RandomForestClassifier(5, random_state=0),
    "extra": ensemble.ExtraTreesClassifier(5, max_depth=4, random_state=0),
    "tree": tree.DecisionTreeClassifier(max_depth=4, random_state=0),
    "gb": ensemble.GradientBoostingClassifier(n_estimators=5, random_state=0),
    "hist": ensemble.HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=30),
    "bagging": ensemble.BaggingClassifier(n_estimators=4, random_state=0),
    "adaboost": ensemble.AdaBoostClassifier(n_estimators=4, random_state=0),
    "xgboost": xgb.XGBClassifier(n_estimators=5, max_depth=3, n_jobs=1),
    "lightgbm": lgb.LGBMClassifier(**LIGHT),
}
REGRESSORS = {
    "forest": ensemble.RandomForestRegressor(5, random_state=0),
    "tree": tree.DecisionTreeRegressor(max_depth=4, random_state=0),
    "gb": ensemble.GradientBoostingRegressor(n_estimators=5, random_state=0),
    "hist": ensemble.HistGradientBoostingRegressor(max_iter=3, min_samples_leaf=30),
    "bagging": ensemble.BaggingRegressor(n_estimators=4, random_state=0),
    "xgboost": xgb.XGBRegressor(n_estimators=5, max_depth=3, n_jobs=1),
    "lightgbm": lgb.LGBMRegressor(**LIGHT),
}


#: One of each library; all of them are slow.
USUAL = ("forest", "gb", "xgboost")


def some(models):
    return [
        name if name in USUAL else pytest.param(name, marks=pytest.mark.slow)
        for name in models
    ]


def compiled(wrapper, rows=X):
    return plain(wrapper).fit(rows)


def near(fast, n=300):
    """Return rows on both sides of the members' thresholds."""
    cuts = fast.forest_.threshold[np.isfinite(fast.forest_.threshold)]
    draw = np.random.default_rng(1)
    rows = draw.choice(cuts, (n, WIDTH)).astype(np.float64)
    way = draw.integers(0, 3, rows.shape)
    rows = np.where(way == 0, rows, np.nextafter(rows, np.where(way == 1, -9, 9)))
    return np.where(draw.random(rows.shape) < 0.5, rows, draw.normal(size=rows.shape))


def check(fast, wrapper, kinds=(np.asarray, np.float32)):
    """Compare every method on 1, 7 and 300 rows of each kind, also of a stored copy."""
    drawn = near(fast)
    try:
        kept = from_bytes(to_bytes(fast), "the file")
    except UnsupportedModelError as error:
        own = "with objects that are no plain data" in str(error)
        assert own or "Only the members of" in str(error)
        assert not own or getattr(wrapper, "func", None) not in (None, np.log1p)
        kept = None
    for method in METHODS:
        assert hasattr(fast, method) == hasattr(wrapper, method)
        if not hasattr(wrapper, method):
            continue
        for kind in kinds:
            for rows in (drawn[:1], drawn[1:8], drawn):
                answer = getattr(wrapper, method)(kind(rows))
                before = fast.counters()["library"]["calls"]
                same(getattr(fast, method)(kind(rows)), answer)
                if kept is None or not hasattr(kept, method):
                    continue
                if fast.counters()["library"]["calls"] > before:
                    with pytest.raises(SourceNeededError):
                        getattr(kept, method)(kind(rows))
                else:
                    same(getattr(kept, method)(kind(rows)), answer)


def same(found, expected):
    if isinstance(expected, list):
        assert type(found) is list and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
        return
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if found.dtype.kind == "f":  # bits
        whole = np.dtype(f"u{found.dtype.itemsize}")
        found, expected = np.array(found).view(whole), np.array(expected).view(whole)
    np.testing.assert_array_equal(found, expected)


def kernels_answer(fast, monkeypatch, but=""):
    """Let the wrapper's own methods fail, but one."""
    source = type(fast._predictor.source)
    call = source.call

    def asked(self, method, *args, **params):
        assert method == but, "asked"
        return call(self, method, *args, **params)

    monkeypatch.setattr(source, "call", asked)


# ------------------------------------------------------------------- calibration


@pytest.mark.sampled(6)
@pytest.mark.parametrize("method", ["sigmoid", "isotonic", "temperature"])
@pytest.mark.parametrize("name", some(CLASSIFIERS))
@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
def test_calibrated(name, method, y, monkeypatch):
    wrapper = CalibratedClassifierCV(CLASSIFIERS[name], method=method, cv=3).fit(X, y)
    fast = compiled(wrapper)
    kernels_answer(fast, monkeypatch)
    check(fast, wrapper)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("y", [NAMES, THREE_NAMES], ids=["two", "three"])
@pytest.mark.parametrize("method", ["sigmoid", "isotonic", "temperature"])
def test_calibrated_text_labels(y, method):
    wrapper = CalibratedClassifierCV(CLASSIFIERS["forest"], method=method, cv=2)
    wrapper.fit(X, y)
    fast = compiled(wrapper)
    check(fast, wrapper)
    assert fast.score(X, y) == wrapper.score(X, y)
    assert fast.classes_.tolist() == wrapper.classes_.tolist()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["forest", "gb", "xgboost"])
def test_calibrated_without_ensemble_and_frozen(name):
    one = CalibratedClassifierCV(CLASSIFIERS[name], ensemble=False, cv=2).fit(X, TWO)
    check(compiled(one), one)
    fitted = clone(CLASSIFIERS[name]).fit(X[:200], THREE[:200])
    frozen = CalibratedClassifierCV(FrozenEstimator(fitted)).fit(X[200:], THREE[200:])
    assert len(frozen.calibrated_classifiers_) == 1
    check(compiled(frozen), frozen)


@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_calibrated_folds_that_miss_a_class(method):
    y = THREE.copy()
    folds = [(np.flatnonzero(y != 1), np.arange(300)), (np.arange(150), np.arange(300))]
    wrapper = CalibratedClassifierCV(CLASSIFIERS["forest"], cv=folds, method=method)
    wrapper.fit(X, y)
    assert len(wrapper.calibrated_classifiers_[0].estimator.classes_) == 2
    check(compiled(wrapper), wrapper)


# -------------------------------------------------------------------- thresholds


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", some(CLASSIFIERS))
def test_thresholds(name, monkeypatch):
    fixed = FixedThresholdClassifier(CLASSIFIERS[name], threshold=0.3).fit(X, TWO)
    tuned = TunedThresholdClassifierCV(CLASSIFIERS[name], cv=2).fit(X, TWO)
    for wrapper in (fixed, tuned):
        fast = compiled(wrapper)
        check(fast, wrapper)
        kernels_answer(fast, monkeypatch)
        fast.predict(X), fast.predict_proba(X)
        monkeypatch.undo()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("response", ["predict_proba", "decision_function", "auto"])
@pytest.mark.parametrize("label", ["no", "yes", None])
@pytest.mark.parametrize("threshold", ["auto", 0.1])
def test_fixed_threshold_options(response, label, threshold):
    wrapper = FixedThresholdClassifier(
        CLASSIFIERS["gb"],
        threshold=threshold,
        pos_label=label,
        response_method=response,
    ).fit(X, NAMES)
    check(compiled(wrapper), wrapper)


def test_tuned_threshold_for_another_label():
    from sklearn.metrics import f1_score, make_scorer

    wrapper = TunedThresholdClassifierCV(
        CLASSIFIERS["forest"], scoring=make_scorer(f1_score, pos_label="no"), cv=2
    ).fit(X, NAMES)
    check(compiled(wrapper), wrapper)


# ----------------------------------------------------------------------- targets


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", some(REGRESSORS))
def test_transformed_targets(name, monkeypatch):
    y = np.exp(SCORE / 3)
    by_function = compose.TransformedTargetRegressor(
        REGRESSORS[name], func=np.log, inverse_func=np.exp
    )
    scaled = compose.TransformedTargetRegressor(
        REGRESSORS[name], transformer=pre.QuantileTransformer(n_quantiles=50)
    )
    for wrapper in (by_function, scaled):
        wrapper.fit(X, y)
        fast = compiled(wrapper)
        kernels_answer(fast, monkeypatch)
        check(fast, wrapper)
        monkeypatch.undo()
        assert fast.score(X, y) == wrapper.score(X, y)


@pytest.mark.parametrize("columns", [1, 3])
def test_transformed_targets_of_several(columns):
    y = TARGETS[:, :columns]
    wrapper = compose.TransformedTargetRegressor(
        REGRESSORS["forest"], transformer=pre.StandardScaler()
    ).fit(X, y)
    check(compiled(wrapper), wrapper)


def test_an_inverse_function_of_all_rows():
    wrapper = compose.TransformedTargetRegressor(
        REGRESSORS["gb"],
        func=lambda y: y,
        inverse_func=lambda y: y - y.mean(),
        check_inverse=False,
    ).fit(X, SCORE)
    check(compiled(wrapper), wrapper)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", some(REGRESSORS))
@pytest.mark.parametrize("columns", [1, 3])
def test_multi_output_regressors(name, columns, monkeypatch):
    wrapper = multioutput.MultiOutputRegressor(REGRESSORS[name], n_jobs=1)
    wrapper.fit(X, TARGETS[:, :columns])
    fast = compiled(wrapper)
    kernels_answer(fast, monkeypatch)
    check(fast, wrapper)


def test_multi_output_regressors_are_one_forest(tmp_path):
    wrapper = multioutput.MultiOutputRegressor(REGRESSORS["forest"]).fit(X, TARGETS)
    forest = load_forest(wrapper)
    assert (forest.n_trees, forest.n_outputs) == (15, 3)
    same(skforge.compile_forest(forest).predict(X), wrapper.predict(X))
    skforge.export(compiled(wrapper), tmp_path / "c", kind="c")
    within = make_pipeline(pre.StandardScaler(), wrapper).fit(X, TARGETS)
    same(skforge.compile_forest(within).predict(X), within.predict(X))
    check(compiled(within), within, kinds=(np.asarray,))


def test_multi_output_regressors_of_other_links():
    member = ensemble.HistGradientBoostingRegressor(loss="poisson", max_iter=3)
    wrapper = multioutput.MultiOutputRegressor(member).fit(X, np.abs(TARGETS))
    with pytest.raises(UnsupportedModelError, match="MultiOutputRegressor computes"):
        load_forest(wrapper)
    check(compiled(wrapper), wrapper)


def test_hard_votes_with_negative_weights_are_counted_in_scikit_learn():
    members = [(name, CLASSIFIERS[name]) for name in USUAL]
    wrapper = ensemble.VotingClassifier(members, weights=[1, -1, 2]).fit(X, THREE)
    check(compiled(wrapper), wrapper)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", some(CLASSIFIERS))
def test_multi_output_classifiers(name):
    y = np.column_stack([TWO, THREE, TWO])
    wrapper = multioutput.MultiOutputClassifier(CLASSIFIERS[name]).fit(X, y)
    fast = compiled(wrapper)
    check(fast, wrapper)
    assert fast.score(X, y) == wrapper.score(X, y)


def test_multi_output_text_labels():
    y = np.column_stack([NAMES, THREE_NAMES])
    wrapper = multioutput.MultiOutputClassifier(CLASSIFIERS["forest"]).fit(X, y)
    check(compiled(wrapper), wrapper)


# ------------------------------------------------------------------- one against all


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", some(CLASSIFIERS))
@pytest.mark.parametrize("y", [THREE_NAMES, NAMES], ids=["three", "two"])
def test_one_vs_rest(name, y, monkeypatch):
    wrapper = multiclass.OneVsRestClassifier(CLASSIFIERS[name]).fit(X, y)
    fast = compiled(wrapper)
    # Rows that no tree claims have the sum 0, by which releases divide differently.
    sums_are_0 = name == "tree" and y is THREE_NAMES
    kernels_answer(fast, monkeypatch, "predict_proba" if sums_are_0 else "")
    check(fast, wrapper)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["forest", "gb", "xgboost", "lightgbm"])
def test_one_vs_rest_of_several_labels(name):
    y = np.column_stack([TWO, THREE == 1, THREE == 2]).astype(int)
    wrapper = multiclass.OneVsRestClassifier(CLASSIFIERS[name]).fit(X, y)
    check(compiled(wrapper), wrapper)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:Label")
@pytest.mark.parametrize("name", ["forest", "gb"])
@pytest.mark.parametrize("first", [0, 1])
def test_one_vs_rest_with_constants(name, first):
    y = np.column_stack([TWO, np.zeros(300), np.ones(300)]).astype(int)
    y = np.roll(y, first, axis=1)
    wrapper = multiclass.OneVsRestClassifier(CLASSIFIERS[name]).fit(X, y)
    assert "_ConstantPredictor" in {type(one).__name__ for one in wrapper.estimators_}
    fast = compiled(wrapper)
    if (name, first) == ("forest", 1):  # scikit-learn offers a method that fails
        with pytest.raises(AttributeError, match="no attribute 'decision_function'"):
            fast.decision_function(X)
        same(fast.predict(X), wrapper.predict(X))
        same(fast.predict_proba(X), wrapper.predict_proba(X))
    else:
        check(fast, wrapper)


def test_one_vs_rest_over_regressors():
    wrapper = multiclass.OneVsRestClassifier(REGRESSORS["forest"]).fit(X, THREE)
    fast = compiled(wrapper)
    same(fast.predict(X), wrapper.predict(X))


# ------------------------------------------------------------------------- votes

MIXED = ("forest", "gb", "hist", "xgboost", "lightgbm")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("voting", "y", "weights"),
    [
        pytest.param("soft", TWO, None, id="soft-two-equal"),
        pytest.param("soft", THREE_NAMES, [2, 1, 0.5, 3, 1], id="soft-three-weighted"),
        pytest.param("hard", TWO, [2, 1, 0.5, 3, 1], id="hard-two-weighted"),
        pytest.param("hard", THREE_NAMES, None, id="hard-three-equal"),
    ],
)
def test_votes(voting, y, weights, monkeypatch):
    """All pairs of what may be chosen; nothing reads all three."""
    members = [(name, CLASSIFIERS[name]) for name in MIXED]
    wrapper = ensemble.VotingClassifier(members, voting=voting, weights=weights)
    wrapper.fit(X, y)
    fast = compiled(wrapper)
    kernels_answer(fast, monkeypatch)
    check(fast, wrapper)


def test_hard_votes_that_tie():
    members = [
        (
            str(i),
            tree.DecisionTreeClassifier(max_depth=1, max_features=1, random_state=i),
        )
        for i in range(4)
    ]
    wrapper = ensemble.VotingClassifier(members).fit(X, THREE_NAMES)
    votes = wrapper.transform(X)
    assert any(len(set(row)) == 2 and np.bincount(row).max() == 2 for row in votes)
    check(compiled(wrapper), wrapper)


@pytest.mark.parametrize(
    "weights", [None, [2, 1, 0.5, 3, 1]], ids=["equal", "weighted"]
)
def test_mean_votes(weights, monkeypatch):
    members = [(name, REGRESSORS[name]) for name in MIXED]
    wrapper = ensemble.VotingRegressor(members, weights=weights).fit(X, SCORE)
    fast = compiled(wrapper)
    kernels_answer(fast, monkeypatch)
    check(fast, wrapper)


def test_votes_of_some_members():
    members = [("a", CLASSIFIERS["forest"]), ("b", "drop"), ("c", CLASSIFIERS["gb"])]
    wrapper = ensemble.VotingClassifier(members, voting="soft", weights=[1, 5, 2])
    wrapper.fit(X, THREE)
    check(compiled(wrapper), wrapper)


# ---------------------------------------------------------------- inside each other

NESTED = {
    "threshold of calibrated": FixedThresholdClassifier(
        CalibratedClassifierCV(CLASSIFIERS["forest"], cv=2), threshold=0.4
    ),
    "calibrated votes": CalibratedClassifierCV(
        ensemble.VotingClassifier(
            [("a", CLASSIFIERS["forest"]), ("b", CLASSIFIERS["xgboost"])], voting="soft"
        ),
        cv=2,
    ),
    "votes of calibrated": ensemble.VotingClassifier(
        [
            ("a", CalibratedClassifierCV(CLASSIFIERS["gb"], cv=2)),
            ("b", CalibratedClassifierCV(CLASSIFIERS["lightgbm"], cv=2)),
        ],
        voting="soft",
    ),
    "calibrated pipelines": CalibratedClassifierCV(
        make_pipeline(pre.StandardScaler(), CLASSIFIERS["forest"]), cv=2
    ),
    "calibrated search": CalibratedClassifierCV(
        GridSearchCV(CLASSIFIERS["forest"], {"max_depth": [2, 4]}, cv=2), cv=2
    ),
    "pipeline of calibrated": make_pipeline(
        pre.StandardScaler(), CalibratedClassifierCV(CLASSIFIERS["forest"], cv=2)
    ),
    "pipeline of a threshold": make_pipeline(
        pre.MinMaxScaler(), FixedThresholdClassifier(CLASSIFIERS["gb"], threshold=0.4)
    ),
    "threshold of a pipeline": TunedThresholdClassifierCV(
        make_pipeline(pre.StandardScaler(), CLASSIFIERS["gb"]), cv=2
    ),
    "pipeline of votes": make_pipeline(
        pre.StandardScaler(),
        ensemble.VotingClassifier(
            [("a", CLASSIFIERS["forest"]), ("b", CLASSIFIERS["xgboost"])], voting="soft"
        ),
    ),
    "calibrated pipelines of votes": CalibratedClassifierCV(
        make_pipeline(
            pre.StandardScaler(),
            ensemble.VotingClassifier(
                [("a", CLASSIFIERS["forest"]), ("b", CLASSIFIERS["hist"])]
            ).set_params(voting="soft"),
        ),
        cv=2,
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NESTED)
def test_nested(name):
    wrapper = clone(NESTED[name]).fit(X, TWO)
    check(compiled(wrapper), wrapper)


# ------------------------------------------------------------------ as an estimator


def test_an_unfitted_wrapper_is_trained_and_cloned():
    wrapper = CalibratedClassifierCV(CLASSIFIERS["gb"], cv=2)
    fast = CompiledForest(wrapper, tuning="off").fit(X, TWO)
    same(fast.predict_proba(X), clone(wrapper).fit(X, TWO).predict_proba(X))
    assert not hasattr(wrapper, "classes_")
    again = clone(fast).fit(X, TWO)
    same(again.predict_proba(X), fast.predict_proba(X))


def test_a_search_over_a_wrapper():
    wrapper = CalibratedClassifierCV(CLASSIFIERS["gb"], cv=2)
    search = GridSearchCV(
        CompiledForest(wrapper, prefit=False, tuning="off"),
        {"estimator__method": ["sigmoid", "isotonic"]},
        cv=2,
    ).fit(X, TWO)
    plain = GridSearchCV(wrapper, {"method": ["sigmoid", "isotonic"]}, cv=2)
    plain.fit(X, TWO)
    assert search.best_params_["estimator__method"] == plain.best_params_["method"]
    same(search.predict_proba(X), plain.predict_proba(X))


PICKLED = """
import pickle, sys
import numpy as np
with open(sys.argv[1], "rb") as file:
    fast, wrapper, X = pickle.load(file)
assert np.array_equal(fast.predict_proba(X), wrapper.predict_proba(X))
assert np.array_equal(fast.predict(X[:1]), wrapper.predict(X[:1]))
"""


def test_pickles_in_another_process(tmp_path):
    members = [("a", CLASSIFIERS["forest"]), ("b", CLASSIFIERS["xgboost"])]
    votes = ensemble.VotingClassifier(members, voting="soft")
    wrapper = CalibratedClassifierCV(votes, cv=2, method="isotonic").fit(X, NAMES)
    file = tmp_path / "model"
    file.write_bytes(pickle.dumps((compiled(wrapper), wrapper, X)))
    subprocess.run([sys.executable, "-c", PICKLED, str(file)], check=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.fit(X, 1 - TWO),
        lambda one: one.estimator_.fit(X, 1 - TWO),
        lambda one: one.set_params(threshold=0.9),
    ],
    ids=["fitted again", "member fitted again", "threshold"],
)
def test_a_changed_wrapper_is_noticed(change):
    wrapper = FixedThresholdClassifier(CLASSIFIERS["forest"], threshold=0.3)
    fast = compiled(wrapper.fit(X, TWO))
    change(wrapper)
    with pytest.raises(skforge.InvalidModelError, match="has changed since it was"):
        pickle.dumps(fast)


def calibrated(method):
    return CalibratedClassifierCV(CLASSIFIERS["gb"], cv=2, method=method).fit(X, TWO)


def of_targets(**how):
    return compose.TransformedTargetRegressor(REGRESSORS["forest"], **how).fit(X, SCORE)


def first_calibrator(wrapper):
    return wrapper.calibrated_classifiers_[0].calibrators[0]


#: What answers are computed with behind the forest, and how to change it.
HELPERS = {
    "sigmoid": (
        lambda: calibrated("sigmoid"),
        lambda one: setattr(first_calibrator(one), "a_", 1.0),
    ),
    "isotonic": (
        lambda: calibrated("isotonic"),
        lambda one: first_calibrator(one).y_thresholds_.fill(0.5),
    ),
    "isotonic copy": (
        lambda: calibrated("isotonic"),
        lambda one: first_calibrator(one).f_.y.fill(0.5),
    ),
    "function": (
        lambda: of_targets(func=np.arcsinh, inverse_func=np.sinh),
        lambda one: setattr(one.transformer_, "inverse_func", np.cosh),
    ),
    "scaler's array": (
        lambda: of_targets(transformer=pre.StandardScaler()),
        lambda one: one.transformer_.mean_.fill(9),
    ),
    "scaler's flag": (
        lambda: of_targets(transformer=pre.StandardScaler()),
        lambda one: one.transformer_.set_params(with_mean=False),
    ),
    "scaler in a pipeline": (
        lambda: of_targets(transformer=make_pipeline(pre.StandardScaler())),
        lambda one: one.transformer_[0].mean_.fill(9),
    ),
    "labels of votes": (
        lambda: ensemble.VotingClassifier([("a", CLASSIFIERS["gb"])]).fit(X, TWO),
        lambda one: one.le_.classes_.fill(7),
    ),
    "labels of classes": (
        lambda: multiclass.OneVsRestClassifier(CLASSIFIERS["gb"]).fit(X, NAMES),
        lambda one: one.label_binarizer_.classes_.fill("no"),
    ),
}


@pytest.mark.parametrize("kind", HELPERS)
def test_what_is_behind_the_forest_is_a_copy_and_changes_are_noticed(kind):
    make, change = HELPERS[kind]
    fast = compiled(wrapper := make())
    before = fast.predict(X), fast.predict(X[:1])
    pickle.dumps(fast)
    change(wrapper)
    same(fast.predict(X), before[0])
    same(fast.predict(X[:1]), before[1])
    for keep in (pickle.dumps, to_bytes):
        with pytest.raises(skforge.InvalidModelError, match="has changed since it was"):
            keep(fast)


def test_helpers_that_cannot_be_copied_are_the_model_s_own():
    class Halves(pre.FunctionTransformer):
        def __deepcopy__(self, memo):
            raise TypeError("not this one")

    wrapper = of_targets(func=np.arcsinh, inverse_func=np.sinh)
    wrapper.transformer_ = Halves(np.abs, lambda x: x / 2).fit(X[:, :1])
    same(compiled(wrapper).predict(X), wrapper.predict(X))


def test_frames_names_and_warnings():
    frame = pd.DataFrame(X, columns=list("abcdef"))
    wrapper = CalibratedClassifierCV(CLASSIFIERS["forest"], cv=2).fit(frame, TWO)
    fast = compiled(wrapper, frame)
    same(fast.predict_proba(frame[:1]), wrapper.predict_proba(frame[:1]))
    same(fast.predict_proba(frame), wrapper.predict_proba(frame))
    assert fast.feature_names_in_.tolist() == list("abcdef")
    said = []
    for model in (wrapper, fast):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.predict_proba(X)
        said.append({str(one.message) for one in caught})
        with pytest.raises(ValueError, match="feature names should match"):
            model.predict_proba(frame[list("fedcba")])
    assert said[0] == said[1] and "RandomForestClassifier" in said[0].pop()


@pytest.mark.filterwarnings("error")
def test_members_with_other_limits_compile_without_a_warning():
    steps = make_pipeline(pre.Binarizer(), CLASSIFIERS["xgboost"])
    members = [("a", steps), ("b", tree.DecisionTreeClassifier(max_depth=4))]
    wrapper = ensemble.VotingClassifier(members).fit(X, TWO)
    again = pickle.loads(pickle.dumps(compiled(wrapper)))
    for rows in (X[:3], X[:3].astype(np.float32)):
        same(again.predict(rows), wrapper.predict(rows))
    rows = X[:3].astype(np.float32)
    rows[1, 1] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        again.predict(rows)


def test_rows_that_members_refuse_and_other_kinds():
    from scipy import sparse

    members = [("a", CLASSIFIERS["gb"]), ("b", CLASSIFIERS["hist"])]
    wrapper = ensemble.VotingClassifier(members, voting="soft").fit(X, TWO)
    fast = compiled(wrapper)
    gap = X[:3].copy()
    gap[1, 2] = np.nan
    rows = [gap, X[:, :3], X[0], [[]], sparse.csr_array(X), X[:0], [["a"] * WIDTH]]
    for wrong in rows:
        errors = []
        for model in (wrapper, fast):
            with pytest.raises((ValueError, TypeError)) as error:
                model.predict_proba(wrong)
            errors.append((type(error.value), str(error.value)))
        assert errors[0] == errors[1]
    for right in (X.tolist(), (X * 3).astype(int), X[:, ::-1], np.asfortranarray(X)):
        same(fast.predict_proba(right), wrapper.predict_proba(right))


def test_categories_of_frames():
    names = np.array(["red", "green", "blue", "grey"])[np.digitize(X[:, 0], [-1, 0, 1])]
    frame = pd.DataFrame({"a": X[:, 1], "b": pd.Categorical(names), "c": X[:, 2]})
    member = ensemble.HistGradientBoostingClassifier(
        max_iter=3, categorical_features="from_dtype", min_samples_leaf=5
    )
    rare = frame["b"] == "grey"  # some folds do not see it
    folds = [(np.flatnonzero(~rare), np.arange(300)), (np.arange(200), np.arange(300))]
    wrapper = CalibratedClassifierCV(member, cv=folds).fit(frame, TWO)
    fast = compiled(wrapper, frame)
    for rows in (frame, frame[:1], frame[rare], frame[::-1]):
        same(fast.predict_proba(rows), wrapper.predict_proba(rows))


def test_weights_of_samples_in_fit():
    weights = np.linspace(0.1, 2, 300)
    wrapper = compose.TransformedTargetRegressor(
        REGRESSORS["gb"], func=np.cbrt, inverse_func=lambda y: y**3
    )
    fast = CompiledForest(wrapper, tuning="off").fit(X, SCORE, sample_weight=weights)
    same(fast.predict(X), wrapper.fit(X, SCORE, sample_weight=weights).predict(X))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options",
    [
        {"target": "emulated"},
        {"reduction": "fast"},
        {"tuning": "heuristic"},
        {"n_jobs": 2},
    ],
    ids=str,
)
def test_options(options):
    members = [("a", CLASSIFIERS["forest"]), ("b", CLASSIFIERS["xgboost"])]
    wrapper = ensemble.VotingClassifier(members, voting="soft").fit(X, TWO)
    options = {"tuning": "off", **options}
    fast = CompiledForest(wrapper, **options).fit(X)
    found = fast.predict_proba(X)
    if "reduction" in options:
        np.testing.assert_allclose(found, wrapper.predict_proba(X), rtol=1e-5)
    else:
        same(found, wrapper.predict_proba(X))
    fast.warm_up()
    into = np.empty_like(found)
    assert fast.predict_proba(X, out=into) is into
    same(into, found)


def test_missing_values_that_members_accept():
    gaps = np.where(np.random.default_rng(2).random(X.shape) < 0.1, np.nan, X)
    wrapper = CalibratedClassifierCV(CLASSIFIERS["xgboost"], cv=2).fit(gaps, THREE)
    fast = compiled(wrapper, gaps)
    same(fast.predict_proba(gaps), wrapper.predict_proba(gaps))
    same(fast.predict_proba(gaps[:1]), wrapper.predict_proba(gaps[:1]))


def test_a_method_that_is_not_offered():
    members = [("a", CLASSIFIERS["gb"]), ("b", CLASSIFIERS["forest"])]
    fast = compiled(ensemble.VotingClassifier(members).fit(X, TWO))
    with pytest.raises(AttributeError, match="predict_proba"):
        fast.predict_proba(X)


# --------------------------------------------------------------------- refusals


@pytest.mark.parametrize("fitted", [False, True])
def test_members_that_are_no_forests_are_refused(fitted):
    members = [
        ("a", linear_model.LogisticRegression()),
        ("b", linear_model.Perceptron()),
    ]
    wrapper = ensemble.VotingClassifier(members)
    wrapper = wrapper.fit(X, TWO) if fitted else wrapper
    with pytest.raises(UnsupportedModelError, match=r"no member .*LogisticRegression"):
        CompiledForest(wrapper, tuning="off").fit(X, TWO)


def test_subclasses_are_refused():
    class Own(CalibratedClassifierCV):
        pass

    with pytest.raises(UnsupportedModelError, match="Own"):
        compiled(Own(CLASSIFIERS["gb"], cv=2).fit(X, TWO))


def test_an_unfitted_wrapper_with_prefit():
    wrapper = CalibratedClassifierCV(CLASSIFIERS["forest"])
    with pytest.raises(NotFittedError):
        CompiledForest(wrapper, prefit=True).fit(X)


@pytest.mark.filterwarnings("ignore:.*was saved by skforge.save:FutureWarning")
def test_what_one_forest_cannot_hold(tmp_path):
    wrapper = CalibratedClassifierCV(CLASSIFIERS["gb"], cv=2).fit(X, TWO)
    fast = compiled(wrapper)
    for model in (wrapper, make_pipeline(pre.StandardScaler(), wrapper)):
        with pytest.raises(UnsupportedModelError, match="CalibratedClassifierCV compu"):
            load_forest(model)
    skforge.save(fast, tmp_path / "model.skforge")
    with pytest.raises(UnsupportedModelError, match="skforge computes its"):
        load_forest(tmp_path / "model.skforge")
    with pytest.raises(UnsupportedModelError, match="which cannot be exported"):
        skforge.export(fast, tmp_path / "c", kind="c")
    scores = skforge.compile_forest(fast.forest_).predict_raw(X)
    same(fast.predict_raw(X), scores)
