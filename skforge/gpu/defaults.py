"""Chooses a GPU schedule for each batch size without measuring.

Few rows: the threads of a block share a row's trees; otherwise most of the GPU would
idle, and a thread would wait for thousands of reads in turn. Medium batches: rows are
the lanes of a warp, and each warp takes a part of the trees. Many rows: one thread a
row, whose sum stays in a register.

The numbers come from ``benchmarks/results/gpu_static.md``: a model of an H200, airline
(100 trees of depth 8) unless stated otherwise: 1 row takes 136, 38 or 4 µs with 1
thread, 4 trees in flight, and 128 threads; 4096 rows take 16, 6 or 22 µs with trees by
128 threads, rows and 16 parts, and a thread a row; a large batch runs at 32, 162 and
334 · 10⁹ row-trees a second.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from skforge.compiler.cost.schedule_facts import facts_of
from skforge.compiler.cost.shape import ForestShape, Setting
from skforge.compiler.forest.bins import code_dtype, column_count
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.schedule import families
from skforge.compiler.schedule.ranges import BatchRange
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.gpu.cost import PROCESSORS, GpuWork, bit_table
from skforge.gpu.nest import row_stride

#: Batches of up to this many rows give each row a block and each tree a thread.
SINGLE_ROWS = 31

#: Rows times trees up to which the trees of a row are distributed over threads. Most
#: lanes then read cache lines of their own; lanes that are rows share them. The limit
#: is 1,023 rows with 100 trees, and 512 with 300 and 1,000: at 1,024 rows of four
#: forests, lanes that are rows are 1.04 to 1.9 times as fast on an H200 and an A100.
FEW_WALKS = 1 << 17
FEW_ROWS, LEAST_FEW_ROWS = 1023, 512

#: Rows per processor up to which warps share a row's trees: a thread a row waits for 22
#: µs however few rows there are, and parts take 13 µs for 16,384 rows, 23 for 32,768
#: and 44 for 65,536.
ROWS_OF_PROCESSOR = 256
#: Larger batches use the same schedule.
LARGEST = 1 << 24
#: Threads of a block: one a row, several a row, and all on a single row.
ROW_THREADS, TREE_THREADS, SINGLE_THREADS = 128, 256, 1024
#: Parts of the trees if lanes are rows; the rows; and the fewest rows.
PARTS, PART_ROWS, FEWEST_PART_ROWS = 16, 32, 4
#: Trees from which a single row is distributed over several blocks, and trees of each.
SEVERAL_BLOCKS, TREES_OF_BLOCK = 8192, 1024

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
#: Rows of a block that copies trees to shared memory, and of one with shared predicates
#: that has a processor for itself: a ninth fewer instructions.
TILE_ROWS, MOST_BIT_ROWS = 256, 1024

#: Blocks that should fit in a processor's shared memory together.
BLOCKS_TOGETHER = 2

#: Trees in flight: with 8 padded walks, 2,048 threads still have enough registers.
IN_FLIGHT, IN_FLIGHT_PADDED = 4, 8

#: The part of shared memory (one in so many) that copied trees may take.
TILE_SHARE = 4

#: Threads that keep a processor busy while others wait.
ENOUGH_THREADS = 256

#: Rows of a block with shared predicates if two tables fit.
BIT_ROWS = 256


def default_gpu_schedules(
    forest: Forest, target: Target, reduction: Reduction = "exact"
) -> dict[BatchRange, Schedule]:
    facts = _Facts(forest, target, reduction)
    processors = max(16, target.n_cores or PROCESSORS)
    many, bits_from = _many_rows(facts, target)
    if forest.n_trees < FEWEST_TREES:
        # Too few trees to share: smaller blocks use more processors.
        few = walking_gpu_schedule(forest, target, WARP)
        table: dict[BatchRange, Schedule] = {(1, FEW_ROWS): few}
        end = FEW_ROWS + 1
    else:
        some = _power_below(FEW_WALKS // forest.n_trees)
        some = min(FEW_ROWS, max(LEAST_FEW_ROWS, some))
        end = _power_below(ROWS_OF_PROCESSOR * processors)
        table = {
            (1, SINGLE_ROWS): _single_rows(facts),
            (SINGLE_ROWS + 1, some): _few_rows(facts),
            (some + 1, end - 1): _some_rows(facts),
        }
    bits_from = max(end, bits_from)
    if bits_from > end:
        table[end, None if bits_from > LARGEST else bits_from - 1] = many
    if bits_from <= LARGEST:
        table[bits_from, None] = facts.shared_predicates
    return table


def walking_gpu_schedule(
    forest: Forest, target: Target, rows: int = ROW_THREADS
) -> Schedule:
    """Return a schedule for every forest, and for every use of the walks' leaves."""
    facts = _Facts(forest, target, "exact")
    cached = facts.rows_cached(rows, WARP, codes=False)
    walk = facts.walk("shared" if cached else "memory")
    return families.rows_by_threads(cached or rows, walk)


