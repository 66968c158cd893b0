"""Emits the tests of a block of rows, tree by tree and piece by piece.

For each tree::

    for some rows of the block:  exit = run(tests of the top, columns of the block)
    for each row:                its number joins the bucket of its exit
    for each piece, for some rows of its bucket:
        columns = transpose(codes of these rows)
        exit = run(tests of the piece, columns)
        sums[row] += value[first leaf + exit]

``run`` lets each row meet each test, so no branch and no address depends on a row: a
test takes seven instructions for 32 rows of AVX2, a step of a walk as many for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from skforge.compiler.binning.rules import BlockRows, ReadingRules
from skforge.compiler.binning.transpose import transpose
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I16, I64, U8, U16, Buffer, Value, Vec
from skforge.compiler.layouts.blocks.block_sums import BlockSums, Tiling
from skforge.compiler.layouts.pieces.cut import PieceTrees

#: Rows that meet a test together, in several registers.
CHUNK = 128

#: Rows and columns of a square of codes that is transposed: one 256-bit register each.
SQUARE = 16

#: Spare room of a bucket, so that buckets are not a power of two apart.
SPARE = 96


class PieceWalks(BlockSums):
    def __init__(
        self,
        rules: ReadingRules,
        tiling: Tiling[PieceTrees],
        rows: BlockRows,
        block: int,
    ) -> None:
        super().__init__(rules, tiling, block)
        model = rules.model
        assert tiling.codes is not None
        trees, self._places = tiling.trees, tiling.codes
        self._tests = model("piece_tests", trees.tests.reshape(-1))
        self._pieces = model("pieces", trees.pieces.reshape(-1))
        self._tops = model("piece_tops", trees.top)
        self._lanes = tiling.target.vector_bits // 8  # rows of one register of exits
        chunks, room = -(-block // CHUNK), block + SPARE
        columns = self._places.width * self._places.copies * CHUNK
        self._columns = b.alloc("columns", I16, chunks * columns)
        self._piece_columns = b.alloc("piece_columns", I16, columns)
        self._exits = b.alloc("exits", U8, chunks * CHUNK)
        self._piece_exits = b.alloc("piece_exits", U8, CHUNK)
        self._counts = b.alloc("counts", I64, trees.most_pieces)
        self._buckets = b.alloc("buckets", U16, trees.most_pieces * room)
        # Quantise the rows of the block, and transpose their codes.
        self._codes, self._missing = self.encode(rows)
        tiling.by_copies(self._missing, self._take)

    def _take(self, copies: int) -> None:
        size, last = copies * self._places.width * CHUNK, self.n - 1
        with b.loop(0, self.n, SQUARE, hint="row") as r:
            rows = [(r + i).min(last) for i in range(SQUARE)]
            at = r // CHUNK * size + r % CHUNK
            self._transpose(copies, rows, self._columns, at)

    def _transpose(
        self, copies: int, rows: Sequence[Value], to: Buffer, at: Value
    ) -> None:
        width = self._places.width
        starts = [row * width for row in rows]
        for copy in range(copies):
            first = copy * self.block * width
            for c in range(0, width, SQUARE):
                place = first + c
                square = [self._codes[s + place, Vec(U16, SQUARE)] for s in starts]
                for k, column in enumerate(transpose(square, 2)):
                    number = copy * width + c + k
                    to[at + number * CHUNK] = b.bitcast(column, I16)

    def _run_chunk(
        self,
        count: Value,
        copies: int,
        tests: tuple[Value, Value],
        columns: Buffer,
        at: Value,
        exits: Buffer,
        to: Value,
    ) -> None:
        """Let ``count`` rows, or a chunk, meet the tests; write the exits they reach.

        Words are compared as signed ones, which AVX2 does in one instruction.
        """
        lanes = self._lanes

        def run(registers: int) -> None:
            reached = [b.const(0, Vec(U8, lanes)) for _ in range(registers)]
            with b.loop(*tests, carry=reached, hint="test") as t:
                place, rank, low, high = (self._tests[t * 4 + k] for k in range(4))
                place = place.to(I64)
                if copies < self._places.copies:
                    place = place & (self._places.width - 1)
                column = at + place * CHUNK
                rank = b.splat(b.bitcast(rank, I16), lanes)
                low, high = (b.splat(x.to(U8), lanes) for x in (low, high))
                for k, exit_ in enumerate(reached):
                    left = rank > columns[column + k * lanes, Vec(I16, lanes)]
                    reached[k] = b.select(exit_.eq(low) & ~left, high, exit_)
            for k, exit_ in enumerate(reached):
                exits[to + k * lanes] = exit_

        most = CHUNK // lanes
        registers = ((count + (lanes - 1)) // lanes).min(most)
        b.switch(registers - 1, [partial(run, k + 1) for k in range(most)])

    def add_tree(self, tree: Value, sums: Buffer) -> None:
        add = partial(self._add_tree, tree, sums)
        self.tiling.by_copies(self._missing, add)

    def _add_tree(self, tree: Value, sums: Buffer, copies: int) -> None:
        add, _ = self.adder(tree, sums)
        top = self._tops[tree].to(I64)
        n_pieces = self._tops[tree + 1].to(I64) - top - 1
        self._fill_buckets(top, n_pieces, copies)
        first = b.const(0)
        with b.loop(n_pieces, hint="piece") as g:
            count, bucket = self._counts[g], g * (self.block + SPARE)
            tests, leaf = self._piece(top + 1 + g)
            with b.loop(0, count, CHUNK, hint="chunk") as c:
                here, start = (count - c).min(CHUNK), bucket + c
                last = here - 1

                def row(i: Value, start: Value = start) -> Value:
                    return self._buckets[start + i].to(I64)

                with b.loop(0, here, SQUARE, hint="group") as i:
                    rows = [row((i + k).min(last)) for k in range(SQUARE)]
                    self._transpose(copies, rows, self._piece_columns, i)
                self._run_chunk(
                    here, copies, tests, self._piece_columns, first,
                    self._piece_exits, first,
                )  # fmt: skip
                with b.loop(here, hint="row") as i:
                    add(row(i), leaf + self._piece_exits[i].to(I64))

    def _piece(self, number: Value) -> tuple[tuple[Value, Value], Value]:
        at = number * 2
        first, leaf, end = (self._pieces[at + k].to(I64) for k in range(3))
        return (first, end), leaf

    def _fill_buckets(self, top: Value, n_pieces: Value, copies: int) -> None:
        width = copies * self._places.width
        tests, _ = self._piece(top)
        with b.loop(0, self.n, CHUNK, hint="chunk") as r:
            self._run_chunk(
                self.n - r, copies, tests, self._columns, r * width, self._exits, r
            )
        with b.loop(n_pieces, hint="piece") as g:
            self._counts[g] = 0
        with b.loop(self.n, hint="row") as r:
            g = self._exits[r].to(I64)
            count = self._counts[g]
            self._buckets[g * (self.block + SPARE) + count] = r.to(U16)
            self._counts[g] = count + 1
