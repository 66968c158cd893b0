"""Worker threads in machine code, which help the caller of a parallel loop.

The caller works itself and never waits for a worker to start, only for iterations that
one has begun: where other processes keep the cores busy, a call takes little longer
than on one thread. Libgomp's barrier waits for every thread of its team, a scheduler's
slice of milliseconds each (2 cores, load 12: 12 ms a call of 1024 rows, that take 0.1
ms on one thread).

The state is one block of memory. A job is published as one word, ``claim``: a number
that no other job has in the upper half, and the iterations nobody has claimed in the
lower. Threads claim iterations by decreasing it, so that a claim of an earlier job
fails, and a claim that succeeds has read the fields of its own::

    caller                                    worker k
      body, context, count, threads = job       until claim has iterations, k < threads:
      left = count                                spin for PATIENCE, then sleep
      claim = new number, count                 wake workers 2 k + 1 and 2 k + 2
      wake workers 1 and 2                      while iterations can be claimed:
      while iterations can be claimed:            run them; left -= their number
        run them; left -= their number
      wait until left is 0

One job runs at a time; a caller that finds another one runs its loop alone.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import BOOL, I32, I64, Buffer, Routine, Scalar, Value
from skforge.compiler.runtime.cpu.code import MachineCode
from skforge.compiler.runtime.cpu.programs import program
from skforge.compiler.target import Target

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
            signal.raise_signal(signal.SIGINT)


class _Job:
    """The ranges of one parallel loop, shared by any number of threads."""

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

#: Nanoseconds of a worker's wait before it sleeps, longer than Python needs between two
#: calls. Time counts, not turns: a worker that shares its caller's core has few turns,
#: and only one that sleeps is moved to an idle core when it is woken.
PATIENCE = 200_000

#: Turns, a power of two, after which a waiting worker offers its core to others: where
#: cores are busy, it may share one with its caller.
YIELD = 64

#: Turns of the caller's wait before it gives its core to others, perhaps to the worker
#: that it waits for: about as long as a block of rows takes.
CALLER_SPINS = 500

#: Bytes of a cache line. Fields that different threads write have one each.
_LINE = 64

#: ``claim``, ``left``, ``busy`` and the number of workers, the job's fields, then a
#: line for each worker: whether it sleeps, and its semaphore.
_LEFT, _BUSY, _JOB, _WORKER = _LINE, 2 * _LINE, 3 * _LINE, 4 * _LINE
_STARTED = _BUSY + 8
_SEMAPHORE = 16

_PAUSE: dict[str, tuple[str, tuple[int, ...]]] = {
    "x86_64": ("llvm.x86.sse2.pause", ()),
    "aarch64": ("llvm.aarch64.hint", (1,)),
}

#: Where the fields are, in words.
_CLAIM, _LEFT_AT, _BUSY_AT = 0, _LEFT // 8, _BUSY // 8
_BODY, _CONTEXT, _COUNT, _THREADS = (_JOB // 8 + k for k in range(4))

_K = Value("k", I64)


def _routines(arch: str) -> list[Routine]:
    """Return a parallel loop for kernels, the workers' function, and what they call."""
    threads = Value("threads", I64)
    return [
        _limit(),
        _now(),
        _local("wake", (_K, threads), lambda b: _wake(b, threads)),
        _local("is_asked", (_K,), _is_asked, BOOL),
        _local("work", (_K,), _work),
        _local("sleep", (_K,), _sleep),
        _worker(arch),
        _parallel(arch),
    ]


def _local(
    name: str,
    params: tuple[Value, ...],
    write: Callable[[Builder], None],
    result: Scalar | None = None,
) -> Routine:
    with Builder() as b:
        write(b)
    return Routine(f"skforge_{name}", params, b.finish(), result, local=True)


def _limit() -> Routine:
    with Builder() as b:
        b.give(b.const(MAX_WORKERS, I32))
    return Routine("skforge_no_limit", (), b.finish(), I32)


def _now() -> Routine:
    def write(b: Builder) -> None:
        moment = b.local("moment", I64, 2)
        clock = b.const(time.CLOCK_MONOTONIC, I32)
        b.call("clock_gettime", clock, b.address(moment), gives=I32)
        b.give(moment[0] * 1_000_000_000 + moment[1])

    return _local("now", (), write, I64)


