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
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Int32s
from skforge.compiler.binning.rules import ThresholdPool, set_answers
from skforge.compiler.forest.arrays import Comparison, Missing
from skforge.compiler.forest.bins import TestColumns, missing_right
from skforge.compiler.forest.forest import Forest

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
        return self.threads * self.wide // self.lanes


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Columns of one kind; those of tile k are ``start[k] … start[k + 1]``."""

    records: Int32s  # (n, RECORD)
    start: Int32s  # (n_tiles + 1,)
    missing: frozenset[int]  # kinds of Missing that occur


@dataclass(frozen=True, slots=True, eq=False)
class TestPlan:
    """The tables from which a block's threads fill its lines."""

    n_lines: int  # lines of the largest tile, a multiple of four
    line_of: tuple[Int32s, ...]  # for each tile, each predicate's line or -1
    #: Records of (feature, first threshold, levels of the search, element of the line
    #: before the first, code of missing values, kind of missing).
    ordered: Records
    #: Records of (feature, first word, words of a class, element of the first line,
    #: kind of missing, categories or first threshold, levels of the search).
    classes: dict[ClassKind, Records]
    #: Records of (element of the first line, lines, whether a line of missing rows
    #: follows, first mask).
    jobs: Records
    thresholds: NDArray[Any]  # levels of 2**k - 1 a column, NaN past the last
    masks: Int32s  # for each line with mixed rules: -1 where missing rows go right
    words: NDArray[np.uint32]  # rows of classes: which predicates send them right
    plain: bool  # no ordered column tests for missing values: NaN goes left anyway


def plan_tests(
    forest: Forest, tiles: Sequence[NDArray[np.int64]], stride: int
) -> TestPlan:
    """Lay out what each tile tests; lines are ``stride`` elements apart."""
    builder = _Builder(forest, stride)
    for predicates in tiles:
        builder.tile(predicates)
    return builder.plan()


class _Builder:
    def __init__(self, forest: Forest, stride: int) -> None:
        self._forest, self._stride = forest, stride
        names = "ordered", "jobs", *CLASS_KINDS
        self._rows: dict[str, list[tuple[int, ...]]] = {name: [] for name in names}
        self._start: dict[str, list[int]] = {name: [0] for name in names}
        self._line_of: list[Int32s] = []
        self._n_lines = self._most = 0
        self._thresholds, self._masks, self._words = (
            ThresholdPool(),
            ThresholdPool(),
            ThresholdPool(),
        )
        self._right = missing_right(forest)
        self._kind = np.full(forest.n_predicates, -1)
        for number, test in enumerate(CLASS_KINDS.values()):
            self._kind[forest.comparison == test] = number

    def plan(self) -> TestPlan:
        ordered = self._records("ordered", RECORD, missing=5)
        return TestPlan(
            -(-self._most // 4) * 4,  # cleared four words at a time
            tuple(self._line_of),
            ordered,
            {kind: self._records(kind, RECORD, missing=4) for kind in CLASS_KINDS},
            self._records("jobs", JOB, missing=0),
            self._thresholds.array(self._forest.threshold.dtype, spare=1),
            self._masks.array(np.int32, spare=1),
            self._words.array(np.uint32, spare=1),
            plain=ordered.missing <= {Missing.NAN} and not ordered.records[:, 4].any(),
        )

    def _records(self, name: str, width: int, missing: int) -> Records:
        rows = [(*row, *[0] * (width - len(row))) for row in self._rows[name]]
        records = np.array(rows, np.int32).reshape(-1, width)
        start = np.asarray(self._start[name], np.int32)
        return Records(records, start, frozenset(records[:, missing].tolist()))

    def tile(self, predicates: NDArray[np.int64]) -> None:
        f, jobs = self._forest, self._rows["jobs"]
        self._line_of.append(np.full(f.n_predicates, -1, np.int32))
        self._n_lines, first_job = 0, len(jobs)
        keys = self._kind, f.feature, f.missing
        for column in TestColumns.of(predicates, f.threshold, *keys):
            kind = self._kind[column[0]]
            if kind < 0:
                self._order(column)
            else:
                self._class(list(CLASS_KINDS)[kind], column)
        self._most = max(self._most, self._n_lines)
        # The longest first, because threads take one after another.
        jobs[first_job:] = sorted(jobs[first_job:], key=lambda job: -job[1])
        for name, start in self._start.items():
            start.append(len(self._rows[name]))

    def _take(self, column: NDArray[np.int64], spare: int = 0) -> int:
        first = self._n_lines
        self._line_of[-1][column] = first + np.arange(len(column))
        self._n_lines += len(column) + spare
        return first

    def _search(self, thresholds: NDArray[Any]) -> tuple[int, int]:
        levels = len(thresholds).bit_length()
        padded = np.full((1 << levels) - 1, np.nan, thresholds.dtype)
        padded[: len(thresholds)] = thresholds
        return self._thresholds.add(padded), levels

    def _order(self, column: NDArray[np.int64]) -> None:
        f, n = self._forest, len(column)
        missing = int(f.missing[column[0]])
        right = self._right[column]
        mixed = bool(right.any() and not right.all())
        first = self._take(column, spare=int(mixed))
        gone = n + 1 if mixed else n * int(right.all())
        where, levels = self._search(f.threshold[column])
        before = (first - 1) * self._stride
        row = int(f.feature[column[0]]), where, levels, before, gone, missing
        self._rows["ordered"].append(row)
        mask = self._masks.add(-right[: n * mixed].astype(np.int32))
        self._rows["jobs"].append((first * self._stride, n, int(mixed), mask))

    def _class(self, kind: ClassKind, column: NDArray[np.int64]) -> None:
        f, n = self._forest, len(column)
        first, values = self._take(column), f.threshold[column]
        if kind == "equal":
            where, levels = self._search(values)
            gone = ~f.missing_left[column][:, None]  # -0.0 is 0.0 below
            answers = np.hstack([values[:, None] != values, gone, np.ones_like(gone)])
        else:
            answers = set_answers(f, column)
            where, levels = answers.shape[1] - FIRST_CATEGORY, 0
        right = np.roll(answers, FIRST_CATEGORY, axis=1)
        right[:, [NONE, GONE]] = answers[:, [-1, -2]]
        n_words = -(-n // WORD)
        bits = np.zeros((right.shape[1], WORD * n_words), np.bool_)
        bits[:, :n] = right.T
        words = np.packbits(bits, axis=1, bitorder="little").view("<u4").reshape(-1)
        feature, missing = int(f.feature[column[0]]), int(f.missing[column[0]])
        at = self._words.add(words), n_words, first * self._stride
        self._rows[kind].append((feature, *at, missing, where, levels))
