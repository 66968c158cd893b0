"""Single rows through CompiledForest: the source's answers, by compiled entries."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn import config_context, ensemble
from sklearn.base import clone
from threadpoolctl import threadpool_limits

from skforge import CompiledForest
from skforge.prediction.predictor import ForestPredictor
from tests import kinds
from tests.plain import plain
from tests.sklearn_rows import same_bits as assert_same

X = kinds.X.astype(np.float32)
TWO, WIDTH = kinds.TWO, kinds.WIDTH

METHODS = ("predict", "predict_proba", "predict_raw")


#: Kinds, and the methods that are compiled entries.
ENTRIES: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        (
            *("xgboost of two", "xgboost of three", "xgboost of labels"),
            *("xgboost, stopped early", "lightgbm of names", "lightgbm of three"),
            *("lightgbm of three names", "lightgbm, one against all"),
            *("lightgbm, averages", "forest of two", "forest of three"),
            *("forest of names", "extra of names", "tree of three", "gb of names"),
            *("gb, exponential", "hist of names", "bagging of three names"),
            # with NumPy's own exp and sums
            *("gb of odd", "hist of odd", "adaboost of names", "adaboost of odd"),
            "xgboost, softmax",
        ),
        frozenset(METHODS),
    ),
    **dict.fromkeys(
        (
            *("xgboost of values", "xgboost of counts", "lightgbm of values"),
            *("lightgbm, roots", "lightgbm, cross-entropy", "forest of values"),
            *("extra of columns", "gb of values", "hist of values"),
            "hist of counts",
            "isolation",  # scores are powers of 2, by NumPy's own loop
        ),
        frozenset({"predict", "predict_raw"}),
    ),
    # two targets: lists of arrays, which entries do not make
    "forest of labels": frozenset({"predict_raw"}),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Keep sources from waking threads for one row, which costs seconds in all."""
    with threadpool_limits(1):
        yield


@cache
def source(name: str) -> Any:
    return kinds.MODELS[name].fitted()


@cache
def wrapped(name: str) -> CompiledForest:
    return CompiledForest(source(name), batch_sizes=[1]).fit(X)


def entries(model: CompiledForest) -> set[str]:
    """Return the methods with an entry, after a call of each."""
    there = [method for method in METHODS if hasattr(model, method)]
    for method in there:
        getattr(model, method)(X[:1])
    predictor = model.__dict__["_predictor"]
    one = X[:1].astype(predictor.forest.input_dtype)
    made = {method: predictor.entries.get(method) for method in there}
    return {m for m, entry in made.items() if entry and entry(one) is not None}


def entry_calls(model: CompiledForest) -> dict[str, Any]:
    predictor = model.__dict__["_predictor"]
    return {method: predictor.entries.get(method) for method in METHODS}


