"""Threads: the same answers from OpenMP and the pool, limits, fork, interrupts."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from skforge.compiler.ir.lir.nodes import I64, U8, Buffer
from skforge.compiler.runtime.cpu import threads as runtime
from skforge.compiler.runtime.cpu.jit import compile_functions
from skforge.compiler.target import Target
from tests.llvm_kernels import buffers, kernel
from tests.run_kernel import call

ROOT = Path(__file__).parents[2]
CORES = runtime.resolve_n_jobs(-1)


def squares_kernel():
    def write(b, n, out):
        b.parallel_for(n, lambda i: b.store(out, i, b.mul(i, i)))

    return kernel({"n": I64, **buffers(out=I64)}, write, "squares")


@pytest.fixture(scope="module")
def squares():
    return compile_functions([squares_kernel()], Target.host())


def using_openmp() -> bool:
    return runtime.find_openmp() is not None and not runtime._state.forked


@pytest.fixture(params=["openmp", "pool"])
def threads(request, monkeypatch):
    """Run a test on OpenMP and, as after a fork, on the thread pool."""
    if request.param == "openmp" and runtime.find_openmp() is None:
        pytest.skip("no OpenMP runtime in this process")
    monkeypatch.setattr(runtime._state, "forked", request.param == "pool")
    assert using_openmp() == (request.param == "openmp")
    return request.param


@pytest.mark.parametrize("n_threads", [1, 2, 3, 8, -1, None])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 1000])
def test_every_iteration_runs_once(squares, threads, n, n_threads):
    out = np.full(n + 1, -1)
    address, used = runtime.parallel_for_pointer(n_threads)
    squares.function("squares")(np.array([n, out.ctypes.data]).tobytes(), address, used)
    assert np.array_equal(out, [*(np.arange(n) ** 2), -1])


@pytest.mark.parametrize("count", [1, 5, 8, 9, 64])
@pytest.mark.parametrize("n_threads", [1, 2, 5, 8])
def test_ranges_are_contiguous_and_even(threads, count, n_threads):
    """Call both implementations themselves, with a body in Python."""
    seen = []

    def body(ctx, begin, end):
        seen.append((ctx, begin, end))

    callback = runtime._BODY(body)
    address, _ = runtime.parallel_for_pointer(2)
    if CORES == 1:
        pytest.skip("one core: the serial implementation is used")
    pfor = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
    )(address)
    pfor(ctypes.cast(callback, ctypes.c_void_p), 42, count, n_threads)
    ranges = sorted(seen)
    assert [r[1] for r in ranges] == [0, *(r[2] for r in ranges[:-1])]
    assert ranges[-1][2] == count
    sizes = [end - begin for _, begin, end in ranges]
    assert max(sizes) - min(sizes) <= 1
    assert len(ranges) == min(n_threads, count)
    assert {ctx for ctx, _, _ in ranges} == {42}


def test_one_thread_is_serial():
    assert runtime.parallel_for_pointer(1)[1] == 1
    assert runtime.parallel_for_pointer(None) == runtime.parallel_for_pointer(1)


def test_n_jobs_counts_like_joblib():
    from joblib import effective_n_jobs, parallel_config

    for n_jobs in (None, 1, 2, 5, -1, -2):
        assert runtime.resolve_n_jobs(n_jobs) == max(1, effective_n_jobs(n_jobs))
    with parallel_config(backend="threading", n_jobs=3):
        assert runtime.resolve_n_jobs(None) == 3


def test_threadpool_limits_are_respected(threads):
    if runtime.find_openmp() is None:
        pytest.skip("no OpenMP runtime in this process")
    with threadpool_limits(1, user_api="openmp"):
        assert runtime.parallel_for_pointer(8)[1] == 1
    most = runtime.find_openmp().max_threads()
    assert runtime.parallel_for_pointer(8)[1] == min(8, most)


def test_sixteen_python_threads(squares, threads):
    wrong = []

    def work():
        for n in (1, 10, 300):
            out = np.zeros(n, np.int64)
            call(squares, "squares", [n, out], n_threads=2)
            if not np.array_equal(out, np.arange(n) ** 2):
                wrong.append(n)

    workers = [threading.Thread(target=work) for _ in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not any(worker.is_alive() for worker in workers)
    assert wrong == []


def run_python(code, seconds=90, **environment):
    prelude = """
import os, sys, threading, time
import numpy as np
from skforge.compiler.runtime.cpu import threads as runtime
from tests.run_kernel import call
from skforge.compiler.runtime.cpu.jit import compile_functions
from skforge.compiler.target import Target
from tests.unit.test_runtime import slow_kernel, squares_kernel

squares = compile_functions([squares_kernel()], Target.host())
def right(n=1000, n_threads=2):
    out = np.zeros(n, np.int64)
    call(squares, "squares", [n, out], n_threads=n_threads)
    return bool(np.array_equal(out, np.arange(n) ** 2))
"""
    return subprocess.run(
        [sys.executable, "-c", prelude + code],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, **environment},
        cwd=ROOT,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_uses_the_pool():
    """With libgomp's own threads the child would wait for ever."""
    done = run_python(
        """
assert right() and right(n_threads=8)
runtime._state.forked = True
assert right()  # the parent has used its pool, too
runtime._state.forked = False
for generation in range(2):
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if generation:
            os._exit(code)
        print(code)
        break
    assert runtime._state.forked  # so it uses the pool
    assert right() and right(n_threads=8)
    if generation:
        os._exit(7)
"""
    )
    assert done.stdout.strip() == "7", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_multiprocessing_with_fork():
    done = run_python(
        """
import multiprocessing
assert right()
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(right, [10, 100, 1000]))
"""
    )
    assert done.stdout.strip() == "[True, True, True]", done.stderr


def test_without_openmp_the_pool_is_used():
    done = run_python(
        """
runtime._load_openmp = lambda: None
assert runtime.find_openmp() is None
print(right(), right(n_threads=8), runtime.parallel_for_pointer(8)[1])
"""
    )
    assert done.stdout.split() == ["True", "True", "8"], done.stderr


def test_omp_num_threads_is_respected():
    code = "print(runtime.parallel_for_pointer(8)[1], right(n_threads=8))"
    done = run_python(code, OMP_NUM_THREADS="1")
    assert done.stdout.split() == ["1", "True"], done.stderr


def slow_kernel():
    """Return a parallel kernel that takes about a second on one core."""

    def write(b, n, work, out: Buffer):
        def body(i):
            def step(_, carried):
                return [b.add(b.mul(carried[0], 6364136223846793005), 1)]

            (x,) = b.for_(b.const(0), work, b.const(1), step, [i])
            b.store(out, i, b.convert(b.binary("shr", x, 60), U8))

        b.parallel_for(n, body)

    return kernel({"n": I64, "work": I64, **buffers(out=U8)}, write, "slow")


def test_an_interrupt_waits_for_the_kernel():
    """KeyboardInterrupt comes after the call, never while threads use its stack."""
    done = run_python(
        """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells' & ignores it
runtime._state.forked = True  # the pool: its waiting happens in Python
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
    assert done.stdout.split() == ["True", "True"], done.stderr
    assert done.stderr == ""
