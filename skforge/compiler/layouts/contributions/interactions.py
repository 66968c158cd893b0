"""Emits interaction values: one more sum at each node of the walk.

A pair of features i, j gets half of the formula of ``quadrature.py`` with
(o_i - z_i) (o_j - z_j) outside the integral and both factors left out inside. So what a
node gives its feature at a point, times A of each other feature on its path, sums to
the pair (SHAP interaction values: Lundberg et al. 2018, section 4).
"""

from __future__ import annotations

import numpy as np

from skforge.compiler.ir.lir.nodes import F64, I64, Buffer, Mask, Value, Vec
from skforge.compiler.layouts.contributions.quadrature import GAINS, LOSS
from skforge.compiler.layouts.contributions.walk import ContributionCode, Turn


class InteractionCode(ContributionCode):
    """Emits the code for one block of rows."""

    def _declare_more(self) -> None:
        data, block = self.d, self._block
        b, some = self.b, self._lanes * self._together
        pairs = data.pairs
        assert pairs is not None
        held = self._n_held
        n_pairs = len(pairs.columns)
        size = b.const(max(1, held * n_pairs) * block)
        self._pair_sums = b.alloc("pair_sums", F64, size, alignment=64)
        most = int(np.diff(pairs.pair_start).max(initial=0))
        self._own_pairs = b.alloc(
            "tree_pairs", self._scalar, b.const(max(1, most) * some), alignment=64
        )

        def table(name: str, values: np.ndarray) -> Buffer:
            return self._model(name, values.astype(np.int32))

        self._others = self._model("others", pairs.start)
        edge = pairs.edge - 1
        self._other_bits = table("other_bits", pairs.edge * (block // 8))
        tree = np.searchsorted(
            data.order.start, np.arange(len(data.order.node)), "right"
        )
        points = data.points.places[tree - 1]
        each = np.repeat(points, np.diff(pairs.start))
        gains = (edge // 2 * data.rows + GAINS + edge % 2) * each
        self._other_gain = table("other_gain", gains)
        self._other_slot = table("other_slot", pairs.slot * some)
        self._pair = table("tree_pair", pairs.pair * block)
        self._columns = table("pair_columns", pairs.columns.reshape(-1))
        trees = data.trees.order
        self._tree["pair"] = table("tree_first_pair", pairs.pair_start[:-1][trees])
        self._tree["last_pair"] = table("tree_last_pair", pairs.pair_start[1:][trees])

    def start(self, sums: Buffer) -> None:
        """Set the sums of the block to zero, those of pairs too."""
        super().start(sums)
        assert self.d.pairs is not None
        zero = self.b.const(0.0, F64)
        with self.b.loop(self._n_held * len(self.d.pairs.columns) * self._block) as i:
            self._pair_sums[i] = zero

    def _turn(self, turn: Turn, sums: Buffer) -> None:
        b, lanes, together = self.b, self._lanes, self._together
        assert self.d.pairs is not None
        first = turn.tree["pair"]
        count = turn.tree["last_pair"] - first
        zero = b.const(0.0, self._vec)
        with b.loop(count * together, hint="pair") as i:
            self._own_pairs[i * lanes] = zero
        super()._turn(turn, sums)
        start = turn.output * (len(self.d.pairs.columns) * self._block)
        start = start + turn.vector * lanes
        with b.loop(count, hint="pair") as i:
            place = start + self._number(self._pair, first + i)
            for k in range(together):
                own = self._own_pairs[i * (together * lanes) + k * lanes, self._vec]
                at = place + k * lanes
                total = self._pair_sums[at, Vec(F64, lanes)] + own.to(F64)
                self._pair_sums[at] = total

    def _pair_up(
        self,
        n: int,
        turn: Turn,
        i: Value,
        gifts: list[list[Value]],
        masks: list[tuple[Value, Value]],
    ) -> None:
        """Add a node's gifts, times A of each other feature, to their pairs."""
        b, each = self.b, self._lanes // 8
        zero = b.const(0.0, self._vec)
        passed = [left | right for left, right in masks]
        for q in range(n):
            for k, mask in enumerate(passed):
                gifts[q][k] = b.select(mask, gifts[q][k], zero)
        at = turn.constants + (i - turn.tree["first"]) * (self.d.rows * n)
        loss = [self._constant(at, n, LOSS, q) for q in range(n)]
        first = self._others[i]
        last = self._others[i + 1]
        with b.loop(first, last, hint="other") as e:
            place = self._number(self._other_bits, e) + turn.vector * each
            gain = turn.constants + self._number(self._other_gain, e)
            slot = self._number(self._other_slot, e)
            gains = [self._constant(gain, n, 0, q) for q in range(n)]
            for k in range(self._together):
                bits = self._passed[place + k * each, self._bits]
                mask = b.reinterpret(bits, Mask(self._lanes))
                total = self._own_pairs[slot + k * self._lanes, self._vec]
                for q in range(n):
                    a = b.select(mask, gains[q], loss[q])
                    total = self._multiply_add(gifts[q][k], a, total)
                self._own_pairs[slot + k * self._lanes] = total

    def _write(self, output: Value, sums: Buffer, held: Value) -> None:
        """Write the interactions of one output; each row sums to a feature's value."""
        b, rows, d, forest = self.b, self._rows, self.d, self._t.forest
        assert d.pairs is not None
        width, n_pairs = forest.n_features + 1, len(d.pairs.columns)
        element = self._result.element
        bias = self._bias[output].to(element)
        count = (rows.n_rows - rows.first).min(self._block)
        start = held * (forest.n_features * self._block)
        first = held * (n_pairs * self._block)
        divisor = b.const(float(forest.divisor), F64)
        half = b.const(0.5, F64)
        zero = b.const(0.0, element)

        def column(pair: Value, k: int) -> Value:
            return self._columns[pair * 2 + k].to(I64)

        with b.loop(count, hint="r") as r:
            at = ((rows.first + r) * forest.n_outputs + output) * (width * width)
            with b.loop(width * width, hint="cell") as cell:
                self._result[at + cell] = zero
            with b.loop(n_pairs, hint="pair") as pair:
                x = self._pair_sums[first + (pair * self._block + r)] * half
                ends = column(pair, 0), column(pair, 1)
                value = (x / divisor).to(element)
                for one, other in (ends, ends[::-1]):
                    cell = one * width + other
                    self._result[at + cell] = value
                    total = start + (one * self._block + r)
                    sums[total] = sums[total] - x
            with b.loop(forest.n_features, hint="f") as f:
                x = (sums[start + (f * self._block + r)] / divisor).to(element)
                self._result[at + f * (width + 1)] = x
            self._result[at + (width * width - 1)] = bias
