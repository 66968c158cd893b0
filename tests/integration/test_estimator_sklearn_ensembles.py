"""scikit-learn's other ensembles: wrong leaves, and forests alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils import get_tags
from threadpoolctl import threadpool_limits

from skforge import UnsupportedModelError
from skforge.exceptions import VerificationError
from skforge.modules.compiled import compile_forest
from skforge.prediction.given_rows import GivenRows
from skforge.prediction.of_rows import Basis
from skforge.prediction.predictor import ForestPredictor
from skforge.prediction.verification import verify
from tests.compared_calls import difference
from tests.kinds import MODELS, X
from tests.plain import plain

NAMES = [
    name
    for name, kind in MODELS.items()
    if name.startswith(("gb", "hist", "isolation", "bagging", "adaboost"))
    and kind.on == "array"
    and not kind.y.startswith("one ")  # whose leaves all say the same
]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine, threads that wait for each other cost seconds."""
    with threadpool_limits(1):
        yield


def fitted(name):
    model = MODELS[name].fitted()
    return model, plain(model).fit(X)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_verification_sees_a_wrong_leaf(name):
    model, fast = fitted(name)
    leaves = np.nextafter(fast.forest_.leaf_value, np.inf)
    forest = replace(fast.forest_, leaf_value=leaves)
    predictor = ForestPredictor(Basis(compile_forest(forest), model))
    with pytest.raises(VerificationError):
        verify(predictor, GivenRows(X), False)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_a_forest_without_its_model(name):
    """As loaded where scikit-learn's estimator is not at hand."""
    model, fast = fitted(name)
    bare = plain(fast.forest_).fit(X)
    kind = get_tags(model).estimator_type
    assert get_tags(bare).estimator_type == kind
    for method in ("predict_proba", "decision_function", "score_samples"):
        if method == "decision_function" or kind != "classifier":
            assert hasattr(bare, method) == hasattr(model, method), method
        if hasattr(model, method):
            assert not difference(getattr(bare, method), getattr(model, method), X)
    expected = model.predict(X)
    if kind == "classifier":
        expected = np.searchsorted(model.classes_, expected)
    np.testing.assert_array_equal(bare.predict(X), expected)


def test_one_class_is_said_where_members_are_no_help():
    model = clone(MODELS["adaboost of names"].model).fit(np.eye(3), [1, 1, 1])
    with pytest.raises(UnsupportedModelError, match="was fitted with one class"):
        plain(model).fit(np.eye(3))
