"""Plans a GPU block's table of predicates and its trees: all that its code reads.

A *line* holds one predicate for the rows of a block, one word of 32 rows a lane. The
sorted thresholds of a feature form one *column*. A row's code is how many of them send
it right: one search finds it, and the row is marked in one line. Afterwards each line
takes the union with the lines above it, which turns the marks into a thermometer code.
Equality tests and category sets form columns of *classes*: a table lists, for each
class of values, which predicates send it right. All predicates of a column share one
feature and one rule for missing values, so forests may mix the rules.

As on a CPU, a tree is folded or is a list of bit operations (``sliced_layout.py``).
Here lines are numbered by their element in shared memory. The rows of threads fold a
group of trees at once, one tree each, and the leaves are added in order. All trees of a
group add to the same output, so that sums stay in registers while a group is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from skforge._typing import Array, Int32s, Int64s, Uint32s
from skforge.compiler.binning.rules import ThresholdPool, set_answers
from skforge.compiler.forest.arrays import Comparison, Missing
from skforge.compiler.forest.bins import TestColumns, missing_right
from skforge.compiler.forest.forest import Forest
from skforge.compiler.layouts.bitsliced.sliced_layout import MAX_BITS, Shape, code_trees

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
    thresholds: Array  # levels of 2**k - 1 a column, NaN past the last
    masks: Int32s  # for each line with mixed rules: -1 where missing rows go right
    words: Uint32s  # rows of classes: which predicates send them right
    plain: bool  # no ordered column tests for missing values: NaN goes left anyway


def plan_tests(forest: Forest, tiles: Sequence[Int64s], stride: int) -> TestPlan:
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
        self._thresholds, self._masks, self._words = (ThresholdPool() for _ in range(3))
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

    def tile(self, predicates: Int64s) -> None:
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

    def _take(self, column: Int64s, spare: int = 0) -> int:
        first = self._n_lines
        self._line_of[-1][column] = first + np.arange(len(column))
        self._n_lines += len(column) + spare
        return first

    def _search(self, thresholds: Array) -> tuple[int, int]:
        levels = len(thresholds).bit_length()
        padded = np.full((1 << levels) - 1, np.nan, thresholds.dtype)
        padded[: len(thresholds)] = thresholds
        return self._thresholds.add(padded), levels

    def _order(self, column: Int64s) -> None:
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

    def _class(self, kind: ClassKind, column: Int64s) -> None:
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
        record = self._words.add(words), n_words, first * self._stride
        self._rows[kind].append((feature, *record, missing, where, levels))


# ---------------------------------------------------------------- trees

#: Each tree's lines start at a multiple of this, so that four are loaded at once.
QUAD = 4


@dataclass(frozen=True, slots=True, eq=False)
class BitTrees:
    """Every tree, in the order in which threads fold them."""

    #: Shapes that occur; lists have ``MAX_BITS`` planes, missing ones being zero.
    shapes: tuple[Shape, ...]
    #: (n_trees, 4): shape, first line over four, first operation, end of the
    #: operations. Line ``i + 1`` of a folded tree is that of heap node i.
    trees: Int32s
    groups: Int32s  # (n_groups, 4): first tree, trees, first leaf value, leaf values
    outputs: Int32s  # (n_groups,) which one each adds to; -1: vector leaves
    group_start: Int32s  # (n_tiles + 1,)
    lines: Int32s
    ops: Int32s  # (n_ops, 4): target, select, a, b
    leaf_start: Int32s  # (n_trees,) first leaf value, within the tree's group
    leaf_row: Int32s  # row of ``Forest.leaf_value`` of each code, tree by tree
    zero: int  # element of the all-zeros line, which the all-ones line follows
    n_words: int  # of the table: predicates; for lists also constants and temporaries
    has_lists: bool

    @property
    def most_leaves(self) -> int:
        return int(self.groups[:, 3].max(initial=0))


def lay_out_trees(
    forest: Forest, order: Int32s, tile_size: int, plan: TestPlan, geometry: Geometry
) -> BitTrees:
    """Lay the trees of ``order`` out for the threads of a block.

    ``tile_size`` trees share a table of predicates, whose lines ``plan`` has for each
    tile. The all-zeros and the all-ones line follow, then the temporaries of each tree
    that is folded at once.
    """
    line_of, stride = plan.line_of, geometry.stride
    zero = plan.n_lines * stride
    tile = np.arange(len(order)) // tile_size
    outputs = forest.tree_output[order]
    # Trees of one output stay in order; its sums depend on nothing else.
    by_output = np.lexsort((outputs, tile))
    order, outputs, tile = order[by_output], outputs[by_output], tile[by_output]
    first = _groups(tile, outputs, geometry.group)
    count = np.diff([*first, len(order)])
    row_of = np.arange(len(order)) - np.repeat(first, count)

    n = forest.n_predicates
    number_of = np.arange(n, dtype=np.int32)
    none = np.zeros(forest.n_trees, np.bool_)
    coded = code_trees(forest, order, number_of, n + 2, MAX_BITS, none)
    reused = {
        p: _reused(ops, planes, n + 2)
        for p, ops, planes in zip(
            coded.listed.tolist(), *coded.lists.by_tree(), strict=True
        )
    }
    each = max((used for _, _, used in reused.values()), default=0)

    folded, codes = coded.folded, 1 << coded.bits
    n_lines = np.where(folded, np.maximum(codes, QUAD), 2 * QUAD)
    first_line = np.cumsum(n_lines) - n_lines
    lines = np.zeros(int(n_lines.sum()) + QUAD, np.int32)
    # 0 is a dummy until predicates are replaced by elements.
    leaf_row = coded.fill(forest, order, number_of + 1, lines, first_line + 1)
    element = [np.concatenate([[0], s * stride // geometry.wide]) for s in line_of]
    for k, of in enumerate(element):
        of_tile = np.flatnonzero(tile == k)
        if len(of_tile):
            part = slice(
                first_line[of_tile[0]], first_line[of_tile[-1]] + n_lines[of_tile[-1]]
            )
            lines[part] = of[lines[part]]

    ops = [np.zeros((0, 4), np.int64)]
    n_ops = np.zeros(len(order), np.int64)
    for position, (own_ops, planes, _) in reused.items():
        row = int(row_of[position])
        constants = [zero, zero + stride]
        start = zero + (2 + row * each) * stride
        temporaries = [start + i * stride for i in range(each)]
        predicates = element[tile[position]][1:]
        of = np.concatenate([predicates, constants, temporaries]).astype(np.int64)
        ops.append(of[own_ops])
        n_ops[position] = len(own_ops)
        planes = [n] * (MAX_BITS - len(planes)) + planes
        lines[first_line[position] :][:MAX_BITS] = of[planes]

    shapes, shape = coded.shapes(MAX_BITS)
    last_op = np.cumsum(n_ops)
    first_code = coded.first_code
    width = forest.leaf_value.shape[1]
    starts = first_code[first] * width if len(first) else np.zeros(0, np.int64)
    ends = np.append(starts[1:], codes.sum() * width)
    group_of = np.repeat(np.arange(len(first)), count)
    tiles = np.searchsorted(tile[first], np.arange(len(line_of) + 1))
    return BitTrees(
        shapes=shapes,
        trees=_table(shape, first_line // QUAD, last_op - n_ops, last_op),
        groups=_table(first, count, starts, ends - starts),
        outputs=outputs[first].astype(np.int32),
        group_start=tiles.astype(np.int32),
        lines=lines,
        ops=np.concatenate([*ops, np.zeros((1, 4))]).astype(np.int32),
        leaf_start=(first_code * width - starts[group_of]).astype(np.int32),
        leaf_row=leaf_row,
        zero=zero,
        n_words=zero + (2 + geometry.group * each) * stride * bool(reused),
        has_lists=bool(reused),
    )


def _table(*columns: Any) -> Int32s:
    return np.stack([np.asarray(c) for c in columns], axis=1).astype(np.int32)


def _groups(tile: Int64s, outputs: Int32s, group: int) -> Int64s:
    """Return where groups start: at most ``group`` trees of one tile and output."""
    n = len(tile)
    changes = (np.diff(tile) != 0) | (np.diff(outputs) != 0)
    runs = np.concatenate([[0], np.flatnonzero(changes) + 1]) if n else np.zeros(0, int)
    ends = np.append(runs[1:], n) if n else runs
    parts = [np.arange(a, z, group) for a, z in zip(runs, ends, strict=True)]
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)


def _reused(
    own_ops: Int32s, own_planes: Int32s, first: int
) -> tuple[Int64s, list[int], int]:
    """Assign temporaries to places that are free; return operations, planes, count."""
    ops, planes = own_ops.tolist(), own_planes.tolist()
    last: dict[int, int] = {}
    for step, (_, *read) in enumerate(ops):
        last.update((line, step) for line in read if line >= first)
    last.update((line, len(ops)) for line in planes if line >= first)
    slot_of: dict[int, int] = {}
    free: list[int] = []
    used = 0
    placed = []
    for step, (target, *read) in enumerate(ops):
        moved = [slot_of.get(line, line) for line in read]
        free += [slot_of[line] for line in set(read) if last.get(line) == step]
        if not free:
            free.append(first + used)
            used += 1
        slot_of[target] = free.pop()
        placed.append([slot_of[target], *moved])
        if target not in last:
            free.append(slot_of[target])
    numbers = np.array(placed, np.int64).reshape(-1, 4)
    return numbers, [slot_of.get(line, line) for line in planes], used
