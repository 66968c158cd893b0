"""How rows meet tiles: as codes of a block or of one row, or as values of a block."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial

import numpy as np

from skforge._typing import Array
from skforge.compiler.binning.buckets import ROW_REGISTERS
from skforge.compiler.binning.rules import BlockRows, RowAt
from skforge.compiler.binning.transpose import ColumnTile, tile_starts
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I32, I64, U8, U16, U32, Buffer, Value, Vec
from skforge.compiler.layouts.blocks.block_sums import GROUP
from skforge.compiler.layouts.tiles.tile_layout import LANES, TileTests
from skforge.compiler.layouts.tiles.tiled_trees import UNROLL, TileRows, TileWalks
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.bins import missing_right, tested_columns
from skforge.forest.forest import Forest

#: Bytes of a tree's tiles of codes from which they are prefetched without AVX-512
#: (blocks of 512 rows: trees of 3.5 kB take 1.03 of the time, 8 kB .98, 16 kB .91,
#: 50 kB .79).
FETCHED_TREE = 1 << 13


class Codes(TileRows):
    """Both copies of codes are read only if a value is missing."""

    encoded: tuple[Buffer, Value]

    def __init__(self, walks: TileWalks) -> None:
        super().__init__(walks)
        model, trees = walks.model, walks.t
        assert walks.tiling.codes is not None
        self.places = walks.tiling.codes
        self.top_column = model("top_column", trees.top_column.reshape(-1))
        self.top_rank = model("top_rank", trees.top_rank.reshape(-1))
        if trees.top_marked is not None:
            self.top_equal = model("top_equal", trees.marked_bits.reshape(-1))
        self.registers = trees.top_column.shape[1]  # of codes that the top compares
        self.vec = Vec(U16, min(LANES, walks.width))  # codes in a register

    @abstractmethod
    def load(self, codes: Buffer, copies: int) -> Callable[[Value], list[Value]]:
        """Return what returns a row's registers of codes."""

    def each_way(self, walk: Callable[[], None]) -> None:
        codes, missing = self.encoded

        def of_copies(copies: int) -> None:
            self.codes_of = self.load(codes, copies)
            self.permute = partial(b.permute, within=copies == self.places.copies)
            walk()

        self.walks.tiling.by_copies(missing, of_copies)

    def right(self, code: Value, rank: Value, equal: Value | None) -> Value:
        bits = U32 if code.type.lanes == LANES else U16
        if self.places.most < 1 << 15:  # AVX2 compares signed words faster
            code, rank = b.bitcast(code, lir.I16), b.bitcast(rank, lir.I16)
        passed = b.mask_bits(code > rank, bits)
        if equal is None:
            return passed
        return passed | b.mask_bits(code < rank, bits) & equal

    def behind_top(
        self, item: Callable[[Value, Value], Value]
    ) -> Callable[[Value, Value], Value]:
        walks, levels = self.walks, self.t.top_levels

        def behind(r: Value, row: Value) -> Value:
            heap = b.const(1, walks.entries)
            bits = walks.top_bits[r, walks.entries]
            for _ in range(min(levels, 5)):
                heap = walks.turn(heap, bits, heap)
            if levels == 6:
                bits = walks.top_bits[r + walks.block, walks.entries]
                heap = walks.turn(heap, bits, heap - 32)
            return item(row, heap - (1 << levels))

        return behind

    def passed(self, tile: Value, row: Value) -> Value:
        tiles, t, slots = self.walks.tiles, self.t, 1 << self.t.levels
        column = tiles[tile + t.column_at, Vec(U8, slots)]
        rank = tiles[tile, Vec(U16, slots)]
        code = self.permute(self.codes_of(row), column.to(U16))
        equal = None
        if t.top_marked is not None:  # in slot 0, whose own bit is not read
            equal = tiles[tile, U16]
        return self.right(code, rank, equal)


