"""Emits the walk of contributions for blocks of rows, one row a lane.

For each tree, with bits for all rows of the block::

    passed[left edge]  = passed[edge before] and line[predicate]
    passed[right edge] = passed[edge before] and not line[predicate]

and for each turn of points and each vector of rows, run by run, at each point::

    down:  P[left]  = P[node] * (passed[left] ? a0 : passed[right] ? a1 : a2)
           P[right] = P[node] * (passed[right] ? b0 : passed[left] ? b1 : b2)
    up:    g += P[left] * (passed[left] ? w0 : w2)
              + P[right] * (passed[right] ? w1 : w2)
           P[node] = P[left] + P[right]

and the node's feature gets g if passed[edge before]. Each tree is summed on its own,
then added in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.rows import BlockRows
from skforge.compiler.binning.rules import Rules
from skforge.compiler.ir.lir.builder import Builder, with_lanes
from skforge.compiler.ir.lir.nodes import (
    F64,
    I64,
    U8,
    U16,
    U32,
    Buffer,
    Mask,
    Scalar,
    Space,
    Type,
    Value,
    Vec,
)
from skforge.compiler.ir.lir.numpy_types import scalar_of
from skforge.compiler.layouts.base import BlockCode
from skforge.compiler.layouts.contributions.pairs import Pairs
from skforge.compiler.layouts.contributions.paths import Order
from skforge.compiler.layouts.contributions.predicates import Evaluation, Tests
from skforge.compiler.layouts.contributions.quadrature import (
    LEFT,
    RIGHT,
    WEIGHTS,
    Constants,
    Points,
)

#: Vectors that share the loads of constants (1: 1.1 to 1.2 times the time, 4: 1.05).
TOGETHER = 2

#: The words that hold a bit for each row of a block.
WORDS: dict[int, Scalar | Vec] = {
    **{1: U8, 8: U8, 16: U16, 32: U32, 64: I64},
    **{128: Vec(I64, 2), 256: Vec(I64, 4), 512: Vec(I64, 8)},
}


@dataclass(frozen=True, slots=True, eq=False)
class WalkData:
    """A forest as the walk reads it."""

    order: Order
    points: Points
    constants: Constants
    tests: Tests
    line: NDArray[np.int64]  # of each node's predicate
    trees: NDArray[np.int64]  # in the order of the walk, those of an output together
    output: NDArray[np.int64]  # to write after the tree at a position, or -1
    unused: NDArray[np.int64]  # outputs without trees
    leaf: NDArray[np.int64] | None  # of vector leaves: the row of each side's values
    values: NDArray[
        np.float64
    ]  # (rows + 1, outputs), the last one ones for inner nodes
    bias: NDArray[np.float64]
    n_features: int
    divisor: int
    rows: int  # of a node's constants
    pairs: Pairs | None = None  # for interactions

    @property
    def lanes(self) -> int:
        """Rows of a vector: always 512 bits, which narrower machines split."""
        return 64 // self.constants.values.dtype.itemsize

    @property
    def classes(self) -> list[int]:
        """The places for points of a turn that occur."""
        return [int(n) for n in np.unique(self.points.places)]


@dataclass(frozen=True, slots=True)
class Turn:
    """One walk: a tree's numbers, its constants, the first vector and the output."""

    tree: dict[str, Value]
    constants: Value
    vector: Value
    output: Value


