"""Emits the walk of interventional values for blocks of rows, a bit or a lane each.

A leaf of value v is reached if known features follow the row x and the others a
background row b. With a features that only x passes and c that only b passes, and none
that neither passes, the former get v (a-1)! c! / (a+c)! and the latter
-v a! (c-1)! / (a+c)! (Lundberg et al. 2020, Algorithm 3).

On the way down, background rows that fail the same features of the path are one *state*:

    rows   a bit for each x of the block that passes all of ``need``
    given  a bit for each b of a group
    need   a bit for each feature of the path that these b fail

The root has one state. An edge with feature i, where o and z have the bits of the x and b
that pass the tests of i up to here, gives each of its states two, without those that
have lost all their bits:

    rows, given & z, need        rows & o, given & ~z, need | i

At a leaf, a and the number of b are counts of bits, and c is the number of the path's
features that x fails: for all b, because x passes what they fail.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from skforge.compiler.binning.rows import BlockRows
from skforge.compiler.binning.rules import Rules
from skforge.compiler.ir.lir.nodes import (
    F64,
    I32,
    I64,
    U32,
    Buffer,
    Mask,
    Value,
    Vec,
)
from skforge.compiler.layouts.background.game import Game
from skforge.compiler.layouts.background.given import GROUP
from skforge.compiler.layouts.contributions.block import TreeBlock, Trees

#: States of a vector.
LANES = 8

#: States of a list: every one has a background row of its own, and stores are whole.
MOST_STATES = GROUP + LANES

#: Words of a set of background rows.
WORDS_GIVEN = GROUP // 64

#: Most vectors of weights that are looked up in registers.
MOST_TABLES = 4

STATES = Vec(I64, LANES)


class BackgroundCode(TreeBlock):
    """Emits the code for one block of rows."""

    def __init__(
        self, rules: Rules, game: Game, trees: Trees, rows: BlockRows, block: int
    ) -> None:
        super().__init__(rules, trees, rows, block)
        b, lanes = self.b, self._lanes
        self._game = game
        model, table = self._model, self._table
        most = game.most_distinct
        self._n_needs = max(1, -(-most // 64))
        self._fields = 1 + WORDS_GIVEN + self._n_needs
        #: Elements of a list of states.
        self._list = self._fields * MOST_STATES
        needed = -(-(most + 1) // lanes)
        self._n_tables = 1 << (needed - 1).bit_length()
        self._entries = self._n_tables * lanes
        dtype = trees.forest.leaf_value.dtype
        weights = game.weights(self._entries).astype(dtype)
        self._weights = model("weights", weights.reshape(-1))
        self._node_area = table("node_area", game.area)
        depth = (game.area + 1) // 2
        self._node_below = table("node_below", 2 * depth + 1)
        self._node_skip = table("node_skip", game.skip)
        bits = np.zeros((len(game.node), self._n_needs), np.uint64)
        at = np.arange(len(game.node)), game.bit // 64
        bits[at] = np.uint64(1) << (game.bit % 64).astype(np.uint64)
        self._node_bits = model("node_bits", bits.view(np.int64).reshape(-1))
        self._side_leaf = table("side_leaf", game.side_leaf.reshape(-1))
        self._leaf_start = table("leaf_start", game.leaf_start)
        self._leaf_edge = table("leaf_edge", game.leaf_edge * (block // 8))
        self._leaf_slot = table("leaf_slot", game.leaf_slot * block)
        # Of the background rows; these stand for none, see ``background_tables``.
        self._groups = model("groups", np.zeros(1, np.int64))
        self._members = model("members", np.zeros(WORDS_GIVEN, np.int64))
        self._given = model("given", np.zeros(4 * len(game.node), np.int64))
        self._scores = model("leaf_scores", np.zeros(1, dtype))
        self._index = Vec(I32 if lanes == 16 else I64, lanes)
        slots = max(1, int(np.diff(trees.feature_start).max(initial=0)))
        self._own_size = slots * block

        def scratch(name: str, size: int, vec: Vec = self._vec) -> Buffer:
            return b.alloc(name, vec.element, b.const(size), alignment=64)

        self._states = scratch("states", game.n_areas * self._list, STATES)
        self._counts = scratch("counts", game.n_areas, STATES)
        self._own = scratch("tree_sums", self._n_held * self._own_size)
        self._gains = scratch("leaf_sums", max(1, most) * block)
        self._losses = scratch("leaf_losses", block)
        self._failed = scratch("failed", block, self._index)

    # ------------------------------------------------------------ the tree

    def add_tree(self, tree: Value, sums: Buffer) -> None:
        """Add the contributions of the tree at a position."""
        b = self.b
        at = {name: self._number(table, tree) for name, table in self._tree.items()}
        self._pass_tests(at["first"], at["last"])
        held = b.sub(at["last_feature"], at["feature"])
        self._each_sum(held, lambda f, own, sum_: self._clear(own))
        with b.loop(b.load(self._groups, b.const(0)), hint="group") as group:
            self._start_at_root(group)
            self._walk(at["first"], at["last"], group)

        def add(f: Value, own: Value, sum_: Value) -> None:
            column = self._number(self._features, b.add(at["feature"], f))
            to = b.add(sum_, column)
            total = b.load(sums, to, Vec(F64, self._lanes))
            more = b.convert(b.load(self._own, own, self._vec), F64)
            b.store(sums, to, b.binary("add", total, more))

        self._each_sum(held, add)
        self._write_if_last(at["output"], sums)

    def _each_sum(
        self, held: Value, body: Callable[[Value, Value, Value], None]
    ) -> None:
        """Call ``body`` for each output, feature of a tree, and vector of rows.

        It gets the feature, the place of the tree's sum, and that of the block's sums of
        the first feature.
        """
        b = self.b
        width = self._t.forest.n_features * self._block
        with (
            b.loop(self._n_held, hint="output") as output,
            b.loop(held, hint="f") as f,
            b.loop(self._n_vectors, hint="v") as v,
        ):
            row = b.mul(v, self._lanes)
            own = b.add(b.mul(output, self._own_size), b.mul(f, self._block))
            body(f, b.add(own, row), b.add(b.mul(output, width), row))

    def _clear(self, at: Value) -> None:
        self.b.store(self._own, at, self.b.const(0.0, self._vec))

    def _start_at_root(self, group: Value) -> None:
        """Make the root's state: all rows of the block, all of the group, no need."""
        b = self.b
        every = b.const(-1)
        some = b.sub(b.binary("shl", b.const(1), b.binary("and", self._count, 63)), 1)
        full = b.compare("ge", self._count, 64)
        fields = [b.select(full, every, some)]
        for k in range(WORDS_GIVEN):
            at = b.add(b.mul(group, WORDS_GIVEN), k)
            fields.append(b.load(self._members, at))
        fields += [b.const(0)] * self._n_needs
        for k, value in enumerate(fields):
            b.store(self._states, b.const(k * MOST_STATES), value)
        b.store(self._counts, b.const(0), b.const(1))

    def _walk(self, first: Value, last: Value, group: Value) -> None:
        """Visit the inner nodes of a tree; skip the subtrees without states."""
        b = self.b

        def step(carried: tuple[Value, ...]) -> list[Value]:
            n = carried[0]
            area = self._number(self._node_area, n)
            count = b.load(self._counts, area)
            some = b.compare("gt", count, 0)
            with b.when(some):
                self._node(n, b.sub(n, first), area, count, group)
            return [b.select(some, b.add(n, 1), self._number(self._node_skip, n))]

        b.while_([first], lambda c: b.compare("lt", c[0], last), step)

    # ------------------------------------------------------------ a node

    def _node(
        self, n: Value, own: Value, area: Value, count: Value, group: Value
    ) -> None:
        """Split the states of a node to those of its children; add its leaves."""
        b, size = self.b, self._block // 8
        at = b.add(b.mul(own, 2 * size), size)
        passed = [b.load(self._passed, b.add(at, k * size), I64) for k in range(2)]
        n_edges = 2 * len(self._game.node)
        edge = b.add(b.mul(group, n_edges), b.mul(n, 2))
        given = [
            [
                b.load(self._given, b.add(b.mul(edge, WORDS_GIVEN), at))
                for at in range(side * WORDS_GIVEN, (side + 1) * WORDS_GIVEN)
            ]
            for side in range(2)
        ]
        bits = [
            b.load(self._node_bits, b.add(b.mul(n, self._n_needs), k))
            for k in range(self._n_needs)
        ]
        below = self._number(self._node_below, n)
        source = b.mul(area, self._list)
        left = b.mul(below, self._list)
        targets = [left, b.add(left, self._list)]
        zero = b.const(0, STATES)
        iota = b.iota(I64, LANES)

        def split(fails: bool, ends: tuple[Value, ...]) -> tuple[Value, ...]:
            def states(i: Value, ends: tuple[Value, ...]) -> list[Value]:
                here = b.add(source, i)
                held = b.compare("lt", b.add(i, iota), count)
                rows, *rest = [
                    b.load(self._states, b.add(here, k * MOST_STATES), STATES)
                    for k in range(self._fields)
                ]
                sets, needs = rest[:WORDS_GIVEN], rest[WORDS_GIVEN:]
                made = []
                for side, end in enumerate(ends):
                    mine, keep, more = rows, held, needs
                    z = given[side]
                    if fails:
                        z = [b.invert(word) for word in z]
                        mine = b.binary("and", rows, passed[side])
                        keep = b.binary("and", keep, b.compare("ne", mine, zero))
                        more = [
                            b.binary("or", need, bit)
                            for need, bit in zip(needs, bits, strict=True)
                        ]
                    parts = [
                        b.binary("and", x, y) for x, y in zip(sets, z, strict=True)
                    ]
                    some = parts[0]
                    for part in parts[1:]:
                        some = b.binary("or", some, part)
                    keep = b.binary("and", keep, b.compare("ne", some, zero))
                    to = b.add(targets[side], end)
                    for k, field in enumerate([mine, *parts, *more]):
                        packed = b.compress(field, keep)
                        b.store(self._states, b.add(to, k * MOST_STATES), packed)
                    number = b.convert(b.mask_bits(keep, U32), I64)
                    made.append(b.add(end, b.popcount(number)))
                return made

            return b.for_(0, count, LANES, states, ends, hint="state")

        # All that pass first: then their order does not depend on other rows.
        ends = split(True, split(False, (b.const(0), b.const(0))))
        for side, end in enumerate(ends):
            b.store(self._counts, b.add(below, side), end)
        with b.loop(2, hint="side") as side:
            leaf = self._number(self._side_leaf, b.add(b.mul(n, 2), side))
            area = b.add(below, side)
            count = b.load(self._counts, area)
            some = b.compare("gt", count, 0)
            with b.when(b.binary("and", some, b.compare("ge", leaf, 0))):
                self._leaf(leaf, b.mul(area, self._list), count)

    # ------------------------------------------------------------ a leaf

    def _leaf(self, leaf: Value, source: Value, count: Value) -> None:
        """Add what a leaf gives to the features of its path."""
        b = self.b
        first = self._number(self._leaf_start, leaf)
        last = self._number(self._leaf_start, b.add(leaf, 1))
        self._count_failed(first, last)
        with b.loop(count, hint="state") as i:
            self._state(b.add(source, i))
        with b.loop(self._n_vectors, hint="v") as v:
            self._share(leaf, first, last, v)

    def _count_failed(self, first: Value, last: Value) -> None:
        """Count the features that each row fails, and clear the leaf's sums."""
        b, lanes = self.b, self._lanes
        zero, one = b.const(0, self._index), b.const(1, self._index)
        clear = b.const(0.0, self._vec)
        with b.loop(self._n_vectors, hint="v") as v:
            row = b.mul(v, lanes)

            def feature(k: Value, carried: tuple[Value, ...]) -> list[Value]:
                to = b.add(b.mul(b.sub(k, first), self._block), row)
                b.store(self._gains, to, clear)
                edge = self._number(self._leaf_edge, k)
                mask = self._mask(b.add(edge, b.mul(v, lanes // 8)))
                return [b.binary("add", carried[0], b.select(mask, zero, one))]

            (failed,) = b.for_(first, last, 1, feature, [zero])
            b.store(self._failed, row, failed)
            b.store(self._losses, row, clear)

    def _state(self, at: Value) -> None:
        """Add the weights of a state: to its needs, and to what its rows fail."""
        b, lanes = self.b, self._lanes
        rows, *rest = [
            b.load(self._states, b.add(at, k * MOST_STATES))
            for k in range(self._fields)
        ]
        sets, needs = rest[:WORDS_GIVEN], rest[WORDS_GIVEN:]

        def ones(words: list[Value]) -> Value:
            total = b.popcount(words[0])
            for word in words[1:]:
                total = b.add(total, b.popcount(word))
            return total

        number = b.convert(ones(sets), self._scalar)
        n_needs = ones(needs)
        each = b.binary("div", number, b.convert(n_needs, self._scalar))
        row = b.mul(n_needs, self._entries)
        zero = b.const(0.0, self._vec)
        lane_bits = b.const((1 << lanes) - 1)

        def part(carried: tuple[Value, ...]) -> list[Value]:
            word = carried[0]
            v = b.binary("div", b.count_zeros(word), lanes)
            shift = b.mul(v, lanes)
            bits = b.binary("and", b.binary("shr", word, shift), lane_bits)
            mask = b.reinterpret(b.convert(bits, self._bits), Mask(lanes))
            weight = b.select(mask, self._weight(row, shift), zero)
            lost = b.load(self._losses, shift, self._vec)
            more = b.binary("mul", weight, b.splat(number, lanes))
            b.store(self._losses, shift, b.binary("add", lost, more))
            gain = b.binary("mul", weight, b.splat(each, lanes))
            for k, need in enumerate(needs):
                self._gain(need, gain, b.add(shift, 64 * k * self._block))
            rest = b.binary("shl", lane_bits, shift)
            return [b.binary("and", word, b.invert(rest))]

        b.while_([rows], lambda c: b.compare("ne", c[0], 0), part)

    def _weight(self, row: Value, shift: Value) -> Value:
        """Return a! c! / (a + c)! for a vector of rows."""
        b, lanes = self.b, self._lanes
        failed = b.load(self._failed, shift, self._index)
        if self._n_tables > MOST_TABLES:
            return b.load(self._weights, b.binary("add", failed, self._lane_row(row)))
        tables = [
            b.load(self._weights, b.add(row, k * lanes), self._vec)
            for k in range(self._n_tables)
        ]
        index = b.bitcast(failed, U32) if lanes == 16 else failed
        return b.permute(tables, index)

    def _lane_row(self, row: Value) -> Value:
        return self.b.splat(self.b.convert(row, self._index.element), self._lanes)

    def _gain(self, need: Value, gain: Value, start: Value) -> None:
        """Add to the sums of the features in a word of needs."""
        b = self.b

        def feature(carried: tuple[Value, ...]) -> list[Value]:
            word = carried[0]
            at = b.add(b.mul(b.count_zeros(word), self._block), start)
            total = b.load(self._gains, at, self._vec)
            b.store(self._gains, at, b.binary("add", total, gain))
            return [b.binary("and", word, b.sub(word, 1))]

        b.while_([need], lambda c: b.compare("ne", c[0], 0), feature)

    def _share(self, leaf: Value, first: Value, last: Value, v: Value) -> None:
        """Add a leaf's sums for a vector of rows, times its values, to the tree's."""
        b, lanes = self.b, self._lanes
        row = b.mul(v, lanes)
        failed = b.load(self._failed, row, self._index)
        failed = b.binary("max", failed, b.const(1, self._index))
        lost = b.load(self._losses, row, self._vec)
        lost = b.binary("div", lost, b.convert(failed, self._scalar))
        lost = b.binary("sub", b.const(0.0, self._vec), lost)
        n_values = self._t.forest.leaf_value.shape[1]
        with b.loop(first, last, hint="k") as k:
            edge = self._number(self._leaf_edge, k)
            mask = self._mask(b.add(edge, b.mul(v, lanes // 8)))
            at = b.add(b.mul(b.sub(k, first), self._block), row)
            total = b.select(mask, b.load(self._gains, at, self._vec), lost)
            slot = b.add(self._number(self._leaf_slot, k), row)
            with b.loop(n_values, hint="output") as output:
                value = b.load(self._scores, b.add(b.mul(leaf, n_values), output))
                to = b.add(b.mul(output, self._own_size), slot)
                own = b.load(self._own, to, self._vec)
                more = b.binary("mul", total, b.splat(value, lanes))
                b.store(self._own, to, b.binary("add", own, more))
