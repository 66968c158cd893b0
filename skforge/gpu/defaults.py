"""Chooses a GPU schedule for each batch size without measuring: candidates, estimated.

Few rows: the threads of a block share a row's trees; otherwise most of the GPU would
idle, and a thread would wait for thousands of reads in turn. Medium batches: rows are
the lanes of a warp, and each warp takes a part of the trees. Many rows: one thread a
row, whose sum stays in a register, where trees are deep. Which of them is how large,
and where its rows lie, the estimate says, which was fitted to an H100.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from skforge.compiler.cost.schedule_facts import facts_of
from skforge.compiler.cost.shape import ForestShape, Setting
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.target import Target
from skforge.forest.bins import code_dtype, column_count
from skforge.forest.forest import Forest
from skforge.gpu.cost import GpuWork
from skforge.gpu.nest import row_stride
from skforge.schedule import families
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule

#: Rows at which schedules are estimated; each holds from the size before on.
SIZES = (*(1 << k for k in range(5, 18)), 1 << 20)
#: Times that of the best, up to which a schedule is kept: another is another kernel.
KEPT = 1.07
#: Rows and parts of the trees of blocks whose lanes are rows.
PARTS = (4, 64), (8, 32), (8, 64), (16, 16), (16, 32), (32, 8), (32, 16), (32, 32)
#: Rows and threads of each, of blocks whose lanes are trees.
TREES = (1, 64), (1, 128), (1, 256), (1, 512), (1, 1024), (2, 128), (2, 256), (4, 64)
#: Rows of blocks that give each thread a row.
ROWS = 32, 64, 128
#: Rows of a block that a thread takes if rows do not matter.
ROW_THREADS = 128
#: Trees from which a row is also distributed over several blocks, and trees of each.
SEVERAL_BLOCKS, TREES_OF_BLOCK = 4096, 1024

#: Most threads of a block.
MOST_THREADS = 1024

#: Forests of fewer trees are not distributed over threads.
FEWEST_TREES = 8

#: Threads of a warp for which defaults are chosen.
WARP = 32
#: Greatest depth of padded walks, and their most hops relative to the mean: a hop
#: without a leaf check takes 11.75 instructions instead of 13.25.
PADDED_DEPTH, PADDED_HOPS = 10, 1.12
#: Most nodes after padding, as a multiple of the forest's own.
PADDING_LIMIT = 3.0
#: Rows of a block that copies trees to shared memory.
TILE_ROWS = 256

#: Trees in flight: with 8 padded walks, 2,048 threads still have enough registers.
IN_FLIGHT, MOST_IN_FLIGHT = 4, 8

#: The part of shared memory (one in so many) that copied trees may take.
TILE_SHARE = 4


def default_gpu_schedules(
    forest: Forest, target: Target, reduction: Reduction = "exact"
) -> dict[BatchRange, Schedule]:
    facts = _Facts(forest, target, reduction)
    schedules = list(dict.fromkeys(_candidates(facts)))
    found = facts_of(schedules)
    firsts: list[int] = []
    chosen: list[int] = []
    for before, rows in zip((0, *SIZES), SIZES, strict=False):
        work = GpuWork(Setting(facts, target, rows), found)
        takes = np.where(work.fits, work.estimate, math.inf)
        if not chosen or takes[chosen[-1]] > KEPT * takes.min():
            firsts.append(before + 1)
            chosen.append(int(takes.argmin()))
    lasts = [*(first - 1 for first in firsts[1:]), None]
    ranges = zip(firsts, lasts, strict=True)
    return dict(zip(ranges, (schedules[k] for k in chosen), strict=True))


def walking_gpu_schedule(forest: Forest, target: Target) -> Schedule:
    """Return a schedule for every forest, and for every use of the walks' leaves."""
    facts, rows = _Facts(forest, target, "exact"), ROW_THREADS
    while rows >= WARP and not facts.fits(rows, "shared"):
        rows //= 2
    if rows < WARP:
        return families.rows_by_threads(ROW_THREADS, facts.walk("memory"))
    return families.rows_by_threads(rows, facts.walk("shared"))


