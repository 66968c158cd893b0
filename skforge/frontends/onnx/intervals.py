"""Writes tests that are true on several intervals of numbers as several nodes.

A test ``x in [1, 3]`` becomes ``x <= 0.9 ? no : x <= 3 ? yes : no``: subtrees are
copied, except for tests that the intervals before them have decided.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from skforge._typing import Array, Bools
from skforge.exceptions import UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.frontends.pipeline.fold import TrueParts

#: Most nodes of all trees that have such tests.
_MOST = 1 << 22


class SplitTests(NamedTuple):
    forest: Forest  # whose predicates are described by the rest alone
    parts: TrueParts
    missing: Bools  # the answer of each predicate to NaN
    source: Array  # the column of the rows that each predicate tests


class _Between(NamedTuple):
    """Between which numbers a row's value is, and whether it may be NaN."""

    low: Any
    high: Any
    nan: bool


#: The first and last number, and a test's answer between them.
_Interval: TypeAlias = tuple[Any, Any, bool]

_ANY = _Between(-np.inf, np.inf, True)


def split(
    forest: Forest, parts: TrueParts, missing: Bools, source: Array, odd: Array
) -> SplitTests:
    """Replace the nodes of the ``odd`` tests by nodes with one threshold each."""
    work = _Rewriting(forest, parts, missing, source, odd)
    tree_of = np.searchsorted(forest.tree_offset, np.arange(forest.n_nodes), "right")
    has_odd = np.append(np.isin(np.arange(forest.n_predicates), odd), False)
    trees = {*(tree_of[has_odd[forest.predicate]] - 1).tolist()}
    for tree in range(forest.n_trees):
        work.add(tree, tree in trees)
    return work.result()


