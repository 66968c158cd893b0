"""Evaluates top levels, one tree in each vector lane, and walks the levels below.

Every node position of ``levels`` complete levels is evaluated for as many trees as a
register has lanes. A permute looks the code of the position's column up in the row's
codes; the saturating difference from the rank is nonzero where the row goes right::

    v(p) = saturating(permute(codes, column[p]) - rank[p])
    level 0: k0 = v(1) != 0
    level 1: k1 = (v(3) if k0 else v(2)) != 0
    level 2: k2 = ((v(7) if k1 else v(6)) if k0 else (v(5) if k1 else v(4))) != 0
    index = 4 k0 + 2 k1 + k2

Where a permute of a row's codes takes several instructions, place and rank are chosen
first, by the levels above, and a level is permuted once::

    level l: p = the position that k0 to k(l-1) lead to
             kl = saturating(permute(codes, column[p]) - rank[p]) != 0

In even trees (``sliced_layout.py``) all positions of a level are one.

A position below a leaf goes left: no code exceeds its rank. The same holds for category
sets, whose answers come from elsewhere: each is a bit of a *head*, a register at the
start of a table row (``category_rows.py``) with a bit for each position of a lane::

    v(p) = v(p) | (head[p / 8] & (1 << p % 8))

The levels below are walked, several trees at a time. If the rest of a tree is complete,
a node's number gives its children's places, and every tree takes the same number of
hops::

    test = tests[level][i]                 # i counts the nodes of all trees' levels
    i = 2 i + (codes[test >> 8] > (test & 0xFF))

Otherwise a node stores the distance to its left child; a leaf has distance 0 and never
goes right, so its walk stays there while others of the group continue::

    node = node + (word >> 16) + (codes[word >> 8 & 0xFF] > (word & 0xFF))

Words are twice as wide if a place takes more than a byte, since each category-set test
has its own code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from skforge._typing import Array, Bools, Int32s
from skforge.compiler.binning.category_rows import CategoryRows, SetClasses, by_classes
from skforge.compiler.binning.rules import Model
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I64, U8, U32, Value, Vec
from skforge.compiler.ir.lir.types import Part, scalar_of
from skforge.forest.forest import Forest

#: Rank of a test that sends every row left.
NEVER_RIGHT = 255

#: Columns of codes that a byte numbers.
BANK = 256

#: Trees walked at the same time: with one, loads are not overlapped; with too many,
#: registers spill. 4 to 12 are within 4 % if few levels are left; if many are, 4, 8,
#: 12, 16 took 1.35, 0.87, 0.74, 0.70 us a row (100 trees of 255 leaves).
IN_FLIGHT, IN_FLIGHT_DEEP = 8, 16

#: Most words of a complete rest, as a multiple of the forest's nodes.
PADDING = 6

#: Most levels of a complete rest; each level doubles it.
MOST_COMPLETE = 8


#: Most nodes of a tree: a child's distance from its parent takes 16 bits.
MOST_NODES = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class RowTests:
    """The place of each predicate's code in a row, and the rank to compare it with."""

    code_index: Int32s  # (n_predicates,)
    rank: Int32s  # (n_predicates,)

    @property
    def wide(self) -> bool:
        return bool(self.code_index.max(initial=0) >= BANK)


