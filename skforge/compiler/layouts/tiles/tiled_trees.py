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

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Literal

from skforge.compiler.binning.rules import BlockRows, ReadingRules
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I64, U16, U32, Buffer, Value, Vec
from skforge.compiler.layouts.base import BlockCode
from skforge.compiler.layouts.blocks.block_sums import GROUP, BlockSums, Tiling
from skforge.compiler.layouts.tiles.tile_layout import TiledTrees

#: From this many bytes of tiles or leaves on, the next tree's are prefetched; and the
#: cache lines for each four rows: 1.6 million nodes took 2.6 us a row without it, 1.4
#: with it.
STREAMED_BYTES, LINES_AHEAD = 4 << 20, 2


def cache_level(size: int) -> Literal[1, 2]:
    """Return the cache to prefetch to, from data of so many bytes.

    L2 has more misses under way at once than L1: on Zen 4, 300 trees of 2 and 8 million
    nodes take .63 and .73 of the time row by row (.58 with AVX2), .55 to .97 in blocks
    of values, and .84 to 1.0 in blocks that prefetch the next tree.
    """
    return 2 if size >= STREAMED_BYTES else 1


#: Rows between the one whose tile is prefetched and the one that is compared. With 1.6
#: million nodes and blocks of 256 and 4,096 rows, AVX2's tiles of codes take .8 and 1.0
#: of the time that they take if all are prefetched first.
ROWS_AHEAD = 12

#: Rows whose tiles are compared in one iteration.
UNROLL = 4


class TileRows(ABC):
    """How rows are compared with the nodes of trees, which a walk asks of it."""

    #: When the tiles of live rows are prefetched, so that their cache misses overlap:
    #: never, all before the first is compared, or some rows ahead of each.
    fetches: Literal["never", "first", "ahead"] = "never"

    def __init__(self, walks: TileWalks) -> None:
        self.walks, self.t = walks, walks.t

    def take(self, rows: BlockRows, left: Value) -> None:  # noqa: B027
        """Take a block's rows, of which the batch has ``left``."""

    @abstractmethod
    def each_way(self, walk: Callable[[], None]) -> None:
        """Emit a walk for rows with missing values and one for rows without."""

    @abstractmethod
    def compare_top(self, tree: Value, n: Value) -> Callable[[Value, Value], Value]:
        """Compare the top levels; return what finds the items behind, for some rows."""

    @abstractmethod
    def passed(self, tile: Value, row: Value) -> Value:
        """Return the tests of a tile that a row passes, as bits."""

    def tile(self, row: Value, number: Value, first: Value) -> Value:
        """Return the place of a tile; ``first`` is that of the tree's first."""
        return number * self.t.stride + first


