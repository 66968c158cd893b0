"""Tiles that compare row values, for more columns than registers hold codes of.

Each node of a tile has a threshold and the place of its value in a row. Values are
loaded one by one, all of a tile before they are compared::

    threshold[2 ** levels]   slot 0 unused; a missing node is never passed
    place[2 ** levels]: u16  slot 0: the nodes at which missing values go right, as bits
    exits, first child, first leaf: as in ``tile_layout.py``

The top levels of a tree are compared for a register of rows at once. The rows of a
block are transposed to columns, and the items behind the exits are selected from the
lowest nodes up::

    item = passed[node] ? item of its right child : item of its left child

If rows have too many features for that, tiles begin at the root. Blocks without missing
values use code that does not test for them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from skforge.compiler.binning.rules import BlockRows, ReadingRules
from skforge.compiler.binning.transpose import ColumnTile, tile_starts
from skforge.compiler.forest.arrays import Comparison, Missing
from skforge.compiler.forest.bins import missing_right, tested_columns
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.lir.nodes import I64, U16, U32, Buffer, Value, Vec
from skforge.compiler.layouts.base import BlockCode
from skforge.compiler.layouts.blocks.block_sums import Tiling
from skforge.compiler.layouts.tiles.tile_layout import (
    LANES,
    TOP_LEVELS,
    TiledTrees,
    TileTests,
)
from skforge.compiler.layouts.tiles.tiled_trees import BlockWalks

#: Above this many features, transposing rows costs more than it saves.
TOP_FEATURES = 1024

#: Places that 16 bits can number.
MAX_FEATURES = 1 << 16


def refusal(forest: Forest) -> str | None:
    if forest.n_features > MAX_FEATURES:
        return f"{forest.n_features} features"
    if bool((forest.comparison > Comparison.LE).any()):
        return "tests for categories"
    kinds = np.flatnonzero(np.bincount(forest.missing))
    if len(kinds) > 1 or bool((kinds == Missing.ZERO).any()):
        return "zeros that count as missing, or several rules for missing values"
    return None


def value_tests(forest: Forest) -> TileTests:
    right = missing_right(forest)
    place = forest.feature.astype(np.uint16)
    top = TOP_LEVELS
    if forest.threshold.itemsize > 4 or len(tested_columns(forest)) > TOP_FEATURES:
        top = 0  # a register holds only half as many rows of float64
    return TileTests(
        place, forest.threshold, float("nan"), top, right if right.any() else None
    )


class ValueWalks(BlockWalks):
    fetches = True

    def __init__(
        self, rules: ReadingRules, tiling: Tiling[TiledTrees], block: int
    ) -> None:
        forest = rules.forest
        used = tested_columns(forest)
        self._starts = tile_starts(used, forest.n_features, tiling.lanes)
        super().__init__(rules, tiling, block)
        never = bool((forest.missing == Missing.NEVER).any())
        self._missing = Missing.NEVER if never else Missing.NAN
        self._gone_right = self._asks = bool(missing_right(forest).any())

    def _declare_top(self) -> None:
        if not self.t.top_levels:
            return
        model = self._model
        place = np.zeros(self.tiling.hir.forest.n_features, np.int64)
        for k, start in enumerate(self._starts):
            columns = slice(start, start + self._lanes)
            place[columns] = k * self._lanes + np.arange(len(place[columns]))
        column = place[self.t.top_column] * self.block
        self.top_column = model("top_value", column.astype(np.uint32).reshape(-1))
        self.top_rank = model("top_threshold", self.t.top_rank.reshape(-1))
        if self.t.top_marked is not None:
            gone = self.t.top_marked.astype(np.uint32).reshape(-1)
            self.top_gone = model("top_gone_right", gone)
        self._column_starts = model("column_starts", np.array(self._starts, np.int64))

    def take(self, rows: BlockRows) -> BlockCode:
        b = self.b
        self._rows, self._last = rows, self._left(rows) - 1
        if not self.t.top_levels:
            return self
        self._seen = b.local("missing_seen", U32)
        self._seen[0] = 0
        scalar, count = rows.rows.element, len(self._starts)
        clean = self._clean_and_note
        columns = ColumnTile(b, scalar, self._lanes, self.block, clean, count)
        columns.fill_all(rows, self._column_starts)
        self._columns = columns.buffer
        self._any_missing = self._seen[0].ne(0)
        return self

    def _walk_tree(self, tree: Value) -> None:
        def walk(asks: bool) -> None:
            self._asks = asks
            self._walk(tree, self.n)

        if self.t.top_levels and self._gone_right:
            self.b.if_(self._any_missing, lambda: walk(True), lambda: walk(False))
        else:
            walk(self._gone_right)

    def _clean_and_note(self, x: Value) -> Value:
        b = self.b
        if self._gone_right:
            nan = b.is_nan(x)
            bits = b.mask_bits(nan, U32) if x.type.lanes else nan.to(U32)
            self._seen[0] = self._seen[0] | bits
        return self._rules.nan_if_missing(x, self._missing)

    def _behind_top(self, tree: Value) -> Callable[[Value, Value], Value]:
        b, levels = self.b, self.t.top_levels
        first = tree * (self.t.top_column.shape[1] * LANES)
        exits = tree * (1 << levels)

        def splat(buffer: Buffer, at: Value) -> Value:
            return b.splat(buffer[at], self._lanes)

        def behind(r: Value, heap: int) -> Value:
            if heap >= 1 << levels:
                return splat(self.top_item, exits + (heap - (1 << levels)))
            left, right = behind(r, 2 * heap), behind(r, 2 * heap + 1)
            at = first + heap
            place = self.top_column[at].to(I64) + r
            element = self._columns.element
            x = self._columns[place, Vec(element, self._lanes)]
            passed = self._rules.goes_right(x, splat(self.top_rank, at))
            if self._asks:
                passed = passed | splat(self.top_gone, at).ne(0) & b.is_nan(x)
            return b.select(passed, right, left)

        return lambda r, row: behind(r, 1)

    def _passed(self, tile: Value, row: Value) -> Value:
        b, t, rows, slots = self.b, self.t, self._rows, 1 << self.t.levels
        start = (rows.first + row.min(self._last)) * rows.stride
        places = [
            self.tiles[tile + (t.column_at + 2 * k), U16] for k in range(1, slots)
        ]
        values = [rows.rows[start + place.to(I64)] for place in places]
        x = b.pack([values[0], *values])  # slot 0 is unused
        x = self._rules.nan_if_missing(x, self._missing)
        threshold = self.tiles[tile, Vec(rows.rows.element, slots)]
        bits = b.mask_bits(self._rules.goes_right(x, threshold), U16)
        if self._asks:
            right = self.tiles[tile + t.column_at, U16]
            bits = bits | b.mask_bits(b.is_nan(x), U16) & right
        return bits
