"""Tests of ``unit/test_inputs_adapters.py`` that compile or start processes."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from sklearn.utils import get_tags

from skforge import load_forest
from skforge.runtime.records import plain_in, plain_out
from skforge.sources.base import adapter_of, rules_type
from skforge.sources.find import source_of
from skforge.sources.stored_model.store import store
from tests.kinds import MODELS, X

NAMES = ("tree of three", "forest of values", "gb of names", "hist of values")
NAMES += ("isolation", "bagging of values", "adaboost of odd", "xgboost of two")
NAMES += ("lightgbm of values",)


class Wrapper:
    """The part of a CompiledForest that ``store`` reads."""

    def __init__(self, forest):
        self.forest_ = forest


@pytest.mark.parametrize("name", NAMES)
def test_live_and_stored_models_have_the_same_adapter(name):
    model = MODELS[name].fitted()
    forest = load_forest(model)
    live = source_of(model, forest)
    rules = live.kept_rules()
    assert type(rules) is live.rules_type is rules_type(live.kind)
    assert rules.suits(forest)
    assert plain_in(type(rules), plain_out(rules), "rules") == rules
    kept = store(Wrapper(forest), model, get_tags(model))
    stored = source_of(kept, forest)
    assert type(stored) is type(live) is adapter_of(model)
    assert (live.model, live.held) == (model, model)
    assert (stored.model, stored.held) == (None, kept)
    for member in ("answers", "warning"):
        assert getattr(stored, member) == getattr(live, member), member
    np.testing.assert_equal(*map(asdict, (stored.facts, live.facts)))  # NaN, too
    (found, warning), (expected, theirs) = stored.read(X), live.read(X)
    np.testing.assert_array_equal(found, expected)
    assert warning == theirs
