"""What rows do at the edges of nodes: rows as lanes, or points as lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I64, U8, U32, Value, Vec
from skforge.compiler.layouts.blocks.tree_block import WORDS
from skforge.compiler.layouts.contributions.quadrature import LEFT, RIGHT, WEIGHTS
from skforge.compiler.layouts.contributions.subtrees import CASES, FEW
from skforge.compiler.layouts.contributions.walk import (
    ContributionCode,
    Edges,
    Walk,
    WalkNode,
)


class RowsAsLanes(Edges):
    def points(self, walk: Walk, n: int) -> Walk:
        return replace(walk, points=n, vec=self.c.vec)

    def start(self, tree: dict[str, Value]) -> None:
        self.c.pass_tests(tree["first"], tree["last"])
        if self.c.looks_up:
            self._note_cases(tree)

    def node(self, walk: Walk, i: Value) -> WalkNode:
        c, number, each = self.c, i - walk.tree["first"], self.c.lanes // 8
        at = c.edge(number) + walk.vector * each
        places = [at + k * each for k in range(c.together)]
        passed = [(c.mask(p), c.mask(p + c.line)) for p in places]
        slot, below = (c.number(t, i) for t in (c.node_slot, c.node_left))
        constants = walk.constants + number * (c.d.rows * walk.points)
        return WalkNode(i, slot, below, constants, passed)

    def factors(self, walk: Walk, node: WalkNode, side: int, q: int) -> Iterator[Value]:
        rows = range(LEFT, RIGHT) if side == 0 else range(RIGHT, WEIGHTS)
        a = [self.c.constant(walk, node.constants, row, q) for row in rows]
        for passed in node.passed:
            other = b.select(passed[1 - side], a[1], a[2])
            yield b.select(passed[side], a[0], other)

    def weights(
        self, walk: Walk, node: WalkNode, q: int
    ) -> Callable[[int, int], Value]:
        rows = range(WEIGHTS, WEIGHTS + 3)
        w = [self.c.constant(walk, node.constants, row, q) for row in rows]
        return lambda side, k: b.select(node.passed[k][side], w[side], w[2])

    def total(self, node: WalkNode, k: int, terms: list[Value]) -> Value:
        """Add halves of a power of two: the order of lanes in ``PointsAsLanes``."""
        terms = list(terms)
        while len(terms) > 1:
            half = 1 << (len(terms) - 1).bit_length() - 1
            for q, term in enumerate(terms[half:]):
                terms[q] = terms[q] + term
            del terms[half:]
        if not node.passed:
            return terms[0]
        left, right = node.passed[k]
        return b.select(left | right, terms[0], 0.0)

    # ------------------------------------------------------------ subtrees

    def _note_cases(self, tree: dict[str, Value]) -> None:
        c, lanes = self.c, min(self.c.block, 64)
        word, mask = WORDS[lanes], lir.Mask(lanes)
        none = b.splat(b.const(0, U8), lanes)
        with (
            b.loop(tree["subtree"], tree["last_subtree"], hint="subtree") as number,
            b.loop(0, c.block, lanes, hint="r") as r,
        ):
            case = [none]
            first, last = c.ends_of(number)
            with b.loop(first, last, carry=case, hint="n") as n:
                at = c.edge(n - tree["first"]) + (r >> 3)
                left, right = (c.passed[at + k * c.line, word] for k in (0, 1))
                for bits, adds in zip((right, ~(left | right)), c.adds, strict=True):
                    more = b.splat(adds[n], lanes)
                    is_set = b.reinterpret(bits, mask)
                    case[0] = case[0] + b.select(is_set, more, none)
            c.cases[(number - tree["subtree"]) * c.block + r] = case[0]

    def look_up(self, walk: Walk, few: Value, more: Value, end: Value) -> None:
        for first, last, size in ((few, more, FEW), (more, end, CASES)):
            if size in self.c.sizes:
                with b.loop(first, last, hint="subtree") as number:
                    self._look_up(walk, number, size)

    def _look_up(self, walk: Walk, subtree: Value, size: int) -> None:
        c, numbers_at = self.c, self._numbers_of(walk, subtree, size)
        slot = c.number(c.subtree_slot, subtree)
        come = [c.slot(walk, slot, q) for q in range(walk.points)]
        first, last = c.ends_of(subtree)
        place = walk.tables + c.subtree_place[subtree]

        def looked_up(at: Value, q: int) -> Iterator[Value]:
            for x, number in zip(come[q], numbers_at(at + q * size), strict=True):
                yield x * number

        for q in range(walk.points):
            for k, x in enumerate(looked_up(place, q)):
                c.slots[c.slot_index(walk, slot, q, k)] = x
        with b.loop(first, last, hint="n") as n:
            at = place + (n - first + 1) * (walk.points * size)
            of_points = [looked_up(at, q) for q in range(walk.points)]
            terms = [list(of_vector) for of_vector in zip(*of_points, strict=True)]
            number = n - walk.tree["first"]
            constants = walk.constants + number * (c.d.rows * walk.points)
            c.add_terms(walk, WalkNode(n, number, number, constants), terms)

    def _numbers_of(
        self, walk: Walk, subtree: Value, size: int
    ) -> Callable[[Value], Iterator[Value]]:
        """Return what yields the numbers of each vector's cases from a table's row."""
        c, lanes, number = self.c, self.c.lanes, subtree - walk.tree["subtree"]
        own = number * c.block + walk.vector * lanes
        kind = U32 if c.scalar.bytes == 4 else I64
        places = (own + k * lanes for k in range(c.together))
        cases = [c.cases[place, Vec(U8, lanes)].to(kind) for place in places]
        vec = Vec(c.scalar, min(lanes, size))

        def numbers(at: Value) -> Iterator[Value]:
            registers = [c.tables[at + k, vec] for k in range(0, size, vec.lanes)]
            for case in cases:
                yield b.permute(registers, case)

        return numbers


def case_of(
    c: ContributionCode,
    first: Value,
    last: Value,
    sides: Callable[[Value], tuple[Value, Value]],
) -> Value:
    """Return the case of a single row at a subtree; ``sides`` tells what it passed."""
    one, case = b.const(1, U8), [b.const(0, U8)]
    with b.loop(first, last, carry=case, hint="n") as n:
        left, right = sides(n)
        by_right, by_above = (adds[n] for adds in c.adds)
        case[0] = case[0] + right * by_right
        case[0] = case[0] + (one - left - right) * by_above
    return case[0].to(I64)


class PointsAsLanes(Edges):
    """The edges of a single row, with points as lanes.

    Constants come in four rows for the side that the row takes: factors of both edges,
    then weights of both. On the way down the walk records where they are.
    """

    def __init__(self, code: ContributionCode) -> None:
        super().__init__(code)
        most = int(np.diff(code.d.order.start).max(initial=0))
        self._records = code.alloc("records", I64, max(1, most))
        self._found = code.alloc("found", I64, max(1, most))

    def points(self, walk: Walk, n: int) -> Walk:
        return replace(walk, points=1, vec=Vec(self.c.scalar, n))

    def start(self, tree: dict[str, Value]) -> None:
        self.c.pass_root()

    def enter(self, walk: Walk, first: Value, last: Value) -> None:
        """Find the constants of nodes first, so that they come meanwhile."""
        start = walk.tree["first"]
        with b.loop(first, last, hint="enter") as i:
            left, right = self.c.pass_node(i, start)
            # The side that the row takes, or 2 if it left the feature's tests above.
            side = (b.const(2, U8) - (left + left + right)).to(I64)
            at = walk.constants + ((i - start) * 3 + side) * (4 * walk.vec.lanes)
            self._records[i - start] = at
            b.prefetch(self.c.constants, at)

    def node(self, walk: Walk, i: Value) -> WalkNode:
        slot, below = (
            self.c.number(t, i) for t in (self.c.node_slot, self.c.node_left)
        )
        return WalkNode(i, slot, below, self._records[i - walk.tree["first"]])

    def factors(self, walk: Walk, node: WalkNode, side: int, q: int) -> Iterator[Value]:
        yield self._constants(walk, node, side)

    def weights(
        self, walk: Walk, node: WalkNode, q: int
    ) -> Callable[[int, int], Value]:
        return lambda side, k: self._constants(walk, node, 2 + side)

    def _constants(self, walk: Walk, node: WalkNode, row: int) -> Value:
        return self.c.constants[node.constants + row * walk.vec.lanes, walk.vec]

    def total(self, node: WalkNode, k: int, terms: list[Value]) -> Value:
        (total,) = terms
        while total.type.lanes > 1:
            half = total.type.lanes // 2
            low = b.shuffle(total, total, range(half))
            total = low + b.shuffle(total, total, range(half, 2 * half))
        return b.extract(total, 0)

    def look_up(self, walk: Walk, few: Value, more: Value, end: Value) -> None:
        """Find the cases of subtrees first, so that their numbers come meanwhile."""
        c, lanes = self.c, walk.vec.lanes
        with b.loop(few, end, hint="subtree") as number:
            begin, last = c.ends_of(number)
            case = case_of(c, begin, last, lambda n: c.pass_node(n, walk.tree["first"]))
            size = (last - begin + 1) * lanes
            at = walk.tables + c.subtree_place[number] + case * size
            self._found[number - walk.tree["subtree"]] = at
            b.prefetch(c.tables, at)
        with b.loop(few, end, hint="subtree") as number:
            begin, last = c.ends_of(number)
            slot = c.number(c.subtree_slot, number)
            at = self._found[number - walk.tree["subtree"]]
            (come,) = c.slot(walk, slot, 0)
            c.slots[slot] = come * c.tables[at, walk.vec]
            with b.loop(begin, last, hint="n") as n:
                row = c.tables[at + (n - begin + 1) * lanes, walk.vec]
                c.add_terms(walk, WalkNode(n, slot, slot, at), [[come * row]])