class _Facts(ForestShape):
    def __init__(self, forest: Forest, target: Target, reduction: Reduction) -> None:
        super().__init__(forest)
        self.code_columns = max(1, column_count(forest))
        each = forest.n_predicates / self.code_columns
        most = min(each * 4, 65535 if code_dtype(forest)(0).itemsize > 1 else 255)
        #: Bits of a test on codes.
        self.code_bits = self.code_columns.bit_length() + int(most).bit_length()
        self.reduction = reduction
        self.most_shared = target.shared_bytes

    @property
    def heaps(self) -> bool:
        """Whether complete trees take little more memory than the trees."""
        shallow = 0 < self.max_depth <= PADDED_DEPTH
        return shallow and self.padded_nodes <= PADDING_LIMIT

    @property
    def hops(self) -> int:
        """Hops of padded walks; 0 if trees differ too much, or are too deep."""
        deepest = self.max_depth
        return deepest if self.heaps and deepest <= PADDED_HOPS * self.tree_depth else 0

    @property
    def most_in_flight(self) -> int:
        """Most trees that a thread walks together, limited by registers."""
        wide = self.leaf_bytes > 8  # leaves with several outputs
        return MOST_IN_FLIGHT if self.hops and not wide else IN_FLIGHT

    def shares(self, least: int, most: int, best: int) -> tuple[int, int]:
        """Return how many parts to split the trees into, and how many are in flight.

        ``best`` is preferred among equally good numbers. Leftover trees are walked one
        after the other, so 20 parts of 100 trees with 5 in flight wait half as long as
        16 with 6.
        """
        n_trees = self.n_trees
        wanted = self.most_in_flight

        def turns(shares: int, in_flight: int) -> int:
            most, least = -(-n_trees // shares), n_trees // shares
            return max(sum(divmod(trees, in_flight)) for trees in (most, least))

        choices = [
            (turns(shares, k), abs(shares - best), k, shares)
            for shares in range(least, most + 1)
            for k in range(1, min(wanted, -(-n_trees // shares)) + 1)
        ]
        _, _, in_flight, shares = min(choices)
        return shares, in_flight

    def walk(self, rows: families.RowMemory) -> families.WalkKind:
        padded = self.hops
        in_flight = max(1, min(self.most_in_flight, self.n_trees))
        peeled = 0 if padded else self.min_depth
        return families.WalkKind(rows, "sparse", in_flight, padded, peeled)

    # ------------------------------------------------------------ shared memory

    def row_bytes_kept(self, rows: int, memory: families.RowMemory) -> int:
        if memory == "shared":
            return rows * row_stride(self.n_features) * self.value_bytes
        # Codes are words if these fit in a quarter of shared memory, else narrower.
        words = rows * row_stride(self.code_columns) * 4 * (memory == "codes")
        return words if 4 * words <= self.most_shared else words // 2

    def fits(self, rows: int, memory: families.RowMemory) -> bool:
        """Tell whether a block can keep its rows; there may be none to keep."""
        kept = self.row_bytes_kept(rows, memory)
        return (kept > 0) == (memory != "memory") and kept <= self.most_shared

    def shares_sums(self, rows: int, parts: int, memory: families.RowMemory) -> bool:
        """Tell whether a block has room for its sums; leaves come in chunks."""
        if self.reduction == "exact":
            return True
        each = 8 if self.reduction == "reproducible" else self.sum_bytes
        sums = rows * parts * self.n_outputs * each
        return self.row_bytes_kept(rows, memory) + sums <= self.most_shared


def _candidates(facts: _Facts) -> Iterator[Schedule]:
    memories: tuple[families.RowMemory, ...] = ("shared", "memory", "codes")
    for rows in ROWS:
        for memory in memories:
            if facts.fits(rows, memory):
                walk, more = facts.walk(memory), min(MOST_IN_FLIGHT, facts.n_trees)
                yield families.rows_by_threads(rows, walk)
                yield families.rows_by_threads(rows, replace(walk, in_flight=more))
    if tile := _tile(facts):
        walk = families.WalkKind("codes", "array", min(4, tile), facts.max_depth)
        yield families.rows_by_threads(TILE_ROWS, walk, tile)
    if facts.n_trees < FEWEST_TREES:
        return
    for rows, parts in PARTS:
        most = min(2 * parts, MOST_THREADS // rows, facts.n_trees)
        most_parts = min(parts, most)
        parts, in_flight = facts.shares(max(1, most // 4), most, parts)
        for memory in memories:
            if facts.fits(rows, memory):
                walk = replace(facts.walk(memory), in_flight=in_flight)
                near = facts.shares_sums(rows, max(parts, most_parts), memory)
                yield families.rows_and_trees(rows, parts, walk, near)
                if not walk.padded:  # walks together end with the longest
                    alone = replace(walk, in_flight=1)
                    yield families.rows_and_trees(rows, most_parts, alone, near)
    for rows, threads in TREES:
        # the last power of two above leaves the least threads idle
        if threads < 2 * facts.n_trees or threads == TREES[0][1]:
            yield from _by_trees(facts, rows, threads)
    if facts.n_trees >= SEVERAL_BLOCKS:
        # In one block, each thread would walk many trees one after the other.
        blocks, threads = facts.n_trees // TREES_OF_BLOCK, MOST_THREADS // 4
        for memory in memories[:2]:
            if facts.fits(1, memory):
                walk = replace(facts.walk(memory), in_flight=TREES_OF_BLOCK // threads)
                yield families.trees_by_blocks(1, threads, blocks, walk)


def _tile(facts: _Facts) -> int:
    if not 0 < facts.max_depth <= PADDED_DEPTH or facts.code_bits > 31:
        return 0
    if not facts.fits(2 * TILE_ROWS, "codes"):
        return 0
    room = facts.most_shared // TILE_SHARE
    fitting = room // (4 << (facts.max_depth + 1))
    tile = min(16, fitting, facts.n_trees)
    return tile if tile >= IN_FLIGHT else 0


def _by_trees(facts: _Facts, rows: int, threads: int) -> Iterator[Schedule]:
    in_flight = 1
    if facts.n_trees > threads:
        threads, in_flight = facts.shares(threads // 2, threads, threads)
    # A warp reduces by shuffles if the order is free.
    by_warp = threads == WARP and facts.reduction != "exact"
    for memory in ("shared", "memory"):
        walk = replace(facts.walk(memory), in_flight=in_flight)
        if facts.heaps:
            # Nodes of one level of neighbouring trees lie together, and lanes whose
            # walks have ended read none: on average 1.5 times as fast as padded walks
            # in "sparse" for 512 rows of SilvanForge's random models.
            peeled = facts.min_depth
            walk = replace(walk, representation="reorg", padded=0, peeled=peeled)
        if facts.fits(rows, memory):
            near = not by_warp and facts.shares_sums(rows, threads, memory)
            yield families.trees_by_threads(rows, threads, walk, near)


def gpu_contribution_schedule(rows: int = 128) -> Schedule:
    dealt = families.rows_on_threads(rows)
    return dealt.schedule.represent("contributions")
