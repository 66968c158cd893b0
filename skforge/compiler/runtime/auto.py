"""A forest compiled for the CPU and a GPU: batches go where they are done sooner."""

from __future__ import annotations

import time
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skforge.compiler.defaults.cpu import BatchRange
from skforge.compiler.defaults.gpu import GPU_MIN_ROWS
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.reference import draw_rows
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.runtime.gpu.cupy import is_device_array, is_forked
from skforge.compiler.runtime.module import CompiledModule
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError

Array: TypeAlias = NDArray[Any]

#: Batch sizes at which the two are compared, and calls of each.
TRIED_ROWS = tuple(1 << power for power in range(4, 15))
CALLS = 3


class AutoModule:
    """Two modules of one forest, and the batch size from which the GPU's is used.

    It has the methods of :class:`CompiledModule`. Rows that are on a GPU are always
    walked there, and those of a process that was forked from one that used a GPU, where
    none can be used, never.

    Parameters
    ----------
    cpu, gpu : CompiledModule
        The same forest, in the same mode.
    gpu_min_rows : int or None, default=None
        Rows from which the GPU is used; None means ``GPU_MIN_ROWS`` until
        :meth:`find_crossover` has measured.
    """

    def __init__(
        self, cpu: CompiledModule, gpu: CompiledModule, gpu_min_rows: int | None = None
    ) -> None:
        self.cpu, self.gpu = cpu, gpu
        self.gpu_min_rows = GPU_MIN_ROWS if gpu_min_rows is None else gpu_min_rows

    def __repr__(self) -> str:
        """Return both modules and where one takes over."""
        return f"<AutoModule of {self.cpu!r} and, from {self.gpu_min_rows} rows, " + (
            f"{self.gpu!r}>"
        )

    @property
    def gpu_min_rows(self) -> int:
        """Rows from which the GPU is used; can be set."""
        return self._gpu_min_rows

    @gpu_min_rows.setter
    def gpu_min_rows(self, rows: int) -> None:
        check_min_rows(rows)
        self._gpu_min_rows = int(rows)
        # What is compiled for few rows answers without asking here.
        self.cpu.limit_entries(self._gpu_min_rows - 1)

    @property
    def parts(self) -> tuple[CompiledModule, CompiledModule]:
        """Both modules."""
        return self.cpu, self.gpu

    @property
    def forest(self) -> Forest:
        """The forest of both."""
        return self.cpu.forest

    @property
    def reduction(self) -> Reduction:
        """How both sum leaf values."""
        return self.cpu.reduction

    @property
    def target(self) -> Target:
        """The GPU's target."""
        return self.gpu.target

    @property
    def schedules(self) -> dict[BatchRange, Schedule]:
        """The schedule of each range of batch sizes, whoever walks it."""
        return merged(self.cpu.schedules, self.gpu.schedules, self.gpu_min_rows)

    @property
    def n_jobs(self) -> int | None:
        """Threads of the CPU's calls at most."""
        return self.cpu.n_jobs

    def _for(self, X: Any) -> CompiledModule:
        if is_device_array(X):
            return self.gpu
        shape = getattr(X, "shape", None)
        n_rows = shape[0] if shape else len(X) if hasattr(X, "__len__") else 0
        return self._at(n_rows)

    def _at(self, n_rows: int) -> CompiledModule:
        many = n_rows >= self._gpu_min_rows and not is_forked()
        return self.gpu if many else self.cpu

    def predict_raw(self, X: Any, *, n_jobs: int | None = None) -> Any:
        """Return raw scores, as :meth:`CompiledModule.predict_raw`."""
        return self._for(X).predict_raw(X, n_jobs=n_jobs)

    def predict(self, X: Any, *, n_jobs: int | None = None) -> Any:
        """Return the source's output, as :meth:`CompiledModule.predict`."""
        return self._for(X).predict(X, n_jobs=n_jobs)

    def apply(self, X: Any, *, n_jobs: int | None = None) -> Any:
        """Return leaf numbers, as :meth:`CompiledModule.apply`."""
        return self._for(X).apply(X, n_jobs=n_jobs)

    def schedule_for(self, n_rows: int) -> Schedule:
        """Return the schedule of a batch size."""
        return self._at(n_rows).schedule_for(n_rows)

    def compile_all(self) -> float:
        """Compile every kernel now; return the seconds it took."""
        return self.cpu.compile_all() + self.gpu.compile_all()

    def warm_up(self, batch_sizes: ArrayLike | None = None) -> AutoModule:
        """Compile what calls need, as :meth:`CompiledModule.warm_up`."""
        if batch_sizes is None:
            self.cpu.warm_up()
            self.gpu.warm_up()
            return self
        sizes = np.ravel(batch_sizes)
        for size in sizes:
            self.cpu.schedule_for(size)  # says what is wrong with it
        self.cpu.warm_up(sizes[sizes < self._gpu_min_rows])
        self.gpu.warm_up(sizes[sizes >= self._gpu_min_rows])
        return self

    def entry(self, *args: Any, **options: Any) -> Any:
        """Return a compiled function for batches of the CPU's."""
        return self.cpu.entry(*args, **options)

    def inspect(self, level: str, *, n_rows: int | None = None) -> str:
        """Return a level of the compilation as text; many rows are the GPU's."""
        if n_rows is None:
            return self.gpu.inspect(level)
        self.cpu.schedule_for(n_rows)  # says what is wrong with it
        return self._at(n_rows).inspect(level, n_rows=n_rows)

    def find_crossover(self) -> int:
        """Measure from how many rows the GPU is faster, keep it and return it.

        Rows are NumPy arrays, so that copies to the device and back count. Where the
        GPU is never faster, it is used only for more rows than were tried.
        """
        rows = draw_rows(self.forest, 1024, 0).astype(self.forest.input_dtype)
        best = 2 * TRIED_ROWS[-1]
        for n in reversed(TRIED_ROWS):
            batch = np.resize(rows, (n, rows.shape[1]))
            if _seconds(self.gpu, batch) >= _seconds(self.cpu, batch):
                break
            best = n
        self.gpu_min_rows = best
        return best


def _seconds(module: CompiledModule, rows: Array) -> float:
    """Return the shortest time of a call, the first one not counted."""
    module.predict_raw(rows)
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        module.predict_raw(rows)
        times.append(time.perf_counter() - start)
    return min(times)


def merged(
    cpu: dict[BatchRange, Schedule],
    gpu: dict[BatchRange, Schedule],
    gpu_min_rows: int,
) -> dict[BatchRange, Schedule]:
    """Return one table of the CPU's below, and the GPU's from a number of rows on."""
    table: dict[BatchRange, Schedule] = {}
    for (first, last), schedule in sorted(cpu.items()):
        if first < gpu_min_rows:
            end = gpu_min_rows - 1 if last is None else min(last, gpu_min_rows - 1)
            table[first, end] = schedule
    for (first, last), schedule in sorted(gpu.items()):
        if last is None or last >= gpu_min_rows:
            table[max(first, gpu_min_rows), last] = schedule
    return table


def check_min_rows(rows: Any) -> None:
    """Refuse what is no number of rows."""
    whole = isinstance(rows, (int, np.integer)) and not isinstance(rows, bool)
    if not whole or rows < 1:
        raise InvalidInputError(
            f"gpu_min_rows must be a number of rows from 1 on. Got {rows!r} instead."
        )
