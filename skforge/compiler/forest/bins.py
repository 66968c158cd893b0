"""Plans bins: turns a forest's predicates into comparisons of small integers.

The sorted thresholds of a feature divide its values into bins. A row's *code* is the
number of thresholds that it passes, and predicate i sends it right exactly if
``code > i``. After one search per value, every test of a walk compares two integers of
one or two bytes, for any comparison, missing value or category.

A *column* of codes covers the tests of one feature that treat missing values alike; it
is split if there are more tests than a code can count. A test for equality or for a set
of categories has its own column, whose code is 0 (left) or 1 (right); or tests for
equality share a column with thresholds, as v and its neighbour enclose v alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.arrays import Comparison, IntArray, Missing
from skforge.compiler.forest.forest import Forest


class ColumnKind(IntEnum):
    """What a column's code counts."""

    ORDER = 0  # thresholds passed
    TEST = 1  # whether the column's only test sends the row right


@dataclass(frozen=True, slots=True, eq=False)
class CodeTable:
    """The columns of codes, and each predicate's column and rank.

    A row goes right at predicate p exactly if
    ``codes[row, column_of[p]] > rank_of[p]``; where ``equal[p]``, also if it is less.
    """

    dtype: np.dtype[Any]  # uint8 or uint16
    feature: IntArray  # (n_columns,), ascending
    kind: NDArray[np.uint8]  # (n_columns,) ColumnKind
    missing: NDArray[np.uint8]  # (n_columns,) Missing
    missing_left: NDArray[np.bool_]  # (n_columns,)
    offset: NDArray[np.int64]  # (n_columns + 1,) into thresholds and predicates
    thresholds: NDArray[np.floating[Any]]  # ascending within a column
    predicates: IntArray  # the predicate of each threshold
    column_of: IntArray  # (n_predicates,)
    rank_of: IntArray  # (n_predicates,)
    equal: NDArray[np.bool_]  # (n_predicates,)

    @property
    def n_columns(self) -> int:
        """Number of codes per row."""
        return len(self.feature)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Return the greatest code of each column."""
        counts: NDArray[np.int64] = np.diff(self.offset)
        return counts


def plan_codes(
    forest: Forest,
    dtype: type[np.unsignedinteger[Any]],
    merge: bool = False,
    chosen: NDArray[np.bool_] | None = None,
) -> CodeTable:
    """Plan the columns of codes of a normalised forest, for codes of a ``dtype``.

    All thresholds must use LT, or all LE. With ``merge``, thresholds that send missing
    values to different sides share a column, whose codes then do not cover missing
    values, and so do tests for equality. Only the ``chosen`` predicates get codes; the
    others are assigned to column 0.
    """
    ordered = forest.comparison <= Comparison.LE
    equal = _merged_equal(forest, merge, dtype)
    predicate = np.arange(forest.n_predicates, dtype=np.int32)
    threshold = forest.threshold
    if equal.any():
        # x == v if it passes v's lower neighbour and not v; or v and not its upper one
        below, above = _neighbours(forest, equal)
        predicate = np.append(predicate, np.flatnonzero(equal).astype(np.int32))
        threshold = np.append(np.where(equal, above, threshold), below[equal])
    group, order = _groups(forest, ordered | equal, merge, predicate)
    if chosen is not None:
        order = order[chosen[predicate[order]]]
    changes = np.zeros(len(order), np.bool_)
    changes[1:] = group[order][1:] != group[order][:-1]
    changes[:1] = True
    ends = np.append(np.flatnonzero(changes), len(order))
    for k in np.flatnonzero(np.diff(ends) > 1):
        own = order[ends[k] : ends[k + 1]]
        order[ends[k] : ends[k + 1]] = own[np.argsort(threshold[own])]
    # A column too long for its codes continues in another one.
    first = np.flatnonzero(changes)
    within = np.arange(len(order)) - first[np.cumsum(changes) - 1]
    most = int(np.iinfo(dtype).max)
    start = np.flatnonzero(changes | (within % most == 0))
    column = np.zeros(len(order), np.int32)
    column[start] = 1
    column = np.cumsum(column, dtype=np.int32) - 1
    rank = within % most
    if equal.any():  # equal thresholds have the rank of the first
        fresh = changes.copy()
        fresh[1:] |= threshold[order][1:] != threshold[order][:-1]
        rank = rank[np.maximum.accumulate(np.where(fresh, np.arange(len(order)), 0))]
    real = order < forest.n_predicates
    column_of = np.zeros(forest.n_predicates, np.int32)
    column_of[order[real]] = column[real]
    rank_of = np.zeros(forest.n_predicates, np.int32)
    rank_of[order[real]] = rank[real]
    order, threshold = predicate[order], threshold[order]
    head = order[start]
    single = ~(ordered | equal)[head]
    return CodeTable(
        dtype=np.dtype(dtype),
        feature=forest.feature[head],
        kind=np.where(single, ColumnKind.TEST, ColumnKind.ORDER).astype(np.uint8),
        missing=forest.missing[head],
        missing_left=forest.missing_left[head],
        offset=np.append(start, len(order)).astype(np.int64),
        thresholds=threshold,
        predicates=order,
        column_of=column_of,
        rank_of=rank_of,
        equal=equal,
    )


def _merged_equal(
    forest: Forest, merge: bool, dtype: type[np.unsignedinteger[Any]]
) -> NDArray[np.bool_]:
    """Return the tests for equality that share columns with thresholds."""
    equal: NDArray[np.bool_] = (forest.comparison == Comparison.EQ) & np.bool_(merge)
    if not equal.any():
        return equal
    equal &= ~forest.missing_left | (forest.missing == Missing.NEVER)
    equal &= np.isfinite(_neighbours(forest, equal)).all(axis=0)
    ordered = (forest.comparison <= Comparison.LE) | equal
    counts = np.bincount(_keys(forest, False)[ordered], 1 + equal[ordered])
    # a column that is split might part a value's two thresholds
    equal &= counts.max(initial=0) <= np.iinfo(dtype).max
    return equal


def _neighbours(forest: Forest, equal: NDArray[np.bool_]) -> NDArray[np.floating[Any]]:
    """Return two thresholds each, of which the first alone is passed by one value."""
    value, infinity = forest.threshold, forest.threshold.dtype.type(np.inf)
    less = not (forest.comparison == Comparison.LE).any()  # as in normalized forests
    with np.errstate(over="ignore", under="ignore"):
        beside = np.nextafter(value, infinity if less else -infinity)
    pair = np.stack([value, beside] if less else [beside, value])
    return np.where(equal, pair, 0)


def _groups(
    forest: Forest, ordered: NDArray[np.bool_], merge: bool, predicate: IntArray
) -> tuple[NDArray[np.int64], IntArray]:
    """Return each threshold's column before splitting, and thresholds by column."""
    key = _keys(forest, ~(ordered & merge))[predicate]
    if ordered.all():
        group = (np.cumsum(np.bincount(key) > 0) - 1)[key]
    else:
        one = np.where(ordered, 0, np.arange(1, forest.n_predicates + 1))[predicate]
        _, group = np.unique(key << 32 | one, return_inverse=True)
    few = group.max(initial=0) <= np.iinfo(np.uint16).max
    small = group.astype(np.uint16) if few else group  # sorted in two passes
    return group, np.argsort(small, kind="stable").astype(np.int32)


