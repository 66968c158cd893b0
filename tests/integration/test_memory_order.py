"""Answers lie in memory as the library's do, so that sums of rows have its bits.

``test_surface.py`` compares the order of all methods' answers, in all states.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.inspection import partial_dependence
from sklearn.multioutput import MultiOutputRegressor

import skforge
from tests.kinds import CLASSIFIERS, TARGETS, Z
from tests.plain import plain

cb = pytest.importorskip("catboost")

CAT = {"iterations": 5, "verbose": 0, "allow_writing_files": False, "thread_count": 1}
#: The model, its target and the method.
CASES: dict[str, tuple[Any, str, str]] = {
    "xgboost of two": (CLASSIFIERS["xgboost"], "two", "predict_proba"),
    "catboost of two": (cb.CatBoostClassifier(**CAT), "two", "predict_proba"),
    "catboost of three": (cb.CatBoostClassifier(**CAT), "three", "predict_proba"),
    "hist of three": (CLASSIFIERS["hist"], "three", "decision_function"),
}
ROWS = np.random.default_rng(1).normal(size=(900, Z.shape[1])).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
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