class _Facts(ForestShape):
    def __init__(self, forest: Forest, target: Target, reduction: Reduction) -> None:
        super().__init__(forest)
        self.code_columns = max(1, column_count(forest))
        each = forest.n_predicates / self.code_columns
        most = min(each * 4, 65535 if code_dtype(forest)(0).itemsize > 1 else 255)
        #: Bits of a test on codes.
        self.code_bits = self.code_columns.bit_length() + int(most).bit_length()
        self.reduction = reduction
        # floats are added in order
        self.as_bits = reduction != "reproducible" and self.allows_bits
        #: Bytes of shared memory that a block should use, and may use.
        self.shared = target.shared_bytes // BLOCKS_TOGETHER
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
    def shared_predicates(self) -> Schedule:
        large = self.bits_fit(MOST_BIT_ROWS, 1)
        return families.rows_as_bits(MOST_BIT_ROWS if large else BIT_ROWS)

    @property
    def most_in_flight(self) -> int:
        """Most trees that a thread walks together, limited by registers."""
        wide = self.leaf_bytes > 8  # leaves with several outputs
        return IN_FLIGHT_PADDED if self.hops and not wide else IN_FLIGHT

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

    def walk(
        self, rows: families.RowMemory, own_trees: float = math.inf
    ) -> families.WalkKind:
        padded = self.hops
        trees = min(own_trees, self.n_trees)
        in_flight = max(1, min(self.most_in_flight, int(trees)))
        peeled = 0 if padded else self.min_depth
        return families.WalkKind(rows, "sparse", in_flight, padded, peeled)

    # ------------------------------------------------------------ shared memory

    def block_bytes(self, rows: int, codes: bool = False) -> int:
        if not codes:
            return rows * row_stride(self.n_features) * self.value_bytes
        words = rows * row_stride(self.code_columns) * 4
        # Codes are words if these fit in a quarter of shared memory, else narrower.
        return words if 4 * words <= self.most_shared else words // 2

    def rows_cached(self, most: int, least: int, codes: bool) -> int:
        while most >= least and not 0 < self.block_bytes(most, codes) <= self.shared:
            most //= 2
        return most if most >= least else 0

    def keeps_busy(self, rows: int, codes: bool) -> bool:
        if not rows:
            return False
        blocks = self.most_shared // max(1, self.block_bytes(rows, codes))
        return blocks * rows >= ENOUGH_THREADS

    def bits_fit(self, rows: int, blocks: int) -> bool:
        if not self.as_bits:
            return False
        table = bit_table(self, self.n_predicates, rows)
        group = 8 * self.leaves_per_tree * self.sum_bytes + 8 * rows
        return bool(blocks * (table + group) <= self.most_shared)

    def sums(self, rows: int, parts: int) -> int:
        if self.reduction == "exact":
            slots, width = self.n_trees, self.leaf_bytes // self.sum_bytes
        else:
            slots, width = parts, self.n_outputs
        each = 8 if self.reduction == "reproducible" else self.sum_bytes
        return slots * rows * width * each


def _many_rows(facts: _Facts, target: Target) -> tuple[Schedule, int]:
    """Give each thread a row: sums in registers, and every read shared by a warp.

    Returns the best of the walks, and the rows from which shared predicates are better,
    which are more than ``LARGEST`` if they never are.
    """
    values = facts.rows_cached(ROW_THREADS, WARP, codes=False)
    codes = facts.rows_cached(ROW_THREADS, WARP, codes=True)
    walks: list[Schedule] = []
    if facts.keeps_busy(values, codes=False):
        walks.append(families.rows_by_threads(values, facts.walk("shared")))
    if facts.keeps_busy(codes, codes=True):
        walks.append(families.rows_by_threads(codes, facts.walk("codes")))
    if tile := _tile(facts):
        walk = families.WalkKind("codes", "array", min(4, tile), facts.max_depth)
        walks.append(families.rows_by_threads(TILE_ROWS, walk, tile))
    bits = facts.bits_fit(BIT_ROWS, BLOCKS_TOGETHER)
    if not walks:
        return _wide_rows(facts), 1 if bits else 2 * LARGEST

    def takes(schedules: list[Schedule], rows: int) -> Any:
        return GpuWork(Setting(facts, target, rows), facts_of(schedules)).estimate

    walks = [walks[int(takes(walks, LARGEST).argmin())]]
    rows = 1
    while bits and rows <= LARGEST:
        both = takes([*walks, facts.shared_predicates], rows)
        if both[1] < both[0]:
            return walks[0], rows
        rows *= 2
    return walks[0], 2 * LARGEST


