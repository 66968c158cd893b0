"""``skforge.accelerate()``: which calls are taken, and what the others look like."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from sklearn import ensemble
from sklearn.base import clone

import skforge
from skforge.acceleration import api
from skforge.acceleration.kernels import unlike
from skforge.acceleration.records import GONE, record_of
from tests.accelerated_models import (
    EAGER,
    MODELS,
    X,
    Y,
    by_kernels,
    forest,
    plainly,
    warm,
)
from tests.compared_calls import called


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave nothing to other tests: methods, models, nor what the report tells."""
    GONE.clear()
    yield
    skforge.restore()
    GONE.clear()


@pytest.fixture
def eager() -> None:
    api.start((), EAGER)


def test_warnings_name_the_line_of_the_program(monkeypatch):
    def warns(self, X):
        warnings.warn("of the library", stacklevel=2)
        return X

    def trains(self, X, y=None):
        warnings.warn("of the library", stacklevel=2)
        return self

    kind = ensemble.IsolationForest
    monkeypatch.setattr(kind, "predict", warns)
    monkeypatch.setattr(kind, "fit", trains)
    model = kind()
    api.start((), EAGER)
    with pytest.warns(UserWarning) as caught:
        model.predict(X)
        model.predict(X=X)
        model.fit(X)
    skforge.restore()  # before the monkeypatch ends
    assert [w.filename for w in caught] == [__file__] * 3


WRONG: list[Callable[[Any], Any]] = [
    lambda model: model.predict(),
    lambda model: type(model).predict(),
    lambda model: type(model).predict(X=X),
    lambda model: model.predict(X, X),
    lambda model: model.predict(X, wrong=1),
    lambda model: model.predict(np.array(1.0)),
    lambda model: type(model).fit(),
]


@pytest.mark.parametrize("name", ["forest", "xgboost"])
def test_errors_about_arguments_are_the_librarys(eager, name):
    model = clone(MODELS[name]).fit(X, Y)
    warm(model)
    ours = [called(call, model) for call in WRONG]
    skforge.restore()
    theirs = [called(call, model) for call in WRONG]
    assert ours == theirs and all(error for _, error, _ in theirs)


@pytest.mark.parametrize(
    ("name", "base"), [("xgboost", 2), ("lightgbm", 2), ("catboost", 1)]
)
def test_a_bases_method_answers_as_the_bases(eager, name, base):
    model = clone(MODELS[name]).fit(X, Y)
    own = type(model).__mro__[base].predict
    expected = plainly(lambda m: own(m, X), model)[0]
    assert unlike(warm(model, method="predict"), expected)
    for _ in range(3):
        assert unlike(own(model, X), expected) == ""


def test_arguments_with_their_defaults_are_none(eager):
    model = clone(MODELS["xgboost"]).fit(X, Y)
    for _ in range(3):
        model.predict(X=X, output_margin=False, validate_features=True)
        model.predict(X, output_margin=True)
    (line,) = skforge.acceleration_report()
    assert line.kernel_calls == 1 and line.library_calls == 5
    assert line.reasons["it has further arguments"] == 3


def test_calls_of_models_that_are_left_are_counted(eager):
    model = forest(verbose=1)
    for _ in range(4):
        model.predict_proba(X)
    (line,) = skforge.acceleration_report()
    assert (line.library_calls, line.library_rows) == (4, 800)
    assert line.reasons == {
        "not compiled: it prints what it does": 3,
        "too few calls so far": 1,
    }


def test_models_asked_for_lists_alone_are_not_compiled(eager):
    model = forest()
    for _ in range(3):
        model.predict(X.tolist())
    assert record_of(model).state == "watched"


def test_one_thread_at_a_time_compares(eager):
    model = forest()
    model.predict(X)
    with api.calls._ALONE:  # as while another one does
        model.predict(X)
    assert by_kernels(model) == 0
    model.predict(X)
    assert by_kernels(model) == 0
    model.predict(X)
    assert by_kernels(model) == 1
