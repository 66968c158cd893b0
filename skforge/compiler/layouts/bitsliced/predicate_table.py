"""Maps a forest's distinct predicates to lines: bit vectors with one bit a row.

A line holds one predicate for a block of rows; a set bit means that the row goes right.
The sorted thresholds of a feature need one search a row: its *code* is the number of
thresholds that are not above the value, and line i is ``code > i`` (a thermometer
code). Features with few thresholds compare directly. The jobs, their order and their
tables are data, so the code does not depend on the forest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skforge.compiler.binning.rules import set_members, set_numbers
from skforge.compiler.binning.search import Registers
from skforge.compiler.binning.transpose import tile_starts
from skforge.compiler.forest.arrays import Comparison, IntArray, Missing
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.lir.nodes import Value
from skforge.exceptions import ScheduleError

_Int = TypeVar("_Int", bound=np.integer[Any])

#: Kinds of job: compare each threshold, category sets, tables of sets; any other kind
#: is the number of levels of a search.
DIRECT = 0
CATEGORY = 9

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


def searched(kind: ArrayLike) -> NDArray[np.bool_]:
    """Return which kinds of job search among thresholds."""
    found: NDArray[np.bool_] = ~np.isin(kind, (DIRECT, CATEGORY, *SETS))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Jobs:
    """The work of each tile of columns, in order.

    Job j reads column ``column[j]`` of its tile, writes ``count[j]`` lines from
    ``line[j]`` on, and finds its numbers at ``offset[j]`` of ``numbers``.
    """

    kind: IntArray
    column: IntArray
    line: IntArray
    count: IntArray
    offset: IntArray


@dataclass(frozen=True, slots=True)
class Job:
    """One job in LIR: its number, and the places of its column, lines and numbers."""

    number: Value
    column: Value  # in the tile's columns
    line: Value  # number of the first line
    place: Value  # byte of the part in the first line
    count: Value
    offset: Value
    shift: Value  # bytes of a line before the part


@dataclass(frozen=True, slots=True, eq=False)
class PredicateTable:
    """Everything the input stage of a block reads, and the line of each predicate."""

    n_lines: int  # spare ones included
    line_of: IntArray  # (n_predicates,)
    tile_start: IntArray  # first feature of each tile of columns
    tile_jobs: IntArray  # (n_tiles + 1,) into the jobs
    jobs: Jobs
    numbers: NDArray[Any]  # thresholds and search tables, in the rows' dtype
    set_tables: NDArray[np.uint8]
    kinds: tuple[int, ...]  # kinds of job that occur
    right_lines: IntArray  # lines that a missing value sets, job by job
    right_offset: IntArray  # (n_jobs + 1,) into right_lines
    unordered: bool  # missing always goes right, by unordered compares
    missing: Missing  # the forest's only rule


def refusal(forest: Forest) -> str | None:
    """Say why a forest's predicates cannot be evaluated as lines, or return None."""
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


def columns_of(
    forest: Forest, predicates: NDArray[_Int], *keys: NDArray[Any]
) -> list[NDArray[_Int]]:
    """Split predicates into columns that agree on all keys, thresholds ascending."""
    order = np.lexsort((forest.threshold[predicates], *keys[::-1]))
    changes = [np.diff(key[order]) != 0 for key in keys]
    cuts = np.flatnonzero(np.any(changes, axis=0)) + 1
    return np.split(predicates[order], cuts) if len(order) else []


def plan_predicates(forest: Forest, registers: Registers) -> PredicateTable:
    """Lay out the predicates of a normalised forest.

    Raises ScheduleError if the forest mixes kinds of missing values or has an equality
    test.
    """
    refused = refusal(forest)
    if refused is not None:
        raise ScheduleError(refused)
    planner = _Planner(forest, registers)
    starts = tile_starts(np.unique(forest.feature), forest.n_features, registers.lanes)
    ends = np.asarray(starts) + registers.lanes
    category = forest.comparison >= Comparison.IN
    everything = np.arange(forest.n_predicates, dtype=np.int32)
    tiles = []
    for part in columns_of(forest, everything, forest.feature, category):
        feature = int(forest.feature[part[0]])
        tiles.append(int(np.searchsorted(ends, feature, "right")))
        add = planner.sets if category[part[0]] else planner.thresholds
        add(feature - starts[tiles[-1]], part)
        tiles += [tiles[-1]] * (len(planner.jobs) - len(tiles))
    lines, n_lines = planner.number_lines()
    line_of = np.zeros(forest.n_predicates, np.int32)
    right, offsets = [], [0]
    for first, job in zip(lines, planner.jobs, strict=True):
        line_of[job.predicates] = first + np.arange(len(job.predicates))
        right.append(line_of[job.predicates[~forest.missing_left[job.predicates]]])
        offsets.append(offsets[-1] + len(right[-1]))
    return PredicateTable(
        n_lines=n_lines + SPARE_LINES,
        line_of=line_of,
        tile_start=np.asarray(starts, np.int32),
        tile_jobs=np.searchsorted(tiles, np.arange(len(starts) + 1)).astype(np.int32),
        jobs=Jobs(
            kind=np.array([job.kind for job in planner.jobs], np.int32),
            column=np.array([job.column for job in planner.jobs], np.int32),
            line=lines,
            count=np.array([len(job.predicates) for job in planner.jobs], np.int32),
            offset=np.array([job.offset for job in planner.jobs], np.int32),
        ),
        numbers=np.concatenate([*planner.numbers, np.zeros(registers.lanes)]).astype(
            forest.threshold.dtype
        ),
        set_tables=np.concatenate([*planner.set_tables, np.zeros(0, np.uint8)]),
        kinds=tuple(sorted({job.kind for job in planner.jobs})),
        right_lines=np.concatenate([*right, np.zeros(1)]).astype(np.int32),
        right_offset=np.asarray(offsets, np.int32),
        unordered=not forest.missing_left.any() and not category.any(),
        missing=Missing(int(forest.missing[0])),
    )


