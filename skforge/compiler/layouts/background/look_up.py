"""Emits the patterns of blocks of rows: to count them, and to look contributions up.

For each group of leaves, a row's pattern is put together from the bits of the edges. It
is kept as the index of the pattern's entry in tables whose entries have ``SLOTS``
contributions. Entries of four rows are loaded and shuffled to columns, which are added
to the sums. This took 2.9 us a row at 512 bits and 3.8 at 256 (100 trees of depth 6,
larger tables than now), gathers of columns 10 and 6, and scalars 5.7 and 4.5.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from skforge.compiler.binning.rules import BlockRows, ReadingRules
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import F64, I64, U16, U32, Buffer, Mask, Value, Vec
from skforge.compiler.ir.lir.types import scalar_of
from skforge.compiler.ir.mir.nodes import Element
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.background.patterns import SLOTS, Patterns
from skforge.compiler.layouts.background.walk import Background
from skforge.compiler.layouts.base import MakeCode
from skforge.compiler.layouts.blocks.tree_block import TreeBlock
from skforge.compiler.target import Target

#: Rows of a block.
BLOCK = 512

#: Rows whose patterns are made together.
TOGETHER = 32

#: Rows whose counts are in an array of their own, so that threads can count them.
COUNTED = 4096

HALF, WHOLE = Vec(F64, 2), Vec(F64, SLOTS)

#: Bytes of a block's sums, at most; forests of wider rows are walked.
SUM_BYTES = 32 << 20


def patterns_of(hir: PredictEnsemble) -> Patterns | None:
    forest = hir.forest
    fits = BLOCK * 8 * forest.n_features * forest.leaf_value.shape[1] <= SUM_BYTES
    return hir.shared.once(("patterns",), lambda: Patterns.of(forest) if fits else None)


class PatternCode(TreeBlock):
    def __init__(
        self, rules: ReadingRules, patterns: Patterns, rows: BlockRows
    ) -> None:
        element = scalar_of(patterns.trees.forest.threshold.dtype)
        super().__init__(rules, patterns.trees, rows, BLOCK, element)
        self._p = patterns
        self._of_trees("first_group", "last_group", patterns.start)
        self._bit_start = self._table("bit_start", patterns.bit_start)
        self._bit_edge = self._table("bit_edge", patterns.edge * self.line)
        self._patterns = self.alloc("patterns", U16, BLOCK)

    def add_tree(self, tree: Value, sums: Buffer) -> None:
        numbers = self._numbers_of(tree)
        self.pass_tests(numbers["first"], numbers["last"])
        with b.loop(numbers["first_group"], numbers["last_group"], hint="group") as g:
            self._put_together(g)
            self.add_group(g, sums)
        self.write_if_last(numbers["output"], sums)

    def _put_together(self, group: Value) -> None:
        type_ = Vec(U16, TOGETHER)
        first, last = (self.number(self._bit_start, group + k) for k in (0, 1))
        with b.loop(0, self._count, TOGETHER, hint="row") as row:
            byte = row // 8
            state = [b.const(0, type_), b.const(SLOTS, type_)]
            with b.loop(first, last, carry=state, hint="bit") as i:
                pattern, bit = state
                edge = self.number(self._bit_edge, i)
                mask = b.reinterpret(self.passed[edge + byte, U32], Mask(TOGETHER))
                pattern = pattern | b.select(mask, bit, 0)
                state[:] = [pattern, bit + bit]
            self._patterns[row] = state[0]

    @abstractmethod
    def add_group(self, group: Value, sums: Buffer) -> None:
        """Add what a group of leaves gives to the rows of each pattern."""


class CountCode(PatternCode):
    """Counts how many rows of the batch have each pattern.

    The result is not by row: it has counts of all groups, for each ``COUNTED`` rows.
    """

    def __init__(
        self, rules: ReadingRules, patterns: Patterns, rows: BlockRows
    ) -> None:
        super().__init__(rules, patterns, rows)
        self._count_start = self._table("count_start", patterns.count_start)
        self._part = rows.first // COUNTED * patterns.n_counts

    def start(self, sums: Buffer) -> None:
        """Do nothing: the caller clears the counts."""

    def add_group(self, group: Value, sums: Buffer) -> None:
        start = self._part + self.number(self._count_start, group)
        with b.loop(self._count, hint="row") as row:
            at = start + (self._patterns[row].to(I64) // SLOTS)
            self._result[at] = self._result[at] + 1

    def write_if_last(self, output: Value, sums: Buffer) -> None:
        """Do nothing, as no row has a result."""

    def finish(self, sums: Buffer, result: Buffer, first: Value, count: Value) -> None:
        """Do nothing, as no row has a result."""


class LookUpCode(PatternCode):
    def __init__(
        self, rules: ReadingRules, patterns: Patterns, rows: BlockRows
    ) -> None:
        super().__init__(rules, patterns, rows)
        table, p = self._table, patterns
        self._size = table("group_size", SLOTS << p.bits)
        self._slot_start = table("slot_start", p.slot_start)
        self._column = table("slot_column", p.column * BLOCK)
        self._table_start = self._model("table_start", p.table_start)
        # Of the background rows: these stand for none, see ``explanations.background``.
        self._tables = self._model("tables", np.zeros(1))
        self._outputs = self._model("table_outputs", np.zeros(1, np.int64))

    def start(self, sums: Buffer) -> None:
        columns = self._n_held * self._t.forest.n_features
        with (
            b.loop(columns, hint="column") as column,
            b.loop(0, self._count, SLOTS, hint="row") as row,
        ):
            sums[column * BLOCK + row] = b.const(0.0, WHOLE)

    def add_group(self, group: Value, sums: Buffer) -> None:
        size = self.number(self._size, group)
        first, last = (self.number(self._slot_start, group + k) for k in (0, 1))
        with b.loop(self._outputs[0], hint="output") as output:
            table = output * self._p.table_size + self._table_start[group]
            total = output * (self._t.forest.n_features * BLOCK)
            chunk = [table]
            with b.loop(first, last, SLOTS, carry=chunk, hint="slot") as slot:
                columns = [
                    total + self.number(self._column, slot + k) for k in range(SLOTS)
                ]
                self._look_up(chunk[0], columns, sums)
                chunk[0] = chunk[0] + size

    def _look_up(self, table: Value, columns: list[Value], sums: Buffer) -> None:
        with b.loop(0, self._count, SLOTS, hint="row") as row:
            at = [table + self._patterns[row + k].to(I64) for k in range(SLOTS)]
            for half in range(2):
                # Rows 0 and 2, rows 1 and 3; each has two columns.
                pairs = [
                    b.shuffle(
                        self._tables[at[k] + 2 * half, HALF],
                        self._tables[at[k + 2] + 2 * half, HALF],
                        (0, 1, 2, 3),
                    )
                    for k in range(2)
                ]
                for k in range(2):
                    place = columns[2 * half + k] + row
                    values = b.shuffle(pairs[0], pairs[1], (k, 4 + k, 2 + k, 6 + k))
                    sums[place] = sums[place, WHOLE] + values


class Patterned(Background):
    """``represent("patterns")``: only for ``predict_contribs``."""

    name = "patterns"
    block = BLOCK
    row_group = 64  # threads share small batches
    code: type[PatternCode] = LookUpCode

    def check_block(self, hir: PredictEnsemble, block: int) -> None:
        if patterns_of(hir) is None:
            self.refuse('has no room for tables of this forest; use "background".')
        super().check_block(hir, block)

    def block_code(self, hir: PredictEnsemble, target: Target, block: int) -> MakeCode:
        patterns = patterns_of(hir)
        assert patterns is not None
        return lambda rules, rows: self.code(rules, patterns, rows)


class Counted(Patterned):
    """``represent("counts")``: how many rows have each pattern."""

    name = "counts"
    row_group = 0
    elements: tuple[Element, ...] = ("pattern",)
    code = CountCode


layouts.register(Patterned())
layouts.register(Counted())
