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

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.rules import BlockRows, Rules
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.lir.builder import with_lanes
from skforge.compiler.ir.lir.nodes import F64, Buffer, Value
from skforge.compiler.ir.lir.types import scalar_of
from skforge.compiler.layouts.contributions import quadrature
from skforge.compiler.layouts.contributions.block import TreeBlock, Trees
from skforge.compiler.layouts.contributions.paths import IntArray, Order, Paths
from skforge.compiler.layouts.contributions.quadrature import LEFT, Constants, Points


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """The other features at each node, and the pairs of columns they make.

    The edges above a node hold the state of every other feature of its path: for each
    feature the lowest edge that tests it.

    Entry e of a node, ``start[i] <= e < start[i + 1]``, is the edge number ``edge[e]``
    of its tree (as in :class:`Order`), and adds to the tree's pair ``slot[e]``.
    """

    start: IntArray  # (n_nodes + 1,) into the entries
    edge: IntArray
    slot: IntArray
    pair_start: IntArray  # (n_trees + 1,) into the pairs of trees
    pair: IntArray  # of a tree's pair, among the forest's
    columns: IntArray  # (n_pairs, 2) features, the lower one first


def pair_up(forest: Forest, paths: Paths, order: Order) -> Pairs:
    """Return the pairs of a forest; those of one column are left out."""
    parent, tree = paths.parent, paths.tree
    column = np.append(forest.feature, -1)[forest.predicate].astype(np.int64)
    players = forest.node_feature
    node = order.node
    n = len(node)
    number, at = np.arange(n), node
    seen = players[node][:, None]  # features met below, the node's own first
    owners, edges = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    while len(at):
        some = parent[at] >= 0
        number, at, seen = number[some], at[some], seen[some]
        above = parent[at]
        new = (seen != players[above][:, None]).all(axis=1)
        new &= column[above] != column[node[number]]
        owners.append(number[new])
        edges.append(at[new])
        seen = np.column_stack([seen, players[above]])
        at = above
    owner, edge = np.concatenate(owners), np.concatenate(edges)
    by = np.argsort(owner, kind="stable")
    owner, edge = owner[by], edge[by]
    place = np.zeros(forest.n_nodes, np.int64)
    place[node] = np.arange(n)
    up = parent[edge]
    own = tree[node[owner]]
    mine, other = column[node[owner]], column[up]
    low, high = np.minimum(mine, other), np.maximum(mine, other)
    width = forest.n_features
    codes, which = np.unique(low * width + high, return_inverse=True)
    in_tree, slot = np.unique(own * len(codes) + which.reshape(-1), return_inverse=True)
    pair_start = np.searchsorted(in_tree, np.arange(forest.n_trees + 1) * len(codes))
    return Pairs(
        start=np.searchsorted(owner, np.arange(n + 1)),
        edge=2 * (place[up] - order.start[own]) + 1 + paths.is_right[edge],
        slot=slot.reshape(-1) - pair_start[own],
        pair_start=pair_start,
        pair=in_tree % max(1, len(codes)),
        columns=np.stack([codes // width, codes % width], axis=1),
    )


#: Vectors that share the loads of constants (1: 1.1 to 1.2 times the time, 4: 1.05).
TOGETHER = 2


@dataclass(frozen=True, slots=True, eq=False)
class WalkData:
    """A forest as the walk reads it."""

    trees: Trees  # parts of the forest's trees, see ``quadrature.py``
    part_start: NDArray[np.int64]  # (n_trees + 1,) first part, in the walk's order
    order: Order
    points: Points
    constants: Constants
    leaf: NDArray[np.int64] | None  # of vector leaves: the row of each side's values
    values: NDArray[np.float64]  # (rows + 1, outputs), the last one ones: inner nodes
    rows: int  # of a node's constants
    pairs: Pairs | None = None  # for interactions

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


class ContributionCode(TreeBlock):
    """Emits the code for one block of rows."""

    together = TOGETHER

    def __init__(
        self, rules: Rules, data: WalkData, rows: BlockRows, block: int, fuses: bool
    ) -> None:
        element = scalar_of(data.constants.values.dtype)
        super().__init__(rules, data.trees, rows, block, element)
        self.d, self._fuses = data, fuses
        order, points, table = data.order, data.points, self._table
        some = self._lanes * self._together  # elements of a point in a slot
        slots = order.n_slots * max(data.classes, default=1) * some
        self._slots = self._alloc("slots", self._scalar, slots)
        held = int(np.diff(order.feature_start).max(initial=0))
        of_feature = self._lanes * self._together  # elements of its sum of one tree
        self._own = self._alloc("tree_sums", self._scalar, max(1, held) * of_feature)
        tree = np.searchsorted(order.start, np.arange(len(order.node)), "right") - 1
        each = points.places[tree] * some
        self._node_slot = table("node_slot", order.slot * each)
        self._node_left = table("node_left_slot", order.left_slot * each)
        self._node_feature = table("node_feature", order.feature_slot * of_feature)
        self._runs = table("runs", order.runs.reshape(-1))
        self._features = table("tree_features", order.features * block)
        trees = data.trees.order
        of_trees = {
            "run": order.run_start[:-1],
            "last_run": order.run_start[1:],
            "feature": order.feature_start[:-1],
            "last_feature": order.feature_start[1:],
            "turns": points.turns,
            "points": np.searchsorted(data.classes, points.places),
        }
        for name, numbers in of_trees.items():
            self._tree[name] = table(f"tree_{name}", numbers[trees])
        self._parts = self._model("parts", data.part_start)
        self._constants = self._model("constants", data.constants.values)
        self._first = self._model("tree_constants", data.constants.first[trees])
        self._step = self._model("tree_constants_step", data.constants.step[trees])
        if data.leaf is not None:
            self._leaf = table("side_leaf", data.leaf.reshape(-1))
            values = data.values.astype(data.constants.values.dtype)
            self._values = self._model("values", values.reshape(-1))
        self._declare_more()

    def _declare_more(self) -> None:
        """Declare what a walk of another kind needs besides."""

    def add_tree(self, tree: Value, sums: Buffer) -> None:
        b = self.b
        first, last = (self._parts[tree + k] for k in range(2))
        with b.loop(first, last, hint="part") as part:
            self._add_part(part, sums)

    def _add_part(self, part: Value, sums: Buffer) -> None:
        b = self.b
        at = {name: self._number(table, part) for name, table in self._tree.items()}
        self._pass_tests(at["first"], at["last"])
        first, step = self._first[part], self._step[part]
        with b.loop(at["turns"], hint="turn") as turn:
            constants = first + turn * step
            with (
                b.loop(0, self._n_vectors, self._together, hint="v") as v,
                b.loop(self._n_held, hint="output") as output,
            ):
                self._turn(Turn(at, constants, v, output), sums)
        self._write_if_last(at["output"], sums)

    def _turn(self, turn: Turn, sums: Buffer) -> None:
        """Add a tree's contributions to an output, for some points and rows."""
        b, lanes, together = self.b, self._lanes, self._together
        first, last = turn.tree["feature"], turn.tree["last_feature"]
        features = last - first
        zero = b.const(0.0, self._vec)
        with b.loop(features * together, hint="f") as f:
            self._own[f * lanes] = zero
        walks = [partial(self._walk, n, turn) for n in self.d.classes]
        b.switch(turn.tree["points"], walks)
        start = turn.output * (self._t.forest.n_features * self._block)
        start = start + turn.vector * lanes
        with b.loop(features, hint="f") as f:
            column = self._number(self._features, first + f)
            for k in range(together):
                own = self._own[f * (together * lanes) + k * lanes, self._vec]
                at = start + column + k * lanes
                sums[at] = sums[at, with_lanes(F64, self._vec)] + own.to(F64)

    # ------------------------------------------------------------ the walk

    def _walk(self, n: int, turn: Turn) -> None:
        """Walk one tree with ``n`` points for some vectors of rows."""
        b, first = self.b, turn.tree["first"]
        one = b.const(1.0, self._vec)
        for k in range(n * self._together):
            self._slots[b.const(k * self._lanes)] = one
        with b.loop(turn.tree["run"], turn.tree["last_run"], hint="run") as run:
            ends = [self._number(self._runs, run * 4 + k) for k in range(4)]
            with b.loop(ends[0], ends[1], hint="down") as i:
                self._down(n, turn, i, i - first)
            with b.loop(ends[3] - ends[2], hint="up") as j:
                i = ends[3] - 1 - j
                self._up(n, turn, i, i - first)

    def _masks(self, turn: Turn, i: Value) -> list[tuple[Value, Value]]:
        """Return which rows of each vector passed the tests up to a node's edges."""
        size, each = self._block // 8, self._lanes // 8
        at = i * (2 * size) + size + turn.vector * each
        places = [at + k * each for k in range(self._together)]
        return [(self._mask(p), self._mask(p + size)) for p in places]

    def _down(self, n: int, turn: Turn, i: Value, own: Value) -> None:
        b = self.b
        masks = self._masks(turn, own)
        source = self._number(self._node_slot, i)
        target = self._number(self._node_left, i)
        at = turn.constants + own * (self.d.rows * n)
        for q in range(n):
            above = self._slot(source, q)
            for row, place in ((LEFT, q), (quadrature.RIGHT, n + q)):
                a = [self._constant(at, n, row + k, q) for k in range(3)]
                for k, (left, right) in enumerate(masks):
                    mine, other = (left, right) if row == LEFT else (right, left)
                    factor = b.select(mine, a[0], b.select(other, a[1], a[2]))
                    self._slots[self._place(target, place, k)] = above[k] * factor

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
        at = turn.constants + own * (self.d.rows * n)
        gifts: list[list[Value]] = []
        for q in range(n):
            gifts.append([])
            low, high = self._slot(source, q), self._slot(source, n + q)
            w = [self._constant(at, n, quadrature.WEIGHTS + k, q) for k in range(3)]
            for k, (left, right) in enumerate(masks):
                if scale is not None:
                    low[k] = low[k] * scale[0]
                    high[k] = high[k] * scale[1]
                self._slots[self._place(target, q, k)] = low[k] + high[k]
                given = low[k] * b.select(left, w[0], w[2])
                weight = b.select(right, w[1], w[2])
                gifts[q].append(self._multiply_add(high[k], weight, given))
        feature = self._number(self._node_feature, i)
        for k, (left, right) in enumerate(masks):
            passed = left | right
            total = self._sum_of_points([of_point[k] for of_point in gifts])
            total = b.select(passed, total, b.const(0.0, self._vec))
            place = feature + k * self._lanes
            self._own[place] = self._own[place, self._vec] + total
        self._pair_up(n, turn, i, gifts, masks)

    def _multiply_add(self, x: Value, y: Value, total: Value) -> Value:
        """Return x * y + total, fused if that is fast."""
        if self._fuses:
            return self.b.multiply_add(x, y, total)
        return x * y + total

    def _sum_of_points(self, gifts: list[Value]) -> Value:
        """Add halves of a power of two, the order of lanes in ``Points``."""
        n = len(gifts)
        while n > 1:
            half = 1 << (n - 1).bit_length() - 1
            for q in range(half, n):
                gifts[q - half] = gifts[q - half] + gifts[q]
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
        return slot + (q * self._together + k) * self._lanes

    def _slot(self, slot: Value, q: int) -> list[Value]:
        """Load a point of all vectors from a slot."""
        return [
            self._slots[self._place(slot, q, k), self._vec]
            for k in range(self._together)
        ]

    def _leaf_values(self, i: Value, output: Value, lanes: int) -> list[Value]:
        """Return what multiplies both sides of a node: a leaf's value, or one."""
        b, found = self.b, []
        for side in range(2):
            at = self._number(self._leaf, i * 2 + side) * self._n_held + output
            found.append(b.splat(self._values[at], lanes))
        return found

    def _constant(self, at: Value, n: int, row: int, q: int) -> Value:
        b = self.b
        return b.splat(self._constants[at + (row * n + q)], self._vec.lanes)
