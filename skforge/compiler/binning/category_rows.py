"""Answers all category sets of a forest at once: one table row a feature.

Categories that belong to the same sets of a feature form one class; so do categories in
no set, and missing values. A table row has the answers of all sets of a feature for one
class. It starts with a *head* that is combined with the heads of other features,
register by register, followed by codes of single sets that are copied::

    entry = category of x, or that of a missing value, or that of a category in no set
    at = row_of_entry[entry]
    head = head & (or |) table[at ..]
    codes[own place ..] = table[at + head's size ..]

Each feature is read once, regardless of the number of sets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from typing import Literal

import numpy as np

from skforge._typing import Array, Bools, Int32s, Int64s, Uint32s
from skforge.compiler.binning.rules import ReadingRules, RowAt, set_answers
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I64, Buffer, Value, Vec
from skforge.compiler.ir.lir.types import Part, scalar_of
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.bins import TestColumns
from skforge.forest.forest import Forest

#: Most words of a set in a table, and approximate most bytes of all tables; each larger
#: set is a test of its own.
MOST_WORDS, MOST_BYTES = 1 << 11, 1 << 25

#: Approximate bytes of a row's head for each tree.
HEAD = 16

#: Up to this many features are unrolled; more use a loop.
STRAIGHT = 16


@dataclass(frozen=True, slots=True, eq=False)
class SetGroup:
    """Sets of one feature that treat missing values and fractions alike."""

    feature: int
    missing: Missing
    exact: bool  # a number with a fraction is in no set
    words: int  # words of the largest set
    predicates: Int32s

    @property
    def entries(self) -> int:
        """The categories that sets may hold, then a missing value, then all others."""
        return 32 * self.words + 2


def set_groups(forest: Forest) -> list[SetGroup]:
    sets = np.flatnonzero(forest.comparison >= Comparison.IN).astype(np.int32)
    keys = forest.feature, forest.missing, forest.comparison
    words = np.diff(forest.category_offset)
    groups, size = [], 0
    for column in TestColumns.of(sets, forest.threshold, *keys):
        most = max(1, int(words[column].max()))
        here = 32 * most * (HEAD * forest.n_trees + len(column))
        if most > MOST_WORDS or size + here > MOST_BYTES:
            continue
        size += here
        first = column[0]
        feature, missing = int(forest.feature[first]), Missing(forest.missing[first])
        exact = bool(forest.comparison[first] == Comparison.MEMBER)
        groups.append(SetGroup(feature, missing, exact, most, column.astype(np.int32)))
    return groups


def in_groups(forest: Forest, groups: Sequence[SetGroup]) -> Bools:
    grouped = np.zeros(forest.n_predicates, np.bool_)
    for group in groups:
        grouped[group.predicates] = True
    return grouped


@dataclass(frozen=True, slots=True, eq=False)
class SetClasses:
    group: SetGroup
    class_of_entry: Int64s  # (entries,)
    right: Bools  # (n_classes, sets) whether a class is outside a set

    @classmethod
    def of(cls, forest: Forest, group: SetGroup) -> SetClasses:
        right = set_answers(forest, group.predicates, group.words).T
        packed = np.packbits(right, axis=1)
        _, first, classes = np.unique(
            packed, axis=0, return_index=True, return_inverse=True
        )
        return cls(group, classes.reshape(-1).astype(np.int64), right[first])

    def within(self, predicate: Int32s) -> Int32s:
        members = self.group.predicates
        at = np.minimum(np.searchsorted(members, predicate), len(members) - 1)
        return np.where(members[at] == predicate, at, -1).astype(np.int32)

    def within_any(self, predicates: Int32s) -> Int32s:
        numbers = np.unique(self.within(predicates))
        return numbers[numbers >= 0]


@dataclass(frozen=True, slots=True, eq=False)
class CategoryTable:
    groups: tuple[SetGroup, ...]
    head: int  # elements combined
    start: Int64s  # (groups,) into row_of_entry
    code_index: Int64s  # (groups,) where a row's codes go
    size: Int64s  # (groups,) codes of a row, whole registers
    lanes: int
    row_of_entry: Uint32s  # where the row begins
    rows: Array


def lay_category_table(
    classes: Sequence[SetClasses],
    heads: Sequence[Array],
    coded: Sequence[Int32s],
    first: int,
    lanes: int,
) -> CategoryTable:
    """Lay out the rows of all groups, one after another.

    ``heads`` has the head of each class of a group, in the dtype of codes. ``coded``
    has the numbers of the sets that get a code. The first code goes to place ``first``;
    a register has ``lanes`` codes.
    """
    parts: list[Array] = []
    entries, start, place, size = [], [0], [first], []
    at = 0
    for group, head, chosen in zip(classes, heads, coded, strict=True):
        right = group.right[:, chosen].astype(head.dtype)
        right = np.pad(right, ((0, 0), (0, -len(chosen) % lanes)))
        rows = np.concatenate([head, right], axis=1)
        parts.append(rows.reshape(-1))
        entries.append(at + group.class_of_entry * rows.shape[1])
        at += rows.size
        start.append(start[-1] + len(group.class_of_entry))
        place.append(place[-1] + right.shape[1])
        size.append(right.shape[1])
    return CategoryTable(
        groups=tuple(group.group for group in classes),
        head=heads[0].shape[1],
        start=np.asarray(start[:-1], np.int64),
        code_index=np.asarray(place[:-1], np.int64),
        size=np.asarray(size, np.int64),
        lanes=lanes,
        row_of_entry=np.concatenate(entries).astype(np.uint32),
        rows=np.concatenate(parts),
    )


class CategoryRows:
    def __init__(self, rules: ReadingRules, table: CategoryTable) -> None:
        self.t, self._rules, self._model = table, rules, rules.model
        self._rows = rules.model("category_rows", table.rows)
        self._vec = Vec(scalar_of(table.rows.dtype), table.lanes)
        self._at: list[Value] = []
        self._many: Buffer | None = None

    def find(self, row: RowAt, codes: Part) -> None:
        t = self.t
        row_of_entry = self._model("category_row_of_entry", t.row_of_entry)

        def one(group: SetGroup, feature: Value, start: Value, g: Value | int) -> Value:
            x = self._rules.nan_if_missing(row.rows[row.start + feature], group.missing)
            entry = self._rules.category_entry(x, group.entries, group.exact).to(I64)
            at = row_of_entry[start + entry].to(I64)
            if not t.size.any():
                return at
            if isinstance(g, int):
                place, size = b.const(int(t.code_index[g])), b.const(int(t.size[g]))
            else:
                place = self._model("category_place", t.code_index)[g]
                size = self._model("category_size", t.size)[g]
            source = at + t.head
            with b.loop(0, size, t.lanes, hint="code") as k:
                codes[place + k] = self._rows[source + k, self._vec]
            return at

        if len(t.groups) <= STRAIGHT:
            for g, group in enumerate(t.groups):
                feature, start = b.const(group.feature), b.const(int(t.start[g]))
                self._at.append(one(group, feature, start, g))
            return
        features = np.array([group.feature for group in t.groups], np.int64)
        number = self._model("category_feature", features)
        starts = self._model("category_start_of", t.start)
        many = b.alloc("category_at", I64, len(t.groups))
        self._many = many
        # Ranges of groups share the same code.
        kinds = [(g.missing, g.exact, g.words) for g in t.groups]
        cuts = [k for k in range(1, len(kinds)) if kinds[k] != kinds[k - 1]]
        for first, last in pairwise([0, *cuts, len(kinds)]):
            with b.loop(first, last, hint="feature") as k:
                at = one(t.groups[first], number[k], starts[k], k)
                many[k] = at

    def head(self, offset: Value, op: Literal["and", "or"]) -> Value:

        def part(at: Value) -> Value:
            return self._rows[at + offset, self._vec]

        many = self._many
        if many is None:
            return reduce(partial(b.binary, op), map(part, self._at))
        head = [part(many[0])]
        with b.loop(1, len(self.t.groups), carry=head, hint="feature") as g:
            head[0] = b.binary(op, head[0], part(many[g]))
        return head[0]


def by_classes(classes: SetClasses, make: Callable[[Bools], Array]) -> Array:
    """Apply a function to a few classes at a time, since its result may be wide."""
    step = 64
    parts = [
        make(classes.right[k : k + step]) for k in range(0, len(classes.right), step)
    ]
    return np.concatenate(parts)
