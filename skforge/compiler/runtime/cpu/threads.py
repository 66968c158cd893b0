"""Threads for compiled code, which run the iterations of a ``ParallelFor``.

A kernel is given the address of a function::

    void pfor(void (*body)(void *ctx, int64_t begin, int64_t end),
              void *ctx, int64_t count, int64_t n_threads)

There are two. *OpenMP* starts a parallel region in the
OpenMP runtime that scikit-learn has loaded, through a few lines of compiled code, and
gives each thread one contiguous range. *Pool* does the same with Python threads, for
processes without OpenMP and for children of a fork, in which libgomp would wait for
threads that exist only in the parent. One thread needs none: kernels call the body.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from skforge.compiler.runtime.cpu.jit import JitModule, compile_functions
from skforge.compiler.target import Target

_PFOR = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)
_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

# Compilers call GOMP_parallel for "#pragma omp parallel"; LLVM's and Intel's runtimes
# have it too. Range t of n is count * t / n … count * (t + 1) / n.
_OPENMP_TEXT = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()

define internal void @skforge_worker(ptr %task) nounwind {
  %body = load ptr, ptr %task
  %ctx.at = getelementptr inbounds { ptr, ptr, i64 }, ptr %task, i64 0, i32 1
  %ctx = load ptr, ptr %ctx.at
  %count.at = getelementptr inbounds { ptr, ptr, i64 }, ptr %task, i64 0, i32 2
  %count = load i64, ptr %count.at
  %thread32 = call i32 @omp_get_thread_num()
  %threads32 = call i32 @omp_get_num_threads()
  %thread = sext i32 %thread32 to i64
  %threads = sext i32 %threads32 to i64
  %share = udiv i64 %count, %threads
  %extra = urem i64 %count, %threads
  ; the first "extra" threads take one more
  %before = call i64 @llvm.umin.i64(i64 %thread, i64 %extra)
  %whole = mul i64 %thread, %share
  %begin = add i64 %whole, %before
  %more = icmp ult i64 %thread, %extra
  %one = zext i1 %more to i64
  %length = add i64 %share, %one
  %end = add i64 %begin, %length
  call void %body(ptr %ctx, i64 %begin, i64 %end)
  ret void
}

define void @skforge_openmp(ptr %body, ptr %ctx, i64 %count, i64 %n) nounwind {
entry:
  %task = alloca { ptr, ptr, i64 }
  %threads = call i64 @llvm.smin.i64(i64 %n, i64 %count)
  %few = icmp sle i64 %threads, 1
  br i1 %few, label %serial, label %parallel
serial:
  call void %body(ptr %ctx, i64 0, i64 %count)
  ret void
parallel:
  store ptr %body, ptr %task
  %ctx.at = getelementptr inbounds { ptr, ptr, i64 }, ptr %task, i64 0, i32 1
  store ptr %ctx, ptr %ctx.at
  %count.at = getelementptr inbounds { ptr, ptr, i64 }, ptr %task, i64 0, i32 2
  store i64 %count, ptr %count.at
  %threads32 = trunc i64 %threads to i32
  call void @GOMP_parallel(ptr @skforge_worker, ptr %task, i32 %threads32, i32 0)
  ret void
}
"""


@dataclass(frozen=True, slots=True)
class OpenMP:
    """The OpenMP runtime of this process and the code that calls it."""

    path: str
    module: JitModule
    max_threads: Callable[[], int]


class _State:
    """State that a fork invalidates."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.forked = False
        self.searched = False
        self.openmp: OpenMP | None = None
        self.executor: ThreadPoolExecutor | None = None
        self.interrupted = False


_state = _State()


def _after_fork_in_child() -> None:
    # The parent's worker threads do not exist here, and its lock may never be released.
    _state.lock = threading.Lock()
    _state.forked = True
    _state.executor = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def resolve_n_jobs(n_jobs: int | None) -> int:
    """Return the number of threads for ``n_jobs``, as joblib counts them.

    None is 1 outside a ``joblib.parallel_config``; -1 is every core this process may
    use (affinity mask, cgroup quota, ``LOKY_MAX_CPU_COUNT``), -2 all but one.
    """
    if n_jobs == 1:
        return 1
    from joblib import effective_n_jobs

    return max(1, int(effective_n_jobs(n_jobs)))


def parallel_for_pointer(n_threads: int | None) -> tuple[int, int]:
    """Return the address of a ``pfor`` and how many threads to pass to it.

    Positive numbers of threads are used as they are, others as :func:`resolve_n_jobs`
    does, but at most as many as OpenMP may use on the calling thread now, so that
    ``threadpoolctl`` limits and ``OMP_NUM_THREADS`` hold. The address is valid for the
    life of the process, and 0 for one thread.
    """
    # joblib takes 2 µs even if it has nothing to resolve.
    if n_threads is None or n_threads < 1:
        n_threads = resolve_n_jobs(n_threads)
    wanted = n_threads
    if wanted > 1:
        openmp = find_openmp()
        if openmp is not None:
            wanted = min(wanted, openmp.max_threads())
        if wanted > 1:
            if openmp is not None and not _state.forked:
                return openmp.module.address("skforge_openmp"), wanted
            return _pool_address(), wanted
    return 0, 1


def find_openmp() -> OpenMP | None:
    """Return the OpenMP runtime in this process, preferably scikit-learn's."""
    if not _state.searched:
        with _state.lock:
            if not _state.searched:
                _state.openmp = _load_openmp()
                _state.searched = True
    return _state.openmp


