"""A loop like nvForest's, by the same model as ``cost.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.chips import Chip
from benchmarks.gpu.cost_records import Cost
from benchmarks.gpu.reads import LANES, sample
from benchmarks.gpu.walks import bank_cycles, line_cycles, sectors, walk
from skforge.compiler import pipeline
from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule.families import Walk, rows_by_threads

Array = NDArray[Any]

#: nvForest's loop: instructions, and bytes of a node (notes on its source).
NVFOREST_INSTRUCTIONS, NVFOREST_NODE = 23.0, 8
#: To copy a value of a row, in its order; and the most of a block's rows it copies.
NVFOREST_FILL, NVFOREST_SHARED = 7.0, 227 << 10


def nvforest_like(forest: Forest, rows: Array, chip: Chip) -> Cost:
    """Model a loop like nvForest's: 23 instructions, rows side by side, no padding.

    Its barriers after every eight trees are left out, which is in its favour.
    """
    schedule = rows_by_threads(LANES, Walk())
    hir = pipeline.build_hir(forest, schedule, "fast", kind="gpu")
    some, trees = sample(rows, forest.n_trees)
    some = some[:LANES]  # of a warp
    paths = walk(hir, some, trees)
    known = np.maximum(paths.predicate, 0)
    feature = np.where(paths.predicate >= 0, hir.forest.feature[known], -1)
    row = np.arange(len(some))[:, None, None]
    at = np.where(feature >= 0, row * forest.n_features + feature, -1)
    width = forest.input_dtype.itemsize // 4
    words = _reads(at)
    row_bytes = forest.n_features * forest.input_dtype.itemsize
    filled = forest.n_features if LANES * row_bytes <= NVFOREST_SHARED else 0
    if filled:
        row_cycles = width * bank_cycles(np.where(words >= 0, words * width, -1))
    else:  # rows stay in memory
        row_cycles = line_cycles(np.where(words >= 0, words * 4 * width, -1))
    bytes_ = NVFOREST_NODE * width  # doubles double its nodes
    nodes = np.where(paths.item >= 0, paths.item * bytes_, -1)
    node_cycles = width * line_cycles(_reads(nodes))
    hops = float(paths.hops.max(axis=0).mean())
    far = sectors(nodes) / len(trees) * 32
    if forest.n_nodes * bytes_ <= chip.l1_bytes // 2:
        far = 0.0
    far += forest.n_features * forest.input_dtype.itemsize * 32 / forest.n_trees
    fill = filled / forest.n_trees  # of 32 rows, a tree's share
    used = {
        "issue": (hops * NVFOREST_INSTRUCTIONS + fill * NVFOREST_FILL) / chip.issue,
        "shared and L1": hops * (row_cycles + node_cycles) + 2 * fill,
        "l2": far / chip.l2_bytes_per_cycle,
    }
    a_second = chip.processors * chip.clock
    bounds = {name: 32 / cycles * a_second for name, cycles in used.items() if cycles}
    return Cost(
        name="nvForest-like",
        schedule="",
        registers=32,
        spill_bytes=0,
        stack_bytes=0,
        shared_bytes=LANES * row_bytes if filled else 0,
        threads=256,
        occupancy=1.0,
        limit="warps",
        launches=1,
        instructions=NVFOREST_INSTRUCTIONS,
        hops=hops,
        node_cycles=node_cycles,
        row_cycles=row_cycles,
        bytes_a_row=far * forest.n_trees / 32,
        bounds=bounds,
        seconds={},
    )


def _reads(at: Array) -> Array:
    """Return reads of (rows of a warp, trees, hops) as (reads, lanes)."""
    found: Array = at.transpose(1, 2, 0).reshape(-1, at.shape[0])
    return found
