"""Emits the walk of a block of rows through trees of tiles, sixteen rows at a time.

For each tree, with ``live`` the rows whose walks have not ended::

    for each row:           bits = codes[row][columns of the top] > ranks of the top
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

from collections.abc import Callable

from skforge.compiler.binning.rows import Model
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I32, I64, U8, U16, U32, Buffer, Value, Vec
from skforge.compiler.layouts.tiles.tile_layout import LANES, TiledTrees

#: Rows decoded together, one register of entries; groups have a multiple of them.
GROUP = 16

#: From this many bytes of tiles or leaves on, the next tree's are prefetched; and the
#: cache lines for each four rows: 1.6 million nodes took 2.6 us a row without it, 1.4
#: with it.
STREAMED_BYTES, LINES_AHEAD = 4 << 20, 2

#: Rows whose tiles are compared in one iteration.
UNROLL = 4


class TileLowering:
    """Emits the walks of one block of at most ``block`` rows."""

    def __init__(
        self,
        b: Builder,
        trees: TiledTrees,
        width: int,
        block: int,
        lanes: int,
        model: Model,
    ) -> None:
        self.b, self.t, self.block, self.width = b, trees, block, width
        self._lanes, self._entries = lanes, Vec(U32, lanes)
        self._row_mask = (1 << trees.row_bits) - 1
        self._declare_top(model)
        self.top_item = model("top_item", trees.top_item.reshape(-1))
        self.tiles = model("tiles", trees.tiles)
        self.tile_offset = model("tile_offset", trees.tile_offset)
        self.leaf_offset = model("leaf_offset", trees.leaf_offset)

    def _declare_top(self, model: Model) -> None:
        """Declare the tests of the trees' top levels."""
        self.top_column = model("top_column", self.t.top_column.reshape(-1))
        self.top_rank = model("top_rank", self.t.top_rank.reshape(-1))

    def scratch(self) -> None:
        """Allocate the lists of rows and the results for each row."""
        b, rows = self.b, self.block
        # Lists are written by whole registers, slightly past their end.
        room = b.const(rows + 2 * GROUP)
        self._scratch_top()
        self.live = b.alloc("live", U32, room, alignment=64)
        self.done = b.alloc("done", U32, room, alignment=64)
        self.bits = b.alloc("tile_bits", U16, room, alignment=64)
        words = b.const((rows + 2 * GROUP) * self._exit_words)
        self.exits = b.alloc("tile_exits", I64, words, alignment=64)

    def _scratch_top(self) -> None:
        top = self.b.const(self.t.top_column.shape[1] * self.block)
        self.top_bits = self.b.alloc("top_bits", U32, top, alignment=64)

    @property
    def _exit_words(self) -> int:
        return 2 if self.t.wide else 1

    def walk(self, tree: Value, codes: Buffer, copies: int, n: Value) -> None:
        """Walk ``n`` rows, a multiple of 16, with one or two copies of their codes.

        The leaves they reach are listed for :meth:`each_done`.
        """
        b = self.b
        own = range(0, self.width, LANES)
        self._registers = [
            copy * self.block * self.width + at for copy in range(copies) for at in own
        ]
        self._compare_top(tree, codes, n)
        live, done = self._decode_top(tree, n)
        first = b.load(self.tile_offset, tree)

        def some_live(state: tuple[Value, ...]) -> Value:
            return b.compare("gt", state[0], 0)

        def step(state: tuple[Value, ...]) -> list[Value]:
            live, done, *ahead = state
            ahead = self._compare_tiles(live, first, codes, ahead)
            return [*self._decode_tiles(live, done), *ahead]

        b.while_([live, done, *self._ahead(tree)], some_live, step)

    # ------------------------------------------------------------ the top

    def _row(self, codes: Buffer, at: Value) -> list[Value]:
        """Load the registers of a row of codes."""
        b, vec = self.b, Vec(U16, LANES)
        return [b.load(codes, b.add(at, k), vec) for k in self._registers]

    def _compare_top(self, tree: Value, codes: Buffer, n: Value) -> None:
        b, vec = self.b, Vec(U16, LANES)
        registers = self.t.top_column.shape[1]
        own = b.mul(tree, registers * LANES)
        places = [b.add(own, k * LANES) for k in range(registers)]
        columns = [b.load(self.top_column, at, vec) for at in places]
        ranks = [b.load(self.top_rank, at, vec) for at in places]

        def rows(r: Value, _: tuple[Value, ...]) -> None:
            for u in range(UNROLL):
                row = b.add(r, u)
                registers_of_row = self._row(codes, b.mul(row, self.width))
                for k, (column, rank) in enumerate(zip(columns, ranks, strict=True)):
                    code = b.permute(registers_of_row, column)
                    passed = b.mask_bits(b.compare("gt", code, rank), U32)
                    b.store(self.top_bits, b.add(row, k * self.block), passed)

        b.for_(b.const(0), n, b.const(UNROLL), rows, hint="row")

    def _turn(self, heap: Value, bits: Value, at: Value) -> Value:
        """Return the heap number of the child that a bit of ``bits`` selects."""
        b = self.b
        right = b.binary("and", b.binary("shr", bits, at), 1)
        return b.binary("or", b.binary("add", heap, heap), right)

    def _decode_top(self, tree: Value, n: Value) -> tuple[Value, Value]:
        b = self.b
        behind = self._behind_top(tree)
        lanes = b.iota(U32, self._lanes)

        def group(r: Value, state: tuple[Value, ...]) -> list[Value]:
            row = b.binary("add", lanes, b.convert(r, U32))
            item = behind(r, row)
            leaf = b.compare("ne", b.binary("and", item, 1), 0)
            number = b.binary("and", item, 0xFFFFFFFF - self._row_mask)
            entry = b.binary("or", number, row)
            live, done = state
            return [
                self._append(self.live, live, entry, b.invert(leaf)),
                self._append(self.done, done, entry, leaf),
            ]

        zero, step = b.const(0), b.const(self._lanes)
        live, done = b.for_(zero, n, step, group, [zero, zero], hint="group")
        self._pad(live)
        return live, done

    def _behind_top(self, tree: Value) -> Callable[[Value, Value], Value]:
        """Return a function from rows (and the first one) to the items they reach."""
        b, levels = self.b, self.t.top_levels
        exits = 1 << levels
        items = self._top_items(tree)

        def found(r: Value, row: Value) -> Value:
            heap = b.const(1, self._entries)
            bits = b.load(self.top_bits, r, self._entries)
            for _ in range(min(levels, 5)):
                heap = self._turn(heap, bits, heap)
            if levels == 6:
                bits = b.load(self.top_bits, b.add(r, self.block), self._entries)
                heap = self._turn(heap, bits, b.binary("sub", heap, 32))
            return items(row, b.binary("sub", heap, exits))

        return found

    def _top_items(self, tree: Value) -> Callable[[Value, Value], Value]:
        """Return a function from rows and their exits to the items behind the exits."""
        b, exits = self.b, 1 << self.t.top_levels
        own = b.mul(tree, exits)
        items = [
            b.load(self.top_item, b.add(own, k), self._entries)
            for k in range(0, exits, self._lanes)
        ]

        def found(row: Value, exit_: Value) -> Value:
            if self._lanes == GROUP:
                return b.permute(items, exit_)
            # Registers hold too few of them.
            at = b.binary("add", exit_, b.convert(own, U32))
            return b.load(self.top_item, b.bitcast(at, I32))

        return found

    def _append(self, list_: Buffer, count: Value, entry: Value, mask: Value) -> Value:
        """Append the selected entries to a list; return its new length."""
        b = self.b
        b.store(list_, count, b.compress(entry, mask))
        return b.binary("add", count, b.popcount(b.mask_bits(mask, I64)))

    def _pad(self, live: Value) -> None:
        """Pad the live rows with row 0 in tile 0, which always exists."""
        self.b.store(self.live, live, self.b.const(0, self._entries))

    # ------------------------------------------------------------ tiles

    def parts(self, entry: Value) -> tuple[Value, Value]:
        """Return the row of an entry, and the number of its tile or leaf."""
        b = self.b
        row = b.convert(b.binary("and", entry, self._row_mask), I64)
        return row, b.convert(b.binary("shr", entry, self.t.row_bits), I64)

    def _tile(self, row: Value, number: Value, first: Value) -> Value:
        """Return the first byte of a tile of the tree."""
        return self.b.binary("add", self.b.mul(number, self.t.stride), first)

    def _ahead(self, tree: Value) -> list[Value]:
        """Return where prefetching of the next tree's tiles begins, if it is needed."""
        if self.t.tiles.nbytes < STREAMED_BYTES:
            return []
        b = self.b
        following = b.binary("min", b.add(tree, 1), len(self.t.tile_offset) - 1)
        return [b.load(self.tile_offset, following)]

    def _passed(self, tile: Value, row: Value, codes: Buffer) -> Value:
        """Return the bits of the tile's nodes where the row goes right."""
        b, t, slots = self.b, self.t, 1 << self.t.levels
        own = b.load(self.tiles, b.add(tile, t.column_at), Vec(U8, slots))
        rank = b.load(self.tiles, tile, Vec(U16, slots))
        registers = self._row(codes, b.mul(row, self.width))
        code = b.permute(registers, b.convert(own, U16))
        return b.mask_bits(b.compare("gt", code, rank), U16)

    def _compare_tiles(
        self, live: Value, first: Value, codes: Buffer, ahead: list[Value]
    ) -> list[Value]:
        b, t = self.b, self.t
        exits: Vec | None = Vec(I64, 2) if t.wide else None

        def rows(j: Value, ahead: tuple[Value, ...]) -> list[Value]:
            for place in ahead:
                for k in range(LINES_AHEAD):
                    b.prefetch(self.tiles, b.add(place, 64 * k))
            for u in range(UNROLL):
                at = b.add(j, u)
                row, number = self.parts(b.load(self.live, at))
                tile = self._tile(row, number, first)
                b.store(self.bits, at, self._passed(tile, row, codes))
                words = b.load(self.tiles, b.add(tile, t.exits_at), exits or I64)
                b.store(self.exits, b.mul(at, self._exit_words), words)
            return [b.add(place, 64 * LINES_AHEAD) for place in ahead]

        step = b.const(UNROLL)
        return list(b.for_(b.const(0), live, step, rows, ahead, hint="live"))

    def _decode_tiles(self, live: Value, done: Value) -> list[Value]:
        b, levels = self.b, self.t.levels
        lanes = b.iota(U32, self._lanes)

        def group(j: Value, state: tuple[Value, ...]) -> list[Value]:
            entry = b.load(self.live, j, self._entries)
            bits = b.convert(b.load(self.bits, j, Vec(U16, self._lanes)), U32)
            heap = b.const(1, self._entries)
            for _ in range(levels):
                heap = self._turn(heap, bits, heap)
            exit_ = b.binary("sub", heap, 1 << levels)
            marks, first_child, first_leaf = self._load_exits(j)
            goes = b.compare("ne", b.binary("and", b.binary("shr", marks, exit_), 1), 0)
            upto = b.binary("sub", b.binary("shl", b.const(2, self._entries), exit_), 1)
            own = b.select(goes, marks, b.binary("shr", marks, 16))
            rank = b.popcount(b.binary("and", own, upto))
            first = b.select(goes, first_child, first_leaf)
            number = b.binary("shl", b.binary("add", first, rank), self.t.row_bits)
            entry = b.binary("or", number, b.binary("and", entry, self._row_mask))
            left = b.convert(b.sub(live, j), U32)
            real = b.compare("lt", lanes, left)
            # In place: writes stay behind the entries that are still to be read.
            return [
                self._append(self.live, state[0], entry, b.binary("and", real, goes)),
                self._append(
                    self.done, state[1], entry, b.binary("and", real, b.invert(goes))
                ),
            ]

        zero = b.const(0)
        live, done = b.for_(
            zero, live, b.const(self._lanes), group, [zero, done], hint="group"
        )
        self._pad(live)
        return [live, done]

    def _load_exits(self, j: Value) -> tuple[Value, Value, Value]:
        """Return marked exits, first child and first leaf of 16 rows' tiles."""
        b, per = self.b, 2 * self._exit_words
        at, half = b.mul(j, self._exit_words), self._lanes // 2
        parts = [
            b.load(self.exits, b.add(at, half * k), self._entries) for k in range(per)
        ]
        if not self.t.wide:
            marks, firsts = self._every(parts, 2, 0), self._every(parts, 2, 1)
            return marks, b.binary("and", firsts, 0xFFFF), b.binary("shr", firsts, 16)
        marks, child, leaf = (self._every(parts, 4, k) for k in range(3))
        return marks, child, leaf

    def _every(self, parts: list[Value], step: int, first: int) -> Value:
        """Return lanes first, first + step, ... of registers, joined into one."""
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
        self, tree: Value, n: Value, leaves: Buffer, add: Callable[[Value, Value], None]
    ) -> None:
        """Call ``add(row, leaf number)`` for every row, in any order of rows.

        ``leaves`` has one element for each place of ``leaf_row``.
        """
        b, size = self.b, leaves.element.bytes
        following: Value | None = None
        if len(self.t.leaf_row) * size >= STREAMED_BYTES:
            last = len(self.t.leaf_offset) - 1
            following = b.binary("min", b.add(tree, 1), last)
            following = b.load(self.leaf_offset, following)

        def rows(j: Value, _: tuple[Value, ...]) -> None:
            if following is not None:
                ahead = b.mul(j, 64 // size // UNROLL)
                b.prefetch(leaves, b.binary("add", following, ahead))
            for u in range(UNROLL):
                add(*self.parts(b.load(self.done, b.add(j, u))))

        b.for_(b.const(0), n, b.const(UNROLL), rows, hint="done")


class FetchingLowering(TileLowering):
    """Prefetches the tiles of all live rows before the first is compared.

    Their cache misses then overlap, and the next tree is not prefetched.
    """

    def _ahead(self, tree: Value) -> list[Value]:
        return []

    def _compare_tiles(
        self, live: Value, first: Value, codes: Buffer, ahead: list[Value]
    ) -> list[Value]:
        b = self.b

        def fetch(j: Value, _: tuple[Value, ...]) -> None:
            for u in range(UNROLL):
                row, number = self.parts(b.load(self.live, b.add(j, u)))
                b.prefetch(self.tiles, self._tile(row, number, first))

        b.for_(b.const(0), live, b.const(UNROLL), fetch, hint="live")
        return super()._compare_tiles(live, first, codes, ahead)
