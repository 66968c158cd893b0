"""Sorts a forest's tests into columns; plans bins, where tests compare small integers.

A *column* holds the tests of one feature that share one search: their thresholds in
order. Everything that evaluates many tests at once is a view of such columns: lines of
bits, codes of rows, buckets, words of a GPU.

The sorted thresholds of a feature divide its values into bins. A row's *code* is the
number of thresholds that it passes, and predicate i sends it right exactly if
``code > i``. After one search per value, every test of a walk compares two integers of
one or two bytes, for any comparison, missing value or category.

A column of codes covers the tests of one feature that treat missing values alike; it is
split if there are more tests than a code can count. A test for equality or for a set of
categories has its own column, whose code is 0 (left) or 1 (right); or tests for
equality share a column with thresholds, as v and its neighbour enclose v alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Bools, FloatArray, Int32s, Int64s, SignedInts
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest

#: In place of a comparison: a column of thresholds, not of one other test.
THRESHOLDS = -1


@dataclass(frozen=True, slots=True, eq=False)
class TestColumns:
    """Tests sorted into columns that agree on all keys, thresholds ascending."""

    tests: SignedInts  # column by column
    offset: Int64s  # (n_columns + 1,) into tests

    @classmethod
    def of(cls, tests: SignedInts, thresholds: Array, *keys: Array) -> TestColumns:
        """Sort tests by keys, stably, so that a plan is the same on every machine."""
        by = [key[tests] for key in keys[::-1]]
        order = np.lexsort(by)
        starts = np.ones(len(tests), np.bool_)
        starts[1:] = False
        for ranked in (key[order] for key in by):
            starts[1:] |= ranked[1:] != ranked[:-1]
        offset = np.append(np.flatnonzero(starts), len(tests))
        if len(offset) > len(tests) // 64:
            return cls(tests[np.lexsort((thresholds[tests], *by))], offset)
        for first, last in pairwise(offset.tolist()):  # in few runs: linear time
            part = np.argsort(thresholds[tests[order[first:last]]], kind="stable")
            order[first:last] = order[first:last][part]
        return cls(tests[order], offset)

    def cut(self, most: int) -> TestColumns:
        """Continue each column of more than ``most`` tests in another one."""
        starts = [range(*ends, most) for ends in pairwise(self.offset.tolist())]
        ends = [*chain.from_iterable(starts), len(self.tests)]
        return TestColumns(self.tests, np.array(ends, np.int64))

    def __len__(self) -> int:
        return len(self.offset) - 1

    def __iter__(self) -> Iterator[SignedInts]:
        return (self.tests[first:last] for first, last in pairwise(self.offset))

    @property
    def first(self) -> SignedInts:
        return self.tests[self.offset[:-1]]

    @property
    def counts(self) -> Int64s:
        return np.diff(self.offset)

    @property
    def rank(self) -> Int32s:
        rank = np.arange(len(self.tests), dtype=np.int32)
        rank -= np.repeat(self.offset[:-1].astype(np.int32), self.counts)
        return rank


@dataclass(frozen=True, slots=True, eq=False)
class CodeTable(TestColumns):
    """The columns of codes, and each predicate's column and rank.

    A row goes right at predicate p exactly if
    ``codes[row, column_of[p]] > rank_of[p]``; where ``equal[p]``, also if it is less.
    """

    dtype: np.dtype[Any]  # uint8 or uint16
    feature: Int32s  # (n_columns,), ascending
    test: Int64s  # (n_columns,) the only test's Comparison, or THRESHOLDS
    missing: NDArray[np.uint8]  # (n_columns,) Missing
    missing_left: Bools  # (n_columns,)
    thresholds: FloatArray  # ascending within a column
    column_of: Int32s  # (n_predicates,)
    rank_of: Int32s  # (n_predicates,)
    equal: Bools  # (n_predicates,)

    @property
    def n_columns(self) -> int:
        return len(self)

    @property
    def ordered(self) -> Bools:
        """Which columns hold thresholds; the greatest code of the others is 1."""
        return self.test == THRESHOLDS

    def bounds(self, column: int) -> FloatArray:
        return self.thresholds[self.offset[column] : self.offset[column + 1]]


def tested_columns(forest: Forest) -> Int64s:
    return np.flatnonzero(np.bincount(forest.feature))  # a tenth of np.unique's time


def missing_right(tests: Forest | CodeTable) -> Bools:
    return ~tests.missing_left & (tests.missing != Missing.NEVER)


def plan_codes(
    forest: Forest,
    dtype: type[np.integer[Any]],
    merge: bool = False,
    chosen: Bools | None = None,
) -> CodeTable:
    """Plan the columns of codes of a normalised forest, for codes of a ``dtype``.

    All thresholds must use LT, or all LE. With ``merge``, thresholds that send missing
    values to different sides share a column, whose codes then do not cover missing
    values, and so do tests for equality. Only the ``chosen`` predicates get codes; the
    others are assigned to column 0.
    """
    equal = _merged_equal(forest, merge, dtype)
    ordered = (forest.comparison <= Comparison.LE) | equal
    predicate = np.arange(forest.n_predicates, dtype=np.int32)
    threshold = forest.threshold
    key: Array = _keys(forest, ~(ordered & merge))
    key = key.astype(np.min_scalar_type(key.max(initial=0)))  # sorted in linear time
    keys = [key]
    if not ordered.all():
        keys.append(np.where(ordered, 0, predicate + 1))
    if equal.any():
        # x == v if it passes v's lower neighbour and not v; or v and not its upper one
        below, above = _neighbours(forest, equal)
        predicate = np.append(predicate, np.flatnonzero(equal).astype(np.int32))
        threshold = np.append(np.where(equal, above, threshold), below[equal])
        keys = [key[predicate] for key in keys]
    tests = np.arange(len(predicate), dtype=np.int32)
    tests = tests if chosen is None else tests[chosen[predicate]]
    columns = TestColumns.of(tests, threshold, *keys).cut(int(np.iinfo(dtype).max))
    bounds, rank = threshold[columns.tests], columns.rank
    if equal.any():  # equal thresholds have the rank of the first
        again = (rank > 0) & (bounds == np.roll(bounds, 1))
        rank = rank[np.maximum.accumulate(np.where(again, 0, np.arange(len(rank))))]
    of, head = predicate[columns.tests], predicate[columns.first]
    # of the two thresholds of a test for equality, the last and upper one counts
    column_of, rank_of = np.zeros((2, forest.n_predicates), np.int32)
    column_of[of] = np.repeat(np.arange(len(columns), dtype=np.int32), columns.counts)
    rank_of[of] = rank
    return CodeTable(
        tests=of,
        offset=columns.offset,
        dtype=np.dtype(dtype),
        feature=forest.feature[head],
        test=np.where(ordered[head], THRESHOLDS, forest.comparison[head].astype(int)),
        missing=forest.missing[head],
        missing_left=forest.missing_left[head],
        thresholds=bounds,
        column_of=column_of,
        rank_of=rank_of,
        equal=equal,
    )


def _merged_equal(forest: Forest, merge: bool, dtype: type[np.integer[Any]]) -> Bools:
    equal: Bools = (forest.comparison == Comparison.EQ) & np.bool_(merge)
    if not equal.any():
        return equal
    equal &= ~forest.missing_left | (forest.missing == Missing.NEVER)
    equal &= np.isfinite(_neighbours(forest, equal)).all(axis=0)
    ordered = (forest.comparison <= Comparison.LE) | equal
    counts = np.bincount(_keys(forest, False)[ordered], 1 + equal[ordered])
    # a column that is split might part a value's two thresholds
    equal &= counts.max(initial=0) <= np.iinfo(dtype).max
    return equal


def _neighbours(forest: Forest, equal: Bools) -> FloatArray:
    """Return two thresholds each, of which the first alone is passed by one value."""
    value, infinity = forest.threshold, forest.threshold.dtype.type(np.inf)
    less = not (forest.comparison == Comparison.LE).any()  # as in normalized forests
    with np.errstate(over="ignore", under="ignore"):
        beside = np.nextafter(value, infinity if less else -infinity)
    pair = np.stack([value, beside] if less else [beside, value])
    return np.where(equal, pair, 0)


def _keys(forest: Forest, apart: Any) -> Int64s:
    key = forest.feature.astype(np.int64)
    key <<= 3
    key |= forest.missing << 1
    key |= forest.missing_left & apart
    return key


def column_count(
    forest: Forest, merge: bool = False, dtype: type[np.integer[Any]] = np.uint16
) -> int:
    equal = _merged_equal(forest, merge, dtype)
    ordered = (forest.comparison <= Comparison.LE) | equal
    counts = _counts(forest, ordered, equal, merge)
    most = int(np.iinfo(dtype).max)
    return int((-(-counts // most)).sum()) + int((~ordered).sum())


def _counts(forest: Forest, ordered: Bools, equal: Any, merge: bool = False) -> Int64s:
    key = _keys(forest, np.bool_(not merge))
    counts = np.bincount(key if ordered.all() else key[ordered])
    if np.any(equal):  # these have two
        counts += np.bincount(key[ordered & equal], minlength=len(counts))
    return counts[counts > 0]


def code_dtype(forest: Forest) -> type[np.unsignedinteger[Any]]:
    """Return uint8 if no column of codes is then split, else uint16."""
    counts = _counts(forest, forest.comparison <= Comparison.LE, False)
    return np.uint8 if counts.max(initial=0) <= 255 else np.uint16


def code_stride(table: CodeTable) -> int:
    per_line = 64 // table.dtype.itemsize
    return -(-max(1, table.n_columns) // per_line) * per_line
