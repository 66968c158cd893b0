"""Models of which only the members are compiled: answers have the model's own bits."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn import ensemble, multiclass, multioutput
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.tree import DecisionTreeClassifier

import skforge
from skforge import CompiledForest, UnsupportedModelError
from skforge.exceptions import InvalidInputError, InvalidModelError, VerificationError
from skforge.prediction.answers import described
from skforge.sources.row_spec import row_spec
from skforge.sources.wrappers import members as module
from tests.plain import plain

pd = pytest.importorskip("pandas")
lgb = pytest.importorskip("lightgbm")
xgb = pytest.importorskip("xgboost")

METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function")

random = np.random.default_rng(0)
X = random.normal(size=(160, 5))
SCORE = X[:, 0] + np.sin(X[:, 1] * 3) + X[:, 2] * X[:, 3]
TWO = (SCORE > 0).astype(int)
THREE = np.digitize(SCORE, [-0.7, 0.8])
NAMES = np.array(["high", "low", "middle"])[THREE]
LABELS = np.column_stack([TWO, X[:, 1] > 0]).astype(int)
TARGETS = np.column_stack([SCORE, X[:, 1] ** 2, SCORE + X[:, 4]])
LIGHT = {"n_estimators": 3, "min_child_samples": 2, "verbose": -1, "n_jobs": 1}

forest = ensemble.RandomForestClassifier(4, max_depth=5, random_state=0)
boosted = ensemble.GradientBoostingClassifier(n_estimators=3, random_state=0)
hist = ensemble.HistGradientBoostingClassifier(max_iter=2, min_samples_leaf=30)
light = lgb.LGBMClassifier(**LIGHT)
extreme = xgb.XGBClassifier(n_estimators=3, max_depth=3, n_jobs=1)
reduced = make_pipeline(PCA(3, random_state=0), clone(forest))
line = LogisticRegression()

trees = ensemble.RandomForestRegressor(4, max_depth=5, random_state=0)
hists = ensemble.HistGradientBoostingRegressor(max_iter=2, min_samples_leaf=30)
lights = lgb.LGBMRegressor(**LIGHT)
behind = make_pipeline(PCA(3, random_state=0), clone(trees))


def stack(*members: Any, **how: Any) -> Any:
    kind = ensemble.StackingRegressor
    if is_classifier(members[0]):
        kind = ensemble.StackingClassifier
    how = {"cv": 2, **how}
    return kind([(f"m{i}", clone(one)) for i, one in enumerate(members)], **how)


MODELS = {
    "stack": (stack(forest, boosted, light, line), NAMES),
    "stack-two": (stack(extreme, light, hist, line), TWO),
    "stack-passthrough": (stack(forest, hist, passthrough=True), THREE),
    "stack-decision": (stack(hist, boosted, stack_method="decision_function"), NAMES),
    "stack-final": (stack(forest, line, final_estimator=clone(hist)), NAMES),
    "stack-inside": (stack(stack(forest, final_estimator=line), reduced), NAMES),
    "stack-labels": (stack(forest, final_estimator=clone(forest)), LABELS),
    "stack-search": (stack(GridSearchCV(forest, {"max_depth": [2]}, cv=2)), TWO),
    "stack-pipeline": (make_pipeline(StandardScaler(), stack(forest, line)), NAMES),
    "stack-r": (stack(trees, hists, lights, Ridge()), SCORE),
    "stack-r-passthrough": (stack(trees, behind, passthrough=True), SCORE),
    "chain": (multioutput.ClassifierChain(forest, order=[1, 0]), LABELS),
    "chain-cv": (multioutput.ClassifierChain(boosted, cv=2), LABELS),
    "chain-r": (multioutput.RegressorChain(hists, cv=2), TARGETS),
    "one-vs-one": (multiclass.OneVsOneClassifier(forest), NAMES),
    "one-vs-one-hist": (multiclass.OneVsOneClassifier(hist), THREE),
    "codes": (multiclass.OutputCodeClassifier(light, random_state=0), NAMES),
    "calibrated": (CalibratedClassifierCV(reduced, cv=2), NAMES),
    "calibrated-stack": (
        CalibratedClassifierCV(stack(forest, final_estimator=line), cv=2),
        TWO,
    ),
    "votes": (
        ensemble.VotingClassifier([("a", reduced), ("b", line)], voting="soft"),
        NAMES,
    ),
    "hard": (ensemble.VotingClassifier([("a", reduced), ("b", hist)]), NAMES),
    "mean": (ensemble.VotingRegressor([("a", behind), ("b", Ridge())]), SCORE),
    "outputs": (multioutput.MultiOutputRegressor(behind), TARGETS),
    "rest": (multiclass.OneVsRestClassifier(reduced), NAMES),
    "bagging": (ensemble.BaggingClassifier(reduced, 3, max_features=0.7), NAMES),
    "bagging-jobs": (ensemble.BaggingClassifier(forest, 5, n_jobs=2), NAMES),
    "bagging-r": (ensemble.BaggingRegressor(behind, 2), SCORE),
    "adaboost": (ensemble.AdaBoostClassifier(forest, n_estimators=2), NAMES),
    "self": (SelfTrainingClassifier(forest), np.where(X[:, 0] > 1, -1, THREE)),
    "target": (
        TransformedTargetRegressor(
            stack(trees, final_estimator=Ridge()), func=np.cbrt, inverse_func=np.exp
        ),
        SCORE,
    ),
}


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert type(found) is list
        for one, other in zip(found, expected, strict=True):
            same(one, other)
        return
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def check(fast: Any, model: Any, *kinds: Any) -> None:
    """Compare all methods on rows of each kind, and errors with the model's own."""
    with warnings.catch_warnings(), joblib.parallel_config("threading"):
        warnings.simplefilter("ignore")
        for method in METHODS:
            assert hasattr(fast, method) == hasattr(model, method)
            for rows in kinds if hasattr(model, method) else ():
                try:
                    expected = getattr(model, method)(rows)
                except Exception as error:  # noqa: BLE001
                    with pytest.raises(type(error)) as own:
                        getattr(fast, method)(rows)
                    assert str(own.value) == str(error)
                else:
                    same(getattr(fast, method)(rows), expected)


