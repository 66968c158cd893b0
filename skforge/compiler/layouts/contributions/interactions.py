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
            self.b.store(self._pair_sums, i, zero)

    def _turn(self, turn: Turn, sums: Buffer) -> None:
        b, lanes, together = self.b, self._lanes, self._together
        assert self.d.pairs is not None
        first = turn.tree["pair"]
        count = b.sub(turn.tree["last_pair"], first)
        zero = b.const(0.0, self._vec)
        with b.loop(b.mul(count, together), hint="pair") as i:
            b.store(self._own_pairs, b.mul(i, lanes), zero)
        super()._turn(turn, sums)
        start = b.mul(turn.output, len(self.d.pairs.columns) * self._block)
        start = b.add(start, b.mul(turn.vector, lanes))
        with b.loop(count, hint="pair") as i:
            place = b.add(start, self._number(self._pair, b.add(first, i)))
            for k in range(together):
                own = b.add(b.mul(i, together * lanes), k * lanes)
                own = b.load(self._own_pairs, own, self._vec)
                at = b.add(place, k * lanes)
                total = b.load(self._pair_sums, at, Vec(F64, lanes))
                total = b.binary("add", total, b.convert(own, F64))
                b.store(self._pair_sums, at, total)

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
        passed = [b.binary("or", left, right) for left, right in masks]
        for q in range(n):
            for k, mask in enumerate(passed):
                gifts[q][k] = b.select(mask, gifts[q][k], zero)
        own = b.sub(i, turn.tree["first"])
        at = b.add(turn.constants, b.mul(own, self.d.rows * n))
        loss = [self._constant(at, n, LOSS, q) for q in range(n)]
        first = b.load(self._others, i)
        last = b.load(self._others, b.add(i, 1))
        with b.loop(first, last, hint="other") as e:
            place = b.add(self._number(self._other_bits, e), b.mul(turn.vector, each))
            gain = b.add(turn.constants, self._number(self._other_gain, e))
            slot = self._number(self._other_slot, e)
            gains = [self._constant(gain, n, 0, q) for q in range(n)]
            for k in range(self._together):
                bits = b.load(self._passed, b.add(place, k * each), self._bits)
                mask = b.reinterpret(bits, Mask(self._lanes))
                total = b.load(self._own_pairs, b.add(slot, k * self._lanes), self._vec)
                for q in range(n):
                    a = b.select(mask, gains[q], loss[q])
                    total = self._multiply_add(gifts[q][k], a, total)
                b.store(self._own_pairs, b.add(slot, k * self._lanes), total)

    def _write(self, output: Value, sums: Buffer, held: Value) -> None:
        """Write the interactions of one output; each row sums to a feature's value."""
        b, rows, d, forest = self.b, self._rows, self.d, self._t.forest
        assert d.pairs is not None
        width, n_pairs = forest.n_features + 1, len(d.pairs.columns)
        element = self._result.element
        bias = b.convert(b.load(self._bias, output), element)
        count = b.binary("min", b.sub(rows.n_rows, rows.first), self._block)
        start = b.mul(held, forest.n_features * self._block)
        first = b.mul(held, n_pairs * self._block)
        divisor = b.const(float(forest.divisor), F64)
        half = b.const(0.5, F64)
        zero = b.const(0.0, element)

        def column(pair: Value, k: int) -> Value:
            return b.convert(b.load(self._columns, b.add(b.mul(pair, 2), k)), I64)

        with b.loop(count, hint="r") as r:
            row = b.add(b.mul(b.add(rows.first, r), forest.n_outputs), output)
            at = b.mul(row, width * width)
            with b.loop(width * width, hint="cell") as cell:
                b.store(self._result, b.add(at, cell), zero)
            with b.loop(n_pairs, hint="pair") as pair:
                place = b.add(first, b.add(b.mul(pair, self._block), r))
                x = b.binary("mul", b.load(self._pair_sums, place), half)
                ends = column(pair, 0), column(pair, 1)
                value = b.convert(b.binary("div", x, divisor), element)
                for one, other in (ends, ends[::-1]):
                    cell = b.add(b.mul(one, width), other)
                    b.store(self._result, b.add(at, cell), value)
                    total = b.add(start, b.add(b.mul(one, self._block), r))
                    b.store(sums, total, b.sub(b.load(sums, total), x))
            with b.loop(forest.n_features, hint="f") as f:
                x = b.load(sums, b.add(start, b.add(b.mul(f, self._block), r)))
                x = b.convert(b.binary("div", x, divisor), element)
                b.store(self._result, b.add(at, b.mul(f, width + 1)), x)
            b.store(self._result, b.add(at, width * width - 1), bias)
