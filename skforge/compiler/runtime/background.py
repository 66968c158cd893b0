"""Kernels of interventional values, with tables of their background rows."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.arrays import Array
from skforge.compiler.ir.lir.types import dtype_of
from skforge.compiler.layouts.background import fill, look_up, walk
from skforge.compiler.layouts.background.patterns import Patterns
from skforge.compiler.layouts.background.tables import background_tables, centred
from skforge.compiler.runtime.cpu.programs import program
from skforge.compiler.runtime.cpu.threads import parallel_for_pointer
from skforge.compiler.runtime.kernels import Kernel, KernelCache, aligned, line_aligned
from skforge.compiler.schedule import families
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Function

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


def patterns_of_kernels(cache: KernelCache) -> Patterns | None:
    """Return the groups of a forest, or None if only walks have room for it."""
    return look_up.patterns_of(cache.bind(WALK, "contribution"))


def walking(cache: KernelCache, background: Array) -> Kernel:
    """Return the kernel that walks all pairs of rows and background rows."""
    kernel = cache.kernel(WALK, "contribution")
    assert isinstance(kernel, Kernel)
    order = walk.preorder_of(cache.bind(WALK, "contribution"))
    tables = background_tables(order, background)
    return kernel.with_data({name: aligned(table) for name, table in tables.items()})


def looking_up(
    cache: KernelCache, patterns: Patterns, background: Array, threads: int
) -> Kernel:
    """Return the kernel that looks contributions up by the patterns of rows."""
    kernel = cache.kernel(LOOK_UP, "contribution")
    count = cache.kernel(COUNT, "pattern")
    assert isinstance(kernel, Kernel)
    assert isinstance(count, Kernel)
    forest, n = patterns.trees.forest, len(background)
    counts = _count(count, patterns, background, threads)
    of_nodes = np.zeros(forest.n_nodes, np.int64)
    of_nodes[forest.tree_offset[:-1]] = n  # of trees that are single leaves
    of_nodes[patterns.leaf] = patterns.reached(counts)
    values, bias = centred(forest, of_nodes, n)
    values = values[patterns.leaf]
    tables = _fill(patterns, counts, values, kernel.target, threads)
    outputs = np.array([values.shape[1]])
    data = {"tables": tables, "bias": aligned(bias), "table_outputs": aligned(outputs)}
    return kernel.with_data(data)


def _count(
    kernel: Kernel, patterns: Patterns, background: Array, threads: int
) -> NDArray[np.int64]:
    """Return how many background rows have each pattern."""
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
    patterns: Patterns,
    counts: NDArray[np.int64],
    values: NDArray[np.float64],
    target: Target,
    threads: int,
) -> NDArray[np.float64]:
    """Return the tables of all outputs; ``values`` has a row for each leaf."""
    n_outputs = values.shape[1]
    tables = line_aligned(np.zeros, n_outputs * patterns.table_size, np.float64)
    given = {
        "counts": counts,
        "values": values,
        "weights": fill.weights(),
        "tables": tables,
    }
    arrays = []
    for name, element in fill.BUFFERS.items():
        array = given[name] if name in given else getattr(patterns, name)
        arrays.append(np.ascontiguousarray(array, dtype_of(element)))
    sizes = fill.scratch(
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
