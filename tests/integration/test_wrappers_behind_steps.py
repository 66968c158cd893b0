"""Wrappers behind steps, and around these: sums that may be off, errors, changes."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn import ensemble
from sklearn import preprocessing as pre
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import make_pipeline, make_union

from skforge import InvalidModelError
from skforge.exceptions import VerificationError
from skforge.sources.wrappers.nodes import Threshold
from tests.compared_calls import called, difference
from tests.kinds import FOREST, PASSENGERS
from tests.kinds_of_pipelines import LAST, TEXTS
from tests.plain import plain

pd = pytest.importorskip("pandas")
xgb = pytest.importorskip("xgboost")
lgb = pytest.importorskip("lightgbm")

random = np.random.default_rng(0)
X = random.normal(size=(400, 3))
SCORE = X[:, 0] + X[:, 1] / 2 + random.normal(size=400) * 0.3
TWO = (SCORE > 0).astype(int)
NEW = random.normal(size=(3000, 3))
FRAME = pd.DataFrame(X[:, :2], columns=["a", "b"]).assign(
    t=random.choice(["x", "y", "z"], 400)
)


def fitted(model: Any, rows: Any) -> Any:
    """Return a clone of a model trained on rows."""
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    return clone(model).fit(rows, TWO if is_classifier(last) else SCORE)


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
    model = fitted(make_pipeline(PCA(2), LAST[wrapper][0]), X)
    fast = plain(model, reduction=reduction).fit(X)
    assert_close(fast, model, NEW)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["isotonic", "sigmoid"])
@pytest.mark.parametrize("reduction", ["fast", "reproducible"])
def test_sums_that_may_be_off_are_no_mistake(reduction: str, method: str) -> None:
    """Each member has its own codes of numbers; a drawn row is none for the others."""
    rows, new = np.round(X[:120, :2], 1), np.round(NEW[:, :2], 1)
    inside = make_pipeline(pre.TargetEncoder(cv=3), FOREST)
    model = CalibratedClassifierCV(inside, method=method, cv=2).fit(rows, TWO[:120])
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
    model = make_pipeline(steps, calibrated).fit(rows, TWO)
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
    model = fitted(make_pipeline(*first, wrapper), X)

    def ignores(self: Any, method: str, raw: Any) -> Any:
        return self.members[0].answer(method, raw)

    monkeypatch.setattr(Threshold, "answer", ignores)
    with pytest.raises(VerificationError, match=r"row \d+ .*: predict gives"):
        plain(model, reduction=reduction).fit(X[:n_rows])


def test_a_change_of_a_wrapper_around_steps_is_noticed() -> None:
    model = TEXTS["fixed around texts"].fitted()
    fast = plain(model).fit(PASSENGERS)
    fast.predict(PASSENGERS)
    pickle.dumps(fast)
    model.threshold = 0.1
    with pytest.raises(InvalidModelError, match="has changed since it was compiled"):
        pickle.dumps(fast)


def test_the_wrapper_s_error_comes_before_those_of_the_steps_inside() -> None:
    """CalibratedClassifierCV counts rows first; a number and a lazy frame have none."""
    model = TEXTS["calibrated around texts"].fitted()
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
    model = ensemble.VotingRegressor([("a", boosting), ("b", histogram)]).fit(X, SCORE)
    fast = plain(model).fit(X)
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
    model = ensemble.VotingRegressor(members).fit(X, SCORE)
    fast = plain(model).fit(X)
    assert fast.predict_raw(X[:0]).shape == (0, 2)
    assert fast.predict_raw(X[:0]).dtype == fast.predict_raw(X[:1]).dtype


def test_frames_that_only_their_columns_show_how_to_read() -> None:
    """Of polars frames, LightGBM's adapter knows each column, not how to cast all."""
    pytest.importorskip("polars")
    light = lgb.LGBMClassifier(n_estimators=8, min_child_samples=2, verbose=-1)
    steps = make_union(PCA(1), "passthrough").set_output(transform="polars")
    model = make_pipeline(steps, light).fit(FRAME[["a", "b"]], TWO)
    fast = plain(model, reduction="reproducible").fit(FRAME[["a", "b"]])
    new = pd.DataFrame(NEW[:, :2], columns=["a", "b"])
    np.testing.assert_array_equal(fast.predict(new), model.predict(new))
