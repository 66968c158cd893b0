"""``skforge.accelerate()``: which calls are taken, and what the others look like."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from itertools import count
from math import ceil
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn import ensemble
from sklearn.base import clone

import skforge
from skforge import Schedule
from skforge.acceleration import api, around_importlib_bootstrap, compiling
from skforge.acceleration.estimate import seconds_to_compile
from skforge.acceleration.kernels import unlike
from skforge.acceleration.records import record_of
from skforge.acceleration.settings import Settings
from skforge.acceleration.tally import Tally
from skforge.sources.sklearn import SklearnSource
from tests.accelerated_models import (
    EAGER,
    FRAME,
    MODELS,
    X,
    Y,
    by_kernels,
    forest,
    plainly,
    warm,
    xgb,
)
from tests.compared_calls import called

pytestmark = pytest.mark.usefixtures("restored")


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


@pytest.mark.parametrize("name", ["xgboost", "lightgbm", "catboost"])
def test_a_bases_method_answers_as_the_bases(eager, name):
    model = clone(MODELS[name]).fit(X, Y)
    _, own, *_ = (
        vars(kind)["predict"] for kind in type(model).__mro__ if "predict" in vars(kind)
    )
    expected = plainly(lambda m: own(m, X), model)[0]
    assert unlike(warm(model, method="predict"), expected)
    for _ in range(3):
        assert unlike(own(model, X), expected) == ""


#: By model, arguments that leave answers as they are, and others.
ARGUMENTS: dict[str, tuple[list[Any], list[Any]]] = {
    "xgboost": (
        [{"validate_features": False}, {"output_margin": False, "base_margin": None}],
        [{"output_margin": True}, {"validate_features": "x"}, {"n_jobs": 1}],
    ),
    "lightgbm": (
        [
            *({"num_threads": 2}, {"nthread": 0}, {"n_jobs": -1, "verbose": -1}),
            *({"verbosity": 1}, {"predict_disable_shape_check": True}),
            *({"validate_features": True}, {"num_iteration": -1}),
        ],
        [
            *({"num_threads": "2"}, {"num_threads": True}, {"num_iteration": 2}),
            *({"num_threads": 1, "n_jobs": 2}, {"raw_score": True}, {"seed": 3}),
            {"predict_disable_shape_check": 1},
        ],
    ),
    "catboost": (
        [{"thread_count": 2, "verbose": False}, {"ntree_end": 0, "task_type": "CPU"}],
        [{"thread_count": 0}, {"thread_count": "2"}, {"verbose": 1}, {"ntree_end": 2}],
    ),
    "pipeline": ([], [{"num_threads": 2}]),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_only_say_how_are_taken(eager, name):
    model = clone(MODELS[name]).fit(X, Y)
    warm(model, method="predict")
    for taken, cases in zip((True, False), ARGUMENTS[name], strict=True):
        for named in cases:

            def call(m: Any, named: Any = named) -> Any:
                return m.predict(X, **named)

            before, expected = by_kernels(model), plainly(call, model)
            answer = called(call, model)
            assert answer[1:] == expected[1:]
            assert answer[1] or unlike(answer[0], expected[0]) == ""
            assert by_kernels(model) - before == taken, named


def test_kernels_use_as_many_threads_as_calls_ask_for(eager):
    model = clone(MODELS["lightgbm"]).fit(X, Y)
    for _ in range(3):
        model.predict(X, num_threads=3)
    assert record_of(model).kernels.n_jobs == 3


def test_names_of_frames_are_compared_by_the_library_if_it_is_told_to(eager):
    model = clone(MODELS["lightgbm"]).fit(FRAME, Y)
    mixed = FRAME[[*"edcba"]]
    warm(model, mixed)
    assert called(lambda m: m.predict_proba(mixed, validate_features=True), model)[1]


@pytest.mark.parametrize("objective", ["binary:logistic", "multi:softmax"])
def test_a_booster_of_xgboost_answers_in_place(eager, objective):
    how = {"objective": objective, "nthread": 1, "max_depth": 3}
    how |= {"num_class": 2} if objective.startswith("multi") else {}
    model = xgb.train(how, xgb.DMatrix(FRAME, Y), 4)
    forms = FRAME, FRAME[:1], X, FRAME[[*"edcba"]], X[:, :3], X[:0]
    for turn in range(2):
        if turn:
            model.update(xgb.DMatrix(FRAME, 1 - Y), 4)
        calls = [lambda m, rows=rows: m.inplace_predict(rows) for rows in forms]
        expected = [plainly(call, model) for call in calls]
        for _ in range(4):
            for call, wanted in zip(calls, expected, strict=True):
                answer = called(call, model)
                assert answer[1:] == wanted[1:]
                assert answer[1] or unlike(answer[0], wanted[0]) == ""
        assert by_kernels(model) >= 6
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_a_dmatrix_is_counted_and_left(eager):
    model = xgb.train({"nthread": 1}, xgb.DMatrix(X, Y), 2)
    for _ in range(3):
        model.predict(xgb.DMatrix(X))
    (line,) = skforge.acceleration_report()
    assert (line.model, line.library_calls) == ("Booster", 3)
    assert line.reasons == {"a DMatrix gives its rows only as sparse copies": 3}


def test_rows_of_very_many_forms_are_left(eager, monkeypatch):
    monkeypatch.setattr("skforge.acceleration.kernels.MOST_FORMS", 2)
    model = forest()
    for rows in (X, X.astype(np.float32), np.asfortranarray(X)):
        for _ in range(3):
            model.predict(rows)
    assert record_of(model).why == "its rows are of too many forms"


def test_labels_in_one_column_have_the_librarys_looks(eager):
    model = clone(MODELS["catboost"]).fit(X, Y + (X[:, 0] > 1))
    expected = plainly(lambda m: m.predict(X), model)[0]
    assert expected.shape == (200, 1)
    assert unlike(warm(model, method="predict"), expected) == ""


def test_a_model_in_a_mapped_file_is_left_without_a_complaint(eager, tmp_path, caplog):
    joblib.dump(clone(MODELS["lightgbm"]).fit(X, Y), tmp_path / "model.joblib")
    model = joblib.load(tmp_path / "model.joblib", mmap_mode="r")
    assert isinstance(plainly(lambda m: m.predict(X), model)[0], np.memmap)
    for _ in range(3):
        assert isinstance(model.predict(X), np.memmap)
    assert "Please report" not in caplog.text
    assert by_kernels(model) == 0


def test_what_cannot_be_read_tells_nothing_when_it_goes(
    eager, capsys, caplog, monkeypatch
):
    model = forest()
    monkeypatch.setattr(SklearnSource, "traces", lambda model: model.no_attribute)
    for _ in range(3):
        model.predict(X)
    gc.collect()
    assert record_of(model).state == "left"
    assert "Exception ignored" not in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("is_ready", "spent", "saved", "debt"),
    [(True, 1.0, 1.5, 0.0), (False, 0.0, 0.0, 0.0), (True, 1.0, 0.5, 0.5)],
)
def test_a_library_first_takes_as_long_as_compiling_will(
    monkeypatch, is_ready, spent, saved, debt
):
    model, a_call, read = forest(), 2**-6, []
    ticks = partial(next, count(0.0, a_call))
    monkeypatch.setattr(around_importlib_bootstrap, "perf_counter", ticks)
    monkeypatch.setattr(api.COMPILER, "is_ready", is_ready)
    monkeypatch.setattr(api.COMPILER, "prepares", lambda: True)
    monkeypatch.setattr(api.calls, "_read", lambda known, *_: read.append(known.calls))
    monkeypatch.setattr(api.COMPILER, "spent", spent)
    monkeypatch.setattr(api.calls, "saved", lambda: saved)
    api.start((), Settings())
    for _ in range(60):
        model.predict_proba(X)
    takes = seconds_to_compile(model, is_ready, True)  # 16 ms a call are many
    assert read == [ceil((Settings.least_seconds + takes + debt) / a_call)]


@pytest.mark.parametrize(("a_call", "rests"), [(2**-9, 2**-9), (2**-4, 5e-3)])
@pytest.mark.parametrize("state", ["watched", "compiling"])
def test_calls_rest_while_a_thread_compiles(monkeypatch, state, a_call, rests):
    """As scikit-learn's own give Python's lock away too shortly for it."""
    model, slept = forest(), []
    ticks = partial(next, count(0.0, a_call))
    monkeypatch.setattr(around_importlib_bootstrap, "perf_counter", ticks)
    monkeypatch.setattr(compiling, "sleep", slept.append)
    monkeypatch.setattr(api.COMPILER, "prepares", lambda: False)
    monkeypatch.setattr(api.calls, "seconds_to_compile", lambda *_: 0.0)
    monkeypatch.setattr(api.calls, "debt", lambda: 0.0)
    api.start((), Settings(least_seconds=0.0))
    for at_work, expected in (([], []), ([None], [rests])):
        monkeypatch.setattr(api.COMPILER, "at_work", at_work)
        model.predict_proba(X)
        known = record_of(model)
        known.seconds, known.needed, known.state = known.calls * a_call, 0.0, state
        slept.clear()
        model.predict_proba(X)
        assert slept == expected


def test_sizes_for_which_the_library_is_faster_are_weighed_ever_more_rarely(
    eager, monkeypatch
):
    model, weighed = forest(), []
    warm(model)
    monkeypatch.setattr(Tally, "pays", lambda *about: weighed.append(about))
    api.ACTIVE.settings = Settings(schedule=Schedule())
    for _ in range(32):  # the 3rd to the 34th of the library's
        model.predict_proba(X)
    assert len(weighed) == 1 + len([4, 8, 16, 32])
    api.ACTIVE.settings = Settings(min_rows=201)
    model.predict_proba(X)
    (line,) = skforge.acceleration_report()
    assert (line.kernel_calls, line.library_calls) == (1, 35)
    assert line.reasons == {
        "the library is faster for such batches": 32,
        "too few calls so far": 1,
        "the rows were of a new form, and compared": 1,
        "they are fewer rows than min_rows": 1,
    }


def test_rows_of_frames_are_counted_whatever_their_index_is(monkeypatch):
    monkeypatch.setattr(api.calls, "PANDAS", api.calls._Pandas())
    kind = ensemble.IsolationForest
    monkeypatch.setattr(kind, "predict", lambda self, X: None)
    api.start(("sklearn",), Settings())
    model, numbers = kind(), pd.RangeIndex(40, 240)
    indexes = numbers, numbers[::-1], numbers.astype(str), pd.to_datetime(numbers)
    for index in (*indexes, pd.MultiIndex.from_arrays([numbers, numbers])):
        model.predict(FRAME.set_axis(index))
    model.predict(FRAME[[]])
    skforge.restore()  # before the monkeypatch ends
    (line,) = skforge.acceleration_report()
    assert (line.library_calls, line.library_rows) == (6, 1200)


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
