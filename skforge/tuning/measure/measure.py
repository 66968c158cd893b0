"""Measurers: compile and time candidates on CPUs and GPUs.

A search is independent of the machine. It asks a :class:`Measurer` to lower a schedule,
compile it and time the result; tests pass a measurer with a simulated clock.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from string import Template
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Array
from skforge.compiler.backend import backend_of
from skforge.compiler.cost.estimate import CostEstimate
from skforge.compiler.driver import Lowered
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.ir.lir.printer import print_lir
from skforge.compiler.system import clock, clock_call
from skforge.compiler.target import Target
from skforge.engine.cpu.code import MachineCode
from skforge.engine.cpu.jit import compile_functions
from skforge.engine.cpu.threads import parallel_for_pointer, resolve_n_jobs
from skforge.engine.kernels import AnyKernel, Kernel, KernelCache, raw_scores
from skforge.engine.machine import machine_profile
from skforge.engine.shares import Shares
from skforge.forest.forest import Forest
from skforge.schedule.schedule import Schedule
from skforge.tuning.machines import machine_of


@dataclass(frozen=True, slots=True, eq=False)
class LoweredCandidate:
    """A lowered schedule that is not compiled yet."""

    schedule: Schedule
    digest: str  # equal for equal code on equal data
    weight: float  # lines of code, a measure of the compile time
    n_bytes: int  # of the model's arrays
    lowered: Any  # the code, as the measurer needs it


class Runner(Protocol):
    def predict(self, rows: Array) -> Array:
        """Return raw scores, of shape (n_rows, n_outputs)."""

    def time(self, batches: Sequence[Array], rounds: int) -> float:
        """Return mean seconds per call, over ``rounds`` passes over the batches."""


class Measurer(Protocol):
    #: A monotonic clock in seconds.
    clock: Callable[[], float]
    #: Whether compiling in another thread does not disturb timings.
    parallel: bool

    def lower(self, schedule: Schedule) -> LoweredCandidate:
        """Lower a schedule; raises ``SkforgeError`` if it does not fit."""

    def check(self, plan: LoweredCandidate) -> str:
        """Return why a plan should not be run; empty if it should.

        This may compile the plan. The default schedule is run without this check.
        """

    def build(self, plan: LoweredCandidate) -> Runner:
        """Compile a plan."""


def digest_of(lowered: Lowered) -> tuple[str, float, int]:
    """Return the structural hash of a kernel, its lines and the bytes of its data.

    Lowering removes loop names and the order of independent directives, so schedules
    with equal hashes give the same machine code on the same arrays.
    """
    text = print_lir(lowered.kernel.function)
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    size = 0
    for item in lowered.kernel.data:
        data = np.ascontiguousarray(item.data)
        digest.update(f"{data.dtype.str}{data.shape}".encode())
        digest.update(data.reshape(-1).view(np.uint8).data)
        size += data.nbytes
    return digest.hexdigest(), float(text.count("\n") + 1), size


class KernelMeasurer:
    """Measures the kernels of one forest: a CPU's in machine code, without Python.

    Kernels of GPUs are timed alone, as copies of rows and Python's calls take longer
    than most of them, and would hide what a schedule changes.
    """

    clock = staticmethod(time.perf_counter)

    def __init__(
        self,
        forest: Forest,
        target: Target,
        reduction: Reduction,
        n_jobs: int | None,
        kernels: KernelCache | None = None,
    ) -> None:
        self._forest, self._target = forest, target
        self._n_jobs, self._threads = n_jobs, resolve_n_jobs(n_jobs)
        self._cache = kernels or KernelCache(forest, target, reduction)
        #: Kernels while somebody holds them: not all candidates stay in memory.
        self._built: WeakValueDictionary[Schedule, AnyKernel]
        self._built = WeakValueDictionary()
        # Compile in parallel only if a core is free; else it would slow the timed code.
        self._native = backend_of(target).native
        self.parallel = self._native and self._threads < target.n_cores

    def lower(self, schedule: Schedule) -> LoweredCandidate:
        lowered = self._cache.lowered(schedule, "accumulator")
        return LoweredCandidate(schedule, *digest_of(lowered), lowered)

    def keep(self, schedules: Iterable[Schedule]) -> None:
        for schedule in schedules:
            kernel = self._built.get(schedule)
            if kernel is not None:
                self._cache.keep(schedule, kernel)

    def check(self, plan: LoweredCandidate) -> str:
        """Return what a GPU's compiler reports; a CPU's spills show up in the time."""
        how = plan.schedule, plan.lowered, self._target
        return machine_of(self._target).refusal(*how)

    def build(self, plan: LoweredCandidate) -> Runner:
        kernel = self._built[plan.schedule] = self._cache.made(plan.lowered)
        if not isinstance(kernel, Kernel):
            return machine_of(self._target).runner(kernel, self._forest)
        if self._threads == 1:
            return _CpuRunner(kernel, self._forest)
        estimate = (lambda: self._estimate) if self._native else None
        shares = Shares(self._forest, [plan.schedule], [1], estimate)
        jobs = self._n_jobs
        threads = lambda n_rows: shares.of(n_rows, jobs).threads  # noqa: E731
        return _CpuRunner(kernel, self._forest, threads)

    @cached_property
    def _estimate(self) -> CostEstimate:
        return CostEstimate(self._forest, self._target, machine_profile(self._target))


K = TypeVar("K", bound=AnyKernel)


class KernelRunner(Generic[K]):
    def __init__(
        self, kernel: K, forest: Forest, threads: Callable[[int], int] = lambda _: 1
    ) -> None:
        self._kernel, self._forest, self._threads = kernel, forest, threads

    def predict(self, rows: Array) -> Array:
        how = self._forest, self._kernel, rows, self._threads(len(rows))
        return raw_scores(*how).reshape(len(rows), -1)

    def time(self, batches: Sequence[Array], rounds: int) -> float:
        result = self._result(len(batches[0]))
        start = time.perf_counter()
        for _ in range(rounds):
            for batch in batches:
                self._kernel(batch, result, 1)
        return (time.perf_counter() - start) / (rounds * len(batches))

    def _result(self, n_rows: int) -> Array:
        return np.empty(
            (n_rows, self._forest.n_outputs), self._forest.accumulator_dtype
        )


class _CpuRunner(KernelRunner[Kernel]):
    #: The last timed batches, the argument slots of their calls, and their result.
    _prepared: tuple[Sequence[Array], bytes, int, Array] | None = None

    def time(self, batches: Sequence[Array], rounds: int) -> float:
        if self._prepared is None or self._prepared[0] is not batches:
            self._prepared = (batches, *self._slots(batches))
        _, calls, n_calls, _ = self._prepared
        pfor, threads = parallel_for_pointer(self._threads(len(batches[0])))
        stride = len(calls) // n_calls
        gettime, number = clock(of_thread=threads <= 1)
        times = (ctypes.c_int64 * 4)()
        _, run = _loop()
        how = pfor, threads, gettime, number, ctypes.addressof(times)
        run(self._kernel.address, calls, stride, n_calls, rounds, *how)
        nanoseconds = (times[2] - times[0]) * 1_000_000_000 + times[3] - times[1]
        return nanoseconds * 1e-9 / rounds / len(batches)

    def _slots(self, batches: Sequence[Array]) -> tuple[bytes, int, Array]:
        result = self._result(len(batches[0]))
        calls = []
        for batch in batches:
            most = self._kernel.most_rows or len(batch)
            for first in range(0, len(batch), most):
                part = batch[first : first + most]
                stride = part.strides[0] // part.itemsize
                head = part.ctypes.data, len(part), stride, result.ctypes.data
                calls.append(struct.pack("4q", *head) + self._kernel.slots)
        return b"".join(calls), len(calls), result


# ------------------------------------------------------------ in machine code

# A loop in Python would wait for the interpreter lock after each call, up to 5 ms while
# another thread compiles, and would cost more than a kernel of one row. Single-threaded
# calls are timed with the thread's CPU clock, which excludes other processes.

_PROTOTYPE = ctypes.CFUNCTYPE(
    None,
    *(ctypes.c_void_p, ctypes.c_char_p, *[ctypes.c_int64] * 3),
    *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p),
    *(ctypes.c_int32, ctypes.c_void_p),
)


@lru_cache(maxsize=1)
def _loop() -> tuple[MachineCode, Any]:
    text = Path(__file__).with_name("time_calls.ll").read_text("utf-8")
    clocks = {"before": clock_call("%times"), "after": clock_call("%end")}
    module = compile_functions([Template(text).substitute(clocks)], Target.host())
    return module, _PROTOTYPE(module.address("skforge_time_calls"))
