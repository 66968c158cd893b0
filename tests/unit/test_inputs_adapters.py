"""Adapters are found by registration, and are the same for live and stored models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingRegressor,
    GradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestRegressor,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils import get_tags

from skforge import InvalidModelError, load_forest
from skforge.runtime.records import plain_in, plain_out
from skforge.sources.base import ADAPTERS, Source, adapter_of, register, rules_type
from skforge.sources.find import source_of
from skforge.sources.stored_model.store import store

X = np.random.default_rng(0).normal(size=(80, 3))
Y = (X[:, 0] > 0).astype(int)

MODELS = {
    "single tree": lambda: DecisionTreeClassifier(max_depth=2),
    "trees": lambda: RandomForestRegressor(2),
    "boosting": lambda: GradientBoostingClassifier(n_estimators=2),
    "histogram": lambda: HistGradientBoostingRegressor(max_iter=2),
    "isolation": lambda: IsolationForest(n_estimators=2),
    "bagging": lambda: BaggingRegressor(DecisionTreeRegressor(), 2),
    "adaboost": lambda: AdaBoostClassifier(n_estimators=2),
    "xgboost": lambda: pytest.importorskip("xgboost").XGBClassifier(n_estimators=2),
    "lightgbm": lambda: pytest.importorskip("lightgbm").LGBMRegressor(
        n_estimators=2, verbose=-1
    ),
}


class Wrapper:
    """The part of a CompiledForest that ``store`` reads."""

    def __init__(self, forest):
        self.forest_ = forest


@pytest.mark.parametrize("name", MODELS)
def test_live_and_stored_models_have_the_same_adapter(name):
    model = MODELS[name]().fit(X, Y)
    forest = load_forest(model)
    live = source_of(model, forest)
    rules = live.kept_rules()
    assert type(rules) is live.rules_type is rules_type(live.kind)
    assert rules.suits(forest)
    assert plain_in(type(rules), plain_out(rules), "rules") == rules
    kept = store(Wrapper(forest), model, get_tags(model))
    stored = source_of(kept, forest)
    assert type(stored) is type(live) is adapter_of(model)
    assert (live.model, live.stored) == (model, None)
    assert (stored.model, stored.stored) == (None, kept)
    for member in ("answers", "declines", "warning"):
        assert getattr(stored, member) == getattr(live, member), member
    np.testing.assert_equal(stored.fill, live.fill)  # NaN, too
    (found, warning), (expected, theirs) = stored.read(X), live.read(X)
    np.testing.assert_array_equal(found, expected)
    assert warning == theirs


def test_each_kind_has_one_adapter():
    kinds = [adapter.kind for adapter in ADAPTERS if adapter.kind]
    assert sorted(kinds) == sorted({*kinds})
    assert {"forest", "trees", "xgboost_booster", "lightgbm_booster"} < {*kinds}


def test_an_adapter_of_somebody_else_is_found_by_its_registration():
    class Tree(DecisionTreeClassifier):
        pass

    class TreeSource(Source):
        classes = (f"{__name__}.{Tree.__qualname__}",)
        kind = "toy"

        def _rows(self, X, method):
            return X

    model = Tree().fit(X, Y)
    assert adapter_of(model) is adapter_of(DecisionTreeClassifier())
    register(TreeSource)
    try:
        assert type(source_of(model, None)) is TreeSource
        assert adapter_of(DecisionTreeClassifier()) is not TreeSource
    finally:
        ADAPTERS.remove(TreeSource)


def test_an_array_is_read_whatever_its_type_is_called():
    """NumPy 2.5 writes NDArray with ``type``."""
    named = SimpleNamespace(__value__=np.ndarray[Any, Any])
    read = plain_in(named, plain_out(np.arange(3)), "codes")
    assert read.tolist() == [0, 1, 2]


def test_arrays_of_texts_are_refused_before_they_fill_memory():
    array = {"dtype": "<U500000000", "values": ["a", "b"]}
    with pytest.raises(InvalidModelError):
        plain_in(np.ndarray, array, "columns")
    wanted = plain_in(np.ndarray, {"dtype": "<f8", "values": [1, 2]}, "columns")
    assert wanted.tolist() == [1.0, 2.0]
