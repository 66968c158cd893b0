"""Blocks of rows to codes as LIR: by columns, with searches in registers.

The generated code, lanes being rows::

    for each tile of the rows' columns that is used:
      columns = transpose(rows of the block, columns of the tile)
      for each column of codes that reads one of them:
        code = 0
        for the upper levels of the search: code = 2 code + (x passes table[code])
        for the levels below, of long columns: the same, the table being in memory
        code = what a missing value gets, where x is missing
        words[column / 2 or 4] |= code << its place
    codes = transpose(words)

Two or four codes share a word, so that one transpose of words turns them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.category_tests import outside_set
from skforge.compiler.binning.rows import BlockRows, Model
from skforge.compiler.binning.transpose import (
    WIDE,
    ColumnTile,
    pivot_of,
    tile_starts,
    transpose,
)
from skforge.compiler.forest.arrays import ZERO_THRESHOLD, Comparison, Missing
from skforge.compiler.forest.bins import CodeTable, ColumnKind, code_stride
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import (
    BOOL,
    F32,
    I32,
    I64,
    U32,
    Buffer,
    CompareOp,
    Scalar,
    Value,
    Vec,
)
from skforge.compiler.ir.lir.numpy_types import scalar_of

#: Rows turned together: their words stay in the second cache for 4000 columns.
PART = 128


def part_rows(block: int, word_lanes: int) -> int:
    """Return the rows that are turned together: whole vectors of words."""
    return min(PART, -(-block // word_lanes) * word_lanes)


#: Levels that a search in registers is written for; others are rounded up.
LEVELS = (4, 6, 8)


class What:
    """Kinds of column beside the levels of a search."""

    EQUAL, SET, MEMBER = -1, -2, -3


#: What a column is (levels in registers, or one of What), whether more levels follow
#: in memory, its kind of missing value, and whether that gets another code than 0.
Kind = tuple[int, bool, Missing, bool]


class ColumnCodes:
    """Writes the codes of a block of rows; ``model`` declares its buffers.

    Parameters
    ----------
    b : Builder
        Receives the code.
    table : CodeTable
        The columns.
    forest : Forest
        Normalised.
    comparison : {"lt", "le"}
        How its thresholds compare.
    lanes : int
        Numbers of a row in a vector register.
    levels : int
        Levels of a search that registers hold; 0: all are read from memory.
    lockstep : int
        Vectors of rows searched together.
    held : int
        Registers that one permute looks up in.
    block : int
        Most rows of a block.
    model : callable
        Declares a buffer of model data.
    """

    def __init__(
        self,
        b: Builder,
        table: CodeTable,
        forest: Forest,
        comparison: str,
        lanes: int,
        levels: int,
        lockstep: int,
        held: int,
        block: int,
        model: Model,
    ) -> None:
        self.b, self.t, self.forest, self.lanes = b, table, forest, lanes
        self._model = model
        self._op: CompareOp = "ge" if comparison == "lt" else "gt"
        self._held = held
        self._scalar: Scalar = scalar_of(forest.threshold.dtype)
        self._index = U32 if self._scalar == F32 else I64
        self._word_lanes = lanes if self._scalar == F32 else 2 * lanes
        self._part = part_rows(block, self._word_lanes)
        self._lockstep = next(
            k for k in (lockstep, 2, 1) if self._part % (k * lanes) == 0
        )
        self._per_word = 4 // table.dtype.itemsize
        self._words = -(-table.n_columns * table.dtype.itemsize // 4)
        self._registers = tuple(k for k in LEVELS if k <= levels) or (0,)
        if levels and levels not in LEVELS:
            self._registers = (*self._registers, levels) if levels > 4 else (levels,)
        self._plan()

    # ------------------------------------------------------------ what to do

    def _plan(self) -> None:
        """Lay out the jobs: a column of codes each, by tile of the rows' columns."""
        t, forest = self.t, self.forest
        starts = tile_starts(np.unique(t.feature), forest.n_features, self.lanes)
        tile = np.searchsorted(starts, t.feature, "right") - 1
        kinds: list[Kind] = []
        case, offset, extra = [], [], []
        numbers: list[NDArray[Any]] = []
        size = 0
        for c in range(t.n_columns):
            kind, values, more = self._job(c)
            if kind not in kinds:
                kinds.append(kind)
            case.append(kinds.index(kind))
            values = np.append(values, np.zeros(-len(values) % self.lanes))
            offset.append(size)
            extra.append(more)
            numbers.append(values)
            size += len(values)
        self._kinds = kinds
        column = np.arange(t.n_columns)
        model = self._model
        self._tile_start = model("code_tile", np.asarray(starts, np.int64))
        ends = np.searchsorted(tile, np.arange(len(starts) + 1))
        self._n_tiles = len(starts)
        self._tile_jobs = model("code_tile_jobs", ends.astype(np.int64))
        within = t.feature - np.asarray(starts)[tile]
        self._column = model("code_column", (within * self._part).astype(np.int64))
        self._word = model("code_word", column // self._per_word * self._part)
        bits = column % self._per_word * (8 * t.dtype.itemsize)
        self._shift = model("code_shift", bits.astype(np.uint32))
        self._case = model("code_case", np.asarray(case, np.int64))
        self._offset = model("code_offset", np.asarray(offset, np.int64))
        self._extra = model("code_extra", np.asarray(extra, np.int64))
        # A number of a test may be that of a set, which a float32 would round.
        dtype = forest.threshold.dtype
        self._numbers = model("code_numbers", np.concatenate(numbers).astype(dtype))
        sets = np.cumsum(forest.comparison >= Comparison.IN) - 1
        first = t.predicates[t.offset[:-1]]
        self._set = model("code_set", sets[first].astype(np.int64))
        single = t.kind == ColumnKind.TEST
        right = np.where(single, 1, t.counts)
        self._gone = model("code_gone", np.where(t.missing_left, 0, right))

    def _job(self, c: int) -> tuple[Kind, NDArray[Any], int]:
        """Return a column's kind, its numbers, and levels searched in memory."""
        t = self.t
        missing = Missing(int(t.missing[c]))
        gone = missing != Missing.NEVER and not t.missing_left[c]
        part = t.thresholds[t.offset[c] : t.offset[c + 1]]
        if t.kind[c] == ColumnKind.TEST:
            test = self.forest.comparison[t.predicates[t.offset[c]]]
            what = {Comparison.EQ: What.EQUAL, Comparison.MEMBER: What.MEMBER}
            # Tests for sets say something else of a missing value than 0.
            kind = (what.get(Comparison(test), What.SET), False, missing, True)
            return kind, part, 0
        depth = max(1, len(part).bit_length())
        held = next((k for k in self._registers if k >= depth), self._registers[-1])
        more = max(0, depth - held)
        kind = (held, more > 0, missing, bool(gone))
        return kind, self._search_table(part, held, more), more

    def _search_table(
        self, thresholds: NDArray[Any], held: int, more: int
    ) -> NDArray[Any]:
        """Return the pivots of each level, by the code found so far.

        Past the last threshold pivots are NaN, which nothing passes. Levels in
        registers fill whole ones.
        """
        levels = held + more
        padded = np.full(1 << levels, np.nan)
        padded[: len(thresholds)] = thresholds
        parts = []
        for j in range(levels):
            entries = max(self.lanes, 1 << j) if j < held else 1 << j
            prefix = np.arange(entries) & ((1 << j) - 1)
            parts.append(padded[(prefix << (levels - j)) + (1 << (levels - j - 1)) - 1])
        return np.concatenate(parts)

    # ------------------------------------------------------------ the stage

    def encode(self, rows: BlockRows, count: Value, codes: Buffer) -> None:
        """Fill ``codes`` for the first ``count`` rows of a block, and a few more.

        ``codes`` has room for whole parts of rows.
        """
        b = self.b
        self._wide = rows.n_features > WIDE
        self._columns = ColumnTile(b, self._scalar, self.lanes, self._part, lambda x: x)
        padded = -(-self._words // self._word_lanes) * self._word_lanes
        size = padded * self._part
        words = b.alloc("code_words", U32, b.const(size), alignment=64)
        zero = b.const(0, Vec(U32, self._word_lanes))

        def part(r: Value, _: tuple[Value, ...]) -> None:
            def clear(i: Value, _: tuple[Value, ...]) -> None:
                b.store(words, i, zero)

            step = b.const(self._word_lanes)
            b.for_(b.const(0), b.const(size), step, clear, hint="word")
            first = b.binary("add", rows.first, r)
            here = replace(rows, first=first)
            left = b.binary("min", b.binary("sub", count, r), self._part)
            self._part_codes(here, left, words)
            self._turn(words, r, left, codes)

        b.for_(b.const(0), count, b.const(self._part), part, hint="part")

    def _part_codes(self, rows: BlockRows, left: Value, words: Buffer) -> None:
        b, n_tiles = self.b, self._n_tiles

        def tile(i: Value, _: tuple[Value, ...]) -> None:
            self._columns.fill(rows, b.load(self._tile_start, i))
            first = b.load(self._tile_jobs, i)
            last = b.load(self._tile_jobs, b.add(i, 1))
            following = b.binary("min", b.add(i, 1), n_tiles - 1)
            ahead = b.load(self._tile_start, following)
            jobs = b.sub(last, first)

            def job(j: Value, _: tuple[Value, ...]) -> None:
                if self._wide:
                    self._columns.prefetch(rows, ahead, b.binary("sub", j, first), jobs)
                self._column_codes(j, left, words)

            b.for_(first, last, b.const(1), job, hint="job")

        b.for_(b.const(0), b.const(n_tiles), b.const(1), tile, hint="tile")

    def _column_codes(self, j: Value, left: Value, words: Buffer) -> None:
        b = self.b

        def case(kind: Kind) -> Callable[[], None]:
            return lambda: self._rows_of(kind, j, left, words)

        cases = [case(kind) for kind in self._kinds]
        if len(cases) == 1:
            cases[0]()
        else:
            b.switch(b.load(self._case, j), cases)

    def _rows_of(self, kind: Kind, j: Value, left: Value, words: Buffer) -> None:
        """Write one column of codes of a part."""
        b, n = self.b, self.lanes
        what, deep, missing, right = kind
        column, word = b.load(self._column, j), b.load(self._word, j)
        shift = b.splat(b.load(self._shift, j), n)
        offset = b.load(self._offset, j)
        gone = b.splat(b.convert(b.load(self._gone, j), self._index), n)
        tables = self._tables(what, offset) if what > 0 else []
        step = self._lockstep * n

        def some(r: Value, _: tuple[Value, ...]) -> None:
            raw = self._columns.vectors(b.binary("add", column, r), step)
            x = [self._clean(v, missing) for v in raw]
            if what >= 0:
                found = self._search(what, deep, x, tables, j, offset)
            else:
                found = [self._test(what, v, j, offset) for v in x]
            for i, code in enumerate(found):
                if right:
                    is_gone = self._is_missing(raw[i], missing)
                    if is_gone is not None:
                        code = b.select(is_gone, gone, code)
                elif missing == Missing.ZERO:
                    is_gone = self._is_missing(raw[i], missing)
                    assert is_gone is not None
                    code = b.select(is_gone, gone, code)
                at = b.binary("add", word, b.add(r, i * n))
                code = b.binary("shl", b.convert(code, U32), shift)
                old = b.load(words, at, Vec(U32, n))
                b.store(words, at, b.binary("or", old, code))

        b.for_(b.const(0), left, b.const(step), some, hint="rows")

    def _clean(self, x: Value, missing: Missing) -> Value:
        if missing != Missing.NEVER:
            return x
        return self.b.select(self.b.is_nan(x), self.b.const(0.0, x.type), x)

    def _is_missing(self, x: Value, missing: Missing) -> Value | None:
        b = self.b
        if missing == Missing.NEVER:
            return None
        gone = b.is_nan(x)
        if missing == Missing.ZERO:
            near = b.compare("le", x, b.const(ZERO_THRESHOLD, x.type))
            far = b.compare("ge", x, b.const(-ZERO_THRESHOLD, x.type))
            gone = b.binary("or", gone, b.binary("and", near, far))
        return gone

    # ------------------------------------------------------------ codes

    def _tables(self, levels: int, offset: Value) -> list[list[Value]]:
        """Load the pivots of the levels that registers hold."""
        b, n = self.b, self.lanes
        tables: list[list[Value]] = []
        at = 0
        for j in range(levels):
            vectors = max(1, (1 << j) // n)
            tables.append(
                [
                    b.load(self._numbers, b.add(offset, at + v * n), self._columns.vec)
                    for v in range(vectors)
                ]
            )
            at += vectors * n
        return tables

    def _search(
        self,
        levels: int,
        deep: bool,
        x: list[Value],
        tables: list[list[Value]],
        j: Value,
        offset: Value,
    ) -> list[Value]:
        """Return how many thresholds each number passes, vectors in lockstep."""
        b = self.b
        index_vec = Vec(self._index, self.lanes)
        codes = [b.const(0, index_vec)] * len(x)
        answers: list[list[Value]] = [[] for _ in x]  # the last level's first
        for table in tables:
            for v in range(len(x)):
                pivot = pivot_of(b, table, codes[v], answers[v], self._held)
                codes[v], passed = self._descend(codes[v], x[v], pivot)
                answers[v].insert(0, passed)
        if not deep:
            return codes
        held = sum(max(self.lanes, 1 << k) for k in range(levels))
        base, size = b.add(offset, held), b.const(1 << levels)

        def level_in_memory(_: Value, carried: tuple[Value, ...]) -> list[Value]:
            base, size, *now = carried
            start = b.convert(b.splat(base, self.lanes), self._index)
            made = []
            for v, code in enumerate(now):
                at = b.binary("add", start, code)
                at = b.bitcast(at, I32) if self._index == U32 else at
                pivot = b.load(self._numbers, at)
                made.append(self._descend(code, x[v], pivot)[0])
            return [b.binary("add", base, size), b.binary("add", size, size), *made]

        extra = b.load(self._extra, j)
        _, _, *codes = b.for_(
            b.const(0), extra, b.const(1), level_in_memory, [base, size, *codes]
        )
        return codes

    def _descend(self, code: Value, x: Value, pivot: Value) -> tuple[Value, Value]:
        """Return ``2 code``, or one more where x passes the pivot, and where."""
        b = self.b
        twice = b.binary("add", code, code)
        passed = b.compare(self._op, x, pivot)
        return b.select(passed, b.binary("or", twice, 1), twice), passed

    def _test(self, what: int, x: Value, j: Value, offset: Value) -> Value:
        """Return 1 where a single test sends the row right."""
        b, n = self.b, self.lanes
        if what == What.EQUAL:
            number = b.splat(b.load(self._numbers, offset), n)
            right = b.compare("ne", x, number, unordered=True)
        else:
            exact = b.const(True, BOOL) if what == What.MEMBER else None
            number = b.load(self._set, j)
            safe = b.select(b.is_nan(x), b.const(0.0, x.type), x)
            right = outside_set(b, self.forest, number, safe, exact, self._model)
        vec = Vec(self._index, n)
        return b.select(right, b.const(1, vec), b.const(0, vec))

    # ------------------------------------------------------------ turning

    def _turn(self, words: Buffer, r: Value, left: Value, codes: Buffer) -> None:
        """Transpose the words of a part to rows of codes."""
        b, n = self.b, self._word_lanes
        stride = code_stride(self.t)
        row_vec, code_vec = Vec(U32, n), Vec(codes.element, n * self._per_word)

        def tile(w: Value, _: tuple[Value, ...]) -> None:
            column = b.mul(w, self._part)
            place = b.mul(w, self._per_word)

            def group(i: Value, _: tuple[Value, ...]) -> None:
                at = b.binary("add", column, i)
                vectors = [
                    b.load(words, b.add(at, k * self._part), row_vec) for k in range(n)
                ]
                to = b.mul(b.binary("add", r, i), stride)
                to = b.binary("add", to, place)
                for k, row in enumerate(transpose(b, vectors, 4)):
                    b.store(codes, b.add(to, k * stride), b.reinterpret(row, code_vec))

            b.for_(b.const(0), left, b.const(n), group, hint="group")

        b.for_(b.const(0), b.const(self._words), b.const(n), tile, hint="words")
