"""Lines of tests for sets of categories: the answers of eight sets by one look-up.

A byte of a table holds what one category says to eight sets, so that one permute of 64
rows' categories answers them all; each bit of the result is then a line::

    entry = category of each row, or that of none, or that of a missing value
    for each table:
      for 64 rows at a time:
        bits = table[entry]
        line[0..8] = top bit of bits, of 2 bits, of 4 bits, ..

Sets of more categories than a table has entries are tested one by one.
"""

from __future__ import annotations

from skforge.compiler.binning.category_tests import category_entry, outside_set
from skforge.compiler.binning.rows import Model
from skforge.compiler.binning.transpose import ColumnTile, store_masks
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I64, U8, Buffer, Value, Vec
from skforge.compiler.layouts.bitsliced.predicate_table import (
    SETS_A_BYTE,
    PredicateTable,
)

#: Rows of a look-up in tables of sets.
SET_ROWS = 64


class SetLines:
    """Writes the lines of one tile's columns of categories."""

    def __init__(
        self,
        b: Builder,
        table: PredicateTable,
        forest: Forest,
        columns: ColumnTile,
        line_bytes: int,
        model: Model,
    ) -> None:
        self.b, self.t, self.forest, self.columns = b, table, forest, columns
        self.line_bytes, self._model = line_bytes, model

    def by_tables(
        self,
        entries: int,
        column: Value,
        line: Value,
        count: Value,
        offset: Value,
        left: Value,
        lines: Buffer,
    ) -> None:
        """Write the lines of ``count`` sets from the tables at ``offset``.

        Parameters
        ----------
        entries : int
            Of a table.
        column, line : Value
            Where the column starts in its tile, and the first line in ``lines``.
        count, offset : Value
            Number of sets, and where their tables are.
        left : Value
            Rows of the part.
        lines : Buffer
            Of bits; up to seven lines too many are written.
        """
        b, n = self.b, self.columns.lanes
        tables = self._model("set_tables", self.t.sets)
        vec = Vec(U8, SET_ROWS)
        size = b.const(self.columns.part)
        codes = b.alloc("categories", U8, size, alignment=64)

        def entry(v: Value, _: tuple[Value, ...]) -> None:
            (x,) = self.columns.vectors(b.binary("add", column, v), n)
            b.store(codes, v, b.convert(category_entry(b, self.forest, x, entries), U8))

        b.for_(b.const(0), size, b.const(n), entry, hint="row")
        top = b.const(1 << 7, vec)

        def group(g: Value, _: tuple[Value, ...]) -> None:
            first = b.binary("add", offset, b.mul(g, entries))
            registers = [
                b.load(tables, b.add(first, at), vec)
                for at in range(0, entries, SET_ROWS)
            ]
            own = b.binary("add", line, b.mul(g, SETS_A_BYTE * self.line_bytes))

            def rows(r: Value, _: tuple[Value, ...]) -> None:
                bits = b.permute(registers, b.load(codes, r, vec))
                at = b.binary("add", own, b.binary("div", r, 8))
                for k in range(SETS_A_BYTE):
                    mask = b.mask_bits(b.compare("ge", bits, top), I64)
                    b.store(lines, b.add(at, k * self.line_bytes), mask)
                    bits = b.binary("add", bits, bits)

            b.for_(b.const(0), left, b.const(SET_ROWS), rows, hint="rows")

        groups = b.binary("div", b.add(count, SETS_A_BYTE - 1), SETS_A_BYTE)
        b.for_(b.const(0), groups, b.const(1), group, hint="sets")

    def one_by_one(
        self,
        numbers: Buffer,
        column: Value,
        line: Value,
        count: Value,
        offset: Value,
        lines: Buffer,
    ) -> None:
        """Write the lines of sets whose numbers are at ``offset`` of ``numbers``."""
        b, n = self.b, self.columns.lanes

        def one(i: Value, _: tuple[Value, ...]) -> None:
            number = b.load(numbers, b.binary("add", offset, i))
            at = b.binary("add", line, b.mul(i, self.line_bytes))

            def outside(x: Value) -> Value:
                out = outside_set(b, self.forest, number, x, None, self._model)
                # A missing value goes by its own rule: not right by itself.
                return b.binary("and", out, b.invert(b.is_nan(x)))

            step = max(8, n)

            def vectors(v: Value, _: tuple[Value, ...]) -> None:
                some = self.columns.vectors(b.binary("add", column, v), step)
                masks = [outside(x) for x in some]
                place = b.binary("add", at, b.binary("div", v, 8))
                store_masks(b, lines, place, masks)

            end = b.const(self.columns.part)
            b.for_(b.const(0), end, b.const(step), vectors, hint="v")

        b.for_(b.const(0), count, b.const(1), one, hint="set")
