"""A forest compiled for the CPU and a GPU; each batch runs where it is faster."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skforge._typing import Array
from skforge.engine.arrays import is_device_array, is_forked
from skforge.engine.cpu.threads import resolve_n_jobs
from skforge.engine.engine import Answered, MethodName
from skforge.engine.kernels import RangeKernels
from skforge.engine.schedules import is_count
from skforge.exceptions import InvalidInputError
from skforge.forest.reference import draw_rows
from skforge.modules.compiled import CompiledModule
from skforge.modules.methods import Methods
from skforge.outputs.steps import Output
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule

#: Approximate batch size from which a GPU is faster than its machine's CPU.
GPU_MIN_ROWS = 100

#: Batch sizes at which the two are compared, and calls at each, with one to warm up.
TRIED_ROWS = tuple(1 << power for power in range(4, 15))
CALLS = 4

#: Most that one size counts, as the logarithm of the ratio of both times.
MOST_GAIN = 0.5


class AutoModule(Methods):
    """Two modules of one forest, and the batch size from which the GPU's is used.

    Rows in GPU memory always run on the GPU. A process forked from one that used a GPU
    cannot use it, and runs all rows on the CPU. Without ``gpu_min_rows``,
    ``GPU_MIN_ROWS`` stands in until :meth:`find_crossover` has measured it.
    """

    def __init__(
        self, cpu: CompiledModule, gpu: CompiledModule, gpu_min_rows: int | None = None
    ) -> None:
        self.cpu, self.gpu = self.parts = cpu, gpu
        self.forest, self.reduction, self.target = cpu.forest, cpu.reduction, gpu.target
        self.entry, self.stages = cpu.entry, cpu.stages
        self.plan_threads = cpu.plan_threads
        self.gpu_min_rows = GPU_MIN_ROWS if gpu_min_rows is None else gpu_min_rows

    def __repr__(self) -> str:
        return (
            f"<AutoModule: {self.cpu!r},\n"
            f"from {self.gpu_min_rows:,} rows on {self.gpu!r}>"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return AutoModule, (self.cpu, self.gpu, self._gpu_min_rows)

    @property
    def kernels(self) -> RangeKernels:
        return self.cpu.kernels

    @property
    def _entries(self) -> Any:  # type: ignore[override]
        return self.cpu._entries

    def count_small(self, output: Output, n_rows: int) -> None:
        if self._of_size(n_rows) is self.cpu:
            self.cpu.count_small(output, n_rows)

    @property
    def gpu_min_rows(self) -> int:
        return self._gpu_min_rows

    @gpu_min_rows.setter
    def gpu_min_rows(self, rows: int) -> None:
        if not is_count(rows, 1):
            raise InvalidInputError(
                f"gpu_min_rows must be a positive number of rows. Got {rows!r} instead."
            )
        self._gpu_min_rows = int(rows)
        # The CPU's compiled entries do not check the crossover themselves.
        self.cpu.limit_entries(self._gpu_min_rows - 1)

    @property
    def schedules(self) -> dict[BatchRange, Schedule]:
        return merged(self.cpu.schedules, self.gpu.schedules, self.gpu_min_rows)

    def _of_size(self, n_rows: int) -> CompiledModule:
        many = n_rows >= self._gpu_min_rows and not is_forked()
        return self.gpu if many else self.cpu

    def run(
        self, what: Answered, rows: Any, n_jobs: int | None = None, **options: Any
    ) -> Array:
        part = self.cpu
        if is_device_array(rows):
            part = self.gpu
        elif what in ("raw", "leaves"):
            part = self._of_size(len(rows))
        elif what == "contribs" and not is_forked():
            jobs = self.cpu.n_jobs if n_jobs is None else n_jobs
            threads = 1 if jobs is None else resolve_n_jobs(jobs)
            part = self.gpu if self.gpu.explains(len(rows), threads) else part
        return part.run(what, rows, n_jobs, **options)

    def schedule_for(self, n_rows: int) -> Schedule:
        return self._of_size(n_rows).schedule_for(n_rows)

    def check_schedules(self) -> None:
        self.cpu.check_schedules()
        self.gpu.check_schedules()

    def compile_all(self) -> float:
        return self.cpu.compile_all() + self.gpu.compile_all()

    def warm_up(
        self, batch_sizes: ArrayLike | None = None, *, contribs: bool = False
    ) -> AutoModule:
        if contribs:
            for part in self.parts:
                part.warm_up_contribs(batch_sizes)
        on_cpu = on_gpu = None
        if batch_sizes is not None:
            sizes = np.ravel(batch_sizes)
            for size in sizes:
                self.cpu.schedule_for(size)  # raises for a wrong size
            on_cpu = sizes[sizes < self._gpu_min_rows]
            on_gpu = sizes[sizes >= self._gpu_min_rows]
        self.cpu.warm_up(on_cpu)
        self.gpu.warm_up(on_gpu)
        return self

    def inspect(
        self, level: str, *, n_rows: int | None = None, method: MethodName = "predict"
    ) -> str:
        if method != "predict":
            return self.cpu.inspect(level, n_rows=n_rows, method=method)
        if n_rows is None:
            return self.gpu.inspect(level)
        self.cpu.schedule_for(n_rows)  # raises for a wrong size
        return self._of_size(n_rows).inspect(level, n_rows=n_rows)

    def find_crossover(self) -> int:
        """Measure the batch size from which the GPU is faster; set and return it.

        Rows are NumPy arrays, so copies to the device and back are included. The size
        is the best for calls of all sizes, so that one that was timed in a bad second
        does not decide. If it is none of them, the GPU is used above them only.
        """
        rows = draw_rows(self.forest, 1024, 0).astype(self.forest.input_dtype)
        gains = []
        for n in TRIED_ROWS:
            batch = np.resize(rows, (n, rows.shape[1]))
            taken = [[_seconds(m, batch) for m in self.parts] for _ in range(CALLS)]
            cpu, gpu = np.min(taken[1:], axis=0)  # the first calls warm up
            gains.append(np.clip(np.log(cpu / gpu), -MOST_GAIN, MOST_GAIN))
        sums = [sum(gains[k:]) for k in range(len(gains) + 1)]
        best = len(gains) - int(np.argmax(sums[::-1]))  # of equal ones the last
        self.gpu_min_rows = (*TRIED_ROWS, 2 * TRIED_ROWS[-1])[best]
        return self.gpu_min_rows


def _seconds(module: CompiledModule, rows: Array) -> float:
    start = time.perf_counter()
    module.predict_raw(rows)
    return max(1e-9, time.perf_counter() - start)


def merged(
    cpu: dict[BatchRange, Schedule], gpu: dict[BatchRange, Schedule], gpu_min_rows: int
) -> dict[BatchRange, Schedule]:
    table: dict[BatchRange, Schedule] = {}
    for (first, last), schedule in sorted(cpu.items()):
        if first < gpu_min_rows:
            end = gpu_min_rows - 1 if last is None else min(last, gpu_min_rows - 1)
            table[first, end] = schedule
    for (first, last), schedule in sorted(gpu.items()):
        if last is None or last >= gpu_min_rows:
            table[max(first, gpu_min_rows), last] = schedule
    return table
