"""A parallel loop on Python threads, where workers in machine code cannot sleep."""

from __future__ import annotations

import ctypes
import itertools
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

_PFOR = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)
_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Pool:
    """Python threads, started as they are needed, and anew after a fork."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    @property
    def pointer(self) -> int:
        """The address of ``pfor``."""
        return int(ctypes.cast(self._callback(), ctypes.c_void_p).value or 0)

    def forget(self) -> None:
        """Start anew: a forked child has no threads."""
        self._executor, self._lock = None, threading.Lock()

    @lru_cache(maxsize=1)  # noqa: B019  one pool a process
    def _callback(self) -> Any:
        return _PFOR(self._run)

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._most, "skforge")
            return self._executor

    def _run(self, body: int, ctx: int | None, count: int, n_threads: int) -> None:
        """Run a loop's ranges; return when all have run, as they read ``ctx``.

        On the main thread, a KeyboardInterrupt can arrive at any line here. It is
        raised again for the caller when the ranges have run.
        """
        threads = min(n_threads, count)
        if threads <= 1:
            _BODY(body)(ctx, 0, count)
            return
        job, interrupted, helpers = _Job(body, ctx, count, threads), False, threads
        while True:
            try:
                while helpers > 0:
                    helpers -= 1
                    try:
                        self._threads().submit(job.work)
                    except RuntimeError:  # no new threads while Python shuts down
                        job.work()
                job.done.wait()
                break
            except KeyboardInterrupt:
                interrupted = True
                helpers += 1  # it may have come between counting and starting
        if interrupted:
            signal.raise_signal(signal.SIGINT)


class _Job:
    """The ranges of one parallel loop, shared by any number of threads."""

    def __init__(self, body: int, ctx: int | None, count: int, n_ranges: int) -> None:
        bounds = [count * t // n_ranges for t in range(n_ranges + 1)]
        self._body, self._ctx = _BODY(body), ctx
        # Advancing a list iterator is atomic, so no range runs twice.
        self._ranges = iter(list(itertools.pairwise(bounds)))
        self._left, self._lock = n_ranges, threading.Lock()
        self.done = threading.Event()

    def work(self) -> None:
        """Run ranges until none is left."""
        for begin, end in self._ranges:
            try:
                self._body(self._ctx, begin, end)
            finally:
                with self._lock:
                    self._left -= 1
                    if self._left == 0:
                        self.done.set()
