"""Emits the tests of a block of rows, tree by tree and piece by piece.

For each tree::

    for each 32 rows:      exit = run(tests of the top, columns of the block)
    for each row:          its number joins the bucket of its exit
    for each piece:        columns = transpose(codes of the rows in its bucket)
                           exit = run(tests of the piece, columns)
                           sums[row] += value[first leaf + exit]

``run`` lets every row meet every test, so no branch and no address depends on a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from skforge.compiler.binning.rules import Model
from skforge.compiler.binning.transpose import transpose
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I16, I64, U8, U16, Buffer, Value, Vec
from skforge.compiler.layouts.pieces.cut import CutTrees
from skforge.compiler.layouts.tiles.tile_leaves import LeafSums
from skforge.compiler.layouts.tiles.tiled_trees import BlockWalks, Tiling

#: Rows whose tests run together, in several registers.
CHUNK = 128

#: Rows of a register of exits.
LANES = 32


class PieceWalks(BlockWalks):
    """Emits the tests of one block of rows."""

    def __init__(
        self, b: Builder, tiling: Tiling, trees: CutTrees, block: int, model: Model
    ) -> None:
        self.b, self.tiling, self.block, self._model = b, tiling, block, model
        self.width = tiling.codes.width
        self._n = tiling.target.vector_bits // 16
        self._vec = Vec(U16, self._n)
        self._trees = trees
        self._tests = model("piece_tests", trees.tests.reshape(-1))
        self._pieces = model("pieces", trees.pieces.reshape(-1))
        self._tops = model("piece_tops", trees.top)
        chunks = -(-block // CHUNK)
        self._stride = block + 96
        columns = self.width * tiling.codes.copies * CHUNK
        self._columns = b.alloc("columns", I16, b.const(chunks * columns), alignment=64)
        self._some = b.alloc("piece_columns", I16, b.const(columns), alignment=64)
        self._exits = b.alloc("exits", U8, b.const(chunks * CHUNK), alignment=64)
        self._exit = b.alloc("piece_exits", U8, b.const(CHUNK), alignment=64)
        most = trees.most_pieces
        self._counts = b.alloc("counts", I64, b.const(most), alignment=64)
        self._bucket = b.alloc("bucket", U16, b.const(most * self._stride), alignment=64)

    def take(self, rows: object) -> None:
        """Quantise the rows of the block, and transpose their codes."""
        super().take(rows)
        self._either(self._take)

    def _either(self, emit: Callable[[int], None]) -> None:
        """Emit code for both copies of the codes, and for one if no value is missing."""
        if self.tiling.codes.copies == 1:
            emit(1)
        else:
            missing = self._encoded[1]
            self.b.if_(missing, lambda: emit(2), lambda: emit(1))

    def _take(self, copies: int) -> None:
        size, last = copies * self.width * CHUNK, self.n - 1
        with self.b.loop(0, self.n, self._n, hint="row") as r:
            chunk = r // CHUNK * size + r % CHUNK
            rows = [(r + i).min(last) for i in range(self._n)]
            self._transpose(copies, rows, self._columns, chunk)

    def _transpose(
        self, copies: int, rows: Sequence[Value], to: Buffer, at: Value
    ) -> None:
        """Write the codes of some rows as columns of a chunk."""
        codes = self._encoded[0]
        starts = [row * self.width for row in rows]
        for copy in range(copies):
            for first in range(0, self.width, self._n):
                place = copy * self.block * self.width + first
                square = [codes[start + place, self._vec] for start in starts]
                for c, column in enumerate(transpose(self.b, square, 2)):
                    to[at + (copy * self.width + first + c) * CHUNK] = self.b.bitcast(column, I16)

    def _run(
        self, registers: int, copies: int, tests: Sequence[Value], columns: Buffer, at: Value,
        exits: Buffer, to: Value
    ) -> None:
        """Let some registers of rows meet the tests; write the exits they reach."""
        b, codes, states = self.b, Vec(I16, LANES), Vec(U8, LANES)
        state = [b.const(0, states) for _ in range(registers)]
        with b.loop(tests[0], tests[1], carry=state, hint="test") as t:
            place, rank, a, goes = (self._tests[t * 4 + k] for k in range(4))
            place = place.to(I64)
            if copies < self.tiling.codes.copies:
                place = place & (self.width - 1)
            column = at + place * CHUNK
            a, goes, rank = a.to(U8), goes.to(U8), b.bitcast(rank, I16)
            for k, exit_ in enumerate(state):
                left = b.splat(rank, LANES) > columns[column + k * LANES, codes]
                moves = exit_.eq(b.splat(a, LANES)) & ~left
                state[k] = b.select(moves, b.splat(goes, LANES), exit_)
        for k, exit_ in enumerate(state):
            exits[to + k * LANES] = exit_

    def _run_chunk(self, count: Value, *where: object) -> None:
        """Run the tests for ``count`` rows, at most a chunk."""
        most = CHUNK // LANES
        registers = (count + (LANES - 1)) // LANES
        cases = [partial(self._run, k + 1, *where) for k in range(most)]
        self.b.switch(registers.min(most) - 1, cases)

    def add_tree(self, tree: Value, sums: Buffer) -> None:
        self._either(lambda copies: self._add_tree(copies, tree, sums))

    def _add_tree(self, copies: int, tree: Value, sums: Buffer) -> None:
        b, tiling = self.b, self.tiling
        forest = tiling.hir.forest
        own: Value | None = None
        if not self._by_row and forest.n_outputs > 1:
            of_tree = forest.tree_output[tiling.hir.tiles.tree_order]
            output = self._model("tree_outputs", of_tree)[tree]
            own = output.to(I64) * self.block
        leaves = LeafSums(b, tiling.leaves, self._model)
        top = self._tops[tree].to(I64)
        n_pieces = self._tops[tree + 1].to(I64) - top - 1
        tests = [self._pieces[(top + k) * 2].to(I64) for k in (0, 1)]
        with b.loop(0, self.n, CHUNK, hint="chunk") as r:
            at = r * (copies * self.width)
            self._run_chunk(self.n - r, copies, tests, self._columns, at, self._exits, r)
        with b.loop(n_pieces, hint="piece") as g:
            self._counts[g] = b.const(0)
        with b.loop(self.n, hint="row") as r:
            g = self._exits[r].to(I64)
            count = self._counts[g]
            self._bucket[g * self._stride + count] = r.to(U16)
            self._counts[g] = count + 1
        with b.loop(n_pieces, hint="piece") as g:
            count = self._counts[g]
            piece = (top + 1 + g) * 2
            first, end = (self._pieces[piece + k].to(I64) for k in (0, 2))
            leaf = self._pieces[piece + 1].to(I64)
            bucket = g * self._stride
            with b.loop(0, count, CHUNK, hint="chunk") as c:
                here = (count - c).min(CHUNK)
                with b.loop(0, here, self._n, hint="group") as i:

                    rows = [
                        self._bucket[bucket + (c + i + k).min(count - 1)].to(I64)
                        for k in range(self._n)
                    ]
                    self._transpose(copies, rows, self._some, i)
                self._run_chunk(
                    here, copies, [first, end], self._some, b.const(0), self._exit, b.const(0)
                )
                with b.loop(here, hint="row") as i:
                    number = self._bucket[bucket + c + i].to(I64)
                    at = number * forest.n_outputs if self._by_row else number
                    at = at if own is None else own + at
                    place = leaf + self._exit[i].to(I64)
                    leaves.add(sums, at, leaves.read[place])