def _keys(forest: Forest, apart: Any) -> NDArray[np.int64]:
    """Return a number for feature and missing values, and their side if ``apart``."""
    kind = 2 * forest.missing.astype(np.int64) + (forest.missing_left & apart)
    key: NDArray[np.int64] = forest.feature.astype(np.int64) << 3 | kind
    return key


def column_count(
    forest: Forest,
    merge: bool = False,
    dtype: type[np.unsignedinteger[Any]] = np.uint16,
    chosen: Any = True,
) -> int:
    """Return the number of columns of codes, without planning them."""
    equal = _merged_equal(forest, merge, dtype)
    ordered = (forest.comparison <= Comparison.LE) | equal
    counts = _counts(forest, ordered & chosen, 1 + equal, merge)
    most = int(np.iinfo(dtype).max)
    return int((-(-counts // most)).sum()) + int((~ordered & chosen).sum())


def _counts(
    forest: Forest, ordered: NDArray[np.bool_], thresholds: Any, merge: bool = False
) -> NDArray[np.int64]:
    """Return the number of thresholds of each column before splitting."""
    key = _keys(forest, np.bool_(not merge))
    counts: NDArray[np.int64] = np.bincount(key[ordered], thresholds[ordered])
    return counts[counts > 0].astype(np.int64)


def code_dtype(forest: Forest) -> type[np.unsignedinteger[Any]]:
    """Return uint8 if no column of codes is then split, else uint16."""
    ordered = forest.comparison <= Comparison.LE
    counts = _counts(forest, ordered, np.ones(forest.n_predicates))
    return np.uint8 if counts.max(initial=0) <= 255 else np.uint16


def code_stride(table: CodeTable) -> int:
    """Return the distance between rows of codes in memory: whole cache lines."""
    per_line = 64 // table.dtype.itemsize
    return -(-max(1, table.n_columns) // per_line) * per_line
