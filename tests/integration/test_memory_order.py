"""Answers lie in memory as the library's do, so that sums of rows have its bits."""

from __future__ import annotations

import pickle
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import ensemble
from sklearn.base import clone
from sklearn.inspection import partial_dependence
from sklearn.multioutput import MultiOutputRegressor

import skforge
from tests.compared_calls import called, difference
from tests.kinds import CLASSIFIERS, REGRESSORS, SCORE, TARGETS, Z
from tests.plain import plain

cb = pytest.importorskip("catboost")

CAT = {"iterations": 5, "verbose": 0, "allow_writing_files": False, "thread_count": 1}
LABELS = {**CAT, "loss_function": "MultiLogloss"}
TARGETS = {**TARGETS, "many": np.digitize(SCORE, np.linspace(-2, 2, 11))}
#: The model, its target and the method, where no kind of ``test_kinds.py`` has them.
CASES: dict[str, tuple[Any, str, str]] = {
    "xgboost of two": (CLASSIFIERS["xgboost"], "two", "predict_proba"),
    "catboost of two": (cb.CatBoostClassifier(**CAT), "two", "predict_proba"),
    "catboost of three": (cb.CatBoostClassifier(**CAT), "three", "predict_proba"),
    **{
        f"catboost, {method}": (cb.CatBoostClassifier(**CAT), "three", method)
        for method in ("predict_log_proba", "staged_predict_proba")
    },
    "catboost, labels": (cb.CatBoostClassifier(**LABELS), "labels", "predict"),
    "catboost, each": (cb.CatBoostClassifier(**LABELS), "labels", "predict_proba"),
    **{
        f"catboost of columns, {method}": (
            cb.CatBoostRegressor(**{**CAT, "loss_function": "MultiRMSE"}),
            *("columns", method),
        )
        for method in ("predict", "staged_predict")
    },
    "catboost, uncertain": (
        cb.CatBoostRegressor(**{**CAT, "loss_function": "RMSEWithUncertainty"}),
        *("values", "predict"),
    ),
    "hist of three": (CLASSIFIERS["hist"], "three", "decision_function"),
    **{
        f"hist of many, {method}": (CLASSIFIERS["hist"], "many", method)
        for method in (
            *("predict_proba", "staged_predict_proba"),
            "staged_decision_function",
        )
    },
    "adaboost, staged": (CLASSIFIERS["adaboost"], "three", "staged_predict_proba"),
    "xgboost of columns": (REGRESSORS["xgboost"], "columns", "predict"),
    "leaves of an embedding": (
        ensemble.RandomTreesEmbedding(5, random_state=0),
        *("two", "apply"),
    ),
}
ROWS = np.random.default_rng(1).normal(size=(900, Z.shape[1])).astype(np.float32)


def answers(model: Any, method: str, rows: Any) -> Any:
    found = getattr(model, method)(rows)
    return [*found] if method.startswith("staged_") else found


@pytest.mark.parametrize("name", CASES)
def test_the_order_of_answers(name: str, tmp_path: Path) -> None:
    model, target, method = CASES[name]
    model = clone(model).fit(Z, TARGETS[target])
    fast = plain(model).fit(Z)
    skforge.save(fast, tmp_path / "a.skforge")
    loaded = skforge.load(tmp_path / "a.skforge")
    dropped = plain(model).fit(Z).drop_estimator()
    for one in (fast, pickle.loads(pickle.dumps(fast)), loaded, dropped):
        ours, own = partial(answers, one, method), partial(answers, model, method)
        for n in (0, 1, 2, 9, 64, len(ROWS)):  # by kernels at first, then by entries
            if not n and called(own, ROWS[:0])[1]:
                continue  # the library refuses no rows
            for _ in range(2):
                assert not difference(ours, own, ROWS[:n])
    calls = fast.counters()
    assert calls["kernel"]["calls"] + calls["entry"]["calls"] >= 5


@pytest.mark.parametrize(
    "name", ["catboost of two", "catboost of three", "hist of three", "xgboost of two"]
)
def test_sums_of_rows(name: str) -> None:
    model, target, method = CASES[name]
    model = clone(model).fit(Z, TARGETS[target])
    fast = plain(model).fit(Z)
    how = {"response_method": method}
    own = partial_dependence(model, Z, [0], method="brute", **how)["average"]
    ours = skforge.partial_dependence(fast, Z, [0], exact=True, **how)["average"]
    np.testing.assert_array_equal(ours, own)
    for rows in (Z, ROWS, ROWS[:100]):
        sums = [getattr(each, method)(rows).sum(axis=0) for each in (fast, model)]
        np.testing.assert_array_equal(*sums)


def test_raw_scores_of_members_have_the_order_of_their_forest(monkeypatch) -> None:
    """A comparison at the door tells no difference of one."""
    monkeypatch.delenv("SKFORGE_CHECK")
    model = MultiOutputRegressor(cb.CatBoostRegressor(**CAT)).fit(Z, TARGETS["columns"])
    fast = plain(model).fit(Z)
    with warnings.catch_warnings(action="error"):
        assert fast.predict_raw(ROWS[:9]).flags.f_contiguous
    assert not fast.counters()["library"]["calls"]


def test_large_rows_have_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that are written block by block."""
    monkeypatch.setattr("skforge.prediction.blocks.MOST_VALUES", 100)
    monkeypatch.setattr("skforge.prediction.blocks.BLOCK_VALUES", 100)
    for name in ("catboost of three", "hist of three", "xgboost of two"):
        model, target, method = CASES[name]
        model = clone(model).fit(Z, TARGETS[target])
        fast, rows = plain(model).fit(Z), Z[:201]
        getattr(fast, method)(rows)
        found, wanted = (getattr(each, method)(rows) for each in (fast, model))
        assert found.strides == wanted.strides
        np.testing.assert_array_equal(found, wanted)
