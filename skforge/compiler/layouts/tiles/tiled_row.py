"""Passes one row through all trees of tiles, sixteen trees decoded at a time.

``tiled_trees.py`` walks the rows of a block through one tree; this module walks one row
through the trees of a forest. The lists hold trees, the row's codes stay in registers,
and the tiles at one depth are read one after another, so that their cache misses
overlap. A single walk waits for a cache line at each hop; here a row waits as often as
its longest walk has tiles. Leaves are recorded by tree and then added in model order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from skforge.compiler.binning.buckets import BucketBins, CodePlaces
from skforge.compiler.binning.rows import BlockRows, Model, RowAt
from skforge.compiler.binning.rules import Rules
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I32, I64, U8, U16, U32, Buffer, Value, Vec
from skforge.compiler.layouts.base import RowCode, RowLayout
from skforge.compiler.layouts.tiles.tile_layout import LANES, TiledTrees
from skforge.compiler.layouts.tiles.tile_leaves import LeafTable, add_vector
from skforge.compiler.layouts.tiles.tiled_trees import (
    GROUP,
    UNROLL,
    FetchingLowering,
)
from skforge.compiler.target import Target


class TreeLowering(FetchingLowering):
    """Emits the walks of one row; its rows are ``block`` trees, a multiple of 16."""

    def __init__(
        self,
        b: Builder,
        trees: TiledTrees,
        width: int,
        lanes: int,
        model: Model,
    ) -> None:
        n = -(-len(trees.top_item) // GROUP) * GROUP
        super().__init__(b, trees, width, n, lanes, model)
        # Pad to a multiple of 16 trees with single leaves, which are never read.
        spare = n - len(trees.top_item)
        column = np.pad(trees.top_column.reshape(n - spare, -1), [(0, spare), (0, 0)])
        self.top_column = model("row_top_column", column.astype(np.uint8).reshape(-1))
        rank = np.pad(trees.top_rank.reshape(n - spare, -1), [(0, spare), (0, 0)])
        self.top_rank = model("row_top_rank", rank.reshape(-1))
        item = np.pad(trees.top_item, [(0, spare), (0, 0)], constant_values=1)
        self.top_item = model("row_top_item", item.reshape(-1))
        offset = np.pad(trees.leaf_offset, (0, spare))
        self.leaf_offset = model("row_leaf_offset", offset)

    def walk_row(self, codes: Buffer, copies: int) -> None:
        """Walk one row with one or two copies of its codes."""
        b = self.b
        own = range(0, copies * self.width, LANES)
        self._values = [b.load(codes, b.const(k), Vec(U16, LANES)) for k in own]
        self.walk(b.const(0), codes, copies, b.const(self.block))

    def _row(self, codes: Buffer, at: Value) -> list[Value]:
        return self._values

    def _compare_top(self, tree: Value, codes: Buffer, n: Value) -> None:
        b, vec = self.b, Vec(U16, LANES)
        registers = self.t.top_column.shape[1]

        def trees(t: Value, _: tuple[Value, ...]) -> None:
            for u in range(UNROLL):
                own = b.mul(b.add(t, u), registers * LANES)
                for k in range(registers):
                    at = b.add(own, k * LANES)
                    column = b.load(self.top_column, at, Vec(U8, LANES))
                    code = b.permute(self._values, b.convert(column, U16))
                    passed = b.compare("gt", code, b.load(self.top_rank, at, vec))
                    to = b.add(t, u + k * self.block)
                    b.store(self.top_bits, to, b.mask_bits(passed, U32))

        b.for_(b.const(0), n, b.const(UNROLL), trees, hint="tree")

    def _top_items(self, tree: Value) -> Callable[[Value, Value], Value]:
        b = self.b

        def found(of_tree: Value, exit_: Value) -> Value:
            at = b.binary("shl", of_tree, self.t.top_levels)
            at = b.binary("add", at, exit_)
            return b.load(self.top_item, b.bitcast(at, I32))

        return found

    def _tile(self, row: Value, number: Value, first: Value) -> Value:
        b = self.b
        own = b.load(self.tile_offset, row)
        return b.binary("add", b.mul(number, self.t.stride), own)


class RowTiles(RowLayout):
    """One forest for one target, one row at a time."""

    def __init__(
        self,
        hir: PredictEnsemble,
        target: Target,
        codes: CodePlaces,
        trees: TiledTrees,
        leaves: LeafTable,
    ) -> None:
        self.hir, self.codes, self.trees, self.leaves = hir, codes, trees, leaves
        row_bits = 8 * hir.forest.input_dtype.itemsize
        self._lanes = max(2, target.vector_bits // row_bits)
        self.entry_lanes = target.vector_bits // 32

    def quantize(self, b: Builder, row: RowAt, model: Model) -> RowCode:
        """Compute the row's codes."""
        places, forest = self.codes, self.hir.forest
        size = b.const(places.width * places.copies)
        codes = b.alloc("codes", U16, size, alignment=64)
        one = b.const(1)
        rows = BlockRows(row.rows, one, one, row.start, forest.n_features)
        rules = Rules(b, forest, self.hir.comparison, model)
        search = BucketBins(rules, places, self._lanes)
        missing = search.encode(rows, one, codes, 1)
        return _RowCode(self, b, model, codes, missing)


