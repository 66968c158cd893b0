"""The kernels of a module's ranges of batch sizes, compiled when first needed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from skforge._typing import Array
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.leaves import scores_of_leaves
from skforge.compiler.outputs.steps import MAX_SLOTS
from skforge.compiler.runtime.kernels import AnyKernel, Kernel, KernelCache
from skforge.compiler.schedule.ranges import BatchRange
from skforge.compiler.schedule.schedule import Schedule
from skforge.runtime.entries import KernelTable

if TYPE_CHECKING:
    from skforge.compiler.ir.mir.nodes import Element


class RangeKernels:
    """The kernel of each range, by its number in the order of batch sizes.

    ``element`` is what the kernels for scores write: leaf numbers if leaf values
    are not added.
    """

    def __init__(
        self,
        schedules: Mapping[BatchRange, Schedule],
        cache: KernelCache,
        element: Element,
    ) -> None:
        self.ranges = sorted(schedules.items())
        self.first_rows = [first for (first, _), _ in self.ranges]
        #: Read by compiled entries.
        self.table = KernelTable(len(self.ranges))
        #: Gets this object, the number of a range and its kernel for scores before that
        #: answers, and returns the kernel that is to answer.
        self.arrives: Callable[[RangeKernels, int, AnyKernel], AnyKernel] | None = None
        self.element: Element = element
        self.cache = cache
        self._ready: dict[tuple[int, Element], AnyKernel] = {}

    def number(self, n_rows: int) -> int:
        """Return the range of a batch size; between ranges, the lower one."""
        return max(0, bisect_right(self.first_rows, n_rows) - 1)

    def scores(self, n_rows: int) -> AnyKernel:
        return self.kernel(self.number(n_rows))

    def kernel(self, number: int, element: Element | None = None) -> AnyKernel:
        element = element or self.element
        # Looked up by range: hashing a schedule costs more than walking one row.
        kernel = self._ready.get((number, element))
        if kernel is None:
            kernel = self.cache.kernel(self.ranges[number][1], element)
            if self.arrives is not None and element == self.element:
                kernel = self.arrives(self, number, kernel)
            self._use(number, element, kernel)
        return kernel

    def compiled(self) -> list[int]:
        ready = list(self._ready)  # other threads may add to it
        return sorted(n for n, element in ready if element == self.element)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Let the first range's kernel for scores answer for ranges without one."""
        with self.cache.lock:
            first, element = self.kernel(0), self.element
            lent = set(range(len(self.ranges))).difference(self.compiled())
            for number in lent:
                self._use(number, element, first)
            try:
                yield
            finally:
                for number in lent:
                    self.table.clear(number)
                    del self._ready[number, element]

    def _use(self, number: int, element: Element, kernel: AnyKernel) -> None:
        self._ready[number, element] = kernel
        if element in ("accumulator", "contribution") and suits_entries(kernel):
            self.table.fill(number, kernel.address, kernel.slots, kernel)


def suits_entries(kernel: AnyKernel) -> TypeGuard[Kernel]:
    """Tell whether entries may call a kernel: they run whole batches, not parts."""
    if not isinstance(kernel, Kernel) or kernel.most_rows is not None:
        return False
    return len(kernel.slots) <= 8 * MAX_SLOTS


def raw_scores(
    forest: Forest, kernel: AnyKernel | None, rows: Array, threads: int = 1
) -> Array:
    if forest.aggregate == "sum":
        raw = np.empty((len(rows), forest.n_outputs), forest.accumulator_dtype)
        if kernel is not None:
            kernel(rows, raw, threads)
        forest.finish(raw)
    else:
        leaves = np.empty((len(rows), forest.n_trees), np.int32)
        if kernel is not None and forest.n_trees:
            kernel(rows, leaves, threads)
        raw = scores_of_leaves(forest, leaves)
    return raw[:, 0] if forest.n_outputs == 1 else raw
