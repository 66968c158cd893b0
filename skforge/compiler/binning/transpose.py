"""Transposes tiles of columns of a block of rows, in registers.

For each group of as many rows as a register has lanes, and each tile::

    vectors = the tile's columns of each row
    columns[tile, .., group] = transpose(vectors)

The last rows of the batch, and rows with a stride below their width, are read one
number at a time, so that nothing past the end is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from skforge._typing import Array
from skforge.compiler.binning.rules import BlockRows
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I64, U8, U16, U32, Buffer, Scalar, Value, Vec
from skforge.forest.forest import Forest

#: Rows of more features than this are wide, and this many of them are one part of a
#: block, whose columns stay in L2. Tile by tile, 128 took 2.5 and 1.1 times as long
#: (2000 and 968 columns, 4096 rows, Emerald Rapids, shared); along rows they take .92
#: to 1.02 (2000 and 3000, Zen 4), with twice the scratch.
WIDE, WIDE_PART = 500, 64

#: Bytes of a cache line.
LINE = 64

#: So are rows of more bytes, in blocks of several parts, where a register holds a line:
#: a row's next lines are gone before their turn (Zen 4, 400 doubles: parts take .59
#: and .8 of the time of blocks of 512; 200 take 1.0 to 1.1, and with AVX2 1.1 to 1.4).
WIDE_BYTES = 4 * WIDE

#: Wide rows are read this many columns at a time, along the rows: the CPU fetches what
#: follows by itself (Zen 4, 2000 columns, 512 new rows: 1.2 us a row tile by tile, .77
#: along rows).
RUN = 512

#: Rows of more than ``NARROW`` bytes are prefetched ``AHEAD`` rows before they are
#: read, wide rows one group before, as the CPU does not foresee steps of a whole row.
#: Zen 3: 512 rows of 150 and 400 doubles take .62 and .66 of the time, 64 of them .73
#: and .74, 65,536 of 182 to 275 columns .7 to .8, and 600 and 1,200 columns .9 to .96
#: at all sizes; rows of 200 bytes would take 1.04.
NARROW, AHEAD = 256, 32

#: What is prefetched goes to L2 if its lines, until they are read, have more bytes than
#: half of L1 (Zen 4, 968 to 3000 columns, 512 and 4096 new rows: 16 rows of a run take
#: .86 to .91 of the time; the 8 of AVX2, with 16 KB, would take 1.06).
NEAR = 16 << 10


def is_wide(forest: Forest, vector_bytes: int, block: int) -> bool:
    """Whether blocks of bit logic take rows in parts, along the rows."""
    row_bytes = forest.n_features * forest.input_dtype.itemsize
    in_lines = vector_bytes == LINE and block > WIDE_PART
    return forest.n_features > WIDE or (in_lines and row_bytes > WIDE_BYTES)


class ColumnTile:
    """The buffer of a tile's columns: column c of row r is at ``c * part + r``.

    Several ``tiles`` lie one after another.
    ``clean`` is applied to every number read, scalar or vector, and returns type
    ``scalar``.
    """

    def __init__(
        self,
        scalar: Scalar,
        lanes: int,
        part: int,
        clean: Callable[[Value], Value],
        tiles: int = 1,
        wide: bool = False,
    ) -> None:
        self.scalar, self.lanes, self.part = scalar, lanes, part
        self.vec = Vec(scalar, lanes)
        self._clean, self.tiles, self.wide = clean, tiles, wide
        self.buffer = b.alloc("columns", scalar, tiles * lanes * part)

    def fill(
        self,
        rows: BlockRows,
        starts: Buffer,
        first: Value | int,
        count: Value | int,
        n_tiles: int,
    ) -> None:
        """Transpose tiles from ``first`` on; each group passes through all of them.

        Groups past the last row are not written: their sums are never used.
        """
        n = self.lanes
        start, last = starts[first].to(I64), rows.n_rows - 1
        # Reading a narrow row as a vector goes past its end, into the next row.
        slack = 0 if rows.n_features >= n else n
        apart = rows.stride >= rows.n_features
        limit = rows.n_rows - (n + slack)
        left = (rows.n_rows - rows.first).min(self.part)
        narrow = rows.n_features * rows.rows.element.bytes <= NARROW
        with b.loop(0, left, n, hint="group") as r:
            row = rows.first + r

            def of_tiles(transpose: Callable[..., None]) -> None:
                with b.turns(count, 1, "tile") as t:
                    if not narrow:
                        self._prefetch(rows, r, left, t + first, count, starts, n_tiles)
                    own = start if count == 1 else starts[first + t].to(I64)
                    transpose(rows, own, row, r + t * (n * self.part))

            b.if_(
                (row <= limit) & apart,
                lambda: of_tiles(self._transpose_fast),
                lambda: of_tiles(partial(self._transpose_slow, last)),
            )

    def _prefetch(
        self,
        rows: BlockRows,
        r: Value,
        left: Value,
        tile: Value,
        count: Value | int,
        starts: Buffer,
        n_tiles: int,
    ) -> None:
        """Prefetch a tile of a later group, or of the tiles that are filled next."""
        n = self.lanes
        later = r + (n if self.wide else max(n, AHEAD))
        past = later >= left
        tile = b.select(past, (tile + count).min(n_tiles - 1), tile)
        row = rows.first + b.select(past, (later - left).min(r), later)
        at = row * rows.stride + (starts[tile].to(I64) + (n - 1))
        near = self.tiles * n * n * rows.rows.element.bytes <= NEAR
        for k in range(n):
            b.prefetch(rows.rows, at + rows.stride * k, 1 if near else 2)

    def _transpose_fast(
        self, rows: BlockRows, start: Value, row: Value, r: Value
    ) -> None:
        n = self.lanes
        at = row * rows.stride + start
        vectors = []
        for _ in range(n):
            vectors.append(self._row(rows.rows, at))
            at = at + rows.stride
        for c, vector in enumerate(transpose(vectors, self.scalar.bytes)):
            self.buffer[r + c * self.part] = vector

    def _row(self, rows: Buffer, at: Value) -> Value:
        n = self.lanes
        if rows.element == self.scalar:
            return self._clean(rows[at, self.vec])
        half = Vec(rows.element, n // 2)
        low = self._clean(rows[at, half])
        return b.shuffle(low, self._clean(rows[at + n // 2, half]), range(n))

    def _transpose_slow(
        self, last: Value, rows: BlockRows, start: Value, row: Value, r: Value
    ) -> None:
        n = self.lanes
        columns = (rows.n_features - start).min(n)
        with b.loop(n) as i:
            base = (row + i).min(last) * rows.stride + start
            target = r + i
            with b.loop(columns) as c:
                x = self._clean(rows.rows[base + c])
                self.buffer[c * self.part + target] = x

    def vectors(self, first: Value, count: int) -> list[Value]:
        return [self.buffer[first + v, self.vec] for v in range(0, count, self.lanes)]

    def halves(self, low: Value, high: Value) -> Value:
        """Return a vector whose halves begin at two places."""
        n = self.lanes
        half = Vec(self.scalar, n // 2)
        return b.shuffle(self.buffer[low, half], self.buffer[high, half], range(n))

    @staticmethod
    def run(wide: bool, lanes: int) -> int:
        """Return how many tiles are filled before their jobs."""
        return RUN // lanes if wide else 1

    @contextmanager
    def jobs(
        self, rows: BlockRows, starts: Buffer, ends: Buffer, n_tiles: int
    ) -> Iterator[Value]:
        """Fill as many tiles as the buffer holds, and open the body of their jobs.

        ``starts`` has the first column of each tile, ``ends`` the first job of each and
        the end. Yields the job.
        """
        with b.loop(0, n_tiles, self.tiles, hint="tile") as i:
            one = self.tiles == 1
            end = i + 1 if one else (i + self.tiles).min(n_tiles)
            self.fill(rows, starts, i, 1 if one else end - i, n_tiles)
            with b.loop(ends[i].to(I64), ends[end].to(I64), hint="job") as j:
                yield j


def store_masks(
    lines: Buffer, at: Value, masks: Sequence[Value], packs: bool = False
) -> None:
    """Store the bits of masks, one after another, from byte ``at`` on.

    ``packs`` tells whether those of 32-bit numbers are packed by AVX2.
    """
    lanes = masks[0].type.lanes
    if packs and len(masks) % 4 == 0:
        every, none = (b.const(k, Vec(U32, lanes)) for k in ((1 << 32) - 1, 0))
        numbers = [b.select(mask, every, none) for mask in masks]
        for v in range(0, len(masks), 4):
            bits = b.mask_bits(low_bytes(numbers[v : v + 4]) >= 1 << 7, U32)
            lines[at + v * lanes // 8] = bits
        return
    joined = max(1, 8 // lanes)
    # The mask of a vector is one integer of 16 or 8 rows; smaller masks are joined.
    scalar = U16 if lanes == 16 else U8
    for v in range(0, len(masks), joined):
        bits = b.mask_bits(masks[v], scalar)
        for k in range(1, joined):
            bits = bits | b.mask_bits(masks[v + k], scalar) << k * lanes
        lines[at + v * lanes // 8] = bits


def low_bytes(numbers: Sequence[Value]) -> Value:
    """Return the low bytes of four vectors of eight 32-bit numbers, in order.

    Packs work within the 128-bit halves of registers, so that joining halves first
    leaves one permute across them, and not one after each pack.
    """

    def joined(x: Value, y: Value) -> Value:
        n = x.type.lanes
        half, low, high = n // 2, range(n), range(n, 2 * n)
        order = [*low[:half], *high[:half], *low[half:], *high[half:]]
        return b.shuffle(x, y, order)

    w, x, y, z = numbers
    halves = joined(joined(w, x).to(U16), joined(y, z).to(U16)).to(U8)
    groups = (0, 4, 1, 5, 2, 6, 3, 7)
    return b.shuffle(halves, halves, [4 * g + k for g in groups for k in range(4)])


def tile_starts(used: Array, n_features: int, lanes: int) -> list[int]:
    """Return the first columns of tiles that cover the used features.

    A tile does not reach past the last feature, unless rows are narrower than a tile.
    """
    starts: list[int] = []
    for feature in used.tolist():
        if not starts or feature >= starts[-1] + lanes:
            aligned = feature // lanes * lanes
            starts.append(max(0, min(aligned, n_features - lanes)))
    return starts


def unpacked(n: int, e: int, unit: int, high: bool) -> list[int]:
    """Return the shuffle that interleaves the low or high units of two vectors.

    The vectors have ``n`` elements, ``e`` in each 128-bit lane. Units come from within
    a lane.
    """
    chosen: list[int] = []
    for lane in range(0, n, e):
        half = lane + (e // 2 if high else 0)
        for k in range(half, half + e // 2, unit):
            chosen += [*range(k, k + unit), *range(n + k, n + k + unit)]
    return chosen


def transpose(rows: Sequence[Value], item: int) -> list[Value]:
    """Transpose a square of vectors: unpack within 128-bit lanes, then swap lanes."""
    n, e = len(rows), 16 // item

    def within(square: Sequence[Value], unit: int = 1) -> list[Value]:
        pairs = zip(square[::2], square[1::2], strict=True)
        halves = [unpacked(n, e, unit, high) for high in (False, True)]
        joined = [b.shuffle(x, y, half) for x, y in pairs for half in halves]
        if len(joined) == 2:
            return joined
        return [*within(joined[::2], 2 * unit), *within(joined[1::2], 2 * unit)]

    def pick(x: Value, y: Value, odd: int) -> Value:
        lanes = range(odd * e, n, 2 * e)
        chosen = [lane + i for lane in lanes for i in range(e)]
        return b.shuffle(x, y, [*chosen, *(n + i for i in chosen)])

    def across(vectors: Sequence[Value]) -> list[Value]:
        if len(vectors) == 1:
            return list(vectors)
        half = len(vectors) // 2
        low, high = across(vectors[:half]), across(vectors[half:])
        pairs = list(zip(low, high, strict=True))
        return [pick(x, y, odd) for odd in (0, 1) for x, y in pairs]

    squares = [within(rows[g : g + e]) for g in range(0, n, e)]
    columns = [across(column) for column in zip(*squares, strict=True)]
    return [columns[i % e][i // e] for i in range(n)]
