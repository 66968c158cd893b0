"""How many threads run the iterations of a ``ParallelFor``, and the function for it.

A kernel is given the address of a function::

    void pfor(void (*body)(void *ctx, int64_t begin, int64_t end),
              void *ctx, int64_t count, int64_t n_threads)

``workers.py`` has it. One thread needs none: kernels call the body. As scikit-learn's
own threads are OpenMP's, the limits of its runtime hold for ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from skforge.engine.cpu.workers import Workers
from skforge.exceptions import InvalidInputError
from skforge.runtime.facts import cpu_count

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Routine


def _routines(arch: str | None) -> Sequence[Routine]:
    from skforge.engine.cpu.worker_routines import routines

    return routines(arch)


_workers = Workers(_routines)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.forget)


def resolve_n_jobs(n_jobs: int | None) -> int:
    """Return the number of threads for ``n_jobs``, as joblib counts them.

    None is 1 outside a ``joblib.parallel_config``; -1 is every core this process may
    use (affinity mask, cgroup quota, ``LOKY_MAX_CPU_COUNT``), -2 all but one.
    """
    if n_jobs == 1 or (n_jobs is None and "joblib" not in sys.modules):
        return 1
    try:
        from joblib import effective_n_jobs
    except ImportError:  # a process that only answers need not have it
        cores = 0 if n_jobs is None or n_jobs > 0 else cpu_count() + 1
        return max(1, cores + (n_jobs or 0))
    return max(1, int(effective_n_jobs(n_jobs)))


def check_n_jobs(n_jobs: object) -> None:
    whole = isinstance(n_jobs, (int, np.integer)) and not isinstance(n_jobs, bool)
    if n_jobs is not None and (not whole or n_jobs == 0):
        raise InvalidInputError(
            "n_jobs must be None (one thread), a positive number of threads, or "
            f"negative to count from all cores: -1 is all. Got {n_jobs!r} instead."
        )


def parallel_for_pointer(n_threads: int | None) -> tuple[int, int]:
    """Return the address of ``pfor`` and how many threads to pass to it.

    Positive numbers of threads are used as they are, others as :func:`resolve_n_jobs`
    does, but at most as many as OpenMP may use on the calling thread now, so that
    ``threadpoolctl`` limits and ``OMP_NUM_THREADS`` hold. The address is valid for the
    life of the process, and 0 for one thread.
    """
    # joblib takes 2 µs even if it has nothing to resolve.
    if n_threads is None or n_threads < 1:
        n_threads = resolve_n_jobs(n_threads)
    if n_threads > 1 and (limit := thread_limit()) is not None:
        n_threads = min(n_threads, limit())
    return (_workers.pointer(n_threads), n_threads) if n_threads > 1 else (0, 1)


def entry_symbols() -> dict[str, int]:
    """Return the addresses that a compiled entry needs to share its rows.

    ``skf_started`` is the number of workers: an entry that finds too few declines, so
    that :func:`parallel_for_pointer` starts them.
    """
    limit = thread_limit()
    address = None if limit is None else ctypes.cast(limit, ctypes.c_void_p).value
    return {
        "skf_parallel": _workers.pointer(1),
        "skf_started": _workers.started,
        "skf_limit": address or _workers.no_limit,
    }


#: ``omp_get_max_threads``, as a function of ctypes.
ThreadLimit: TypeAlias = Any


@lru_cache(maxsize=1)
def thread_limit() -> ThreadLimit | None:
    """Return the threads that OpenMP (scikit-learn's of several) may use, or None."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return None
    # scikit-learn's runtime loads with the first extension that uses it.
    with contextlib.suppress(ImportError):
        importlib.import_module("sklearn.utils._openmp_helpers")
    paths = [i["filepath"] for i in threadpool_info() if i["user_api"] == "openmp"]
    paths.sort(key=lambda path: "scikit_learn" not in path and "sklearn" not in path)
    for path in paths:
        # It may be unloaded meanwhile, or lack the function.
        with contextlib.suppress(OSError, AttributeError):
            limit = ctypes.CDLL(path).omp_get_max_threads
            limit.restype, limit.argtypes = ctypes.c_int, ()
            return limit
    return None