def fitted(name: str) -> Any:
    model, y = MODELS[name]
    with joblib.parallel_config("threading"):
        return clone(model).fit(X, y)


@pytest.mark.sampled(6)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_answers_are_the_model_s_own(name: str) -> None:
    model = fitted(name)
    fast = plain(model).fit(X)
    near = np.concatenate([X, random.normal(size=(500, 5)).astype(np.float32)])
    gaps = np.where(near[:9] > 1, np.nan, near[:9])
    kinds = (near, near[:1], near[:7].astype(np.float32), near[:5].tolist())
    check(fast, model, *kinds, gaps, near[:, :2], near[:0], near[0])
    for copied in (pickle.loads(pickle.dumps(fast)), copy.deepcopy(fast)):
        check(copied, model, near[:7])
    assert "compiled" in fast.inspect("pipeline")


def prefit() -> Any:
    members = [("a", FrozenEstimator(forest.fit(X, NAMES))), ("b", light.fit(X, NAMES))]
    return ensemble.StackingClassifier(members, cv="prefit").fit(X, NAMES)


def test_members_that_were_fitted_before() -> None:
    model = prefit()
    fast = plain(model).fit(X)
    assert fast.inspect("pipeline").count("  compiled") == 2
    check(fast, model, X)


def test_no_member_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted("stack")
    fast = plain(model).fit(X)
    expected = model.predict_proba(X)

    def fails(*_: Any, **__: Any) -> None:
        raise AssertionError

    for kind in (type(forest), type(boosted), type(light)):
        monkeypatch.setattr(kind, "predict_proba", fails)
    same(fast.predict_proba(X), expected)


def test_frames_names_and_warnings() -> None:
    rows = pd.DataFrame(X, columns=list("abcde"))
    model = clone(MODELS["stack-inside"][0]).fit(rows, NAMES)
    fast = plain(model).fit(rows)
    check(fast, model, rows, rows[:1], rows[["a"]], rows[list("edcba")])
    same(fast.predict(dict(rows.iloc[0])), model.predict(rows[:1]))
    same(fast.predict(rows[:2].to_dict("records")), model.predict(rows[:2]))
    said = []
    for one in (fast, model):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            one.predict(X)
        said.append([str(warning.message) for warning in caught])
    assert said[0] == said[1] != []


@pytest.mark.parametrize("member", [extreme, light])
def test_arrays_lie_in_memory_as_the_member_s_own(member: Any) -> None:
    """Products of arrays in another order may be rounded in another way."""
    model = CalibratedClassifierCV(make_pipeline(PCA(3), clone(member)), cv=2)
    model.fit(X, TWO)
    inside = model.calibrated_classifiers_[0].estimator
    around = plain(model).fit(X)._compiled().source._around
    stand_in = around.calibrated_classifiers_[0].estimator
    for rows in (X, X[:1]):
        own, ours = inside.predict_proba(rows), stand_in.predict_proba(rows)
        assert ours.strides == own.strides != np.ascontiguousarray(own).strides or (
            len(rows) == 1
        )
        same(ours, own)


