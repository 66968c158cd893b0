"""Worker threads in machine code, which help the caller of a parallel loop.

The caller works itself and never waits for a worker to start, only for iterations that
one has begun: where other processes keep the cores busy, a call takes little longer
than on one thread. Libgomp's barrier waits for every thread of its team, a scheduler's
slice of milliseconds each (2 cores, load 12: 12 ms a call of 1024 rows, that take 0.1
ms on one thread). :mod:`.worker_routines` is their code.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from skforge.compiler.target import Target
from skforge.engine.cpu.code import MachineCode
from skforge.engine.cpu.programs import program

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from skforge.compiler.ir.lir.nodes import Routine

_PFOR = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)
_RANGE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


#: How names of a pool's threads begin.
_POOL = "skforge-pool"


class Pool:
    """Python threads, started as they are needed, and anew after a fork."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._callback = _PFOR(self._run)
        #: The address of ``pfor``.
        self.pointer = int(ctypes.cast(self._callback, ctypes.c_void_p).value or 0)

    def forget(self) -> None:
        self._executor, self._lock = None, threading.Lock()

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            from concurrent.futures import ThreadPoolExecutor

            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._most, _POOL)
            return self._executor

    def _run(self, body: int, ctx: int | None, count: int, n_threads: int) -> None:
        """Run a loop's ranges; return when all have run, as they read ``ctx``.

        On the main thread, a KeyboardInterrupt can arrive at any line here. It is
        raised again for the caller when the ranges have run.
        """
        threads = min(n_threads, count)
        # A thread of the pool runs loops alone: waiting for others, it could wait for
        # itself.
        if threads <= 1 or threading.current_thread().name.startswith(_POOL):
            _RANGE(body)(ctx, 0, count)
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
            import signal

            signal.raise_signal(signal.SIGINT)


class _Job:
    def __init__(self, body: int, ctx: int | None, count: int, n_ranges: int) -> None:
        bounds = [count * t // n_ranges for t in range(n_ranges + 1)]
        self._body, self._ctx = _RANGE(body), ctx
        # Advancing a list iterator is atomic, so no range runs twice.
        self._ranges = iter(list(itertools.pairwise(bounds)))
        self._left, self._lock = n_ranges, threading.Lock()
        self.done = threading.Event()

    def work(self) -> None:
        for begin, end in self._ranges:
            try:
                self._body(self._ctx, begin, end)
            finally:
                with self._lock:
                    self._left -= 1
                    if self._left == 0:
                        self.done.set()


#: Most workers of a process.
MAX_WORKERS = 255

#: Bytes of a cache line. Fields that different threads write have one each.
LINE = 64

#: ``claim``, ``left``, ``busy`` and the number of workers, the job's fields, then a
#: line for each worker: whether it sleeps, and its semaphore.
LEFT, BUSY, JOB, WORKER = LINE, 2 * LINE, 3 * LINE, 4 * LINE
STARTED = BUSY + 8
SEMAPHORE = 16

#: Whether threads can sleep at a semaphore in memory: macOS has none, Windows others.
SEMAPHORES = os.name == "posix" and sys.platform != "darwin"


class Workers:
    """The workers of this process, started on first use, and anew after a fork.

    Where they could not sleep, Python threads take their place (:class:`Pool`).
    ``write`` returns their routines for a machine, or only that of ``no_limit``.
    """

    def __init__(self, write: Callable[[str | None], Sequence[Routine]]) -> None:
        self._write = write
        self._python = None if SEMAPHORES else Pool(os.cpu_count() or 1)
        self._size = WORKER + (MAX_WORKERS + 1) * LINE
        self._memory = ctypes.create_string_buffer(self._size + LINE)
        self._pool = -(-ctypes.addressof(self._memory) // LINE) * LINE
        #: The address of the number of workers, an int64.
        self.started = self._pool + STARTED
        self._started = ctypes.c_int64.from_address(self.started)
        self._module: MachineCode | None = None
        self._lock = threading.Lock()

    def pointer(self, threads: int) -> int:
        wanted = min(threads - 1, MAX_WORKERS)
        if self._module is None or self._started.value < wanted:
            with self._lock:
                if self._module is None:
                    self._module = self._compiled()
                if self._python is None:
                    self._start(self._module, wanted)
                else:
                    self._started.value = MAX_WORKERS
        if self._python is not None:
            return self._python.pointer
        return self._module.address("skforge_parallel")

    @property
    def no_limit(self) -> int:
        assert self._module is not None
        return self._module.address("skforge_no_limit")

    def forget(self) -> None:
        ctypes.memset(self._pool, 0, self._size)
        self._lock = threading.Lock()
        if self._python is not None:
            self._python.forget()

    def _compiled(self) -> MachineCode:
        if self._python is not None:
            return program(["limit"], partial(self._write, None), Target.host())
        host, symbols = Target.host(), {"skforge_pool": self._pool}
        module = program(["workers"], partial(self._write, host.arch), host, symbols)
        # Workers run this code until the process ends, after Python's own end.
        for owner in (module.loaded, self._memory):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
        return module

    def _start(self, module: MachineCode, wanted: int) -> None:
        """Start workers; without signals, so that these interrupt Python's threads."""
        import signal

        library = ctypes.CDLL(None)
        thread = ctypes.c_size_t()
        entry = ctypes.c_void_p(module.address("skforge_worker"))
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            for k in range(self._started.value + 1, wanted + 1):
                address = self._pool + WORKER + k * LINE + SEMAPHORE
                library.sem_init(ctypes.c_void_p(address), 0, 0)
                error = library.pthread_create(
                    ctypes.byref(thread), None, entry, ctypes.c_void_p(k)
                )
                if error != 0:  # no more threads: those there are do the work
                    return
                library.pthread_detach(thread)
                self._started.value = k
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
