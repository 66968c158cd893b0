"""Quantises blocks of rows to codes, by column, with searches in registers.

The generated code, with rows in lanes::

    for each tile of the rows' columns that is used:
      columns = transpose(rows of the block, columns of the tile)
      for each column of codes that reads one of them:
        code = 0
        for the upper levels of the search: code = 2 code + (x passes table[code])
        for the levels below, of long columns: the same, the table being in memory
        code = the code of a missing value, where x is missing
        words[column / 2 or 4] |= code << its place
    codes = transpose(words)

Two or four codes share a word, so that one transpose of words handles all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from skforge._typing import Array
from skforge.compiler.binning.row_gather import GatheredBins
from skforge.compiler.binning.rules import (
    BlockRows,
    ReadingRules,
    ThresholdPool,
    set_numbers,
)
from skforge.compiler.binning.search import Registers
from skforge.compiler.binning.transpose import WIDE, ColumnTile, tile_starts, transpose
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import F32, I32, I64, U32, Buffer, Scalar, Value, Vec
from skforge.compiler.ir.lir.types import scalar_of
from skforge.compiler.target import Target
from skforge.forest import bins
from skforge.forest.arrays import Comparison, Missing

#: Rows transposed together: their words stay in L2 for 4000 columns.
PART = 128

#: Levels for which a search in registers is emitted; others are rounded up.
LEVELS = (4, 6, 8)


def part_rows(block: int, word_lanes: int) -> int:
    return min(PART, -(-block // word_lanes) * word_lanes)


class CodeKind(NamedTuple):
    """Columns that share the same code."""

    test: int  # a column's only test, or THRESHOLDS
    levels: int  # levels of the search in registers
    deep: bool  # whether more levels follow in memory
    missing: Missing
    right: bool  # whether a missing value's code is not 0


class ColumnBins:
    def __init__(
        self,
        rules: ReadingRules,
        table: bins.CodeTable,
        registers: Registers,
        block: int,
    ) -> None:
        self.t, self._rules, self._registers = table, rules, registers
        lanes = self.lanes = registers.lanes
        self._scalar: Scalar = scalar_of(rules.forest.threshold.dtype)
        self._index = U32 if self._scalar == F32 else I64
        self._word_lanes = lanes if self._scalar == F32 else 2 * lanes
        self._part = part_rows(block, self._word_lanes)
        self._lockstep = next(
            k for k in (registers.lockstep, 2, 1) if self._part % (k * lanes) == 0
        )
        self._per_word = 4 // table.dtype.itemsize
        self._words = -(-table.n_columns * table.dtype.itemsize // 4)
        levels = registers.levels
        self._levels = tuple(k for k in LEVELS if k <= levels) or (0,)
        if levels and levels not in LEVELS:
            self._levels = (*self._levels, levels) if levels > 4 else (levels,)
        self._plan()

    # ------------------------------------------------------------ what to do

    def _plan(self) -> None:
        t, forest, model = self.t, self._rules.forest, self._rules.model
        self._right = bins.missing_right(t)
        starts = tile_starts(np.unique(t.feature), forest.n_features, self.lanes)
        tile = np.searchsorted(starts, t.feature, "right") - 1
        jobs = [self._job(c) for c in range(t.n_columns)]
        self._kinds = list(dict.fromkeys(kind for kind, _, _ in jobs))
        numbers = ThresholdPool(self.lanes, fill=0)
        offsets = np.array([numbers.add(part) for _, part, _ in jobs])
        column = np.arange(t.n_columns)
        self._tile_start = model("code_tile", np.asarray(starts, np.int64))
        ends = np.searchsorted(tile, np.arange(len(starts) + 1))
        self._n_tiles = len(starts)
        self._tile_jobs = model("code_tile_jobs", ends.astype(np.int64))
        self._wide = forest.n_features > WIDE
        self._run = ColumnTile.run(self._wide, self.lanes)
        within = t.feature - np.asarray(starts)[tile] + tile % self._run * self.lanes
        self._column = model("code_column", (within * self._part).astype(np.int64))
        self._word = model("code_word", column // self._per_word * self._part)
        bits = column % self._per_word * (8 * t.dtype.itemsize)
        self._shift = model("code_shift", bits.astype(np.uint32))
        case = [self._kinds.index(kind) for kind, _, _ in jobs]
        self._case = model("code_case", np.asarray(case, np.int64))
        self._offset = model("code_offset", offsets)
        extra = [more for _, _, more in jobs]
        self._extra = model("code_extra", np.asarray(extra, np.int64))
        # The number in a test may be a set's number, which float32 would round.
        self._numbers = model("code_numbers", numbers.array(forest.threshold.dtype))
        self._set = model("code_set", set_numbers(forest)[t.first])
        self._gone = model("code_gone", np.where(t.missing_left, 0, t.counts))

    def _job(self, c: int) -> tuple[CodeKind, Array, int]:
        t = self.t
        test, missing, bounds = int(t.test[c]), Missing(int(t.missing[c])), t.bounds(c)
        if test != bins.THRESHOLDS:
            # A set test may give a missing value either code.
            return CodeKind(test, 0, False, missing, True), bounds, 0
        depth = max(1, len(bounds).bit_length())
        held = next((k for k in self._levels if k >= depth), self._levels[-1])
        more = max(0, depth - held)
        levels = self._registers.pivots(bounds, held + more, np.nan, low_first=False)
        # Levels in memory do not have to fill registers.
        levels[held:] = [part[: 1 << j] for j, part in enumerate(levels)][held:]
        kind = CodeKind(test, held, more > 0, missing, bool(self._right[c]))
        return kind, np.concatenate(levels), more

    # ------------------------------------------------------------ the stage

    def encode(self, rows: BlockRows, count: Value, codes: Buffer) -> None:
        self._columns = ColumnTile(
            *(self._scalar, self.lanes, self._part, lambda x: x),
            *(self._run, self._wide),
        )
        size = -(-self._words // self._word_lanes) * self._word_lanes * self._part
        words = b.alloc("code_words", U32, size)
        zero = b.const(0, Vec(U32, self._word_lanes))
        with b.loop(0, count, self._part, hint="part") as r:
            with b.loop(0, size, self._word_lanes, hint="word") as i:
                words[i] = zero
            here = replace(rows, first=rows.first + r)
            left = (count - r).min(self._part)
            jobs = self._columns.jobs(
                here, self._tile_start, self._tile_jobs, self._n_tiles
            )
            with jobs as j:
                write = partial(self._column_codes, j, left, words)
                cases = [partial(write, kind) for kind in self._kinds]
                b.choose(lambda: self._case[j], cases)
            self._turn(words, r, left, codes)

    def _column_codes(
        self, j: Value, left: Value, words: Buffer, kind: CodeKind
    ) -> None:
        n = self.lanes
        column, word = self._column[j], self._word[j]
        shift = b.splat(self._shift[j], n)
        offset = self._offset[j]
        gone = b.splat(self._gone[j].to(self._index), n)
        search = self._single_test(kind, j, offset)
        if kind.test == bins.THRESHOLDS:
            search = self._searcher(kind, j, offset)
        step = self._lockstep * n
        never = kind.missing == Missing.NEVER
        # NaN passes no threshold, so its code is already 0.
        marked = not never and (kind.right or kind.missing == Missing.ZERO)
        with b.loop(0, left, step, hint="rows") as r:
            raw = self._columns.vectors(column + r, step)
            x = [self._rules.zero_for_nan(v) if never else v for v in raw]
            for i, code in enumerate(search(x)):
                if marked:
                    is_missing = self._rules.is_missing(raw[i], kind.missing)
                    code = b.select(is_missing, gone, code)
                at = word + (r + i * n)
                code = code.to(U32) << shift
                words[at] = words[at, Vec(U32, n)] | code

    # ------------------------------------------------------------ codes

    def _searcher(
        self, kind: CodeKind, j: Value, offset: Value
    ) -> Callable[[list[Value]], list[Value]]:
        tables = self._registers.load_pivots(self._numbers, offset, kind.levels)
        index_vec = Vec(self._index, self.lanes)

        def search(x: list[Value]) -> list[Value]:
            codes = [b.const(0, index_vec)] * len(x)
            answers: list[list[Value]] = [[] for _ in x]  # the last level's first
            for table in tables:
                for v in range(len(x)):
                    pivot = self._registers.pivot_of(table, codes[v], answers[v])
                    codes[v], passed = self._descend(codes[v], x[v], pivot)
                    answers[v].insert(0, passed)
            if kind.deep:
                codes = self._search_memory(kind, x, codes, j, offset)
            return codes

        return search

    def _search_memory(
        self,
        kind: CodeKind,
        x: list[Value],
        codes: list[Value],
        j: Value,
        offset: Value,
    ) -> list[Value]:
        held = sum(max(self.lanes, 1 << k) for k in range(kind.levels))
        base, size = offset + held, b.const(1 << kind.levels)
        extra = self._extra[j]
        carried = [base, size, *codes]
        with b.loop(0, extra, carry=carried):
            base, size, *codes = carried
            start = b.splat(base, self.lanes).to(self._index)
            for v, code in enumerate(codes):
                at = start + code
                at = b.bitcast(at, I32) if self._index == U32 else at
                codes[v] = self._descend(code, x[v], self._numbers[at])[0]
            carried[:] = [base + size, size + size, *codes]
        return carried[2:]

    def _descend(self, code: Value, x: Value, pivot: Value) -> tuple[Value, Value]:
        twice = code + code
        passed = self._rules.goes_right(x, pivot)
        return b.select(passed, twice | 1, twice), passed

    def _single_test(
        self, kind: CodeKind, j: Value, offset: Value
    ) -> Callable[[list[Value]], list[Value]]:
        n, rules, vec = self.lanes, self._rules, Vec(self._index, self.lanes)

        def code(x: Value) -> Value:
            if kind.test == Comparison.EQ:
                number = b.splat(self._numbers[offset], n)
            else:
                number, x = self._set[j], rules.zero_for_nan(x)
            right = rules.goes_right(x, number, kind.test, unordered=True)
            return b.select(right, b.const(1, vec), 0)

        return lambda values: [code(x) for x in values]

    # ------------------------------------------------------------ turning

    def _turn(self, words: Buffer, r: Value, left: Value, codes: Buffer) -> None:
        n = self._word_lanes
        stride = bins.code_stride(self.t)
        row_vec, code_vec = Vec(U32, n), Vec(codes.element, n * self._per_word)
        with b.loop(0, self._words, n, hint="words") as w:
            column = w * self._part
            place = w * self._per_word
            with b.loop(0, left, n, hint="group") as i:
                at = column + i
                vectors = [words[at + k * self._part, row_vec] for k in range(n)]
                to = (r + i) * stride + place
                for k, row in enumerate(transpose(vectors, 4)):
                    b.store(codes, to + k * stride, b.reinterpret(row, code_vec))


def quantize_block(
    rules: ReadingRules,
    table: bins.CodeTable,
    target: Target,
    block: int,
    rows: BlockRows,
    count: Value,
) -> Buffer:
    """Return scratch memory with the rows' codes, ``code_stride(table)`` apart."""
    registers = Registers.of(target, rules.forest.threshold.dtype)
    by_column = block >= registers.lanes
    room = block
    if by_column:
        part = part_rows(block, target.vector_bits // 32)
        room = -(-block // part) * part
    codes = b.alloc("codes", scalar_of(table.dtype), room * bins.code_stride(table))
    if not table.n_columns:  # trees of single leaves test nothing
        return codes
    if by_column:
        ColumnBins(rules, table, registers, block).encode(rows, count, codes)
    else:
        GatheredBins(rules, table, registers.lanes).encode(rows, count, codes)
    return codes
