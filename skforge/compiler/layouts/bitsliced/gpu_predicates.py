"""Plans where a GPU block keeps each predicate's bits, and the tables that fill them.

A *line* holds one predicate for the rows of a block, one word of 32 rows a lane. The
sorted thresholds of a feature form one *column*. A row's code is how many of them send
it right: one search finds it, and the row is marked in one line. Afterwards each line
takes the union with the lines above it, which turns the marks into a thermometer code.
Equality tests and category sets form columns of *classes*: a table lists, for each
class of values, which predicates send it right. All predicates of a column share one
feature and one rule for missing values, so forests may mix the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.rules import set_members
from skforge.compiler.forest.arrays import Comparison, IntArray, Missing
from skforge.compiler.forest.forest import Forest
from skforge.compiler.layouts.bitsliced.predicate_table import columns_of

#: Rows in a word.
WORD = 32

#: Integers in the record of a column, and of a job.
RECORD, JOB = 8, 4

#: Kinds of class columns, by the comparison of their predicates.
ClassKind = Literal["equal", "in", "member"]
CLASS_KINDS: dict[ClassKind, Comparison] = {
    "equal": Comparison.EQ,
    "in": Comparison.IN,
    "member": Comparison.MEMBER,
}

#: Classes of values in no set and of missing values; categories follow.
NONE, GONE, FIRST_CATEGORY = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Geometry:
    """Shape of a block: rows, threads, and the words that a thread folds at once."""

    rows: int
    threads: int
    wide: int = 1

    @property
    def lanes(self) -> int:
        """Words of a line."""
        return self.rows // WORD

    @property
    def stride(self) -> int:
        """Words from one line to the next.

        Padding puts the marks of one row on several lines in different banks. Lanes
        that do not fill a warp are not padded: there a warp reads lines of several
        trees, and padding does not help.
        """
        return self.lanes + self.wide if self.lanes >= WORD else self.lanes

    @property
    def group(self) -> int:
        """Trees folded at once."""
        return self.threads * self.wide // self.lanes


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Columns of one kind; those of tile k are ``start[k] … start[k + 1]``."""

    records: IntArray  # (n, RECORD)
    start: IntArray  # (n_tiles + 1,)
    missing: frozenset[int]  # kinds of Missing that occur


@dataclass(frozen=True, slots=True, eq=False)
class TestPlan:
    """The tables from which a block's threads fill its lines."""

    n_lines: int  # lines of the largest tile, a multiple of four
    line_of: tuple[IntArray, ...]  # for each tile, each predicate's line or -1
    #: Records of (feature, first threshold, levels of the search, element of the line
    #: before the first, code of missing values, kind of missing).
    ordered: Columns
    #: Records of (feature, first word, words of a class, element of the first line,
    #: kind of missing, categories or first threshold, levels of the search).
    classes: dict[ClassKind, Columns]
    #: Records of (element of the first line, lines, whether a line of missing rows
    #: follows, first mask).
    jobs: Columns
    thresholds: NDArray[Any]  # levels of 2**k - 1 a column, NaN past the last
    masks: IntArray  # for each line with mixed rules: -1 where missing rows go right
    words: NDArray[np.uint32]  # rows of classes: which predicates send them right
    plain: bool  # no ordered column tests for missing values: NaN goes left anyway


@dataclass(slots=True)
class _Records:
    rows: list[tuple[int, ...]] = field(default_factory=list)
    start: list[int] = field(default_factory=lambda: [0])
    missing: set[int] = field(default_factory=set)

    def columns(self, width: int) -> Columns:
        made = np.zeros((len(self.rows), width), np.int32)
        for to, row in zip(made, self.rows, strict=True):
            to[: len(row)] = row
        return Columns(made, np.asarray(self.start, np.int32), frozenset(self.missing))


def plan_tests(
    forest: Forest, tiles: Sequence[NDArray[np.int64]], stride: int
) -> TestPlan:
    """Lay out the predicates that each tile of trees tests, for a normalised forest.

    ``stride`` is the number of elements from one line to the next.
    """
    builder = _Builder(forest, stride)
    for predicates in tiles:
        builder.tile(predicates)
    return builder.plan()


