"""The input stage of a block as LIR: rows to columns to lines of bits.

For each tile of columns that has a used feature::

    columns = transpose(rows of the block, columns of the tile)
    for each job of the tile:
      direct:    line[i] = column >= threshold[i]
      search:    bits of the code, level by level, by look-ups in registers;
                 line[i] = code > i, from the code's bits (thermometer)
      category:  line[i] = column in set[i]
      lines of tests that send a missing value right |= column is missing

Every choice is measured in the project's notes on the input stage: searches beat
compares from ten thresholds, eight vectors in lockstep beat one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from skforge.compiler.forest import ZERO_THRESHOLD, Forest
from skforge.compiler.ir.builder import Builder
from skforge.compiler.ir.lir import (
    F32,
    I64,
    U8,
    U16,
    U32,
    Buffer,
    CompareOp,
    Scalar,
    Value,
    Vec,
)
from skforge.compiler.representations.base import BlockRows, Model
from skforge.compiler.representations.category_tests import outside_set
from skforge.compiler.representations.columns import WIDE, WIDE_PART, ColumnTile
from skforge.compiler.representations.predicate_table import (
    CATEGORY,
    DIRECT,
    PredicateTable,
)

#: Rows of a part otherwise: compares of a part are unrolled, so code is bounded.
MAX_PART = 1024

#: Vectors of rows searched together: 1, 2, 4, 8 took 83, 77, 71, 89 ns a row on 90
#: columns; one waits for its look-ups, eight spill.
LOCKSTEP = 4


class PredicateLowering:
    """Writes the input stage; ``model`` declares its buffers."""

    def __init__(
        self,
        b: Builder,
        table: PredicateTable,
        forest: Forest,
        comparison: str,
        lanes: int,
        block: int,
        plane_words: int,
        model: Model,
    ) -> None:
        self.b, self.t, self.forest = b, table, forest
        self.lanes, self.block, self.plane_words = lanes, block, plane_words
        self.op: CompareOp = "ge" if comparison == "lt" else "gt"
        jobs = table.jobs
        self.kind = model("job_kind", jobs.kind)
        self.column = model("job_column", jobs.column)
        self.line = model("job_line", jobs.line)
        self.count = model("job_count", jobs.count)
        self.offset = model("job_offset", jobs.offset)
        self.tile_start = model("tile_start", table.tile_start)
        self.tile_jobs = model("tile_jobs", table.tile_jobs)
        self.numbers = model("numbers", table.numbers)
        self._model = model
        self.scalar: Scalar = self.numbers.element
        self.index_type = U32 if self.scalar == F32 else I64
        # A mask of the lanes is stored as one integer: 16 or 8 rows of a line.
        self.mask_type = U16 if lanes == 16 else U8
        self.line_bytes = block // 8
        # Wide rows are taken in parts of a block, so that the cache lines a tile of
        # columns touches stay in the first cache.
        self.wide = forest.n_features > WIDE
        self.part = min(block, WIDE_PART if self.wide else MAX_PART)
        self.part_bytes = self.part // 8
        self.words = self.part // 64

    # ------------------------------------------------------------ the stage

    def scratch(self) -> None:
        """Allocate the columns of a tile, code bits and line parts of one feature."""
        b = self.b
        self.columns = ColumnTile(b, self.scalar, self.lanes, self.part, self._clean)
        bits = b.const(8 * self.part_bytes)
        self.planes = b.alloc("code_planes", U8, bits, alignment=64)
        steps = b.const(17 * self.part_bytes)
        self.steps = b.alloc("code_steps", U8, steps, alignment=64)

    def evaluate(self, rows: BlockRows, lines: Buffer) -> None:
        """Fill ``lines`` (bytes) for one block."""
        b = self.b
        if self.part == self.block:
            self._evaluate_part(rows, b.const(0), lines)
            return

        def part(r: Value, _: tuple[Value, ...]) -> None:
            here = replace(rows, first=b.binary("add", rows.first, r))
            self._evaluate_part(here, b.binary("div", r, 8), lines)

        b.for_(b.const(0), b.const(self.block), b.const(self.part), part, hint="part")

    def _evaluate_part(self, rows: BlockRows, shift: Value, lines: Buffer) -> None:
        """Fill the bytes from ``shift`` on of every line."""
        b = self.b
        one, n_tiles = b.const(1), len(self.t.tile_start)

        def tile(i: Value, _: tuple[Value, ...]) -> None:
            start = b.convert(b.load(self.tile_start, i), I64)
            self.columns.fill(rows, start)
            first = b.convert(b.load(self.tile_jobs, i), I64)
            last = b.convert(b.load(self.tile_jobs, b.add(i, 1)), I64)
            following = b.binary("min", b.add(i, 1), n_tiles - 1)
            ahead = b.convert(b.load(self.tile_start, following), I64)
            jobs = b.sub(last, first)

            def job(j: Value, _: tuple[Value, ...]) -> None:
                if self.wide:
                    self.columns.prefetch(rows, ahead, b.binary("sub", j, first), jobs)
                self._job(j, shift, lines)

            b.for_(first, last, one, job, hint="job")

        b.for_(b.const(0), b.const(n_tiles), one, tile, hint="tile")

    def _job(self, j: Value, shift: Value, lines: Buffer) -> None:
        b = self.b

        def field(buffer: Buffer) -> Value:
            return b.convert(b.load(buffer, j), I64)

        column = b.mul(field(self.column), self.part)
        line = b.binary("add", b.mul(field(self.line), self.line_bytes), shift)
        count, offset = field(self.count), field(self.offset)
        kinds = list(self.t.kinds)


        def case(kind: int) -> Callable[[], None]:
            if kind == DIRECT:
                return lambda: self._direct(column, line, count, offset, lines)
            if kind == CATEGORY:
                return lambda: self._category(column, line, count, offset, lines)
            return lambda: self._search(kind, column, line, count, offset, lines)

        cases = [case(kind) for kind in kinds]
        if len(cases) == 1:
            cases[0]()
        else:
            table = np.zeros(16, np.uint8)
            table[kinds] = np.arange(len(kinds))
            which = b.load(self._model("kind_case", table), field(self.kind))
            b.switch(b.convert(which, I64), cases)
        if not self.t.unordered and len(self.t.right_lines) > 1:
            self._missing_right(j, column, shift, lines)

    # ------------------------------------------------------------ jobs

    def _clean(self, x: Value) -> Value:
        """Apply the forest's notion of missing: NaN is 0, or tiny is NaN."""
        b = self.b
        if self.t.nan_is_zero:
            return b.select(b.is_nan(x), b.const(0.0, x.type), x)
        if self.t.zero_is_missing:
            near = b.compare("le", x, b.const(ZERO_THRESHOLD, x.type))
            far = b.compare("ge", x, b.const(-ZERO_THRESHOLD, x.type))
            tiny = b.binary("and", near, far)
            return b.select(tiny, b.const(float("nan"), x.type), x)
        return x

    def _compare(self, x: Value, number: Value) -> Value:
        return self.b.compare(self.op, x, number, unordered=self.t.unordered)

    def _store_masks(self, lines: Buffer, line: Value, masks: Sequence[Value]) -> None:
        """Store the masks of consecutive vectors as bits, from byte ``line`` on."""
        b, joined = self.b, max(1, 8 // self.lanes)
        for v in range(0, len(masks), joined):
            bits = b.mask_bits(masks[v], self.mask_type)
            for k in range(1, joined):
                more = b.mask_bits(masks[v + k], self.mask_type)
                more = b.binary("shl", more, k * self.lanes)
                bits = b.binary("or", bits, more)
            b.store(lines, b.add(line, v * self.lanes // 8), bits)

    def _direct(
        self, column: Value, line: Value, count: Value, offset: Value, lines: Buffer
    ) -> None:
        b = self.b

        def one(i: Value, _: tuple[Value, ...]) -> None:
            number = b.load(self.numbers, b.binary("add", offset, i))
            threshold = b.splat(number, self.lanes)
            at = b.binary("add", line, b.mul(i, self.line_bytes))
            vectors = self.columns.vectors(column, self.part)
            self._store_masks(lines, at, [self._compare(x, threshold) for x in vectors])

        b.for_(b.const(0), count, b.const(1), one, hint="threshold")

    def _search(
        self,
        levels: int,
        column: Value,
        line: Value,
        count: Value,
        offset: Value,
        lines: Buffer,
    ) -> None:
        b, n = self.b, self.lanes
        tables: list[list[Value]] = []
        at = 0
        for j in range(levels):
            vectors = max(1, (1 << j) // n)
            tables.append(
                [
                    b.load(self.numbers, b.add(offset, at + v * n), self.columns.vec)
                    for v in range(vectors)
                ]
            )
            at += vectors * n
        index_vec = Vec(self.index_type, n)
        zero = b.const(0, index_vec)
        step = LOCKSTEP * n

        def some_rows(r: Value, _: tuple[Value, ...]) -> None:
            first = b.binary("add", column, r)
            x = self.columns.vectors(first, step)
            index = [zero] * LOCKSTEP
            byte = b.binary("div", r, 8)
            for j in range(levels):
                masks = []
                for v in range(LOCKSTEP):
                    pivot = tables[0][0] if j == 0 else b.permute(tables[j], index[v])
                    masks.append(self._compare(x[v], pivot))
                place = b.add(byte, (levels - 1 - j) * self.part_bytes)
                self._store_masks(self.planes, place, masks)
                for v in range(LOCKSTEP):
                    if j + 1 < levels:
                        more = b.binary("or", index[v], b.const(1 << j, index_vec))
                        index[v] = b.select(masks[v], more, index[v])

        b.for_(b.const(0), b.const(self.part), b.const(step), some_rows, hint="rows")
        self._thermometer(levels, line, count, lines)

    def _thermometer(
        self, levels: int, line: Value, count: Value, lines: Buffer
    ) -> None:
        """Write ``code > i`` for every threshold i from the bits of the code.

        ``code >= 16 h + l`` is ``high >= h + 1  or  high >= h and low >= l``: one
        three-input operation and one store a line. Up to 15 lines too many are
        written; later jobs, or nobody, own them.
        """
        b = self.b
        plane = Vec(I64, min(self.words, self.plane_words))
        for part in range(self.words // plane.lanes):
            shift = part * plane.lanes * 8
            bits = [
                b.load(self.planes, b.const(k * self.part_bytes + shift), plane)
                for k in range(levels)
            ]
            low = _steps(b, bits[3::-1], plane)
            if levels == 4:
                for i in range(1, 16):
                    at = b.add(line, (i - 1) * self.line_bytes + shift)
                    b.store(lines, at, low[i])
                continue
            high = _steps(b, bits[:3:-1], plane)
            for h, value in enumerate(high):
                at = b.const(h * self.part_bytes + shift)
                b.store(self.steps, at, value)
            groups = b.add(b.binary("div", count, 16), 1)

            def group(
                h: Value,
                _: tuple[Value, ...],
                shift: int = shift,
                low: Sequence[Value] = low,
            ) -> None:
                at = b.add(b.mul(h, self.part_bytes), shift)
                here = b.load(self.steps, at, plane)
                above = b.load(self.steps, b.add(at, self.part_bytes), plane)
                to = b.binary("add", line, b.mul(h, 16 * self.line_bytes))
                to = b.add(to, shift - self.line_bytes)
                inner = b.compare("gt", h, 0)
                b.if_(inner, lambda: b.store(lines, to, here))
                for i in range(1, 16):
                    value = b.binary("or", above, b.binary("and", here, low[i]))
                    b.store(lines, b.add(to, i * self.line_bytes), value)

            b.for_(b.const(0), groups, b.const(1), group, hint="high")

    def _category(
        self, column: Value, line: Value, count: Value, offset: Value, lines: Buffer
    ) -> None:
        """``line`` = the value is no category of the set: the row goes right."""
        b, n = self.b, self.lanes

        def one(i: Value, _: tuple[Value, ...]) -> None:
            number = b.load(self.numbers, b.binary("add", offset, i))
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
                self._store_masks(lines, place, masks)

            b.for_(b.const(0), b.const(self.part), b.const(step), vectors, hint="v")

        b.for_(b.const(0), count, b.const(1), one, hint="set")

    def _missing_right(
        self, j: Value, column: Value, shift: Value, lines: Buffer
    ) -> None:
        """Set the bits of missing values in the job's lines that send them right."""
        b = self.b
        offsets = self._model("right_offset", self.t.right_offset)
        right = self._model("right_lines", self.t.right_lines)
        first = b.convert(b.load(offsets, j), I64)
        last = b.convert(b.load(offsets, b.add(j, 1)), I64)
        any_: Value | None = None
        for x in self.columns.vectors(column, self.part):
            gone = b.is_nan(x)
            any_ = gone if any_ is None else b.binary("or", any_, gone)
        assert any_ is not None

        def mark() -> None:
            masks = [b.is_nan(x) for x in self.columns.vectors(column, self.part)]
            self._store_masks(self.planes, b.const(0), masks)
            plane = Vec(I64, min(self.words, self.plane_words))

            def line(i: Value, _: tuple[Value, ...]) -> None:
                number = b.convert(b.load(right, i), I64)
                base = b.binary("add", b.mul(number, self.line_bytes), shift)
                for part in range(self.words // plane.lanes):
                    own = part * plane.lanes * 8
                    at = b.add(base, own)
                    gone = b.load(self.planes, b.const(own), plane)
                    old = b.load(lines, at, plane)
                    b.store(lines, at, b.binary("or", old, gone))

            b.for_(first, last, b.const(1), line, hint="right")

        b.if_(b.any_true(any_), mark)


def _steps(b: Builder, bits: Sequence[Value], plane: Vec) -> list[Value]:
    """Return ``number >= i`` for i = 0 .. 16 from at most four bits, highest first."""
    ones, zero = b.const(-1, plane), b.const(0, plane)
    q = [zero] * (4 - len(bits)) + list(bits)

    def both(x: Value, y: Value) -> Value:
        return b.binary("and", x, y)

    def either(x: Value, y: Value) -> Value:
        return b.binary("or", x, y)

    high = [ones, either(q[0], q[1]), q[0], both(q[0], q[1]), zero]
    low = [ones, either(q[2], q[3]), q[2], both(q[2], q[3])]
    made = []
    for i in range(16):
        if i % 4 == 0:
            made.append(high[i // 4])
        else:
            made.append(either(high[i // 4 + 1], both(high[i // 4], low[i % 4])))
    return [*made, zero]
