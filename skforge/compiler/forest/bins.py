"""How a forest's distinct predicates become comparisons of small integers.

The thresholds of a feature, sorted, cut its values into bins. A row's *code* is the
number of thresholds that it passes, and predicate i of them sends it right exactly if
``code > i``: after one search a value, every test of a walk compares two integers of
one or two bytes, whatever the comparison, the missing value or the category was.

A *column* of codes is the tests of one feature that treat missing values alike, cut
into several where they are more than a code can count. A test for equality or for a
set of categories is a column of its own, whose code is 0 (left) or 1 (right).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.arrays import Comparison
from skforge.compiler.forest.forest import Forest

IntArray = NDArray[np.int32]


class ColumnKind(IntEnum):
    """What the code of a column counts."""

    ORDER = 0  # thresholds passed
    TEST = 1  # whether the one test of the column sends the row right


@dataclass(frozen=True, slots=True, eq=False)
class CodeTable:
    """The columns of codes, and the column and rank of each predicate.

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
    predicates: IntArray  # which predicate each threshold is
    column_of: IntArray  # (n_predicates,)
    rank_of: IntArray  # (n_predicates,)

    @property
    def n_columns(self) -> int:
        """Number of codes of a row."""
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
    """Lay the columns of codes of a normalised forest out.

    Parameters
    ----------
    forest : Forest
        All its thresholds compared by LT, or all by LE.
    dtype : {np.uint8, np.uint16}
        Of a code; columns have at most its greatest number of thresholds.
    merge_missing : bool, default=False
        Whether thresholds share a column although they send missing values to
        different sides: its codes then say nothing about those.
    chosen : ndarray of bool, optional
        Predicates that have codes; default: all. Others are said to be in column 0.
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
    # A column too long for its codes is continued by another.
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
    """Return the column of each predicate before any is cut, and them by column."""
    left = forest.missing_left & ~(ordered & merge_missing)
    one = np.where(ordered, 0, np.arange(1, forest.n_predicates + 1))
    kind = 2 * forest.missing.astype(np.int64) + left
    key = (forest.feature.astype(np.int64) << 3 | kind) << 32 | one
    _, group = np.unique(key, return_inverse=True)
    few = group.max(initial=0) <= np.iinfo(np.uint16).max
    small = group.astype(np.uint16) if few else group  # sorted in two passes
    return group, np.argsort(small, kind="stable").astype(np.int32)


def column_count(forest: Forest, merge_missing: bool = False) -> int:
    """Return how many columns of uint16 codes a forest has, without a plan."""
    ordered = forest.comparison <= Comparison.LE
    counts = _counts(forest, ordered, merge_missing)
    return int((-(-counts // 0xFFFF)).sum()) + int((~ordered).sum())


def _counts(
    forest: Forest, ordered: NDArray[np.bool_], merge_missing: bool = False
) -> NDArray[np.int64]:
    """Return the thresholds of each column before it is cut."""
    left = forest.missing_left & (not merge_missing)
    kind = 2 * forest.missing.astype(np.int64) + left
    key = forest.feature.astype(np.int64) << 3 | kind
    counts: NDArray[np.int64] = np.bincount(key[ordered])
    return counts[counts > 0]


def code_dtype(forest: Forest) -> type[np.unsignedinteger[Any]]:
    """Return uint8 if every column of codes then stays whole, uint16 otherwise."""
    ordered = forest.comparison <= Comparison.LE
    counts = _counts(forest, ordered)
    return np.uint8 if counts.max(initial=0) <= 255 else np.uint16


def code_stride(table: CodeTable) -> int:
    """Return the codes from one row in memory to the next: whole cache lines."""
    per_line = 64 // table.dtype.itemsize
    return -(-max(1, table.n_columns) // per_line) * per_line
