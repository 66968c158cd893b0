"""Emits the lines of category-set tests, eight sets a look-up.

A byte of a table holds one category's answers for eight sets, so one permute of 64
rows' categories answers all of them; each bit of the result is then a line::

    entry = category of each row, or that of none, or that of a missing value
    for each table:
      for 64 rows at a time:
        bits = table[entry]
        line[0..8] = top bit of bits, of 2 bits, of 4 bits, ..

Sets with more categories than a table has entries are tested one by one.
"""

from __future__ import annotations

from skforge.compiler.binning.rules import Rules
from skforge.compiler.binning.transpose import ColumnTile, store_masks
from skforge.compiler.ir.lir.nodes import I64, U8, Buffer, Value, Vec
from skforge.compiler.layouts.bitsliced.predicate_table import (
    SETS_A_BYTE,
    Job,
    PredicateTable,
)

#: Rows of one look-up.
SET_ROWS = 64


class SetLines:
    """Emits the lines of one tile's category columns."""

    def __init__(
        self,
        rules: Rules,
        table: PredicateTable,
        columns: ColumnTile,
        lines: Buffer,
        line_bytes: int,
    ) -> None:
        self.b, self.t, self.columns, self._rules = rules.b, table, columns, rules
        self._lines, self.line_bytes = lines, line_bytes

    def by_tables(self, entries: int, job: Job, left: Value) -> None:
        """Write a job's lines for ``left`` rows from tables of ``entries`` entries.

        Up to seven lines too many are written.
        """
        b, n = self.b, self.columns.lanes
        tables = self._rules.model("set_tables", self.t.set_tables)
        vec = Vec(U8, SET_ROWS)
        size = b.const(self.columns.part)
        codes = b.alloc("categories", U8, size, alignment=64)

        with b.loop(0, size, n, hint="row") as v:
            (x,) = self.columns.vectors(b.binary("add", job.column, v), n)
            b.store(codes, v, b.convert(self._rules.category_entry(x, entries), U8))
        top = b.const(1 << 7, vec)

        groups = b.binary("div", b.add(job.count, SETS_A_BYTE - 1), SETS_A_BYTE)
        with b.loop(groups, hint="sets") as g:
            first = b.binary("add", job.offset, b.mul(g, entries))
            registers = [
                b.load(tables, b.add(first, at), vec)
                for at in range(0, entries, SET_ROWS)
            ]
            own = b.binary("add", job.place, b.mul(g, SETS_A_BYTE * self.line_bytes))

            with b.loop(0, left, SET_ROWS, hint="rows") as r:
                bits = b.permute(registers, b.load(codes, r, vec))
                at = b.binary("add", own, b.binary("div", r, 8))
                for k in range(SETS_A_BYTE):
                    mask = b.mask_bits(b.compare("ge", bits, top), I64)
                    b.store(self._lines, b.add(at, k * self.line_bytes), mask)
                    bits = b.binary("add", bits, bits)

    def one_by_one(self, numbers: Buffer, job: Job) -> None:
        """Write the lines of sets whose numbers are at the job's offset."""
        b, step = self.b, max(8, self.columns.lanes)

        with b.loop(job.count, hint="set") as i:
            number = b.load(numbers, b.binary("add", job.offset, i))
            at = b.binary("add", job.place, b.mul(i, self.line_bytes))

            def outside(x: Value) -> Value:
                out = b.invert(self._rules.in_set(number, x))
                # A missing value has its own rule, so it does not go right here.
                return b.binary("and", out, b.invert(b.is_nan(x)))

            end = b.const(self.columns.part)
            with b.loop(0, end, step, hint="v") as v:
                some = self.columns.vectors(b.binary("add", job.column, v), step)
                masks = [outside(x) for x in some]
                place = b.binary("add", at, b.binary("div", v, 8))
                store_masks(b, self._lines, place, masks)
