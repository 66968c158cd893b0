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

from skforge.compiler.binning.rows import BlockRows, Model, RowAt
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I32, I64, U8, U16, U32, Buffer, Value, Vec
from skforge.compiler.layouts.base import RowCode, RowLayout
from skforge.compiler.layouts.tiles.tile_layout import LANES
from skforge.compiler.layouts.tiles.tile_leaves import LeafSums
from skforge.compiler.layouts.tiles.tiled_trees import GROUP, UNROLL, TileWalks, Tiling


class RowWalks(TileWalks, RowCode):
    """Emits the walks of one row; its rows are ``block`` trees, a multiple of 16."""

    fetches = True

    def __init__(
        self, b: Builder, tiling: Tiling, encoded: tuple[Buffer, Value], model: Model
    ) -> None:
        trees = tiling.trees
        n = -(-len(trees.top_item) // GROUP) * GROUP
        super().__init__(b, tiling, n, model)
        self._encoded = encoded
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

    def _load_codes(self, codes: Buffer, copies: int) -> None:
        b, own = self.b, range(0, copies * self.width, LANES)
        self._values = [b.load(codes, b.const(k), Vec(U16, LANES)) for k in own]

    def _row(self, row: Value) -> list[Value]:
        return self._values

    def _compare_top(self, tree: Value, n: Value) -> None:
        b, vec = self.b, Vec(U16, LANES)
        registers = self.t.top_column.shape[1]
        with b.loop(0, n, UNROLL, hint="tree") as t:
            for u in range(UNROLL):
                own = b.mul(b.add(t, u), registers * LANES)
                for k in range(registers):
                    at = b.add(own, k * LANES)
                    column = b.load(self.top_column, at, Vec(U8, LANES))
                    code = b.permute(self._values, b.convert(column, U16))
                    passed = b.compare("gt", code, b.load(self.top_rank, at, vec))
                    to = b.add(t, u + k * self.block)
                    b.store(self.top_bits, to, b.mask_bits(passed, U32))

    def _top_items(self, tree: Value) -> Callable[[Value, Value], Value]:
        b = self.b

        def found(of_tree: Value, exit_: Value) -> Value:
            at = b.binary("shl", of_tree, self.t.top_levels)
            at = b.add(at, exit_)
            return b.load(self.top_item, b.bitcast(at, I32))

        return found

    def _tile(self, row: Value, number: Value, first: Value) -> Value:
        b = self.b
        own = b.load(self.tile_offset, row)
        return b.add(b.mul(number, self.t.stride), own)

    def add_trees(self, sums: Buffer, at: Value) -> None:
        """Walk all trees, then add their leaves."""
        b = self.b
        self.walk_codes(b.const(0), *self._encoded, b.const(self.block))
        leaves = LeafSums(b, self.tiling.leaves, self._model)
        reached = b.alloc("reached", I64, b.const(self.block), alignment=64)

        def note(tree: Value, leaf: Value) -> None:
            place = b.add(b.load(self.leaf_offset, tree), leaf)
            b.store(reached, tree, place)
            b.prefetch(leaves.read, place)

        self.each_done(b.const(self.block), note, lambda j: None)
        self._add_leaves(reached, leaves, sums, at)

    def _add_leaves(
        self, reached: Buffer, leaves: LeafSums, sums: Buffer, at: Value
    ) -> None:
        b, forest = self.b, self.tiling.hir.forest
        number = self.tiling.leaves.kind == "number"
        n = forest.n_trees
        if number and forest.n_outputs == 1:

            def next_(tree: Value, carried: tuple[Value, ...]) -> list[Value]:
                value = b.load(leaves.read, b.load(reached, tree))
                return [b.add(carried[0], value)]

            (sum_,) = b.for_(0, n, 1, next_, [b.load(sums, at)], hint="tree")
            b.store(sums, at, sum_)
            return
        outputs = self._model("tree_outputs", forest.tree_output)
        with b.loop(n, hint="tree") as tree:
            found, to = b.load(leaves.read, b.load(reached, tree)), at
            if number:
                to = b.add(at, b.convert(b.load(outputs, tree), I64))
            leaves.add(sums, to, found)


@dataclass(frozen=True, slots=True, eq=False)
class RowTiles(RowLayout):
    """One forest for one target, one row at a time."""

    tiling: Tiling

    def quantize(self, b: Builder, row: RowAt, model: Model) -> RowCode:
        """Compute the row's codes."""
        one, n_features = b.const(1), self.tiling.hir.forest.n_features
        rows = BlockRows(row.rows, one, one, row.start, n_features)
        return RowWalks(
            b, self.tiling, self.tiling.encode(b, rows, one, 1, model), model
        )
