"""Models of which only the members are compiled; ``test_kinds.py`` compares answers."""

from __future__ import annotations

import copy
import pickle
import warnings
from functools import cache
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn import ensemble
from sklearn import preprocessing as pre
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import Ridge
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

import skforge
from skforge import UnsupportedModelError
from skforge.exceptions import InvalidInputError, InvalidModelError, VerificationError
from skforge.prediction.answers import described
from skforge.sources.row_spec import row_spec
from skforge.sources.wrappers import members as module
from skforge.sources.wrappers.nodes import Threshold
from tests import kinds
from tests.compared_calls import called, difference
from tests.comparing import assert_alike
from tests.kinds import BOOSTED, FOREST, PASSENGERS, TWO, WIDTH, X
from tests.kinds import WORDS as NAMES
from tests.kinds_of_pipelines import EVERY, EXTREME, LAST, LIGHT, LINE, SMALL, stack
from tests.plain import fit_both, plain
from tests.sklearn_rows import same_bits as same

pd = pytest.importorskip("pandas")


def check(fast: Any, model: Any) -> None:
    methods = ("predict", "predict_proba", "predict_log_proba")
    with joblib.parallel_config("threading"):
        assert_alike(fast, model, X, methods=methods)


def fitted(name: str) -> Any:
    """Return a copy of a model that is trained once."""
    return pickle.loads(trained(name))


@cache
def trained(name: str) -> bytes:
    with joblib.parallel_config("threading"):
        return pickle.dumps(EVERY[name].fitted())


def test_members_that_were_fitted_before() -> None:
    members = [("a", FrozenEstimator(clone(SMALL).fit(X, NAMES)))]
    members.append(("b", clone(LIGHT).fit(X, NAMES)))
    model, fast = fit_both(ensemble.StackingClassifier(members, cv="prefit"), X, NAMES)
    assert fast.inspect("pipeline").count("  compiled") == 2
    check(fast, model)


def test_no_member_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted("stack")
    fast = plain(model).fit(X)
    expected = model.predict_proba(X)

    def fails(*_: Any, **__: Any) -> None:
        raise AssertionError

    for kind in (type(SMALL), type(BOOSTED), type(LIGHT)):
        monkeypatch.setattr(kind, "predict_proba", fails)
    same(fast.predict_proba(X), expected)


@pytest.mark.parametrize("member", [EXTREME, LIGHT])
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
    many = clone(SMALL).set_params(n_jobs=3, n_estimators=30)
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
    fast = plain(fitted("stack inside")).fit(X)
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
    behind_steps = plain(fitted("stack in a pipeline")).fit(X).inspect("pipeline")
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
    assert row_spec(fast).width == WIDTH


def test_unfitted_models_are_trained_and_cloned() -> None:
    model, y = EVERY["stack"].model, NAMES
    fast = plain(model, prefit=False).fit(X, y)
    check(fast, clone(model).fit(X, y))
    assert fast.score(X, y) == fast.estimator_.score(X, y)
    assert not hasattr(clone(fast), "estimator_")
    weights = np.linspace(0.1, 2, len(y))
    weighted = plain(model, prefit=False).fit(X, y, sample_weight=weights)
    check(weighted, clone(model).fit(X, y, sample_weight=weights))


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
    model = fitted("stack of values")
    fast = plain(model, reduction=reduction).fit(X)
    np.testing.assert_allclose(fast.predict(X), model.predict(X), rtol=1e-6)


def test_what_is_not_possible(tmp_path: Any) -> None:
    model = fitted("stack")
    fast = plain(model).fit(X)
    joblib.dump(fast, tmp_path / "model.joblib")
    for again in (joblib.load(tmp_path / "model.joblib"), copy.deepcopy(fast)):
        same(again.predict(X), model.predict(X))
    for store in (lambda: skforge.save(fast, tmp_path / "a"), fast.drop_estimator):
        with pytest.raises(UnsupportedModelError, match=r"use joblib\.dump"):
            store()
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
        skforge.TreeExplainer(make_pipeline(PCA(), LINE).fit(X, TWO))
    for read in (skforge.load_forest, skforge.compile_forest):
        with pytest.raises(UnsupportedModelError, match=r"use CompiledForest\(model\)"):
            read(model)


