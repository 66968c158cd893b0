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
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from skforge.compiler.runtime.cpu.jit import JitModule, compile_functions
from skforge.compiler.target import Target

_PFOR = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)
_RANGE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


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
        """Run ranges until none is left."""
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

_PAUSE = {
    "x86_64": "call void @llvm.x86.sse2.pause()",
    "aarch64": "call void @llvm.aarch64.hint(i32 1)",
}


def _field(at: int) -> str:
    """Return a constant address in the state."""
    return f"ptr getelementptr (i8, ptr @skforge_pool, i64 {at})"


_CLAIM, _LEFT_AT, _BUSY_AT = _field(0), _field(_LEFT), _field(_BUSY)
_BODY, _CONTEXT, _COUNT, _THREADS = (_field(_JOB + 8 * k) for k in range(4))


def _text(arch: str) -> str:
    """Return the module: a parallel loop for kernels, and the workers' function."""
    pause = _PAUSE.get(arch, "")
    return f"""
@skforge_pool = external global i8
declare i32 @sem_wait(ptr)
declare i32 @sem_post(ptr)
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)

define internal i64 @skforge_now() nounwind {{
  %time = alloca [2 x i64]
  %failed = call i32 @clock_gettime(i32 {time.CLOCK_MONOTONIC}, ptr %time)
  %seconds = load i64, ptr %time
  %rest.at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.at
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  ret i64 %now
}}

define i32 @skforge_no_limit() nounwind {{
  ret i32 {MAX_WORKERS}
}}

define internal ptr @skforge_line(i64 %k) nounwind {{
  %lines = mul i64 %k, {_LINE}
  %at = add i64 %lines, {_WORKER}
  %line = getelementptr i8, ptr @skforge_pool, i64 %at
  ret ptr %line
}}

define internal void @skforge_wake(i64 %k, i64 %threads) nounwind {{
start:
  %is.one = icmp ult i64 %k, %threads
  br i1 %is.one, label %look, label %done
look:
  %line = call ptr @skforge_line(i64 %k)
  %asleep = load atomic i64, ptr %line seq_cst, align 8
  %sleeps = icmp eq i64 %asleep, 1
  br i1 %sleeps, label %take, label %done
take:
  %was = atomicrmw xchg ptr %line, i64 0 seq_cst
  %mine = icmp eq i64 %was, 1
  br i1 %mine, label %post, label %done
post:
  %semaphore = getelementptr i8, ptr %line, i64 {_SEMAPHORE}
  %posted = call i32 @sem_post(ptr %semaphore)
  br label %done
done:
  ret void
}}

define internal void @skforge_wake_two(i64 %k, i64 %threads) nounwind {{
  %twice = shl i64 %k, 1
  %one = add i64 %twice, 1
  %two = add i64 %twice, 2
  call void @skforge_wake(i64 %one, i64 %threads)
  call void @skforge_wake(i64 %two, i64 %threads)
  ret void
}}

define internal i1 @skforge_is_asked(i64 %k) nounwind {{
  %word = load atomic i64, {_CLAIM} seq_cst, align 8
  %rest = and i64 %word, {0xFFFFFFFF}
  %some = icmp ne i64 %rest, 0
  %threads = load atomic i64, {_THREADS} monotonic, align 8
  %is.asked = icmp ult i64 %k, %threads
  %both = and i1 %some, %is.asked
  ret i1 %both
}}

define internal void @skforge_work(i64 %k) nounwind {{
start:
  br label %look
look:
  %tell = phi i1 [ true, %start ], [ %tell, %claim ], [ false, %run ]
  %word = load atomic i64, {_CLAIM} acquire, align 8
  %rest = and i64 %word, {0xFFFFFFFF}
  %body = load atomic ptr, {_BODY} monotonic, align 8
  %ctx = load atomic ptr, {_CONTEXT} monotonic, align 8
  %count = load atomic i64, {_COUNT} monotonic, align 8
  %threads = load atomic i64, {_THREADS} monotonic, align 8
  %some = icmp ne i64 %rest, 0
  %is.asked = icmp ult i64 %k, %threads
  %both = and i1 %some, %is.asked
  br i1 %both, label %claim, label %done
claim:
  ; half of an equal share, so that a thread that comes late finds something to do
  %halves = shl i64 %threads, 1
  %share = udiv i64 %rest, %halves
  %size = call i64 @llvm.umax.i64(i64 %share, i64 1)
  %less = sub i64 %word, %size
  %swap = cmpxchg {_CLAIM}, i64 %word, i64 %less acq_rel acquire, align 8
  %claimed = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %claimed, label %begin, label %look
begin:
  br i1 %tell, label %wake, label %run
wake:
  call void @skforge_wake_two(i64 %k, i64 %threads)
  br label %run
run:
  %first = sub i64 %count, %rest
  %end = add i64 %first, %size
  call void %body(ptr %ctx, i64 %first, i64 %end)
  %before = atomicrmw sub {_LEFT_AT}, i64 %size acq_rel, align 8
  br label %look
done:
  ret void
}}

define ptr @skforge_worker(ptr %number) nounwind {{
start:
  %k = ptrtoint ptr %number to i64
  %line = call ptr @skforge_line(i64 %k)
  %semaphore = getelementptr i8, ptr %line, i64 {_SEMAPHORE}
  br label %begin
begin:
  %begun = call i64 @skforge_now()
  br label %spin
spin:
  %turn = phi i64 [ 0, %begin ], [ %turn.next, %pause ], [ %turn.next, %give.way ]
  %is.asked = call i1 @skforge_is_asked(i64 %k)
  br i1 %is.asked, label %join, label %pause
pause:
  {pause}
  %turn.next = add i64 %turn, 1
  %odd = and i64 %turn.next, {YIELD - 1}
  %is.long = icmp eq i64 %odd, 0
  br i1 %is.long, label %give.way, label %spin
give.way:
  %yielded = call i32 @sched_yield()
  %now = call i64 @skforge_now()
  %waited = sub i64 %now, %begun
  %patient = icmp ult i64 %waited, {PATIENCE}
  br i1 %patient, label %spin, label %lie.down
lie.down:
  %old = atomicrmw xchg ptr %line, i64 1 seq_cst
  %late = call i1 @skforge_is_asked(i64 %k)
  br i1 %late, label %get.up, label %sleep
get.up:
  %was = atomicrmw xchg ptr %line, i64 0 seq_cst
  %is.up = icmp eq i64 %was, 1
  br i1 %is.up, label %join, label %sleep
sleep:
  %failed = call i32 @sem_wait(ptr %semaphore)
  %woken = icmp eq i32 %failed, 0
  br i1 %woken, label %begin, label %sleep
join:
  call void @skforge_work(i64 %k)
  br label %begin
}}

define void @skforge_parallel(ptr %body, ptr %ctx, i64 %count, i64 %n) nounwind {{
start:
  %threads = call i64 @llvm.smin.i64(i64 %n, i64 %count)
  %several = icmp sgt i64 %threads, 1
  %fits = icmp ult i64 %count, {1 << 32}
  %shared = and i1 %several, %fits
  br i1 %shared, label %own, label %alone
own:
  %swap = cmpxchg {_BUSY_AT}, i64 0, i64 1 acquire monotonic, align 8
  %free = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %free, label %publish, label %alone
alone:
  call void %body(ptr %ctx, i64 0, i64 %count)
  ret void
publish:
  store atomic ptr %body, {_BODY} monotonic, align 8
  store atomic ptr %ctx, {_CONTEXT} monotonic, align 8
  store atomic i64 %count, {_COUNT} monotonic, align 8
  store atomic i64 %threads, {_THREADS} monotonic, align 8
  store atomic i64 %count, {_LEFT_AT} monotonic, align 8
  %old = load atomic i64, {_CLAIM} monotonic, align 8
  %number = lshr i64 %old, 32
  %next = add i64 %number, 1
  %upper = shl i64 %next, 32
  %word = or i64 %upper, %count
  %published = atomicrmw xchg {_CLAIM}, i64 %word seq_cst, align 8
  call void @skforge_work(i64 0)
  br label %wait
wait:
  %turn = phi i64 [ 0, %publish ], [ %turn.next, %pause ], [ %turn, %yield ]
  %left = load atomic i64, {_LEFT_AT} acquire, align 8
  %done = icmp eq i64 %left, 0
  br i1 %done, label %end, label %later
later:
  %patient = icmp ult i64 %turn, {CALLER_SPINS}
  br i1 %patient, label %pause, label %yield
pause:
  {pause}
  %turn.next = add i64 %turn, 1
  br label %wait
yield:
  %yielded = call i32 @sched_yield()
  br label %wait
end:
  store atomic i64 0, {_BUSY_AT} release, align 8
  ret void
}}
"""