class ContributionCode(BlockCode):
    """Emits the code for one block of rows."""

    #: Where scratch lies.
    space: Space = "global"

    def __init__(
        self,
        rules: Rules,
        data: WalkData,
        rows: BlockRows,
        block: int,
        fuses: bool,
    ) -> None:
        self._fuses = fuses
        self.b: Builder = rules.b
        self.d, self._model, self._rows, self._block = data, rules.model, rows, block
        b, order, points = self.b, data.order, data.points
        self._scalar = scalar_of(data.constants.values.dtype)
        self._lanes = lanes = self._lanes_of(block)
        self._vec: Type = Vec(self._scalar, lanes) if lanes > 1 else self._scalar
        self._together = min(TOGETHER, block // lanes)
        self._word = WORDS[block]
        self._line = max(1, block // 8)  # bytes of a bit for each row
        self._bits = U16 if lanes == 16 else U8
        left = b.binary("min", b.sub(rows.n_rows, rows.first), block)
        some = lanes * self._together  # elements of a point in a slot
        n_vectors = b.binary("div", b.add(left, some - 1), some)
        n_vectors = b.mul(n_vectors, self._together)
        self._n_vectors = n_vectors
        self._evaluate(rules)
        edges = 2 * int(np.diff(order.start).max(initial=0)) + 1
        self._passed = self._alloc("passed", U8, edges * self._line + 8)
        slots = order.n_slots * max(data.classes, default=1) * some
        self._slots = self._alloc("slots", self._scalar, slots)
        held = int(np.diff(order.feature_start).max(initial=0))
        self._of_feature = self._sum_elements()
        size = max(1, held) * self._of_feature
        self._own = self._alloc("tree_sums", self._scalar, size)
        tree = np.searchsorted(order.start, np.arange(len(order.node)), "right") - 1
        each = points.places[tree] * some

        def table(name: str, values: NDArray[Any]) -> Buffer:
            return self._model(name, values.astype(np.int32))

        self._node_line = table("node_line", data.line * self._line)
        self._node_before = table("node_before", order.before * self._line)
        self._node_slot = table("node_slot", order.slot * each)
        self._node_left = table("node_left_slot", order.left_slot * each)
        self._node_feature = table(
            "node_feature", order.feature_slot * self._of_feature
        )
        self._runs = table("runs", order.runs.reshape(-1))
        self._features = table("tree_features", order.features * block)
        trees = data.trees
        self._tree = {
            "first": table("tree_first", order.start[:-1][trees]),
            "last": table("tree_last", order.start[1:][trees]),
            "run": table("tree_run", order.run_start[:-1][trees]),
            "last_run": table("tree_last_run", order.run_start[1:][trees]),
            "feature": table("tree_feature", order.feature_start[:-1][trees]),
            "last_feature": table("tree_last_feature", order.feature_start[1:][trees]),
            "turns": table("tree_turns", points.turns[trees]),
            "points": table(
                "tree_points", np.searchsorted(data.classes, points.places[trees])
            ),
            "output": table("tree_output", data.output),
        }
        self._constants = self._model("constants", data.constants.values)
        self._first = self._model("tree_constants", data.constants.first[trees])
        self._step = self._model("tree_constants_step", data.constants.step[trees])
        self._bias = self._model("bias", data.bias)
        if data.leaf is not None:
            self._leaf = table("side_leaf", data.leaf.reshape(-1))
            values = data.values.astype(data.constants.values.dtype)
            self._values = self._model("values", values.reshape(-1))

    def _alloc(self, name: str, element: Scalar, size: int) -> Buffer:
        """Allocate scratch."""
        b, size_ = self.b, self.b.const(size)
        return b.alloc(name, element, size_, space=self.space, alignment=64)

    def _evaluate(self, rules: Rules) -> None:
        """Evaluate all predicates on the rows of the block."""
        evaluation = Evaluation(rules, self.d.tests, self._block, self._lanes)
        evaluation.run(self._rows, self._n_vectors)
        self._lines = evaluation.lines

    def _lanes_of(self, block: int) -> int:
        """Return the rows of a vector."""
        return self.d.lanes

    def _sum_elements(self) -> int:
        """Return how many elements a feature's sum of one tree has."""
        return self._lanes * self._together

    # ------------------------------------------------------------ the block

    def writes_to(self, result: Buffer) -> None:
        """Keep the result, as an output is written when its last tree is added."""
        self._result = result

    def start(self, sums: Buffer) -> None:
        """Set the sums of the block, (features, rows), to zero."""
        b = self.b
        zero = b.const(0.0, F64)
        columns = self.d.n_features * (1 if self.d.leaf is None else len(self.d.bias))
        with b.loop(columns * self._block, hint="sum") as i:
            b.store(sums, i, zero)

    def add_tree(self, tree: Value, sums: Buffer) -> None:
        """Add the contributions of the tree at a position."""
        b = self.b
        at = {name: self._number(table, tree) for name, table in self._tree.items()}
        self._pass_tests(at["first"], at["last"])
        first, step = b.load(self._first, tree), b.load(self._step, tree)
        with b.loop(at["turns"], hint="turn") as turn:
            constants = b.add(first, b.mul(turn, step))
            with b.loop(0, self._n_vectors, self._together, hint="v") as v:
                held = 1 if self.d.leaf is None else len(self.d.bias)
                with b.loop(held, hint="output") as output:
                    self._turn(Turn(at, constants, v, output), sums)
        if self.d.leaf is None:
            with b.when(b.compare("ge", at["output"], 0)):
                self._write(at["output"], sums, b.const(0))
                self.start(sums)

    def finish(self, sums: Buffer, result: Buffer, first: Value, count: Value) -> None:
        """Write the outputs that have no trees."""
        b = self.b
        if self.d.leaf is not None:
            with b.loop(len(self.d.bias), hint="output") as output:
                self._write(output, sums, output)
        elif len(self.d.unused):
            outputs = self._model("unused_outputs", self.d.unused)
            with b.loop(len(self.d.unused), hint="unused") as i:
                self._write(b.load(outputs, i), sums, b.const(0))

    def _number(self, table: Buffer, at: Value) -> Value:
        return self.b.convert(self.b.load(table, at), I64)

    def _pass_tests(self, first: Value, last: Value) -> None:
        """Set the bits of all edges of a tree: who passed each feature's tests."""
        b, size = self.b, self._line
        ones = b.invert(b.const(0, self._word))
        b.store(self._passed, b.const(0), ones)
        with b.loop(first, last, hint="n") as n:
            before = b.load(
                self._passed, self._number(self._node_before, n), self._word
            )
            line = b.load(self._lines, self._number(self._node_line, n), self._word)
            at = b.add(b.mul(b.sub(n, first), 2 * size), size)
            b.store(self._passed, at, b.binary("and", before, line))
            right = b.binary("and", before, b.invert(line))
            b.store(self._passed, b.add(at, size), right)

    def _turn(self, turn: Turn, sums: Buffer) -> None:
        """Add a tree's contributions to an output, for some points and rows."""
        b, lanes, together = self.b, self._lanes, self._together
        first, last = turn.tree["feature"], turn.tree["last_feature"]
        features = b.sub(last, first)
        zero = b.const(0.0, self._vec)
        with b.loop(b.mul(features, together), hint="f") as f:
            b.store(self._own, b.mul(f, lanes), zero)
        walks = [partial(self._walk, n, turn) for n in self.d.classes]
        b.switch(turn.tree["points"], walks)
        start = b.mul(turn.output, self.d.n_features * self._block)
        start = b.add(start, b.mul(turn.vector, lanes))
        with b.loop(features, hint="f") as f:
            column = self._number(self._features, b.add(first, f))
            for k in range(together):
                place = b.add(b.mul(f, together * lanes), k * lanes)
                own = b.load(self._own, place, self._vec)
                at = b.add(b.add(start, column), k * lanes)
                total = b.load(sums, at, with_lanes(F64, self._vec))
                b.store(sums, at, b.binary("add", total, b.convert(own, F64)))

    # ------------------------------------------------------------ the walk

    def _walk(self, n: int, turn: Turn) -> None:
        """Walk one tree with ``n`` points for some vectors of rows."""
        b, first = self.b, turn.tree["first"]
        one = b.const(1.0, self._vec)
        for k in range(n * self._together):
            b.store(self._slots, b.const(k * self._lanes), one)
        with b.loop(turn.tree["run"], turn.tree["last_run"], hint="run") as run:
            ends = [self._number(self._runs, b.add(b.mul(run, 4), k)) for k in range(4)]
            with b.loop(ends[0], ends[1], hint="down") as i:
                self._down(n, turn, i, b.sub(i, first))
            with b.loop(b.sub(ends[3], ends[2]), hint="up") as j:
                i = b.sub(b.sub(ends[3], 1), j)
                self._up(n, turn, i, b.sub(i, first))

    def _masks(self, turn: Turn, i: Value) -> list[tuple[Value, Value]]:
        """Return which rows of each vector passed the tests up to a node's edges."""
        b, size, each = self.b, self._block // 8, self._lanes // 8
        at = b.add(b.add(b.mul(i, 2 * size), size), b.mul(turn.vector, each))
        mask = Mask(self._lanes)

        def passed(at: Value) -> Value:
            return b.reinterpret(b.load(self._passed, at, self._bits), mask)

        places = [b.add(at, k * each) for k in range(self._together)]
        return [(passed(p), passed(b.add(p, size))) for p in places]

    def _down(self, n: int, turn: Turn, i: Value, own: Value) -> None:
        b = self.b
        masks = self._masks(turn, own)
        source = self._number(self._node_slot, i)
        target = self._number(self._node_left, i)
        at = b.add(turn.constants, b.mul(own, self.d.rows * n))
        for q in range(n):
            above = self._slot(source, q)
            for row, place in ((LEFT, q), (RIGHT, n + q)):
                a = [self._constant(at, n, row + k, q) for k in range(3)]
                for k, (left, right) in enumerate(masks):
                    mine, other = (left, right) if row == LEFT else (right, left)
                    factor = b.select(mine, a[0], b.select(other, a[1], a[2]))
                    below = b.binary("mul", above[k], factor)
                    b.store(self._slots, self._place(target, place, k), below)

    def _up(self, n: int, turn: Turn, i: Value, own: Value) -> None:
        b = self.b
        masks = self._masks(turn, own)
        scale = (
            None
            if self.d.leaf is None
            else self._leaf_values(i, turn.output, self._vec.lanes)
        )
        target = self._number(self._node_slot, i)
        source = self._number(self._node_left, i)
        at = b.add(turn.constants, b.mul(own, self.d.rows * n))
        gifts: list[list[Value]] = []
        for q in range(n):
            gifts.append([])
            low, high = self._slot(source, q), self._slot(source, n + q)
            w = [self._constant(at, n, WEIGHTS + k, q) for k in range(3)]
            for k, (left, right) in enumerate(masks):
                if scale is not None:
                    low[k] = b.binary("mul", low[k], scale[0])
                    high[k] = b.binary("mul", high[k], scale[1])
                both = b.binary("add", low[k], high[k])
                b.store(self._slots, self._place(target, q, k), both)
                given = b.binary("mul", low[k], b.select(left, w[0], w[2]))
                weight = b.select(right, w[1], w[2])
                gifts[q].append(self._multiply_add(high[k], weight, given))
        feature = self._number(self._node_feature, i)
        for k, (left, right) in enumerate(masks):
            passed = b.binary("or", left, right)
            total = self._sum_of_points([of_point[k] for of_point in gifts])
            total = b.select(passed, total, b.const(0.0, self._vec))
            place = b.add(feature, k * self._lanes)
            before = b.load(self._own, place, self._vec)
            b.store(self._own, place, b.binary("add", before, total))
        self._pair_up(n, turn, i, gifts, masks)

    def _multiply_add(self, x: Value, y: Value, total: Value) -> Value:
        """Return x * y + total, fused if that is fast."""
        if self._fuses:
            return self.b.multiply_add(x, y, total)
        return self.b.binary("add", self.b.binary("mul", x, y), total)

    def _sum_of_points(self, gifts: list[Value]) -> Value:
        """Add halves of a power of two, the order of lanes in ``point_lanes.py``."""
        n = len(gifts)
        while n > 1:
            half = 1 << (n - 1).bit_length() - 1
            for q in range(half, n):
                gifts[q - half] = self.b.binary("add", gifts[q - half], gifts[q])
            n = half
        return gifts[0]

    def _pair_up(
        self,
        n: int,
        turn: Turn,
        i: Value,
        gifts: list[list[Value]],
        masks: list[tuple[Value, Value]],
    ) -> None:
        """Use what a node gives its feature, by point and vector; see interactions."""

    def _place(self, slot: Value, q: int, k: int) -> Value:
        """Return where a slot holds a point of a vector."""
        return self.b.add(slot, (q * self._together + k) * self._lanes)

    def _slot(self, slot: Value, q: int) -> list[Value]:
        """Load a point of all vectors from a slot."""
        return [
            self.b.load(self._slots, self._place(slot, q, k), self._vec)
            for k in range(self._together)
        ]

    def _leaf_values(self, i: Value, output: Value, lanes: int) -> list[Value]:
        """Return what multiplies both sides of a node: a leaf's value, or one."""
        b, found = self.b, []
        for side in range(2):
            row = self._number(self._leaf, b.add(b.mul(i, 2), side))
            at = b.add(b.mul(row, len(self.d.bias)), output)
            found.append(b.splat(b.load(self._values, at), lanes))
        return found

    def _constant(self, at: Value, n: int, row: int, q: int) -> Value:
        b = self.b
        one = b.load(self._constants, b.add(at, row * n + q))
        return b.splat(one, self._vec.lanes)

    # ------------------------------------------------------------ results

    def _write(self, output: Value, sums: Buffer, held: Value) -> None:
        """Write the contributions to one output, and its bias."""
        b, rows, d = self.b, self._rows, self.d
        width = d.n_features + 1
        bias = b.convert(b.load(self._bias, output), self._result.element)
        count = b.binary("min", b.sub(rows.n_rows, rows.first), self._block)
        divisor = b.const(float(d.divisor), F64)
        n_outputs = len(d.bias)
        start = b.mul(held, d.n_features * self._block)
        with b.loop(count, hint="r") as r:
            row = b.add(b.mul(b.add(rows.first, r), n_outputs), output)
            at = b.mul(row, width)
            with b.loop(d.n_features, hint="f") as f:
                x = b.load(sums, b.add(b.add(start, b.mul(f, self._block)), r))
                if d.divisor != 1:
                    x = b.binary("div", x, divisor)
                b.store(self._result, b.add(at, f), b.convert(x, self._result.element))
            b.store(self._result, b.add(at, d.n_features), bias)
