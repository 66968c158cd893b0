"""Kernels of interventional values, with tables of their background rows."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from skforge._typing import Array, Float64s, Int64s
from skforge.compiler.cost.background import patterns_pay
from skforge.compiler.ir.lir.types import dtype_of
from skforge.compiler.layouts.background import fill, look_up, walk
from skforge.compiler.layouts.background.patterns import Patterns
from skforge.compiler.layouts.background.tables import background_tables, centred
from skforge.compiler.target import Target
from skforge.engine.cpu.programs import program
from skforge.engine.cpu.threads import parallel_for_pointer
from skforge.engine.kernels import Kernel, KernelCache, aligned, line_aligned
from skforge.schedule import families
from skforge.schedule.schedule import Schedule

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Function
    from skforge.compiler.ir.mir.nodes import Element

WALK = families.row_blocks(walk.BLOCK).vectorize("b1").represent("background")
LOOK_UP = families.row_blocks(look_up.BLOCK).vectorize("b1").represent("patterns")
COUNT = (
    Schedule()
    .tile("batch", "b0", "b1", look_up.COUNTED)
    .tile("b1", "b2", "b3", look_up.BLOCK)
    .reorder("b0", "b2", "tree", "b3")
    .parallel("b0")
    .vectorize("b3")
    .represent("counts")
)

#: Arrays of counts that are in memory at a time.
PARTS = 16


class BackgroundValues:
    """Computes a forest's interventional values, with kernels made for background rows.

    Those for the last background rows are kept with a copy of these, which may change.
    Which kernels take part depends on the numbers of rows alone.
    """

    def __init__(self, cache: KernelCache, target: Target) -> None:
        self._walks = self._looks = cache
        self._last: tuple[Array, dict[bool, BackgroundKernel]] | None = None
        patterns = look_up.patterns_of(cache.bind(WALK, "contribution"))
        self._patterns, forest = patterns, cache.forest
        #: Whether leaves are walked although others have tables.
        self._both = patterns is not None and bool(patterns.walked.any())
        if self._both and forest.leaf_value.dtype != np.float64:  # sums are added
            values, base = (x.astype(float) for x in (forest.leaf_value, forest.base))
            forest = replace(forest, leaf_value=values, base=base)
            self._looks = KernelCache(forest, target, "exact")
            shared = self._looks.bind(WALK, "contribution").shared
            shared.once(("patterns",), lambda: patterns)

    def answer(self, background: Array, n_rows: int, threads: int) -> BackgroundKernel:
        word = f"u{background.itemsize}"
        rows = np.array(background, order="C")
        last, patterns = self._last, self._patterns
        if last is None or not np.array_equal(last[0].view(word), rows.view(word)):
            last = self._last = rows, {}
        looks = patterns is not None and patterns_pay(patterns, n_rows, len(rows))
        if looks not in last[1]:
            if looks:
                assert patterns is not None
                last[1][looks] = self._looking_up(patterns, rows, threads)
            else:
                last[1][looks] = self._walking(self._walks, rows)[0]
        return last[1][looks]

    def _walking(
        self, cache: KernelCache, background: Array, patterns: Patterns | None = None
    ) -> tuple[Kernel, Float64s]:
        """Return the kernel that walks, and the values of nodes.

        With patterns, it walks only to the leaves that have no tables.
        """
        kernel = _kernel(cache, WALK, "contribution")
        order = walk.preorder_of(cache.bind(WALK, "contribution"))
        tables, values = background_tables(order, background)
        if patterns is not None:
            forest = order.trees.forest
            children = np.stack([forest.left, forest.right], axis=1)[order.node]
            tables["walked"] = -patterns.walked[children].astype(np.int64).reshape(-1)
        return kernel.with_data({k: aligned(x) for k, x in tables.items()}), values

    def _looking_up(
        self, patterns: Patterns, background: Array, threads: int
    ) -> BackgroundKernel:
        forest, n = patterns.trees.forest, len(background)
        kernel = _kernel(self._looks, LOOK_UP, "contribution")
        count = _kernel(self._looks, COUNT, "pattern")
        counts = _count(count, patterns, background, threads)
        walks = None
        if self._both:
            walks, values = self._walking(self._looks, background, patterns)
            bias = np.zeros(forest.n_outputs)
        else:
            of_nodes = np.zeros(forest.n_nodes, np.int64)
            of_nodes[forest.tree_offset[:-1]] = n  # of trees that are single leaves
            of_nodes[patterns.leaf] = patterns.reached(counts)
            values, bias = centred(forest, of_nodes, n)
        values = values[patterns.leaf]
        tables = _fill(patterns, counts, values, kernel.target, threads)
        outputs = np.array([values.shape[1]])
        kernel = kernel.with_data(
            {"tables": tables, "table_outputs": aligned(outputs), "bias": aligned(bias)}
        )
        return kernel if walks is None else Both(kernel, walks)


class Both:
    """Adds what two kernels give for the same rows, in float64."""

    def __init__(self, *kernels: Kernel) -> None:
        self._kernels = kernels

    def __call__(self, rows: Array, result: Array, threads: int) -> None:
        one, two = (np.empty(result.shape) for _ in self._kernels)
        for kernel, part in zip(self._kernels, (one, two), strict=True):
            kernel(rows, part, threads)
        np.add(one, two, out=result, casting="same_kind")


BackgroundKernel: TypeAlias = Kernel | Both


def _kernel(cache: KernelCache, schedule: Schedule, element: Element) -> Kernel:
    kernel = cache.kernel(schedule, element)
    assert isinstance(kernel, Kernel)
    return kernel


def _count(
    kernel: Kernel, patterns: Patterns, background: Array, threads: int
) -> Int64s:
    total = np.zeros(patterns.n_counts, np.int64)
    for first in range(0, len(background), PARTS * look_up.COUNTED):
        rows = background[first : first + PARTS * look_up.COUNTED]
        counts = np.zeros(
            (-(-len(rows) // look_up.COUNTED), patterns.n_counts), np.int32
        )
        kernel(rows, counts, threads)
        total += counts.sum(axis=0)
    return total


def _fill(
    patterns: Patterns, counts: Int64s, values: Float64s, target: Target, threads: int
) -> Float64s:
    n_outputs = values.shape[1]
    tables = line_aligned(np.zeros, n_outputs * patterns.table_size, np.float64)
    computed = {
        "counts": counts,
        "values": values,
        "weights": fill.weights(),
        "tables": tables,
    }
    arrays = []
    for name, element in fill.BUFFERS.items():
        array = computed[name] if name in computed else getattr(patterns, name)
        arrays.append(np.ascontiguousarray(array, dtype_of(element)))
    sizes = fill.scratch(
        int(patterns.bits.max(initial=1)),
        int(patterns.leaf_distinct.max(initial=1)),
        int(np.diff(patterns.slot_start).max(initial=1)),
    )
    numbers = len(patterns.start) - 1, n_outputs, patterns.table_size, *sizes
    addresses = [array.ctypes.data for array in arrays]
    slots = struct.pack(f"{len(numbers) + len(addresses)}q", *numbers, *addresses)
    pointer = parallel_for_pointer(threads) if threads > 1 else (None, 1)
    _code(target).function(fill.NAME)(slots, *pointer)
    return tables


@lru_cache(maxsize=4)
def _code(target: Target) -> Any:
    def write() -> Sequence[Function]:
        from skforge.compiler.passes.lir import simplify

        return [simplify.run(fill.fill_function())]

    return program(("fill tables",), write, target)