#: Whether threads can sleep at a semaphore in memory: macOS has none, Windows others.
SEMAPHORES = os.name == "posix" and sys.platform != "darwin"

#: A module for systems without: entries ask it for the limit alone.
_LIMIT_TEXT = f"""
define i32 @skforge_no_limit() nounwind {{
  ret i32 {MAX_WORKERS}
}}
"""


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
        self._module: JitModule | None = None
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

    def _compiled(self) -> JitModule:
        if self._python is not None:
            return compile_functions([_LIMIT_TEXT], Target.host())
        host, symbols = Target.host(), {"skforge_pool": self._pool}
        module = compile_functions([_text(host.arch)], host, symbols)
        # Workers run this code until the process ends, after Python's own end.
        for kept in (module._loaded, self._memory):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        return module

    def _start(self, module: JitModule, wanted: int) -> None:
        """Start workers; without signals, so that these interrupt Python's threads."""
        library = ctypes.CDLL(None)
        thread = ctypes.c_size_t()
        entry = ctypes.c_void_p(module.address("skforge_worker"))
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            for k in range(self._started.value + 1, wanted + 1):
                at = self._pool + _WORKER + k * _LINE + _SEMAPHORE
                library.sem_init(ctypes.c_void_p(at), 0, 0)
                found = library.pthread_create(
                    ctypes.byref(thread), None, entry, ctypes.c_void_p(k)
                )
                if found != 0:  # no more threads: those there are do the work
                    return
                library.pthread_detach(thread)
                self._started.value = k
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