def _load_openmp() -> OpenMP | None:
    from threadpoolctl import threadpool_info

    # scikit-learn's runtime loads with the first extension that uses it.
    with contextlib.suppress(ImportError):
        importlib.import_module("sklearn.utils._openmp_helpers")
    paths = [i["filepath"] for i in threadpool_info() if i["user_api"] == "openmp"]
    paths.sort(key=lambda path: "scikit_learn" not in path and "sklearn" not in path)
    for path in paths:
        try:
            library = ctypes.CDLL(path)
            symbols = {name: _address_of(library, name) for name in _OPENMP_SYMBOLS}
        except (OSError, AttributeError):  # unloaded, or without the entry points
            continue
        max_threads = library.omp_get_max_threads
        max_threads.restype = ctypes.c_int
        max_threads.argtypes = ()
        return OpenMP(
            path, compile_functions([_OPENMP_TEXT], Target.host(), symbols), max_threads
        )
    return None


_OPENMP_SYMBOLS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


def _address_of(library: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    if address is None:
        raise AttributeError(name)
    return address


# ------------------------------------------------------------ Python threads


@lru_cache(maxsize=1)
def _pool_callback() -> Any:
    return _PFOR(_pool_for)


def _pool_address() -> int:
    return int(ctypes.cast(_pool_callback(), ctypes.c_void_p).value or 0)


def _executor() -> ThreadPoolExecutor:
    with _state.lock:
        if _state.executor is None:
            _state.executor = ThreadPoolExecutor(
                max_workers=resolve_n_jobs(-1), thread_name_prefix="skforge"
            )
        return _state.executor


class _Job:
    """The ranges of one parallel loop, shared by any number of threads."""

    def __init__(self, body: int, ctx: int | None, count: int, n_ranges: int) -> None:
        bounds = [count * t // n_ranges for t in range(n_ranges + 1)]
        self._run = _BODY(body)
        self._ctx = ctx
        # Advancing a list iterator is atomic, so no range runs twice.
        self._ranges = iter(list(itertools.pairwise(bounds)))
        self._left = n_ranges
        self._lock = threading.Lock()
        self.done = threading.Event()

    def work(self) -> None:
        """Run ranges until none is left."""
        for begin, end in self._ranges:
            try:
                self._run(self._ctx, begin, end)
            finally:
                with self._lock:
                    self._left -= 1
                    if self._left == 0:
                        self.done.set()


def _pool_for(body: int, ctx: int | None, count: int, n_threads: int) -> None:
    """Run a loop's ranges on pool threads.

    This function must not return before every range has run: ranges read ``ctx``, which
    is on the stack of the waiting kernel. A KeyboardInterrupt can arrive at any line
    here on the main thread, so it restarts the waiting and is left for
    :func:`raise_interrupt`, and the main thread runs no range itself. Workers never
    wait for each other: only the outermost loop of more than one iteration is split.
    """
    threads = min(n_threads, count)
    if threads <= 1:
        _BODY(body)(ctx, 0, count)
        return
    job = _Job(body, ctx, count, threads)
    is_main = threading.current_thread() is threading.main_thread()
    interrupted = False
    helpers = threads if is_main else threads - 1
    while True:
        try:
            while helpers > 0:
                helpers -= 1
                try:
                    _executor().submit(job.work)
                except RuntimeError:  # no new threads while Python shuts down
                    job.work()
            if not is_main:
                job.work()
            job.done.wait()
            break
        except KeyboardInterrupt:
            interrupted = True
            helpers += 1  # the interrupt may have come between counting and starting
    if interrupted:  # ctypes would only print an exception raised here
        _state.interrupted = True


def raise_interrupt() -> None:
    """Raise the KeyboardInterrupt that arrived while this thread ran a kernel."""
    is_main = threading.current_thread() is threading.main_thread()
    if _state.interrupted and is_main:
        _state.interrupted = False
        raise KeyboardInterrupt