class CodesOfBlock(Codes):
    def __init__(self, walks: TileWalks) -> None:
        super().__init__(walks)
        # A CPU looks ahead by itself, except where tiles take many instructions.
        size = self.t.tiles.nbytes / len(self.t.tile_offset)
        if walks.lanes < GROUP and size >= FETCHED_TREE:
            self.fetches = "ahead"

    def take(self, rows: BlockRows, left: Value) -> None:
        walks = self.walks
        self.encoded = walks.tiling.encode(walks.rules, rows, left, walks.block)

    def load(self, codes: Buffer, copies: int) -> Callable[[Value], list[Value]]:
        width, vec = self.walks.width, self.vec
        size, places = self.walks.block * width, range(0, width, LANES)
        registers = [copy * size + at for copy in range(copies) for at in places]
        return lambda row: [codes[row * width + k, vec] for k in registers]

    def compare_top(self, tree: Value, n: Value) -> Callable[[Value, Value], Value]:
        walks, vec = self.walks, Vec(U16, LANES)
        of_tree = tree * (self.registers * LANES)
        places = [of_tree + k * LANES for k in range(self.registers)]
        columns = [self.top_column[at, vec] for at in places]
        ranks = [self.top_rank[at, vec] for at in places]
        equal: list[Value | None] = [None] * self.registers
        if self.t.top_marked is not None:
            first = tree * self.registers
            equal = [self.top_equal[first + k] for k in range(self.registers)]
        with b.loop(0, n, UNROLL, hint="row") as r:
            for u in range(UNROLL):
                row = r + u
                codes = self.codes_of(row)
                for k, column in enumerate(columns):
                    passed = self.right(self.permute(codes, column), ranks[k], equal[k])
                    walks.top_bits[row + k * walks.block] = passed
        exits = 1 << self.t.top_levels
        first = tree * exits
        items = [
            walks.top_item[first + k, walks.entries]
            for k in range(0, exits, walks.lanes)
        ]

        def item(row: Value, exit_: Value) -> Value:
            if walks.lanes == GROUP:
                return b.permute(items, exit_)
            # Registers hold too few of them.
            return walks.top_item[b.bitcast(exit_ + first.to(U32), I32)]

        return self.behind_top(item)


class OfTrees(TileRows):
    """One row: the lists hold trees."""

    fetches = "first"

    def tile(self, tree: Value, number: Value, first: Value) -> Value:
        offset = self.walks.tile_offset[tree]
        return number * self.t.stride + offset

    def padded(self, name: str, of_trees: Array, leaf: int = 0) -> Buffer:
        """Pad to a multiple of 16 trees with single leaves, which are never read."""
        of_trees = of_trees.reshape(len(of_trees), -1)
        spare = [(0, self.walks.block - len(of_trees)), (0, 0)]
        padded = np.pad(of_trees, spare, constant_values=leaf)
        return self.walks.model(f"row_{name}", padded.reshape(-1))


class CodesOfRow(OfTrees, Codes):
    """The codes of one row, which stay in registers."""

    def __init__(self, walks: TileWalks, encoded: tuple[Buffer, Value]) -> None:
        super().__init__(walks)
        self.encoded = encoded

    def load(self, codes: Buffer, copies: int) -> Callable[[Value], list[Value]]:
        places = range(0, copies * self.walks.width, LANES)
        registers = [codes[k, self.vec] for k in places]
        return lambda tree: registers

    def compare_top(self, tree: Value, n: Value) -> Callable[[Value, Value], Value]:
        walks, trees = self.walks, self.t
        columns = self.padded("top_column", trees.top_column.astype(np.uint8))
        ranks = self.padded("top_rank", trees.top_rank)
        if trees.top_marked is not None:
            equals = self.padded("top_equal", trees.marked_bits)
        items = self.padded("top_item", trees.top_item, 1)
        with b.loop(0, n, UNROLL, hint="tree") as t:
            for u in range(UNROLL):
                of_tree = (t + u) * (self.registers * LANES)
                for k in range(self.registers):
                    at = of_tree + k * LANES
                    column = columns[at, Vec(U8, LANES)]
                    code = self.permute(self.codes_of(t), column.to(U16))
                    equal = None
                    if trees.top_marked is not None:
                        equal = equals[(t + u) * self.registers + k]
                    rank = ranks[at, Vec(U16, LANES)]
                    to = t + (u + k * walks.block)
                    walks.top_bits[to] = self.right(code, rank, equal)

        def item(of_tree: Value, exit_: Value) -> Value:
            at = (of_tree << trees.top_levels) + exit_
            return items[b.bitcast(at, I32)]

        return self.behind_top(item)


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


