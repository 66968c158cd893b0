"""Emits the walk of contributions for one row at a time, one point a lane.

The same walk as in ``walk.py``: a row has one answer to each test, so the constants of
a node are loaded as vectors from the place that the answer selects.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from skforge.compiler.ir.lir.nodes import F64, I64, U8, Buffer, Value, Vec
from skforge.compiler.layouts.contributions.walk import ContributionCode, Turn


class PointCode(ContributionCode):
    """Emits the code for one row."""

    def _declare_more(self) -> None:
        most = int(np.diff(self.d.order.start).max(initial=0))
        self._records = self._alloc("records", I64, max(1, most))

    def _turn(self, turn: Turn, sums: Buffer) -> None:
        b = self.b
        first, last = turn.tree["feature"], turn.tree["last_feature"]
        features = last - first
        with b.loop(features, hint="f") as f:
            self._own[f] = b.const(0.0, self._scalar)
        walks = [partial(self._walk, n, turn) for n in self.d.classes]
        b.switch(turn.tree["points"], walks)
        start = turn.output * self._t.forest.n_features
        with b.loop(features, hint="f") as f:
            at = start + self._number(self._features, first + f)
            own = self._own[f].to(F64)
            sums[at] = sums[at] + own

    def _pass_tests(self, first: Value, last: Value) -> None:
        """Pass the tests of nodes on the way down."""
        self.b.store(self._passed, self.b.const(0), self.b.const(1, U8))

    def _pass(self, i: Value, own: Value) -> Value:
        """Set which edges of a node the row passed; return the side it takes.

        0 is left, 1 right, and 2 neither: it left the feature's tests above.
        """
        b, one = self.b, self.b.const(1, U8)
        before = self._passed[self._number(self._node_before, i)]
        line = self._lines[self._number(self._node_line, i)]
        at = own * 2 + 1
        left = before & line
        right = before & (line ^ one)
        self._passed[at] = left
        self._passed[at + 1] = right
        return (b.const(2, U8) - (left + left + right)).to(I64)

    def _walk(self, n: int, turn: Turn) -> None:
        b, first, points = self.b, turn.tree["first"], Vec(self._scalar, n)
        b.store(self._slots, b.const(0), b.const(1.0, points))

        def constants(place: Value, k: int) -> Value:
            return self._constants[place + k * n, points]

        def down(i: Value) -> None:
            own = i - first
            place = turn.constants + (own * 3 + self._pass(i, own)) * (4 * n)
            self._records[own] = place
            above = self._slots[self._number(self._node_slot, i), points]
            target = self._number(self._node_left, i)
            for k in range(2):
                self._slots[target + k * n] = above * constants(place, k)

        def up(i: Value) -> None:
            place = self._records[i - first]
            source = self._number(self._node_left, i)
            sums = [self._slots[source + k * n, points] for k in (0, 1)]
            if self.d.leaf is not None:
                values = self._leaf_values(i, turn.output, n)
                pairs = zip(sums, values, strict=True)
                sums = [b.binary("mul", *pair) for pair in pairs]
            target = self._number(self._node_slot, i)
            self._slots[target] = b.binary("add", *sums)
            given = sums[0] * constants(place, 2)
            total = self._multiply_add(sums[1], constants(place, 3), given)
            while total.type.lanes > 1:
                half = total.type.lanes // 2
                low = b.shuffle(total, total, range(half))
                total = low + b.shuffle(total, total, range(half, 2 * half))
            feature = self._number(self._node_feature, i)
            self._own[feature] = self._own[feature] + b.extract(total, 0)

        with b.loop(turn.tree["run"], turn.tree["last_run"], hint="run") as run:
            ends = [self._number(self._runs, run * 4 + k) for k in range(4)]
            with b.loop(ends[0], ends[1], hint="down") as i:
                down(i)
            with b.loop(ends[3] - ends[2], hint="up") as k:
                up(ends[3] - 1 - k)