@dataclass(frozen=True, slots=True, eq=False)
class _RowCode(RowCode):
    """Emits the evaluation of all trees from the codes of one row."""

    layout: RowTiles
    b: Builder
    model: Model
    codes: Buffer
    missing: Value  # whether any value of the row is missing

    def add_trees(self, sums: Buffer, at: Value) -> None:
        """Walk all trees, then add their leaves."""
        b, layout = self.b, self.layout
        trees = TreeLowering(
            b, layout.trees, layout.codes.width, layout.entry_lanes, self.model
        )
        trees.scratch()
        if layout.codes.copies == 1:
            trees.walk_row(self.codes, 1)
        else:
            b.if_(
                self.missing,
                lambda: trees.walk_row(self.codes, 2),
                lambda: trees.walk_row(self.codes, 1),
            )
        table = layout.leaves
        values = self.model("leaf_values", table.values.reshape(-1))
        read = values
        if table.index is not None:
            read = self.model("leaf_index", table.index)
        reached = b.alloc("reached", I64, b.const(trees.block), alignment=64)

        def note(tree: Value, leaf: Value) -> None:
            place = b.binary("add", b.load(trees.leaf_offset, tree), leaf)
            b.store(reached, tree, place)
            b.prefetch(read, place)

        def noted(j: Value, _: tuple[Value, ...]) -> None:
            for u in range(UNROLL):
                note(*trees.parts(b.load(trees.done, b.add(j, u))))

        b.for_(b.const(0), b.const(trees.block), b.const(UNROLL), noted, hint="done")
        self._add_leaves(reached, read, values, sums, at)

    def _add_leaves(
        self, reached: Buffer, read: Buffer, values: Buffer, sums: Buffer, at: Value
    ) -> None:
        b, leaves = self.b, self.layout.leaves
        forest, kind = self.layout.hir.forest, leaves.kind
        zero, one, end = b.const(0), b.const(1), b.const(forest.n_trees)

        def increase(place: Value, value: Value) -> None:
            b.store(sums, place, b.binary("add", b.load(sums, place), value))

        if kind == "number" and forest.n_outputs == 1:

            def next_(tree: Value, carried: tuple[Value, ...]) -> list[Value]:
                value = b.load(values, b.load(reached, tree))
                return [b.binary("add", carried[0], value)]

            (sum_,) = b.for_(zero, end, one, next_, [b.load(sums, at)], hint="tree")
            b.store(sums, at, sum_)
            return
        outputs = self.model("tree_outputs", forest.tree_output)
        height = b.const(float(leaves.values.flat[0]), sums.element)

        def add(tree: Value, _: tuple[Value, ...]) -> None:
            found = b.load(read, b.load(reached, tree))
            match kind:
                case "number":
                    output = b.convert(b.load(outputs, tree), I64)
                    increase(b.binary("add", at, output), found)
                case "class":
                    increase(b.binary("add", at, b.convert(found, I64)), height)
                case "vector":
                    width = leaves.width
                    own = b.mul(b.convert(found, I64), width)
                    add_vector(b, sums, at, values, own, width)

        b.for_(zero, end, one, add, hint="tree")