class _Builder:
    def __init__(self, forest: Forest, stride: int) -> None:
        self._forest, self._stride = forest, stride
        self._ordered, self._jobs = _Records(), _Records()
        self._classes: dict[ClassKind, _Records] = {k: _Records() for k in CLASS_KINDS}
        self._line_of: list[IntArray] = []
        self._n_lines = self._most = 0
        self._thresholds: list[NDArray[Any]] = []
        self._n_thresholds = 0
        self._masks: list[IntArray] = []
        self._n_masks = 0
        self._words: list[NDArray[np.uint32]] = []
        self._n_words = 0

    def plan(self) -> TestPlan:
        dtype = self._forest.threshold.dtype
        return TestPlan(
            -(-self._most // 4) * 4,  # cleared four words at a time
            tuple(self._line_of),
            self._ordered.columns(RECORD),
            {k: made.columns(RECORD) for k, made in self._classes.items()},
            self._jobs.columns(JOB),
            np.concatenate([*self._thresholds, np.zeros(1)]).astype(dtype),
            np.concatenate([*self._masks, np.zeros(1)]).astype(np.int32),
            np.concatenate([*self._words, np.zeros(1, np.uint32)]),
            plain=self._ordered.missing <= {Missing.NAN}
            and not any(row[4] for row in self._ordered.rows),
        )

    def tile(self, predicates: NDArray[np.int64]) -> None:
        """Add the columns of a tile's predicates."""
        f = self._forest
        self._line_of.append(np.full(f.n_predicates, -1, np.int32))
        self._n_lines, first_job = 0, len(self._jobs.rows)
        kind = np.full(len(predicates), -1)
        for number, test in enumerate(CLASS_KINDS.values()):
            kind[f.comparison[predicates] == test] = number
        keys = kind, f.feature[predicates], f.missing[predicates]
        for column in columns_of(f, predicates, *keys):
            test = Comparison(int(f.comparison[column[0]]))
            of = next((k for k, known in CLASS_KINDS.items() if known == test), None)
            if of is None:
                self._order(column)
            else:
                self._class(of, column)
        self._most = max(self._most, self._n_lines)
        # The longest first, because threads take one after another.
        self._jobs.rows[first_job:] = sorted(
            self._jobs.rows[first_job:], key=lambda job: -job[1]
        )
        for made in (self._ordered, self._jobs, *self._classes.values()):
            made.start.append(len(made.rows))

    def _take(self, column: NDArray[np.int64], spare: int = 0) -> int:
        first = self._n_lines
        self._line_of[-1][column] = first + np.arange(len(column))
        self._n_lines += len(column) + spare
        return first

    def _search(self, thresholds: NDArray[Any]) -> tuple[int, int]:
        """Store thresholds for a search; return their offset and the levels."""
        levels = len(thresholds).bit_length()
        padded = np.full((1 << levels) - 1, np.nan, thresholds.dtype)
        padded[: len(thresholds)] = thresholds
        first = self._n_thresholds
        self._thresholds.append(padded)
        self._n_thresholds += len(padded)
        return first, levels

    def _order(self, column: NDArray[np.int64]) -> None:
        f, n = self._forest, len(column)
        missing = int(f.missing[column[0]])
        right = ~f.missing_left[column] & (missing != Missing.NEVER)
        mixed = bool(right.any() and not right.all())
        first = self._take(column, spare=int(mixed))
        gone = n + 1 if mixed else n * int(right.all())
        where, levels = self._search(f.threshold[column])
        before = (first - 1) * self._stride
        row = (int(f.feature[column[0]]), where, levels, before, gone, missing)
        self._ordered.rows.append(row)
        self._ordered.missing.add(missing)
        self._jobs.rows.append((first * self._stride, n, int(mixed), self._n_masks))
        if mixed:
            self._masks.append(-right.astype(np.int32))
            self._n_masks += n

    def _class(self, kind: ClassKind, column: NDArray[np.int64]) -> None:
        f, n = self._forest, len(column)
        missing = int(f.missing[column[0]])
        first = self._take(column)
        if kind == "equal":
            values = f.threshold[column]
            where, levels = self._search(values)
            holds = values[:, None] == values[None, :]  # -0.0 is 0.0
        else:
            holds = set_members(f, column)
            where, levels = holds.shape[1], 0
        right = np.ones((n, FIRST_CATEGORY + holds.shape[1]), np.bool_)
        right[:, GONE] = ~f.missing_left[column]
        right[:, FIRST_CATEGORY:] = ~holds
        n_words = -(-n // 32)
        bits = np.zeros((right.shape[1], 32 * n_words), np.bool_)
        bits[:, :n] = right.T
        packed = np.packbits(bits, axis=1, bitorder="little").view("<u4")
        self._words.append(packed.astype(np.uint32).reshape(-1))
        made = self._classes[kind]
        start = first * self._stride
        row = (int(f.feature[column[0]]), self._n_words, n_words, start, missing)
        made.rows.append((*row, where, levels))
        made.missing.add(missing)
        self._n_words += packed.size