class TileWalks:
    def __init__(
        self,
        rules: ReadingRules,
        tiling: Tiling[TiledTrees],
        block: int,
        rows: Callable[[TileWalks], TileRows],
    ) -> None:
        trees, model = tiling.trees, rules.model
        self.t, self.tiling, self.block = trees, tiling, block
        self.rules, self.model = rules, model
        self.width = 0 if tiling.codes is None else tiling.codes.width
        self.lanes, self.entries = tiling.lanes, Vec(U32, tiling.lanes)
        self._row_mask = (1 << trees.row_bits) - 1
        self.streams = trees.tiles.nbytes >= STREAMED_BYTES
        self.rows = rows(self)
        self.top_item = model("top_item", trees.top_item.reshape(-1))
        self.tiles = model("tiles", trees.tiles)
        self.tile_offset = model("tile_offset", trees.tile_offset)
        self.leaf_offset = model("leaf_offset", trees.leaf_offset)
        most = block + 2 * GROUP
        # Lists are written by whole registers, slightly past their end.
        room = b.const(most)
        if self.width:  # the top compares codes
            size = trees.top_column.shape[1] * block
            self.top_bits = b.alloc("top_bits", U32, size)
        self.live = b.alloc("live", U32, room)
        self.done = b.alloc("done", U32, room)
        self.bits = b.alloc("tile_bits", U16, room)
        self._exit_words = 2 if trees.wide else 1
        self.exits = b.alloc("tile_exits", I64, most * self._exit_words)

    def walk(self, tree: Value, n: Value) -> None:
        """Walk ``n`` rows, a multiple of 16; :meth:`each_done` yields their leaves."""
        self.rows.each_way(lambda: self._walk(tree, n))

    def _walk(self, tree: Value, n: Value) -> None:
        live, done = self._decode_top(self.rows.compare_top(tree, n), n)
        first = self.tile_offset[tree]
        state = [live, done, *self._ahead(tree)]
        with b.repeat(lambda: state[0] > 0, state):
            live, done, *ahead = state
            ahead = self._compare_tiles(live, first, ahead)
            state[:] = [*self._decode_tiles(live, done), *ahead]

    def turn(self, heap: Value, bits: Value, at: Value) -> Value:
        right = bits >> at & 1
        return heap + heap | right

    def _decode_top(
        self, behind: Callable[[Value, Value], Value], n: Value
    ) -> list[Value]:
        lanes = b.iota(U32, self.lanes)
        lists = [b.const(0), b.const(0)]
        with b.loop(0, n, self.lanes, carry=lists, hint="group") as r:
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

    def _append(self, list_: Buffer, count: Value, entry: Value, mask: Value) -> Value:
        list_[count] = b.compress(entry, mask)
        return count + b.popcount(b.mask_bits(mask, I64))

    def _pad(self, live: Value) -> None:
        self.live[live] = b.const(0, self.entries)

    # ------------------------------------------------------------ tiles

    def _parts(self, entry: Value) -> tuple[Value, Value]:
        row = (entry & self._row_mask).to(I64)
        return row, (entry >> self.t.row_bits).to(I64)

    def _ahead(self, tree: Value) -> list[Value]:
        if self.rows.fetches == "first" or not self.streams:
            return []
        following = (tree + 1).min(len(self.t.tile_offset) - 1)
        return [self.tile_offset[following]]

    def _compare_tiles(
        self, live: Value, first: Value, ahead: list[Value]
    ) -> list[Value]:
        exits: Vec | None = Vec(I64, 2) if self.t.wide else None
        if self.rows.fetches == "first":
            level = cache_level(self.t.tiles.nbytes)
            with b.loop(0, live, UNROLL, hint="live") as j:
                self._fetch(j, first, level)
        with b.loop(0, live, UNROLL, carry=ahead, hint="live") as j:
            for place in ahead:
                for k in range(LINES_AHEAD):
                    b.prefetch(self.tiles, place + 64 * k, 2)
            if self.rows.fetches == "ahead":  # beyond the list, any tile or none
                self._fetch(j + ROWS_AHEAD, first, 1)
            for u in range(UNROLL):
                at = j + u
                row, number = self._parts(self.live[at])
                tile = self.rows.tile(row, number, first)
                self.bits[at] = self.rows.passed(tile, row)
                words = self.tiles[tile + self.t.exits_at, exits or I64]
                self.exits[at * self._exit_words] = words
            ahead[:] = [place + 64 * LINES_AHEAD for place in ahead]
        return ahead

    def _fetch(self, j: Value, first: Value, level: Literal[1, 2]) -> None:
        for u in range(UNROLL):
            row, number = self._parts(self.live[j + u])
            b.prefetch(self.tiles, self.rows.tile(row, number, first), level)

    def _decode_tiles(self, live: Value, done: Value) -> list[Value]:
        levels = self.t.levels
        lanes = b.iota(U32, self.lanes)
        lists = [b.const(0), done]
        with b.loop(0, live, self.lanes, carry=lists, hint="group") as j:
            entry = self.live[j, self.entries]
            bits = self.bits[j, Vec(U16, self.lanes)].to(U32)
            heap = b.const(1, self.entries)
            for _ in range(levels):
                heap = self.turn(heap, bits, heap)
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
        at, half = j * self._exit_words, self.lanes // 2
        parts = [self.exits[at + half * k, self.entries] for k in range(per)]
        if not self.t.wide:
            marks, firsts = self._every(parts, 2, 0), self._every(parts, 2, 1)
            return marks, firsts & 0xFFFF, firsts >> 16
        marks, child, leaf = (self._every(parts, 4, k) for k in range(3))
        return marks, child, leaf

    def _every(self, parts: list[Value], step: int, first: int) -> Value:
        lanes = list(range(first, 2 * self.lanes, step))
        joined = [
            b.shuffle(x, y, lanes) for x, y in zip(parts[::2], parts[1::2], strict=True)
        ]
        if len(joined) == 1:
            return joined[0]
        return b.shuffle(joined[0], joined[1], list(range(self.lanes)))

    # ------------------------------------------------------------ lists

    def each_done(
        self, n: Value | int, ahead: Callable[[Value], None] | None = None
    ) -> Iterator[tuple[Value, Value]]:
        """Yield row and leaf number of ``n`` rows, in any order of rows.

        ``ahead`` is called before each few of them, with their place in the list.
        """
        with b.loop(0, n, UNROLL, hint="done") as j:
            if ahead is not None:
                ahead(j)
            for u in range(UNROLL):
                yield self._parts(self.done[j + u])


class BlockWalks(BlockSums):
    def __init__(self, walks: TileWalks) -> None:
        super().__init__(walks.rules, walks.tiling, walks.block)
        self._walks = walks

    def take(self, rows: BlockRows) -> BlockCode:
        self._walks.rows.take(rows, self._left(rows))
        return self

    def add_tree(self, tree: Value, sums: Buffer) -> None:
        walks, offset = self._walks, self._walks.leaf_offset
        walks.walk(tree, self.n)
        first = offset[tree]
        add, leaves = self.adder(tree, sums)
        size = leaves.read.element.bytes
        following: Value | None = None
        if len(walks.t.leaf_row) * size >= STREAMED_BYTES:
            following = offset[(tree + 1).min(len(walks.t.leaf_offset) - 1)]

        def ahead(j: Value) -> None:
            if following is not None:
                b.prefetch(leaves.read, following + j * (64 // size // UNROLL), 2)

        for row, leaf in walks.each_done(self.n, ahead):
            add(row, first + leaf)
