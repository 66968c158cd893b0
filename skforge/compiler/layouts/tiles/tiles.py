"""The representation of deep forests: sparse tiles of codes, for blocks of rows.

It lowers whole traversals of a block of rows: rows are quantised to codes, then passed
through tiles (``tile_layout.py``) tree by tree (``tiled_trees.py``); ``tile_leaves.py``
stores the leaves. Under a vectorised loop over trees, one row passes all of them
(``tiled_row.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from skforge.compiler.binning.buckets import BucketBins, CodePlaces
from skforge.compiler.binning.rows import BlockRows, Model
from skforge.compiler.binning.rules import Rules
from skforge.compiler.forest.bins import CodeTable, plan_codes
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I64, U16, Buffer, Value, Vec
from skforge.compiler.layouts.base import (
    BlockCode,
    BlockLayout,
    BlockRepresentation,
    RowLayout,
    RowRepresentation,
    register,
)
from skforge.compiler.layouts.tiles.tile_layout import (
    FEWEST_ROW_BITS,
    LANES,
    MAX_LEAVES,
    TOP_LEVELS,
    TiledTrees,
    TileTests,
    most_leaves,
    needs_wide,
    row_bits,
    tile_bytes,
    tile_roots,
    tile_trees,
)
from skforge.compiler.layouts.tiles.tile_leaves import LeafTable, add_vector, leaf_table
from skforge.compiler.layouts.tiles.tiled_row import RowTiles
from skforge.compiler.layouts.tiles.tiled_trees import GROUP, TileLowering
from skforge.compiler.layouts.tiles.tiled_values import (
    ValueLowering,
    refusal,
    value_tests,
)
from skforge.compiler.schedule.bound import marked, vectorizes_trees
from skforge.compiler.schedule.directives import CachePredicates
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError

#: Most columns of codes: a byte numbers the columns of two copies.
MAX_COLUMNS = 4 * LANES

#: Most trees that one row passes at once: the bits of an entry beside the tile or leaf
#: of the largest trees number them.
MAX_TREES = 1 << FEWEST_ROW_BITS

#: Supported sizes of tiles, and their levels.
LEVELS = {7: 3, 15: 4}


def tiles_of(hir: PredictEnsemble) -> tuple[CodePlaces, TiledTrees, LeafTable]:
    """Return a forest as tiles of codes, laid out once for all its kernels."""
    levels = LEVELS[hir.nest.tile_nodes]
    key = ("tiles", levels)
    if key not in hir.shared:
        assert hir.codes is not None
        codes = CodePlaces.of(hir.forest, hir.codes, LANES)
        trees = tile_trees(hir.tiles, TileTests.of_codes(codes), levels)
        leaves = leaf_table(hir.forest, trees.leaf_row)
        hir.shared[key] = (codes, trees, leaves)
    made: tuple[CodePlaces, TiledTrees, LeafTable] = hir.shared[key]
    return made


def value_tiles_of(hir: PredictEnsemble) -> tuple[TiledTrees, LeafTable]:
    """Return a forest as tiles of values, laid out once for all its kernels."""
    levels = LEVELS[hir.nest.tile_nodes]
    key = ("value tiles", levels)
    if key not in hir.shared:
        trees = tile_trees(hir.tiles, value_tests(hir.forest), levels)
        hir.shared[key] = (trees, leaf_table(hir.forest, trees.leaf_row))
    made: tuple[TiledTrees, LeafTable] = hir.shared[key]
    return made


class TileLayout(BlockLayout):
    """One forest for one target and block size, comparing codes."""

    def __init__(self, hir: PredictEnsemble, target: Target, block: int) -> None:
        self._hir, self._block = hir, block
        row_bits = 8 * hir.forest.input_dtype.itemsize
        self._lanes = max(2, target.vector_bits // row_bits)
        self._entry_lanes = target.vector_bits // 32
        self._codes, self._trees, self._leaves = tiles_of(hir)

    def evaluate(self, b: Builder, rows: BlockRows, model: Model) -> BlockCode:
        """Quantise the rows of a block to codes."""
        hir, block, places = self._hir, self._block, self._codes
        width = places.width
        walks = TileLowering(b, self._trees, width, block, self._entry_lanes, model)
        walks.scratch()
        size = b.const(block * width * places.copies)
        codes = b.alloc("codes", U16, size, alignment=64)
        left = b.binary("min", b.sub(rows.n_rows, rows.first), block)
        n = _whole_groups(b, left)
        rules = Rules(b, hir.forest, hir.comparison, model)
        search = BucketBins(rules, places, self._lanes)
        missing = search.encode(rows, left, codes, block)

        def walk(tree: Value) -> None:
            if places.copies == 1:
                walks.walk(tree, codes, 1, n)
                return
            b.if_(
                missing,
                lambda: walks.walk(tree, codes, 2, n),
                lambda: walks.walk(tree, codes, 1, n),
            )

        return _TileCode(b, model, hir, block, self._leaves, walks, walk, n)


class ValueTileLayout(BlockLayout):
    """One forest for one target and block size, comparing row values."""

    def __init__(self, hir: PredictEnsemble, target: Target, block: int) -> None:
        self._hir, self._block = hir, block
        self._entry_lanes = target.vector_bits // 32
        self._trees, self._leaves = value_tiles_of(hir)

    def evaluate(self, b: Builder, rows: BlockRows, model: Model) -> BlockCode:
        """Prepare the rows of a block without quantising them."""
        hir, block = self._hir, self._block
        walks = ValueLowering(
            b,
            self._trees,
            hir.forest,
            hir.comparison,
            block,
            self._entry_lanes,
            model,
        )
        walks.scratch()
        left = b.binary("min", b.sub(rows.n_rows, rows.first), block)
        walks.take(rows, left)
        n = _whole_groups(b, left)

        def walk(tree: Value) -> None:
            walks.walk_block(tree, rows.rows, n)

        return _TileCode(b, model, hir, block, self._leaves, walks, walk, n)


def _whole_groups(b: Builder, left: Value) -> Value:
    """Round a number of rows up to whole groups; padding rows are never read."""
    return b.mul(b.binary("div", b.add(left, GROUP - 1), GROUP), GROUP)


@dataclass(frozen=True, slots=True, eq=False)
class _TileCode(BlockCode):
    """Emits the sums of one block of rows."""

    b: Builder
    model: Model
    hir: PredictEnsemble
    block: int
    leaves: LeafTable
    walks: TileLowering
    walk: Callable[[Value], None]  # emits the walks of all rows in a tree
    n: Value  # rows of the block, rounded up to whole groups

    @property
    def _by_row(self) -> bool:
        """Whether a row's sums are adjacent, because leaves add to several of them."""
        return self.hir.forest.vector_leaves

    def start(self, sums: Buffer) -> None:
        """Set the sums of every row to the base."""
        b, outputs = self.b, self.hir.forest.n_outputs
        base = self.model("base", self.hir.forest.base)
        per_row, per_output = (outputs, 1) if self._by_row else (1, self.block)

        def output(k: Value, _: tuple[Value, ...]) -> None:
            value = b.load(base, k)
            own = b.mul(k, per_output)

            def row(r: Value, _: tuple[Value, ...]) -> None:
                b.store(sums, b.binary("add", own, b.mul(r, per_row)), value)

            b.for_(b.const(0), self.n, b.const(1), row, hint="row")

        b.for_(b.const(0), b.const(outputs), b.const(1), output, hint="output")

    def add_tree(self, tree: Value, sums: Buffer) -> None:
        """Add the leaves that the block's rows reach in one tree."""
        self.walk(tree)
        first = self.b.load(self.walks.leaf_offset, tree)
        match self.leaves.kind:
            case "number":
                self._add_numbers(tree, first, sums)
            case "class":
                self._add_classes(tree, first, sums)
            case "vector":
                self._add_vectors(tree, first, sums)

    def _add_numbers(self, tree: Value, first: Value, sums: Buffer) -> None:
        b, forest = self.b, self.hir.forest
        values = self.model("leaf_values", self.leaves.values)
        own: Value = b.const(0)
        if forest.n_outputs > 1:
            of_tree = forest.tree_output[self.hir.tiles.tree_order]
            output = b.load(self.model("tree_outputs", of_tree), tree)
            own = b.mul(b.convert(output, I64), self.block)

        def add(row: Value, leaf: Value) -> None:
            at = b.binary("add", own, row) if forest.n_outputs > 1 else row
            value = b.load(values, b.binary("add", first, leaf))
            b.store(sums, at, b.binary("add", b.load(sums, at), value))

        self.walks.each_done(tree, self.n, values, add)

    def _index(self) -> Buffer:
        assert self.leaves.index is not None
        return self.model("leaf_index", self.leaves.index)

    def _add_classes(self, tree: Value, first: Value, sums: Buffer) -> None:
        b, outputs = self.b, self.hir.forest.n_outputs
        index = self._index()
        height = b.const(float(self.leaves.values[0]), sums.element)

        def add(row: Value, leaf: Value) -> None:
            own = b.convert(b.load(index, b.binary("add", first, leaf)), I64)
            at = b.binary("add", b.mul(row, outputs), own)
            b.store(sums, at, b.binary("add", b.load(sums, at), height))

        self.walks.each_done(tree, self.n, index, add)

    def _add_vectors(self, tree: Value, first: Value, sums: Buffer) -> None:
        b, width = self.b, self.leaves.width
        values = self.model("leaf_values", self.leaves.values.reshape(-1))
        index = self._index()

        def add(row: Value, leaf: Value) -> None:
            number = b.load(index, b.binary("add", first, leaf))
            own = b.mul(b.convert(number, I64), width)
            add_vector(b, sums, b.mul(row, width), values, own, width)

        self.walks.each_done(tree, self.n, index, add)

    def finish(self, sums: Buffer, result: Buffer, first: Value, count: Value) -> None:
        """Write the sums of the block's first ``count`` rows to the result."""
        b, outputs = self.b, self.hir.forest.n_outputs
        to = b.mul(first, outputs)
        if self._by_row or outputs == 1:
            n = b.mul(count, outputs)
            lanes = 8
            whole = b.mul(b.binary("div", n, lanes), lanes)

            def some(i: Value, _: tuple[Value, ...]) -> None:
                values = b.load(sums, i, Vec(sums.element, lanes))
                b.store(result, b.binary("add", to, i), values)

            def one(i: Value, _: tuple[Value, ...]) -> None:
                b.store(result, b.binary("add", to, i), b.load(sums, i))

            b.for_(b.const(0), whole, b.const(lanes), some, hint="sum")
            b.for_(whole, n, b.const(1), one, hint="sum")
            return

        def output(k: Value, _: tuple[Value, ...]) -> None:
            own, target = b.mul(k, self.block), b.binary("add", to, k)

            def row(r: Value, _: tuple[Value, ...]) -> None:
                value = b.load(sums, b.binary("add", own, r))
                at = b.binary("add", target, b.mul(r, outputs))
                b.store(result, at, value)

            b.for_(b.const(0), count, b.const(1), row, hint="row")

        b.for_(b.const(0), b.const(outputs), b.const(1), output, hint="output")