def value_tests(forest: Forest, top: int) -> TileTests:
    right = missing_right(forest)
    place = forest.feature.astype(np.uint16)
    if forest.threshold.itemsize > 4 or len(tested_columns(forest)) > TOP_FEATURES:
        top = 0  # a register holds only half as many rows of float64
    return TileTests(
        place, forest.threshold, float("nan"), top, right if right.any() else None
    )


class ValuesOfBlock(TileRows):
    """The values of a block, which tiles of thresholds compare.

    They are for more columns than registers hold codes of. Each node of a tile has a
    threshold and the place of its value in a row. Values are loaded one by one, all of
    a tile before they are compared::

        threshold[2 ** levels]   slot 0 unused; a missing node is never passed
        place[2 ** levels]: u16  slot 0: the nodes at which missing values go right
        exits, first child, first leaf: as in ``tile_layout.py``

    The top levels of a tree are compared for a register of rows at once. The rows of a
    block are transposed to columns, and the items behind the exits are selected from
    the lowest nodes up::

        item = passed[node] ? item of its right child : item of its left child

    If rows have too many features for that, tiles begin at the root. Blocks without
    missing values use code that does not test for them.
    """

    fetches = "first"

    def __init__(self, walks: TileWalks) -> None:
        super().__init__(walks)
        forest = walks.rules.forest
        never = bool((forest.missing == Missing.NEVER).any())
        self._missing = Missing.NEVER if never else Missing.NAN
        self._gone_right = self._asks = bool(missing_right(forest).any())
        if self.t.top_levels:
            self._declare_top(forest)

    def _declare_top(self, forest: Forest) -> None:
        model, t, lanes = self.walks.model, self.t, self.walks.lanes
        self._starts = tile_starts(tested_columns(forest), forest.n_features, lanes)
        place = np.zeros(forest.n_features, np.int64)
        for k, start in enumerate(self._starts):
            columns = slice(start, start + lanes)
            place[columns] = k * lanes + np.arange(len(place[columns]))
        column = place[t.top_column] * self.walks.block
        self._top_column = model("top_value", column.astype(np.uint32).reshape(-1))
        self._top_rank = model("top_threshold", t.top_rank.reshape(-1))
        if t.top_marked is not None:
            gone = t.top_marked.astype(np.uint32).reshape(-1)
            self._top_gone = model("top_gone_right", gone)
        self._column_starts = model("column_starts", np.array(self._starts, np.int64))

    def take(self, rows: BlockRows, left: Value) -> None:
        walks = self.walks
        self._block, self._rows, self._last = rows, rows.rows, left - 1
        if not self.t.top_levels:
            return
        self._seen = b.local("missing_seen", U32)
        self._seen[0] = 0
        scalar, count = rows.rows.element, len(self._starts)
        clean = self._clean_and_note
        columns = ColumnTile(scalar, walks.lanes, walks.block, clean, count)
        columns.fill(rows, self._column_starts, 0, count, count)
        self._columns = columns.buffer
        self._any_missing = self._seen[0].ne(0)

    def each_way(self, walk: Callable[[], None]) -> None:
        def asking(asks: bool) -> None:
            self._asks = asks
            walk()

        if self.t.top_levels and self._gone_right:
            b.if_(self._any_missing, lambda: asking(True), lambda: asking(False))
        else:
            asking(self._gone_right)

    def _clean_and_note(self, x: Value) -> Value:
        if self._gone_right:
            nan = b.is_nan(x)
            bits = b.mask_bits(nan, U32) if x.type.lanes else nan.to(U32)
            self._seen[0] = self._seen[0] | bits
        return self.walks.rules.nan_if_missing(x, self._missing)

    def compare_top(self, tree: Value, n: Value) -> Callable[[Value, Value], Value]:
        walks, levels = self.walks, self.t.top_levels
        first = tree * (self.t.top_column.shape[1] * LANES)
        exits = tree * (1 << levels)

        def splat(buffer: Buffer, at: Value) -> Value:
            return b.splat(buffer[at], walks.lanes)

        def behind(r: Value, heap: int) -> Value:
            if heap >= 1 << levels:
                return splat(walks.top_item, exits + (heap - (1 << levels)))
            left, right = behind(r, 2 * heap), behind(r, 2 * heap + 1)
            at = first + heap
            place = self._top_column[at].to(I64) + r
            element = self._columns.element
            x = self._columns[place, Vec(element, walks.lanes)]
            passed = walks.rules.goes_right(x, splat(self._top_rank, at))
            if self._asks:
                passed = passed | splat(self._top_gone, at).ne(0) & b.is_nan(x)
            return b.select(passed, right, left)

        return lambda r, row: behind(r, 1)

    def values_of(self, tile: Value, row: Value) -> Value:
        """Return the values that a tile compares; slot 0 is unused."""
        start = (self._block.first + row.min(self._last)) * self._block.stride
        return self._loaded(tile, start)

    def _loaded(self, tile: Value, start: Value) -> Value:
        first, slots = tile + self.t.column_at, range(1, 1 << self.t.levels)
        places = [self.walks.tiles[first + 2 * k, U16] for k in slots]
        values = [self._rows[start + place.to(I64)] for place in places]
        return b.pack([values[0], *values])

    def passed(self, tile: Value, row: Value) -> Value:
        t, rows, slots = self.t, self._rows, 1 << self.t.levels
        tiles, rules = self.walks.tiles, self.walks.rules
        x = self.values_of(tile, row)
        x = rules.nan_if_missing(x, self._missing)
        threshold = tiles[tile, Vec(rows.element, slots)]
        bits = b.mask_bits(rules.goes_right(x, threshold), U16)
        if self._asks:
            right = tiles[tile + t.column_at, U16]
            bits = bits | b.mask_bits(b.is_nan(x), U16) & right
        return bits


