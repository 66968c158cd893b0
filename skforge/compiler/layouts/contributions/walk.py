"""Emits the walk of contributions for blocks of rows.

Rows are the lanes of vectors. For a single row, points are the lanes; a GPU thread has
one row and no lanes; and interactions give each node's share to pairs of features, too.

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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.rules import BlockRows, Rules
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import with_lanes
from skforge.compiler.ir.lir.nodes import (
    F64,
    I64,
    U8,
    U32,
    Buffer,
    Type,
    Value,
    Vec,
)
from skforge.compiler.ir.lir.types import scalar_of
from skforge.compiler.layouts.blocks.paths import IntArray
from skforge.compiler.layouts.blocks.tree_block import WORDS, TreeBlock, Trees
from skforge.compiler.layouts.contributions.order import Order, Pairs
from skforge.compiler.layouts.contributions.quadrature import (
    LEFT,
    RIGHT,
    WEIGHTS,
    Constants,
    Points,
)
from skforge.compiler.layouts.contributions.subtrees import CASES, FEW, Tables

#: Vectors that share the loads of constants: of 512 bits (two: 1.07 times the time),
#: and of two halves or more (four: 1.05 to 1.15).
TOGETHER, IN_HALVES = 4, 2


@dataclass(frozen=True, slots=True, eq=False)
class WalkData:
    trees: Trees  # parts of the forest's trees, see ``quadrature.py``
    part_start: NDArray[np.int64]  # (n_trees + 1,) first part, in the walk's order
    order: Order
    points: Points
    constants: Constants
    leaf: NDArray[np.int64] | None  # of vector leaves: the row of each side's values
    values: NDArray[np.float64]  # (rows + 1, outputs), the last one ones: inner nodes
    rows: int  # of a node's constants
    tables: Tables
    pairs: Pairs | None = None  # for interactions

    @property
    def classes(self) -> list[int]:
        return [int(n) for n in np.unique(self.points.places)]


@dataclass(frozen=True, slots=True)
class Walk:
    """One walk: a tree's numbers, its constants, the first vector and the output.

    It takes ``points`` one after another, of which each is a value of type ``vec``.
    """

    tree: dict[str, Value]
    constants: Value
    tables: Value
    vector: Value
    output: Value
    points: int = 0
    vec: Type = F64


@dataclass(frozen=True, slots=True)
class Node:
    """A node on a walk: its number, its slot and those below, its constants.

    Each vector of rows has two masks: who passed the tests up to the left edge, and up
    to the right one.
    """

    i: Value
    slot: Value
    below: Value
    constants: Value
    passed: Sequence[tuple[Value, Value]] = ()


@dataclass(frozen=True, slots=True)
class Columns:
    """Features or pairs, whose sums of one tree are added to those of the block.

    A tree's columns are ``tree[name]`` to ``tree["last_" + name]`` in ``places``, which
    says where each lies among the block's sums.
    """

    name: str
    own: Buffer  # the sums of one tree
    places: Buffer


class ContributionCode(TreeBlock):
    def __init__(
        self,
        rules: Rules,
        data: WalkData,
        rows: BlockRows,
        block: int,
        fuses: bool,
        together: int = TOGETHER,
    ) -> None:
        self.together = together
        element = scalar_of(data.constants.values.dtype)
        super().__init__(rules, data.trees, rows, block, element)
        self.d, self._fuses = data, fuses
        order, points, table = data.order, data.points, self._table
        some = self._lanes * self._together  # elements of a point in a slot
        slots = order.n_slots * max(data.classes, default=1) * some
        self._slots = self._alloc("slots", self._scalar, slots)
        self._of_trees("run", "last_run", order.run_start)
        features = self._sums_of("feature", order.features, order.feature_start)
        self._columns, self._own = [features], features.own
        each = points.places[order.tree] * some
        self._node_slot = table("node_slot", order.slot * each)
        self._node_left = table("node_left_slot", order.left_slot * each)
        self._node_feature = table("node_feature", order.feature_slot * some)
        self._runs = table("runs", order.runs.reshape(-1))
        trees = data.trees.order
        self._tree["roots"] = table("tree_roots", order.roots[trees])
        self._tree["turns"] = table("tree_turns", points.turns[trees])
        case = np.searchsorted(data.classes, points.places)
        self._tree["points"] = table("tree_points", case[trees])
        self._parts = self._model("parts", data.part_start)
        self._constants = self._model("constants", data.constants.values)
        self._first = self._model("tree_constants", data.constants.first[trees])
        self._step = self._model("tree_constants_step", data.constants.step[trees])
        self._looks_up = len(data.order.subtree) > 0
        if self._looks_up:
            self._declare_subtrees()
        if data.leaf is not None:
            self._leaf_row = table("side_leaf", data.leaf.reshape(-1))
            values = data.values.astype(data.constants.values.dtype)
            self._values = self._model("values", values.reshape(-1))

    def _declare_subtrees(self) -> None:
        order, tables, table = self.d.order, self.d.tables, self._table
        subtrees, nodes = tables.subtrees, np.flatnonzero(~order.is_walked)
        size = (subtrees.node >= 0).sum(axis=1)
        first = nodes[np.cumsum(size) - size]
        tree = order.tree[first]
        each = self.d.points.places[tree] * self._lanes * self._together
        start = np.searchsorted(tree, np.arange(len(order.start)))
        self._of_trees("subtree", "last_subtree", start)
        self._run_subtrees = table("run_subtrees", order.run_subtrees)
        self._subtree_slot = table("subtree_slot", order.subtree_slot * each)
        self._subtree_first = table("subtree_first", first)
        self._subtree_last = table("subtree_last", first + size)
        adds = np.zeros((2, len(order.node)), np.uint8)
        is_node = subtrees.node >= 0
        adds[:, nodes] = subtrees.by_right[is_node], subtrees.by_left_above[is_node]
        self._adds = [self._model("case_if_right", adds[0])]
        self._adds.append(self._model("case_if_above", adds[1]))
        self._subtree_place = self._model("subtree_place", tables.place)
        self._tables = self._model("tables", tables.constants.values)
        trees = self.d.trees.order
        self._tables_first = self._model("tables_first", tables.constants.first[trees])
        self._tables_step = self._model("tables_step", tables.constants.step[trees])
        self._sizes = {FEW if few else CASES for few in subtrees.are_few.tolist()}
        most = int(np.diff(start).max(initial=0)) if self._block > 1 else 0
        self._cases = self._alloc("cases", U8, most * self._block)

    def _sums_of(self, name: str, columns: IntArray, start: IntArray) -> Columns:
        self._of_trees(name, f"last_{name}", start)
        most = max(1, int(np.diff(start).max(initial=0)))
        size = most * self._lanes * self._together
        sums = self._alloc("tree_sums", self._scalar, size)
        places = self._table(f"tree_{name}s", columns * self._block)
        return Columns(name, sums, places)

    def add_tree(self, tree: Value, sums: Buffer) -> None:
        b = self.b
        first, last = (self._parts[tree + k] for k in range(2))
        with b.loop(first, last, hint="part") as part:
            numbers = self._numbers_of(part)
            self._pass_tests(numbers["first"], numbers["last"])
            if self._looks_up:
                self._note_cases(numbers)
            start, step = self._first[part], self._step[part]
            with b.loop(numbers["turns"], hint="turn") as turn:
                constants, tables = start + turn * step, b.const(0)
                if self._looks_up:
                    tables = self._tables_first[part] + turn * self._tables_step[part]
                with (
                    b.loop(0, self._n_vectors, self._together, hint="v") as v,
                    b.loop(self._n_held, hint="output") as output,
                ):
                    self._add(Walk(numbers, constants, tables, v, output), sums)
            self._write_if_last(numbers["output"], sums)

    def _add(self, walk: Walk, sums: Buffer) -> None:
        b, lanes, together = self.b, self._lanes, self._together
        zero = b.const(0.0, self._vec)
        counts = []
        for columns in self._columns:
            first, last = (walk.tree[k + columns.name] for k in ("", "last_"))
            counts.append(last - first)
            with b.loop(counts[-1] * together, hint=columns.name) as i:
                columns.own[i * lanes] = zero
        walks = [partial(self._walk, self._with(walk, n)) for n in self.d.classes]
        b.switch(walk.tree["points"], walks)
        totals = zip(self._columns, counts, self._totals(sums), strict=True)
        for columns, count, (total, n) in totals:
            start = walk.output * (n * self._block) + walk.vector * lanes
            with b.loop(count, hint=columns.name) as i:
                place = self._number(columns.places, walk.tree[columns.name] + i)
                for k in range(together):
                    of_tree = columns.own[i * (together * lanes) + k * lanes, self._vec]
                    at = start + place + k * lanes
                    total[at] = total[at, with_lanes(F64, self._vec)] + of_tree.to(F64)

    # ------------------------------------------------------------ the walk

    def _with(self, walk: Walk, n: int) -> Walk:
        return replace(walk, points=n, vec=self._vec)

    def _walk(self, walk: Walk) -> None:
        b, one = self.b, self.b.const(1.0, walk.vec)
        lanes, count = max(1, walk.vec.lanes), walk.points * self._together
        with b.loop(walk.tree["roots"] * count, hint="root") as k:
            self._slots[k * lanes] = one
        with b.loop(walk.tree["run"], walk.tree["last_run"], hint="run") as run:
            ends = [self._number(self._runs, run * 4 + k) for k in range(4)]
            self._enter(walk, ends[0], ends[1])
            with b.loop(ends[0], ends[1], hint="down") as i:
                self._down(walk, self._node(walk, i))
            if self._looks_up:
                starts = (run * 2 + k for k in range(3))
                self._look_up_all(
                    walk, *(self._number(self._run_subtrees, at) for at in starts)
                )
            with b.loop(ends[3] - ends[2], hint="up") as j:
                self._up(walk, self._node(walk, ends[3] - 1 - j))

    def _down(self, walk: Walk, node: Node) -> None:
        for q in range(walk.points):
            above = self._slot(walk, node.slot, q)
            for side in (0, 1):
                for k, factor in enumerate(self._factors(walk, node, side, q)):
                    x, point = above[k] * factor, side * walk.points + q
                    self._slots[self._place(walk, node.below, point, k)] = x

    def _up(self, walk: Walk, node: Node) -> None:
        gifts: list[list[Value]] = [[] for _ in range(self._together)]
        values = self._leaf(walk, node)
        for q in range(walk.points):
            lows = self._slot(walk, node.below, q)
            highs = self._slot(walk, node.below, walk.points + q)
            weight = self._weights(walk, node, q)
            for k, (low, high) in enumerate(zip(lows, highs, strict=True)):
                if values:
                    low, high = low * values[0], high * values[1]
                self._slots[self._place(walk, node.slot, q, k)] = low + high
                of_low = low * weight(0, k)
                gifts[k].append(self._multiply_add(high, weight(1, k), of_low))
        self._give(walk, node, gifts)

    def _leaf(self, walk: Walk, node: Node) -> list[Value]:
        if self.d.leaf is None:
            return []
        values = []
        for side in (0, 1):
            row = self._number(self._leaf_row, node.i * 2 + side)
            value = self._values[row * self._n_held + walk.output]
            values.append(self.b.splat(value, walk.vec.lanes))
        return values

    def _give(self, walk: Walk, node: Node, gifts: list[list[Value]]) -> None:
        feature = self._number(self._node_feature, node.i)
        for k, of_points in enumerate(gifts):
            total = self._total(node, k, of_points)
            place = feature + k * self._lanes
            self._own[place] = self._own[place, self._vec] + total

    # ------------------------------------------------------------ rows as lanes

    def _note_cases(self, tree: dict[str, Value]) -> None:
        b, lanes = self.b, min(self._block, 64)
        word, mask = WORDS[lanes], lir.Mask(lanes)
        none = b.splat(b.const(0, U8), lanes)
        with (
            b.loop(tree["subtree"], tree["last_subtree"], hint="subtree") as number,
            b.loop(0, self._block, lanes, hint="r") as r,
        ):
            case = [none]
            first, last = self._ends_of(number)
            with b.loop(first, last, carry=case, hint="n") as n:
                at = self._edge(n - tree["first"]) + (r >> 3)
                left, right = (self._passed[at + k * self._line, word] for k in (0, 1))
                for bits, adds in zip(
                    (right, ~(left | right)), self._adds, strict=True
                ):
                    more = b.splat(adds[n], lanes)
                    is_set = b.reinterpret(bits, mask)
                    case[0] = case[0] + b.select(is_set, more, none)
            self._cases[(number - tree["subtree"]) * self._block + r] = case[0]

    def _ends_of(self, subtree: Value) -> tuple[Value, Value]:
        first = self._number(self._subtree_first, subtree)
        return first, self._number(self._subtree_last, subtree)

    def _look_up_all(self, walk: Walk, few: Value, more: Value, end: Value) -> None:
        for first, last, size in ((few, more, FEW), (more, end, CASES)):
            if size in self._sizes:
                with self.b.loop(first, last, hint="subtree") as number:
                    self._look_up(walk, number, size)

    def _look_up(self, walk: Walk, subtree: Value, size: int) -> None:
        cases = self._cases_of(walk, subtree)
        slot = self._number(self._subtree_slot, subtree)
        come = [self._slot(walk, slot, q) for q in range(walk.points)]
        first, last = self._ends_of(subtree)
        place = walk.tables + self._subtree_place[subtree]

        def looked_up(at: Value, q: int) -> Iterator[Value]:
            numbers = self._numbers_of_cases(at + q * size, size, cases)
            for x, number in zip(come[q], numbers, strict=True):
                yield x * number

        for q in range(walk.points):
            for k, x in enumerate(looked_up(place, q)):
                self._slots[self._place(walk, slot, q, k)] = x
        with self.b.loop(first, last, hint="n") as n:
            at = place + (n - first + 1) * (walk.points * size)
            of_points = [looked_up(at, q) for q in range(walk.points)]
            gifts = [list(of_vector) for of_vector in zip(*of_points, strict=True)]
            self._give(walk, self._subtree_node(walk, n), gifts)

    def _cases_of(self, walk: Walk, subtree: Value) -> list[Value]:
        lanes, number = self._lanes, subtree - walk.tree["subtree"]
        own = number * self._block + walk.vector * lanes
        kind = U32 if self._scalar.bytes == 4 else I64
        places = (own + k * lanes for k in range(self._together))
        return [self._cases[place, Vec(U8, lanes)].to(kind) for place in places]

    def _numbers_of_cases(
        self, at: Value, size: int, cases: list[Value]
    ) -> Iterator[Value]:
        vec = Vec(self._scalar, min(self._lanes, size))
        registers = [self._tables[at + k, vec] for k in range(0, size, vec.lanes)]
        for case in cases:
            yield self.b.permute(registers, case)

    def _subtree_node(self, walk: Walk, n: Value) -> Node:
        number = n - walk.tree["first"]
        constants = walk.constants + number * (self.d.rows * walk.points)
        return Node(n, number, number, constants)

    def _enter(self, walk: Walk, first: Value, last: Value) -> None:
        """Prepare to go down some nodes."""

    def _node(self, walk: Walk, i: Value) -> Node:
        number, each = i - walk.tree["first"], self._lanes // 8
        at = self._edge(number) + walk.vector * each
        places = [at + k * each for k in range(self._together)]
        passed = [(self._mask(p), self._mask(p + self._line)) for p in places]
        slot, below = (self._number(t, i) for t in (self._node_slot, self._node_left))
        constants = walk.constants + number * (self.d.rows * walk.points)
        return Node(i, slot, below, constants, passed)

    def _factors(self, walk: Walk, node: Node, side: int, q: int) -> Iterator[Value]:
        rows = range(LEFT, RIGHT) if side == 0 else range(RIGHT, WEIGHTS)
        a = [self._constant(walk, node.constants, row, q) for row in rows]
        for passed in node.passed:
            other = self.b.select(passed[1 - side], a[1], a[2])
            yield self.b.select(passed[side], a[0], other)

    def _weights(self, walk: Walk, node: Node, q: int) -> Callable[[int, int], Value]:
        w = [self._constant(walk, node.constants, WEIGHTS + k, q) for k in range(3)]
        return lambda side, k: self.b.select(node.passed[k][side], w[side], w[2])

    def _total(self, node: Node, k: int, gifts: list[Value]) -> Value:
        """Return the sum over points; zero for rows that left the feature's tests.

        Halves of a power of two are added, the order of lanes in ``PointCode``.
        """
        gifts = list(gifts)
        while len(gifts) > 1:
            half = 1 << (len(gifts) - 1).bit_length() - 1
            for q, gift in enumerate(gifts[half:]):
                gifts[q] = gifts[q] + gift
            del gifts[half:]
        if not node.passed:
            return gifts[0]
        left, right = node.passed[k]
        return self.b.select(left | right, gifts[0], 0.0)

    def _constant(self, walk: Walk, at: Value, row: int, q: int) -> Value:
        constant = self._constants[at + (row * walk.points + q)]
        return self.b.splat(constant, walk.vec.lanes)

    def _multiply_add(self, x: Value, y: Value, total: Value) -> Value:
        return self.b.multiply_add(x, y, total) if self._fuses else x * y + total

    def _place(self, walk: Walk, slot: Value, q: int, k: int) -> Value:
        return slot + (q * self._together + k) * max(1, walk.vec.lanes)

    def _slot(self, walk: Walk, slot: Value, q: int) -> list[Value]:
        places = (self._place(walk, slot, q, k) for k in range(self._together))
        return [self._slots[place, walk.vec] for place in places]