@pytest.fixture
def no_ordinary_path(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes every call fail that is not answered by an entry."""

    def close() -> None:
        def refuse(*_: Any, **__: Any) -> Any:
            raise AssertionError("the ordinary path")

        monkeypatch.setattr(ForestPredictor, "answer", refuse)

    return close


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_is_there_for_every_method_that_can_have_one(name):
    assert entries(wrapped(name)) == ENTRIES[name]


@pytest.mark.parametrize(
    "name",
    [
        *("xgboost of two", "xgboost of three", "lightgbm of names", "hist of names"),
        *("lightgbm of three", "gb of odd", "hist of odd", "gb of names"),
        *("adaboost of names", "adaboost of odd", "forest of two", "forest of three"),
        "xgboost, softmax",
    ],
)
def test_probabilities_lie_in_memory_as_the_sources(name):
    model = plain(source(name)).fit(X)
    model.warm_up([1, 2, 9, 64])
    for n in (1, 2, 9, 64):
        for first in range(0, len(X) - n, 50):
            part = X[first : first + n]
            found, own = model.predict_proba(part), source(name).predict_proba(part)
            assert_same(found, own)
            assert found.flags.c_contiguous == own.flags.c_contiguous
            assert found.flags.f_contiguous == own.flags.f_contiguous
            assert_same(found, entry_calls(model)["predict_proba"](part))


def test_decision_functions_are_entries():
    names = "gb of names", "gb of odd", "hist of names", "hist of odd", "isolation"
    for name in (*names, "adaboost of names"):
        model, own = wrapped(name), source(name)
        for row in range(20):
            one = X[row : row + 1]
            assert_same(model.decision_function(one), own.decision_function(one))
        assert model.__dict__["_predictor"].entries["decision_function"] is not None
        assert inspect.isbuiltin(model.decision_function.__func__)


def test_scores_of_isolation_forests_are_entries():
    model, own = wrapped("isolation"), source("isolation")
    model.score_samples(X[:1]), model.decision_function(X[:1])
    scores = model.__dict__["_predictor"].entries["score_samples"]
    decide = model.__dict__["_predictor"].entries["decision_function"]
    rows = np.random.default_rng(3).standard_normal((300, X.shape[1])) * 3
    rows = rows.astype(np.float32)
    for part in (rows, *(rows[k : k + 1] for k in range(60)), rows[:7], rows[:8]):
        assert_same(scores(part), own.score_samples(part))
        assert_same(decide(part), own.decision_function(part))
    assert inspect.isbuiltin(model.score_samples.__func__)


# ------------------------------------------------- what the source says, it still says


def test_infinity_where_scikit_learn_is_told_that_all_is_finite():
    model, own = wrapped("forest of two"), source("forest of two")
    row = X[:1].copy()
    row[0, 1] = np.inf
    with config_context(assume_finite=True):
        assert_same(model.predict_proba(row), own.predict_proba(row))
    with pytest.raises(ValueError, match="infinity"):
        model.predict_proba(row)


# ------------------------------------------------------------------ the estimator


def fresh(**params: Any) -> CompiledForest:
    return CompiledForest(source("forest of names"), **params).fit(X)


def test_copies_have_entries_of_their_own():
    model = fresh()
    expected = model.predict_proba(X[:1])
    assert entries(model) == set(METHODS)
    before = set(map(id, entry_calls(model).values()))
    assert "_predictor" not in model.__getstate__()
    again = pickle.loads(pickle.dumps(model))
    for copied in (again, copy.deepcopy(model), copy.copy(model)):
        assert_same(copied.predict_proba(X[:1]), expected)
        assert_same(copied.predict(X[:1]), model.predict(X[:1]))
        assert entries(copied) == set(METHODS)
        assert not before & set(map(id, entry_calls(copied).values()))
    assert "_predictor" not in clone(model).__dict__


def test_another_number_of_threads_makes_entries_anew():
    model = fresh()
    entries(model)
    alone = entry_calls(model)
    many = np.resize(X, (3000, WIDTH))
    expected = model.predict_raw(many)  # compiles the kernel of many rows
    assert alone["predict_raw"](many) is not None
    kept = model.predict_raw
    model.set_params(n_jobs=2)
    for _ in range(2):
        assert_same(kept(many), expected)
        assert_same(model.predict(X[:1]), alone["predict"](X[:1]))
        assert_same(model.predict_raw(X[:1]), alone["predict_raw"](X[:1]))
        assert_same(model.predict_raw(many), expected)
    threaded = entry_calls(model)
    assert threaded["predict_raw"](X[:1]) is not None
    assert threaded["predict_raw"] is not alone["predict_raw"]
    assert_same(threaded["predict_raw"](many), expected)  # on two threads
    model.set_params(n_jobs=None)
    assert_same(model.predict_raw(many), expected)
    assert entry_calls(model)["predict_raw"](many) is not None


def test_several_threads_leave_single_rows_to_the_entries():
    """Also where so few rows may be shared that an entry declines its own check."""
    model = ensemble.RandomForestClassifier(40, random_state=0).fit(X, TWO)
    with threadpool_limits(2):
        cold, warm = (CompiledForest(model, tuning="off", n_jobs=2) for _ in range(2))
        warm.fit(X[:50]).warm_up()
        cold.fit(X[:50])
        for method in METHODS:
            for fast in (cold, warm):
                many = getattr(fast, method)(X)
                assert_same(many[:1], getattr(fast, method)(X[:1]))
        assert entries(cold) == entries(warm) == set(METHODS)


def test_a_fitted_model_is_freed_with_its_entries():
    model = fresh()
    entries(model)
    holders = [weakref.ref(entry_calls(model)["predict_raw"].__self__)]
    module = weakref.ref(model.__dict__["_predictor"].module)
    del model
    gc.collect()
    assert module() is None and [h() for h in holders] == [None]


def test_the_entry_answers_the_second_call_alone(no_ordinary_path):
    """No test would notice a fast path that is never taken, but for this."""
    model = fresh()
    entries(model)
    no_ordinary_path()
    for method in METHODS:
        getattr(model, method)(X[:1])
        with pytest.raises(AssertionError, match="the ordinary path"):
            getattr(model, method)(X[0])


# ------------------------------------------------------------------ bound methods


def test_a_bound_method_that_is_kept_follows_its_model():
    model = fresh()
    entries(model)
    kept = {method: getattr(model, method) for method in METHODS}
    old, new = (source(f"forest of {kind}") for kind in ("names", "three"))
    assert not inspect.isfunction(kept["predict"].__func__)  # the entry itself
    for method in ("predict", "predict_proba"):
        assert_same(kept[method](X[:1]), getattr(old, method)(X[:1]))
        assert_same(kept[method](X=X[:1]), getattr(old, method)(X[:1]))
    model.set_params(estimator=new).fit(X)
    for _ in range(2):
        for method in ("predict", "predict_proba"):
            assert_same(kept[method](X[:1]), getattr(new, method)(X[:1]))
            assert_same(getattr(model, method)(X[:1]), getattr(new, method)(X[:1]))


def test_a_bound_method_keeps_its_model_and_is_copied_with_it():
    model = fresh()
    entries(model)
    kept = model.predict
    expected = kept(X[:1])
    copies = pickle.loads(pickle.dumps(kept)), copy.deepcopy(kept)
    assert copies[0].__self__ is not model and copies[1].__self__ is not model
    assert kept == model.predict and kept.__self__ is model
    alone = weakref.ref(model)
    del model
    gc.collect()
    for method in (kept, *copies):
        assert_same(method(X[:1]), expected)
    del method, kept
    assert alone() is None  # at once: no cycle waits for the collector


def test_bound_methods_go_to_other_processes():
    """``test_concurrency.py`` sends them to workers."""
    cloudpickle = pytest.importorskip("cloudpickle")

    model = fresh()
    entries(model)
    expected = model.predict(X[:9])
    assert_same(cloudpickle.loads(cloudpickle.dumps(model.predict))(X[:9]), expected)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(model.__dict__["_predictor"].module.entry())


def test_methods_of_another_model_do_not_answer_for_it():
    model, other = fresh(), CompiledForest(source("forest of two")).fit(X)
    entries(model), entries(other)
    method = model.predict.__func__
    assert method(other, X[:1]).tolist() == other.predict(X[:1]).tolist()
    del model
    again = CompiledForest(source("forest of two")).fit(X)
    assert_same(method(again, X[:1]), again.predict(X[:1]))


def test_methods_on_the_class_and_of_subclasses_are_what_they_were():
    class Louder(CompiledForest):
        def predict(self, X: Any) -> Any:
            return np.char.upper(super().predict(X))

    model = fresh()
    louder = Louder(source("forest of names")).fit(X)
    entries(model), entries(louder)
    for _ in range(2):
        found = louder.predict(X[:1])
        assert found.tolist() == np.char.upper(model.predict(X[:1])).tolist()
    found = CompiledForest.predict(model, X[:1])
    assert found.tolist() == model.predict(X[:1]).tolist()
    own = inspect.signature(CompiledForest.predict)
    assert [*own.parameters] == ["self", "X", "args", "params"]
    assert str(inspect.signature(model.predict)) == "(X, *args, **params)"
    assert model.predict.__doc__ == CompiledForest.predict.__doc__
    assert model.predict.__name__ == "predict"


def test_methods_can_be_replaced_on_one_model(monkeypatch):
    model = fresh()
    entries(model)
    monkeypatch.setattr(model, "predict", lambda X: "mine")
    assert model.predict(X[:1]) == "mine"
    monkeypatch.undo()
    assert model.predict(X[:1]).tolist() == fresh().predict(X[:1]).tolist()


def test_a_method_the_model_has_not_is_not_there_after_calls():
    model = CompiledForest(source("forest of values")).fit(X)
    for _ in range(3):
        model.predict(X[:1])
        assert not hasattr(model, "predict_proba")
    assert "CompiledForest.predict of " in repr(model.predict)  # which is an entry


def test_many_threads_find_one_method_while_another_fits():
    model, names = fresh(batch_sizes=[1]), {"no", "yes", "0", "1", "2"}
    three = source("forest of three")
    two = source("forest of names")
    wrong: list[Any] = []
    stop = threading.Event()

    def ask() -> None:
        kept = model.predict
        while not stop.is_set():
            for found in (model.predict(X[:1]), kept(X[:1])):
                if str(found[0]) not in names:
                    wrong.append(found)

    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask) for _ in range(3)]
        try:
            for own in (three, two, three):
                model.set_params(estimator=own).fit(X)
                for _ in range(10):
                    assert_same(model.predict(X[:9]), own.predict(X[:9]))
        finally:
            stop.set()
    assert [one.result() for one in asked] == [None] * 3
    assert wrong == []
    assert model.predict.__func__ is model.predict.__func__
    assert inspect.isbuiltin(model.predict.__func__)


def test_a_state_given_to_a_fitted_model_replaces_its_methods():
    model = fresh()
    other = CompiledForest(source("forest of three")).fit(X)
    entries(model)
    kept = model.predict
    model.__setstate__(other.__getstate__())
    assert_same(kept(X[:9]), other.predict(X[:9]))
    assert_same(model.predict(X[:9]), other.predict(X[:9]))


def test_routes_are_found_once_for_each_form_of_rows(monkeypatch):
    model = CompiledForest(source("forest of two"), batch_sizes=[1]).fit(X)
    rows = X[:1].astype(np.float64)
    forms = {"float32": X[:1], "float64": rows, "list": rows.tolist()}
    expected = {name: model.predict_log_proba(form) for name, form in forms.items()}
    for form in forms.values():  # by entries, after the first call
        model.predict_log_proba(form)

    def search(*_: Any) -> Any:
        raise AssertionError("the routes of these rows are known")

    find = ForestPredictor._find_routes
    monkeypatch.setattr(ForestPredictor, "_find_routes", search)
    for name, form in forms.items():
        assert_same(model.predict_log_proba(form), expected[name])
    with pytest.raises(AssertionError, match="routes"):
        model.predict_log_proba(X[:1].astype(np.int8))
    model.n_jobs = 2  # entries depend on the number of threads
    with pytest.raises(AssertionError, match="routes"):
        model.predict_log_proba(X[:1])
    monkeypatch.setattr(ForestPredictor, "_find_routes", find)
    assert_same(model.predict_log_proba(X[:1]), expected["float32"])
