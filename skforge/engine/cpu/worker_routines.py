"""The code of worker threads: how they share the iterations of a loop.

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

import time
from collections.abc import Callable

from skforge.compiler.ir.lir.builder import Builder, b
from skforge.compiler.ir.lir.nodes import BOOL, I32, I64, Buffer, Routine, Scalar, Value
from skforge.engine.cpu import workers

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

_PAUSE: dict[str, tuple[str, tuple[int, ...]]] = {
    "x86_64": ("llvm.x86.sse2.pause", ()),
    "aarch64": ("llvm.aarch64.hint", (1,)),
}

#: Where the fields are, in words.
_CLAIM, _LEFT_AT, _BUSY_AT = 0, workers.LEFT // 8, workers.BUSY // 8
_BODY, _CONTEXT, _COUNT, _THREADS = (workers.JOB // 8 + k for k in range(4))
_SEMAPHORE = workers.SEMAPHORE // 8

_K, _ALL = Value("k", I64), Value("threads", I64)
_JOB = tuple(Value(name, I64) for name in ("body", "context", "count", "n"))


def routines(arch: str | None) -> list[Routine]:
    """Return a parallel loop for kernels, the workers' function, and what they call.

    None for a machine without workers, where there is only a function of no limit.
    """
    no_limit = _routine(_no_limit, (), I32, local=False)
    if arch is None:
        return [no_limit]
    return [
        no_limit,
        _routine(_now, (), I64),
        _routine(_wake, (_K, _ALL)),
        _routine(_is_asked, (_K,), BOOL),
        _routine(_work, (_K,)),
        _routine(_sleep, (_K,)),
        _routine(_worker, (_K,), I64, arch, local=False),
        _routine(_parallel, _JOB, None, arch, local=False),
    ]


def _routine(
    write: Callable[..., None],
    params: tuple[Value, ...],
    result: Scalar | None = None,
    *arch: str,
    local: bool = True,
) -> Routine:
    with Builder() as b:
        write(*arch)
    return Routine(f"skforge{write.__name__}", params, b.finish(), result, local=local)


def _no_limit() -> None:
    b.give(b.const(workers.MAX_WORKERS, I32))


def _now() -> None:
    moment = b.local("moment", I64, 2)
    clock = b.const(time.CLOCK_MONOTONIC, I32)
    b.call("clock_gettime", clock, b.address(moment), gives=I32)
    b.give(moment[0] * 1_000_000_000 + moment[1])


def _pool() -> Buffer:
    return b.view("pool", I64, b.symbol("skforge_pool"))


def _field(index: int) -> Value:
    return b.atomic("load", "monotonic", _pool(), at=index)


def _line() -> Buffer:
    pool = _pool()
    return b.view("line", I64, pool, (_K * workers.LINE + workers.WORKER) >> 3)


def _pause(arch: str) -> None:
    if arch in _PAUSE:
        name, numbers = _PAUSE[arch]
        b.run(name, *(b.const(number, I32) for number in numbers))


def _give_way() -> None:
    b.call("sched_yield", gives=I32)


def _wake() -> None:
    with b.when(_ALL > _K):
        line = _line()
        with b.when(b.atomic("load", "seq_cst", line).eq(1)):
            was = b.atomic("swap", "seq_cst", line, b.const(0))
            with b.when(was.eq(1)):
                b.call("sem_post", b.address(line, _SEMAPHORE), gives=I32)


def _is_asked() -> None:
    word = b.atomic("load", "seq_cst", _pool(), at=_CLAIM)
    b.give((word & 0xFFFFFFFF).ne(0) & (_field(_THREADS) > _K))


def _work() -> None:
    pool, tell = _pool(), [b.const(True, BOOL)]
    with b.repeat(lambda: b.const(True, BOOL), tell):
        word = b.atomic("load", "acquire", pool, at=_CLAIM)
        job = [_field(index) for index in (_BODY, _CONTEXT, _COUNT, _THREADS)]
        left, (body, context, count, threads) = word & 0xFFFFFFFF, job
        with b.when(left.eq(0) | (threads <= _K)):
            b.give()
        # Half of an equal share, so that a thread that comes late finds work.
        size = (left // (threads << 1)).max(1)
        claimed = b.atomic("replace", "acq_rel", pool, word, word - size, at=_CLAIM)
        with b.when(claimed):
            with b.when(tell[0]):
                for k in (1, 2):
                    b.run("skforge_wake", (_K << 1) + k, threads)
            first = count - left
            b.run(body, context, first, first + size)
            b.atomic("sub", "acq_rel", pool, size, at=_LEFT_AT)
        tell[0] = ~claimed


def _sleep() -> None:
    line = _line()
    b.atomic("swap", "seq_cst", line, b.const(1))
    with b.when(b.call("skforge_is_asked", _K, gives=BOOL)):
        was = b.atomic("swap", "seq_cst", line, b.const(0))
        with b.when(was.eq(1)):
            b.give()  # else the waker's post is there, or will be
    semaphore = b.address(line, _SEMAPHORE)
    with b.repeat(lambda: b.call("sem_wait", semaphore, gives=I32).ne(0), []):
        pass


def _worker(arch: str) -> None:
    with b.repeat(lambda: b.const(True, BOOL), []):
        waits = [b.const(0), b.call("skforge_now")]

        def is_idle() -> Value:
            return ~b.call("skforge_is_asked", _K, gives=BOOL)

        with b.repeat(is_idle, waits):
            turn, begun = waits[0] + 1, waits[1]
            _pause(arch)

            def slept() -> Value:
                b.run("skforge_sleep", _K)
                return b.call("skforge_now")

            def gave_way() -> Value:
                _give_way()
                patient = b.call("skforge_now") - begun < PATIENCE
                return b.either(patient, lambda: begun, slept)

            is_long = (turn & (YIELD - 1)).eq(0)
            waits[:] = turn, b.either(is_long, gave_way, lambda: begun)
        b.run("skforge_work", _K)
    b.give(0)


def _parallel(arch: str) -> None:
    body, context, count, n = _JOB
    zero, one, pool = b.const(0), b.const(1), _pool()
    threads = n.min(count)
    with b.when((threads > 1) & (count < 1 << 32)):
        free = b.atomic("replace", "acquire", pool, zero, one, at=_BUSY_AT)
        with b.when(free):
            job = {_BODY: body, _CONTEXT: context, _COUNT: count}
            job |= {_THREADS: threads, _LEFT_AT: count}
            for index, value in job.items():
                b.atomic("store", "monotonic", pool, value, at=index)
            # Job numbers are in the upper half, and may wrap.
            word = ((_field(_CLAIM) >> 32) + 1 << 32) | count
            b.atomic("swap", "seq_cst", pool, word, at=_CLAIM)
            b.run("skforge_work", zero)
            turn = [zero]

            def is_running() -> Value:
                left = b.atomic("load", "acquire", pool, at=_LEFT_AT)
                return left.ne(0)

            def spun() -> Value:
                _pause(arch)
                return turn[0] + 1

            def yielded() -> Value:
                _give_way()
                return turn[0]

            with b.repeat(is_running, turn):
                turn[0] = b.either(turn[0] < CALLER_SPINS, spun, yielded)
            b.atomic("store", "release", pool, zero, at=_BUSY_AT)
            b.give()
    b.run(body, context, zero, count)
