"""``represent("lanes")``: one row at a time, one tree in each lane of a vector.

A row becomes one byte a column (``row_blocks.py``), which fits one or a few registers.
Trees of at most 64 leaves are evaluated whole (``lane_masks.py``) if that is cheaper.
Otherwise the top levels are evaluated for as many trees as a register has bytes
(``lane_levels.py``), and the rest is walked. Leaves are added one by one, in model
order (``lane_sums.py``). Rows in tiles of eight are evaluated together, for eight trees
at a time (``lane_pairs.py``), where bytes are looked up in whole registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from skforge.compiler.binning import category_rows
from skforge.compiler.binning.category_rows import CategoryRows, in_groups, set_groups
from skforge.compiler.binning.row_blocks import (
    BLOCK,
    BlockedBins,
    bucket_lanes,
    plan_row_codes,
)
from skforge.compiler.binning.rules import Model, ReadingRules, RowAt
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import Builder, b
from skforge.compiler.ir.lir.nodes import I32, U8, U16, Buffer, Scalar, Value, Vec
from skforge.compiler.ir.lir.types import Part
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.even_trees import even_trees, leaf_counts
from skforge.compiler.layouts.lanes import lane_levels, lane_masks, lane_pairs
from skforge.compiler.layouts.lanes.lane_masks import LeafMasksLowering
from skforge.compiler.layouts.lanes.lane_pairs import PairLevelsLowering
from skforge.compiler.layouts.lanes.lane_sums import LaneSums, sums_together
from skforge.compiler.target import Target
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.bins import CodeTable, plan_codes, tested_columns
from skforge.forest.forest import Forest
from skforge.schedule.bound import every_loop
from skforge.schedule.directives import Quantize

#: Most columns of codes; of several banks, each is looked up.
MOST_COLUMNS = 4 * lane_levels.BANK

#: Most levels evaluated in lanes: the tests of 8 take twice L1 (5, 6, 7 and 8 took
#: 0.17, 0.14, 0.15 and 0.41 us a row). Even trees have one test a level.
MOST_LEVELS, MOST_EVEN = 7, 8

#: Approximate instructions: of a position and a slot without looking codes up, of a
#: slot's mask, of a hop of the walk. They decide the levels and the way.
POSITION, SLOT, MASK, HOP = 3.0, 4.0, 1.5, 5.0

#: Approximate instructions of a position whose place and rank are chosen first.
CHOICE = 3.5

#: Approximate instructions for reading a register of a category's row, and for a
#: position's bit.
READ, SET_BIT = 3.0, 1.0

#: Values that are converted at once.
LANES = 16

_Evaluation: TypeAlias = (
    LeafMasksLowering | lane_levels.TopLevelsLowering | PairLevelsLowering
)


@dataclass(frozen=True, slots=True)
class LaneShape:
    """How a target's registers hold the codes of a row."""

    dtype: type[np.unsignedinteger[Any]]
    lanes: int
    tables: int  # registers that hold a row's codes
    narrow: int  # codes loaded, if they fill only part of a register; else 0
    look_up: int  # approximate instructions to find a code for each lane

    @property
    def element(self) -> Scalar:
        return U8 if self.dtype is np.uint8 else U16