def test_forests_and_bags_of_several_jobs() -> None:
    """Threads of a forest add its trees in any order; a bag adds the sums of jobs."""
    many = clone(forest).set_params(n_jobs=3, n_estimators=30)
    model = ensemble.BaggingClassifier(many, 5, n_jobs=3)
    with joblib.parallel_config("threading"):
        model.fit(X, NAMES)
        for _ in range(3):
            fast = plain(model).fit(X)
        for one in model.estimators_:
            one.n_jobs = None
        same(fast.predict_proba(X), model.predict_proba(X))


def test_a_wrong_stand_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted("stack")
    right = module._answered

    def wrong(by_column: bool, call: Any, rows: Any, **params: Any) -> Any:
        return right(by_column, call, rows, **params)[:, ::-1]

    monkeypatch.setattr(module, "_answered", wrong)
    with pytest.raises(VerificationError, match=r"row \d+ of X: predict"):
        plain(model).fit(X)


def test_what_is_shown() -> None:
    fast = plain(fitted("stack-inside")).fit(X)
    table, _, end = fast.inspect("pipeline").partition("\n\n")
    assert end.endswith("own code, with compiled members.")
    lines = table.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["estimators_[0]", "StackingClassifier", "compiled"],
        ["estimators_[0]", "RandomForestClassifier", "compiled"],
        ["final_estimator_", "LogisticRegression", "runs"],
        ["estimators_[1]", "Pipeline", "compiled"],
        ["pca", "PCA", "runs"],
        ["randomforestclassifier", "RandomForestClassifier", "compiled"],
        ["final_estimator_", "LogisticRegression", "runs"],
    ]
    assert lines[-1].endswith(
        "it is not one of the tree ensembles that can be compiled"
    )
    behind_steps = plain(fitted("stack-pipeline")).fit(X).inspect("pipeline")
    assert "standardscaler      StandardScaler          runs in" in behind_steps
    summary = fast.summary()
    assert summary.steps_summary == "2 compiled, 1 in their library"
    assert "members" in str(summary)
    assert (summary.n_forests, summary.n_trees, summary.times) == (2, 8, ())
    assert "RandomForestClassifier" in fast._repr_html_inner()
    assert "StackingClassifier" in repr(fast)
    for method in ("predict", "predict_proba"):
        answer = described(fast, method).empty()
        own = getattr(fast, method)(X)
        assert (answer.dtype, answer.shape[1:]) == (own.dtype, own.shape[1:])
    assert row_spec(fast).width == 5


def test_unfitted_models_are_trained_and_cloned() -> None:
    model, y = MODELS["stack"]
    fast = plain(model, prefit=False).fit(X, y)
    check(fast, clone(model).fit(X, y), X)
    assert fast.score(X, y) == fast.estimator_.score(X, y)
    assert not hasattr(clone(fast), "estimator_")
    weights = np.linspace(0.1, 2, len(y))
    weighted = plain(model, prefit=False).fit(X, y, sample_weight=weights)
    check(weighted, clone(model).fit(X, y, sample_weight=weights), X)


def test_threads_and_kernels_of_members() -> None:
    fast = plain(fitted("stack")).fit(X)
    members = fast._compiled().source.members
    fast.n_jobs = 2
    assert [one.n_jobs for one in members] == [2] * 3
    fast.warm_up()
    assert all("predict_proba" in one._compiled().entries for one in members)
    same(fast.predict(X), fast.estimator_.predict(X))


@pytest.mark.parametrize("reduction", ["fast", "reproducible"])
def test_sums_in_another_order(reduction: str) -> None:
    model = fitted("stack-r")
    fast = plain(model, reduction=reduction).fit(X)
    np.testing.assert_allclose(fast.predict(X), model.predict(X), rtol=1e-6)


def test_what_is_not_possible(tmp_path: Any) -> None:
    model = fitted("stack")
    fast = plain(model).fit(X)
    joblib.dump(fast, tmp_path / "model.joblib")
    same(joblib.load(tmp_path / "model.joblib").predict(X), model.predict(X))
    with pytest.raises(UnsupportedModelError, match=r"use joblib\.dump"):
        skforge.save(fast, tmp_path / "model.skforge")
    with pytest.raises(UnsupportedModelError, match=r"use joblib\.dump"):
        fast.drop_estimator()
    with pytest.raises(UnsupportedModelError, match="Parts of this model run in"):
        skforge.export(fast, tmp_path / "c", kind="c")
    with pytest.raises(UnsupportedModelError, match="has no raw scores"):
        fast.predict_raw(X)
    assert not hasattr(fast, "apply")
    for explained in (fast, fast.predict_contribs):
        with pytest.raises(UnsupportedModelError, match="contributions are not defi"):
            skforge.TreeExplainer(fast) if explained is fast else explained(X)
    with pytest.raises(InvalidInputError, match="to explain, take a member"):
        skforge.TreeExplainer(model)
    with pytest.raises(UnsupportedModelError, match=r"cannot read sklearn.*Logistic"):
        skforge.TreeExplainer(make_pipeline(PCA(), line).fit(X, TWO))
    for read in (skforge.load_forest, skforge.compile_forest):
        with pytest.raises(UnsupportedModelError, match=r"use CompiledForest\(model\)"):
            read(model)


