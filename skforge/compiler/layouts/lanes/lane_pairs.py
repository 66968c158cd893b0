"""Evaluates top levels of eight trees for eight rows, all pairs in one vector of bytes.

Lane ``8 t + r`` has row r in tree t of a group. A level takes a handful of permutes,
however many nodes it has::

    x = t                                # the node on a tree's level, after t
    for each level:
        place = permute(places of the level, x), rank = permute(ranks of the level, x)
        x = 2 x + (permute(codes of the rows, place) > rank)

A level of more nodes than a register has bytes fills several registers. Each serves a
few trees, whose lanes are chosen, and so do registers of codes, each for a few rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skforge._typing import Array, Int32s
from skforge.compiler.binning.rules import Model
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I64, U8, Value, Vec
from skforge.compiler.ir.lir.types import Part
from skforge.compiler.layouts.lanes.lane_levels import NEVER_RIGHT, RowTests, descend
from skforge.compiler.target import Target
from skforge.forest.forest import Forest

#: Trees and rows of a vector, and their pairs: a byte each.
TREES, ROWS, PAIRS = 8, 8, 64

#: Most levels, whose nodes a byte numbers, and most columns: two registers a row.
MOST_LEVELS, MOST_COLUMNS = 8, 2 * PAIRS

#: Approximate instructions of a level beside its permutes.
LEVEL = 2.5

#: Groups of trees that take turns, as a level waits for the one above. 1, 2, 3 and 4
#: took .68, .63, .61 and .63 of the time of single rows (8 rows, Emerald Rapids).
IN_TURN = 2


@dataclass(frozen=True, slots=True, eq=False)
class PairLevels:
    levels: int
    n_trees: int
    tests: Array  # (groups, registers, PAIRS): of each level, places, then ranks
    below: Int32s  # (n_trees, 2 ** levels) nodes; a leaf stays itself


def are_permuted(target: Target, n_columns: int) -> bool:
    """Return whether a target looks bytes up in whole registers, and a row fits two."""
    return target.has("avx512vbmi") and n_columns <= MOST_COLUMNS


def row_width(n_columns: int) -> int:
    """Return the bytes of a row's codes."""
    return max(PAIRS // 4, 1 << (n_columns - 1).bit_length())


def registers(level: int) -> int:
    """Return the registers of a level's places, or ranks, for a group of trees."""
    return max(1, (TREES << level) // PAIRS)


def group_cost(n_columns: int, levels: int) -> tuple[float, float]:
    """Return the approximate instructions of a group of trees, and bytes of tests.

    Two registers take a permute of two, and several a choice of lanes.
    """
    width = row_width(n_columns)
    codes = ROWS * width // PAIRS
    of_codes = codes + 0.5 * (codes // (1 if width == PAIRS else 2) - 1)
    total, size = 0.0, 0
    for level in range(levels):
        n = registers(level)
        total += 2 * (n + 0.5 * (min(n, TREES) - 1)) + of_codes + LEVEL
        size += 2 * n * PAIRS
    return total, float(size)


def lay_pair_levels(forest: Forest, tests: RowTests, levels: int) -> PairLevels:
    n, groups = forest.n_trees, -(-forest.n_trees // TREES)
    at = forest.tree_offset[:-1].astype(np.int32)[:, None]
    filled = []
    for level in range(levels):
        place, rank, children = descend(forest, tests, at)
        for values, padding in ((place, 0), (rank, NEVER_RIGHT)):
            by_tree = np.full((groups * TREES, 1 << level), padding, np.uint8)
            by_tree[:n] = values
            whole = np.zeros((groups, registers(level) * PAIRS), np.uint8)
            whole[:, : TREES << level] = by_tree.reshape(groups, -1)
            filled.append(whole)
        at = children.reshape(n, -1)
    joined = np.concatenate(filled, axis=1).reshape(groups, -1, PAIRS)
    return PairLevels(levels, n, joined, at)


class PairLevelsLowering:
    def __init__(self, top: PairLevels, model: Model, width: int) -> None:
        self.top, self._width = top, width
        self.groups, n, _ = top.tests.shape
        #: Elements of a group's tests, of a row's indices, and from a row to the next.
        self._stride, self.size = n * PAIRS, self.groups * TREES
        self.row_stride = 1
        self._vec = Vec(U8, PAIRS)
        self._tests = model("pair_tests", top.tests.reshape(-1))
        # As a constant, it would make LLVM choose lanes by moves between them.
        self._lane = model("pair_lanes", np.arange(PAIRS, dtype=np.uint8))

    def evaluate(self, codes: Part, index: Part) -> None:
        lane, zero = self._lane[0, self._vec], b.const(0, self._vec)
        n_masks = PAIRS.bit_length() - 1
        self._masks = [(lane & (1 << k)).ne(zero) for k in range(n_masks)]
        self._tree, self._row = lane >> 3, lane & (ROWS - 1)
        count = ROWS * self._width // PAIRS
        self._rows = [codes[k * PAIRS, self._vec] for k in range(count)]
        whole = self.groups // IN_TURN * IN_TURN
        if whole:
            with b.loop(0, whole, IN_TURN, hint="group") as group:
                self._evaluate(group, IN_TURN, index)
        if whole < self.groups:
            self._evaluate(b.const(whole), self.groups - whole, index)

    def _evaluate(self, first: Value, count: int, index: Part) -> None:
        levels, one = self.top.levels, b.const(1, self._vec)
        starts = [(first + k) * self._stride for k in range(count)]
        nodes = [self._tree] * count
        for level in range(levels):
            size = registers(level) * PAIRS
            for k, x in enumerate(nodes):
                place = self._looked_up(starts[k], size, x)
                rank = self._looked_up(starts[k] + size, size, x)
                right = self._code(place) > rank
                nodes[k] = b.select(right, x + x + one, x + x)
            starts = [start + 2 * size for start in starts]
        for k, x in enumerate(nodes):
            index[(first + k) * PAIRS] = x & ((1 << levels) - 1)

    def _looked_up(self, start: Value, size: int, x: Value) -> Value:
        each = max(PAIRS, size // TREES)  # a tree fills up to two registers
        found = []
        for first in range(0, size, each):
            places = range(first, first + each, PAIRS)
            tables = [self._tests[start + place, self._vec] for place in places]
            found.append(b.permute(tables, x))
        return self._chosen(found, len(self._masks))

    def _code(self, place: Value) -> Value:
        rows, width = self._rows, self._width
        if width < PAIRS:  # registers of several rows
            place = place | self._row * width
        each = 1 if width == PAIRS else 2
        parts = [rows[k : k + each] for k in range(0, len(rows), each)]
        return self._chosen(
            [b.permute(part, place) for part in parts], len(self._masks) // 2
        )

    def _chosen(self, found: Sequence[Value], end: int) -> Value:
        """Take each value's lanes: its number is the bits of a lane up to ``end``."""
        first = end - (len(found).bit_length() - 1)
        for mask in self._masks[first:end]:
            pairs = zip(found[::2], found[1::2], strict=True)
            found = [b.select(mask, high, low) for low, high in pairs]
        return found[0]

    def items(self, first: Value, count: int, index: Part) -> list[Value]:
        of_first = Part(index.buffer, index.first + first * ROWS)
        return [of_first[k * ROWS].to(I64) for k in range(count)]
