"""Threads: every iteration runs once, limits, forks, interrupts."""

from __future__ import annotations

import ctypes
import os
import threading
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from skforge import compile_forest
from skforge.compiler.target import Target
from skforge.engine.cpu import threads as runtime
from skforge.engine.cpu import workers
from skforge.engine.cpu.jit import compile_functions
from skforge.forest.reference import draw_rows
from tests.exactness.forests import drawn
from tests.noted import run_threads
from tests.programs import run_python
from tests.run_kernel import call
from tests.thread_kernels import squares_kernel


@pytest.fixture(scope="module")
def squares():
    return compile_functions([squares_kernel()], Target.host())


@pytest.mark.sampled(7)
@pytest.mark.parametrize("n_threads", [1, 2, 3, 8, -1, None])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 1000])
def test_every_iteration_runs_once(squares, n, n_threads):
    out = np.full(n + 1, -1)
    address, used = runtime.parallel_for_pointer(n_threads)
    squares.function("squares")(np.array([n, out.ctypes.data]).tobytes(), address, used)
    assert np.array_equal(out, [*(np.arange(n) ** 2), -1])


PFOR = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)
BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def parallel(body, count, n_threads):
    """Run a loop whose body is a Python function of begin and end."""
    callback = BODY(lambda ctx, begin, end: body(begin, end))
    pointer = ctypes.cast(callback, ctypes.c_void_p)
    PFOR(runtime._workers.pointer(n_threads))(pointer, 42, count, n_threads)


