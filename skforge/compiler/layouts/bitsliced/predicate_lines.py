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
from dataclasses import dataclass, replace

import numpy as np

from skforge.compiler.binning.rows import BlockRows, Model
from skforge.compiler.binning.transpose import (
    WIDE,
    WIDE_PART,
    ColumnTile,
    pivot_of,
    store_masks,
)
from skforge.compiler.forest.arrays import ZERO_THRESHOLD
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import (
    F32,
    I64,
    U8,
    U32,
    Buffer,
    CompareOp,
    Scalar,
    Value,
    Vec,
)
from skforge.compiler.layouts.bitsliced.narrow_rows import Ties, round_down
from skforge.compiler.layouts.bitsliced.predicate_table import (
    CATEGORY,
    DIRECT,
    SETS,
    PredicateTable,
)
from skforge.compiler.layouts.bitsliced.set_lines import SetLines

#: Rows of a part otherwise: compares of a part are unrolled, so code is bounded.
MAX_PART = 1024

#: Tiles of columns that wide rows are fetched ahead: memory takes longer than the work
#: on one tile (epsilon, 4096 rows: 0.51 us a row for 1, 0.38 for 2, 0.37 for 3).
AHEAD = 3

#: Planes of a search: the bits of its codes, and which values are missing.
PLANES, MISSING_PLANE = 9, 8


