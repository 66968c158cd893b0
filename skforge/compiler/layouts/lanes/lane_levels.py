"""Evaluates the top levels of trees, one tree in each vector lane.

Every node position of ``levels`` complete levels is evaluated for as many trees as a
register has lanes. A permute looks the code of the position's column up in the row's
codes; the saturating difference from the rank is nonzero where the row goes right::

    v(p) = saturating(permute(codes, column[p]) - rank[p])
    level 0: k0 = v(1) != 0
    level 1: k1 = (v(3) if k0 else v(2)) != 0
    level 2: k2 = ((v(7) if k1 else v(6)) if k0 else (v(5) if k1 else v(4))) != 0
    index = 4 k0 + 2 k1 + k2

A position below a leaf goes left: no code exceeds its rank. The same holds for category
sets, whose answers come from elsewhere: each is a bit of a *head*, a register at the
start of a table row (``category_rows.py``) with a bit for each position of a lane::

    v(p) = v(p) | (head[p / 8] & (1 << p % 8))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.category_rows import CategoryRows, SetClasses, by_classes
from skforge.compiler.binning.rules import Model
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I64, Value, Vec
from skforge.compiler.ir.lir.types import scalar_of

#: Rank of a test that sends every row left.
NEVER_RIGHT = 255


@dataclass(frozen=True, slots=True, eq=False)
class RowTests:
    """The place of each predicate's code in a row, and the rank to compare it with."""

    place: NDArray[np.int32]  # (n_predicates,)
    rank: NDArray[np.int32]  # (n_predicates,)

    @property
    def wide(self) -> bool:
        """Whether a place takes more than a byte."""
        return bool(self.place.max(initial=0) > 255)


@dataclass(frozen=True, slots=True, eq=False)
class TopLevels:
    """The tests of every position, and the nodes where walks continue below."""

    levels: int
    n_trees: int
    tests: NDArray[Any]  # (groups, positions, 2, lanes): places, ranks
    below: NDArray[np.int32]  # (n_trees, 2 ** levels) nodes; a leaf stays itself
    predicate: NDArray[np.int32]  # (n_trees, positions); -1: none

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


def node_levels(forest: Forest) -> list[NDArray[np.int32]]:
    """Return the nodes of all trees level by level; siblings are adjacent."""
    levels: list[NDArray[np.int32]] = []
    level = forest.tree_offset[:-1].astype(np.int32)
    while len(level):
        levels.append(level)
        inner = level[forest.left[level] >= 0]
        level = np.stack([forest.left[inner], forest.right[inner]], 1).reshape(-1)
    return levels


