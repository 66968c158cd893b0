"""Emits interaction values: one more sum at each node of the walk."""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge.compiler.binning.rules import ReadingRules
from skforge.compiler.ir.lir.nodes import F64, Buffer, Value
from skforge.compiler.layouts.contributions.quadrature import GAINS, LOSS
from skforge.compiler.layouts.contributions.walk import (
    ContributionCode,
    Walk,
    WalkData,
    WalkNode,
)


class InteractionCode(ContributionCode):
    """Emits interaction values: one more sum at each node of the walk.

    A pair of features i, j gets half of the formula of ``quadrature.py`` with
    (o_i - z_i) (o_j - z_j) outside the integral and both factors left out inside. So
    what a node gives its feature at a point, times A of each other feature on its path,
    sums to the pair (SHAP interaction values: Lundberg et al. 2018, section 4).
    """

    def __init__(self, rules: ReadingRules, data: WalkData, *rest: Any) -> None:
        super().__init__(rules, data, *rest)
        assert data.pairs is not None
        pairs, table, order = data.pairs, self._table, data.order
        self._n_pairs = len(pairs.columns)
        size = max(1, self._n_held * self._n_pairs) * self.block
        self._pair_sums = self.alloc("pair_sums", F64, size)
        self._columns.append(self._sums_of("pair", pairs.pair, pairs.pair_start))
        self._others = self._model("others", pairs.start)
        self._other_bits = table("other_bits", pairs.edge * self.line)
        points = np.repeat(data.points.places[order.tree], np.diff(pairs.start))
        node, side = np.divmod(pairs.edge - 1, 2)
        gains = (node * data.rows + GAINS + side) * points
        self._other_gain = table("other_gain", gains)
        slots = pairs.slot * (self.lanes * self.together)
        self._other_slot = table("other_slot", slots)
        self._pair_columns = table("pair_columns", pairs.columns.reshape(-1))
        self._width = self._width**2

    def _totals(self, sums: Buffer) -> list[tuple[Buffer, int]]:
        return [*super()._totals(sums), (self._pair_sums, self._n_pairs)]

    def give(self, walk: Walk, node: WalkNode, gifts: list[list[Value]]) -> None:
        """Add a node's gifts to its feature; times A of each other one, to pairs."""
        super().give(walk, node, gifts)
        b, each, points = self.b, self.lanes // 8, range(walk.points)
        for k, (left, right) in enumerate(node.passed):
            passed = left | right
            gifts[k] = [b.select(passed, gift, 0.0) for gift in gifts[k]]
        loss = [self.constant(walk, node.constants, LOSS, q) for q in points]
        sums = self._columns[1].own
        with b.loop(self._others[node.i], self._others[node.i + 1], hint="other") as e:
            place = self.number(self._other_bits, e) + walk.vector * each
            at = walk.constants + self.number(self._other_gain, e)
            slot = self.number(self._other_slot, e)
            gains = [self.constant(walk, at, 0, q) for q in points]
            for k, gift in enumerate(gifts):
                mask = self.mask(place + k * each)
                total = sums[slot + k * self.lanes, self.vec]
                for q in points:
                    a = b.select(mask, gains[q], loss[q])
                    total = self.multiply_add(gift[q], a, total)
                sums[slot + k * self.lanes] = total

    def _write_row(self, at: Value, r: Value, sums: Buffer, held: Value) -> None:
        b, n_features, block = self.b, self._t.forest.n_features, self.block
        width = n_features + 1
        start = held * (n_features * block) + r
        first = held * (self._n_pairs * block) + r
        half, zero = b.const(0.5, F64), b.const(0.0, self._result.element)
        with b.loop(width * width, hint="cell") as cell:
            self._result[at + cell] = zero
        with b.loop(self._n_pairs, hint="pair") as pair:
            x = self._pair_sums[first + pair * block] * half
            ends = [self.number(self._pair_columns, pair * 2 + k) for k in (0, 1)]
            value = self._divided(x).to(zero.type.element)
            for feature, other in (ends, ends[::-1]):
                self._result[at + (feature * width + other)] = value
                total = start + feature * block
                sums[total] = sums[total] - x
        with b.loop(n_features, hint="f") as f:
            x = self._divided(sums[start + f * block])
            self._result[at + f * (width + 1)] = x.to(zero.type.element)
