"""Time kernel calls from machine code, undisturbed by Python threads.

A loop in Python would wait for the interpreter lock after each call, up to 5 ms while
another thread compiles, and would cost more than a kernel of one row. Single-threaded
calls are timed with the thread's CPU clock, which excludes other processes.
"""

from __future__ import annotations

import ctypes
import time
from functools import lru_cache
from typing import Any

from skforge.compiler.runtime.cpu.jit import JitModule, compile_functions
from skforge.compiler.target import Target

# Calls kernel(calls + i * stride, pfor, threads) for i in 0..n_calls, `rounds` times,
# and stores nanoseconds; gettime is the C library's clock_gettime.
_TEXT = """
define void @skforge_time_calls(
    ptr %kernel, ptr %calls, i64 %stride, i64 %n_calls, i64 %rounds,
    ptr %pfor, i64 %threads, ptr %gettime, i32 %clock, ptr %result) {
entry:
  %begin = alloca [2 x i64]
  %end = alloca [2 x i64]
  %r0 = call i32 %gettime(i32 %clock, ptr %begin)
  br label %round
round:
  %r = phi i64 [ 0, %entry ], [ %r.next, %round.end ]
  br label %call
call:
  %i = phi i64 [ 0, %round ], [ %i.next, %call ]
  %offset = mul i64 %i, %stride
  %slots = getelementptr i8, ptr %calls, i64 %offset
  call void %kernel(ptr %slots, ptr %pfor, i64 %threads)
  %i.next = add i64 %i, 1
  %i.more = icmp slt i64 %i.next, %n_calls
  br i1 %i.more, label %call, label %round.end
round.end:
  %r.next = add i64 %r, 1
  %r.more = icmp slt i64 %r.next, %rounds
  br i1 %r.more, label %round, label %done
done:
  %r1 = call i32 %gettime(i32 %clock, ptr %end)
  %s0 = load i64, ptr %begin
  %s1 = load i64, ptr %end
  %n0.at = getelementptr i8, ptr %begin, i64 8
  %n1.at = getelementptr i8, ptr %end, i64 8
  %n0 = load i64, ptr %n0.at
  %n1 = load i64, ptr %n1.at
  %s = sub i64 %s1, %s0
  %s.ns = mul i64 %s, 1000000000
  %n = sub i64 %n1, %n0
  %total = add i64 %s.ns, %n
  store i64 %total, ptr %result
  ret void
}
"""

_PROTOTYPE = ctypes.CFUNCTYPE(
    None,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_void_p,
)


@lru_cache(maxsize=1)
def _loop() -> tuple[JitModule, Any, int | None]:
    """Return the timing loop, with the module that keeps its code, and the clock."""
    module = compile_functions([_TEXT], Target.host())
    gettime = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value
    return module, _PROTOTYPE(module.address("skforge_time_calls")), gettime


def time_calls(
    kernel: int, calls: bytes, n_calls: int, rounds: int, pfor: int | None, threads: int
) -> float:
    """Return the mean seconds of one round of calls.

    ``kernel`` and ``pfor`` are function addresses; ``pfor`` distributes the iterations
    of a parallel loop over ``threads``. ``calls`` concatenates the calls' slots.
    """
    stride = len(calls) // n_calls
    clock = time.CLOCK_MONOTONIC if threads > 1 else time.CLOCK_THREAD_CPUTIME_ID
    taken = ctypes.c_int64()
    at = ctypes.addressof(taken)
    _, run, gettime = _loop()
    run(kernel, calls, stride, n_calls, rounds, pfor, threads, gettime, clock, at)
    return taken.value * 1e-9 / rounds
