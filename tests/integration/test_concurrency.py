"""One forest in many threads, forks and workers; memory that does not grow.

Every test has a timeout: a deadlock is a failure, not a wait.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import sys
import threading
import time
import weakref
from contextlib import contextmanager

import joblib
import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
from threadpoolctl import threadpool_limits

import skforge
from skforge import CompiledForest, Schedule, compile_forest, load_forest
from skforge.engine import shares
from skforge.engine.cpu import threads as runtime
from skforge.engine.kernels import Kernel
from tests.comparing import in_child
from tests.noted import calls_of, run_threads
from tests.plain import plain

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

X, Y = make_classification(2000, 8, n_informative=5, random_state=0)
X = X.astype(np.float32)
SOURCE = RandomForestClassifier(20, max_depth=6, random_state=0).fit(X[:500], Y[:500])
EXPECTED = SOURCE.predict_proba(X)
SIZES = (1, 2, 3, 17, 64, 130, 600, 2000)
PARALLEL = Schedule().tile("batch", "b0", "b1", 64).parallel("b0")


def right(model, method="predict_proba", sizes=SIZES):
    call = getattr(model, method)
    return all(np.array_equal(call(X[:n]), EXPECTED[:n]) for n in sizes)


def no_cache(monkeypatch):
    """Make every compilation a real one."""
    monkeypatch.setenv("SKFORGE_CACHE", "off")


# ------------------------------------------------------------ threads


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_first_calls_of_all_sizes_at_once(n_jobs, monkeypatch):
    no_cache(monkeypatch)
    compiled = calls_of(monkeypatch, Kernel, "__init__")
    module = compile_forest(load_forest(SOURCE), n_jobs=n_jobs)

    def work(number):
        sizes = np.random.default_rng(number).permutation(SIZES)
        return all(
            right(module, "predict_raw", sizes) and module.apply(X[:5]).shape == (5, 20)
            for _ in range(3)
        )

    assert all(run_threads(work))
    kernels = len(set(module.schedules.values()))
    assert kernels <= len(compiled) <= kernels + 1  # one more for `apply`


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_threads_of_one_loaded_file(n_jobs, tmp_path, monkeypatch):
    no_cache(monkeypatch)
    model = CompiledForest(SOURCE, n_jobs=n_jobs).fit(X[:50])
    skforge.save(model, tmp_path / "model.skforge")
    model = skforge.load(tmp_path / "model.skforge")
    assert all(run_threads(lambda number: right(model)))


def test_threads_that_compile_forests_of_their_own(monkeypatch):
    no_cache(monkeypatch)
    forest = load_forest(SOURCE)

    def work(number):
        schedule = Schedule().tile("batch", "b0", "b1", 8 + number)
        module = compile_forest(forest, schedule)
        return right(module, "predict_raw", (1, 600))

    assert all(run_threads(work, 8))


def test_a_copy_can_be_made_while_others_predict():
    model = CompiledForest(SOURCE, schedule=PARALLEL).fit(X[:50])

    def work(number):
        if number % 4:
            return right(model, sizes=(1, 17, 600))
        return right(pickle.loads(pickle.dumps(model)), sizes=(17,)) and right(
            copy.deepcopy(model), sizes=(17,)
        )

    assert all(run_threads(work))


# ------------------------------------------------------------ all at once


@pytest.fixture(scope="module")
def models():
    y = X.sum(axis=1)[:400]
    boosted = GradientBoostingRegressor(n_estimators=8, random_state=0)
    return SOURCE, boosted.fit(X[:400], y)


def wrong_answers(fast, source, random):
    """Return the methods whose results differ for some rows, in each form."""
    start = int(random.integers(400))
    rows = X[start : start + int(random.choice([1, 2, 7, 64, 300]))]
    forms = rows, rows.astype(float), np.asfortranarray(rows), rows.tolist()
    return [
        f"{name} of {len(rows)} rows"
        for name in ("predict", "predict_proba")
        for given in forms
        if hasattr(source, name)
        and not np.array_equal(getattr(fast, name)(given), getattr(source, name)(given))
    ]


def test_threads_fit_predict_save_and_load(models, tmp_path):
    """With a free-threaded Python and ``PYTHON_GIL=0``, the calls are parallel."""
    shared = [plain(source).fit(X[:400]) for source in models]
    files = [tmp_path / f"shared{k}.skforge" for k in range(len(models))]
    for fast, file in zip(shared, files, strict=True):
        skforge.save(fast, file)

    def work(number):
        random, wrong = np.random.default_rng(number), []
        for turn in range(4):
            k = (number + turn) % len(models)
            wrong += wrong_answers(shared[k], models[k], random)
            if turn == number % 4:
                own = plain(models[k]).fit(X[:400])
                wrong += wrong_answers(own, models[k], random)
                skforge.save(own, files[k])  # others read it, or write it, too
            wrong += wrong_answers(skforge.load(files[k]), models[k], random)
        return wrong

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        assert run_threads(work, 6) == [[]] * 6
    finally:
        sys.setswitchinterval(interval)


# ------------------------------------------------------------ limits


def test_threads_are_limited_as_threadpoolctl_says(monkeypatch):
    monkeypatch.setattr(shares, "WAKE", 0.0)
    used = []
    real = runtime.parallel_for_pointer

    def watch(wanted):
        found = real(wanted)
        used.append(found[1])
        return found

    from skforge.engine import kernels as module_kernels

    monkeypatch.setattr(module_kernels, "parallel_for_pointer", watch)
    module = compile_forest(load_forest(SOURCE), PARALLEL, n_jobs=2)
    with threadpool_limits(2):
        assert right(module, "predict_raw", (2000,))
    assert used[-1] == 2
    with threadpool_limits(1):
        assert right(module, "predict_raw", (2000,))
    assert used == [2] or runtime.thread_limit() is None


# ------------------------------------------------------------ forks


@forks
@pytest.mark.parametrize("n_jobs", [None, 2])
def test_forks_before_and_after_use(n_jobs):
    forest = load_forest(SOURCE)
    module = compile_forest(forest, PARALLEL, n_jobs=n_jobs)
    fast = CompiledForest(SOURCE, schedule=PARALLEL, n_jobs=n_jobs).fit(X[:50])
    lazy = pickle.loads(pickle.dumps(fast))
    fresh = Schedule().tile("batch", "b0", "b1", 48).parallel("b0")

    def compiles():
        return right(compile_forest(forest, fresh, n_jobs=n_jobs), "predict_raw")

    def every():
        return right(module, "predict_raw") and right(fast) and right(lazy)

    assert in_child(every) == 0
    assert every()
    assert in_child(every) == in_child(compiles) == 0
    assert in_child(lambda: in_child(every, 30) == 0) == 0
    assert every()


@forks
def test_forks_while_another_thread_compiles(monkeypatch):
    no_cache(monkeypatch)
    forest = load_forest(SOURCE)
    stop, compiling = threading.Event(), threading.Event()
    failures = []

    def compile_for_ever():
        size = 8
        while not stop.is_set():
            size += 1
            module = compile_forest(forest, Schedule().tile("batch", "a", "b", size))
            if not right(module, "predict_raw", (17,)):
                failures.append(size)
            compiling.set()

    threads = [threading.Thread(target=compile_for_ever) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert compiling.wait(60)
        ends = []
        for round_ in range(8):
            time.sleep(0.003 * round_)
            own = Schedule().tile("batch", "a", "b", 300 + round_)
            ends.append(
                in_child(
                    lambda own=own: right(compile_forest(forest, own), "predict_raw"),
                    40,
                )
            )
        assert ends == [0] * 8
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert failures == []


@contextmanager
def waiting(work):
    """Run ``work(wait)`` in a thread, and go on while it waits."""
    held, done = threading.Event(), threading.Event()

    def wait():
        held.set()
        done.wait(100)

    thread = threading.Thread(target=work, args=(wait,))
    thread.start()
    try:
        assert held.wait(30)
        yield
    finally:
        done.set()
        thread.join(10)


@forks
def test_a_fork_while_a_forest_holds_its_own_lock():
    module = compile_forest(load_forest(SOURCE), PARALLEL)

    def hold(wait):
        with module.compiler.lock:
            wait()

    with waiting(hold):
        assert in_child(lambda: right(module, "predict_raw"), 40) == 0


@forks
def test_a_fork_while_another_thread_plans_its_threads(monkeypatch):
    """Before Python 3.12 all cached properties of a class share a lock."""
    forest = load_forest(SOURCE)
    planning, module = (compile_forest(forest, PARALLEL, n_jobs=2) for _ in range(2))
    module.compile_all()
    honest = planning._shares._estimate

    def plan(wait):
        estimate = lambda: (wait(), honest())[1]  # noqa: E731
        monkeypatch.setattr(planning._shares, "_estimate", estimate)
        planning.predict_raw(X)

    with waiting(plan):
        assert in_child(lambda: right(module, "predict_raw", (2000,)), 20) == 0


# ------------------------------------------------------------ workers


@pytest.mark.parametrize("backend", ["loky", "multiprocessing", "threading"])
def test_workers_of_joblib(backend):
    model = CompiledForest(SOURCE, schedule=PARALLEL, n_jobs=2).fit(X[:50])
    model.predict_proba(X)
    run = joblib.Parallel(n_jobs=2, backend=backend, timeout=100)
    module = compile_forest(load_forest(SOURCE), PARALLEL, n_jobs=2)
    alone = model.drop_estimator()
    for ask in (model.predict_proba, alone.predict_proba, module.predict_raw):
        parts = run(joblib.delayed(ask)(part) for part in np.split(X, 4))
        assert np.array_equal(np.concatenate(parts), EXPECTED)


# ------------------------------------------------------------ memory


def code_bytes():
    """Return the size of executable mappings without a file: compiled code."""
    with open("/proc/self/maps") as file:
        fields = [line.split() for line in file]
    spans = (f[0].split("-") for f in fields if "x" in f[1] and len(f) == 5)
    return sum(int(end, 16) - int(start, 16) for start, end in spans)


@linux
def test_code_goes_with_its_forest(monkeypatch):
    no_cache(monkeypatch)
    forest = load_forest(SOURCE)
    compile_forest(forest, PARALLEL).predict_raw(X[:5])
    gc.collect()
    before = code_bytes()
    held = [
        compile_forest(forest, Schedule().tile("batch", "a", "b", 7 + i))
        for i in range(12)
    ]
    for module in held:
        module.predict_raw(X[:5])
    jits = [
        weakref.ref(kernel.jit)
        for module in held
        for kernel in module.compiler._kernels.values()
    ]
    assert len(jits) >= 12
    grown = code_bytes() - before
    assert grown > 0
    entry = held[0].entry()
    del held, module
    gc.collect()
    # an entry point keeps the code it calls
    assert sum(jit() is not None for jit in jits) == (entry is not None)
    if entry is not None:
        assert np.array_equal(entry(X[:3]), EXPECTED[:3])
        del entry
        gc.collect()
    assert [jit for jit in jits if jit() is not None] == []
    assert code_bytes() - before < grown / 4


def test_rows_are_not_copied():
    import tracemalloc

    rows = np.random.default_rng(0).normal(size=(200_000, 8)).astype(np.float32)
    module = compile_forest(load_forest(SOURCE), PARALLEL)
    module.predict_raw(rows[:5])
    tracemalloc.start()
    try:
        raw = module.predict_raw(rows)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert raw.nbytes <= peak < raw.nbytes + 200_000
