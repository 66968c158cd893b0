"""Emits the walk of contributions for blocks of rows.

Rows are the lanes of vectors. For a single row, points are the lanes: ``edges.py`` has
both. Interactions give each node's share to pairs of features, too.

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

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from skforge._typing import Float64s, Int64s
from skforge.compiler.binning.rules import BlockRows, ReadingRules
from skforge.compiler.ir.lir.builder import b, with_lanes
from skforge.compiler.ir.lir.nodes import F64, U8, Buffer, Type, Value
from skforge.compiler.ir.lir.types import scalar_of
from skforge.compiler.layouts.blocks.tree_block import TreeBlock, Trees
from skforge.compiler.layouts.contributions.order import Order, Pairs
from skforge.compiler.layouts.contributions.quadrature import Constants, Points
from skforge.compiler.layouts.contributions.subtrees import CASES, FEW, Tables

#: Vectors that share the loads of constants: of 512 bits (two: 1.07 times the time),
#: and of two halves or more (four: 1.05 to 1.15).
TOGETHER, IN_HALVES = 4, 2


@dataclass(frozen=True, slots=True, eq=False)
class WalkData:
    trees: Trees  # parts of the forest's trees, see ``quadrature.py``
    part_start: Int64s  # (n_trees + 1,) first part, in the walk's order
    order: Order
    points: Points
    constants: Constants
    leaf: Int64s | None  # of vector leaves: the row of each side's values
    values: Float64s  # (rows + 1, outputs), the last one ones: inner nodes
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
class WalkNode:
    """A node on a walk: its number, its slot and those below, its constants.

    Each vector of rows has two masks: who passed the tests up to the left edge, and up
    to the right one.
    """

    i: Value
    slot: Value
    child_slots: Value
    constants: Value
    passed: Sequence[tuple[Value, Value]] = ()


@dataclass(frozen=True, slots=True)
class OutputColumns:
    """Features or pairs, whose sums of one tree are added to those of the block.

    A tree's columns are ``tree[name]`` to ``tree["last_" + name]`` in ``places``, which
    says where each lies among the block's sums.
    """

    name: str
    sums: Buffer  # the sums of one tree
    places: Buffer


class Edges(ABC):
    """What the rows of a walk do at the two edges of a node, left and right: 0 and 1.

    Each value that the walk reads or writes is of type ``walk.vec``, for one of some
    vectors ``k`` and points ``q``.
    """

    def __init__(self, code: ContributionCode) -> None:
        self.c = code

    @abstractmethod
    def points(self, walk: Walk, n: int) -> Walk:
        """Return how a walk takes ``n`` points: one after another, or as lanes."""

    @abstractmethod
    def start(self, tree: dict[str, Value]) -> None:
        """Test the rows at the nodes of a tree, as far as this is done before walks."""

    def enter(self, walk: Walk, first: Value, last: Value) -> None:  # noqa: B027
        """Prepare to go down some nodes."""

    @abstractmethod
    def node(self, walk: Walk, i: Value) -> WalkNode: ...

    @abstractmethod
    def factors(self, walk: Walk, node: WalkNode, side: int, q: int) -> Iterator[Value]:
        """Yield what an edge multiplies on the way down, vector by vector."""

    @abstractmethod
    def weights(
        self, walk: Walk, node: WalkNode, q: int
    ) -> Callable[[int, int], Value]:
        """Return the weight of a side and vector on the way up."""

    @abstractmethod
    def total(self, node: WalkNode, k: int, terms: list[Value]) -> Value:
        """Return the sum of terms over points; zero for rows that left the tests."""

    @abstractmethod
    def look_up(self, walk: Walk, few: Value, more: Value, end: Value) -> None:
        """Look up some subtrees with few cases, then some with more."""


class ContributionCode(TreeBlock):
    def __init__(
        self,
        rules: ReadingRules,
        data: WalkData,
        rows: BlockRows,
        block: int,
        edges: Callable[[ContributionCode], Edges],
        fuses: bool,
        together: int = TOGETHER,
    ) -> None:
        element = scalar_of(data.constants.values.dtype)
        super().__init__(rules, data.trees, rows, block, element, together)
        self.d, self._fuses = data, fuses
        order, points, table = data.order, data.points, self._table
        some = self.lanes * self.together  # elements of a point in a slot
        slots = order.n_slots * max(data.classes, default=1) * some
        self.slots = self.alloc("slots", self.scalar, slots)
        self._of_trees("run", "last_run", order.run_start)
        features = self._sums_of("feature", order.features, order.feature_start)
        self._columns, self._feature_sums = [features], features.sums
        each = points.places[order.tree] * some
        self.node_slot = table("node_slot", order.slot * each)
        self.node_left = table("node_left_slot", order.left_slot * each)
        self._node_feature = table("node_feature", order.feature_slot * some)
        self._runs = table("runs", order.runs.reshape(-1))
        trees = data.trees.order
        self._tree["roots"] = table("tree_roots", order.roots[trees])
        self._tree["turns"] = table("tree_turns", points.turns[trees])
        case = np.searchsorted(data.classes, points.places)
        self._tree["points"] = table("tree_points", case[trees])
        self._parts = self._model("parts", data.part_start)
        self.constants = self._model("constants", data.constants.values)
        self._first = self._model("tree_constants", data.constants.first[trees])
        self._step = self._model("tree_constants_step", data.constants.step[trees])
        self.looks_up = len(data.order.subtree) > 0
        if self.looks_up:
            self._declare_subtrees()
        if data.leaf is not None:
            self._leaf_row = table("side_leaf", data.leaf.reshape(-1))
            values = data.values.astype(data.constants.values.dtype)
            self._values = self._model("values", values.reshape(-1))
        self._edges = edges(self)

    def _declare_subtrees(self) -> None:
        order, tables, table = self.d.order, self.d.tables, self._table
        subtrees, nodes = tables.subtrees, np.flatnonzero(~order.is_walked)
        size = (subtrees.node >= 0).sum(axis=1)
        first = nodes[np.cumsum(size) - size]
        tree = order.tree[first]
        each = self.d.points.places[tree] * self.lanes * self.together
        start = np.searchsorted(tree, np.arange(len(order.start)))
        self._of_trees("subtree", "last_subtree", start)
        self._run_subtrees = table("run_subtrees", order.run_subtrees)
        self.subtree_slot = table("subtree_slot", order.subtree_slot * each)
        self._subtree_first = table("subtree_first", first)
        self._subtree_last = table("subtree_last", first + size)
        adds = np.zeros((2, len(order.node)), np.uint8)
        is_node = subtrees.node >= 0
        adds[:, nodes] = subtrees.by_right[is_node], subtrees.by_left_above[is_node]
        self.adds = [self._model("case_if_right", adds[0])]
        self.adds.append(self._model("case_if_above", adds[1]))
        self.subtree_place = self._model("subtree_place", tables.offset)
        self.tables = self._model("tables", tables.constants.values)
        trees = self.d.trees.order
        self._tables_first = self._model("tables_first", tables.constants.first[trees])
        self._tables_step = self._model("tables_step", tables.constants.step[trees])
        self.sizes = {FEW if few else CASES for few in subtrees.are_few.tolist()}
        most = int(np.diff(start).max(initial=0)) if self.block > 1 else 0
        self.cases = self.alloc("cases", U8, most * self.block)

    def _sums_of(self, name: str, columns: Int64s, start: Int64s) -> OutputColumns:
        self._of_trees(name, f"last_{name}", start)
        most = max(1, int(np.diff(start).max(initial=0)))
        size = most * self.lanes * self.together
        sums = self.alloc("tree_sums", self.scalar, size)
        places = self._table(f"tree_{name}s", columns * self.block)
        return OutputColumns(name, sums, places)

    def add_tree(self, tree: Value, sums: Buffer) -> None:
        first, last = (self._parts[tree + k] for k in range(2))
        with b.loop(first, last, hint="part") as part:
            numbers = self._numbers_of(part)
            self._edges.start(numbers)
            start, step = self._first[part], self._step[part]
            with b.loop(numbers["turns"], hint="turn") as turn:
                constants, tables = start + turn * step, b.const(0)
                if self.looks_up:
                    tables = self._tables_first[part] + turn * self._tables_step[part]
                with (
                    b.loop(0, self._n_vectors, self.together, hint="v") as v,
                    b.loop(self._n_held, hint="output") as output,
                ):
                    self._add(Walk(numbers, constants, tables, v, output), sums)
            self.write_if_last(numbers["output"], sums)

    def _add(self, walk: Walk, sums: Buffer) -> None:
        lanes, together = self.lanes, self.together
        zero = b.const(0.0, self.vec)
        counts = []
        for columns in self._columns:
            first, last = (walk.tree[k + columns.name] for k in ("", "last_"))
            counts.append(last - first)
            with b.loop(counts[-1] * together, hint=columns.name) as i:
                columns.sums[i * lanes] = zero
        walks = [
            partial(self._walk, self._edges.points(walk, n)) for n in self.d.classes
        ]
        b.switch(walk.tree["points"], walks)
        totals = zip(self._columns, counts, self._totals(sums), strict=True)
        for columns, count, (total, n) in totals:
            start = walk.output * (n * self.block) + walk.vector * lanes
            with b.loop(count, hint=columns.name) as i:
                place = self.number(columns.places, walk.tree[columns.name] + i)
                for k in range(together):
                    of_tree = columns.sums[i * (together * lanes) + k * lanes, self.vec]
                    at = start + place + k * lanes
                    total[at] = total[at, with_lanes(F64, self.vec)] + of_tree.to(F64)

    # ------------------------------------------------------------ the walk

    def _walk(self, walk: Walk) -> None:
        one = b.const(1.0, walk.vec)
        lanes, count = max(1, walk.vec.lanes), walk.points * self.together
        with b.loop(walk.tree["roots"] * count, hint="root") as k:
            self.slots[k * lanes] = one
        with b.loop(walk.tree["run"], walk.tree["last_run"], hint="run") as run:
            ends = [self.number(self._runs, run * 4 + k) for k in range(4)]
            self._edges.enter(walk, ends[0], ends[1])
            with b.loop(ends[0], ends[1], hint="down") as i:
                self._down(walk, self._edges.node(walk, i))
            if self.looks_up:
                starts = (run * 2 + k for k in range(3))
                subtrees = (self.number(self._run_subtrees, at) for at in starts)
                self._edges.look_up(walk, *subtrees)
            with b.loop(ends[3] - ends[2], hint="up") as j:
                self._up(walk, self._edges.node(walk, ends[3] - 1 - j))

    def _down(self, walk: Walk, node: WalkNode) -> None:
        for q in range(walk.points):
            above = self.slot(walk, node.slot, q)
            for side in (0, 1):
                for k, factor in enumerate(self._edges.factors(walk, node, side, q)):
                    x, point = above[k] * factor, side * walk.points + q
                    self.slots[self.slot_index(walk, node.child_slots, point, k)] = x

    def _up(self, walk: Walk, node: WalkNode) -> None:
        terms: list[list[Value]] = [[] for _ in range(self.together)]
        values = self._leaf(walk, node)
        for q in range(walk.points):
            lows = self.slot(walk, node.child_slots, q)
            highs = self.slot(walk, node.child_slots, walk.points + q)
            weight = self._edges.weights(walk, node, q)
            for k, (low, high) in enumerate(zip(lows, highs, strict=True)):
                if values:
                    low, high = low * values[0], high * values[1]
                self.slots[self.slot_index(walk, node.slot, q, k)] = low + high
                of_low = low * weight(0, k)
                terms[k].append(self.multiply_add(high, weight(1, k), of_low))
        self.add_terms(walk, node, terms)

    def _leaf(self, walk: Walk, node: WalkNode) -> list[Value]:
        if self.d.leaf is None:
            return []
        values = []
        for side in (0, 1):
            row = self.number(self._leaf_row, node.i * 2 + side)
            value = self._values[row * self._n_held + walk.output]
            values.append(b.splat(value, walk.vec.lanes))
        return values

    def add_terms(self, walk: Walk, node: WalkNode, terms: list[list[Value]]) -> None:
        feature = self.number(self._node_feature, node.i)
        for k, of_points in enumerate(terms):
            total = self._edges.total(node, k, of_points)
            place = feature + k * self.lanes
            self._feature_sums[place] = self._feature_sums[place, self.vec] + total

    def ends_of(self, subtree: Value) -> tuple[Value, Value]:
        first = self.number(self._subtree_first, subtree)
        return first, self.number(self._subtree_last, subtree)

    def constant(self, walk: Walk, first: Value, row: int, q: int) -> Value:
        constant = self.constants[first + (row * walk.points + q)]
        return b.splat(constant, walk.vec.lanes)

    def multiply_add(self, x: Value, y: Value, total: Value) -> Value:
        return b.multiply_add(x, y, total) if self._fuses else x * y + total

    def slot_index(self, walk: Walk, slot: Value, q: int, k: int) -> Value:
        return slot + (q * self.together + k) * max(1, walk.vec.lanes)

    def slot(self, walk: Walk, slot: Value, q: int) -> list[Value]:
        places = (self.slot_index(walk, slot, q, k) for k in range(self.together))
        return [self.slots[place, walk.vec] for place in places]
