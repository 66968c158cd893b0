"""How a forest's distinct predicates become lines of bits, one bit a row.

A *line* holds one predicate for a block of rows: the bit says that the row goes right.
The thresholds of a feature, sorted, need one search a row: its *code* is how many of
them are not above the value, and line i is ``code > i`` (a thermometer). Features with
few thresholds compare directly. What is computed, in which order and from which table
is data, so that the code does not depend on the forest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.transpose import tile_starts
from skforge.compiler.forest.arrays import Comparison, Missing
from skforge.compiler.forest.forest import Forest
from skforge.exceptions import ScheduleError

IntArray = NDArray[np.int32]

#: Kinds of job, in the order of their code: compare each threshold, search with so
#: many levels, category sets.
DIRECT = 0
CATEGORY = 9

#: Sets of few categories: tables of so many entries, a byte for the answers of eight
#: sets. The last entry is of a category in none, the one before of a missing value.
SETS = {10: 64, 11: 128, 12: 256}
SETS_A_BYTE = 8

#: Tests that have no line here (NE becomes EQ before).
NOT_CACHED = (Comparison.EQ, Comparison.NE, Comparison.MEMBER)

#: Thresholds of a feature up to which comparing each costs less than a search
#: (measured: 9 with 512-bit registers and masks, 7 with 256-bit ones).
DIRECT_LIMIT = 9

#: Lines a search may write past its own.
SPARE_LINES = 16


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


@dataclass(frozen=True, slots=True, eq=False)
class PredicateTable:
    """Everything the input stage of a block reads, and where each predicate goes."""

    n_lines: int  # spare ones included
    line_of: IntArray  # (n_predicates,)
    tile_start: IntArray  # first feature of each tile of columns
    tile_jobs: IntArray  # (n_tiles + 1,) into the jobs
    jobs: Jobs
    numbers: NDArray[Any]  # thresholds and search tables, in the rows' dtype
    sets: NDArray[np.uint8]  # tables of sets
    kinds: tuple[int, ...]  # kinds of job that occur
    right_lines: IntArray  # lines that a missing value sets, job by job
    right_offset: IntArray  # (n_jobs + 1,) into right_lines
    unordered: bool  # missing goes right everywhere: compares do it by themselves
    nan_is_zero: bool
    zero_is_missing: bool


def refusal(forest: Forest) -> str | None:
    """Say why a forest's predicates cannot be evaluated as lines, or return None."""
    if np.isin(forest.comparison, NOT_CACHED).any():
        return (
            "the forest tests for equality or for members of sets, which "
            "cache_predicates does not take; leave it out."
        )
    if len(np.unique(forest.missing)) > 1:
        return (
            "the forest mixes ways to treat missing values, which cache_predicates "
            "does not take; leave it out."
        )
    return None


def plan_predicates(
    forest: Forest, comparison: str, lanes: int, max_levels: int
) -> PredicateTable:
    """Lay the predicates of a normalised forest out.

    Parameters
    ----------
    forest : Forest
        All numeric predicates LT or all LE.
    comparison : {"lt", "le"}
        Which.
    lanes : int
        Numbers of a vector register: columns of a tile, entries of a table vector.
    max_levels : int
        Levels an in-register search may have; 0 compares every threshold.

    Raises
    ------
    ScheduleError
        If the missing kinds differ within the forest, or a test is one for equality.
    """
    refused = refusal(forest)
    if refused is not None:
        raise ScheduleError(refused)
    kinds_of_missing = set(np.unique(forest.missing).tolist())
    category = forest.comparison == Comparison.IN
    right_when_missing = ~forest.missing_left
    unordered = bool(right_when_missing.all()) and not category.any()
    builder = _Builder(forest, lanes, max_levels)
    used = np.unique(forest.feature)
    starts = tile_starts(used, forest.n_features, lanes)
    order = np.lexsort((forest.threshold, forest.feature))
    first = np.searchsorted(forest.feature[order], used, "left")
    last = np.searchsorted(forest.feature[order], used, "right")
    tile_jobs = [0]
    at = 0
    for start in starts:
        while at < len(used) and used[at] < start + lanes:
            predicates = order[first[at] : last[at]]
            builder.feature(int(used[at] - start), predicates[~category[predicates]])
            builder.categories(int(used[at] - start), predicates[category[predicates]])
            at += 1
        tile_jobs.append(len(builder.kind))
    builder.number_lines()
    right, offsets = [], [0]
    for part in builder.predicates:
        chosen = part[right_when_missing[part]]
        right.append(builder.line_of[chosen])
        offsets.append(offsets[-1] + len(chosen))
    return PredicateTable(
        n_lines=builder.n_lines + SPARE_LINES,
        line_of=builder.line_of,
        tile_start=np.asarray(starts, np.int32),
        tile_jobs=np.asarray(tile_jobs, np.int32),
        jobs=builder.jobs(),
        numbers=np.concatenate([*builder.numbers, np.zeros(lanes)]).astype(
            forest.threshold.dtype
        ),
        sets=np.concatenate([*builder.sets, np.zeros(0, np.uint8)]),
        kinds=tuple(sorted(set(builder.kind))),
        right_lines=np.concatenate([*right, np.zeros(1)]).astype(np.int32),
        right_offset=np.asarray(offsets, np.int32),
        unordered=unordered,
        nan_is_zero=kinds_of_missing == {int(Missing.NEVER)},
        zero_is_missing=kinds_of_missing == {int(Missing.ZERO)},
    )


