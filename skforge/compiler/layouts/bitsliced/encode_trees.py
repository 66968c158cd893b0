"""Encodes unbalanced trees as short lists of bit operations.

Each leaf gets a code of a few bits, with don't-cares, chosen so that each bit is a
plane that is computed once. Pick a subtree ``c``; let ``s`` be the conjunction of the
tests on the path to it, ``A`` the subtree and ``B`` the tree without it (its parent
contracted). Plane 0 is ``s``, or its complement if the path first goes left. It is
computed from the root on, so that paths share their beginnings. The planes of ``A`` and
of ``B`` take different places while there are enough places; this is free, since
neither cares about the other's planes. The remaining planes share places, at one
operation a plane. With one plane more than the leaves need, a tree takes 1 to 1.3
operations a node; numbering the leaves in order takes 2.8.

Trees are encoded many at a time: all are cut (``cut_trees.py``); then planes are merged
from the smallest parts up, and codes are found from the trees down.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Bools, Int32s, Int64s
from skforge.compiler.layouts.bitsliced.cut_trees import (
    Step,
    TreeParts,
    cut_trees,
    in_preorder,
)
from skforge.forest.forest import Forest

#: Odd factors of the halves of a key; products modulo 2**64 spread over the high bits.
_FACTORS = np.array([[0x9E3779B97F4A7C15], [0xC2B2AE3D27D4EB4F]], np.uint64)


class Muxes:
    """Operations ``target = select ? a : b`` on lines; number i writes ``first + i``.

    There is room for ``expected`` of them at first. Each has the time of its first use.
    """

    def __init__(self, zero: int, one: int, first: int, expected: int) -> None:
        self.zero, self.one, self.first = zero, one, first
        self._count = 0
        self._keys = np.zeros((2, 0), np.int64)  # tree and select; a and b
        self._level = np.zeros(0, np.int16)
        self._time = np.zeros(0, np.int64)
        self._table = np.zeros(0, np.int64)  # open addressing: numbers by hash, or -1
        self._reserve(expected)

    @property
    def trees(self) -> Int64s:
        return self._keys[0, : self._count] >> 32

    @property
    def operands(self) -> tuple[Int64s, ...]:
        one, two = self._keys[:, : self._count]
        return one & 0xFFFFFFFF, two >> 32, two & 0xFFFFFFFF

    @property
    def levels(self) -> NDArray[np.int16]:
        """One more than the level of the deepest operation that each reads."""
        return self._level[: self._count]

    @property
    def order(self) -> Int64s:
        """The operations by tree, then by time; none reads a later one."""
        return np.lexsort((self._time[: self._count], self.trees))

    def add(
        self, time: Int64s, tree: Int64s, select: Int64s, a: Int64s, b: Int64s
    ) -> Int64s:
        line = np.where(a == b, a, select)
        new = np.flatnonzero((a != b) & ((a != self.one) | (b != self.zero)))
        select, a, b = select[new], a[new], b[new]
        keys = np.stack([tree[new] << 32 | select, a << 32 | b])
        before = self._count
        number = self._numbers(keys)
        self._set_levels(before)
        np.minimum.at(self._time, number, time[new])
        line[new] = self.first + number
        return line

    def _numbers(self, keys: Int64s) -> Int64s:
        n = keys.shape[1]
        self._reserve(self._count + n)
        table, known = self._table, self._keys
        numbers = np.empty(n, np.int64)
        left, at = np.arange(n), self._slots(keys)
        while len(left):
            free = np.flatnonzero(table[at] < 0)
            table[at[free]] = free  # one of those with the same slot wins
            wins = free[table[at[free]] == free]
            last = self._count + len(wins)
            table[at[wins]] = np.arange(self._count, last)
            known[:, self._count : last] = keys[:, wins]
            self._count = last
            number = table[at]
            one, two = known[0, number], known[1, number]
            same = (one == keys[0]) & (two == keys[1])
            numbers[left[same]] = number[same]
            other = np.flatnonzero(~same)
            left, keys = left[other], keys[:, other]
            at = (at[other] + 1) & (len(table) - 1)
        return numbers

    def _slots(self, keys: Int64s) -> Int64s:
        one, two = keys.view(np.uint64) * _FACTORS
        bits = len(self._table).bit_length() - 1
        mixed = one ^ (two >> np.uint64(1))
        return (mixed >> np.uint64(64 - bits)).view(np.int64)

    def _set_levels(self, before: int) -> None:
        one, two = self._keys[:, before : self._count]
        level = self._level[before : self._count]
        for line in (one & 0xFFFFFFFF, two >> 32, two & 0xFFFFFFFF):
            has = np.flatnonzero(line >= self.first)
            number = line[has] - self.first
            level[has] = np.maximum(level[has], self._level[number])
        level += 1

    def _reserve(self, count: int) -> None:
        if count <= len(self._level):
            return
        more = max(count, 2 * len(self._level)) - len(self._level)
        self._keys = np.pad(self._keys, ((0, 0), (0, more)))
        self._level = np.pad(self._level, (0, more))
        latest = np.iinfo(np.int64).max
        self._time = np.pad(self._time, (0, more), constant_values=latest)
        self._table = np.full(1 << (2 * len(self._level)).bit_length(), -1)
        left = np.arange(self._count)
        at = self._slots(self._keys[:, : self._count])
        while len(left):
            free = self._table[at] < 0
            self._table[at[free]] = left[free]
            other = np.flatnonzero(self._table[at] != left)
            left, at = left[other], (at[other] + 1) & (len(self._table) - 1)


#: Leaves of parts: tree, row of ``Forest.leaf_value``, mask and value: their codes have
#: ``code & mask == value``.
Cubes = tuple[Int64s, Int64s, Int64s, Int64s]

#: Times of a step of the recursion: a path's tests or a part's planes, which are fewer.
TICKS = 16

#: Nodes of trees encoded at once: temporaries take some hundred bytes for each.
CHUNK_NODES = 1 << 17


@dataclass(frozen=True, slots=True, eq=False)
class EncodedTrees:
    """Trees as operations ``target = select ? a : b`` on lines.

    The planes of a tree's code, highest bit first, are lines of tests, of constants, or
    temporaries; each tree numbers its own.
    """

    bits: Int64s  # (n_trees,) planes of each tree
    planes: Int32s  # lines of all planes, tree by tree
    op_offset: Int64s  # (n_trees + 1,) into ops
    ops: Int32s  # (n_ops, 4): target, select, a, b
    level: NDArray[np.int16]  # (n_ops,) depth in the dependence graph
    leaf_of: Int32s  # leaf of each code; unused codes have any of the tree


def encode_trees(
    forest: Forest, trees: Array, line_of: Int32s, first: int, most_bits: int
) -> EncodedTrees:
    """Encode trees of at most ``2 ** most_bits`` leaves, with a spare bit if one fits.

    ``line_of`` has the line of each predicate. Temporaries are lines from ``first`` on;
    the two lines before hold zeros and ones.
    """
    sizes = np.diff(forest.tree_offset)[trees]
    chunk = np.cumsum(sizes) // CHUNK_NODES
    starts = np.flatnonzero(np.diff(chunk, prepend=-1, append=-1))
    chunks = [
        _Chunk(forest, trees[a:b], line_of, first, most_bits).encoded()
        for a, b in pairwise(starts)
    ]
    counts = [np.zeros(1, np.int64), *(np.diff(m.op_offset) for m in chunks)]
    none = np.zeros(0, np.int32)
    return EncodedTrees(
        bits=np.concatenate([none.astype(np.int64), *(m.bits for m in chunks)]),
        planes=np.concatenate([none, *(m.planes for m in chunks)]),
        op_offset=np.cumsum(np.concatenate(counts)),
        ops=np.concatenate([none.reshape(0, 4), *(m.ops for m in chunks)]),
        level=np.concatenate([none.astype(np.int16), *(m.level for m in chunks)]),
        leaf_of=np.concatenate([none, *(m.leaf_of for m in chunks)]),
    )


class _Chunk:
    def __init__(
        self, forest: Forest, trees: Array, line_of: Int32s, first: int, most_bits: int
    ) -> None:
        self.forest, self.line_of = forest, line_of
        whole = in_preorder(forest, trees)
        leaves = whole.leaves[whole.first].astype(np.int64)
        spare = _bit_length(leaves - 1) + 1
        bits = np.minimum(most_bits, spare)
        self.n_trees = len(trees)
        self.cuts = cut_trees(whole, bits, np.arange(len(trees)))
        self.muxes = Muxes(first - 2, first - 1, first, len(whole.node))
        n = len(self.cuts.tree)
        #: Planes of each part, and their lines, highest bit of the code first.
        self.width = np.zeros(n, np.int64)
        self.lines = np.zeros((n, int(bits.max(initial=0))), np.int64)
        #: Bits of a tree's code that hold the planes of a part, and those that all of
        #: the part's codes share.
        self.place = np.zeros(self.lines.shape, np.int64)
        self.mask = np.zeros(n, np.int64)
        self.value = np.zeros(n, np.int64)
        #: Steps in which each part adds operations, and the first of them.
        self.span = np.ones(n, np.int64)
        self.time = np.zeros(n, np.int64)

    def encoded(self) -> EncodedTrees:
        steps = self.cuts.steps
        small, stuck = map(TreeParts.joined, (self.cuts.small, self.cuts.stuck))
        rank = _rank(small, small.leaves > 1)
        self._set_times(stuck)
        self._own_planes(small, rank)
        self._number_in_order(stuck)
        conditions = self._conditions()
        for step, condition in zip(reversed(steps), reversed(conditions), strict=True):
            self._merge(step, *condition)
        bits, most = self.width[: self.n_trees], self.lines.shape[1]
        self.place[: self.n_trees] = bits[:, None] - 1 - np.arange(most)
        for step, (_, inside) in zip(steps, conditions, strict=True):
            self._descend(step, inside)
        leaf_of = self._leaf_of(
            bits, [self._small_cubes(small, rank), self._ordered_cubes(stuck)]
        )
        used = np.arange(most) < bits[:, None]
        return self._numbered(bits, self.lines[: self.n_trees][used], leaf_of)

    def _numbered(self, bits: Int64s, planes: Int64s, leaf_of: Int32s) -> EncodedTrees:
        muxes = self.muxes
        tree, order = muxes.trees, muxes.order
        offset = np.searchsorted(tree[order], np.arange(self.n_trees + 1))
        line = np.empty(len(tree), np.int64)
        line[order] = muxes.first + np.arange(len(tree)) - offset[tree[order]]

        def own(lines: Int64s) -> Int32s:
            moved = lines.astype(np.int32)
            at = np.flatnonzero(lines >= muxes.first)
            moved[at] = line[lines[at] - muxes.first]
            return moved

        columns = [line.astype(np.int32), *map(own, muxes.operands)]
        ops = np.stack([column[order] for column in columns], axis=1)
        return EncodedTrees(
            bits, own(planes), offset, ops, muxes.levels[order], leaf_of
        )

    def _set_times(self, stuck: TreeParts) -> None:
        """Order operations as a recursion adds them, so that few temporaries live.

        The condition of a cut comes first, then the subtree, the rest, and the planes
        of both. Where operations are not sorted by level, temporaries are reused.
        """
        span, time, steps = self.span, self.time, self.cuts.steps
        span[stuck.number] = stuck.sizes
        for step in reversed(steps):
            span[step.whole] = 2 + span[step.one] + span[step.one + 1]
        for step in steps:
            time[step.one] = time[step.whole] + 1
            time[step.one + 1] = time[step.one] + span[step.one]
        self.span, self.time = span * TICKS, time * TICKS

    def _line(self, node: Int64s) -> Int64s:
        return self.line_of[self.forest.predicate[node]].astype(np.int64)

    # ------------------------------------------------------------ from parts up

    def _own_planes(self, small: TreeParts, rank: Int64s) -> None:
        self.width[small.number] = small.leaves[small.first] - 1
        inner = small.leaves > 1
        part = np.repeat(small.number, small.sizes)[inner]
        self.lines[part, rank[inner]] = self._line(small.node[inner])

    def _number_in_order(self, stuck: TreeParts) -> None:
        muxes = self.muxes
        width = _bit_length(stuck.leaves[stuck.first] - 1)
        planes = np.arange(int(width.max(initial=0)))
        # Plane k is bit k; those above a part's own are zero in all its numbers.
        is_set = _from_left(stuck)[:, None] >> planes & 1
        lines = np.where(is_set, muxes.one, muxes.zero)
        tree = np.repeat(self.cuts.tree[stuck.number], stuck.sizes)
        # Preorder backwards, from the right, is postorder from the left.
        last = np.repeat(stuck.first + stuck.sizes - 1, stuck.sizes)
        time = np.repeat(self.time[stuck.number], stuck.sizes)
        time += TICKS * (last - np.arange(len(tree)))
        order = np.argsort(stuck.height, kind="stable")
        ends = np.cumsum(np.bincount(stuck.height))
        for start, end in pairwise(ends):  # of each height above 0
            at = order[start:end]
            right, left = lines[at + 1], lines[at + 2 * stuck.leaves[at + 1]]
            row, plane = np.nonzero(right != left)
            lines[at] = right
            lines[at[row], plane] = muxes.add(
                time[at[row]] + len(planes) - plane,
                tree[at[row]],
                self._line(stuck.node[at])[row],
                right[row, plane],
                left[row, plane],
            )
        self.width[stuck.number] = width
        for k in planes:
            has = width > k
            at = stuck.first[has]
            self.lines[stuck.number[has], width[has] - 1 - k] = lines[at, k]

    def _conditions(self) -> list[tuple[Int64s, Bools]]:
        muxes, steps = self.muxes, self.cuts.steps
        if not steps:
            return []
        part = np.concatenate([step.whole for step in steps])
        time, tree = self.time[part], self.cuts.tree[part]
        length = np.concatenate([step.length for step in steps])
        path = np.concatenate([step.path for step in steps], axis=1)
        right = np.concatenate([step.right for step in steps], axis=1)
        total, inside = self._line(path[0]), right[0]
        # The complement grows where a path first goes left.
        other = np.where(inside, muxes.zero, muxes.one)
        for k in range(1, int(length.max())):
            on = np.flatnonzero(length > k)
            here, is_right = total[on], right[k, on]
            total[on] = muxes.add(
                time[on] + k,
                tree[on],
                self._line(path[k, on]),
                np.where(is_right, here, other[on]),
                np.where(is_right, other[on], here),
            )
        ends = np.cumsum([len(step.whole) for step in steps])[:-1]
        return list(zip(np.split(total, ends), np.split(inside, ends), strict=True))

    def _merge(self, step: Step, select: Int64s, inside: Bools) -> None:
        one, two = step.one, step.one + 1
        one_width, two_width = self.width[one][:, None], self.width[two][:, None]
        width = 1 + np.minimum(step.planes - 1, one_width + two_width)
        # The subtree's planes fill the places from the end, the rest's from the start.
        place = np.arange(1, step.planes)
        of_one = width - 1 - place
        in_one = (of_one >= 0) & (of_one < one_width)
        in_two = (place - 1 < two_width) & (of_one >= 0)
        x = np.take_along_axis(self.lines[one], np.maximum(of_one, 0), axis=1)
        y = self.lines[two][:, : step.planes - 1]
        merged = np.where(in_one, x, y)
        row, column = np.nonzero(in_one & in_two)
        x, y, is_inside = x[row, column], y[row, column], inside[row]
        time = self.time[step.whole] + self.span[step.whole] - TICKS
        merged[row, column] = self.muxes.add(
            time[row] + column,
            self.cuts.tree[step.whole][row],
            select[row],
            np.where(is_inside, x, y),
            np.where(is_inside, y, x),
        )
        self.width[step.whole] = width[:, 0]
        self.lines[step.whole, 0] = select
        self.lines[step.whole, 1 : step.planes] = merged

    # ------------------------------------------------------------ from trees down

    def _descend(self, step: Step, inside: Bools) -> None:
        places = self.place[step.whole]
        width = self.width[step.whole]
        bit = 1 << places[:, 0]
        for part, is_set in ((step.one, inside), (step.one + 1, ~inside)):
            self.mask[part] = self.mask[step.whole] | bit
            self.value[part] = self.value[step.whole] | np.where(is_set, bit, 0)
        columns = np.arange(places.shape[1])
        of_one = np.maximum(width[:, None] - 1 - columns, 0)
        self.place[step.one] = np.take_along_axis(places, of_one, axis=1)
        self.place[step.one + 1, :-1] = places[:, 1:]

    def _small_cubes(self, small: TreeParts, rank: Int64s) -> Cubes:
        part = np.repeat(small.number, small.sizes)
        mask, value = self.mask[part], self.value[part]
        inner = small.leaves > 1
        for k in range(self.lines.shape[1]):
            at = np.flatnonzero(inner & (rank == k))
            right, left = at + 1, at + 2 * small.leaves[at + 1]
            bit = 1 << self.place[part[at], k]
            mask[left] = mask[right] = mask[at] | bit
            value[left], value[right] = value[at], value[at] | bit
        return self._cubes(small, part, mask, value)

    def _ordered_cubes(self, stuck: TreeParts) -> Cubes:
        part = np.repeat(stuck.number, stuck.sizes)
        mask, value = self.mask[part], self.value[part]
        number, width = _from_left(stuck), self.width[part]
        for k in range(int(width.max(initial=0))):
            has = np.flatnonzero(width > k)
            bit = 1 << self.place[part[has], width[has] - 1 - k]
            mask[has] |= bit
            value[has] |= bit * (number[has] >> k & 1)
        return self._cubes(stuck, part, mask, value)

    def _cubes(
        self, parts: TreeParts, part: Int64s, mask: Int64s, value: Int64s
    ) -> Cubes:
        leaf = parts.leaves == 1
        number = self.forest.leaf[parts.node[leaf]].astype(np.int64)
        return self.cuts.tree[part[leaf]], number, mask[leaf], value[leaf]

    def _leaf_of(self, bits: Int64s, cubes: list[Cubes]) -> Int32s:
        tree, leaf, mask, value = (np.concatenate(c) for c in zip(*cubes, strict=True))
        codes = 1 << bits
        start = np.cumsum(codes) - codes
        any_leaf = np.zeros(self.n_trees, np.int32)
        any_leaf[tree] = leaf
        leaf_of = np.repeat(any_leaf, codes)
        at = start[tree] + value
        free = (codes[tree] - 1) & ~mask
        for k in range(int(bits.max(initial=0))):
            more = np.flatnonzero(free >> k & 1)
            at = np.concatenate([at, at[more] + (1 << k)])
            leaf = np.concatenate([leaf, leaf[more]])
            free = np.concatenate([free, free[more]])
        leaf_of[at] = leaf
        return leaf_of


def _bit_length(values: Array) -> Int64s:
    return np.frexp(values.astype(np.float64))[1].astype(np.int64)


def _rank(parts: TreeParts, counted: Bools) -> Int64s:
    """Return how many nodes of its part before each node are counted."""
    before: Int64s = np.cumsum(counted) - counted
    return before - np.repeat(before[parts.first], parts.sizes)


def _from_left(parts: TreeParts) -> Int64s:
    last = parts.leaves[parts.first].astype(np.int64) - 1
    return np.repeat(last, parts.sizes) - _rank(parts, parts.leaves == 1)
