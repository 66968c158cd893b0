"""The packed representation: three levels of a complete tree in sixteen bytes.

A tile holds the tests of the seven nodes of three levels, each with one byte for the
column of codes and one for the code it compares with. One 128-bit load serves three
hops: a third of the dependent loads of a walk, and 2.3 bytes a node (GPU notes, idea C;
Treebeard §3 for tiles). The tiles of a tree are stored level by level, complete,
without pointers. Leaves above the last level continue to the right through dummy
tests::

    word 0: node 0 | -        word 1: node 1 | node 2
    word 2: node 3 | node 4   word 3: node 5 | node 6     (16 bits each)
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np

from skforge._typing import Int64s
from skforge.compiler.forest.bins import CodeTable, plan_codes
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.hir.nodes import PredictEnsemble, TiledForest
from skforge.compiler.ir.lir.builder import Builder, b
from skforge.compiler.ir.lir.nodes import U32, Buffer, Value, Vec
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.base import BufferData, TreeLayout, node_scalar, register
from skforge.compiler.layouts.encoding import EncodedTests
from skforge.compiler.layouts.nodes.records import heap_numbers
from skforge.compiler.schedule import directives as d
from skforge.compiler.schedule.bound import every_loop

LEVELS = 3
FAN = 1 << LEVELS
WORDS = 4
#: Most tiles of a walk: each makes complete trees eight times larger.
MOST_HOPS = 4
#: Columns that one byte can number.
MOST_COLUMNS = 256


def _hops(tiles: TiledForest) -> int:
    return -(-int(tiles.max_depth.max(initial=0)) // LEVELS)


def _tiles_a_tree(hops: int) -> int:
    return int((FAN**hops - 1) // (FAN - 1))


class PackedLayout(layouts.WalkLayout):
    """Tiles of three levels; a node is its place among the tiles of its level."""

    def __init__(self, hir: PredictEnsemble) -> None:
        tiles, tests = hir.tiles, EncodedTests.of(hir)
        self._hops = _hops(tiles)
        self._size = _tiles_a_tree(self._hops)
        self._n_trees = tiles.n_trees
        self._first: Value | None = None  # the first tree in shared memory
        self.nodes = Buffer("tiles", U32, alignment=64)
        tree = np.repeat(np.arange(tiles.n_trees), np.diff(tiles.item_offset))
        depth = tiles.depth.astype(np.int64)
        place = heap_numbers(tiles) + 1 - (1 << depth)  # among the nodes of a depth
        hop, level = depth // LEVELS, depth % LEVELS
        inner = tiles.leaf < 0
        # Dummies compare column 0 with code 0, which sends every row right.
        halves = np.zeros((tiles.n_trees * self._size, 2 * WORDS), np.uint16)
        tile = tree * self._size + (FAN**hop - 1) // (FAN - 1) + (place >> level)
        slot = np.where(level == 0, 0, (1 << level) + place % (1 << level))
        predicate = tiles.predicate[inner, 0]
        column = tests.feature[np.maximum(predicate, 0)] if len(tests.feature) else 0
        code = tests.threshold[np.maximum(predicate, 0)] if len(tests.feature) else 0
        test = np.asarray(column, np.uint16) | (np.asarray(code, np.uint16) << 8)
        halves[tile[inner], slot[inner]] = np.where(predicate >= 0, test, 0)
        self._data = (BufferData(self.nodes, halves.view(np.uint32).reshape(-1)),)
        # A leaf above the last level continues through dummies, always to the right.
        below = LEVELS * self._hops - depth
        leaf_place = ((place + 1) << below) - 1
        self._leaf = np.where(inner, -1, tree * FAN**self._hops + leaf_place)

    def buffers(self) -> tuple[BufferData, ...]:
        return self._data

    def root(self, b: Builder, tree: Value) -> Value:
        return b.const(FAN**self._hops - 1, node_scalar(tree))

    def walk(self, b: Builder, tree: Value, read: Callable[[Value], Value]) -> Value:
        """Return the leaf's place. Hops are unrolled: each level's base is constant."""
        scalar = node_scalar(tree)
        place = b.const(0, scalar)
        if self._first is not None:
            tree = tree - self._first
        first = tree.to(scalar) * self._size
        for hop in range(self._hops):
            tile = first + _tiles_a_tree(hop) + place
            words = self.nodes[tile * WORDS, Vec(U32, WORDS)]
            place = self._three_levels(words, place, read)
        return place

    def _three_levels(
        self, words: Value, place: Value, read: Callable[[Value], Value]
    ) -> Value:
        low, high = b.extract(words, 2), b.extract(words, 3)
        test = b.extract(words, 0)
        for level in range(LEVELS):
            right = self._right(test, read, whole=level == 0)
            place = place * 2 + right.to(place.type)  # type: ignore[arg-type]
            if level == 0:
                pair = b.extract(words, 1)
                low = b.select(right, high, low)
            elif level == 1:
                pair = low
            else:
                break
            test = b.select(right, pair >> 16, pair)
        return place

    def _right(self, test: Value, read: Callable[[Value], Value], whole: bool) -> Value:
        code = test >> 8
        if not whole:  # the upper half holds another test
            code = code & 0xFF
        return read(test & 0xFF) >= code

    def leaf_item(self, b: Builder, tree: Value, node: Value) -> Value:
        leaves: int = FAN**self._hops
        return tree.to(node_scalar(node)) * leaves + node

    def item_of(self) -> Int64s:
        return self._leaf

    @property
    def n_items(self) -> int:
        return int(self._n_trees * FAN**self._hops)

    def cache_trees(self, b: Builder, first: Value, count: Value) -> None:
        words = self._size * WORDS
        lo = first * words
        hi = lo + count * words
        with b.loop(lo, hi, 16) as i:
            b.prefetch(self.nodes, i)

    def share_trees(
        self, memory: layouts.SharedMemory, first: Value, count: Value, most: int
    ) -> TreeLayout:
        words = self._size * WORDS
        shared = copy.copy(self)
        lo, n = first * words, count * words
        shared.nodes = memory.copy("cached_tiles", self.nodes, lo, n, most * words)
        shared._first = first
        return shared


#: Loop directives that count single hops.
_BY_HOPS = (d.UnrollWalk, d.PeelWalk, d.Specialize, d.Vectorize)


class Packed(layouts.WalkRepresentation):
    name = "packed"
    has_complete_tiles = True

    @staticmethod
    def plan_codes(forest: Forest) -> CodeTable:
        return plan_codes(forest, np.uint8)

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        hops = _hops(hir.tiles)
        leaf = 4 if hir.forest.leaf_value.shape[1] > 1 else 8
        tree = _tiles_a_tree(hops) * 4 * WORDS + FAN**hops * leaf
        return int(tree * hir.tiles.n_trees)

    def check(self, hir: PredictEnsemble) -> None:
        nest = hir.nest
        if nest.tile_kind != "complete" or nest.tile_nodes != FAN - 1:
            self.refuse('needs tile_nodes(7, "complete").')
        if hir.codes is None:
            self.refuse(
                "compares one-byte codes; mark the loop over blocks of rows with "
                "quantize."
            )
        every = (mark for loop in every_loop(nest.loops) for mark in loop.marks)
        marks = [d.name_of(mark) for mark in every if isinstance(mark, _BY_HOPS)]
        for mark in ["pad_trees"] if nest.pad_trees else marks:
            self.refuse(
                f"unrolls whole walks, three levels per tile, so {mark} has no effect; "
                "leave it out."
            )
        columns, hops = hir.codes.n_columns, _hops(hir.tiles)
        if columns > MOST_COLUMNS:
            self.refuse(
                "stores the column of a test in one byte, but this forest has "
                f'{columns:,} columns; use represent("sparse").'
            )
        if hops > MOST_HOPS:
            self.refuse(
                f"takes trees of at most {LEVELS * MOST_HOPS} levels, but this forest "
                f'has {int(hir.tiles.max_depth.max())}; use represent("sparse").'
            )
        super().check(hir)

    def lay_out(self, hir: PredictEnsemble) -> TreeLayout:
        return PackedLayout(hir)


register(Packed())
