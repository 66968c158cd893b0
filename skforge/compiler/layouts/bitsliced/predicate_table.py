"""Maps a forest's distinct predicates to lines: bit vectors with one bit a row.

A line holds one predicate for a block of rows; a set bit means that the row goes right.
The sorted thresholds of a feature need one search a row: its *code* is the number of
thresholds that are not above the value, and line i is ``code > i`` (a thermometer
code). Features with few thresholds compare directly. The jobs, their order and their
tables are data, so the code does not depend on the forest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skforge._typing import Array, Bools, Float64s, Int32s, Int64s
from skforge.compiler.binning import rules
from skforge.compiler.binning.search import Registers
from skforge.compiler.binning.transpose import WIDE, tile_starts
from skforge.compiler.ir.lir.nodes import Value
from skforge.compiler.layouts.bitsliced.bucket_search import (
    MOST_BYTES,
    bucket_table,
    table_of_few,
)
from skforge.exceptions import ScheduleError
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.bins import TestColumns
from skforge.forest.forest import Forest

#: Kinds of job: compare each threshold, category sets, tables of sets; another kind is
#: the levels of a search, added to ``BUCKETS`` if it is by buckets of one threshold, or
#: to ``BUCKETS_OF_FEW`` if these have several.
DIRECT = 0
CATEGORY = 9
BUCKETS, BUCKETS_OF_FEW = 16, 32

#: Tables for sets of few categories: kind of job and entries. Each byte answers for
#: eight sets. The last entry is for a category in no set, the one before for a missing
#: value.
SETS = {10: 64, 11: 128, 12: 256}
SETS_A_BYTE = 8

#: Tests that cannot be lines here (NE is replaced by EQ earlier).
NOT_CACHED = (Comparison.EQ, Comparison.NE)

#: Up to this many thresholds of a feature, comparing each costs less than a search
#: (measured: 9 with 512-bit registers and masks, 7 with 256-bit ones).
DIRECT_LIMIT = 9

#: Lines that a search may write past its own.
SPARE_LINES = 16


def searched(kind: ArrayLike) -> Bools:
    return ~np.isin(kind, (DIRECT, CATEGORY, *SETS))


def search_bits(kind: int) -> int:
    """Return how many bits the codes of a search have."""
    return kind % BUCKETS


@dataclass(frozen=True, slots=True)
class PredicateJob:
    number: Value
    column: Value  # in the tile's columns
    line: Value  # number of the first line, if no tiles of trees shared them
    first_byte: Value  # byte of the part in the first line
    count: Value
    offset: Value
    shift: Value  # bytes of a line before the part


@dataclass(frozen=True, slots=True, eq=False)
class PredicateTable:
    """Everything the input stage of a block reads, and the line of each predicate.

    ``jobs`` are the work of each tile of columns, in order: job j, of one ``kind``,
    reads column ``column[j]`` of its tile, writes ``count[j]`` lines from ``line[j]``
    on, and finds its numbers at ``offset[j]`` of ``numbers``. Tiles of trees have jobs
    of their own, one tile's after the other's, and all write the same lines.
    """

    n_lines: int  # spare ones included
    tests: Int64s  # predicates, tile of trees by tile of trees
    line_of: Int32s  # of each of them
    tile_start: Int32s  # first feature of each tile of columns
    tile_jobs: Int32s  # (n_tree_tiles * n_tiles + 1,) into the jobs
    jobs: dict[str, Int32s]
    numbers: Array  # thresholds and search tables, in the rows' dtype
    set_tables: NDArray[np.uint8]
    before: NDArray[np.uint8]  # thresholds before each bucket of several
    kinds: tuple[int, ...]  # kinds of job that occur
    right_lines: Int32s  # lines that a missing value sets, job by job
    right_offset: Int32s  # (n_jobs + 1,) into right_lines
    unordered: bool  # missing always goes right, by unordered compares
    missing: Missing  # the forest's only rule
    tests_of_tiles: Int64s  # how many are of each tile of trees
    tree_tile: int | None  # its trees; None: there is only one

    @property
    def tree_tiles(self) -> int:
        return (len(self.tile_jobs) - 1) // len(self.tile_start)

    @property
    def jobs_of_tiles(self) -> Int32s:
        """The first job of each tile of trees, and the end."""
        return self.tile_jobs[:: len(self.tile_start)]

    def apart(self, lines: Int32s, of: Int64s) -> Int64s:
        """Return what lines would be, ``of[k]`` of tile k, if no tiles shared them."""
        first: Int64s = np.arange(self.tree_tiles) * self.n_lines
        return lines.astype(np.int64) + np.repeat(first, of)

    @property
    def job_lines(self) -> Int64s:
        return self.apart(self.jobs["line"], np.diff(self.jobs_of_tiles))

    def by_line(self, values: Array) -> Float64s:
        """Return the predicates' values by line."""
        result = np.zeros(self.tree_tiles * self.n_lines, np.float64)
        result[self.apart(self.line_of, self.tests_of_tiles)] = values[self.tests]
        return result