class _Builder:
    """Collects jobs, then numbers their lines."""

    def __init__(self, forest: Forest, lanes: int, max_levels: int) -> None:
        self._forest, self._lanes, self._levels = forest, lanes, max_levels
        self.line_of = np.zeros(forest.n_predicates, np.int32)
        self.kind: list[int] = []
        self.predicates: list[IntArray] = []
        self.numbers: list[NDArray[Any]] = []
        self.sets: list[NDArray[np.uint8]] = []
        self.n_lines = 0
        self._column: list[int] = []
        self._line = np.zeros(0, np.int32)
        self._count: list[int] = []
        self._offset: list[int] = []
        self._size = self._set_size = 0

    def jobs(self) -> Jobs:
        """Return the jobs as arrays."""
        return Jobs(
            *(
                np.asarray(values, np.int32)
                for values in (
                    self.kind,
                    self._column,
                    self._line,
                    self._count,
                    self._offset,
                )
            )
        )

    def number_lines(self) -> None:
        """Give lines to searches, in their order, then to other jobs.

        A search writes up to 15 lines too many: those of the next, or spare ones.
        Tables of sets write lines by eight.
        """
        count = np.asarray(self._count, np.int32)
        other = np.isin(self.kind, (DIRECT, CATEGORY, *SETS))
        in_tables = np.isin(self.kind, tuple(SETS))
        count[in_tables] = -(-count[in_tables] // SETS_A_BYTE) * SETS_A_BYTE
        self.n_lines = int(count.sum())
        order = np.argsort(other, kind="stable")
        line = np.zeros(len(count), np.int32)
        line[order] = np.cumsum(count[order]) - count[order]
        if not other.all():
            line[other] += SPARE_LINES
        self._line = line
        for first, predicates in zip(line, self.predicates, strict=True):
            self.line_of[predicates] = first + np.arange(len(predicates))

    def feature(self, column: int, predicates: IntArray) -> None:
        """Add the numeric predicates of a feature, sorted by threshold."""
        most = (1 << self._levels) - 1
        while len(predicates):
            few = len(predicates) <= DIRECT_LIMIT or not most
            part = predicates if few else predicates[:most]
            predicates = predicates[len(part) :]
            thresholds = self._forest.threshold[part]
            if few:
                self._add(DIRECT, column, part, thresholds)
            else:
                levels = max(4, len(part).bit_length())
                self._add(levels, column, part, self._search_table(thresholds, levels))

    def categories(self, column: int, predicates: IntArray) -> None:
        """Add the category predicates of a feature: numbers of sets."""
        if not len(predicates):
            return
        holds = [self._categories(p) for p in predicates.tolist()]
        entries = 3 + max(int(held.max(initial=-1)) for held in holds)
        kind = next((k for k, most in SETS.items() if entries <= most), CATEGORY)
        if kind == CATEGORY:
            category = self._forest.comparison == Comparison.IN
            number = (np.cumsum(category) - 1)[predicates]
            self._add(kind, column, predicates, number.astype(np.float64))
            return
        size = SETS[kind]
        groups = -(-len(holds) // SETS_A_BYTE)
        right = np.ones((groups * SETS_A_BYTE, size), np.bool_)
        for own, held in zip(right, holds, strict=False):
            own[held] = False
        right[:, size - 2] = False  # missing values have a rule of their own
        bits = right.reshape(groups, SETS_A_BYTE, size)
        self.sets.append(np.packbits(bits, axis=1).reshape(-1))
        self._add(kind, column, predicates, np.zeros(0), self._set_size)
        self._set_size += groups * size

    def _categories(self, predicate: int) -> NDArray[np.int64]:
        """Return the categories of a predicate's set."""
        offset = self._forest.category_offset
        words = self._forest.category_words[offset[predicate] : offset[predicate + 1]]
        bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")
        held: NDArray[np.int64] = np.flatnonzero(bits)
        return held

    def _add(
        self,
        kind: int,
        column: int,
        predicates: IntArray,
        numbers: NDArray[Any],
        offset: int | None = None,
    ) -> None:
        self.kind.append(kind)
        self._column.append(column)
        self._count.append(len(predicates))
        self._offset.append(self._size if offset is None else offset)
        self.predicates.append(predicates)
        # Searches load whole vectors from an aligned place.
        padding = -len(numbers) % self._lanes
        self.numbers.append(np.concatenate([numbers, np.full(padding, np.inf)]))
        self._size += len(numbers) + padding

    def _search_table(self, thresholds: NDArray[Any], levels: int) -> NDArray[Any]:
        """Return the pivots of each level, by the bits found so far.

        Bit j of the index is the answer of level j, so that a level adds 2**j under
        its mask; level j has max(lanes, 2**j) entries. Past the last threshold pivots
        are +inf.
        """
        padded = np.full(1 << levels, np.inf)
        padded[: len(thresholds)] = thresholds
        parts = []
        for j in range(levels):
            entry = np.arange(max(self._lanes, 1 << j)) & ((1 << j) - 1)
            prefix = np.zeros_like(entry)
            for bit in range(j):
                prefix |= ((entry >> bit) & 1) << (j - 1 - bit)
            middle = (prefix << (levels - j)) + (1 << (levels - j - 1)) - 1
            parts.append(padded[middle])
        return np.concatenate(parts)