@dataclass(frozen=True, slots=True, eq=False)
class TopLevels:
    """The tests of every position, and the nodes where walks continue below.

    Of even trees, a level has one position.
    """

    levels: int
    even: bool
    n_trees: int
    # (groups, positions, 2 or 3, lanes): places in banks, ranks, and banks if several
    tests: Array
    below: Int32s  # (n_trees, 2 ** levels) nodes; a leaf stays itself
    predicate: Int32s  # (n_trees, positions); -1: none

    @property
    def lanes(self) -> int:
        """Trees in a group."""
        return int(self.tests.shape[3])

    @property
    def bits(self) -> int:
        """Positions for which a lane of a head has a bit."""
        return 8 * int(self.tests.dtype.itemsize)

    @property
    def heads(self) -> int:
        """Registers in a group's heads."""
        return -(-int(self.tests.shape[1]) // self.bits)


def descend(
    forest: Forest, tests: RowTests, at: Int32s
) -> tuple[Int32s, Int32s, Int32s]:
    """Return the place and rank of nodes' tests, and both children in a last axis."""
    predicate = forest.predicate[at]
    inner = predicate >= 0
    place = np.where(inner, tests.code_index[predicate], 0).astype(np.int32)
    rank = np.where(inner, tests.rank[predicate], NEVER_RIGHT).astype(np.int32)
    left = np.where(inner, forest.left[at], at)
    right = np.where(inner, forest.right[at], at)
    return place, rank, np.stack([left, right], axis=-1)


def lay_top_levels(
    forest: Forest,
    tests: RowTests,
    levels: int,
    lanes: int,
    dtype: type[np.unsignedinteger[Any]],
    even: bool,
) -> TopLevels:
    n, groups = forest.n_trees, -(-forest.n_trees // lanes)
    banks = 1 + int(tests.code_index.max(initial=0)) // BANK
    by_tree = np.zeros((groups * lanes, (1 << levels) - 1, 2 + (banks > 1)), dtype)
    by_tree[:, :, 1] = NEVER_RIGHT
    predicates = []
    at = forest.tree_offset[:-1].astype(np.int32)[:, None]
    for level in range(levels):
        place, rank, children = descend(forest, tests, at)
        here = slice((1 << level) - 1, (2 << level) - 1)
        by_tree[:n, here, 0], by_tree[:n, here, 1] = place % BANK, rank
        if banks > 1:
            by_tree[:n, here, 2] = place // BANK
        predicates.append(forest.predicate[at])
        at = children.reshape(n, -1)
    predicate = np.concatenate(predicates, axis=1)
    if even:
        first = (1 << np.arange(levels)) - 1
        by_tree, predicate = by_tree[:, first], predicate[:, first]
    shaped = by_tree.reshape(groups, lanes, *by_tree.shape[1:]).transpose(0, 2, 3, 1)
    return TopLevels(levels, even, n, np.ascontiguousarray(shaped), at, predicate)


def set_bits(top: TopLevels, classes: SetClasses) -> Array:
    lanes, bits, heads = top.lanes, top.bits, top.heads
    groups = int(top.tests.shape[0])
    numbers = classes.within(top.predicate)
    tree, position = np.nonzero(numbers >= 0)
    number = numbers[tree, position]

    def some(right: Bools) -> Array:
        goes_right = np.zeros((len(right), groups * lanes, heads * bits), np.bool_)
        goes_right[:, tree, position] = right[:, number]
        packed = np.packbits(goes_right, axis=2, bitorder="little")
        shaped = packed.view(f"<u{bits // 8}").reshape(len(right), groups, lanes, -1)
        return shaped.transpose(0, 1, 3, 2).reshape(len(right), -1)

    return by_classes(classes, some).astype(top.tests.dtype)


class TopLevelsLowering:
    def __init__(
        self,
        top: TopLevels,
        model: Model,
        categories: CategoryRows | None = None,
        sets: Bools | None = None,
        chooses_first: bool = False,
    ) -> None:
        self.top, self._categories = top, categories
        element = scalar_of(top.tests.dtype)
        #: Elements of a row's indices.
        self.size = self.row_stride = int(top.tests.shape[0]) * top.lanes
        #: Positions where a tree tests for a set that is in the heads.
        self._has_set: set[int] = set()
        self._chooses_first = chooses_first
        if sets is not None:
            in_heads = sets[top.predicate] & (top.predicate >= 0)
            self._has_set = set((np.nonzero(in_heads)[1] + 1).tolist())
        self._heads: dict[int, Value] = {}
        self._group: Value | None = None
        self._tests = model("lane_tests", top.tests.reshape(-1))
        self._vec = Vec(element, top.lanes)
        self._codes: list[Value] = []
        self._masks: list[Value] = []
        self._first: Value | None = None

    def evaluate(self, group: Value, codes: list[Value], index: Part) -> None:
        self._codes, self._masks, self._heads = codes, [], {}
        self._group = group
        self._first = group * int(np.prod(self.top.tests.shape[1:]))
        index[group * self.top.lanes] = self._reached()

    def items(self, first: Value, count: int, index: Part) -> list[Value]:
        return [index[first + k].to(I64) for k in range(count)]

    def _reached(self) -> Value:
        index = zero = b.const(0, self._vec)
        for level in range(self.top.levels):
            even = self.top.even
            if even:
                more = self._position(level + 1)
            elif self._chooses_first:
                more = self._test(*self._chosen(level))
            else:
                more = self._remains(level, 1)
            self._masks.append(more.ne(zero))
            bit = b.const(1 << (self.top.levels - 1 - level), self._vec)
            set_ = bit if index is zero else index + bit
            index = b.select(self._masks[-1], set_, index)
        return index

    def _remains(self, below: int, position: int) -> Value:
        if not below:
            return self._position(position)
        # The level of a position: the number of bits after its highest.
        mask = self._masks[position.bit_length() - 1]
        left = self._remains(below - 1, 2 * position)
        return b.select(mask, self._remains(below - 1, 2 * position + 1), left)

    def _position(self, position: int) -> Value:
        more = self._test(*self._parts(position))
        if position not in self._has_set:
            return more
        bit = b.const(1 << (position - 1) % self.top.bits, self._vec)
        return more | self._head(position) & bit

    def _parts(self, position: int) -> list[Value]:
        """Load places and ranks of a position, and the places' banks if several."""
        lanes, n = self.top.lanes, self.top.tests.shape[2]
        assert self._first is not None
        at = self._first + (position - 1) * n * lanes
        return [self._tests[at + k * lanes, self._vec] for k in range(n)]

    def _chosen(self, level: int) -> list[Value]:
        """Return the parts of the position that is reached on a level."""

        def chosen(known: int, position: int) -> list[Value]:
            """Choose by the first levels; the bits of ``position`` are the others."""
            if not known:
                return self._parts((1 << level) + position)
            right = chosen(known - 1, position + (1 << (level - known)))
            left, mask = chosen(known - 1, position), self._masks[known - 1]
            both = zip(right, left, strict=True)
            return [b.select(mask, *pair) for pair in both]

        return chosen(level, 0)

    def _test(self, place: Value, rank: Value, bank: Value | None = None) -> Value:
        code, width = None, BANK // self.top.lanes
        for first in range(0, len(self._codes), width):
            found = b.permute(self._codes[first : first + width], place, within=True)
            if code is not None:
                assert bank is not None
                found = b.select(bank.eq(first // width), found, code)
            code = found
        assert code is not None
        # max(code, rank) - rank is one saturating subtraction.
        return code.max(rank) - rank

    def _head(self, position: int) -> Value:
        k = (position - 1) // self.top.bits
        assert self._group is not None and self._categories is not None
        if k not in self._heads:
            group = self._group * (self.top.heads * self.top.lanes)
            self._heads[k] = self._categories.head(group + k * self.top.lanes, "or")
        return self._heads[k]


# ------------------------------------------------------------ the levels below


# Each kind of rest returns the leaf item of each tree from ``first`` on, given its
# index. ``leaf_of_item`` is the row of leaf values for each item where a walk may end,
# ``in_flight`` how many trees are walked at the same time.


@dataclass(frozen=True, slots=True, eq=False)
class CompleteRest:
    in_flight: ClassVar[int] = IN_FLIGHT

    n_trees: int
    top: int  # levels above
    levels: int  # levels here
    tests: Array  # place and rank: level by level, then tree by tree
    leaf_of_item: Int32s

    def items(
        self, first: Value, index: list[Value], codes: Part, model: Model
    ) -> list[Value]:
        tests = model("rest_tests", self.tests) if self.levels else None
        wide = self.tests.dtype == np.uint32
        base, width, at = first * (1 << self.top), 1 << self.top, 0
        index = [base + i for i in index]
        for _ in range(self.levels):
            assert tests is not None
            below = []
            for k, i in enumerate(index):
                word = tests[i + (at + k * width)]
                right = _goes_right(word.to(U32), codes, wide)
                below.append(i + i + right)
            index, at, width = below, at + self.n_trees * width, 2 * width
        return [i + k * width for k, i in enumerate(index)]


@dataclass(frozen=True, slots=True, eq=False)
class SparseRest:
    """Nodes that store the distance to their children, to any depth."""

    in_flight: ClassVar[int] = IN_FLIGHT_DEEP

    words: Array  # by node: distance, place, rank
    below: Int32s  # (n_trees, 2 ** top) where a walk begins
    leaf_of_item: Int32s

    def items(
        self, first: Value, index: list[Value], codes: Part, model: Model
    ) -> list[Value]:
        words = model("rest_words", self.words)
        wide = self.words.dtype == np.int64
        below = model("rest_below", self.below.reshape(-1))
        size = self.below.shape[1]
        start = first * size
        nodes = [below[start + i + k * size].to(I64) for k, i in enumerate(index)]
        carried = [b.const(1), *nodes]
        with b.repeat(lambda: carried[0].ne(0), carried):
            moves = b.const(0)
            for k, node in enumerate(carried[1:], 1):
                word = words[node]
                right = _goes_right(word.to(U32), codes, wide)
                child = (word >> (32 if wide else 16)).to(I64)
                moves = moves | child
                carried[k] = node + child + right
            carried[0] = moves
        return carried[1:]


Rest: TypeAlias = CompleteRest | SparseRest


def _goes_right(word: Value, codes: Part, wide: bool) -> Value:
    """Return 1 where a code exceeds the rank in the low byte of a word, else 0."""
    place = word >> 8
    if not wide:
        place = place & 0xFF
    # Compare byte codes as bytes: no extension, and memory can be an operand.
    code = codes[place.to(I64)]
    if codes.element != U8:
        return (code.to(U32) > word & 0xFF).to(I64)
    return (code > word.to(U8)).to(I64)


def refusal(forest: Forest) -> str | None:
    if int(np.diff(forest.tree_offset).max(initial=0)) > MOST_NODES:
        return f"trees of more than {MOST_NODES} nodes; use another representation."
    return None


def plan_rest(forest: Forest, tests: RowTests, top: int, below: Int32s) -> Rest:
    """Plan the walks from ``below``, the nodes (n_trees, 2 ** top) after top levels."""
    _, high = forest.leaf_depths()
    levels = max(0, int(high.max(initial=0)) - top)
    words = forest.n_trees << (top + levels)
    complete = levels <= MOST_COMPLETE and words <= PADDING * forest.n_nodes
    if levels == 0 or complete:
        return _complete(forest, tests, top, below, levels)
    return _sparse(forest, tests, below)


def _complete(
    forest: Forest, tests: RowTests, top: int, below: Int32s, levels: int
) -> CompleteRest:
    at, words = below, []
    for _ in range(levels):
        place, rank, children = descend(forest, tests, at)
        words.append((place << 8 | rank).reshape(-1))
        at = children.reshape(forest.n_trees, -1)
    dtype = np.uint32 if tests.wide else np.uint16
    joined = np.concatenate([np.zeros(0, np.int32), *words]).astype(dtype)
    leaves = forest.leaf[at].reshape(-1)
    return CompleteRest(forest.n_trees, top, levels, joined, leaves)


def _sparse(forest: Forest, tests: RowTests, below: Int32s) -> SparseRest:
    every = np.concatenate(forest.levels())
    tree = np.searchsorted(forest.tree_offset, every, "right")
    every = every[np.argsort(tree, kind="stable")]
    number = np.empty(forest.n_nodes, np.int32)
    number[every] = np.arange(len(every), dtype=np.int32)
    place, rank, children = descend(forest, tests, every)
    distance = (number[children[:, 0]] - number[every]).astype(np.int64)
    words = distance << (32 if tests.wide else 16) | place << 8 | rank
    words = words if tests.wide else words.astype(np.uint32)
    leaf_of_item = np.maximum(forest.leaf[every], 0)
    return SparseRest(words, number[below], leaf_of_item)
