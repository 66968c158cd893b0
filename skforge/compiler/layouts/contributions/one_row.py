"""Emits the walk of contributions for one row: points as lanes, or a GPU's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from skforge.compiler.binning.rules import Rules
from skforge.compiler.ir.lir.nodes import BOOL, I64, U8, Value, Vec
from skforge.compiler.layouts.contributions.walk import (
    ContributionCode,
    Node,
    Walk,
    WalkData,
)


class OneRow(ContributionCode):
    def _note_cases(self, tree: dict[str, Value]) -> None:
        """Leave cases to the walk."""

    def _case(self, walk: Walk, first: Value, last: Value) -> Value:
        b = self.b
        one, case = b.const(1, U8), [b.const(0, U8)]
        with b.loop(first, last, carry=case, hint="n") as n:
            left, right = self._sides(walk, n)
            by_right, by_above = (adds[n] for adds in self._adds)
            case[0] = case[0] + right * by_right
            case[0] = case[0] + (one - left - right) * by_above
        return case[0].to(I64)

    def _sides(self, walk: Walk, n: Value) -> tuple[Value, Value]:
        at = self._edge(n - walk.tree["first"])
        return self._passed[at], self._passed[at + self._line]


class PointCode(OneRow):
    """Emits the code for one row, with points as lanes.

    Constants come in four rows for the side that the row takes: factors of both edges,
    then weights of both. On the way down the walk records where they are.
    """

    tests_at_once = 16

    def __init__(self, rules: Rules, data: WalkData, *rest: Any) -> None:
        super().__init__(rules, data, *rest)
        most = int(np.diff(data.order.start).max(initial=0))
        self._records = self._alloc("records", I64, max(1, most))
        self._found = self._alloc("found", I64, max(1, most))

    def _with(self, walk: Walk, n: int) -> Walk:
        return replace(walk, points=1, vec=Vec(self._scalar, n))

    def _pass_tests(self, first: Value, last: Value) -> None:
        self._pass_root()

    def _sides(self, walk: Walk, n: Value) -> tuple[Value, Value]:
        return self._pass(n, walk.tree["first"])

    def _enter(self, walk: Walk, first: Value, last: Value) -> None:
        """Find the constants of nodes first, so that they come meanwhile."""
        start = walk.tree["first"]
        with self.b.loop(first, last, hint="enter") as i:
            left, right = self._pass(i, start)
            # The side that the row takes, or 2 if it left the feature's tests above.
            side = (self.b.const(2, U8) - (left + left + right)).to(I64)
            at = walk.constants + ((i - start) * 3 + side) * (4 * walk.vec.lanes)
            self._records[i - start] = at
            self.b.prefetch(self._constants, at)

    def _node(self, walk: Walk, i: Value) -> Node:
        slot, below = (self._number(t, i) for t in (self._node_slot, self._node_left))
        return Node(i, slot, below, self._records[i - walk.tree["first"]])

    def _look_up_all(self, walk: Walk, few: Value, more: Value, end: Value) -> None:
        """Find the cases of subtrees first, so that their numbers come meanwhile."""
        b, lanes = self.b, walk.vec.lanes
        with b.loop(few, end, hint="subtree") as number:
            begin, last = self._ends_of(number)
            case = self._case(walk, begin, last)
            size = (last - begin + 1) * lanes
            at = walk.tables + self._subtree_place[number] + case * size
            self._found[number - walk.tree["subtree"]] = at
            b.prefetch(self._tables, at)
        with b.loop(few, end, hint="subtree") as number:
            self._look_up(walk, number)

    def _look_up(self, walk: Walk, subtree: Value, size: int = 0) -> None:
        b, lanes = self.b, walk.vec.lanes
        begin, end = self._ends_of(subtree)
        slot = self._number(self._subtree_slot, subtree)
        at = self._found[subtree - walk.tree["subtree"]]
        (come,) = self._slot(walk, slot, 0)
        self._slots[slot] = come * self._tables[at, walk.vec]
        with b.loop(begin, end, hint="n") as n:
            row = self._tables[at + (n - begin + 1) * lanes, walk.vec]
            self._give(walk, Node(n, slot, slot, at), [[come * row]])

    def _constant(self, walk: Walk, at: Value, row: int, q: int) -> Value:
        return self._constants[at + row * walk.vec.lanes, walk.vec]

    def _factors(self, walk: Walk, node: Node, side: int, q: int) -> Iterator[Value]:
        yield self._constant(walk, node.constants, side, q)

    def _weights(self, walk: Walk, node: Node, q: int) -> Callable[[int, int], Value]:
        return lambda side, k: self._constant(walk, node.constants, 2 + side, q)

    def _total(self, node: Node, k: int, gifts: list[Value]) -> Value:
        (total,) = gifts
        while total.type.lanes > 1:
            half = total.type.lanes // 2
            low = self.b.shuffle(total, total, range(half))
            total = low + self.b.shuffle(total, total, range(half, 2 * half))
        return self.b.extract(total, 0)


class ThreadCode(OneRow):
    """Emits the code of one GPU thread for one row (Mitchell et al. 2022).

    Slots, the edges that the row passed and the sums of a tree are each thread's own
    memory. A test is evaluated at its node: no thread has the bits of other rows.
    """

    space = "private"

    def _evaluate(self) -> None:
        feature, kind = self._t.tests.of_line
        self._line_feature = self._table("line_feature", feature)
        self._line_kind = self._table("line_kind", kind)

    def take(self, row: Value) -> None:
        self._rows = replace(self._rows, n_rows=row + 1, first=row)

    def _goes_left(self, n: Value) -> Value:
        rows, line = self._rows, self._number(self._node_line, n)
        feature = self._number(self._line_feature, line)
        x = rows.rows[rows.first * rows.stride + feature]
        number = self._thresholds[line]
        kinds = range(len(self._t.tests.kinds))
        cases = [lambda k=k: [self._left(k, number, x)] for k in kinds]
        (left,) = self.b.switch(self._number(self._line_kind, line), cases, [BOOL])
        return left.to(U8)

    def _cases_of(self, walk: Walk, subtree: Value) -> list[Value]:
        return [self._case(walk, *self._ends_of(subtree))]

    def _numbers_of_cases(
        self, at: Value, size: int, cases: list[Value]
    ) -> Iterator[Value]:
        yield self._tables[at + cases[0]]
