"""Plans bins: turns a forest's predicates into comparisons of small integers.

The sorted thresholds of a feature divide its values into bins. A row's *code* is the
number of thresholds that it passes, and predicate i sends it right exactly if
``code > i``. After one search per value, every test of a walk compares two integers of
one or two bytes, for any comparison, missing value or category.

A *column* of codes covers the tests of one feature that treat missing values alike; it
is split if there are more tests than a code can count. A test for equality or for a set
of categories has its own column, whose code is 0 (left) or 1 (right).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.arrays import Comparison, IntArray
from skforge.compiler.forest.forest import Forest


class ColumnKind(IntEnum):
    """What a column's code counts."""

    ORDER = 0  # thresholds passed
    TEST = 1  # whether the column's only test sends the row right


@dataclass(frozen=True, slots=True, eq=False)
class CodeTable:
    """The columns of codes, and each predicate's column and rank.

    A row goes right at predicate p exactly if
    ``codes[row, column_of[p]] > rank_of[p]``.
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
    merge_missing: bool = False,
    chosen: NDArray[np.bool_] | None = None,
) -> CodeTable:
    """Plan the columns of codes of a normalised forest, for codes of a ``dtype``.

    All thresholds must use LT, or all LE. With ``merge_missing``, thresholds that send
    missing values to different sides share a column, whose codes then do not cover
    missing values. Only the ``chosen`` predicates get codes; the others are assigned to
    column 0.
    """
    ordered = forest.comparison <= Comparison.LE
    group, order = _groups(forest, ordered, merge_missing)
    if chosen is not None:
        order = order[chosen[order]]
    changes = np.zeros(len(order), np.bool_)
    changes[1:] = group[order][1:] != group[order][:-1]
    changes[:1] = True
    ends = np.append(np.flatnonzero(changes), len(order))
    for k in np.flatnonzero(np.diff(ends) > 1):
        own = order[ends[k] : ends[k + 1]]
        order[ends[k] : ends[k + 1]] = own[np.argsort(forest.threshold[own])]
    # A column too long for its codes continues in another one.
    first = np.flatnonzero(changes)
    within = np.arange(len(order)) - first[np.cumsum(changes) - 1]
    most = int(np.iinfo(dtype).max)
    start = np.flatnonzero(changes | (within % most == 0))
    column = np.zeros(len(order), np.int32)
    column[start] = 1
    column = np.cumsum(column, dtype=np.int32) - 1
    column_of = np.zeros(forest.n_predicates, np.int32)
    column_of[order] = column
    rank_of = np.zeros(forest.n_predicates, np.int32)
    rank_of[order] = within % most
    head = order[start]
    return CodeTable(
        dtype=np.dtype(dtype),
        feature=forest.feature[head],
        kind=np.where(ordered[head], ColumnKind.ORDER, ColumnKind.TEST).astype(
            np.uint8
        ),
        missing=forest.missing[head],
        missing_left=forest.missing_left[head],
        offset=np.append(start, len(order)).astype(np.int64),
        thresholds=forest.threshold[order],
        predicates=order,
        column_of=column_of,
        rank_of=rank_of,
    )


def _groups(
    forest: Forest, ordered: NDArray[np.bool_], merge_missing: bool
) -> tuple[NDArray[np.int64], IntArray]:
    """Return each predicate's column before splitting, and predicates by column."""
    key = _keys(forest, ~(ordered & merge_missing))
    if ordered.all():
        group = (np.cumsum(np.bincount(key) > 0) - 1)[key]
    else:
        one = np.where(ordered, 0, np.arange(1, forest.n_predicates + 1))
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
    merge_missing: bool = False,
    dtype: type[np.unsignedinteger[Any]] = np.uint16,
    chosen: Any = True,
) -> int:
    """Return the number of columns of codes, without planning them."""
    ordered = forest.comparison <= Comparison.LE
    counts = _counts(forest, ordered & chosen, merge_missing)
    most = int(np.iinfo(dtype).max)
    return int((-(-counts // most)).sum()) + int((~ordered & chosen).sum())


def _counts(
    forest: Forest, ordered: NDArray[np.bool_], merge_missing: bool = False
) -> NDArray[np.int64]:
    """Return the number of thresholds of each column before splitting."""
    key = _keys(forest, np.bool_(not merge_missing))
    counts: NDArray[np.int64] = np.bincount(key[ordered])
    return counts[counts > 0]


def code_dtype(forest: Forest) -> type[np.unsignedinteger[Any]]:
    """Return uint8 if no column of codes is then split, else uint16."""
    ordered = forest.comparison <= Comparison.LE
    counts = _counts(forest, ordered)
    return np.uint8 if counts.max(initial=0) <= 255 else np.uint16


def code_stride(table: CodeTable) -> int:
    """Return the distance between rows of codes in memory: whole cache lines."""
    per_line = 64 // table.dtype.itemsize
    return -(-max(1, table.n_columns) // per_line) * per_line
