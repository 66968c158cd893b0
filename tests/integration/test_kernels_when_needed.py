"""``fit`` compiles the kernel of the smallest batches; calls compile the others."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
from sklearn.datasets import make_classification

import skforge
from skforge import CompiledForest
from skforge.engine import kernels
from skforge.tuning import Tuner, cpu
from tests.noted import calls_of, run_threads
from tests.tuning_tools import Stated

xgb = pytest.importorskip("xgboost")

X, Y = make_classification(400, 6, n_informative=4, random_state=0)
X = X.astype(np.float32)
MODEL = xgb.XGBClassifier(n_estimators=5, max_depth=4, n_jobs=1).fit(X, Y)


@pytest.fixture
def made(monkeypatch):
    """Return a list that gets every kernel that is compiled."""
    return calls_of(monkeypatch, kernels.Kernel, "__init__")


def sizes_of(model):
    """Return the first size of each range."""
    return [max(1, first) for first, _ in sorted(model.schedule_, key=lambda r: r[0])]


@pytest.mark.parametrize("how", ["fitted", "pickled", "loaded"])
def test_each_range_compiles_one_kernel_when_it_is_first_used(made, how, tmp_path):
    model = CompiledForest(MODEL, tuning="off").fit(X)
    assert len(made) == 1
    if how != "fitted":
        made.clear()
        if how == "pickled":
            model = pickle.loads(pickle.dumps(model))
        else:
            skforge.save(model, tmp_path / "a.skforge")
            model = skforge.load(tmp_path / "a.skforge")
        assert made == []
    sizes = sizes_of(model)
    assert len(sizes) > 2
    for count, size in enumerate(sizes, 1):
        rows = np.resize(X, (size, X.shape[1]))
        for _ in range(2):
            assert np.array_equal(model.predict_proba(rows), MODEL.predict_proba(rows))
        assert len(made) == count


def test_fit_uses_the_kernels_that_its_search_compiled(made, monkeypatch):
    """Nothing is lowered or compiled twice."""

    def estimated(schedule, n_rows):  # all but a few seem hopeless
        return 1e-5 if "array" in repr(schedule) else 5e-5

    monkeypatch.setenv("SKFORGE_CACHE", "off")
    lowered = calls_of(monkeypatch, kernels.KernelCache, "lowered")
    monkeypatch.setattr(cpu, "estimate_of", lambda problem: Stated(estimated))
    model = CompiledForest(MODEL, tuning=Tuner(budget=20.0), batch_sizes=[4, 64]).fit(X)
    tried = {trial.schedule for trial in model.tuning_result_.trials}
    assert len(tried) > 2 and len(made) == len({id(kernel) for kernel, *_ in made})
    assert len(lowered) == len({call[1:] for call in lowered})
    count = len(made)
    for size in sizes_of(model):
        rows = np.resize(X, (size, X.shape[1]))
        assert np.array_equal(model.predict_proba(rows), MODEL.predict_proba(rows))
    assert len(made) == count
    kept = model._predictor.module.compiler._kernels
    assert {schedule for schedule, _ in kept} == set(model.schedule_.values())


def test_an_ordinary_model_compiles_one_kernel_with_tuning(made, monkeypatch):
    monkeypatch.setenv("SKFORGE_CACHE", "off")
    monkeypatch.setenv("SKFORGE_TUNING_SECONDS", "4")
    model = xgb.XGBClassifier(n_estimators=100, max_depth=6, n_jobs=1).fit(X, Y)
    fitted = CompiledForest(model).fit(X)
    assert len(made) == 1 and fitted.tuning_result_.trials == ()


def test_warm_up_compiles_the_kernels_that_are_left(made):
    model = CompiledForest(MODEL, tuning="off").fit(X)
    model.warm_up()
    # and one for leaf numbers in each range, of which some share a schedule
    n_ranges = len(model.schedule_)
    assert n_ranges < len(made) <= 2 * n_ranges
    assert model._predictor.module.kernels.compiled() == list(range(n_ranges))


def test_entries_take_a_range_once_its_kernel_is_compared():
    model = CompiledForest(MODEL, tuning="off").fit(X)
    model.predict(X[:1])
    entry = model._predictor.entries["predict"]
    size = sizes_of(model)[1]
    rows = np.resize(X, (size, X.shape[1]))
    assert entry(rows[:1]) is not None and entry(rows) is None
    assert np.array_equal(model.predict(rows), MODEL.predict(rows))
    assert np.array_equal(entry(rows), MODEL.predict(rows))


def test_threads_that_need_a_kernel_at_once_compile_it_once(made):
    model = CompiledForest(MODEL, tuning="off").fit(X)
    rows = np.resize(X, (max(sizes_of(model)), X.shape[1]))
    right = MODEL.predict_proba(rows)
    for found in run_threads(lambda _: model.predict_proba(rows), 4):
        assert np.array_equal(found, right)
    assert len(made) == 2


def test_fit_leaves_no_thread_behind_that_a_fork_or_exit_would_meet():
    before = set(threading.enumerate())
    CompiledForest(MODEL, tuning="off").fit(X).predict(X)
    assert set(threading.enumerate()) == before
