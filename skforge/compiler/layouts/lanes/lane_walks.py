"""Walks from the top levels to the leaves, several trees at a time.

If the rest of a tree is complete, a node's number gives its children's places, and
every tree takes the same number of hops::

    test = tests[level][i]                 # i counts the nodes of all trees' levels
    i = 2 i + (codes[test >> 8] > (test & 0xFF))

Otherwise a node stores the distance to its left child; a leaf has distance 0 and never
goes right, so its walk stays there while others of the group continue::

    node = node + (word >> 16) + (codes[word >> 8 & 0xFF] > (word & 0xFF))

Words are twice as wide if a place takes more than a byte, since each category-set test
has its own code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.rules import Model
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I64, U8, U32, Buffer, Value
from skforge.compiler.layouts.lanes import lane_levels
from skforge.compiler.layouts.lanes.lane_levels import RowTests, TopLevels, descend

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


class Rest(ABC):
    """The levels below the top ones."""

    #: Trees walked at the same time.
    in_flight: int = IN_FLIGHT
    #: The row of leaf values for each item where a walk may end.
    leaf_of_item: NDArray[np.int32]

    @abstractmethod
    def items(
        self, b: Builder, first: Value, index: list[Value], codes: Buffer, model: Model
    ) -> list[Value]:
        """Return the leaf item of each tree from ``first`` on, given its index."""


@dataclass(frozen=True, slots=True, eq=False)
class CompleteRest(Rest):
    """Complete levels (possibly none)."""

    n_trees: int
    top: int  # levels above
    levels: int  # levels here
    tests: NDArray[Any]  # place and rank: level by level, then tree by tree
    leaf_of_item: NDArray[np.int32]

    def items(
        self, b: Builder, first: Value, index: list[Value], codes: Buffer, model: Model
    ) -> list[Value]:
        """Hop level by level; within a level, tree after tree."""
        tests = model("rest_tests", self.tests) if self.levels else None
        wide = self.tests.dtype == np.uint32
        base, width, at = first * (1 << self.top), 1 << self.top, 0
        index = [base + i for i in index]
        for _ in range(self.levels):
            assert tests is not None
            made = []
            for k, i in enumerate(index):
                word = tests[i + (at + k * width)]
                right = _goes_right(word.to(U32), codes, wide)
                made.append(i + i + right)
            index, at, width = made, at + self.n_trees * width, 2 * width
        return [i + k * width for k, i in enumerate(index)]


@dataclass(frozen=True, slots=True, eq=False)
class SparseRest(Rest):
    """Nodes that store the distance to their children, to any depth."""

    in_flight = IN_FLIGHT_DEEP

    words: NDArray[Any]  # by node: distance, place, rank
    below: NDArray[np.int32]  # (n_trees, 2 ** top) where a walk begins
    leaf_of_item: NDArray[np.int32]

    def items(
        self, b: Builder, first: Value, index: list[Value], codes: Buffer, model: Model
    ) -> list[Value]:
        """Hop until every walk of these trees has ended."""
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


def _goes_right(word: Value, codes: Buffer, wide: bool) -> Value:
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
    """Say why the trees cannot be walked this way, or return None."""
    if int(np.diff(forest.tree_offset).max(initial=0)) > MOST_NODES:
        return f"trees of more than {MOST_NODES} nodes; use another representation."
    return None


def plan_rest(forest: Forest, tests: RowTests, top: TopLevels) -> Rest:
    """Lay out the rest; make it complete if that costs little."""
    _, high = forest.leaf_depths()
    levels = max(0, int(high.max(initial=0)) - top.levels)
    words = forest.n_trees << (top.levels + levels)
    complete = levels <= MOST_COMPLETE and words <= PADDING * forest.n_nodes
    if levels == 0 or complete:
        return _complete(forest, tests, top, levels)
    return _sparse(forest, tests, top)


def _complete(
    forest: Forest, tests: RowTests, top: TopLevels, levels: int
) -> CompleteRest:
    at, made = top.below, []
    for _ in range(levels):
        place, rank, children = descend(forest, tests, at)
        made.append((place << 8 | rank).reshape(-1))
        at = children.reshape(forest.n_trees, -1)
    dtype = np.uint32 if tests.wide else np.uint16
    joined = np.concatenate([np.zeros(0, np.int32), *made]).astype(dtype)
    leaves = forest.leaf[at].reshape(-1)
    return CompleteRest(forest.n_trees, top.levels, levels, joined, leaves)


def _sparse(forest: Forest, tests: RowTests, top: TopLevels) -> SparseRest:
    """Lay nodes out tree by tree and level by level; siblings are adjacent."""
    every = np.concatenate(lane_levels.node_levels(forest))
    tree = np.searchsorted(forest.tree_offset, every, "right")
    every = every[np.argsort(tree, kind="stable")]
    number = np.empty(forest.n_nodes, np.int32)
    number[every] = np.arange(len(every), dtype=np.int32)
    place, rank, children = descend(forest, tests, every)
    distance = (number[children[:, 0]] - number[every]).astype(np.int64)
    words = distance << (32 if tests.wide else 16) | place << 8 | rank
    words = words if tests.wide else words.astype(np.uint32)
    leaf_of_item = np.maximum(forest.leaf[every], 0)
    return SparseRest(words, number[top.below], leaf_of_item)
