"""Estimates the time of a schedule without running it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from skforge.compiler.binning.transpose import WIDE_PART
from skforge.compiler.cost.coefficients import (
    COEFFICIENTS,
    ON_ARM,
    ON_AVX2,
    WITHOUT_MASKS,
)
from skforge.compiler.cost.counts import (
    LINE,
    Counts,
    ForestCounts,
    Reach,
    TileCounts,
    counted,
)
from skforge.compiler.cost.profile import MachineProfile
from skforge.compiler.cost.schedule_facts import LAYOUTS, PLACE, facts_of
from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.layouts.lanes import lane_pairs
from skforge.compiler.layouts.lanes.lane_levels import IN_FLIGHT
from skforge.compiler.layouts.lanes.lanes import LanesCost
from skforge.compiler.layouts.tiles.tiled_trees import STREAMED_BYTES
from skforge.compiler.target import Target
from skforge.forest.forest import Forest
from skforge.schedule.schedule import Schedule

#: Ways to pass rows through trees; "values" are tiles that compare values, for single
#: rows "value-row"; "rows" and "trees" are walks with rows or trees in flight.
KernelKind: TypeAlias = (
    Literal["bitsliced", "lanes", "pairs", "pieces", "rows", "trees"]
    | Literal["tiles", "values", "tile-row", "value-row"]
)

#: Tiles without and with codes, for blocks of rows and for single ones.
TILES: tuple[tuple[KernelKind, KernelKind], ...] = (
    ("values", "tiles"),
    ("value-row", "tile-row"),
)

WALKS: tuple[KernelKind, ...] = "rows", "trees"


def only_avx2(target: Target) -> bool:
    return target.has("avx2") and not target.has_mask_registers


#: Calls, and rows at least, after which the rows of a measurement repeat, so that
#: branches are not learned by heart; walks whose branches a CPU has learned by then.
CALLS, DISTINCT_ROWS, LEARNED_WALKS = 256, 1024, 8192

#: The same rows if they have more bytes than this: new ones are in no cache.
WIDE_ROW, WIDE_ROWS = 2048, 4096


def distinct_rows(n: float | Counts, row_bytes: float) -> Counts:
    """Return how many rows calls of n rows take before rows are met again."""
    if row_bytes > WIDE_ROW:
        return np.maximum(n, WIDE_ROWS)
    return np.maximum(n, np.minimum(CALLS * n, DISTINCT_ROWS))


#: Bytes of a page of memory.
PAGE = 4096


@dataclass(frozen=True, slots=True)
class ScheduleSizes:
    """The sizes of a schedule that its time depends on."""

    kind: KernelKind
    block: int  # rows of a block; 0: the whole batch
    levels: int  # levels of a tile
    in_flight: int  # walks in flight
    unchecked: int  # hops without leaf checks
    padded: bool  # whether trees are padded to these
    fetched: bool  # whether rows are prefetched
    parallel: bool  # whether threads share rows
    tree_tiles: int  # tiles of trees that threads share; 0: they share none
    tree_tile: int  # or the trees of each
    tests_of: int  # trees whose predicates are evaluated at a time; 0: all

    def tasks(self, n: Counts, n_trees: int) -> Counts:
        rows = np.ceil(n / (self.block or 1)) if self.parallel else np.ones_like(n)
        if not self.tree_tile:
            return rows
        return rows * (self.tree_tiles or -(-n_trees // self.tree_tile))


@lru_cache(maxsize=1 << 16)
def plan_of(schedule: Schedule) -> ScheduleSizes | None:
    fact = dict(zip(PLACE, facts_of([schedule])[0].tolist(), strict=True))
    if fact["block_rows"] or fact["block_trees"]:  # for GPUs
        return None
    layout = LAYOUTS[int(fact["layout"])]
    kind: KernelKind
    match layout:
        case "lanes":
            kind = "pairs" if fact["row_block"] == lane_pairs.ROWS else "lanes"
        case "bitsliced" | "pieces":
            kind = layout
        case "tiles":
            kind = TILES[fact["vector_trees"] > 0][fact["codes"] > 0]
        case "other":
            return None
        case _:
            kind = "rows" if fact["rows_inside"] else "trees"
    return ScheduleSizes(
        kind,
        int(fact["row_block"]),
        round(math.log2(fact["node_tile"] + 1)),
        int(max(fact["rows_in_flight"], fact["trees_in_flight"])),
        int(max(fact["unroll_walk"], fact["peel_walk"])),
        fact["unroll_walk"] > 0,
        fact["cache_rows"] > 0,
        fact["parallel_rows"] > 0,
        int(fact["parallel_trees"] and fact["tree_blocks"]),
        int(fact["parallel_trees"] and max(1, fact["tree_block"])),
        int(fact["cache_predicates"] == 2 and max(1, fact["tree_block"])),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Calls of several sizes: a plan, the forest, the machine and numbers of rows."""

    plan: ScheduleSizes
    forest: ForestCounts
    machine: MachineProfile
    target: Target
    n: Counts

    @property
    def block(self) -> Counts:
        return self.n if not self.plan.block else np.full_like(self.n, self.plan.block)

    @property
    def blocks(self) -> Counts:
        return np.ceil(self.n / self.block)

    def rows(self, multiple: int) -> Counts:
        whole, rest = np.divmod(self.n, self.block)
        last = np.minimum(self.block, np.ceil(rest / multiple) * multiple)
        return np.asarray(whole * self.block + last)

    @property
    def again(self) -> Counts:
        return distinct_rows(self.n, 0)

    @property
    def surprise(self) -> Counts:
        """The share of walks whose ends a CPU does not foresee: it learns a few."""
        return np.minimum(1.0, self.again * self.forest.trees / LEARNED_WALKS)

    def met(self, lines: Reach) -> Counts:
        return lines.distinct(self.again) * LINE

    @property
    def memory(self) -> Counts:
        """Return the ns to wait for lines of rows that L3 does not hold any more.

        With AVX2 only a core's part of L3 counts, as for scattered lines. Memory reads
        ahead of batches that L3 does not hold, but not of walks.
        """
        if not (l3 := self.target.l3_bytes):  # unknown
            return np.zeros_like(self.n)
        lines = row_lines(self)
        met = distinct_rows(self.n, self.forest.row_bytes) * lines / self.n * LINE
        part = L3_SHARE if only_avx2(self.target) else 1
        waits = _streamed(met, l3 // part)
        if self.plan.kind in WALKS:
            waits = waits + (MEMORY - 1.0) * _streamed(lines * LINE, l3)
        return np.asarray(lines * waits * self.machine.wait_l3)

    def line(self, size: float | Counts, whole: float = 0) -> float | Counts:
        """Return the ns to read a cache line of data of ``size`` bytes in order.

        If lines are scattered, ``whole`` are the bytes of which other calls reach more.
        """
        m, t = self.machine, self.target
        near, far = _streamed(size, t.l1_bytes), _streamed(size, t.l2_bytes)
        l3 = m.line_l3 * self._shared(np.maximum(size, whole)) + self.scattered(whole)
        return m.line_l1 + (m.line_l2 - m.line_l1) * near + (l3 - m.line_l2) * far

    def scattered(self, size: float | Counts, cache: int = 0) -> float | Counts:
        """Return the further ns of scattered lines of data beyond a cache, or L3."""
        share = (cache or self.target.l3_bytes / L3_SHARE) * only_avx2(self.target)
        return SCATTERED * _missed(size, share) if share else 0.0

    def wait(self, size: float | Counts) -> float | Counts:
        """Return the ns of a load from a place in data of ``size`` bytes."""
        m, t = self.machine, self.target
        near, far = _missed(size, t.l1_bytes), _missed(size, t.l2_bytes)
        l3 = m.wait_l3 * self._shared(size)
        return m.wait_l1 + (m.wait_l2 - m.wait_l1) * near + (l3 - m.wait_l2) * far

    def _shared(self, size: float | Counts) -> float | Counts:
        """Return how many times as long as L3 data of ``size`` bytes beyond L2 takes.

        Others use L3, too: data beyond a part of it comes from memory at times.
        """
        share = self.target.l3_bytes / L3_SHARE
        return 1.0 + (MEMORY - 1.0) * _missed(size, share) if share else 1.0


#: Part of L3 that one core may count on, and times of memory in those of a quiet L3.
#: Of deep forests on an EPYC Turin (32 MB), those of 8, 13 and 24 MB took 1.4, 1.9 and
#: 2.5 times as long, row by row, as L3 alone explains; one of 3 MB took 1.0.
#: The third are ns of a scattered line beside one in order, with AVX2 only (Zen 3), and
#: the fourth the part of them that prefetching tiles ahead hides (Zen 4, 800,000 nodes:
#: 1,024 and 4,096 rows take .5 to .8 of what the whole explains).
#: The last is what a line takes that single rows prefetch to L2, beside others.
L3_SHARE, MEMORY, SCATTERED, AHEAD, TO_L2 = 6, 4.0, 15.0, 0.5, 0.7


def _streamed(size: float | Counts, cache: int) -> float | Counts:
    """Return the share of data read in order that misses a cache.

    It begins with half of a cache, which holds other data, too, and ends with two.
    """
    return np.clip(np.log2(np.maximum(size, 1.0) / (cache / 2)) / 2, 0.0, 1.0)


def _missed(size: float | Counts, cache: float) -> float | Counts:
    return np.maximum(0.0, 1.0 - cache / np.maximum(size, 1.0))


#: Nanoseconds of each size of call, or of each call.
Terms: TypeAlias = "dict[str, float | Counts]"

#: Rows of which the input stage keeps columns at a time, and leaves are looked up.
MOST_PART, GROUP = 1024, 64

#: What further levels of searches take beside others, if tiles of trees have their own
#: (300 trees, Zen 4: 25 at a time take 1.06 to 1.09 of what 50 take).
MORE_LEVELS = 2.0

#: A plane of n bits takes as long as n and this many (Zen 4, medians of 35 forests: 64,
#: 128 and 256 bits take .25, .31 and .5 of 512, with AVX2 .42 and .6 of 256), and if
#: one instruction chooses in vectors, as n and that many (.52, .59 and .73 of 512).
PLANE, VECTOR_PLANE = 60, 430


def bitsliced(w: Work) -> Terms:
    f, m, target = w.forest, w.machine, w.target
    block = w.plan.block or MOST_PART
    rows, whole_rows = w.rows(f.value_lanes), w.blocks * block
    vectors, groups = rows / f.bit_lanes, w.rows(GROUP) / GROUP
    plane = VECTOR_PLANE if f.muxes_in_vectors else PLANE
    planes = w.blocks * (plane + block) / (plane + target.vector_bits)
    tests, whole = f.bit_tests(w.plan.tests_of), f.bit_tests(0)
    levels = whole.levels + MORE_LEVELS * max(0, tests.levels - whole.levels)
    table = tests.most * block / 8
    part = min(block, WIDE_PART if f.wide else MOST_PART)
    pages = np.log2(max(1.0, part * f.row_bytes / (64 * PAGE)))
    constants = 2 * f.folded_nodes + 8 * f.listed
    streamed = w.line(constants + LINE * f.look_ups + table)
    far = w.line(table) - m.line_l1
    scratch = w.line(1.5 * part * 4 * f.value_lanes) - m.line_l1
    # Rows of a block share the leaves that they reach.
    reached = w.blocks * f.leaves.distinct(np.minimum(w.n, w.block))
    return {
        "block": w.blocks * m.scalar,
        "job": w.blocks * tests.tiles * f.columns * m.scalar,
        "constant": w.blocks * constants / LINE * streamed,
        "register": w.blocks * f.look_ups * streamed,
        "row": row_lines(w) * m.line_l2,
        "sum": w.rows(GROUP) * f.n_outputs * m.scalar,
        "column": rows * f.column_tiles * m.permute,
        "page": rows * f.column_tiles * min(1, f.row_bytes / PAGE) * pages * m.wait_l1,
        "scratch": rows * f.column_tiles * scratch,
        "compare": tests.direct * whole_rows / f.bit_lanes * m.compare,
        "level": levels * vectors * (m.compare + m.permute),
        "line": tests.lines * planes * m.mux,
        "set_table": tests.set_tables * groups * (m.permute + 8 * m.compare),
        "set": tests.single_sets * rows * m.gather * 64 / target.vector_bits,
        "folded": (not f.muxes_in_vectors) * f.folded_nodes * planes * m.mux,
        "muxed": f.muxes_in_vectors * f.folded_nodes * planes * m.mux,
        "listed": f.listed * planes * m.mux,
        "far_line": (f.folded_nodes + f.listed) * planes * far,
        "group": (not f.looks_up) * f.trees * groups * m.permute,
        "number": f.looks_up * f.trees * groups * m.permute,
        "look_up": f.looks_up * f.permutes * groups * m.permute,
        "load": (not f.looks_up) * f.trees * f.leaf_bytes / 4 * w.rows(8) * m.scalar,
        "deep_leaf": f.loads_deep * reached * w.line(w.met(f.leaves), f.leaves.size),
    }


def lanes(w: Work) -> Terms:
    return _in_lanes(w, w.forest.lanes, w.forest.rest, w.n, "test")


def pairs(w: Work) -> Terms:
    c, eights = w.forest.pairs, np.ceil(w.n / lane_pairs.ROWS)
    if c is None:  # rows pass trees one by one
        return lanes(w)
    return _in_lanes(w, c, w.forest.pair_rest, eights, "pair")


def _beside_leaves(w: Work, c: LanesCost) -> Counts:
    """Return the bytes of tests and leaves: each drives the other out of caches."""
    return np.asarray(c.size + w.met(w.forest.leaves) * _spread(w, c))


def _spread(w: Work, c: LanesCost) -> float:
    """Return how many times as many lines as leaves fill they take.

    Places without a leaf lie between: trees of 12 leaves take the lines of 64.
    """
    return max(1.0, c.leaves / max(1, w.forest.n_leaves))


def _far_lines(w: Work, c: LanesCost, rest: Reach) -> float | Counts:
    """Return the lines of nodes and leaves that a row waits for, since L2 lost them."""
    l2 = w.target.l2_bytes
    if not only_avx2(w.target) or not l2:
        return 0.0
    lines = rest.beside(w.forest.leaves, _spread(w, c))
    return lines.missed(max(l2 / 4, l2 - c.size), w.again)


def _in_lanes(w: Work, c: LanesCost, rest: Reach, calls: Counts, test: str) -> Terms:
    f, m = w.forest, w.machine
    groups = np.ceil(w.n / f.sums_together)
    turns = -(-f.trees // IN_FLIGHT) / f.trees
    return {
        test: calls * c.tests * m.permute,
        "constant": calls * c.size / LINE * w.line(_beside_leaves(w, c)),
        "call": m.scalar,
        "row": w.n * m.scalar,
        "value": row_lines(w) * m.line_l2,
        "search": w.n * c.search * m.compare,
        "hop": w.n * c.hops * m.scalar,
        "hop_wait": w.n * c.hops * w.wait(w.met(rest)),
        # a tree's steps wait for each other, if few trees and rows go together
        "chain": groups * turns * c.hops * m.wait_l1,
        "set": w.n * f.set_groups * m.wait_l2,
        "set_hop": w.n * (c.hops if f.set_groups else 0) * m.scalar,
        # a sum waits for its last addition, beside those of other rows
        "leaf": groups * f.trees * f.leaf_vectors * m.scalar,
        "leaf_wait": w.n * f.trees * f.leaf_vectors * w.wait(_beside_leaves(w, c)),
        "far": w.n * _far_lines(w, c, rest) * SCATTERED,
    }


def tile_row(w: Work) -> Terms:
    f, m = w.forest, w.machine
    counts = f.tiles_of(w.plan.kind, w.plan.levels)
    tiles, line = counts.visits, w.line(w.met(counts.lines), counts.lines.size)
    line = line * (TO_L2 if counts.lines.size >= STREAMED_BYTES else 1)
    narrow = not w.target.has_mask_registers
    groups = -(-f.trees // 16)
    return {
        "row": w.n * m.scalar,
        "value": row_lines(w) * m.line_l2,
        "search": w.n * f.code_columns * m.compare,
        "tree": w.n * groups * m.permute,
        "narrow_tree": narrow * w.n * groups * m.permute,
        "top": w.n * f.trees * line,
        "tile": w.n * tiles * f.trees * m.permute,
        "narrow_tile": narrow * w.n * tiles * f.trees * m.permute,
        "wait": w.n * tiles * f.trees * line,
        "far_code": w.n * f.trees * _far_codes(w, counts),
        "load": (not f.row_fits) * w.n * tiles * f.trees * 7 * m.scalar,
    }


def _far_codes(w: Work, counts: TileCounts) -> float:
    """Return the ns to look up codes that no register holds, of a row and tree."""
    looked_up = (1 << counts.top) / 16 + counts.visits
    return (w.forest.code_columns > 64) * looked_up * w.machine.permute


def _quantized(w: Work) -> Terms:
    f, m, rows = w.forest, w.machine, w.rows(16)
    return {
        "value": row_lines(w) * m.line_l2,
        "column": rows * f.columns * m.scalar,
        "level": f.code_searches * rows / f.value_lanes * (m.compare + m.permute),
        "far_level": f.far_searches * rows * m.scalar,
        "set": f.sets * rows * m.gather * 64 / w.target.vector_bits,
    }


def pieces(w: Work) -> Terms:
    f, m, p = w.forest, w.machine, w.forest.pieces
    rows, together = w.rows(16), np.minimum(w.n, w.block)
    # Half of the last registers of a piece have no rows, unless no row reaches it.
    reached = p.pieces * (1 - np.exp(-together * f.trees / p.pieces))
    spare = w.blocks * reached / 2
    tests, size = (f.inner_nodes - p.top) / p.pieces, f.inner_nodes * 16
    registers = -(-f.piece_columns // 32)
    return {
        **_quantized(w),
        "test": ((p.top + p.below) * rows / 32 + spare * tests) * m.compare,
        "transpose": (f.trees * rows / 16 + spare) * registers * m.permute,
        "bucket": f.trees * rows * m.scalar,
        "piece": w.blocks * p.pieces * m.scalar,
        "fetch": w.blocks * reached * tests * w.line(size, size) / 4,
        "leaf": f.trees * rows * f.leaf_vectors * m.scalar,
    }


def tiles(w: Work) -> Terms:
    f = w.forest
    counts = f.tiles_of(w.plan.kind, w.plan.levels)
    terms = _tiled(w, counts, LINE * -(-f.code_columns // 32))
    # What tiles of trees beyond L1 would wait for is prefetched.
    l1 = w.target.l1_bytes
    terms["narrow_tile"] *= l1 / max(l1, counts.lines.size / f.trees)
    return {**_quantized(w), **terms}


def values(w: Work) -> Terms:
    f, m = w.forest, w.machine
    rows = w.rows(16)
    top = f.values.top > 0
    return {
        "value": row_lines(w) * m.line_l2,
        "column": top * rows * f.column_tiles * m.permute,
        "missing": f.asks * rows * f.trees * m.scalar,
        **_tiled(w, f.values, min(f.row_bytes, f.columns * LINE)),
    }


def _tiled(w: Work, counts: TileCounts, row_bytes: float) -> Terms:
    f, m = w.forest, w.machine
    narrow = not w.target.has_mask_registers
    rows, size = w.rows(16), counts.lines.size
    met = counts.visits * f.trees * rows
    together = np.minimum(w.n, w.block)
    fetched = w.line(w.met(counts.lines), size) - AHEAD * w.scattered(size)
    return {
        "call": w.blocks * m.scalar,
        "block": w.blocks * f.trees * m.scalar,
        "tree": f.trees * rows * m.permute,
        "narrow_tree": narrow * f.trees * rows * m.permute,
        "tile": met * m.permute,
        "narrow_tile": narrow * met * m.permute,
        "far_code": f.trees * rows * _far_codes(w, counts),
        "gather": met * w.line(size / f.trees),
        "row": met * m.line_l1,
        "far_row": met * (w.line(together * row_bytes) - m.line_l1),
        "fetch": w.blocks * counts.lines.distinct(together) * fetched,
        # a tile waits for the one above it, beside those of the block's other rows
        "chain": w.blocks * counts.visits * f.trees * w.wait(w.met(counts.lines)),
        "leaf": f.trees * rows * f.leaf_vectors * m.scalar,
        "leaf_fetch": w.blocks * f.leaves.distinct(together) * m.line_l2,
    }


def rows(w: Work) -> Terms:
    f, m = w.forest, w.machine
    of_tree = f.walked.size / f.trees
    together = np.minimum(w.n, max(w.plan.in_flight, w.plan.block))
    touched = together * min(f.row_bytes, f.columns * LINE)
    return {
        "value_wait": w.n * f.trees * f.walk_depth * (w.wait(touched) - m.wait_l1),
        **_walk(w, of_tree, w.n),
        "fetch": w.blocks
        * f.walked.distinct(np.minimum(w.n, w.block))
        * (w.line(w.met(f.walked)) + w.scattered(f.walked.size, w.target.l2_bytes)),
    }


def trees(w: Work) -> Terms:
    fetched = w.n * w.plan.fetched * w.forest.row_bytes / LINE
    return {
        "call": w.machine.scalar,
        "row": w.n * w.machine.scalar,
        **_walk(w, w.met(w.forest.walked), w.forest.trees),
        "fetch": fetched * w.machine.line_l2,
    }


def _walk(w: Work, size: float | Counts, most: float | Counts) -> Terms:
    f, m = w.forest, w.machine
    padded = w.plan.unchecked if w.plan.padded else 0
    free = min(w.plan.unchecked, f.max_depth)
    together = max(1, w.plan.in_flight)
    # What does not fill a group is walked one by one.
    grouped = np.floor(most / together) * together / np.maximum(most, 1)
    alone = 1 - grouped
    # Walks that end early wait for the others in flight.
    deepest = f.walk_depth + (f.tree_depth - f.walk_depth) * grouped * (together > 1)
    checked = np.maximum(0.0, np.maximum(deepest, padded) - free)
    each = w.n * f.trees
    hops = each * (free + checked)
    waited = hops * (grouped / min(together, 8) + alone)
    ends = each * (checked > 0) * w.surprise
    return {
        "value": row_lines(w) * m.line_l2,
        "walk": each * m.scalar,
        "hop": each * free * m.scalar,
        "checked_hop": each * checked * m.scalar,
        "unforeseen": each * checked * w.surprise * m.scalar,
        "wait": hops * w.wait(size) * grouped / min(together, 8),
        "wait_alone": hops * (w.wait(size) + m.wait_l1) * alone,
        "exit": ends * m.wait_l2 * (grouped / together + alone),
        "leaf": each * f.leaf_vectors * m.scalar,
        "output": each * max(0.0, f.leaf_bytes / 8 - 1) * m.scalar,  # one by one
        "missing": f.asks * hops * m.scalar,
        # every hop looks in a set, and chooses afterwards
        "set": bool(f.sets) * hops * f.value_bytes / 4 * m.scalar,
        "set_wait": bool(f.sets) * waited * m.wait_l1,
    }


def row_lines(w: Work) -> Counts:
    """Return the cache lines of rows that are read; walks read one a hop at most."""
    f = w.forest
    read = f.trees * f.walk_depth if w.plan.kind in WALKS else f.columns
    return w.n * max(1.0, min(f.row_bytes / LINE, f.columns, read))


TERMS: dict[KernelKind, Callable[[Work], Terms]] = {
    "bitsliced": bitsliced,
    "lanes": lanes,
    "pairs": pairs,
    "pieces": pieces,
    "tiles": tiles,
    "values": values,
    "tile-row": tile_row,
    "value-row": tile_row,
    "rows": rows,
    "trees": trees,
}


class CostEstimate:
    """Estimates calls of one forest, which is counted once, on one CPU.

    ``profile`` is the CPU's speed; None uses the one stored for it.
    """

    def __init__(
        self,
        forest: Forest | ForestShape,
        target: Target,
        profile: MachineProfile | None = None,
    ) -> None:
        self.counts = counted(forest, target)
        self.target = target
        self.profile = MachineProfile.of(target) if profile is None else profile

    def seconds(
        self, schedule: Schedule, n_rows: ArrayLike, n_threads: int = 1
    ) -> Counts:
        """Return the estimated seconds of calls; infinite for what is not estimated.

        The forest must allow the schedule, which is not checked. Threads share blocks
        of rows and tiles of trees, if loops over them are parallel.
        """
        plan, n = plan_of(schedule), np.asarray(n_rows, np.float64)
        if plan is None:
            return np.full_like(n, np.inf)
        total = np.zeros_like(n)
        for value in self.parts(plan, n).values():
            total += value
        return total * self.share(plan, n, n_threads) * 1e-9

    def parts(self, plan: ScheduleSizes, n_rows: ArrayLike) -> Terms:
        """Return the estimated ns of one thread by term, whose sum is the estimate."""
        other = ON_ARM if self.target.arch == "aarch64" else {}
        other = ON_AVX2 if only_avx2(self.target) else other
        times = COEFFICIENTS[plan.kind] | other.get(plan.kind, {})
        terms = self.terms(plan, n_rows).items()
        return {name: times[name] * value for name, value in terms if name in times}

    def share(self, plan: ScheduleSizes, n: Counts, n_threads: int) -> float | Counts:
        if not (plan.parallel or plan.tree_tile) or n_threads == 1:
            return 1.0
        tasks = plan.tasks(n, self.counts.trees)
        return np.ceil(tasks / n_threads) / np.maximum(tasks, 1)

    def terms(self, plan: ScheduleSizes, n_rows: ArrayLike) -> Terms:
        n = np.maximum(np.asarray(n_rows, np.float64), 1.0)
        work = Work(plan, self.counts, self.profile, self.target, n)
        terms = {**TERMS[plan.kind](work), "memory": work.memory}
        if only_avx2(self.target):
            factor = WITHOUT_MASKS.get((plan.kind, plan.levels), 1.0)
            terms = {name: factor * value for name, value in terms.items()}
        return terms