class Tiles(BlockRepresentation, RowRepresentation):
    """``represent("tiles")``."""

    name = "tiles"
    has_complete_tiles = True
    takes_values = True
    row_group = GROUP
    byte_limit = 1 << 36

    @staticmethod
    def plan_codes(forest: Forest) -> CodeTable:
        """Return codes whose columns mix both rules for missing values."""
        return plan_codes(forest, np.uint16, merge_missing=True)

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        """Return the approximate bytes of tiles, tops and leaves."""
        forest = hir.forest
        levels = LEVELS[hir.nest.tile_nodes]
        top, slot = TOP_LEVELS, 3
        if hir.codes is None:
            top, slot = 0, 2 + forest.threshold.itemsize
        n_tiles = int(tile_roots(hir.tiles, levels, top).sum())
        tops = 3 * 4 * (1 << top) * forest.n_trees
        width = min(4, forest.n_outputs) * forest.leaf_value.itemsize
        leaves = forest.n_nodes // 2 * width
        return n_tiles * tile_bytes(levels, needs_wide(hir.tiles), slot) + tops + leaves

    def check(self, hir: PredictEnsemble) -> None:
        """Raise for forests and schedules that tiles of codes cannot express."""
        nest = hir.nest
        if nest.tile_kind != "complete" or nest.tile_nodes not in LEVELS:
            raise ScheduleError(
                'represent("tiles") needs tile_nodes(7, "complete") or '
                'tile_nodes(15, "complete").'
            )
        if hir.reduction == "reproducible":
            raise ScheduleError(
                'represent("tiles") sums floats in model order; use '
                'reduction="exact" or another representation.'
            )
        if bool(((hir.tiles.leaf < 0) & (hir.tiles.predicate[:, 0] < 0)).any()):
            raise ScheduleError(
                'represent("tiles") ends a walk at its leaf; leave out pad_trees and '
                "unroll_walk."
            )
        if hir.codes is not None:
            _check_codes(hir.codes.n_columns)
        else:
            _check_values(hir)
        most = most_leaves(hir.tiles)
        if most > MAX_LEAVES:
            raise ScheduleError(
                f'represent("tiles") numbers at most {MAX_LEAVES} leaves of a tree; '
                f"one has {most}. Use another representation."
            )
        if vectorizes_trees(nest.loops) and hir.forest.n_trees > MAX_TREES:
            raise ScheduleError(
                f'represent("tiles") takes a row through at most {MAX_TREES} trees at '
                f"once, and this forest has {hir.forest.n_trees}; use blocks of rows."
            )
        super().check(hir)

    def check_block(self, hir: PredictEnsemble, block: int) -> None:
        """Raise if blocks are not whole groups, or exceed the rows of an entry."""
        most = 1 << row_bits(hir.tiles)
        if block % GROUP or block > most:
            raise ScheduleError(
                f'represent("tiles") takes blocks of a multiple of {GROUP} rows, at '
                f"most {most}; this schedule has blocks of {block}."
            )

    def lay_out_blocks(
        self, hir: PredictEnsemble, target: Target, block: int
    ) -> BlockLayout:
        """Lay out codes, tiles and leaves for blocks of ``block`` rows."""
        if hir.codes is None:
            return ValueTileLayout(hir, target, block)
        return TileLayout(hir, target, block)

    def lay_out_rows(self, hir: PredictEnsemble, target: Target) -> RowLayout:
        """Lay out codes, tiles and leaves for one row at a time."""
        return RowTiles(hir, target, *tiles_of(hir))


def _check_codes(columns: int) -> None:
    if not columns:
        raise ScheduleError(
            'represent("tiles") compares codes, and this forest of single leaves '
            'has none; use represent("sparse").'
        )
    if columns > MAX_COLUMNS:
        raise ScheduleError(
            f'represent("tiles") holds a row of at most {MAX_COLUMNS} codes in '
            f"registers, and this forest has {columns}; leave quantize out, or use "
            "another representation."
        )


def _check_values(hir: PredictEnsemble) -> None:
    if marked(hir.nest.loops, CachePredicates):
        raise ScheduleError(
            'represent("tiles") compares codes or values of rows; mark the loop over '
            "blocks of rows with quantize, or not at all, but not with "
            "cache_predicates."
        )
    reason = refusal(hir.forest)
    if reason is not None:
        raise ScheduleError(
            'represent("tiles") compares values of rows where they are not quantised, '
            f"which this forest does not allow: it has {reason}."
        )


register(Tiles())