@pytest.mark.parametrize("count", [1, 5, 8, 9, 64])
@pytest.mark.parametrize("n_threads", [1, 2, 5, 8])
def test_ranges_are_disjoint_and_leave_some_for_late_threads(count, n_threads):
    seen = []
    parallel(lambda begin, end: seen.append((begin, end)), count, n_threads)
    ranges = sorted(seen)
    assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == count
    threads = min(n_threads, count)
    most = count if threads == 1 else max(1, count // (2 * threads))
    assert max(end - begin for begin, end in ranges) <= most


@pytest.fixture
def without_semaphores(monkeypatch):
    """Take the workers of systems without POSIX semaphores: Python threads."""
    monkeypatch.setattr(workers, "SEMAPHORES", False)
    made = workers.Workers(runtime._routines)
    monkeypatch.setattr(runtime, "_workers", made)
    return made


def test_without_openmp_entries_ask_the_workers_for_the_limit(monkeypatch):
    monkeypatch.setattr(runtime, "thread_limit", lambda: None)
    address = runtime.entry_symbols()["skf_limit"]
    assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() == workers.MAX_WORKERS


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_python_threads_take_the_place_of_workers(squares, without_semaphores, n):
    out = np.full(n + 1, -1)
    address = without_semaphores.pointer(3)
    assert without_semaphores._started.value == workers.MAX_WORKERS
    for _ in range(2):
        squares.function("squares")(
            np.array([n, out.ctypes.data]).tobytes(), address, 3
        )
        assert np.array_equal(out, [*(np.arange(n) ** 2), -1])
        out[:-1] = -1
        without_semaphores.forget()


def test_compiled_entries_share_rows_among_python_threads(without_semaphores):
    made = drawn(50, 8, shape="full")
    rows = draw_rows(made, 3000, 0)
    module, alone = compile_forest(made, n_jobs=3), compile_forest(made)
    for _ in range(3):
        assert np.array_equal(module.predict_raw(rows), alone.predict_raw(rows))
    assert any("skforge" in thread.name for thread in threading.enumerate())


def test_the_caller_waits_for_workers_and_no_more_threads_join_than_asked():
    parallel(lambda *_: None, 8, 4)  # three workers exist from now on
    taken, begun = set(), threading.Event()

    def body(begin, end):
        if threading.current_thread() is threading.main_thread():
            begun.wait(30)  # until a worker has begun an iteration
        begun.set()
        time.sleep(0.01)
        taken.add(threading.get_ident())
        done.extend(range(begin, end))

    for n_threads in (2, 3):
        done = []
        for _ in range(3):
            parallel(body, 12, n_threads)
        assert sorted(done) == sorted(3 * list(range(12)))
        assert 2 <= len(taken) <= n_threads


def test_a_caller_that_finds_the_workers_busy_runs_alone():
    outer = []

    def body(begin, end):
        inner = []
        parallel(lambda *given: inner.append(given), 6, 2)
        outer.append(inner)

    parallel(body, 4, 2)
    assert outer == 4 * [[(0, 6)]]


def test_loops_inside_loops_of_pythons_threads_run_alone():
    # Windows and macOS have no other workers. Each thread waited for all others here.
    outer, pfor = [], PFOR(workers.Pool(2).pointer)

    def loop(body, count):
        callback = BODY(lambda ctx, begin, end: body(begin, end))
        pfor(ctypes.cast(callback, ctypes.c_void_p), 42, count, 2)

    def body(begin, end):
        inner = []
        loop(lambda *bounds: inner.append(bounds), 6)
        outer.append(inner)

    loop(body, 4)
    assert outer == 2 * [[(0, 6)]]


def test_one_thread_is_serial():
    assert runtime.parallel_for_pointer(1)[1] == 1
    assert runtime.parallel_for_pointer(None) == runtime.parallel_for_pointer(1)


def test_n_jobs_counts_like_joblib():
    from joblib import effective_n_jobs, parallel_config

    for n_jobs in (None, 1, 2, 5, -1, -2):
        assert runtime.resolve_n_jobs(n_jobs) == max(1, effective_n_jobs(n_jobs))
    with parallel_config(backend="threading", n_jobs=3):
        assert runtime.resolve_n_jobs(None) == 3


def test_threadpool_limits_are_respected():
    limit = runtime.thread_limit()
    if limit is None:
        pytest.skip("no OpenMP runtime in this process")
    with threadpool_limits(1, user_api="openmp"):
        assert runtime.parallel_for_pointer(8)[1] == 1
    assert runtime.parallel_for_pointer(8)[1] == min(8, limit())


def test_sixteen_python_threads(squares):
    def work(_):
        for n in (1, 10, 300):
            out = np.zeros(n, np.int64)
            call(squares, "squares", [n, out], n_threads=2)
            assert np.array_equal(out, np.arange(n) ** 2)

    run_threads(work)


PRELUDE = """
import os, sys, threading, time
import numpy as np
from skforge.engine.cpu import threads as runtime
from tests.run_kernel import call
from skforge.engine.cpu.jit import compile_functions
from skforge.compiler.target import Target
from tests.thread_kernels import slow_kernel, squares_kernel

squares = compile_functions([squares_kernel()], Target.host())
def right(n=1000, n_threads=2):
    out = np.zeros(n, np.int64)
    call(squares, "squares", [n, out], n_threads=n_threads)
    return bool(np.array_equal(out, np.arange(n) ** 2))
"""


def run_here(code, **environment):
    return run_python(PRELUDE + code, **environment)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_workers_of_its_own():
    done = run_here(
        """
assert right() and right(n_threads=8)
started = runtime._workers._started.value
for generation in range(2):
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if generation:
            os._exit(code)
        print(code)
        break
    assert runtime._workers._started.value == 0
    assert right() and right(n_threads=8)
    assert runtime._workers._started.value == started
    if generation:
        os._exit(7)
"""
    )
    assert done.strip() == "7"


def test_without_openmp_nothing_limits_threads(squares, monkeypatch):
    monkeypatch.setattr(runtime, "thread_limit", lambda: None)
    assert runtime.parallel_for_pointer(8)[1] == 8
    out = np.zeros(100, np.int64)
    call(squares, "squares", [100, out], n_threads=8)
    assert np.array_equal(out, np.arange(100) ** 2)


def test_omp_num_threads_is_respected():
    code = "print(runtime.parallel_for_pointer(8)[1], right(n_threads=8))"
    done = run_here(code, OMP_NUM_THREADS="1")
    assert done.split() == ["1", "True"]


def test_an_interrupt_waits_for_the_kernel():
    """KeyboardInterrupt comes after the call, never while threads use its stack."""
    done = run_here(
        """
import signal
sys.stderr = sys.stdout  # nothing is said
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells' & ignores it
assert right()  # everything is imported
slow = compile_functions([slow_kernel()], Target.host())
call(slow, "slow", [8, 1, np.zeros(8, np.uint8)], n_threads=2)
out = np.full(8, 100, np.uint8)
def interrupt():
    time.sleep(0.1)
    for _ in range(5):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
thread = threading.Thread(target=interrupt)
thread.start()
seen = False
try:
    call(slow, "slow", [8, 50_000_000, out], n_threads=2)
    time.sleep(5)
except KeyboardInterrupt:
    seen = True
print(seen, bool((out != 100).all()))
thread.join()
"""
    )
    assert done.split() == ["True", "True"]


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="no affinity masks on this system"
)
def test_host_counts_only_the_cores_it_may_use():
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "from skforge import Target; print(Target.host().n_cores)"
    )
    run = run_python(code)
    assert run.strip() == "1"