def descend(
    forest: Forest, tests: RowTests, at: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Return the place and rank of nodes' tests, and both children in a last axis."""
    predicate = forest.predicate[at]
    inner = predicate >= 0
    place = np.where(inner, tests.place[predicate], 0).astype(np.int32)
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
) -> TopLevels:
    """Lay out ``levels`` levels of every tree, ``lanes`` trees a group."""
    n, groups = forest.n_trees, -(-forest.n_trees // lanes)
    made = np.zeros((groups * lanes, (1 << levels) - 1, 2), dtype)
    made[:, :, 1] = NEVER_RIGHT
    predicates = []
    at = forest.tree_offset[:-1].astype(np.int32)[:, None]
    for level in range(levels):
        place, rank, children = descend(forest, tests, at)
        here = slice((1 << level) - 1, (2 << level) - 1)
        made[:n, here, 0], made[:n, here, 1] = place, rank
        predicates.append(forest.predicate[at])
        at = children.reshape(n, -1)
    shaped = made.reshape(groups, lanes, -1, 2).transpose(0, 2, 3, 1)
    predicate = np.concatenate(predicates, axis=1)
    return TopLevels(levels, n, np.ascontiguousarray(shaped), at, predicate)


def set_bits(top: TopLevels, classes: SetClasses) -> NDArray[Any]:
    """Return, for each class of categories, which positions it sends right, as bits."""
    lanes, bits, heads = top.lanes, top.bits, top.heads
    groups = int(top.tests.shape[0])
    own = classes.within(top.predicate)
    tree, position = np.nonzero(own >= 0)
    number = own[tree, position]

    def some(right: NDArray[np.bool_]) -> NDArray[Any]:
        made = np.zeros((len(right), groups * lanes, heads * bits), np.bool_)
        made[:, tree, position] = right[:, number]
        packed = np.packbits(made, axis=2, bitorder="little")
        shaped = packed.view(f"<u{bits // 8}").reshape(len(right), groups, lanes, -1)
        found: NDArray[Any] = shaped.transpose(0, 1, 3, 2).reshape(len(right), -1)
        return found

    return by_classes(classes, some).astype(top.tests.dtype)


class TopLevelsLowering:
    """Emits the evaluation of the positions."""

    def __init__(
        self,
        b: Builder,
        top: TopLevels,
        model: Model,
        categories: CategoryRows | None = None,
        sets: NDArray[np.bool_] | None = None,
    ) -> None:
        self.b, self.top, self._categories = b, top, categories
        element = scalar_of(top.tests.dtype)
        size = b.const(int(top.tests.shape[0]) * top.lanes)
        self._index = b.alloc("index", element, size, alignment=64)
        #: Positions where a tree tests for a set that is in the heads.
        self._has_set: set[int] = set()
        if sets is not None:
            found = sets[top.predicate] & (top.predicate >= 0)
            self._has_set = set((np.nonzero(found)[1] + 1).tolist())
        self._heads: dict[int, Value] = {}
        self._group: Value | None = None
        self._tests = model("lane_tests", top.tests.reshape(-1))
        self._vec = Vec(element, top.lanes)
        self._codes: list[Value] = []
        self._masks: list[Value] = []
        self._first: Value | None = None

    def evaluate(self, group: Value, codes: list[Value]) -> None:
        """Write, by tree, the index of the node reached below the top levels."""
        b, top = self.b, self.top
        self._codes, self._masks, self._heads = codes, [], {}
        self._group = group
        self._first = group * (top.tests.shape[1] * 2 * top.lanes)
        b.store(self._index, group * top.lanes, self._reached())

    def items(self, first: Value, count: int) -> list[Value]:
        """Return the index below the top levels of trees from ``first`` on."""
        return [self._index[first + k].to(I64) for k in range(count)]

    def _reached(self) -> Value:
        b = self.b
        index = zero = b.const(0, self._vec)
        for level in range(self.top.levels):
            self._masks.append(self._remains(level, 1).ne(zero))
            bit = b.const(1 << (self.top.levels - 1 - level), self._vec)
            more = bit if index is zero else index + bit
            index = b.select(self._masks[-1], more, index)
        return index

    def _remains(self, below: int, position: int) -> Value:
        """Return ``v`` of the position reached ``below`` levels under a position."""
        b = self.b
        if not below:
            return self._position(position)
        # The level of a position: the number of bits after its highest.
        mask = self._masks[position.bit_length() - 1]
        left = self._remains(below - 1, 2 * position)
        return b.select(mask, self._remains(below - 1, 2 * position + 1), left)

    def _position(self, position: int) -> Value:
        b, lanes = self.b, self.top.lanes
        assert self._first is not None
        at = self._first + (position - 1) * 2 * lanes
        code = b.permute(self._codes, self._tests[at, self._vec])
        rank = self._tests[at + lanes, self._vec]
        # max(code, rank) - rank is one saturating subtraction.
        more = code.max(rank) - rank
        if position not in self._has_set:
            return more
        bit = b.const(1 << (position - 1) % self.top.bits, self._vec)
        return more | self._head(position) & bit

    def _head(self, position: int) -> Value:
        """Return the register with a position's bit."""
        k = (position - 1) // self.top.bits
        assert self._group is not None and self._categories is not None
        if k not in self._heads:
            own = self._group * (self.top.heads * self.top.lanes)
            self._heads[k] = self._categories.head(own + k * self.top.lanes, "or")
        return self._heads[k]
