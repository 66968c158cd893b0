"""Chooses a GPU schedule for each batch size without measuring.

Few rows: the threads of a block share a row's trees; otherwise most of the GPU would
idle, and a thread would wait for thousands of reads in turn. Medium batches: rows are
the lanes of a warp, and each warp takes a part of the trees. Many rows: one thread a
row, whose sum stays in a register.

The numbers come from the model of ``benchmarks/gpu/static.py`` for an H200, airline
(100 trees of depth 8) unless stated otherwise: 1 row takes 136, 38 or 4 µs with 1
thread, 4 trees in flight, and 128 threads; 4096 rows take 16, 6 or 22 µs with trees by
128 threads, rows and 16 parts, and a thread a row; a large batch runs at 32, 162 and
334 · 10⁹ row-trees a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from skforge.compiler.defaults.cpu import allows_bits
from skforge.compiler.defaults.walks import ForestShape
from skforge.compiler.forest.arrays import Comparison
from skforge.compiler.forest.bins import code_dtype, column_count
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.layouts.bitsliced.sliced_layout import folds
from skforge.compiler.schedule import families
from skforge.compiler.schedule.ranges import BatchRange
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target

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
#: Cycles that a thread waits for a hop; and that a block of shared predicates waits for
#: each tree, in units of the warp's cycles for it, for sums of 32 and 64 bits: 32 µs
#: for airline, 18 for NYC_taxi, independent of the rows of a block.
WAIT, WAIT_TREE, WAIT_TREE_WIDE = 370.0, 30.0, 60.0
#: Larger batches use the same schedule.
LARGEST = 1 << 24
#: Assumed processors of a GPU if the number is not known.
PROCESSORS = 128

#: Threads of a block: one a row, several a row, and all on a single row.
ROW_THREADS, TREE_THREADS, SINGLE_THREADS = 128, 256, 1024
#: Parts of the trees if lanes are rows; the rows; and the fewest rows.
PARTS, PART_ROWS, FEWEST_PART_ROWS = 16, 32, 4
#: Trees from which a single row is distributed over several blocks, and trees of each.
SEVERAL_BLOCKS, TREES_OF_BLOCK = 8192, 1024

WARP, MOST_THREADS = 32, 1024

#: Forests of fewer trees are not distributed over threads.
FEWEST_TREES = 8

#: Blocks that should fit in a processor's shared memory together.
BLOCKS_TOGETHER = 2

#: Approximate batch size from which a GPU is faster than its machine's CPU.
GPU_MIN_ROWS = 100

#: Greatest depth of padded walks, and their most hops relative to the mean: a hop
#: without a leaf check takes 11.75 instructions instead of 13.25.
PADDED_DEPTH, PADDED_HOPS = 10, 1.12
#: Most nodes after padding, as a multiple of the forest's own.
PADDING_LIMIT = 3.0

#: Trees in flight: with 8 padded walks, 2,048 threads still have enough registers.
IN_FLIGHT, IN_FLIGHT_PADDED = 4, 8

#: Instructions of a hop by values of 32 and 64 bits, with categories, and by codes; and
#: of a leaf check.
HOP, HOP_WIDE, HOP_CATEGORY, HOP_CODES, LOOK = 11.75, 15.75, 41.0, 13.25, 1.5
#: Cycles of a warp's read of a row in shared memory, of 32 and of 64 bits.
READ, READ_WIDE = 1.0, 3.7
#: Cost of reading nodes: cache lines of a warp, and words if trees are in shared
#: memory.
LINES_OF_LEVEL, NODE_SHARED = 0.28, 1.2
#: Instructions to search a code, and for each halving of its thresholds.
SEARCH, HALVE = 9.0, 6.5
#: Instructions that a processor issues in a cycle.
ISSUE = 4.0

#: Rows of a block that copies trees to shared memory, the part of it (one in so many)
#: that trees may take, and instructions of a word: 500 cycles a tree of depth 8, 2 a
#: row.
TILE_ROWS, TILE_SHARE, FILL = 256, 4, 9.0

#: Threads that keep a processor busy while others wait.
ENOUGH_THREADS = 256

#: Rows of a block with shared predicates if two tables fit, and of one that has a
#: processor for itself: a ninth fewer instructions.
BIT_ROWS, MOST_BIT_ROWS = 256, 1024
#: Instructions for a row and tree: of a node (a 32nd for each of its rows), to add a
#: leaf, to copy one to shared memory; for a row and column; and for a 32nd of a
#: predicate.
FOLD, ADD_LEAF, STAGE = 4.8, 7.5, 9.0 / 1024
MARK, MARK_HALVE, ANSWER = 33.0, 6.0, 9.0
#: Factor for waiting if a processor has eight warps.
FEW_WARPS = 1.3


def default_gpu_schedules(
    forest: Forest, target: Target, reduction: Reduction = "exact"
) -> dict[BatchRange, Schedule]:
    """Return a schedule for every batch range, each correct in every mode."""
    facts = _Facts.of(forest, target, reduction)
    processors = max(16, target.n_cores or PROCESSORS)
    many, bits_from = _many_rows(facts, processors)
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
        large = facts.bits_fit(MOST_BIT_ROWS, 1)
        table[bits_from, None] = families.rows_as_bits(
            MOST_BIT_ROWS if large else BIT_ROWS
        )
    return table


def walking_gpu_schedule(
    forest: Forest, target: Target, rows: int = ROW_THREADS
) -> Schedule:
    """Return a schedule in which each thread walks all trees for its row.

    It compares values for every forest, and supports every use of the walks' leaves.
    """
    facts = _Facts.of(forest, target, "exact")
    found = facts.rows_cached(rows, WARP, codes=False)
    if found:
        return families.rows_by_threads(found, facts.walk("shared"))
    return families.rows_by_threads(rows, facts.walk("memory"))


@dataclass(frozen=True, slots=True)
class _Facts:
    """The properties of forest and target that decide the schedules."""

    shape: ForestShape
    reduction: Reduction
    n_outputs: int
    leaf_width: int
    value_bytes: int  # bytes of a row's value
    sum_bytes: int
    mean_depth: float  # mean depth of each tree's deepest leaf
    columns: int  # columns of codes
    search: float  # mean instructions to find a code
    code_bits: int  # bits of a test on codes
    has_categories: bool
    n_predicates: int
    n_leaves: int
    as_bits: bool  # whether predicates may be shared
    temporaries: float  # approximate temporary lines of trees that are lists
    shared: int  # bytes of shared memory a block may use
    most_shared: int

    @classmethod
    def of(cls, forest: Forest, target: Target, reduction: Reduction) -> _Facts:
        """Measure a forest."""
        _, deepest = forest.leaf_depths()
        columns = max(1, column_count(forest))
        each = forest.n_predicates / columns
        most = min(each * 4, 65535 if code_dtype(forest)(0).itemsize > 1 else 255)
        return cls(
            shape=ForestShape.of(forest),
            reduction=reduction,
            n_outputs=forest.n_outputs,
            leaf_width=forest.leaf_value.shape[1],
            value_bytes=forest.input_dtype.itemsize,
            sum_bytes=forest.accumulator_dtype.itemsize,
            mean_depth=float(deepest.mean()) if len(deepest) else 0.0,
            columns=columns,
            search=SEARCH + HALVE * math.ceil(math.log2(each + 1)),
            code_bits=columns.bit_length() + int(most).bit_length(),
            has_categories=bool((forest.comparison >= Comparison.IN).any()),
            n_predicates=forest.n_predicates,
            n_leaves=forest.n_leaves,
            # floats are added in order
            as_bits=reduction != "reproducible" and allows_bits(forest),
            temporaries=0.0
            if bool(folds(forest).all())
            else 8 * min(64, forest.n_leaves / forest.n_trees),
            shared=target.shared_bytes // BLOCKS_TOGETHER,
            most_shared=target.shared_bytes,
        )

    # ------------------------------------------------------------ walks

    @property
    def heaps(self) -> bool:
        """Whether complete trees take little more memory than the trees."""
        shape = self.shape
        shallow = 0 < shape.max_depth <= PADDED_DEPTH
        return shallow and shape.padded_nodes <= PADDING_LIMIT

    @property
    def hops(self) -> int:
        """Hops of padded walks; 0 if trees differ too much, or are too deep."""
        deepest = self.shape.max_depth
        return deepest if self.heaps and deepest <= PADDED_HOPS * self.mean_depth else 0

    @property
    def most_in_flight(self) -> int:
        """Most trees that a thread walks together, limited by registers."""
        wide = self.leaf_width * self.sum_bytes > 8  # leaves with several outputs
        return IN_FLIGHT_PADDED if self.hops and not wide else IN_FLIGHT

    def shares(self, least: int, most: int, best: int) -> tuple[int, int]:
        """Return how many parts to split the trees into, and how many are in flight.

        ``best`` is preferred among equally good numbers. Leftover trees are walked one
        after the other, so 20 parts of 100 trees with 5 in flight wait half as long as
        16 with 6.
        """
        n_trees = self.shape.n_trees
        wanted = self.most_in_flight

        def turns(shares: int, in_flight: int) -> int:
            own = -(-n_trees // shares)
            each = {own, n_trees // shares}
            return max(sum(divmod(one, in_flight)) for one in each)

        choices = [
            (turns(shares, k), abs(shares - best), k, shares)
            for shares in range(least, most + 1)
            for k in range(1, min(wanted, -(-n_trees // shares)) + 1)
        ]
        _, _, in_flight, shares = min(choices)
        return shares, in_flight

    def walk(self, rows: families.Rows, own_trees: float = math.inf) -> families.Walk:
        """Return how a thread with ``own_trees`` trees walks."""
        padded = self.hops
        trees = min(own_trees, self.shape.n_trees)
        in_flight = max(1, min(self.most_in_flight, int(trees)))
        peeled = 0 if padded else self.shape.min_depth
        return families.Walk(rows, "sparse", in_flight, padded, peeled)

    # ------------------------------------------------------------ shared memory

    def row_bytes(self, rows: int, codes: bool = False) -> int:
        """Return the shared memory of a block's rows, including padding."""
        if not codes:
            return rows * (self.shape.n_features | 1) * self.value_bytes
        words = rows * (self.columns | 1) * 4
        # Codes are words if these fit in a quarter of shared memory, else narrower.
        return words if 4 * words <= self.most_shared else words // 2

    def rows_cached(self, most: int, least: int, codes: bool) -> int:
        """Return how many rows of a block fit shared memory; 0 if too few do."""
        rows = most
        while rows >= least:
            if 0 < self.row_bytes(rows, codes) <= self.shared:
                return rows
            rows //= 2
        return 0

    def keeps_busy(self, rows: int, codes: bool) -> bool:
        """Return whether blocks with one thread a row have enough threads together."""
        if not rows:
            return False
        blocks = self.most_shared // max(1, self.row_bytes(rows, codes))
        return blocks * rows >= ENOUGH_THREADS

    def bits_fit(self, rows: int, blocks: int) -> bool:
        """Return whether the predicate tables of some blocks fit shared memory."""
        if not self.as_bits:
            return False
        lanes = rows // 32
        leaves = self.n_leaves / self.shape.n_trees
        table = (self.n_predicates + self.temporaries) * (lanes + lanes // 32) * 4
        group = 8 * leaves * self.sum_bytes + 8 * rows
        return blocks * (table + group) <= self.most_shared

    def sums(self, rows: int, parts: int) -> int:
        """Return the shared memory of sums that threads share."""
        if self.reduction == "exact":
            slots, width = self.shape.n_trees, self.leaf_width
        else:
            slots, width = parts, self.n_outputs
        each = 8 if self.reduction == "reproducible" else self.sum_bytes
        return slots * rows * width * each

    # ------------------------------------------------------------ cycles of a tree

    def by_values(self) -> float:
        """Return a warp's cycles for a tree if it compares values."""
        wide = self.value_bytes > 4
        hop = HOP_WIDE if wide else HOP
        hop = HOP_CATEGORY if self.has_categories else hop
        return self._tree(hop, READ_WIDE if wide else READ)

    def by_codes(self) -> float:
        """Return a warp's cycles for a tree with codes, searched once for all trees."""
        return self._tree(HOP_CODES, READ) + self._searches()

    def by_tiles(self) -> float:
        """Return a warp's cycles for a tree with codes and trees in shared memory."""
        words = 2.0 ** (self.shape.max_depth + 1)
        fill = words * FILL / TILE_ROWS / ISSUE
        hops = self.shape.max_depth
        return hops * max(HOP / ISSUE, READ + NODE_SHARED) + fill + self._searches()

    def by_bits(self) -> float:
        """Return a warp's cycles for a tree with shared predicates."""
        trees = max(1, self.shape.n_trees)
        leaves = self.n_leaves / trees
        tree = FOLD * (leaves - 1) / 32 + ADD_LEAF + STAGE * leaves
        each = math.log2(self.n_predicates / max(1, self.columns) + 2)
        row = self.columns * (MARK + MARK_HALVE * math.ceil(each))
        row += self.n_predicates * ANSWER / 32
        return FEW_WARPS * (tree + row / trees) / ISSUE

    def walks_take(
        self, rows: int, processors: int, tree: float, in_flight: int
    ) -> float:
        """Return the cycles of a batch with a thread a row; a tree takes ``tree``."""
        turns = sum(divmod(self.shape.n_trees, max(1, in_flight)))
        waiting = (self.hops or self.mean_depth) * turns * WAIT
        return max(waiting, rows / WARP * self.shape.n_trees * tree / processors)

    def bits_take(self, rows: int, processors: int) -> float:
        """Return the cycles of a batch with shared predicates."""
        tree, n_trees = self.by_bits(), self.shape.n_trees
        waiting = (WAIT_TREE if self.sum_bytes < 8 else WAIT_TREE_WIDE) * tree * n_trees
        if self.bits_fit(MOST_BIT_ROWS, 1):  # a block at a time
            return waiting * math.ceil(rows / MOST_BIT_ROWS / processors)
        return max(waiting, rows / WARP * n_trees * tree / processors)

    def _tree(self, hop: float, read: float) -> float:
        look = 0.0 if self.hops else LOOK
        lines = 1.0 + LINES_OF_LEVEL * math.log2(self.shape.max_depth + 1)
        hops = self.hops or self.mean_depth
        return hops * max((hop + look) / ISSUE, read + lines)

    def _searches(self) -> float:
        return self.columns * self.search / ISSUE / max(1, self.shape.n_trees)


def _many_rows(facts: _Facts, processors: int) -> tuple[Schedule, int]:
    """Give each thread a row: sums in registers, and every read shared by a warp.

    Returns the best of the walks, and the rows from which shared predicates are better,
    which are more than ``LARGEST`` if they never are.
    """
    values = facts.rows_cached(ROW_THREADS, WARP, codes=False)
    codes = facts.rows_cached(ROW_THREADS, WARP, codes=True)
    choices: dict[families.Rows | Literal["tiles"], float] = {}
    if facts.keeps_busy(values, codes=False):
        choices["shared"] = facts.by_values()
    if facts.keeps_busy(codes, codes=True):
        choices["codes"] = facts.by_codes()
    tile = _tile(facts)
    if tile:
        choices["tiles"] = facts.by_tiles()
    bits = facts.bits_fit(BIT_ROWS, BLOCKS_TOGETHER)
    if not choices:
        return _wide_rows(facts), 1 if bits else 2 * LARGEST
    best = min(choices, key=choices.__getitem__)
    if best == "tiles":
        walk = replace(facts.walk("codes"), representation="array", peeled=0)
        walk = replace(walk, padded=facts.shape.max_depth, in_flight=min(4, tile))
        schedule = families.rows_by_threads(TILE_ROWS, walk, tile)
    else:
        walk = facts.walk(best)
        schedule = families.rows_by_threads(values if best == "shared" else codes, walk)
    rows = 1
    while bits and rows <= LARGEST:
        walks = facts.walks_take(rows, processors, choices[best], walk.in_flight)
        if facts.bits_take(rows, processors) < walks:
            return schedule, rows
        rows *= 2
    return schedule, 2 * LARGEST


def _tile(facts: _Facts) -> int:
    """Return how many trees of four-byte nodes a block can cache; 0 for none."""
    shape = facts.shape
    if not 0 < shape.max_depth <= PADDED_DEPTH or facts.code_bits > 31:
        return 0
    if not 0 < facts.row_bytes(TILE_ROWS, codes=True) <= facts.shared:
        return 0
    room = facts.most_shared // TILE_SHARE
    fitting = room // (4 << (shape.max_depth + 1))
    tile = min(16, fitting, shape.n_trees)
    return tile if tile >= IN_FLIGHT else 0


def _wide_rows(facts: _Facts) -> Schedule:
    """Let warps share a few wide rows; if even these do not fit, read from memory.

    With 2,000 columns, 16 rows and 32 parts of 100 trees run three times as fast as a
    row a thread, whose lanes each read their own cache line, and a fifth faster than 8
    rows in half of the shared memory.
    """
    rows = PART_ROWS
    while rows >= FEWEST_PART_ROWS:
        parts = PARTS * PART_ROWS // rows
        needed = facts.row_bytes(rows) + facts.sums(rows, parts)
        if facts.shape.n_trees >= 2 * FEWEST_TREES and needed <= facts.most_shared:
            return _parts(facts, rows, parts)
        rows //= 2
    return families.rows_by_threads(ROW_THREADS, facts.walk("memory"))


def _some_rows(facts: _Facts) -> Schedule:
    """Give all warps of a block the same rows, and each a part of the trees."""
    rows = facts.rows_cached(PART_ROWS, PART_ROWS, codes=False)
    return _parts(facts, PART_ROWS, PARTS) if rows else _wide_rows(facts)


def _parts(facts: _Facts, rows: int, parts: int) -> Schedule:
    """Distribute trees over parts of a block with its rows in shared memory."""
    most = min(2 * parts, MOST_THREADS // rows, facts.shape.n_trees)
    parts, in_flight = facts.shares(max(1, most // 4), most, parts)
    walk = replace(facts.walk("shared"), in_flight=in_flight)
    # Sums in memory take half as long again, though two blocks would fit.
    free = facts.most_shared - facts.row_bytes(rows)
    return families.rows_and_trees(rows, parts, walk, facts.sums(rows, parts) <= free)


def _few_rows(facts: _Facts) -> Schedule:
    """Distribute a row's trees over threads, with one or more rows a block."""
    threads = min(TREE_THREADS, _threads(facts.shape.n_trees))
    rows = max(1, TREE_THREADS // threads // 2)
    return _by_trees(facts, rows, threads)


def _single_rows(facts: _Facts) -> Schedule:
    """Give each row a block and each tree a thread, to minimise waiting."""
    n_trees = facts.shape.n_trees
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
    if facts.shape.n_trees > threads:
        threads, in_flight = facts.shares(threads // 2, threads, threads)
    walk = facts.walk("shared" if fitting else "memory")
    walk = replace(walk, in_flight=in_flight)
    if facts.heaps:
        # Nodes of one level of neighbouring trees lie together, and lanes whose walks
        # have ended read none: on average 1.5 times as fast as padded walks in
        # "sparse" for 512 rows of SilvanForge's random models.
        walk = replace(walk, representation="reorg", padded=0)
        walk = replace(walk, peeled=facts.shape.min_depth)
    rows = fitting or rows
    free = facts.shared - (facts.row_bytes(rows) if fitting else 0)
    # A warp reduces by shuffles if the order is free.
    by_warp = threads == WARP and facts.reduction != "exact"
    shared = not by_warp and facts.sums(rows, threads) <= free
    return families.trees_by_threads(rows, threads, walk, shared)


def _threads(n_trees: int) -> int:
    return 1 << max(1, (n_trees - 1).bit_length())


def _power_below(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)
