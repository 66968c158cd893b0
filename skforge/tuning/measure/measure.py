"""Candidates compiled and run: what a search needs of a target, and two ways to it.

A search knows no machine. It asks a :class:`Measurer` to lower a schedule, to compile
what was lowered, and to time the result; tests give it one with a clock of their own.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.defaults.cpu import BatchRange
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.ir.lir.printer import print_lir
from skforge.compiler.pipeline import Lowered
from skforge.compiler.runtime.cpu.threads import parallel_for_pointer, resolve_n_jobs
from skforge.compiler.runtime.kernels import Kernel, KernelCache
from skforge.compiler.runtime.module import CompiledModule
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.tuning.cost.gpu_limits import problem
from skforge.tuning.measure.native_timer import time_calls

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A schedule lowered, before it is compiled.

    Parameters
    ----------
    schedule : Schedule
        What was lowered.
    digest : str
        Equal for equal code on equal data.
    weight : float
        Lines of code: what compiling them costs grows with it.
    n_bytes : int
        Size of the model arrays.
    lowered : object
        What the measurer needs to go on.
    """

    schedule: Schedule
    digest: str
    weight: float
    n_bytes: int
    lowered: Any


class Runner(Protocol):
    """A compiled candidate."""

    def predict(self, rows: Array) -> Array:
        """Return raw scores, of shape (n_rows, n_outputs)."""

    def time(self, batches: Sequence[Array], rounds: int) -> float:
        """Return seconds of a call: the mean over all batches, ``rounds`` times."""


class Measurer(Protocol):
    """A machine to measure on."""

    #: Seconds, ever growing.
    clock: Callable[[], float]
    #: Whether compiling in another thread leaves timings alone.
    parallel: bool

    def lower(self, schedule: Schedule) -> Plan:
        """Lower a schedule; raises ``SkforgeError`` if it does not fit."""

    def check(self, plan: Plan) -> str:
        """Return why a plan is not worth a run; empty if nothing speaks against it.

        It may compile. The default schedule is run in any case.
        """

    def build(self, plan: Plan) -> Runner:
        """Compile what was lowered."""


def measurer_for(
    forest: Forest, target: Target, reduction: Reduction, n_jobs: int | None = None
) -> Measurer:
    """Return the measurer of a target that runs here."""
    kind = ModuleMeasurer if target.is_gpu else KernelMeasurer
    return kind(forest, target, reduction, n_jobs)


def digest_of(lowered: Lowered) -> tuple[str, float, int]:
    """Return the structural hash of a kernel, its lines and the bytes of its data.

    Names of loops and orders of directives that make no difference are gone by then:
    schedules with equal hashes are the same machine code on the same arrays.
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


class _Lowering:
    """What both measurers share: schedules lowered to LIR for one forest and target."""

    clock = staticmethod(time.perf_counter)

    def __init__(
        self, forest: Forest, target: Target, reduction: Reduction, n_jobs: int | None
    ) -> None:
        self._forest, self._target, self._reduction = forest, target, reduction
        self._n_jobs, self._threads = n_jobs, resolve_n_jobs(n_jobs)
        self._cache = KernelCache(forest, target, reduction)
        # One core would only be taken from what is timed.
        self.parallel = not target.is_gpu and self._threads < target.n_cores

    def lower(self, schedule: Schedule) -> Plan:
        """Lower a schedule to LIR."""
        lowered = self._cache.lowered(schedule, "accumulator")
        return Plan(schedule, *digest_of(lowered), lowered)


class KernelMeasurer(_Lowering):
    """Kernels of the CPU, timed by machine code without Python around them."""

    def check(self, plan: Plan) -> str:
        """Return nothing: registers that are spilled are in the time."""
        return ""

    def build(self, plan: Plan) -> Runner:
        """Compile LIR with LLVM."""
        kernel = Kernel(plan.lowered, self._target)
        threads: Callable[[int], int] = _one_thread
        if self._threads > 1:
            table: dict[BatchRange, Schedule] = {(1, None): plan.schedule}
            module = CompiledModule(
                self._forest, table, self._target, self._reduction, self._n_jobs
            )
            threads = module.threads
        return _KernelRunner(kernel, self._forest, threads)


def _one_thread(_n_rows: int) -> int:
    return 1


class _KernelRunner:
    def __init__(
        self, kernel: Kernel, forest: Forest, threads: Callable[[int], int]
    ) -> None:
        self._kernel, self._forest, self._threads = kernel, forest, threads
        #: The batches timed last: slots of their calls, and the result they share.
        self._prepared: tuple[Sequence[Array], bytes, int, Array] | None = None

    def predict(self, rows: Array) -> Array:
        raw = self._result(len(rows))
        self._kernel(rows, raw, self._threads(len(rows)))
        if self._forest.divisor != 1:
            raw /= self._forest.divisor
        return raw

    def time(self, batches: Sequence[Array], rounds: int) -> float:
        prepared = self._prepared
        if prepared is None or prepared[0] is not batches:
            prepared = self._prepared = (batches, *self._slots(batches))
        _, calls, n_calls, _ = prepared
        threads = self._threads(len(batches[0]))
        pfor: int | None = None
        if threads > 1:
            pfor, threads = parallel_for_pointer(threads)
        taken = time_calls(self._kernel.address, calls, n_calls, rounds, pfor, threads)
        return taken / len(batches)

    def _result(self, n_rows: int) -> Array:
        return np.empty(
            (n_rows, self._forest.n_outputs), self._forest.accumulator_dtype
        )

    def _slots(self, batches: Sequence[Array]) -> tuple[bytes, int, Array]:
        result = self._result(len(batches[0]))
        calls = []
        for batch in batches:
            most = self._kernel.most_rows or len(batch)
            for first in range(0, len(batch), most):
                part = batch[first : first + most]
                head = struct.pack(
                    "4q",
                    part.ctypes.data,
                    len(part),
                    part.strides[0] // part.itemsize,
                    result.ctypes.data,
                )
                calls.append(head + self._kernel.slots)
        return b"".join(calls), len(calls), result


class ModuleMeasurer(_Lowering):
    """GPUs and what stands in for them, timed through ``predict_raw``."""

    def check(self, plan: Plan) -> str:
        """Return what the GPU's compiler says against it; its code is kept."""
        return problem(plan.schedule, plan.lowered, self._target)

    def build(self, plan: Plan) -> Runner:
        """Compile a module and its kernel."""
        module = CompiledModule.of_lowered(
            self._forest,
            plan.schedule,
            plan.lowered,
            self._target,
            self._reduction,
            self._n_jobs,
        )
        module.compile_all()
        alone = self._target.kind == "emulated" and self._threads == 1
        return _ModuleRunner(module, alone)


class _ModuleRunner:
    def __init__(self, module: CompiledModule, alone: bool) -> None:
        self._module = module
        # A GPU that is this thread: nobody else's time counts.
        self._clock = time.thread_time if alone else time.perf_counter

    def predict(self, rows: Array) -> Array:
        raw = self._module.predict_raw(rows)
        return raw.reshape(len(rows), -1)

    def time(self, batches: Sequence[Array], rounds: int) -> float:
        predict, clock = self._module.predict_raw, self._clock
        start = clock()
        for _ in range(rounds):
            for batch in batches:
                predict(batch)
        return (clock() - start) / (rounds * len(batches))