def _tile(facts: _Facts) -> int:
    if not 0 < facts.max_depth <= PADDED_DEPTH or facts.code_bits > 31:
        return 0
    if not 0 < facts.block_bytes(TILE_ROWS, codes=True) <= facts.shared:
        return 0
    room = facts.most_shared // TILE_SHARE
    fitting = room // (4 << (facts.max_depth + 1))
    tile = min(16, fitting, facts.n_trees)
    return tile if tile >= IN_FLIGHT else 0


def _wide_rows(facts: _Facts) -> Schedule:
    """Let warps share a few wide rows; if even these do not fit, read from memory.

    With 2,000 columns, 16 rows and 32 parts of 100 trees run three times as fast as a
    row a thread, whose lanes each read their own cache line, and a fifth faster than 8
    rows in half of the shared memory.
    """
    rows = PART_ROWS if facts.n_trees >= 2 * FEWEST_TREES else 0
    while rows >= FEWEST_PART_ROWS:
        parts = PARTS * PART_ROWS // rows
        if facts.block_bytes(rows) + facts.sums(rows, parts) <= facts.most_shared:
            return _parts(facts, rows, parts)
        rows //= 2
    return families.rows_by_threads(ROW_THREADS, facts.walk("memory"))


def _some_rows(facts: _Facts) -> Schedule:
    rows = facts.rows_cached(PART_ROWS, PART_ROWS, codes=False)
    return _parts(facts, PART_ROWS, PARTS) if rows else _wide_rows(facts)


def _parts(facts: _Facts, rows: int, parts: int) -> Schedule:
    most = min(2 * parts, MOST_THREADS // rows, facts.n_trees)
    parts, in_flight = facts.shares(max(1, most // 4), most, parts)
    walk = replace(facts.walk("shared"), in_flight=in_flight)
    # Sums in memory take half as long again, though two blocks would fit.
    free = facts.most_shared - facts.block_bytes(rows)
    return families.rows_and_trees(rows, parts, walk, facts.sums(rows, parts) <= free)


def _few_rows(facts: _Facts) -> Schedule:
    threads = min(TREE_THREADS, _threads(facts.n_trees))
    return _by_trees(facts, max(1, TREE_THREADS // threads // 2), threads)


def _single_rows(facts: _Facts) -> Schedule:
    """Give each row a block and each tree a thread, to minimise waiting."""
    n_trees = facts.n_trees
    if n_trees >= SEVERAL_BLOCKS:
        # In one block, each thread would walk eight or more trees one after the other.
        blocks = n_trees // TREES_OF_BLOCK
        threads = SINGLE_THREADS // 4
        walk = facts.walk("shared", TREES_OF_BLOCK // threads)
        if not facts.rows_cached(1, 1, codes=False):
            walk = replace(walk, rows="memory")
        return families.trees_by_blocks(1, threads, blocks, walk)
    return _by_trees(facts, 1, min(SINGLE_THREADS, _threads(n_trees)))


def _by_trees(facts: _Facts, rows: int, threads: int) -> Schedule:
    fitting = facts.rows_cached(rows, 1, codes=False)
    in_flight = 1
    if facts.n_trees > threads:
        threads, in_flight = facts.shares(threads // 2, threads, threads)
    walk = facts.walk("shared" if fitting else "memory")
    walk = replace(walk, in_flight=in_flight)
    if facts.heaps:
        # Nodes of one level of neighbouring trees lie together, and lanes whose walks
        # have ended read none: on average 1.5 times as fast as padded walks in
        # "sparse" for 512 rows of SilvanForge's random models.
        walk = replace(walk, representation="reorg", padded=0, peeled=facts.min_depth)
    rows = fitting or rows
    free = facts.shared - (facts.block_bytes(rows) if fitting else 0)
    # A warp reduces by shuffles if the order is free.
    by_warp = threads == WARP and facts.reduction != "exact"
    shared = not by_warp and facts.sums(rows, threads) <= free
    return families.trees_by_threads(rows, threads, walk, shared)


def _threads(n_trees: int) -> int:
    return 1 << max(1, (n_trees - 1).bit_length())


def _power_below(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


def gpu_contribution_schedule(rows: int = 128) -> Schedule:
    schedule = Schedule().tile("batch", "b0", "b1", rows).tile("b1", "b2", "b3", 1)
    schedule = schedule.reorder("b0", "tree", "b2", "b3")
    schedule = families.mapped(schedule, b0="grid.x", b2="block.x")
    return schedule.cache_predicates("b0").vectorize("b3").represent("contributions")
