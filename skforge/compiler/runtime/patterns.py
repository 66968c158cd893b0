"""Interventional values from counted patterns: what depends on the background rows."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.arrays import Array
from skforge.compiler.ir.lir.types import dtype_of
from skforge.compiler.layouts.background import fill
from skforge.compiler.layouts.background.look_up import BLOCK, COUNTED, patterns_of
from skforge.compiler.layouts.background.patterns import Patterns
from skforge.compiler.layouts.background.tables import centred
from skforge.compiler.runtime.cpu.programs import program
from skforge.compiler.runtime.cpu.threads import parallel_for_pointer
from skforge.compiler.runtime.kernels import Kernel, KernelCache, aligned, line_aligned
from skforge.compiler.schedule import families
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Function

LOOK_UP = families.row_blocks(BLOCK).vectorize("b1").represent("patterns")
COUNT = (
    Schedule()
    .tile("batch", "b0", "b1", COUNTED)
    .tile("b1", "b2", "b3", BLOCK)
    .reorder("b0", "b2", "tree", "b3")
    .parallel("b0")
    .vectorize("b3")
    .represent("counts")
)

#: Arrays of counts that are in memory at a time.
PARTS = 16


def by_patterns(
    cache: KernelCache, background: Array, threads: int, target: Target
) -> Kernel | None:
    """Return the kernel that looks contributions up, or None if walks are better."""
    patterns = patterns_of(cache.bind(LOOK_UP, "contribution"))
    if patterns is None:
        return None
    kernel, count = (
        cache.kernel(LOOK_UP, "contribution"),
        cache.kernel(COUNT, "pattern"),
    )
    assert isinstance(kernel, Kernel)
    assert isinstance(count, Kernel)
    forest, n = patterns.trees.forest, len(background)
    counts = _count(count, patterns, background, threads)
    of_nodes = np.zeros(forest.n_nodes, np.int64)
    of_nodes[forest.tree_offset[:-1]] = n  # of trees that are single leaves
    of_nodes[patterns.leaf] = patterns.reached(counts)
    values, bias = centred(forest, of_nodes, n)
    tables = _fill(patterns, counts, values[patterns.leaf], target, threads)
    return kernel.with_data({"tables": tables, "bias": aligned(bias)})


def _count(
    kernel: Kernel, patterns: Patterns, background: Array, threads: int
) -> NDArray[np.int64]:
    """Return how many background rows have each pattern."""
    total = np.zeros(patterns.n_counts, np.int64)
    for first in range(0, len(background), PARTS * COUNTED):
        rows = background[first : first + PARTS * COUNTED]
        counts = np.zeros((-(-len(rows) // COUNTED), patterns.n_counts), np.int32)
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
