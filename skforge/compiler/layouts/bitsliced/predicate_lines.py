"""Emits the input stage of a block: rows to columns to lines of bits.

For each tile of columns that has a used feature::

    columns = transpose(rows of the block, columns of the tile)
    for each job of the tile:
      direct:    line[i] = column >= threshold[i]
      search:    bits of the code, level by level, by look-ups in registers,
                 or of one entry in memory (``bucket_search.py``);
                 line[i] = code > i, from the code's bits (thermometer)
      category:  line[i] = column in set[i]
      lines of tests that send a missing value right |= column is missing

The project's notes on the input stage have the measurements: searches beat comparisons
from ten thresholds on, and eight vectors in lockstep beat one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from itertools import starmap
from operator import or_

import numpy as np

from skforge.compiler.binning.rules import BlockRows, ReadingRules
from skforge.compiler.binning.transpose import (
    WIDE_PART,
    ColumnTile,
    is_wide,
    store_masks,
)
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import F32, I64, U8, U32, Buffer, Value, Vec
from skforge.compiler.layouts.bitsliced import bucket_search, predicate_table, ties
from skforge.compiler.layouts.bitsliced.bucket_search import LANES, BucketSearch
from skforge.compiler.layouts.bitsliced.predicate_table import (
    BUCKETS,
    BUCKETS_OF_FEW,
    SETS_A_BYTE,
    PredicateJob,
    search_bits,
)
from skforge.compiler.layouts.bitsliced.sliced_layout import BlockOfBits
from skforge.compiler.layouts.bitsliced.ties import Compared, Noted, Ties
from skforge.forest.arrays import Comparison
from skforge.forest.forest import Forest
from skforge.forest.predicates import round_thresholds

#: Rounding values pays off from this many tests a feature.
WORTH = 10


def narrows(forest: Forest, comparison: str) -> bool:
    return (
        forest.input_dtype == np.float64
        and comparison == "le"
        and forest.n_predicates >= WORTH * len(np.unique(forest.feature))
        and bool((forest.comparison == Comparison.LE).all())
    )


def narrowed(forest: Forest) -> Forest:
    rounded = round_thresholds(forest.threshold, Comparison.LE, np.float32)
    return replace(forest, threshold=rounded)


#: Most rows of a part. The comparisons of a part are unrolled, so this bounds the code.
MAX_PART = 1024

#: Rows of one look-up in tables of sets.
SET_ROWS = 64

#: Planes of a search: the bits of its codes, and which values are missing.
PLANES, MISSING_PLANE = 9, 8


class PredicateLowering:
    def __init__(
        self,
        rules: ReadingRules,
        table: predicate_table.PredicateTable,
        shape: BlockOfBits,
    ) -> None:
        self.t, self.shape = table, shape
        self._rules, forest = rules, rules.forest
        self._model = model = rules.model
        kinds, column = table.jobs["kind"], table.jobs["column"]
        self.tile_start = model("tile_start", table.tile_start)
        self.tile_jobs = model("tile_jobs", table.tile_jobs)
        self.numbers = model("numbers", table.numbers)
        self.right = not table.unordered and len(table.right_lines) > 1
        self.scalar: lir.Scalar = self.numbers.element
        self.line_bytes = shape.rows // 8
        # float64 rows compared with float32 numbers: see ``Ties``.
        self.narrow = self.scalar == F32 and forest.input_dtype == np.float64
        # Wide rows are processed in parts of a block, so that the cache lines touched
        # by a tile of columns stay in L1.
        lanes = shape.registers.lanes
        self._wide = is_wide(forest, lanes * self.scalar.bytes, shape.rows)
        self.part = min(shape.rows, WIDE_PART if self._wide else MAX_PART)
        # The planes of a part are short. Keeping them for all searches of a block
        # allows writing whole lines (epsilon: 0.38 us a row, 0.34 with).
        self.kept = self.part < shape.rows
        self._run = ColumnTile.run(self._wide, lanes)
        #: Whether tiles of trees share the columns, which are then transposed once.
        self._once = table.tree_tile is not None and not self.kept
        if self._once:
            self._run = len(table.tile_start)
        tiles = np.tile(np.arange(len(table.tile_start)), table.tree_tiles)
        tile = np.repeat(tiles, np.diff(table.tile_jobs))
        self._feature = table.tile_start[tile] + column
        column = column + tile % self._run * shape.registers.lanes
        jobs = {**table.jobs, "column": column.astype(np.int32)}
        self._jobs = [model(f"job_{name}", data) for name, data in jobs.items()]
        self.searches = np.flatnonzero(predicate_table.searched(kinds))
        #: The first search of each tile of trees, and the end.
        self._tile_searches = np.searchsorted(self.searches, table.jobs_of_tiles)
        #: The tile of trees whose predicates are evaluated, if there are several.
        self._tile: Value | None = None
        # The only comparison of sets: by MEMBER a number with a fraction is in none.
        members = bool((forest.comparison == Comparison.MEMBER).any())
        self._test = Comparison.MEMBER if members else Comparison.IN

    # ------------------------------------------------------------ the stage

    def scratch(self) -> None:
        lanes = self.shape.registers.lanes
        clean = self._clean
        if self.narrow:
            clean = lambda x: self._clean(x).to(F32)  # noqa: E731
        sizes = self.part, clean, self._run, self._wide
        self.columns = ColumnTile(self.scalar, lanes, *sizes)
        if self.narrow:
            given = self.columns, self._clean, self.line_bytes
            self.ties = Ties(self._rules, self.t, *given)
        held = int(np.diff(self._tile_searches).max()) if self.kept else 1
        # One more set of planes, for missing values in other jobs.
        self.spare = held * PLANES * self.line_bytes
        size = self.spare + PLANES * self.line_bytes
        self.planes = b.alloc("code_planes", U8, size)
        size = 17 * 8 * self._plane(self.line_bytes).lanes
        self.steps = b.alloc("code_steps", U8, size)
        if max(self.t.kinds) > BUCKETS:
            self.buckets = BucketSearch(self.part)

    def _plane(self, size: int) -> Vec:
        return Vec(I64, min(size, self.shape.plane_rows // 8) // 8)

    def open(self, rows: BlockRows) -> None:
        """Transpose a block of rows, of which tiles of trees are then evaluated."""
        if self._once:
            self.columns.fill(rows, self.tile_start, 0, self._run, self._run)

    def evaluate(
        self, rows: BlockRows, lines: Buffer, tile: Value | None = None
    ) -> None:
        """Write the lines of a block, or those of a tile of trees."""
        self._lines, self._tile = lines, tile
        if not self.kept:
            self._evaluate_part(rows, b.const(0))
            return

        # Parts that are only padding are skipped: their sums are never read.
        left = (rows.n_rows - rows.first).min(self.shape.rows)
        with b.loop(0, left, self.part, hint="part") as r:
            here = replace(rows, first=rows.first + r)
            self._evaluate_part(here, r // 8)
        self._kept_lines()

    def _kept_lines(self) -> None:
        if not len(self.searches):
            return
        jobs = self._model("searches", self.searches)
        kinds = [kind for kind in self.t.kinds if predicate_table.searched(kind)]
        count: Value | int = len(self.searches)
        if self._tile is not None:
            ends = self._model("tile_searches", self._tile_searches)
            first = ends[self._tile]
            count = ends[self._tile + 1] - first
            jobs = b.view("own_searches", jobs.element, jobs, first)
        with b.loop(count, hint="search") as i:
            kind, job = self._job(jobs[i], b.const(0))
            planes = i * (PLANES * self.line_bytes)
            cases = {
                k: partial(self._thermometer, search_bits(k), job, planes)
                for k in kinds
            }
            self._by_kind(kind, cases)
            if self.right:
                self._mark_right(job, planes, self.line_bytes)

    def _evaluate_part(self, rows: BlockRows, shift: Value) -> None:
        self.left = (rows.n_rows - rows.first).min(self.part)
        with self._all_jobs(rows) as j:
            kind, job = self._job(j, shift)
            self._evaluate_job(kind, job)
            if self.narrow:
                feature = self._model("job_feature", self._feature)[j].to(I64)
                self.ties.settle(rows, feature, self.left, job, self._lines)
            if self.right and not self.kept:
                self._missing_right(job)

    @contextmanager
    def _all_jobs(self, rows: BlockRows) -> Iterator[Value]:
        ends, n_tiles = self.tile_jobs, len(self.t.tile_start)
        if self._tile is not None:
            ends = b.view("own_jobs", ends.element, ends, self._tile * n_tiles)
        if self._once:
            with b.loop(ends[0].to(I64), ends[n_tiles].to(I64), hint="job") as j:
                yield j
        else:
            with self.columns.jobs(rows, self.tile_start, ends, n_tiles) as j:
                yield j

    def _job(self, j: Value, shift: Value) -> tuple[Value, PredicateJob]:
        kind, *fields = (field[j].to(I64) for field in self._jobs)
        column, line, count, offset = fields
        column, place = column * self.part, line * self.line_bytes
        place = place + shift
        if self._tile is not None:
            line = line + self._tile * self.t.n_lines
        return kind, PredicateJob(j, column, line, place, count, offset, shift)

    def _by_kind(self, kind: Value, cases: Mapping[int, Callable[[], None]]) -> None:
        table = np.zeros(max(self.t.kinds) + 1, np.uint8)
        table[list(cases)] = np.arange(len(cases))
        name = "kind_case" if len(cases) == len(self.t.kinds) else "search_case"
        case = lambda: self._model(name, table)[kind].to(I64)  # noqa: E731
        b.choose(case, list(cases.values()))

    def _evaluate_job(self, kind: Value, job: PredicateJob) -> None:
        planes = b.const(0)
        if self.kept and len(self.searches):
            number = np.zeros(len(self._feature), np.int64)
            starts, of = self._tile_searches[:-1], np.diff(self._tile_searches)
            number[self.searches] = np.arange(len(self.searches)) - np.repeat(
                starts, of
            )
            search = self._model("search_number", number)[job.number]
            planes = search * (PLANES * self.line_bytes) + job.shift

        def run(kind: int) -> None:
            if predicate_table.searched(kind):
                search = self._search
                if kind > BUCKETS:
                    search = partial(self._search_buckets, kind > BUCKETS_OF_FEW)
                search(search_bits(kind), job, planes)
                if not self.kept:
                    self._thermometer(search_bits(kind), job, planes)
                elif self.right:
                    self._missing_plane(job.column, planes)
                return
            if kind == predicate_table.DIRECT:
                self._direct(job)
            elif kind == predicate_table.CATEGORY:
                self._sets_one_by_one(job)
            else:
                self._sets_by_tables(predicate_table.SETS[kind], job)
            if self.right and self.kept:
                self._missing_right(job)

        self._by_kind(kind, {kind: partial(run, kind) for kind in self.t.kinds})

    # ------------------------------------------------------------ jobs

    def _clean(self, x: Value) -> Value:
        """Apply the forest's rule for missing values: NaN to 0, or tiny to NaN."""
        return self._rules.nan_if_missing(x, self.t.missing)

    @contextmanager
    def _noting_ties(
        self, end: Value, step: int, hint: str
    ) -> Iterator[tuple[Value, list[Noted]]]:
        """Open a loop; its body lists what vectors are compared with and their rows."""
        least = [self.ties.none()] if self.narrow else []
        with b.loop(0, end, step, carry=least, hint=hint) as i:
            noted: list[Noted] = []
            yield i, noted
            for compared, rows in noted if least else ():
                near = ties.least(starmap(self.ties.near, compared))
                self.ties.keep(near, rows)
                least[0] = least[0].min(near)
        if least:
            self.ties.found(least[0])

    def _direct(self, job: PredicateJob) -> None:
        right = partial(self._rules.goes_right, unordered=self.t.unordered)
        lanes, numbers = self.shape.registers.lanes, self.numbers
        thresholds = self._noting_ties(job.count, 1, "threshold")
        with thresholds as (i, noted):
            threshold = b.splat(numbers[job.offset + i], lanes)
            at = job.first_byte + i * self.line_bytes
            vectors = self.columns.vectors(job.column, self.part)
            masks = [right(x, threshold) for x in vectors]
            store_masks(self._lines, at, masks, self.shape.registers.packs)
            noted += [([(x, threshold)], []) for x in vectors]
        if self.narrow:
            with b.when(self.ties.any()), b.loop(0, self.left, lanes, hint="row") as r:
                (x,) = self.columns.vectors(job.column + r, lanes)
                near = [self.ties.none()]
                with b.loop(job.count, carry=near, hint="threshold") as i:
                    threshold = b.splat(numbers[job.offset + i], lanes)
                    near[0] = near[0].min(self.ties.near(x, threshold))
                self.ties.keep(near[0], [r])

    def _search(self, levels: int, job: PredicateJob, planes: Value) -> None:
        registers = self.shape.registers
        tables = registers.load_pivots(self.numbers, job.offset, levels)
        index_vec = Vec(U32 if self.scalar == F32 else I64, registers.lanes)
        step = registers.lockstep * registers.lanes
        right = partial(self._rules.goes_right, unordered=self.t.unordered)
        with self._noting_ties(self.left, step, "rows") as (r, noted):
            x = self.columns.vectors(job.column + r, step)
            index = [b.const(0, index_vec)] * len(x)
            answers: list[list[Value]] = [[] for _ in x]
            compared: list[list[Compared]] = [[] for _ in x]
            byte = planes + r // 8
            for j, table in enumerate(tables):
                for v, vector in enumerate(x):
                    pivot = registers.pivot_of(table, index[v], answers[v])
                    answers[v].append(right(vector, pivot))
                    compared[v].append((vector, pivot))
                masks = [passed[j] for passed in answers]
                place = byte + (levels - 1 - j) * self.line_bytes
                store_masks(self.planes, place, masks)
                for v, mask in enumerate(masks):
                    if j + 1 < levels:
                        index[v] = b.select(mask, index[v] | 1 << j, index[v])
            places = ([r + v * registers.lanes] for v in range(len(x)))
            noted += zip(compared, places, strict=True)

    def _search_buckets(
        self, few: bool, bits: int, job: PredicateJob, planes: Value
    ) -> None:
        columns, numbers, unordered = self.columns, self.numbers, self.t.unordered
        right = partial(self._rules.goes_right, unordered=unordered)

        def column(r: Value) -> Value:
            return columns.vectors(job.column + r, LANES)[0]

        self.buckets.find(numbers, job.offset, self.left, column, unordered)
        first = job.offset + bucket_search.HEAD
        code = partial(self.buckets.code, numbers, first)
        if few:
            befores = self._model("bucket_before", self.t.before)
            at = numbers[job.offset + bucket_search.BEFORE].to(I64)
            own = b.view("own_before", U8, befores, at)
            code = partial(self.buckets.code_of_few, own, numbers, first)
        with self._noting_ties(self.left, bucket_search.ROWS, "rows") as (r, noted):
            codes = []
            for low, high in bucket_search.rows_of_turn(r):
                x = columns.halves(job.column + low, job.column + high)
                compared: list[Compared] = []

                def passes(
                    threshold: Value, x: Value = x, seen: list[Compared] = compared
                ) -> Value:
                    seen.append((x, threshold))
                    return right(x, threshold)

                found = code([at + k for at in (low, high) for k in range(4)], passes)
                # padding may be passed after all thresholds
                codes.append(found.min((1 << bits) - 1) if few else found)
                noted.append((compared, [low, high]))
            at = planes + r // 8
            bucket_search.store_codes(self.planes, at, self.line_bytes, codes, bits)

    def _thermometer(self, levels: int, job: PredicateJob, planes: Value) -> None:
        """Write ``code > i`` for every threshold i from the bits of the code.

        ``code >= 16 h + l`` is ``high >= h + 1  or  high >= h and low >= l``: one
        three-input operation and one store a line, or for four lines of 64 rows. This
        writes up to 15 lines too many: they belong to later jobs, which overwrite them,
        or are spare.
        """
        size = self.line_bytes
        plane = self._plane(size)
        width = plane.lanes * 8
        with b.turns(size, width, "shift") as shift:
            first = planes + shift
            to = job.first_byte + shift
            bits = [self.planes[first + k * size, plane] for k in range(levels)]
            if size == 8:
                words = b.view("own_planes", I64, self.planes, first)
                low = _four_lines(*(b.splat(words[k], 4) for k in range(4)))
            else:
                low = _steps(bits[3::-1], plane)[1:]

            def write(at: Value, steps: list[Value]) -> None:
                for k, step in enumerate(steps):
                    self._lines[at + k * (16 // len(low) * size)] = step

            if levels == 4:
                write(to, low)
                return
            for k, step in enumerate(_steps(bits[:3:-1], plane)):
                self.steps[k * width] = step

            def step_of(h: Value) -> Value:
                if size == 8:
                    return b.splat(b.view("own_steps", I64, self.steps)[h], 4)
                return self.steps[h * width, plane]

            # For each value of the code's high bits, 16 lines.
            with b.loop((job.count + 15) // 16, hint="high") as h:
                here, above = step_of(h), step_of(h + 1)
                write(to + h * (16 * size), [above | here & step for step in low])

    def _missing_plane(self, column: Value, planes: Value) -> None:
        masks = [b.is_nan(x) for x in self.columns.vectors(column, self.part)]
        at = planes + MISSING_PLANE * self.line_bytes
        store_masks(self.planes, at, masks, self.shape.registers.packs)

    def _missing_right(self, job: PredicateJob) -> None:
        vectors = self.columns.vectors(job.column, self.part)
        with b.when(b.any_true(reduce(or_, map(b.is_nan, vectors)))):
            spare = b.const(self.spare)
            self._missing_plane(job.column, spare)
            self._mark_right(job, spare, self.part // 8)

    def _mark_right(self, job: PredicateJob, planes: Value, size: int) -> None:
        offsets = self._model("right_offset", self.t.right_offset)
        right = self._model("right_lines", self.t.right_lines)
        first = offsets[job.number].to(I64)
        last = offsets[job.number + 1].to(I64)
        plane = self._plane(size)
        source = planes + MISSING_PLANE * self.line_bytes
        with b.loop(first, last, hint="right") as i:
            base = right[i].to(I64) * self.line_bytes + job.shift

            with b.turns(size, plane.lanes * 8, "shift") as shift:
                at = base + shift
                gone = self.planes[source + shift, plane]
                self._lines[at] = self._lines[at, plane] | gone

    # ------------------------------------------------------------ category sets

    def _sets_by_tables(self, entries: int, job: PredicateJob) -> None:
        """Write a job's lines from tables of ``entries`` entries.

        A byte of a table holds one category's answers for eight sets, so one permute of
        64 rows' categories answers all of them; each bit of the result is then a line.
        Up to seven lines too many are written.
        """
        n = self.columns.lanes
        tables = self._model("set_tables", self.t.set_tables)
        vec = Vec(U8, SET_ROWS)
        members = self._test == Comparison.MEMBER
        codes = b.alloc("categories", U8, self.part)
        with b.loop(0, self.part, n, hint="row") as v:
            (x,) = self.columns.vectors(job.column + v, n)
            codes[v] = self._rules.category_entry(x, entries, members).to(U8)
        top = b.const(1 << 7, vec)
        groups = (job.count + (SETS_A_BYTE - 1)) // SETS_A_BYTE
        with b.loop(groups, hint="sets") as g:
            first = job.offset + g * entries
            registers = [tables[first + at, vec] for at in range(0, entries, SET_ROWS)]
            own = job.first_byte + g * (SETS_A_BYTE * self.line_bytes)
            with b.loop(0, self.left, SET_ROWS, hint="rows") as r:
                bits = b.permute(registers, codes[r, vec])
                to = own + r // 8
                for k in range(SETS_A_BYTE):
                    mask = b.mask_bits(bits >= top, I64)
                    self._lines[to + k * self.line_bytes] = mask
                    bits = bits + bits

    def _sets_one_by_one(self, job: PredicateJob) -> None:
        step = max(8, self.columns.lanes)
        with b.loop(job.count, hint="set") as i:
            number = self.numbers[job.offset + i]
            at = job.first_byte + i * self.line_bytes
            with b.loop(0, self.part, step, hint="v") as v:
                masks = []
                for x in self.columns.vectors(job.column + v, step):
                    right = self._rules.goes_right(x, number, self._test)
                    # A missing value has its own rule: it does not go right here.
                    masks.append(right & ~b.is_nan(x))
                store_masks(self._lines, at + v // 8, masks)


def _four_lines(q0: Value, q1: Value, q2: Value, q3: Value) -> list[Value]:
    """Return ``code >= 1, 2, ... 16`` from words of a code's bits, four in a vector."""
    third = b.shuffle(q1 & q0, b.const(0, q0.type), (0, 1, 2, 7))
    low = b.shuffle(b.shuffle(q1 | q0, q1, (0, 5, 2, 3)), third, (0, 1, 6, 7))
    one, two, three = q3 | q2, q3, q3 & q2
    return [one | low, two | one & low, three | two & low, three & low]


def _steps(bits: Sequence[Value], plane: Vec) -> list[Value]:
    ones, zero = b.const(-1, plane), b.const(0, plane)
    q = [zero] * (4 - len(bits)) + list(bits)
    high = [ones, q[0] | q[1], q[0], q[0] & q[1], zero]
    low = [ones, q[2] | q[3], q[2], q[2] & q[3]]
    steps = []
    for h in range(4):
        steps += [high[h], *(high[h + 1] | high[h] & low[k] for k in (1, 2, 3))]
    return [*steps, zero]