@dataclass(frozen=True, slots=True)
class _Job:
    """What a job reads and writes: places in the columns, lines and numbers."""

    column: Value
    line: Value
    count: Value
    offset: Value


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
        lockstep: int,
        held: int,
        model: Model,
    ) -> None:
        self.b, self.t, self.forest = b, table, forest
        self.lanes, self.block, self.plane_words = lanes, block, plane_words
        self.lockstep, self.held = lockstep, held
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
        self.right = not table.unordered and len(table.right_lines) > 1
        self.scalar: Scalar = self.numbers.element
        self.index_type = U32 if self.scalar == F32 else I64
        self.line_bytes = block // 8
        # float64 rows whose numbers are float32: see narrow_rows.py.
        self.narrow = self.scalar == F32 and forest.input_dtype == np.float64
        # Wide rows are taken in parts of a block, so that the cache lines a tile of
        # columns touches stay in the first cache.
        self.wide = forest.n_features > WIDE
        self.part = min(block, WIDE_PART if self.wide else MAX_PART)
        self.part_bytes = self.part // 8
        # A part's planes are short. Kept for all searches of a block, they become
        # lines whole (epsilon: 0.38 us a row, 0.34 with).
        self.kept = self.part < block
        others = (DIRECT, CATEGORY, *SETS)
        self.searches = np.flatnonzero(~np.isin(jobs.kind, others))

    # ------------------------------------------------------------ the stage

    def scratch(self) -> None:
        """Allocate the columns of a tile, code bits and line parts of one feature."""
        b = self.b
        clean = self._clean_narrow if self.narrow else self._clean
        self.columns = ColumnTile(b, self.scalar, self.lanes, self.part, clean)
        self.sets = SetLines(
            b, self.t, self.forest, self.columns, self.line_bytes, self._model
        )
        if self.narrow:
            exact = np.zeros(self.t.n_lines, np.float64)
            exact[self.t.line_of] = self.forest.threshold
            self.ties = Ties(
                b,
                exact,
                self.lanes,
                self.part,
                self._clean,
                self.t.unordered,
                self._model,
            )
        held = len(self.searches) if self.kept else 1
        # One set of planes more, for what is missing in other jobs.
        self.spare = held * PLANES * self.line_bytes
        bits = b.const(self.spare + PLANES * self.line_bytes)
        self.planes = b.alloc("code_planes", U8, bits, alignment=64)
        width = min(self.line_bytes, self.plane_words * 8)
        steps = b.const(17 * width)
        self.steps = b.alloc("code_steps", U8, steps, alignment=64)

    def evaluate(self, rows: BlockRows, lines: Buffer) -> None:
        """Fill ``lines`` (bytes) for one block."""
        b = self.b
        if not self.kept:
            self._evaluate_part(rows, b.const(0), lines)
            return

        def part(r: Value, _: tuple[Value, ...]) -> None:
            here = replace(rows, first=b.binary("add", rows.first, r))
            self._evaluate_part(here, b.binary("div", r, 8), lines)

        # Parts of nothing but padding stay as they are: nobody asks for their sums.
        left = b.binary("sub", rows.n_rows, rows.first)
        left = b.binary("min", left, self.block)
        b.for_(b.const(0), left, b.const(self.part), part, hint="part")
        self._kept_lines(lines)

    def _kept_lines(self, lines: Buffer) -> None:
        """Write the lines of all searches of a block from the planes of its parts."""
        b = self.b
        if not len(self.searches):
            return
        jobs = self._model("searches", self.searches)

        def search(i: Value, _: tuple[Value, ...]) -> None:
            j = b.load(jobs, i)
            job = self._fields(j)
            planes = b.mul(i, PLANES * self.line_bytes)
            self._by_kind(
                j,
                {
                    kind: lambda kind=kind: self._thermometer(  # type: ignore[misc]
                        kind, job.line, job.count, planes, lines
                    )
                    for kind in self.t.kinds
                    if kind not in (DIRECT, CATEGORY, *SETS)
                },
            )
            if self.right:
                self._mark_right(j, planes, b.const(0), self.line_bytes, lines)

        end = b.const(len(self.searches))
        b.for_(b.const(0), end, b.const(1), search, hint="search")

    def _evaluate_part(self, rows: BlockRows, shift: Value, lines: Buffer) -> None:
        """Fill the bytes from ``shift`` on of every line."""
        b = self.b
        one, n_tiles = b.const(1), len(self.t.tile_start)
        left = b.binary("sub", rows.n_rows, rows.first)
        self.left = b.binary("min", left, self.part)

        def tile(i: Value, _: tuple[Value, ...]) -> None:
            start = b.convert(b.load(self.tile_start, i), I64)
            self.columns.fill(rows, start)
            self.tile_rows, self.tile_first = rows, start
            first = b.convert(b.load(self.tile_jobs, i), I64)
            last = b.convert(b.load(self.tile_jobs, b.add(i, 1)), I64)
            following = b.binary("min", b.add(i, AHEAD), n_tiles - 1)
            ahead = b.convert(b.load(self.tile_start, following), I64)
            jobs = b.sub(last, first)

            def job(j: Value, _: tuple[Value, ...]) -> None:
                if self.wide:
                    self.columns.prefetch(rows, ahead, b.binary("sub", j, first), jobs)
                self._job(j, shift, lines)

            b.for_(first, last, one, job, hint="job")

        b.for_(b.const(0), b.const(n_tiles), one, tile, hint="tile")

    def _fields(self, j: Value) -> _Job:
        b = self.b

        def field(buffer: Buffer) -> Value:
            return b.convert(b.load(buffer, j), I64)

        return _Job(
            b.mul(field(self.column), self.part),
            b.mul(field(self.line), self.line_bytes),
            field(self.count),
            field(self.offset),
        )

    def _by_kind(self, j: Value, cases: dict[int, Callable[[], None]]) -> None:
        """Run the code for the kind of a job."""
        b = self.b
        if len(cases) == 1:
            next(iter(cases.values()))()
            return
        table = np.zeros(16, np.uint8)
        table[list(cases)] = np.arange(len(cases))
        name = "kind_case" if len(cases) == len(self.t.kinds) else "search_case"
        which = b.load(self._model(name, table), b.convert(b.load(self.kind, j), I64))
        b.switch(b.convert(which, I64), list(cases.values()))

    def _job(self, j: Value, shift: Value, lines: Buffer) -> None:
        b = self.b
        job = self._fields(j)
        line = b.binary("add", job.line, shift)
        planes = b.const(0)
        if self.kept and len(self.searches):
            number = np.zeros(len(self.t.jobs.kind), np.int64)
            number[self.searches] = np.arange(len(self.searches))
            own = b.load(self._model("search_number", number), j)
            planes = b.binary("add", b.mul(own, PLANES * self.line_bytes), shift)

        def mark() -> None:
            if self.right and self.kept:
                self._missing_right(j, job.column, shift, lines)

        def direct() -> None:
            self._direct(job.column, line, job.count, job.offset, lines)
            mark()

        def category() -> None:
            self.sets.one_by_one(
                self.numbers, job.column, line, job.count, job.offset, lines
            )
            mark()

        def sets(kind: int) -> None:
            entries = SETS[kind]
            self.sets.by_tables(
                entries, job.column, line, job.count, job.offset, self.left, lines
            )
            mark()

        def search(levels: int) -> None:
            self._search(levels, job.column, job.offset, planes)
            if not self.kept:
                self._thermometer(levels, job.line, job.count, planes, lines)
            elif self.right:
                self._missing_plane(job.column, planes)

        cases: dict[int, Callable[[], None]] = {}
        for kind in self.t.kinds:
            if kind == DIRECT:
                cases[kind] = direct
            elif kind in SETS:
                cases[kind] = lambda kind=kind: sets(kind)  # type: ignore[misc]
            elif kind == CATEGORY:
                cases[kind] = category
            else:
                cases[kind] = lambda kind=kind: search(kind)  # type: ignore[misc]
        self._by_kind(j, cases)
        if self.narrow:
            within = b.binary("div", job.column, self.part)
            self.ties.settle(
                self.tile_rows,
                b.binary("add", self.tile_first, within),
                self.left,
                b.convert(b.load(self.line, j), I64),
                job.count,
                lines,
                self.line_bytes,
            )
        if self.right and not self.kept:
            self._missing_right(j, job.column, shift, lines)

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

    def _clean_narrow(self, x: Value) -> Value:
        return round_down(self.b, self._clean(x))

    def _compare(self, x: Value, number: Value) -> Value:
        return self.b.compare(self.op, x, number, unordered=self.t.unordered)

    def _direct(
        self, column: Value, line: Value, count: Value, offset: Value, lines: Buffer
    ) -> None:
        b = self.b

        def one(i: Value, least: tuple[Value, ...]) -> list[Value]:
            number = b.load(self.numbers, b.binary("add", offset, i))
            threshold = b.splat(number, self.lanes)
            at = b.binary("add", line, b.mul(i, self.line_bytes))
            vectors = self.columns.vectors(column, self.part)
            store_masks(b, lines, at, [self._compare(x, threshold) for x in vectors])
            for x in vectors:
                least = tuple(self.ties.nearer(v, x, threshold) for v in least)
            return list(least)

        start = [self.ties.none()] if self.narrow else []
        zero, step = b.const(0), b.const(1)
        for least in b.for_(zero, count, step, one, start, hint="threshold"):
            self.ties.keep(least)

    def _search(
        self,
        levels: int,
        column: Value,
        offset: Value,
        planes: Value,
    ) -> None:
        """Write the bits of the codes of a column, each as a plane."""
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
        step = self.lockstep * n

        def some_rows(r: Value, least: tuple[Value, ...]) -> list[Value]:
            first = b.binary("add", column, r)
            x = self.columns.vectors(first, step)
            index = [zero] * self.lockstep
            answers: list[list[Value]] = []
            byte = b.binary("add", planes, b.binary("div", r, 8))
            for j in range(levels):
                masks = []
                for v in range(self.lockstep):
                    known = [found[v] for found in answers]
                    pivot = pivot_of(b, tables[j], index[v], known, self.held)
                    masks.append(self._compare(x[v], pivot))
                    least = tuple(self.ties.nearer(k, x[v], pivot) for k in least)
                answers.append(masks)
                place = b.add(byte, (levels - 1 - j) * self.line_bytes)
                store_masks(b, self.planes, place, masks)
                for v in range(self.lockstep):
                    if j + 1 < levels:
                        more = b.binary("or", index[v], b.const(1 << j, index_vec))
                        index[v] = b.select(masks[v], more, index[v])
            return list(least)

        start = [self.ties.none()] if self.narrow else []
        low, by = b.const(0), b.const(step)
        for least in b.for_(low, self.left, by, some_rows, start, hint="rows"):
            self.ties.keep(least)

    def _thermometer(
        self, levels: int, line: Value, count: Value, planes: Value, lines: Buffer
    ) -> None:
        """Write ``code > i`` for every threshold i from the bits of the code.

        ``code >= 16 h + l`` is ``high >= h + 1  or  high >= h and low >= l``: one
        three-input operation and one store a line. Up to 15 lines too many are
        written; later jobs, or nobody, own them.
        """
        b, size = self.b, self.line_bytes
        plane = Vec(I64, min(size // 8, self.plane_words))

        def part(shift: Value, _: tuple[Value, ...]) -> None:
            first = b.binary("add", planes, shift)
            to = b.binary("add", line, shift)
            bits = [
                b.load(self.planes, b.add(first, k * size), plane)
                for k in range(levels)
            ]
            low = _steps(b, bits[3::-1], plane)
            if levels == 4:
                for i in range(1, 16):
                    b.store(lines, b.add(to, (i - 1) * size), low[i])
                return
            self._high_groups(bits[:3:-1], low, count, to, lines, plane)

        self._each(size, plane, part)

    def _high_groups(
        self,
        bits: Sequence[Value],
        low: Sequence[Value],
        count: Value,
        line: Value,
        lines: Buffer,
        plane: Vec,
    ) -> None:
        """Write 16 lines for each value of the code's high bits."""
        b, size = self.b, self.line_bytes
        width = plane.lanes * 8
        for h, value in enumerate(_steps(b, bits, plane)):
            b.store(self.steps, b.const(h * width), value)
        groups = b.add(b.binary("div", count, 16), 1)

        def group(h: Value, _: tuple[Value, ...]) -> None:
            at = b.mul(h, width)
            here = b.load(self.steps, at, plane)
            above = b.load(self.steps, b.add(at, width), plane)
            to = b.binary("add", line, b.mul(h, 16 * size))
            to = b.sub(to, size)
            inner = b.compare("gt", h, 0)
            b.if_(inner, lambda: b.store(lines, to, here))
            for i in range(1, 16):
                value = b.binary("or", above, b.binary("and", here, low[i]))
                b.store(lines, b.add(to, i * size), value)

        b.for_(b.const(0), groups, b.const(1), group, hint="high")

    def _each(
        self, size: int, plane: Vec, body: Callable[[Value, tuple[Value, ...]], None]
    ) -> None:
        """Run code for each plane of ``size`` bytes, however many there are."""
        b, width = self.b, plane.lanes * 8
        if size == width:
            body(b.const(0), ())
            return
        b.for_(b.const(0), b.const(size), b.const(width), body, hint="shift")

    def _missing_plane(self, column: Value, planes: Value) -> None:
        """Keep which values of a part are missing, beside the bits of their codes."""
        b = self.b
        masks = [b.is_nan(x) for x in self.columns.vectors(column, self.part)]
        at = b.add(planes, MISSING_PLANE * self.line_bytes)
        store_masks(b, self.planes, at, masks)

    def _missing_right(
        self, j: Value, column: Value, shift: Value, lines: Buffer
    ) -> None:
        """Set the bits of missing values in the job's lines that send them right."""
        b = self.b
        any_: Value | None = None
        for x in self.columns.vectors(column, self.part):
            gone = b.is_nan(x)
            any_ = gone if any_ is None else b.binary("or", any_, gone)
        assert any_ is not None

        def mark() -> None:
            spare = b.const(self.spare)
            self._missing_plane(column, spare)
            self._mark_right(j, spare, shift, self.part_bytes, lines)

        b.if_(b.any_true(any_), mark)

    def _mark_right(
        self, j: Value, planes: Value, shift: Value, size: int, lines: Buffer
    ) -> None:
        """Or ``size`` bytes of the plane of missing values into lines."""
        b = self.b
        offsets = self._model("right_offset", self.t.right_offset)
        right = self._model("right_lines", self.t.right_lines)
        first = b.convert(b.load(offsets, j), I64)
        last = b.convert(b.load(offsets, b.add(j, 1)), I64)
        plane = Vec(I64, min(size // 8, self.plane_words))
        source = b.add(planes, MISSING_PLANE * self.line_bytes)

        def line(i: Value, _: tuple[Value, ...]) -> None:
            number = b.convert(b.load(right, i), I64)
            base = b.binary("add", b.mul(number, self.line_bytes), shift)

            def part(own: Value, _: tuple[Value, ...]) -> None:
                at = b.binary("add", base, own)
                gone = b.load(self.planes, b.binary("add", source, own), plane)
                old = b.load(lines, at, plane)
                b.store(lines, at, b.binary("or", old, gone))

            self._each(size, plane, part)

        b.for_(first, last, b.const(1), line, hint="right")


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
