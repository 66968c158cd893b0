"""Emits the walk of a block of rows through trees of tiles, sixteen rows at a time.

For each tree, with ``live`` the rows whose walks have not ended::

    for each row:           bits = codes[row][columns of the top] > ranks of the top
                            or != them, where the test is one for equality
    for each 16 rows:       exit = the number the bits spell, level by level
                            item[exit] joins ``live`` if it is a tile, else ``done``
    while any row is live:
      for each live row:    bits = codes[row][columns of its tile] > ranks of its tile
      for each 16 of them:  exit, then item, from the bits and the tile's exits;
                            ``live`` is compacted in place, the rest joins ``done``
    for each row of done:   sums[row] += value[leaf]

An entry of either list is the number of a tile or leaf, and a row. All operands of a
tile come from a row's registers of codes, by permutes; there are no gathers, and no
branch depends on a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from skforge.compiler.binning.rules import BlockRows, ReadingRules
from skforge.compiler.binning.transpose import ColumnTile, tile_starts
from skforge.compiler.forest.arrays import Comparison, Missing
from skforge.compiler.forest.bins import missing_right, tested_columns
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.lir.nodes import I32, I64, U8, U16, U32, Buffer, Value, Vec
from skforge.compiler.layouts.base import BlockCode
from skforge.compiler.layouts.blocks.block_sums import GROUP, BlockSums, Tiling
from skforge.compiler.layouts.tiles.tile_layout import (
    LANES,
    TOP_LEVELS,
    TiledTrees,
    TileTests,
)

#: From this many bytes of tiles or leaves on, the next tree's are prefetched; and the
#: cache lines for each four rows: 1.6 million nodes took 2.6 us a row without it, 1.4
#: with it.
STREAMED_BYTES, LINES_AHEAD = 4 << 20, 2

#: Rows whose tiles are compared in one iteration.
UNROLL = 4


class TileWalks:
    #: Whether the tiles of all live rows are prefetched before the first is compared.
    #: Their cache misses then overlap, and the next tree is not prefetched.
    fetches = False

    def __init__(
        self, rules: ReadingRules, tiling: Tiling[TiledTrees], block: int
    ) -> None:
        trees, model = tiling.trees, rules.model
        self.b, self.t, self.tiling, self.block = rules.b, trees, tiling, block
        self._rules, self._model = rules, model
        self.width = 0 if tiling.codes is None else tiling.codes.width
        self._lanes, self._entries = tiling.lanes, Vec(U32, tiling.lanes)
        self._row_mask = (1 << trees.row_bits) - 1
        self._declare_top()
        self.top_item = model("top_item", trees.top_item.reshape(-1))
        self.tiles = model("tiles", trees.tiles)
        self.tile_offset = model("tile_offset", trees.tile_offset)
        self.leaf_offset = model("leaf_offset", trees.leaf_offset)
        self._scratch()

    def _declare_top(self) -> None:
        self.top_column = self._model("top_column", self.t.top_column.reshape(-1))
        self.top_rank = self._model("top_rank", self.t.top_rank.reshape(-1))
        if self.t.top_marked is not None:
            self.top_equal = self._model("top_equal", self.t.marked_bits.reshape(-1))

    def _scratch(self) -> None:
        b, rows = self.b, self.block
        # Lists are written by whole registers, slightly past their end.
        room = b.const(rows + 2 * GROUP)
        if self.width:  # the top compares codes
            size = self.t.top_column.shape[1] * rows
            self.top_bits = b.alloc("top_bits", U32, size)
        self.live = b.alloc("live", U32, room)
        self.done = b.alloc("done", U32, room)
        self.bits = b.alloc("tile_bits", U16, room)
        words = (rows + 2 * GROUP) * self._exit_words
        self.exits = b.alloc("tile_exits", I64, words)

    @property
    def _exit_words(self) -> int:
        return 2 if self.t.wide else 1

    def walk_codes(self, tree: Value, codes: Buffer, missing: Value, n: Value) -> None:
        """Walk ``n`` rows, a multiple of 16; leaves are listed for :meth:`each_done`.

        Both copies of codes are read only if a value is ``missing``.
        """

        def walk(copies: int) -> None:
            self._load_codes(codes, copies)
            self._walk(tree, n)

        self.tiling.by_copies(self.b, missing, walk)

    def _load_codes(self, codes: Buffer, copies: int) -> None:
        places = range(0, self.width, LANES)
        size = self.block * self.width
        self._codes = codes
        self._registers = [copy * size + at for copy in range(copies) for at in places]

    def _walk(self, tree: Value, n: Value) -> None:
        b = self.b
        if self.width:
            self._compare_top(tree, n)
        live, done = self._decode_top(tree, n)
        first = self.tile_offset[tree]
        state = [live, done, *self._ahead(tree)]
        with b.repeat(lambda: state[0] > 0, state):
            live, done, *ahead = state
            ahead = self._compare_tiles(live, first, ahead)
            state[:] = [*self._decode_tiles(live, done), *ahead]

    # ------------------------------------------------------------ the top

    def _row(self, row: Value) -> list[Value]:
        vec = Vec(U16, LANES)
        at = row * self.width
        return [self._codes[at + k, vec] for k in self._registers]

    def _compare_top(self, tree: Value, n: Value) -> None:
        b, vec = self.b, Vec(U16, LANES)
        registers = self.t.top_column.shape[1]
        of_tree = tree * (registers * LANES)
        places = [of_tree + k * LANES for k in range(registers)]
        columns = [self.top_column[at, vec] for at in places]
        ranks = [self.top_rank[at, vec] for at in places]
        equal: list[Value | None] = [None] * registers
        if self.t.top_marked is not None:
            first = tree * registers
            equal = [self.top_equal[first + k] for k in range(registers)]
        with b.loop(0, n, UNROLL, hint="row") as r:
            for u in range(UNROLL):
                row = r + u
                registers_of_row = self._row(row)
                for k, column in enumerate(columns):
                    code = b.permute(registers_of_row, column)
                    passed = self._right(code, ranks[k], equal[k])
                    self.top_bits[row + k * self.block] = passed

    def _right(self, code: Value, rank: Value, equal: Value | None) -> Value:
        b, bits = self.b, U32 if code.type.lanes == LANES else U16
        passed = b.mask_bits(code > rank, bits)
        if equal is None:
            return passed
        return passed | b.mask_bits(code < rank, bits) & equal

    def _turn(self, heap: Value, bits: Value, at: Value) -> Value:
        right = bits >> at & 1
        return heap + heap | right

    def _decode_top(self, tree: Value, n: Value) -> list[Value]:
        b = self.b
        behind = self._behind_top(tree)
        lanes = b.iota(U32, self._lanes)
        lists = [b.const(0), b.const(0)]
        with b.loop(0, n, self._lanes, carry=lists, hint="group") as r:
            row = lanes + r.to(U32)
            item = behind(r, row)
            leaf = (item & 1).ne(0)
            entry = item & (0xFFFFFFFF - self._row_mask) | row
            live, done = lists
            lists[:] = [
                self._append(self.live, live, entry, ~leaf),
                self._append(self.done, done, entry, leaf),
            ]
        self._pad(lists[0])
        return lists

    def _behind_top(self, tree: Value) -> Callable[[Value, Value], Value]:
        b, levels = self.b, self.t.top_levels
        exits = 1 << levels
        items = self._top_items(tree)

        def found(r: Value, row: Value) -> Value:
            heap = b.const(1, self._entries)
            bits = self.top_bits[r, self._entries]
            for _ in range(min(levels, 5)):
                heap = self._turn(heap, bits, heap)
            if levels == 6:
                bits = self.top_bits[r + self.block, self._entries]
                heap = self._turn(heap, bits, heap - 32)
            return items(row, heap - exits)

        return found

    def _top_items(self, tree: Value) -> Callable[[Value, Value], Value]:
        b, exits = self.b, 1 << self.t.top_levels
        first = tree * exits
        items = [
            self.top_item[first + k, self._entries]
            for k in range(0, exits, self._lanes)
        ]

        def found(row: Value, exit_: Value) -> Value:
            if self._lanes == GROUP:
                return b.permute(items, exit_)
            # Registers hold too few of them.
            return self.top_item[b.bitcast(exit_ + first.to(U32), I32)]

        return found

    def _append(self, list_: Buffer, count: Value, entry: Value, mask: Value) -> Value:
        b = self.b
        list_[count] = b.compress(entry, mask)
        return count + b.popcount(b.mask_bits(mask, I64))

    def _pad(self, live: Value) -> None:
        self.live[live] = self.b.const(0, self._entries)

    # ------------------------------------------------------------ tiles

    def _parts(self, entry: Value) -> tuple[Value, Value]:
        row = (entry & self._row_mask).to(I64)
        return row, (entry >> self.t.row_bits).to(I64)

    def _tile(self, row: Value, number: Value, first: Value) -> Value:
        return number * self.t.stride + first

    def _ahead(self, tree: Value) -> list[Value]:
        if self.fetches or self.t.tiles.nbytes < STREAMED_BYTES:
            return []
        following = (tree + 1).min(len(self.t.tile_offset) - 1)
        return [self.tile_offset[following]]

    def _passed(self, tile: Value, row: Value) -> Value:
        b, t, slots = self.b, self.t, 1 << self.t.levels
        column = self.tiles[tile + t.column_at, Vec(U8, slots)]
        rank = self.tiles[tile, Vec(U16, slots)]
        code = b.permute(self._row(row), column.to(U16))
        equal = None
        if t.top_marked is not None:  # in slot 0, whose own bit is not read
            equal = self.tiles[tile, U16]
        return self._right(code, rank, equal)

    def _compare_tiles(
        self, live: Value, first: Value, ahead: list[Value]
    ) -> list[Value]:
        b, t = self.b, self.t
        exits: Vec | None = Vec(I64, 2) if t.wide else None
        if self.fetches:
            with b.loop(0, live, UNROLL, hint="live") as j:
                for u in range(UNROLL):
                    row, number = self._parts(self.live[j + u])
                    b.prefetch(self.tiles, self._tile(row, number, first))
        with b.loop(0, live, UNROLL, carry=ahead, hint="live") as j:
            for place in ahead:
                for k in range(LINES_AHEAD):
                    b.prefetch(self.tiles, place + 64 * k)
            for u in range(UNROLL):
                at = j + u
                row, number = self._parts(self.live[at])
                tile = self._tile(row, number, first)
                self.bits[at] = self._passed(tile, row)
                words = self.tiles[tile + t.exits_at, exits or I64]
                self.exits[at * self._exit_words] = words
            ahead[:] = [place + 64 * LINES_AHEAD for place in ahead]
        return ahead

    def _decode_tiles(self, live: Value, done: Value) -> list[Value]:
        b, levels = self.b, self.t.levels
        lanes = b.iota(U32, self._lanes)
        lists = [b.const(0), done]
        with b.loop(0, live, self._lanes, carry=lists, hint="group") as j:
            entry = self.live[j, self._entries]
            bits = self.bits[j, Vec(U16, self._lanes)].to(U32)
            heap = b.const(1, self._entries)
            for _ in range(levels):
                heap = self._turn(heap, bits, heap)
            exit_ = heap - (1 << levels)
            marks, first_child, first_leaf = self._load_exits(j)
            goes = (marks >> exit_ & 1).ne(0)
            upto = (2 << exit_) - 1
            rank = b.popcount(b.select(goes, marks, marks >> 16) & upto)
            first = b.select(goes, first_child, first_leaf)
            number = first + rank << self.t.row_bits
            entry = number | entry & self._row_mask
            real = lanes < (live - j).to(U32)
            # In place: writes stay behind the entries that are still to be read.
            lists[:] = [
                self._append(self.live, lists[0], entry, real & goes),
                self._append(self.done, lists[1], entry, real & ~goes),
            ]
        self._pad(lists[0])
        return lists

    def _load_exits(self, j: Value) -> tuple[Value, Value, Value]:
        per = 2 * self._exit_words
        at, half = j * self._exit_words, self._lanes // 2
        parts = [self.exits[at + half * k, self._entries] for k in range(per)]
        if not self.t.wide:
            marks, firsts = self._every(parts, 2, 0), self._every(parts, 2, 1)
            return marks, firsts & 0xFFFF, firsts >> 16
        marks, child, leaf = (self._every(parts, 4, k) for k in range(3))
        return marks, child, leaf

    def _every(self, parts: list[Value], step: int, first: int) -> Value:
        b = self.b
        lanes = list(range(first, 2 * self._lanes, step))
        joined = [
            b.shuffle(x, y, lanes) for x, y in zip(parts[::2], parts[1::2], strict=True)
        ]
        if len(joined) == 1:
            return joined[0]
        return b.shuffle(joined[0], joined[1], list(range(self._lanes)))

    # ------------------------------------------------------------ lists

    def each_done(
        self, n: Value | int, ahead: Callable[[Value], None] | None = None
    ) -> Iterator[tuple[Value, Value]]:
        """Yield row and leaf number of ``n`` rows, in any order of rows.

        ``ahead`` is called before each few of them, with their place in the list.
        """
        with self.b.loop(0, n, UNROLL, hint="done") as j:
            if ahead is not None:
                ahead(j)
            for u in range(UNROLL):
                yield self._parts(self.done[j + u])


class BlockWalks(TileWalks, BlockSums):
    def take(self, rows: BlockRows) -> BlockCode:
        self._encoded = self.encode(rows)
        return self

    def _walk_tree(self, tree: Value) -> None:
        self.walk_codes(tree, *self._encoded, self.n)

    def add_tree(self, tree: Value, sums: Buffer) -> None:
        b = self.b
        self._walk_tree(tree)
        first = self.leaf_offset[tree]
        add, leaves = self.adder(tree, sums)
        size = leaves.read.element.bytes
        following: Value | None = None
        if len(self.t.leaf_row) * size >= STREAMED_BYTES:
            last = len(self.t.leaf_offset) - 1
            following = self.leaf_offset[(tree + 1).min(last)]

        def ahead(j: Value) -> None:
            if following is not None:
                b.prefetch(leaves.read, following + j * (64 // size // UNROLL))

        for row, leaf in self.each_done(self.n, ahead):
            add(row, first + leaf)


# ---------------------------------------------------------------- row values

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
    """Emits walks of tiles that compare row values.

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
