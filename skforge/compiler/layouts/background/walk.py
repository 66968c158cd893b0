"""Emits the walk of interventional values for blocks of rows, a bit or a lane each.

A leaf of value v is reached if known features follow the row x and the others a
background row b. With a features that only x passes and c that only b passes, and none
that neither passes, the former get v (a-1)! c! / (a+c)! and the latter
-v a! (c-1)! / (a+c)! (Lundberg et al. 2020, Algorithm 3).

On the way down, background rows that fail the same features of the path are one
*state*:

    rows   a bit for each x of the block that passes all of ``need``
    given  a bit for each b of a group
    need   a bit for each feature of the path that these b fail

The root has one state. An edge with feature i gives each of its states two, without
those that have lost all their bits. With o and z, the bits of the x and the b that pass
the tests of i up to here::

    rows, given & z, need        rows & o, given & ~z, need | i

At a leaf, a and the number of b are counts of bits, and c is the number of the path's
features that x fails: for all b, because x passes what they fail. A row's gains are
summed by feature of the path, until the walk leaves the node that first tests it. Its
losses are summed by node: a leaf gives the same to all features that x fails, so that
the feature of a node loses what one side has summed if x passes the other one.

All sums are float64, which takes no longer than float32: a row's features are in lanes.
Each row adds its own states in their order, whatever the other rows of its block are.
Of two designs this was 1.7 times as fast in deep forests as one with a vector of rows a
state, in which one or two rows of eight were left, and .9 times in shallow ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from operator import add, or_
from typing import TypeAlias

import numpy as np

from skforge.compiler.binning.rules import BlockRows, ReadingRules
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import F64, I64, U32, Buffer, Mask, Value, Vec
from skforge.compiler.ir.mir.nodes import Element
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.background.tables import GROUP, Preorder
from skforge.compiler.layouts.base import MakeCode
from skforge.compiler.layouts.blocks.tree_block import TreeBlock
from skforge.compiler.target import Target

#: Rows of a block: a word has a bit for each.
BLOCK = 64


def preorder_of(hir: PredictEnsemble) -> Preorder:
    return hir.shared.once(("background",), lambda: Preorder.of(hir.forest))


class Background(layouts.BlockRepresentation):
    """``represent("background")``: only for ``predict_contribs``."""

    name = "background"
    block = BLOCK
    takes_values = True
    elements: tuple[Element, ...] = ("contribution",)

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        return hir.forest.n_nodes * 128

    def check_block(self, hir: PredictEnsemble, block: int) -> None:
        if block != self.block:
            self.refuse_block(block, f"of {self.block} rows")

    def block_code(self, hir: PredictEnsemble, target: Target, block: int) -> MakeCode:
        order = preorder_of(hir)
        return lambda rules, rows: BackgroundCode(rules, order, rows)


layouts.register(Background())

#: States of a vector.
LANES = 8

#: States of a list: every one has a background row of its own, and stores are whole.
MOST_STATES = GROUP + LANES

#: Words of a set of background rows.
WORDS_GIVEN = GROUP // 64

#: Vectors of a row's features that are added without a loop, at most.
UNROLLED = 4

STATES = Vec(I64, LANES)

#: Adds a vector of a number to the sums of needs, which start at a place.
Gains: TypeAlias = Callable[[list[Value], Value, Value], None]


@dataclass(frozen=True, slots=True)
class AreaNode:
    """A node on the walk: its number, its left edge, its area and that below left."""

    n: Value
    edge: Value
    area: Value
    below: Value


class BackgroundCode(TreeBlock):
    def __init__(self, rules: ReadingRules, order: Preorder, rows: BlockRows) -> None:
        super().__init__(rules, order.trees, rows, BLOCK, F64)
        model, table, most = self._model, self._table, order.most_distinct
        self._order, forest = order, order.trees.forest
        self._n_needs = max(1, -(-most // 64))
        self._fields = 1 + WORDS_GIVEN + self._n_needs
        #: Elements of a list of states.
        self._list = self._fields * MOST_STATES
        weights = order.weights()
        self._weights = model("weights", weights.reshape(-1))
        #: Weights of one a; those over c follow.
        self._entries = weights.shape[2]
        area = np.where(order.depth > 0, 2 * order.depth - 1 + order.is_right, 0)
        self._node_area = table("node_area", area)
        self._node_below = table("node_below", 2 * order.depth + 1)
        self._node_skip = table("node_skip", 2 * order.size)
        feature = forest.feature[forest.predicate[order.node]]
        self._node_feature = table("node_feature", feature * BLOCK)
        first_gains = np.where(order.trees.before, -1, order.bit)
        self._node_gains = table("node_gains", first_gains)
        self._events = table("events", order.events)
        bits = np.zeros((len(order.node), self._n_needs), np.uint64)
        word, bit = np.divmod(order.bit, 64)
        bits[np.arange(len(bits)), word] = np.uint64(1) << bit.astype(np.uint64)
        self._node_bits = model("node_bits", bits.view(np.int64).reshape(-1))
        self._side_leaf = table("side_leaf", order.side_leaf.reshape(-1))
        self._leaf_distinct = table("leaf_distinct", order.distinct)
        # Of the background rows; these stand for none, see ``background_tables``.
        self._groups = model("groups", np.zeros(1, np.int64))
        self._members = model("members", np.zeros(WORDS_GIVEN, np.int64))
        self._given = model("given", np.zeros(4 * len(order.node), np.int64))
        self._scores = model("leaf_scores", np.zeros(1))
        #: All bits for the children of a node that are walked, or 0.
        self._walked = model("walked", np.full(2 * len(order.node), -1))
        #: Counts of features: bytes where these are enough.
        self._few = Vec(lir.U8, 64) if most < 256 else Vec(lir.U16, 32)
        areas = 2 * int(order.depth.max(initial=0)) + 3
        self._states = self.alloc("states", I64, areas * self._list)
        self._counts = self.alloc("counts", I64, areas)
        self._losses = self.alloc("losses", F64, areas * BLOCK)
        self._failed = self.alloc("failed", self._few.element, areas * BLOCK)
        #: A row's gains, in whole vectors.
        self._row_gains = -(-max(1, most) // self.lanes) * self.lanes
        self._gains = self.alloc("gains", F64, BLOCK * self._row_gains)
        self._numbers = self.alloc("state_rows", F64, MOST_STATES)
        self._each = self.alloc("state_parts", F64, MOST_STATES)
        self._weight_rows = self.alloc("state_weights", I64, MOST_STATES)

    # ------------------------------------------------------------ the tree

    def add_tree(self, tree: Value, sums: Buffer) -> None:
        numbers = self._numbers_of(tree)
        first, last = numbers["first"], numbers["last"]
        self.pass_tests(first, last)
        self._clear(self._gains, b.const(0), BLOCK * self._row_gains)
        with (
            b.loop(self._n_held, hint="output") as output,
            b.loop(self._groups[0], hint="group") as group,
        ):
            self._start_at_root(group, first)
            self._walk(first, last, group, output, sums)
        self.write_if_last(numbers["output"], sums)

    def _clear(self, buffer: Buffer, first: Value, size: int) -> None:
        with b.loop(0, size, self.lanes, hint="clear") as i:
            buffer[first + i] = b.const(0.0, self.vec)

    def _start_at_root(self, group: Value, root: Value) -> None:
        some = (1 << (self._count & 63)) - 1
        fields = [b.select(self._count >= 64, b.const(-1), some)]
        fields += [self._members[group * WORDS_GIVEN + k] for k in range(WORDS_GIVEN)]
        fields += [b.const(0)] * self._n_needs
        for k, value in enumerate(fields):
            self._states[k * MOST_STATES] = value
        self._counts[0] = (self._walked[root * 2] | self._walked[root * 2 + 1]) & 1
        for first in range(0, BLOCK, self._few.lanes):
            self._failed[first] = b.const(0, self._few)

    def _walk(
        self, first: Value, last: Value, group: Value, output: Value, sums: Buffer
    ) -> None:
        end, event = last * 2, [first * 2]
        with b.repeat(lambda: event[0] < end, event):
            number = self.number(self._events, event[0])
            n = number >> 1
            area = self.number(self._node_area, n)
            count = self._counts[area]
            enters = (number & 1).eq(0)
            none = enters & count.eq(0)

            def step() -> None:
                below = self.number(self._node_below, n)
                node = AreaNode(n, self.edge(n - first), area, below)
                b.if_(
                    enters,
                    lambda: self._down(node, count, group, output),
                    lambda: self._up(node, output, sums),
                )

            b.if_(none, lambda: None, step)
            past = event[0] + self.number(self._node_skip, n)
            event[0] = b.select(none, past, event[0] + 1)

    # ------------------------------------------------------------ a node

    def _down(self, node: AreaNode, count: Value, group: Value, output: Value) -> None:
        n, below, needs = node.n, node.below, range(self._n_needs)
        passed = [self.passed[node.edge + k * self.line, I64] for k in (0, 1)]
        at = (group * (2 * len(self._order.node)) + n * 2) * WORDS_GIVEN
        words = [self._given[at + k] for k in range(2 * WORDS_GIVEN)]
        given = words[:WORDS_GIVEN], words[WORDS_GIVEN:]
        bits = [self._node_bits[n * self._n_needs + k] for k in needs]
        source, left = node.area * self._list, below * self._list
        targets = [left, left + self._list]
        zero, iota = b.const(0, STATES), b.iota(I64, LANES)

        ends = [b.const(0), b.const(0)]
        # All that pass first: then their order does not depend on other rows.
        for fails in (False, True):
            with b.loop(0, count, LANES, carry=ends, hint="state") as i:
                held = i + iota < count
                rows, *rest = self._fields_of(source + i, range(self._fields))
                for side, end in enumerate(ends):
                    mine, keep, z = rows, held, given[side]
                    sets, needed = rest[:WORDS_GIVEN], rest[WORDS_GIVEN:]
                    if fails:
                        z = [~word for word in z]
                        mine = rows & passed[side]
                        keep = keep & mine.ne(zero)
                        needed = [x | y for x, y in zip(needed, bits, strict=True)]
                    sets = [x & y for x, y in zip(sets, z, strict=True)]
                    keep = keep & reduce(or_, sets).ne(zero)
                    to = targets[side] + end
                    for k, field in enumerate([mine, *sets, *needed]):
                        self._states[to + k * MOST_STATES] = b.compress(field, keep)
                    ends[side] = end + b.popcount(b.mask_bits(keep, U32).to(I64))
        for side, end in enumerate(ends):
            self._counts[below + side] = end & self._walked[n * 2 + side]
        self._count_failed(node)
        with b.loop(2, hint="side") as child:
            leaf = self.number(self._side_leaf, n * 2 + child)
            area = below + child
            count = self._counts[area]
            none = count.eq(0)
            with b.when(none | (leaf >= 0)):
                self._clear(self._losses, area * BLOCK, BLOCK)
                with b.when(~none):
                    self._leaf(leaf, area, count, output)

    def _fields_of(self, at: Value, fields: Iterable[int]) -> Iterator[Value]:
        return (self._states[at + k * MOST_STATES, STATES] for k in fields)

    def _count_failed(self, node: AreaNode) -> None:
        """Count failed features for both children: passed ones now fail on one side."""
        few = self._few
        word = {64: I64, 32: U32}[few.lanes]
        for row in range(0, BLOCK, few.lanes):
            failed = self._failed[node.area * BLOCK + row, few]
            for side in (0, 1):
                other = node.edge + ((1 - side) * self.line + row // 8)
                mask = b.reinterpret(self.passed[other, word], Mask(few.lanes))
                more = b.select(mask, b.const(1, few), 0)
                to = (node.below + side) * BLOCK + row
                self._failed[to] = failed + more

    def _up(self, node: AreaNode, output: Value, sums: Buffer) -> None:
        lanes = self.lanes
        gains = self.number(self._node_gains, node.n)
        is_first = gains >= 0
        start = output * (self._t.forest.n_features * BLOCK)
        start = start + self.number(self._node_feature, node.n)
        below, here = node.below * BLOCK, node.area * BLOCK
        iota = b.iota(I64, lanes)
        with b.loop(self._n_vectors, hint="v") as v:
            row = v * lanes
            place, source = start + row, below + row
            left = self._losses[source, self.vec]
            right = self._losses[source + BLOCK, self.vec]
            self._losses[here + row] = left + right
            edge = node.edge + v * (lanes // 8)
            loss = b.select(self.mask(edge + self.line), left, 0.0)
            loss = loss + b.select(self.mask(edge), right, 0.0)
            total = sums[place] = sums[place, self.vec] - loss
            with b.when(is_first):
                column = (iota + row) * self._row_gains + gains
                more = self._gains[column]
                self._gains[column] = b.const(0.0, self.vec)
                sums[place] = total + more

    # ------------------------------------------------------------ a leaf

    def _leaf(self, leaf: Value, area: Value, count: Value, output: Value) -> None:
        value = self._scores[leaf * self._t.forest.leaf_value.shape[1] + output]
        source, rows = area * self._list, area * BLOCK
        distinct = self.number(self._leaf_distinct, leaf)
        with b.loop(0, count, LANES, hint="state") as i:
            self._weigh(source + i, i, value)
        most = self._row_gains // self.lanes
        ways: list[Gains] = [partial(self._gain, n) for n in range(1, most + 1)]
        if most > UNROLLED:
            ways = [partial(self._gain_in_loops, distinct)]
        cases = [partial(self._turns, source, rows, count, way) for way in ways]
        b.switch((distinct - 1) // self.lanes, cases)

    def _weigh(self, at: Value, i: Value, value: Value) -> None:

        def ones(first: int, last: int) -> Value:
            return reduce(add, map(b.popcount, self._fields_of(at, range(first, last))))

        number = ones(1, 1 + WORDS_GIVEN).to(F64) * value
        needs = ones(1 + WORDS_GIVEN, self._fields)
        at_least = needs.max(1)
        self._numbers[i] = number
        self._each[i] = number / at_least.to(F64)
        self._weight_rows[i] = needs * (2 * self._entries)

    def _turns(self, source: Value, rows: Value, count: Value, gains: Gains) -> None:
        """Take one row of one state a turn, so that no branch depends on the rows."""

        def rows_of(i: Value) -> Value:
            return self._states[source + i]

        carried = [b.const(0), rows_of(b.const(0)), rows_of(b.const(1))]
        with b.repeat(lambda: carried[0] < count, carried):
            i, word, following = carried
            row = b.count_zeros(word)
            losses = rows + row
            failed = self._failed[losses].to(I64)
            at = self._weight_rows[i] + failed
            weight = self._weights[at]
            lost = self._losses[losses]
            more = self._weights[at + self._entries] * self._numbers[i]
            self._losses[losses] = lost + more
            gain = weight * self._each[i]
            needs = [
                self._states[source + i + k * MOST_STATES]
                for k in range(1 + WORDS_GIVEN, self._fields)
            ]
            gains(needs, b.splat(gain, self.lanes), row * self._row_gains)
            left = word & (word - 1)
            done = left.eq(0)
            i = i + done.to(I64)
            carried[:] = [i, b.select(done, following, left), rows_of(i + 1)]

    def _gain(self, n: int, needs: list[Value], gain: Value, start: Value) -> None:
        for k in range(n):
            self._gain_vector(needs[0], b.const(k * self.lanes), gain, start)

    def _gain_in_loops(
        self, distinct: Value, needs: list[Value], gain: Value, start: Value
    ) -> None:
        for word, need in enumerate(needs):
            held = (distinct - 64 * word).min(64)
            with b.loop(0, held, self.lanes, hint="k") as k:
                self._gain_vector(need, k, gain, start + 64 * word)

    def _gain_vector(self, need: Value, k: Value, gain: Value, start: Value) -> None:
        mask = b.reinterpret((need >> k).to(self._bits), Mask(self.lanes))
        at = start + k
        total = self._gains[at, self.vec]
        # No masked store: a load would wait for it.
        self._gains[at] = total + b.select(mask, gain, 0.0)