class _Rewriting:
    def __init__(
        self,
        forest: Forest,
        parts: TrueParts,
        missing: Bools,
        source: Array,
        odd: Array,
    ) -> None:
        self.forest, self.missing, self.source = forest, missing.tolist(), source
        self.odd = {*odd.tolist()}
        self.sources = {*source[odd].tolist()}
        order = np.argsort(parts.test, kind="stable")
        self.parts = TrueParts(*(column[order] for column in parts))
        every = np.arange(forest.n_predicates + 1)
        self.starts = np.searchsorted(self.parts.test, every).tolist()
        self.lists = [column.tolist() for column in self.parts[1:]]
        #: New tests by number, end and the answer to NaN.
        self.new: dict[tuple[int, Any, bool], int] = {}
        self.old = [
            getattr(forest, name).tolist()
            for name in ("predicate", "left", "right", "leaf", "source_node")
        ]
        self.nodes: list[list[int]] = [[] for _ in self.old]
        self.offsets = [0]

    def add(self, tree: int, has_odd: bool) -> None:
        begin, end = (int(x) for x in self.forest.tree_offset[tree : tree + 2])
        if has_odd:
            self._walk(begin)
        else:
            shift = len(self.nodes[0]) - begin
            for i, (new, old) in enumerate(zip(self.nodes, self.old, strict=True)):
                some = old[begin:end]
                moves = i in (1, 2)
                new += [x + shift if moves and x >= 0 else x for x in some]
        self.offsets.append(len(self.nodes[0]))

    def _walk(self, root: int) -> None:
        predicate, left, right, leaf, _ = self.old
        waiting: list[tuple[int, dict[int, _Between], int, int]] = [(root, {}, -1, 0)]
        while waiting:
            node, known, parent, side = waiting.pop()
            while leaf[node] < 0:  # skip what is decided
                test = predicate[node]
                answers: list[_Interval] = self._between(test, known)
                if len(answers) > 1:
                    break
                node = left[node] if answers[0][2] else right[node]
            at = self._put(node, parent, side)
            if leaf[node] >= 0:
                continue
            column = int(self.source[test])
            if column not in self.sources:
                waiting += [(right[node], known, at, 2), (left[node], known, at, 1)]
                continue
            before = known.get(column, _ANY)
            nan, last = before.nan, len(answers) - 1
            for k, (low, high, answer) in enumerate(answers):
                here = nan and (answer == self.missing[test] or k == last)
                part = {**known, column: _Between(low, high, here)}
                child = left[node] if answer else right[node]
                if k < last:
                    if k:
                        at = self._put(node, at, 2)
                    self.nodes[0][at] = self._test(test, high, here)
                    waiting.append((child, part, at, 1))
                else:
                    waiting.append((child, part, at, 2))
                nan = nan and not here

    def _put(self, node: int, parent: int, side: int) -> int:
        at = len(self.nodes[0])
        if at >= _MOST:
            raise UnsupportedModelError(
                f"The model needs more than {_MOST} nodes, because tests that are true "
                "on several intervals of numbers take several nodes each; export a "
                "smaller model."
            )
        predicate, _, _, leaf, number = self.old
        values = predicate[node], -1, -1, leaf[node], number[node]
        for column, value in zip(self.nodes, values, strict=True):
            column.append(value)
        if parent >= 0:
            self.nodes[side][parent] = at
        return at

    def _between(self, test: int, known: dict[int, _Between]) -> list[_Interval]:
        """Return the intervals of a test that a row may be in, and their answers."""
        column = int(self.source[test])
        if column not in self.sources:
            return [(None, None, False), (None, None, True)]
        row = known.get(column, _ANY)
        if row.low > row.high:  # it is NaN
            return [(row.low, row.high, self.missing[test])]
        firsts, lasts, answers = self.lists
        inside = [
            (max(row.low, firsts[i]), min(row.high, lasts[i]), answers[i])
            for i in range(self.starts[test], self.starts[test + 1])
            if lasts[i] >= row.low and firsts[i] <= row.high
        ]
        if len(inside) == 1 and row.nan and inside[0][2] != self.missing[test]:
            inside[0] = (inside[0][0], np.inf, inside[0][2])
            inside.append((np.inf, -np.inf, self.missing[test]))  # NaN alone
        return inside

    def _test(self, test: int, end: Any, nan: bool) -> int:
        key = test, end, nan
        if key not in self.new:
            self.new[key] = self.forest.n_predicates + len(self.new)
        return self.new[key]

    def result(self) -> SplitTests:
        forest, dtype = self.forest, self.parts.last.dtype
        n_new = len(self.new)
        tests = np.array([key[0] for key in self.new], np.intp)
        ends = np.array([key[1] for key in self.new], dtype)
        nans = np.array([key[2] for key in self.new], np.bool_)
        numbers = np.repeat(forest.n_predicates + np.arange(n_new), 2)
        first = np.full(2 * n_new, -np.inf, dtype)
        last = np.full(2 * n_new, np.inf, dtype)
        last[::2] = ends
        with np.errstate(over="ignore"):
            first[1::2] = np.nextafter(ends, dtype.type(np.inf))
        answer = np.tile([True, False], n_new)
        added = numbers, first, last, answer
        parts = TrueParts(
            *(
                np.concatenate([old, new]).astype(old.dtype)
                for old, new in zip(self.parts, added, strict=True)
            )
        )
        predicate, left, right, leaf, number = (
            np.array(column, np.int32) for column in self.nodes
        )
        used, place = np.unique(predicate, return_inverse=True)
        shift = int(used[0] < 0)  # of leaves
        used = used[shift:]
        kept = np.isin(parts.test, used)
        parts = TrueParts(*(column[kept] for column in parts))
        parts = parts._replace(test=np.searchsorted(used, parts.test))
        old = np.append(np.arange(forest.n_predicates), tests)[used]
        none = np.zeros(len(used), np.uint8)
        forest = replace(
            forest,
            feature=forest.feature[old],
            threshold=np.zeros(len(used), forest.input_dtype),
            comparison=none,
            missing=none,
            missing_left=none.astype(np.bool_),
            category_offset=np.zeros(len(used) + 1, np.int64),
            category_words=np.zeros(0, np.uint32),
            predicate=place.astype(np.int32) - np.int32(shift),
            left=left,
            right=right,
            leaf=leaf,
            source_node=number,
            tree_offset=np.array(self.offsets, np.int64),
        )
        missing = np.append(np.array(self.missing, np.bool_), nans)[used]
        return SplitTests(forest, parts, missing, self.source[old])