@pytest.mark.parametrize("trained", [False, True])
def test_no_member_is_a_forest(trained: bool) -> None:
    model = stack(line, LogisticRegression(C=2))
    model = model.fit(X, TWO) if trained else model
    with pytest.raises(
        UnsupportedModelError, match="StackingClassifier has no member that can be"
    ):
        plain(model).fit(X, None if trained else TWO)


def test_members_that_are_compiled_already() -> None:
    ours = CompiledForest(forest, tuning="off")
    model = stack(ours, line).fit(X, TWO)
    with pytest.raises(UnsupportedModelError, match="no member that can be compiled"):
        plain(model).fit(X)
    model = stack(ours, boosted).fit(X, TWO)
    fast = plain(model).fit(X)
    assert fast.inspect("pipeline").count("  compiled") == 2
    check(fast, model, X)


def replaced(model: Any) -> None:
    model.estimators_[0] = clone(forest).fit(X, TWO)


def trained_again(model: Any) -> None:
    model.estimators_[0].fit(X, NAMES)


def another_end(model: Any) -> None:
    model.final_estimator_ = LogisticRegression()


@pytest.mark.parametrize("change", [replaced, trained_again, another_end])
def test_changes_are_noticed(change: Any) -> None:
    model = fitted("stack")
    fast = plain(model).fit(X)
    fast.predict(X)
    pickle.dumps(fast)
    change(model)
    with pytest.raises(InvalidModelError, match="has changed since it was compiled"):
        pickle.dumps(fast)


def test_a_member_whose_own_predict_fails_runs_as_it_is() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(80, 3))
    labels = (rows[:, 0] > 0).astype(int)
    forest = ensemble.RandomForestClassifier(3, max_depth=3, random_state=0)
    silent = FixedThresholdClassifier(forest, response_method="decision_function")
    votes = [("a", silent), ("b", make_pipeline(PCA(2), forest))]
    model = ensemble.VotingClassifier(votes, voting="soft").fit(rows, labels)
    fast = plain(model).fit(rows)
    np.testing.assert_array_equal(fast.predict_proba(rows), model.predict_proba(rows))
    assert "runs in scikit-learn" in fast.inspect("pipeline")


def test_a_pipeline_whose_last_step_cannot_predict_is_refused_by_name() -> None:
    tree = DecisionTreeClassifier(max_depth=3)
    silent = FixedThresholdClassifier(tree, response_method="decision_function")
    steps = make_pipeline(StandardScaler(), silent)
    model = FixedThresholdClassifier(steps, response_method="predict_proba")
    model.fit(X, TWO)
    assert len(model.predict(X)) == len(X)  # by other methods of its members
    with pytest.raises(UnsupportedModelError, match=r"none .* decision_function"):
        plain(model).fit(X)


def test_members_that_read_no_row_together_are_compiled_alone() -> None:
    random = np.random.default_rng(0)
    rows, labels = random.normal(size=(40, 2)), random.integers(3, size=40)
    encoder = OneHotEncoder(handle_unknown="warn", sparse_output=False)
    tree = make_pipeline(encoder, DecisionTreeClassifier(random_state=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each fold knows other values
        model = CalibratedClassifierCV(tree, cv=2).fit(rows, labels)
        fast = plain(model).fit(rows)
        answers = fast.predict_proba(rows), model.predict_proba(rows)
    np.testing.assert_array_equal(*answers)
    assert "compiled" in fast.inspect("pipeline")


@pytest.mark.parametrize("gap", [np.nan, None])
def test_a_column_of_missing_texts_is_one_of_texts(gap):
    pd = pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"a": random.normal(size=90)})
    frame["t"] = pd.Series(random.choice(["x", "y"], 90), dtype=object)
    frame.loc[::7, "t"] = gap
    encoder = ColumnTransformer(
        [("t", OneHotEncoder(handle_unknown="ignore"), ["t"])],
        remainder="passthrough",
        sparse_threshold=0,
    )
    members = [
        ("deep", make_pipeline(encoder, PCA(2), ensemble.RandomForestRegressor(2))),
        ("other", make_pipeline(encoder, Ridge())),
    ]
    model = ensemble.VotingRegressor(members).fit(frame, frame.a)
    fast = plain(model).fit(frame)
    rows = pd.DataFrame({"a": [0.5], "t": pd.Series([gap], dtype=object)})
    expected = model.predict(rows)
    for given in ({"a": 0.5, "t": gap}, {"a": [0.5], "t": [gap]}):
        np.testing.assert_array_equal(fast.predict(given), expected)