def test_members_that_are_compiled_already() -> None:
    ours = plain(SMALL)
    model = stack(ours, LINE).fit(X, TWO)
    with pytest.raises(UnsupportedModelError, match="no member that can be compiled"):
        plain(model).fit(X)
    model, fast = fit_both(stack(ours, BOOSTED), X, TWO)
    assert fast.inspect("pipeline").count("  compiled") == 2
    check(fast, model)


CHANGES: dict[str, tuple[str, Any]] = {
    "replaced": ("stack", lambda model: model.estimators_.__setitem__(0, BOOSTED)),
    "trained again": ("stack", lambda model: model.estimators_[0].fit(X, TWO)),
    "another end": ("stack", lambda model: setattr(model, "final_estimator_", LINE)),
    "around steps": (
        "fixed around texts",
        lambda model: setattr(model, "threshold", 0.1),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_noticed(change: Any) -> None:
    name, changed = CHANGES[change]
    model, rows = fitted(name), kinds.ROWS[EVERY[name].on]
    fast = plain(model).fit(rows)
    fast.predict(rows)
    pickle.dumps(fast)
    changed(model)
    with pytest.raises(InvalidModelError, match="has changed since it was compiled"):
        pickle.dumps(fast)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
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
        model, fast = fit_both(CalibratedClassifierCV(tree, cv=2), rows, labels)
        answers = fast.predict_proba(rows), model.predict_proba(rows)
    np.testing.assert_array_equal(*answers)
    assert "compiled" in fast.inspect("pipeline")


@pytest.mark.parametrize("gap", [np.nan, None])
def test_a_column_of_missing_texts_is_one_of_texts(gap):
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
    model, fast = fit_both(ensemble.VotingRegressor(members), frame, frame.a)
    rows = pd.DataFrame({"a": [0.5], "t": pd.Series([gap], dtype=object)})
    expected = model.predict(rows)
    for given in ({"a": 0.5, "t": gap}, {"a": [0.5], "t": [gap]}):
        np.testing.assert_array_equal(fast.predict(given), expected)


# ------------------------------------------------------------ wrappers behind steps

xgb = pytest.importorskip("xgboost")
lgb = pytest.importorskip("lightgbm")

drawn = np.random.default_rng(0)
ROWS = drawn.normal(size=(400, 3))
SCORE = ROWS[:, 0] + ROWS[:, 1] / 2 + drawn.normal(size=400) * 0.3
ABOVE = (SCORE > 0).astype(int)
NEW = drawn.normal(size=(3000, 3))
FRAME = pd.DataFrame(ROWS[:, :2], columns=["a", "b"]).assign(
    t=drawn.choice(["x", "y", "z"], 400)
)


def trained_on(model: Any, rows: Any) -> Any:
    """Return a clone of a model trained on rows."""
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    return clone(model).fit(rows, ABOVE if is_classifier(last) else SCORE)


def assert_close(fast: Any, model: Any, rows: Any) -> None:
    for method in ("predict", "predict_proba", "decision_function"):
        if not hasattr(model, method):
            continue
        found, expected = getattr(fast, method)(rows), getattr(model, method)(rows)
        if method == "predict" and hasattr(model, "predict_proba"):
            # labels of ties may differ where sums are off
            sure = np.abs(model.predict_proba(rows)[:, 1] - 0.5) > 1e-6
            np.testing.assert_array_equal(found[sure], expected[sure])
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("reduction", ["fast", "reproducible"])
@pytest.mark.parametrize("wrapper", ["tuned", "calibrated", "mean", "target"])
def test_and_so_it_does_where_sums_may_be_off(wrapper: str, reduction: str) -> None:
    model = trained_on(make_pipeline(PCA(2), LAST[wrapper][0]), ROWS)
    fast = plain(model, reduction=reduction).fit(ROWS)
    assert_close(fast, model, NEW)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["isotonic", "sigmoid"])
@pytest.mark.parametrize("reduction", ["fast", "reproducible"])
def test_sums_that_may_be_off_are_no_mistake(reduction: str, method: str) -> None:
    """Each member has its own codes of numbers; a drawn row is none for the others."""
    rows, new = np.round(ROWS[:120, :2], 1), np.round(NEW[:, :2], 1)
    inside = make_pipeline(pre.TargetEncoder(cv=3), FOREST)
    model = CalibratedClassifierCV(inside, method=method, cv=2).fit(rows, ABOVE[:120])
    fast = plain(model, reduction=reduction).fit(rows)
    assert (fast.predict(new) != model.predict(new)).mean() < 0.01


def test_frames_of_several_dtypes_are_no_mistake_where_sums_may_be_off() -> None:
    """A forest of their own reads them, and not the one that is compared first."""
    rows = FRAME.astype({"b": np.float32})
    steps = make_column_transformer(
        (pre.OneHotEncoder(), ["t"]), (pre.StandardScaler(), ["a", "b"])
    )
    booster = xgb.XGBClassifier(n_estimators=20, max_depth=3)
    calibrated = CalibratedClassifierCV(booster, method="isotonic", cv=2)
    model = make_pipeline(steps, calibrated).fit(rows, ABOVE)
    fast = plain(model, reduction="reproducible").fit(rows)
    assert_close(fast, model, rows)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("reduction", ["exact", "fast", "reproducible"])
@pytest.mark.parametrize("n_rows", [0, 400])
def test_a_wrong_rule_is_found(
    n_rows: int, reduction: str, behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [PCA(2)] if behind else []
    wrapper = FixedThresholdClassifier(FOREST, threshold=0.7)
    model = trained_on(make_pipeline(*first, wrapper), ROWS)

    def ignores(self: Any, method: str, raw: Any) -> Any:
        return self.members[0].answer(method, raw)

    monkeypatch.setattr(Threshold, "answer", ignores)
    with pytest.raises(VerificationError, match=r"row \d+ .*: predict gives"):
        plain(model, reduction=reduction).fit(ROWS[:n_rows])


def test_the_wrapper_s_error_comes_before_those_of_the_steps_inside() -> None:
    """CalibratedClassifierCV counts rows first; a number and a lazy frame have none."""
    model = fitted("calibrated around texts")
    fast = plain(model).fit(PASSENGERS)
    for rows in (
        3.5,
        None,
        pytest.importorskip("polars").from_pandas(PASSENGERS).lazy(),
    ):
        assert difference(fast.predict, model.predict, rows) == ""
        assert called(fast.predict, rows)[1].startswith("TypeError: Expected sequence")


def test_raw_scores_of_rows_that_members_read_apart() -> None:
    boosting = ensemble.GradientBoostingRegressor(n_estimators=3)
    histogram = ensemble.HistGradientBoostingRegressor(max_iter=3)
    _, fast = fit_both(
        ensemble.VotingRegressor([("a", boosting), ("b", histogram)]), ROWS, SCORE
    )
    whole = np.abs(NEW[:9]).astype(np.uint64)
    for rows in (NEW[:9].astype(object), NEW[:9].astype(">f8"), whole):
        expected = fast.predict_raw(rows.astype(float))
        np.testing.assert_array_equal(fast.predict_raw(rows), expected, strict=True)


@pytest.mark.parametrize("several", [False, True])
def test_raw_scores_of_no_rows(several: bool) -> None:
    """XGBoost takes them."""
    first = xgb.XGBRegressor(n_estimators=3)
    second = xgb.XGBRegressor(n_estimators=3, objective="reg:absoluteerror")
    members = [("a", first), ("b", second if several else first)]
    _, fast = fit_both(ensemble.VotingRegressor(members), ROWS, SCORE)
    assert fast.predict_raw(ROWS[:0]).shape == (0, 2)
    assert fast.predict_raw(ROWS[:0]).dtype == fast.predict_raw(ROWS[:1]).dtype


def test_frames_that_only_their_columns_show_how_to_read() -> None:
    """Of polars frames, LightGBM's adapter knows each column, not how to cast all."""
    pytest.importorskip("polars")
    light = lgb.LGBMClassifier(n_estimators=8, min_child_samples=2, verbose=-1)
    steps = make_union(PCA(1), "passthrough").set_output(transform="polars")
    model = make_pipeline(steps, light).fit(FRAME[["a", "b"]], ABOVE)
    fast = plain(model, reduction="reproducible").fit(FRAME[["a", "b"]])
    new = pd.DataFrame(NEW[:, :2], columns=["a", "b"])
    np.testing.assert_array_equal(fast.predict(new), model.predict(new))