@dataclass(frozen=True, slots=True, eq=False)
class TreeTileTests:
    """The predicates of tiles of trees, tile by tile, and their numbers by node."""

    size: int  # trees of a tile
    tests: Int64s  # predicates of the forest
    offset: Int64s  # (n_tiles + 1,) into tests
    of_node: Int32s  # (n_nodes,) into tests; -1 for leaves

    @classmethod
    def of(cls, forest: Forest, order: Int32s, size: int) -> TreeTileTests:
        place = np.empty(forest.n_trees, np.int64)
        place[order] = np.arange(forest.n_trees)
        tile = np.repeat(place // size, np.diff(forest.tree_offset))
        inner = np.flatnonzero(forest.predicate >= 0)
        n = forest.n_predicates
        keys, number = np.unique(
            tile[inner] * n + forest.predicate[inner], return_inverse=True
        )
        of_node = np.full(forest.n_nodes, -1, np.int32)
        of_node[inner] = number.reshape(-1)
        tiles = np.arange(-(-forest.n_trees // size) + 1)
        return cls(size, keys % n, np.searchsorted(keys, tiles * n), of_node)

    def forest(self, forest: Forest) -> Forest:
        """Return a forest whose nodes have these numbers in place of predicates."""
        return replace(forest, predicate=self.of_node)


def refusal(forest: Forest) -> str | None:
    if np.isin(forest.comparison, NOT_CACHED).any():
        return (
            "the forest tests for equality, which cache_predicates does not support; "
            "leave it out."
        )
    in_sets = forest.comparison[forest.comparison >= Comparison.IN]
    if len(np.unique(in_sets == Comparison.MEMBER)) > 1:
        return (
            "some category sets of the forest accept numbers with a fraction and some "
            "do not, which cache_predicates does not support; leave it out."
        )
    if len(np.unique(forest.missing)) > 1:
        return (
            "the forest treats missing values in several ways, which cache_predicates "
            "does not support; leave it out."
        )
    return None


def plan_predicates(
    forest: Forest,
    registers: Registers,
    exact: Array | None = None,
    tiles: TreeTileTests | None = None,
) -> PredicateTable:
    """Lay out predicates; raise ScheduleError for equality or mixed missing rules.

    ``exact`` are the thresholds by which those of a column are in order, if the
    forest's are rounded.
    """
    refused = refusal(forest)
    if refused is not None:
        raise ScheduleError(refused)
    used, lanes = np.unique(forest.feature), registers.lanes
    start = np.asarray(tile_starts(used, forest.n_features, lanes), np.int32)
    every: Int64s = np.arange(forest.n_predicates)
    tests = every if tiles is None else tiles.tests
    ordered = forest.threshold if exact is None else exact
    planner = _Planner(forest, ordered, registers, start)
    parts = np.split(tests, [] if tiles is None else tiles.offset[1:-1])
    of_tiles = [planner.jobs(part) for part in parts]
    jobs = {k: np.concatenate([t.jobs[k] for t in of_tiles]) for k in of_tiles[0].jobs}
    ends = np.cumsum([0, *(len(t.jobs["kind"]) for t in of_tiles)])
    first = [t.tile_jobs + end for t, end in zip(of_tiles, ends, strict=False)]
    right = np.concatenate([t.right for t in of_tiles])
    lines = np.concatenate([t.lines for t in of_tiles])
    of_job = np.append(0, np.cumsum(jobs["count"]))
    return PredicateTable(
        n_lines=max(t.n_lines for t in of_tiles) + SPARE_LINES,
        tests=tests,
        line_of=np.concatenate([t.line_of for t in of_tiles]),
        tile_start=start,
        tile_jobs=np.append(np.concatenate(first), ends[-1]).astype(np.int32),
        jobs=jobs,
        numbers=planner.numbers.array(forest.threshold.dtype, spare=lanes),
        set_tables=planner.set_tables.array(np.uint8),
        before=planner.before.array(np.uint8),
        kinds=tuple(np.unique(jobs["kind"]).tolist()),
        right_lines=np.append(lines[right], 0).astype(np.int32),
        right_offset=np.append(0, np.cumsum(right))[of_job].astype(np.int32),
        unordered=not (forest.missing_left.any() or planner.category.any()),
        missing=Missing(int(forest.missing[0])),
        tests_of_tiles=np.array([len(part) for part in parts]),
        tree_tile=None if tiles is None else tiles.size,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _TileJobs:
    """The jobs of a tile of trees, or of all."""

    jobs: dict[str, Int32s]
    tile_jobs: Int64s  # (n_tiles,) the first job of each tile of columns
    lines: Int32s  # of each job's predicates, in order
    right: Bools  # whether a missing value sets them
    line_of: Int32s  # of the predicates as they were given
    n_lines: int


class _Planner:
    def __init__(
        self, forest: Forest, ordered: Array, registers: Registers, start: Int32s
    ) -> None:
        self._forest, self._ordered = forest, ordered
        self._registers, self._start = registers, start
        self.category = forest.comparison >= Comparison.IN
        self.numbers = rules.ThresholdPool(registers.lanes)
        self.set_tables, self.before = rules.ThresholdPool(), rules.ThresholdPool()
        # Wide rows are taken in parts, each of which reads the buckets: those of
        # several take .8 to .95 of the time (epsilon, 512 and 4,096 rows, Zen 3).
        self._wide = forest.n_features > WIDE
        self._room = MOST_BYTES // (2 if self._wide else 1)

    def jobs(self, tests: Int64s) -> _TileJobs:
        """Return the jobs of some predicates, which are in order."""
        forest, start, lanes = self._forest, self._start, self._registers.lanes
        columns = TestColumns.of(tests, self._ordered, forest.feature, self.category)
        features = forest.feature[columns.first]
        works = [
            work for c, column in enumerate(columns) for work in self._of(c, column)
        ]
        of, kind, count, offset = np.array(works, np.int32).reshape(-1, 4).T
        tile = np.searchsorted(start + lanes, features[of], "right")
        line, n_lines = _number_lines(kind, count)
        of_jobs = TestColumns(columns.tests, np.append(0, np.cumsum(count)))
        lines = np.repeat(line, count) + of_jobs.rank
        line_of = np.zeros(len(tests), np.int32)
        line_of[np.searchsorted(tests, of_jobs.tests)] = lines
        column = features[of] - start[tile]
        return _TileJobs(
            dict(kind=kind, column=column, line=line, count=count, offset=offset),
            np.searchsorted(tile, np.arange(len(start))),
            lines,
            ~forest.missing_left[of_jobs.tests],
            line_of,
            n_lines,
        )

    def _of(self, c: int, column: Int64s) -> Iterator[tuple[int, int, int, int]]:
        """Yield the column, kind, predicates and offset of each job of a column."""
        forest, category = self._forest, self.category[column[0]]
        for k, n, data in _sets(forest, column) if category else self._bounds(column):
            self._room -= data.nbytes if k > BUCKETS else 0
            yield c, k, n, (self.set_tables if k in SETS else self.numbers).add(data)

    def _bounds(self, column: Int64s) -> Iterator[tuple[int, int, Array]]:
        thresholds = self._forest.threshold[column]
        given = self._registers, self._room, self.before, self._wide
        return _thresholds(thresholds, *given)


def _number_lines(kind: Int32s, count: Int32s) -> tuple[Int32s, int]:
    """Return each job's first line, and the number of lines; searches come first.

    A search writes up to 15 lines too many, into those of the next job or spare lines.
    Tables of sets write lines in groups of eight.
    """
    groups = -(-count // SETS_A_BYTE) * SETS_A_BYTE
    count = np.where(np.isin(kind, tuple(SETS)), groups, count)
    other = ~searched(kind)
    order = np.argsort(other, kind="stable")
    line = np.zeros(len(count), np.int32)
    line[order] = np.cumsum(count[order]) - count[order]
    if not other.all():
        line[other] += SPARE_LINES
    return line, int(count.sum())


def _thresholds(
    thresholds: Array,
    registers: Registers,
    room: int,
    before: rules.ThresholdPool,
    small: bool,
) -> Iterator[tuple[int, int, Array]]:
    most = (1 << registers.levels) - 1 or len(thresholds)
    for part in np.split(thresholds, range(most, len(thresholds), most)):
        if len(part) <= DIRECT_LIMIT or not registers.levels:
            yield DIRECT, len(part), part
            continue
        kind = max(4, len(part).bit_length())
        found, way = None, BUCKETS
        if kind >= registers.buckets and room > 0:
            found = None if small else bucket_table(part)
            if found is None and (small or kind > registers.buckets):
                way = BUCKETS_OF_FEW
                if (few := table_of_few(part)) is not None:
                    found, counts = few
                    found[3] = before.add(counts)
        if found is not None:
            room -= found.nbytes
            yield way + kind, len(part), found
            continue
        pivots = registers.pivots(part, kind, np.inf, low_first=True)
        yield kind, len(part), np.concatenate(pivots)


def _sets(forest: Forest, predicates: Int64s) -> Iterator[tuple[int, int, Array]]:
    n, some = len(predicates), rules.set_members(forest, predicates).any(axis=0)
    entries = 3 + int(np.flatnonzero(some).max(initial=-1))
    kind = next((k for k, most in SETS.items() if entries <= most), CATEGORY)
    if kind == CATEGORY:
        yield kind, n, rules.set_numbers(forest)[predicates].astype(np.float64)
        return
    size = SETS[kind]
    right = np.ones((-(-n // SETS_A_BYTE) * SETS_A_BYTE, size), np.bool_)
    right[:n] = rules.set_answers(forest, predicates, size // 32)[:, :size]
    right[:, size - 2] = False  # missing values have their own rule
    bits = right.reshape(-1, SETS_A_BYTE, size)
    yield kind, n, np.packbits(bits, axis=1).reshape(-1)
