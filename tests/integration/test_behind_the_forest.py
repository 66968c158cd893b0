"""Wrappers around forests: what they refuse, notice, and compute behind the forest.

``test_kinds.py`` compares the answers of all of them with the wrapper's own.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn import compose, ensemble, linear_model, multiclass, tree
from sklearn import preprocessing as pre
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV
from sklearn.pipeline import make_pipeline

import skforge
from skforge import CompiledForest, UnsupportedModelError, load_forest
from skforge.persistence.artifact import to_bytes
from tests.kinds import (
    CLASSIFIERS,
    REGRESSORS,
    SCALER,
    SCORE,
    TARGETS,
    THREE,
    TWO,
    WRAPPERS,
    outputs,
    rest,
    soft,
)
from tests.kinds import Z as X
from tests.plain import plain
from tests.sklearn_rows import same_bits as same

pd = pytest.importorskip("pandas")


def compiled(wrapper, rows=X):
    return plain(wrapper).fit(rows)


def test_an_inverse_function_of_all_rows():
    wrapper = compose.TransformedTargetRegressor(
        REGRESSORS["gb"],
        func=lambda y: y,
        inverse_func=lambda y: y - y.mean(),
        check_inverse=False,
    ).fit(X, SCORE)
    same(compiled(wrapper).predict(X), wrapper.predict(X))


def test_multi_output_regressors_are_one_forest(tmp_path):
    wrapper = outputs("forest").fit(X, TARGETS["columns"])
    forest = load_forest(wrapper)
    assert (forest.n_trees, forest.n_outputs) == (15, 3)
    same(skforge.compile_forest(forest).predict(X), wrapper.predict(X))
    skforge.export(compiled(wrapper), tmp_path / "c", kind="c")
    within = make_pipeline(SCALER, wrapper).fit(X, TARGETS["columns"])
    same(skforge.compile_forest(within).predict(X), within.predict(X))
    with pytest.raises(UnsupportedModelError, match="MultiOutputRegressor computes"):
        load_forest(WRAPPERS["outputs of another link"].fitted())


@pytest.mark.filterwarnings("ignore:Label")
def test_one_vs_rest_with_constants():
    y = np.column_stack([np.ones(300), TWO, np.zeros(300)]).astype(int)
    wrapper = rest("forest").fit(X, y)
    assert "_ConstantPredictor" in {type(one).__name__ for one in wrapper.estimators_}
    fast = compiled(wrapper)  # scikit-learn offers a method that fails
    with pytest.raises(AttributeError, match="no attribute 'decision_function'"):
        fast.decision_function(X)
    same(fast.predict(X), wrapper.predict(X))
    same(fast.predict_proba(X), wrapper.predict_proba(X))
    of_values = multiclass.OneVsRestClassifier(REGRESSORS["forest"]).fit(X, THREE)
    same(compiled(of_values).predict(X), of_values.predict(X))


# ------------------------------------------------------------------ as an estimator


def test_a_search_over_a_wrapper():
    wrapper = CalibratedClassifierCV(CLASSIFIERS["gb"], cv=2)
    search = GridSearchCV(
        plain(wrapper, prefit=False),
        {"estimator__method": ["sigmoid", "isotonic"]},
        cv=2,
    ).fit(X, TWO)
    own = GridSearchCV(wrapper, {"method": ["sigmoid", "isotonic"]}, cv=2)
    own.fit(X, TWO)
    assert search.best_params_["estimator__method"] == own.best_params_["method"]
    same(search.predict_proba(X), own.predict_proba(X))


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


ONE = [("a", CLASSIFIERS["gb"])]
MADE = {
    "sigmoid": lambda: calibrated("sigmoid"),
    "isotonic": lambda: calibrated("isotonic"),
    "function": lambda: of_targets(func=np.arcsinh, inverse_func=np.sinh),
    "scaler": lambda: of_targets(transformer=pre.StandardScaler()),
    "pipeline": lambda: of_targets(transformer=make_pipeline(pre.StandardScaler())),
    "votes": lambda: ensemble.VotingClassifier(ONE).fit(X, TWO),
    "classes": lambda: rest("gb").fit(X, TARGETS["names"]),
}
#: What answers are computed with behind the forest, and how to change it.
HELPERS = {
    "sigmoid": lambda one: setattr(first_calibrator(one), "a_", 1.0),
    "isotonic": lambda one: first_calibrator(one).y_thresholds_.fill(0.5),
    "isotonic copy": lambda one: first_calibrator(one).f_.y.fill(0.5),
    "function": lambda one: setattr(one.transformer_, "inverse_func", np.cosh),
    "scaler array": lambda one: one.transformer_.mean_.fill(9),
    "scaler flag": lambda one: one.transformer_.set_params(with_mean=False),
    "pipeline of a scaler": lambda one: one.transformer_[0].mean_.fill(9),
    "votes": lambda one: one.le_.classes_.fill(7),
    "classes": lambda one: one.label_binarizer_.classes_.fill("no"),
}


@pytest.mark.parametrize("kind", HELPERS)
def test_what_is_behind_the_forest_is_a_copy_and_changes_are_noticed(kind):
    fast = compiled(wrapper := MADE[kind.partition(" ")[0]]())
    before = fast.predict(X), fast.predict(X[:1])
    pickle.dumps(fast)
    HELPERS[kind](wrapper)
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
    fast = plain(wrapper).fit(X, SCORE, sample_weight=weights)
    same(fast.predict(X), wrapper.fit(X, SCORE, sample_weight=weights).predict(X))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name, value",
    [
        ("target", "emulated"),
        ("reduction", "fast"),
        ("tuning", "heuristic"),
        ("n_jobs", 2),
    ],
)
def test_options(name, value):
    wrapper = soft(CLASSIFIERS["forest"], CLASSIFIERS["xgboost"]).fit(X, TWO)
    fast = CompiledForest(wrapper, **{"tuning": "off", name: value}).fit(X)
    found = fast.predict_proba(X)
    if name == "reduction":
        np.testing.assert_allclose(found, wrapper.predict_proba(X), rtol=1e-5)
    else:
        same(found, wrapper.predict_proba(X))
    fast.warm_up()
    into = np.empty_like(found)
    assert fast.predict_proba(X, out=into) is into
    same(into, found)


def test_a_method_that_is_not_offered():
    fast = compiled(WRAPPERS["hard votes that tie"].fitted())
    with pytest.raises(AttributeError, match="predict_proba"):
        fast.predict_proba(X)


# --------------------------------------------------------------------- refusals


@pytest.mark.parametrize("fitted", [False, True])
def test_members_that_are_no_forests_are_refused(fitted):
    line, perceptron = linear_model.LogisticRegression(), linear_model.Perceptron()
    wrapper = ensemble.VotingClassifier([("a", line), ("b", perceptron)])
    wrapper = wrapper.fit(X, TWO) if fitted else wrapper
    with pytest.raises(UnsupportedModelError, match=r"no member .*LogisticRegression"):
        plain(wrapper).fit(X, TWO)


def test_subclasses_are_refused_and_prefit_is_heeded():
    class Own(CalibratedClassifierCV):
        pass

    with pytest.raises(UnsupportedModelError, match="Own"):
        compiled(Own(CLASSIFIERS["gb"], cv=2).fit(X, TWO))
    with pytest.raises(NotFittedError):
        CompiledForest(CalibratedClassifierCV(CLASSIFIERS["gb"]), prefit=True).fit(X)


@pytest.mark.filterwarnings("ignore:.*was saved by skforge.save:FutureWarning")
def test_what_one_forest_cannot_hold(tmp_path):
    wrapper = CalibratedClassifierCV(CLASSIFIERS["gb"], cv=2).fit(X, TWO)
    fast = compiled(wrapper)
    for model in (wrapper, make_pipeline(SCALER, wrapper)):
        with pytest.raises(UnsupportedModelError, match="CalibratedClassifierCV compu"):
            load_forest(model)
    skforge.save(fast, tmp_path / "model.skforge")
    with pytest.raises(UnsupportedModelError, match="skforge computes its"):
        load_forest(tmp_path / "model.skforge")
    with pytest.raises(UnsupportedModelError, match="which cannot be exported"):
        skforge.export(fast, tmp_path / "c", kind="c")
    scores = skforge.compile_forest(fast.forest_).predict_raw(X)
    same(fast.predict_raw(X), scores)