def _pool(b: Builder) -> Buffer:
    return b.view("pool", I64, b.symbol("skforge_pool"))


def _field(b: Builder, at: int) -> Value:
    """Return a field of the job; ``claim`` tells whether it was still this one's."""
    return b.atomic("load", "monotonic", _pool(b), at=at)


def _line(b: Builder) -> Buffer:
    return b.view("line", I64, _pool(b), (_K * _LINE + _WORKER) >> 3)


def _pause(b: Builder, arch: str) -> None:
    if arch in _PAUSE:
        name, numbers = _PAUSE[arch]
        b.run(name, *(b.const(number, I32) for number in numbers))


def _give_way(b: Builder) -> None:
    b.call("sched_yield", gives=I32)


def _wake(b: Builder, threads: Value) -> None:
    with b.when(threads > _K):
        line = _line(b)
        with b.when(b.atomic("load", "seq_cst", line).eq(1)):
            was = b.atomic("swap", "seq_cst", line, b.const(0))
            with b.when(was.eq(1)):
                b.call("sem_post", b.address(line, _SEMAPHORE // 8), gives=I32)


def _is_asked(b: Builder) -> None:
    word = b.atomic("load", "seq_cst", _pool(b), at=_CLAIM)
    b.give((word & 0xFFFFFFFF).ne(0) & (_field(b, _THREADS) > _K))


def _work(b: Builder) -> None:
    """Run iterations until none can be claimed; wake two workers on the way."""
    pool, tell = _pool(b), [b.const(True, BOOL)]
    with b.repeat(lambda: b.const(True, BOOL), tell):
        word = b.atomic("load", "acquire", pool, at=_CLAIM)
        job = [_field(b, at) for at in (_BODY, _CONTEXT, _COUNT, _THREADS)]
        rest, (body, context, count, threads) = word & 0xFFFFFFFF, job
        with b.when(rest.eq(0) | (threads <= _K)):
            b.give()
        # Half of an equal share, so that a thread that comes late finds work.
        size = (rest // (threads << 1)).max(1)
        claimed = b.atomic("replace", "acq_rel", pool, word, word - size, at=_CLAIM)
        with b.when(claimed):
            with b.when(tell[0]):
                for k in (1, 2):
                    b.run("skforge_wake", (_K << 1) + k, threads)
            first = count - rest
            b.run(body, context, first, first + size)
            b.atomic("sub", "acq_rel", pool, size, at=_LEFT_AT)
        tell[0] = ~claimed


def _sleep(b: Builder) -> None:
    """Sleep until worker k is woken, unless it is asked before."""
    line = _line(b)
    b.atomic("swap", "seq_cst", line, b.const(1))
    with b.when(b.call("skforge_is_asked", _K, gives=BOOL)):
        was = b.atomic("swap", "seq_cst", line, b.const(0))
        with b.when(was.eq(1)):
            b.give()  # else the waker's post is there, or will be
    semaphore = b.address(line, _SEMAPHORE // 8)
    with b.repeat(lambda: b.call("sem_wait", semaphore, gives=I32).ne(0), []):
        pass


def _worker(arch: str) -> Routine:
    with Builder() as b:
        with b.repeat(lambda: b.const(True, BOOL), []):
            waits = [b.const(0), b.call("skforge_now")]

            def is_idle() -> Value:
                return ~b.call("skforge_is_asked", _K, gives=BOOL)

            with b.repeat(is_idle, waits):
                turn, begun = waits[0] + 1, waits[1]
                _pause(b, arch)

                def slept() -> Value:
                    b.run("skforge_sleep", _K)
                    return b.call("skforge_now")

                def gave_way() -> Value:
                    _give_way(b)
                    patient = b.call("skforge_now") - begun < PATIENCE
                    return b.either(patient, lambda: begun, slept)

                is_long = (turn & (YIELD - 1)).eq(0)
                waits[:] = turn, b.either(is_long, gave_way, lambda: begun)
            b.run("skforge_work", _K)
        b.give(b.const(0))
    return Routine("skforge_worker", (_K,), b.finish(), I64)


def _parallel(arch: str) -> Routine:
    params = body, context, count, n = tuple(
        Value(name, I64) for name in ("body", "context", "count", "n")
    )
    with Builder() as b:
        zero, one, pool = b.const(0), b.const(1), _pool(b)
        threads = n.min(count)
        with b.when((threads > 1) & (count < 1 << 32)):
            free = b.atomic("replace", "acquire", pool, zero, one, at=_BUSY_AT)
            with b.when(free):
                job = {_BODY: body, _CONTEXT: context, _COUNT: count}
                job |= {_THREADS: threads, _LEFT_AT: count}
                for at, value in job.items():
                    b.atomic("store", "monotonic", pool, value, at=at)
                # Job numbers are in the upper half, and may wrap.
                word = ((_field(b, _CLAIM) >> 32) + 1 << 32) | count
                b.atomic("swap", "seq_cst", pool, word, at=_CLAIM)
                b.run("skforge_work", zero)
                turn = [zero]

                def is_running() -> Value:
                    left = b.atomic("load", "acquire", pool, at=_LEFT_AT)
                    return left.ne(0)

                def spun() -> Value:
                    _pause(b, arch)
                    return turn[0] + 1

                def yielded() -> Value:
                    _give_way(b)
                    return turn[0]

                with b.repeat(is_running, turn):
                    turn[0] = b.either(turn[0] < CALLER_SPINS, spun, yielded)
                b.atomic("store", "release", pool, zero, at=_BUSY_AT)
                b.give()
        b.run(body, context, zero, count)
    return Routine("skforge_parallel", params, b.finish())


#: Whether threads can sleep at a semaphore in memory: macOS has none, Windows others.
SEMAPHORES = os.name == "posix" and sys.platform != "darwin"


class Workers:
    """The workers of this process, started on first use, and anew after a fork.

    Where they could not sleep, Python threads take their place (:class:`Pool`).
    """

    def __init__(self) -> None:
        self._python = None if SEMAPHORES else Pool(os.cpu_count() or 1)
        self._size = _WORKER + (MAX_WORKERS + 1) * _LINE
        self._memory = ctypes.create_string_buffer(self._size + _LINE)
        self._pool = -(-ctypes.addressof(self._memory) // _LINE) * _LINE
        self._started = ctypes.c_int64.from_address(self._pool + _STARTED)
        self._module: MachineCode | None = None
        self._lock = threading.Lock()

    def pointer(self, threads: int) -> int:
        """Return the address of ``pfor``; start workers for so many threads."""
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
        """The address of an ``omp_get_max_threads`` without OpenMP."""
        assert self._module is not None
        return self._module.address("skforge_no_limit")

    @property
    def started(self) -> int:
        """The address of the number of workers, an int64."""
        return self._pool + _STARTED

    def forget(self) -> None:
        """Start anew: a forked child has no workers."""
        ctypes.memset(self._pool, 0, self._size)
        self._lock = threading.Lock()
        if self._python is not None:
            self._python.forget()

    def _compiled(self) -> MachineCode:
        if self._python is not None:
            return program(["limit"], lambda: [_limit()], Target.host())
        host, symbols = Target.host(), {"skforge_pool": self._pool}
        module = program(["workers"], lambda: _routines(host.arch), host, symbols)
        # Workers run this code until the process ends, after Python's own end.
        for owner in (module.loaded, self._memory):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
        return module

    def _start(self, module: MachineCode, wanted: int) -> None:
        """Start workers; without signals, so that these interrupt Python's threads."""
        library = ctypes.CDLL(None)
        thread = ctypes.c_size_t()
        entry = ctypes.c_void_p(module.address("skforge_worker"))
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            for k in range(self._started.value + 1, wanted + 1):
                at = self._pool + _WORKER + k * _LINE + _SEMAPHORE
                library.sem_init(ctypes.c_void_p(at), 0, 0)
                error = library.pthread_create(
                    ctypes.byref(thread), None, entry, ctypes.c_void_p(k)
                )
                if error != 0:  # no more threads: those there are do the work
                    return
                library.pthread_detach(thread)
                self._started.value = k
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
