"""Maps a forest's distinct predicates to lines: bit vectors with one bit a row.

A line holds one predicate for a block of rows; a set bit means that the row goes right.
The sorted thresholds of a feature need one search a row: its *code* is the number of
thresholds that are not above the value, and line i is ``code > i`` (a thermometer
code). Features with few thresholds compare directly. The jobs, their order and their
tables are data, so the code does not depend on the forest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skforge._typing import Array, Bools, Int32s, Int64s
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
    line: Value  # number of the first line
    first_byte: Value  # byte of the part in the first line
    count: Value
    offset: Value
    shift: Value  # bytes of a line before the part


@dataclass(frozen=True, slots=True, eq=False)
class PredicateTable:
    """Everything the input stage of a block reads, and the line of each predicate.

    ``jobs`` are the work of each tile of columns, in order: job j, of one ``kind``,
    reads column ``column[j]`` of its tile, writes ``count[j]`` lines from ``line[j]``
    on, and finds its numbers at ``offset[j]`` of ``numbers``.
    """

    n_lines: int  # spare ones included
    line_of: Int32s  # (n_predicates,)
    tile_start: Int32s  # first feature of each tile of columns
    tile_jobs: Int32s  # (n_tiles + 1,) into the jobs
    jobs: dict[str, Int32s]
    numbers: Array  # thresholds and search tables, in the rows' dtype
    set_tables: NDArray[np.uint8]
    before: NDArray[np.uint8]  # thresholds before each bucket of several
    kinds: tuple[int, ...]  # kinds of job that occur
    right_lines: Int32s  # lines that a missing value sets, job by job
    right_offset: Int32s  # (n_jobs + 1,) into right_lines
    unordered: bool  # missing always goes right, by unordered compares
    missing: Missing  # the forest's only rule


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
    forest: Forest, registers: Registers, exact: Array | None = None
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
    category = forest.comparison >= Comparison.IN
    every = np.arange(forest.n_predicates)
    ordered = forest.threshold if exact is None else exact
    columns = TestColumns.of(every, ordered, forest.feature, category)
    features = forest.feature[columns.first]
    numbers, set_tables = rules.ThresholdPool(lanes), rules.ThresholdPool()
    before = rules.ThresholdPool()
    works: list[tuple[int, int, int, int]] = []  # column, kind, predicates, offset
    # Wide rows are taken in parts, each of which reads the buckets: those of several
    # take .8 to .95 of the time (epsilon, 512 and 4,096 rows, Zen 3).
    wide = forest.n_features > WIDE
    room = MOST_BYTES // (2 if wide else 1)
    for c, column in enumerate(columns):
        work = _sets(forest, column)
        if not category[column[0]]:
            work = _thresholds(forest.threshold[column], registers, room, before, wide)
        for k, n, data in work:
            room -= data.nbytes if k > BUCKETS else 0
            works.append((c, k, n, (set_tables if k in SETS else numbers).add(data)))
    of, kind, count, offset = np.array(works, np.int32).reshape(-1, 4).T
    tile = np.searchsorted(start + lanes, features[of], "right")
    line, n_lines = _number_lines(kind, count)
    of_jobs = TestColumns(columns.tests, np.append(0, np.cumsum(count)))
    lines = np.repeat(line, count) + of_jobs.rank
    line_of = np.zeros(forest.n_predicates, np.int32)
    line_of[of_jobs.tests] = lines
    right = ~forest.missing_left[of_jobs.tests]
    column = features[of] - start[tile]
    jobs = dict(kind=kind, column=column, line=line, count=count, offset=offset)
    return PredicateTable(
        n_lines=n_lines + SPARE_LINES,
        line_of=line_of,
        tile_start=start,
        tile_jobs=np.searchsorted(tile, np.arange(len(start) + 1)).astype(np.int32),
        jobs=jobs,
        numbers=numbers.array(forest.threshold.dtype, spare=lanes),
        set_tables=set_tables.array(np.uint8),
        before=before.array(np.uint8),
        kinds=tuple(np.unique(kind).tolist()),
        right_lines=np.append(lines[right], 0).astype(np.int32),
        right_offset=np.append(0, np.cumsum(right))[of_jobs.offset].astype(np.int32),
        unordered=not forest.missing_left.any() and not category.any(),
        missing=Missing(int(forest.missing[0])),
    )


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