def lane_shape(target: Target, n_columns: int) -> LaneShape:
    """Return the registers of codes: words, if bytes do not permute over whole ones."""
    dtype: type[np.unsignedinteger[Any]] = np.uint8
    bits = target.vector_bits
    if bits == 512 and not target.has("avx512vbmi") and n_columns > 32:
        dtype = np.uint16
    lanes = bits // (8 * np.dtype(dtype).itemsize)
    tables = 1
    while tables * lanes < n_columns:
        tables *= 2
    narrow = 16
    while narrow < n_columns:
        narrow *= 2
    whole = dtype is np.uint16 or narrow >= lanes
    look_up = max(1, 3 * tables // 2 - 2)  # two registers at a time, then blends
    look_up += 2 * (tables * lanes - 1) // lane_levels.BANK
    if dtype is np.uint8 and not target.has("avx512vbmi"):
        # 16 bytes at a time, then blends, by as many masks as places have bits.
        look_up = 2 * (narrow // 16) + (narrow // 16).bit_length() - 2
    return LaneShape(dtype, lanes, tables, 0 if whole else narrow, look_up)


class LanesLayout(layouts.RowLayout):
    def __init__(self, hir: PredictEnsemble, target: Target) -> None:
        self.forest = forest = hir.forest
        self.together = self.added = sums_together(forest)
        self.comparison = hir.comparison
        groups = set_groups(forest)
        classes = [category_rows.SetClasses.of(forest, group) for group in groups]
        self.sets = sets = in_groups(forest, groups)
        self.first_whole = first_whole(forest)
        whole = forest.feature >= self.first_whole
        table = plan_codes(forest, np.uint8, chosen=~(sets | whole))
        self.n_searched = table.n_columns
        n_columns = table.n_columns + forest.n_features - self.first_whole
        self.shape = shape = lane_shape(target, n_columns)
        lanes = bucket_lanes(target, forest.threshold.itemsize)
        self.plan = plan_row_codes(table, forest, lanes)
        place = np.append(self.plan.code_index, np.int32(0))[table.column_of]
        place[whole] = table.n_columns + forest.feature[whole] - self.first_whole
        rank = np.where(sets, np.int32(lane_levels.NEVER_RIGHT), table.rank_of)
        rank[whole] = forest.threshold[whole].astype(np.int32) + 1
        tests = lane_levels.RowTests(place, rank)
        self.masks = self.categories = None
        self.top: lane_levels.TopLevels | None = None
        self.pairs: lane_pairs.PairLevels | None = None
        self.rest: lane_levels.Rest | None = None
        self.row_width = shape.tables * shape.lanes
        coded, heads = [np.zeros(0, np.int32)] * len(classes), []
        levels = pair_levels(forest, target, n_columns)
        if levels and rows_of_tile(hir) == lane_pairs.ROWS:
            self.pairs = lane_pairs.lay_pair_levels(forest, tests, levels)
            self.row_width = lane_pairs.row_width(n_columns)
            self.together = lane_pairs.ROWS
        elif masks_are_cheaper(forest, shape):
            excluded = lane_masks.Exclusions.of(forest)
            self.masks = lane_masks.lay_leaf_masks(
                forest, excluded, tests, ~sets, shape.lanes, shape.dtype
            )
            heads = [lane_masks.set_masks(self.masks, excluded, own) for own in classes]
        else:
            _, levels = cheapest_levels(forest, shape)
            self.top = lane_levels.lay_top_levels(
                forest, tests, levels, shape.lanes, shape.dtype, all_even(forest)
            )
            heads = [lane_levels.set_bits(self.top, own) for own in classes]
            below = (forest.predicate >= 0) & (forest.node_depths() >= levels)
            coded = [own.within_any(forest.predicate[below]) for own in classes]
        first = shape.tables * shape.lanes
        if classes:
            self.categories = category_rows.lay_category_table(
                classes, heads, coded, first, shape.lanes
            )
            for group, chosen, at in zip(
                groups, coded, self.categories.code_index, strict=True
            ):
                place[group.predicates[chosen]] = at + np.arange(len(chosen))
                rank[group.predicates[chosen]] = 0
        top = self.top or self.pairs
        if top is not None:
            tests = lane_levels.RowTests(place, rank)
            self.rest = lane_levels.plan_rest(forest, tests, top.levels, top.below)

    def quantize(self, b: Builder, row: RowAt, model: Model) -> layouts.RowCode:
        code = self.start(b, model)
        code.evaluate(row, b.const(0))
        code.evaluated()
        return code

    def start(self, b: Builder, model: Model) -> layouts.RowCode:
        return _LanesCode(self, model)


class _LanesCode(layouts.RowCode):
    def __init__(self, layout: LanesLayout, model: Model) -> None:
        self._layout, self._model = layout, model
        rules = ReadingRules(layout.forest, layout.comparison, model)
        self._bins = BlockedBins(rules, layout.plan)
        self._size, self._categories = layout.row_width, None
        if layout.categories is not None:
            self._size += int(layout.categories.size.sum())
            self._categories = CategoryRows(rules, layout.categories)
        element, n_rows = layout.shape.element, layout.together
        self._lowering = self._lower()
        self._codes = b.alloc("codes", element, n_rows * self._size)
        self._found = b.alloc("found", element, n_rows * self._lowering.size)

    def _lower(self) -> _Evaluation:
        layout, model = self._layout, self._model
        if layout.pairs is not None:
            return PairLevelsLowering(layout.pairs, model, layout.row_width)
        if layout.masks is not None:
            return LeafMasksLowering(layout.masks, model, self._categories)
        assert layout.top is not None
        first = chooses_first(layout.forest, layout.shape)
        return lane_levels.TopLevelsLowering(
            layout.top, model, self._categories, layout.sets, first
        )

    def _of_row(self, number: Value) -> tuple[Part, Part]:
        codes = self._codes.part(number * self._size)
        return codes, self._found.part(number * self._lowering.row_stride)

    def evaluate(self, row: RowAt, number: Value) -> None:
        shape, lowering = self._layout.shape, self._lowering
        codes, found = self._of_row(number)
        if isinstance(lowering, PairLevelsLowering):
            self._search(row, codes)
            return
        vec = Vec(shape.element, shape.lanes)
        for k in range(shape.tables):
            codes[k * shape.lanes] = b.const(0, vec)
        self._search(row, codes)
        if self._categories is not None:
            self._categories.find(row, codes)
        part = Vec(shape.element, shape.narrow) if shape.narrow else vec
        vectors = [codes[k * shape.lanes, part] for k in range(shape.tables)]
        groups = -(-self._layout.forest.n_trees // shape.lanes)
        if groups == 1:
            lowering.evaluate(b.const(0), vectors, found)
        else:
            with b.loop(groups, hint="group") as group:
                lowering.evaluate(group, vectors, found)

    def evaluated(self) -> None:
        if isinstance(self._lowering, PairLevelsLowering):
            self._lowering.evaluate(*self._of_row(b.const(0)))

    def _search(self, row: RowAt, codes: Part) -> None:
        self._bins.evaluate(row, codes)
        self._convert(row, codes)

    def _convert(self, row: RowAt, codes: Part) -> None:
        layout = self._layout
        first, at = layout.first_whole, layout.n_searched
        count = layout.forest.n_features - first
        last = count & -LANES
        for start, end, lanes in ((0, last, LANES), (last, count, 0)):
            with b.loop(start, end, max(1, lanes)) as i:
                kind = Vec(row.rows.element, lanes) if lanes else row.rows.element
                x = row.rows[row.start + first + i, kind]
                x = b.select(x > -1.0, x, -1.0)  # also of NaN
                x = b.select(x < 254.0, x, 254.0)
                down = x.to(I32)
                up = b.select(x > down.to(row.rows.element), down + 1, down)
                codes[i + at] = (up + 1).to(layout.shape.element)

    def add_trees(self, sums: Buffer, first: Value) -> None:
        self.add_together((b.const(0), sums, first))

    def add_together(self, *sums: tuple[Value, Buffer, Value]) -> None:
        """Add the leaves of all trees, several in flight at a time.

        Adding a group's leaves before evaluating the next group does not help: it waits
        for the numbers just stored (airline: 0.17 us a row, not 0.15).
        """
        rest = self._layout.rest
        n_trees, model = self._layout.forest.n_trees, self._model
        of_rows = [self._of_row(number) for number, *_ in sums]
        forest, ends = self._layout.forest, rest or self._layout.masks
        assert ends is not None
        adds = [
            LaneSums(forest, ends.leaf_of_item, to, at, model) for _, to, at in sums
        ]

        def add(first: Value, count: int, carried: list[Value]) -> list[Value]:
            added: list[Value] = []
            size = len(carried) // len(adds)
            for k, (codes, found) in enumerate(of_rows):
                items = self._lowering.items(first, count, found)
                base: Value | None = None
                if isinstance(rest, lane_levels.CompleteRest) and not rest.levels:
                    base, width = first << rest.top, 1 << rest.top
                    items = [item + n * width for n, item in enumerate(items)]
                elif rest is not None:
                    items = rest.items(first, items, codes, model)
                of_row = carried[k * size : (k + 1) * size]
                added += adds[k].add(first, items, of_row, base)
            return added

        in_flight = lane_levels.IN_FLIGHT if rest is None else rest.in_flight
        in_flight = max(1, in_flight // adds[0].turn) * adds[0].turn
        carried = [value for own in adds for value in own.start()]
        whole = n_trees // in_flight * in_flight
        if whole:
            with b.loop(0, whole, in_flight, carry=carried, hint="tree") as first:
                carried[:] = add(first, in_flight, carried)
        if whole < n_trees:
            carried = add(b.const(whole), n_trees - whole, carried)
        size = len(carried) // len(adds)
        for k, own in enumerate(adds):
            own.finish(carried[k * size : (k + 1) * size])


def rows_of_tile(hir: PredictEnsemble) -> int | None:
    """Return how many rows the loop over single rows has, at most; None: all."""
    loops = every_loop(hir.nest.loops)
    return next(loop.max_trips for loop in loops if loop.has(Quantize))


def pair_levels(forest: Forest, target: Target, n_columns: int) -> int:
    """Return how many levels tiles of rows pass together; 0: rows pass one by one."""
    if not lane_pairs.are_permuted(target, n_columns) or set_groups(forest):
        return 0
    if all_even(forest):
        return 0
    deepest = int(forest.leaf_depths()[1].max(initial=0))
    return min(deepest, lane_pairs.MOST_LEVELS)


def first_whole(forest: Forest) -> int:
    """Return from which column on all thresholds are whole numbers of a byte, or -1.

    One more than a value, rounded up, then is its code: so are CatBoost's statistics.
    They are not searched if they fill a vector and all of them are tested.
    """
    t = forest.threshold
    whole = (t >= -1) & (t < lane_levels.NEVER_RIGHT - 1) & (t == np.floor(t))
    whole &= (forest.comparison == Comparison.LE) & forest.missing_left
    whole &= (forest.missing == Missing.NAN) & np.isnan(forest.missing_value)
    first = int(forest.feature[~whole].max(initial=-1)) + 1
    count = forest.n_features - first
    tested = int((tested_columns(forest) >= first).sum())
    return first if LANES <= count == tested else forest.n_features


def masks_are_cheaper(forest: Forest, shape: LaneShape) -> bool:
    return masks_cost(forest, shape) < cheapest_levels(forest, shape)[0]


def cheapest_levels(forest: Forest, shape: LaneShape) -> tuple[float, int]:
    """Return the approximate instructions of all trees, and the levels in lanes."""
    groups = -(-forest.n_trees // shape.lanes)
    depths = forest.leaf_depths()[1]
    deepest = int(depths.max(initial=0))
    sets = set_groups(forest)
    position = POSITION + shape.look_up + (SET_BIT if sets else 0.0)
    # The depth of the deepest node that tests each set.
    inner = np.flatnonzero(forest.predicate >= 0)
    met = np.zeros(forest.n_predicates, np.int64)
    np.maximum.at(met, forest.predicate[inner], forest.node_depths()[inner])
    met = met[in_groups(forest, sets)]
    bits = 8 * np.dtype(shape.dtype).itemsize
    even, first = all_even(forest), chooses_first(forest, shape)

    def cost(levels: int) -> float:
        hops = float(np.maximum(depths - levels, 0).sum())
        heads = len(sets) * groups * -(-((1 << levels) - 1) // bits)
        coded = int((met >= levels).sum()) / shape.lanes
        tests = groups * position * (levels if even else 1 << levels)
        if first:
            tests = groups * (position * levels + CHOICE * (1 << levels))
        return tests + HOP * hops + READ * (heads + coded)

    most = min(deepest, MOST_EVEN if even else MOST_LEVELS)
    return min((cost(n), n) for n in range(1, max(1, most) + 1))


def chooses_first(forest: Forest, shape: LaneShape) -> bool:
    """Return whether a level looks codes up once and not for each of its positions."""
    several = shape.look_up > 1 or shape.tables > 1
    return several and not all_even(forest) and not set_groups(forest)


def all_even(forest: Forest) -> bool:
    return bool((even_trees(forest) | (forest.tree_depths() == 0)).all())


def masks_cost(forest: Forest, shape: LaneShape) -> float:
    """Return the approximate instructions of all nodes; infinite for large trees."""
    groups = -(-forest.n_trees // shape.lanes)
    sets = set_groups(forest)
    slots = int(leaf_counts(forest).max(initial=1)) - 1
    if slots >= lane_masks.MOST_LEAVES or shape.tables * shape.lanes > lane_levels.BANK:
        return float("inf")
    if sets:
        inner = np.flatnonzero(forest.predicate >= 0)
        inner = inner[~in_groups(forest, sets)[forest.predicate[inner]]]
        tree = np.searchsorted(forest.tree_offset, inner, "right")
        slots = int(np.bincount(tree).max(initial=0))
    planes = lane_masks.mask_planes(forest, 8 * np.dtype(shape.dtype).itemsize)
    cost = slots * (SLOT + shape.look_up + MASK * planes)
    return groups * (cost + READ * len(sets) * planes)


def refusal(forest: Forest) -> str | None:
    if not forest.n_predicates:
        return 'a forest of single leaves; use represent("sparse").'
    columns = code_columns(forest)[1]
    if columns > MOST_COLUMNS:
        return (
            f"{columns} columns of codes, more than {MOST_COLUMNS}; use another "
            "representation."
        )
    return lane_levels.refusal(forest)


def code_columns(forest: Forest) -> tuple[CodeTable, int]:
    """Return the codes that are searched, and the number of all columns of codes."""
    first, sets = first_whole(forest), in_groups(forest, set_groups(forest))
    searched = ~(sets | (forest.feature >= first))
    table = plan_codes(forest, np.uint8, chosen=searched)
    return table, table.n_columns + forest.n_features - first


@dataclass(frozen=True, slots=True)
class LanesCost:
    """What a row costs in lanes; all is infinite if they do not support the forest."""

    search: float  # approximate instructions that find its codes
    tests: float  # approximate instructions of the nodes that are in lanes
    hops: float  # nodes that are walked after these
    size: float  # bytes of all tests
    leaves: float = 0.0  # places of the table of leaves: slots that none has, too
    levels: int = 0  # levels that are not walked

    @classmethod
    def of(cls, forest: Forest, target: Target) -> LanesCost:
        """Count; this lays out nothing."""
        if refusal(forest) is not None or not target.permuted_bytes:
            endless = float("inf")
            return cls(endless, endless, endless, endless)
        shape = lane_shape(target, code_columns(forest)[1])
        search = search_cost(forest, target)
        item = 2.0 * np.dtype(shape.dtype).itemsize * forest.n_trees
        by_levels, levels = cheapest_levels(forest, shape)
        by_masks = masks_cost(forest, shape)
        if by_masks < by_levels:
            slots = 4 * int(leaf_counts(forest).max(initial=1))
            deepest = int(forest.leaf_depths()[1].max(initial=0))
            leaves = slots / 4.0 * forest.n_trees
            return cls(search, by_masks, 0.0, slots * item, leaves, deepest)
        hops = float(np.maximum(forest.leaf_depths()[1] - levels, 0).sum())
        size, leaves = float(1 << levels), float(forest.n_trees << levels)
        size = item * (levels if all_even(forest) else size)
        return cls(search, by_levels - HOP * hops, hops, size, leaves, levels)


def pairs_cost(forest: Forest, target: Target) -> LanesCost | None:
    """Return the cost of rows in tiles: tests are of eight rows, the rest of a row."""
    if refusal(forest) is not None:
        return None
    n_columns = code_columns(forest)[1]
    levels = pair_levels(forest, target, n_columns)
    if not levels:
        return None
    hops = float(np.maximum(forest.leaf_depths()[1] - levels, 0).sum())
    tests, size = lane_pairs.group_cost(n_columns, levels)
    groups = -(-forest.n_trees // lane_pairs.TREES)
    leaves = float(forest.n_trees << levels)
    search = search_cost(forest, target)
    return LanesCost(search, groups * tests, hops, groups * size, leaves, levels)


def search_cost(forest: Forest, target: Target) -> float:
    """Return the approximate instructions that find the codes of a row."""
    table, n_columns = code_columns(forest)
    compares = table.n_columns + int((table.counts > BLOCK).sum())
    # A block of thresholds takes several registers, and more masks to join.
    registers = BLOCK * 8 * forest.threshold.itemsize / target.vector_bits
    lanes = bucket_lanes(target, forest.threshold.itemsize)
    if lanes:  # instructions of a bucket, and of a block
        many = table.counts > lanes
        search = 20.0 * many.sum() + (5 + 5 * registers) * (~many).sum()
    else:
        search = compares * (5 + 5 * registers)
    search += 2 * (n_columns - table.n_columns)
    return search


class Lanes(layouts.RowRepresentation):
    name = "lanes"

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        forest = hir.forest
        item = forest.leaf_value.dtype.itemsize
        return (forest.n_trees << MOST_LEVELS) * 8 + forest.n_nodes * (8 + 6 * item)

    def check(self, hir: PredictEnsemble) -> None:
        self.check_single_nodes(hir)
        refused = refusal(hir.forest)
        if refused is not None:
            self.refuse(f"does not take {refused}")
        super().check(hir)

    def lay_out_rows(self, hir: PredictEnsemble, target: Target) -> LanesLayout:
        return LanesLayout(hir, target)


layouts.register(Lanes())
