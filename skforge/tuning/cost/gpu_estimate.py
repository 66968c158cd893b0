"""Ranks the points of SilvanForge's Table 5 on a GPU by a model, without compiling.

The terms are those of ``benchmarks/gpu/cost.py``: what a block issues, reads from
shared memory and caches, and waits for, and how many blocks a processor holds. There,
instructions are counted in machine code and reads are simulated with real rows; here,
both are formulas of the forest's shape. Times serve to order candidates only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf, log2
from typing import Any

import numpy as np

from skforge.compiler.defaults.gpu import (
    HOP,
    HOP_WIDE,
    ISSUE,
    LINES_OF_LEVEL,
    LOOK,
    PROCESSORS,
)
from skforge.compiler.forest.forest import Forest
from skforge.compiler.passes.mir.chunk_leaves import trees_a_chunk
from skforge.compiler.target import Target


@dataclass(frozen=True, slots=True)
class _Chip:
    """Cycles that reads take, and what a processor holds."""

    issue: float
    far: float  # second cache
    near: float  # first cache
    shared: float
    l2_bytes: float  # in a cycle
    l1_bytes: int  # beside what blocks share
    line_cycles: float  # the least of a read of memory
    threads: int = 2048
    registers: int = 65536
    blocks: int = 32


_NVIDIA = _Chip(ISSUE, 240.0, 35.0, 30.0, 22.0, 28 << 10, 1.0)
_AMD = _Chip(1.0, 500.0, 120.0, 64.0, 32.0, 16 << 10, 4.0, registers=131072)

#: Dependent arithmetic of a hop, and a barrier, in cycles.
ARITHMETIC, BARRIER = 30.0, 40.0
#: Instructions to copy a value of a row, and a word of a tree; to keep and add a leaf.
FILL, FILL_NODE, KEEP, ADD = 5.0, 9.0, 3.0, 4.0
#: Registers of a walk, and of each tree in flight.
REGISTERS, IN_FLIGHT = 24.0, 4.0
#: Cycles of a warp whose lanes read random banks.
RANDOM_BANKS = 3.4
#: Seconds of a launch, in cycles.
LAUNCH = 4500.0


@dataclass(frozen=True, slots=True)
class GpuEstimate:
    """Estimates points of Table 5 for one forest and GPU; sums are exact.

    Parameters
    ----------
    forest : Forest
        The forest.
    target : Target
        The GPU. If its number of processors is not known, 128 are assumed.
    """

    n_trees: int
    n_features: int
    n_outputs: int
    value_bytes: int
    leaf_bytes: int  # of a tree and row
    max_depth: int
    hops: float  # of a walk with leaf checks
    node_bytes: float  # of all trees
    padded_bytes: float
    node_words: float
    target: Target

    @classmethod
    def of(cls, forest: Forest, target: Target) -> GpuEstimate:
        """Measure a forest."""
        _, deepest = forest.leaf_depths()
        depth = int(deepest.max(initial=0))
        words = 3.0 if forest.threshold.dtype.itemsize == 4 else 5.0
        return cls(
            n_trees=max(1, forest.n_trees),
            n_features=forest.n_features,
            n_outputs=forest.n_outputs,
            value_bytes=forest.input_dtype.itemsize,
            leaf_bytes=forest.leaf_value.shape[1] * forest.leaf_value.itemsize,
            max_depth=max(1, depth),
            hops=max(1.0, float(deepest.mean()) if len(deepest) else 0.0),
            node_bytes=4 * words * max(1, forest.n_nodes),
            padded_bytes=4 * words * max(1, forest.n_trees) * 2.0 ** min(depth + 1, 24),
            node_words=words,
            target=target,
        )

    def seconds(self, point: Mapping[str, Any], n_rows: int) -> float:
        """Return a time to order points by; infinity for what does not fit."""
        p, chip = _Point.of(point), _AMD if self.target.kind == "hip" else _NVIDIA
        warp = 64 if self.target.kind == "hip" else 32
        if p.threads > 1024:
            return inf
        hops = float(self.max_depth) if p.unroll else self.hops
        own = ceil(self.n_trees / p.parts)
        in_flight = max(1, min(p.interleave, own))
        step = p.parts * (p.interleave if p.cache_trees else 1)
        rows_bytes = p.rows * (self.n_features | 1) * self.value_bytes * p.cache_rows
        room = self.target.shared_bytes
        leaves = p.rows * self.leaf_bytes
        chunk = 0
        if p.shared_sums:
            factor = 1 if p.cache_trees else p.interleave
            chunk = trees_a_chunk(
                self.n_trees, step, factor, leaves, room, room - rows_bytes
            )
        chunks = ceil(self.n_trees / chunk) if chunk else 1
        # complete trees of "array", single nodes elsewhere
        complete = p.layout == "array" or (p.unroll and p.layout != "reorg")
        all_nodes = self.padded_bytes if complete else self.node_bytes
        tile = min(self.n_trees, step) / self.n_trees * all_nodes * p.cache_trees
        shared = rows_bytes + chunk * leaves + tile
        if shared > room:
            return inf
        registers = 8 * ceil((REGISTERS + IN_FLIGHT * in_flight) / 8)
        warps = ceil(p.threads / warp)
        resident = min(
            chip.threads / (warps * warp),
            chip.registers / (warps * warp * registers),
            (room + 1024) / (shared + 1024),
            chip.blocks,
        )
        resident = max(1, int(resident))
        node, row = self._read_cycles(p, warp, hops, chip)
        loop = HOP_WIDE if self.value_bytes > 4 else HOP
        loop += 0.0 if p.unroll else LOOK
        # A thread begins so often to walk trees; leftover trees are walked one by one.
        turns = chunks * sum(divmod(ceil(own / chunks), in_flight)) * p.each
        walks = warps * p.each * own
        fill = p.rows * self.n_features * float(p.cache_rows)
        sums = ceil(p.rows / warp) * self.n_outputs
        adding = sums * (self.n_trees / self.n_outputs + 2 * (chunks - 1))
        issued = walks * (hops * loop + 12 + KEEP) + fill * FILL / warp + adding * ADD
        near = walks * hops * (node + row) + 2 * fill / warp + walks + adding
        far = p.rows * self.n_features * float(self.value_bytes)
        if p.cache_trees:
            issued += all_nodes / 4 / warp * FILL_NODE
            near += all_nodes / 4 / warp * 2
            far += all_nodes
        elif all_nodes > chip.l1_bytes + room - resident * (shared + 1024):
            far += self.n_trees * self._sectors(p.rows, hops) * 32
        if not p.shared_sums:
            far += 2.0 * p.rows * self.n_trees * self.leaf_bytes
        work = max(issued / chip.issue, near, far / chip.l2_bytes)
        wait_node = chip.shared if p.cache_trees else chip.far
        wait_row = chip.shared if p.cache_rows else chip.near
        chain = (
            turns * hops * (wait_node + wait_row + ARITHMETIC + in_flight * loop / 2)
        )
        chain += fill / p.threads * (FILL + chip.far / 4)
        if p.cache_trees:
            chain += all_nodes / 4 / p.threads * (chip.far / 8)
            chain += ceil(self.n_trees / step) * (chip.far + 2 * BARRIER)
        read = chip.shared if p.shared_sums else chip.far
        chain += self.n_trees / self.n_outputs * (4 + read / 8)
        chain += (chunks - 1) * (2 * BARRIER + chip.near)
        blocks = ceil(n_rows / p.rows)
        on_one = ceil(blocks / max(1, self.target.n_cores or PROCESSORS))
        work *= max(0.25, min(1.0, n_rows / (blocks * p.rows)))
        return LAUNCH + max(on_one * work, ceil(on_one / resident) * chain)

    def _read_cycles(
        self, p: _Point, warp: int, hops: float, chip: _Chip
    ) -> tuple[float, float]:
        """Return a warp's cycles to read nodes and rows in a hop."""
        lanes = min(warp, p.rows // p.each)  # rows of a warp; the rest are other trees
        trees = min(p.parts, max(1, warp // lanes))
        lines = trees * (1 + LINES_OF_LEVEL * hops / 2 * lanes / 32)
        if p.cache_trees:
            spread = 1 + (RANDOM_BANKS - 1) * min(1.0, (trees * lanes / warp))
            node = self.node_words * spread
        else:
            node = max(1.0, self.node_words / 2) * max(chip.line_cycles, lines)
        wide = self.value_bytes / 4
        if not p.cache_rows:
            bytes_of_row = self.n_features * self.value_bytes
            row = max(chip.line_cycles, lanes * min(trees, 1 + bytes_of_row / 128))
        elif p.rows % 32:
            row = wide * RANDOM_BANKS
        else:  # by feature: lanes of one row read one bank
            row = wide * max(trees, p.each)
        return node, row

    def _sectors(self, rows: int, hops: float) -> float:
        """Return the sectors of 32 bytes that rows touch of a tree's nodes."""
        levels = np.arange(int(hops) + 1)
        nodes = np.minimum(2.0 ** (0.7 * levels), rows)
        return float(nodes.sum() * self.node_words * 4 / 32 + log2(rows + 1))


@dataclass(frozen=True, slots=True)
class _Point:
    """A point of Table 5; parameters that a space lacks are off."""

    rows: int
    each: int
    parts: int
    cache_rows: bool
    cache_trees: bool
    unroll: bool
    interleave: int
    shared_sums: bool
    layout: str

    @classmethod
    def of(cls, point: Mapping[str, Any]) -> _Point:
        get: Any = point.get
        return cls(
            get("rows_per_block", 32),
            get("rows_per_thread", 1),
            get("tree_threads", 1),
            get("cache_rows", False),
            get("cache_trees", False),
            get("unroll_walks", False),
            get("interleave", 1),
            get("shared_reduce", False),
            get("representation", "sparse"),
        )

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows // self.each * self.parts