class ValuesOfRow(OfTrees, ValuesOfBlock):
    """The values of one row, in registers if they fit; tiles begin at the root."""

    def __init__(self, walks: TileWalks, row: RowAt) -> None:
        super().__init__(walks)
        self._rows, self._start = row.rows, row.start
        n = walks.tiling.target.vector_bits // (8 * row.rows.element.bytes)
        fits = walks.rules.forest.n_features <= ROW_REGISTERS * n
        # a register is permuted by as many places as it has, at most
        whole = n >= 1 << self.t.levels
        self._registers = self._loaded_row(n) if fits and whole else []

    def _loaded_row(self, n: int) -> list[Value]:
        """Return a power of two of registers, of which the last ends with the row."""
        width, vec = self.walks.rules.forest.n_features, Vec(self._rows.element, n)
        if width < n:
            values = [self._rows[self._start + k] for k in range(width)]
            return [b.pack(values + values[-1:] * (n - width))]
        whole = [self._rows[self._start + k, vec] for k in range(0, width - n + 1, n)]
        if rest := width % n:
            last = self._rows[self._start + (width - n), vec]
            lanes = [min(k + n - rest, n - 1) for k in range(n)]
            whole.append(b.shuffle(last, last, lanes))
        return whole + whole[-1:] * ((1 << (len(whole) - 1).bit_length()) - len(whole))

    def compare_top(self, tree: Value, n: Value) -> Callable[[Value, Value], Value]:
        items = self.padded("top_item", self.t.top_item, 1)
        return lambda t, trees: items[t, self.walks.entries]

    def values_of(self, tile: Value, row: Value) -> Value:
        if not self._registers:
            return self._loaded(tile, self._start)
        place = self.walks.tiles[tile + self.t.column_at, Vec(U16, 1 << self.t.levels)]
        index = place.to(U32 if self._rows.element.bytes == 4 else I64)
        return b.permute(self._registers, index)