class _Planned(NamedTuple):
    kind: int
    column: int
    predicates: IntArray
    offset: int


class _Planner:
    """Collects jobs, then numbers their lines."""

    def __init__(self, forest: Forest, registers: Registers) -> None:
        self._forest, self._registers = forest, registers
        self.jobs: list[_Planned] = []
        self.numbers: list[NDArray[Any]] = []
        self.set_tables: list[NDArray[np.uint8]] = []
        self._size = self._set_size = 0

    def number_lines(self) -> tuple[IntArray, int]:
        """Return each job's first line, and the number of lines; searches come first.

        A search writes up to 15 lines too many, into those of the next job or spare
        lines. Tables of sets write lines in groups of eight.
        """
        kind = np.array([job.kind for job in self.jobs], np.int32)
        count = np.array([len(job.predicates) for job in self.jobs], np.int32)
        tables = np.isin(kind, tuple(SETS))
        count[tables] = -(-count[tables] // SETS_A_BYTE) * SETS_A_BYTE
        other = ~searched(kind)
        order = np.argsort(other, kind="stable")
        line = np.zeros(len(count), np.int32)
        line[order] = np.cumsum(count[order]) - count[order]
        if not other.all():
            line[other] += SPARE_LINES
        return line, int(count.sum())

    def thresholds(self, column: int, predicates: IntArray) -> None:
        """Add the numeric predicates of a feature, sorted by threshold."""
        most = (1 << self._registers.levels) - 1
        while len(predicates):
            few = len(predicates) <= DIRECT_LIMIT or not most
            part = predicates if few else predicates[:most]
            predicates = predicates[len(part) :]
            numbers = self._forest.threshold[part]
            kind = DIRECT
            if not few:
                kind = max(4, len(part).bit_length())
                pivots = self._registers.pivots(numbers, kind, np.inf, low_first=True)
                numbers = np.concatenate(pivots)
            self._add(kind, column, part, numbers)

    def sets(self, column: int, predicates: IntArray) -> None:
        """Add the category predicates of a feature."""
        holds = set_members(self._forest, predicates)
        entries = 3 + int(np.flatnonzero(holds.any(axis=0)).max(initial=-1))
        kind = next((k for k, most in SETS.items() if entries <= most), CATEGORY)
        if kind == CATEGORY:
            numbers = set_numbers(self._forest)[predicates]
            self._add(kind, column, predicates, numbers.astype(np.float64))
            return
        size = SETS[kind]
        groups = -(-len(holds) // SETS_A_BYTE)
        right = np.ones((groups * SETS_A_BYTE, size), np.bool_)
        held = holds[:, :size]
        right[: len(held), : held.shape[1]] = ~held
        right[:, size - 2] = False  # missing values have their own rule
        bits = right.reshape(groups, SETS_A_BYTE, size)
        self.set_tables.append(np.packbits(bits, axis=1).reshape(-1))
        self._add(kind, column, predicates, np.zeros(0), self._set_size)
        self._set_size += groups * size

    def _add(
        self,
        kind: int,
        column: int,
        predicates: IntArray,
        numbers: NDArray[Any],
        offset: int | None = None,
    ) -> None:
        offset = self._size if offset is None else offset
        self.jobs.append(_Planned(kind, column, predicates, offset))
        # Searches load whole vectors from aligned offsets.
        padding = -len(numbers) % self._registers.lanes
        self.numbers.append(np.pad(numbers, (0, padding), constant_values=np.inf))
        self._size += len(numbers) + padding
