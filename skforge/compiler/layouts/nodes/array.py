"""The array and reorg representations: complete heaps, no pointers.

``array`` stores each tree's tiles in level order, with the children of node n at
``(tile_size + 1) * n + 1 ...`` (SilvanForge §6, Treebeard §3.8.1). ``reorg``
interleaves the heaps of all trees, roots first, as RAPIDS FIL does. Both reserve space
for complete trees of the forest's maximum depth: fast for shallow balanced trees, an
error for deep ones.

On a CPU, ``array`` numbers single nodes of all T trees as one heap: the roots are
T .. 2 T - 1, the children of node n are 2 n and 2 n + 1. A hop then adds nothing for
its tree. Where all leaves have the same depth, as in padded trees, they are known by
their number, and a feature word needs no mask.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Literal

import numpy as np

from skforge._typing import Int64s
from skforge.compiler.ir.hir.nodes import PredictEnsemble, TiledForest
from skforge.compiler.ir.lir.builder import Builder, b, with_lanes
from skforge.compiler.ir.lir.nodes import U32, Value
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.encoding import TestEncoding
from skforge.compiler.layouts.nodes import records

NodeOrder = Literal["array", "reorg"]

#: Places of a heap that ``cache`` prefetches on a CPU: eight levels of single nodes.
#: Measured on 40 trees of depth 18: whole heaps take 65,000 us a row (reorg) and 5,700
#: (array), this limit 22 and 11, no cache 23 and 13.
MOST_PREFETCHED = 255


#: Bits of a feature word.
WORD_BITS = 32


def _heap_size(tiles: TiledForest) -> int:
    fan, depth = tiles.tile_size + 1, int(tiles.max_depth.max(initial=0))
    return (fan ** (depth + 1) - 1) // (fan - 1)


def _heap_numbers(tiles: TiledForest) -> Int64s:
    fan = tiles.tile_size + 1
    place = np.zeros(tiles.n_items, np.int64)
    level = np.asarray(tiles.item_offset[:-1])
    while len(level):
        parents = level[tiles.leaf[level] < 0]
        children = tiles.child[parents]
        present = children >= 0
        numbers = place[parents][:, None] * fan + 1 + np.arange(fan)
        place[children[present]] = numbers[present]
        level = children[present].astype(np.int64)
    return place


class HeapLayout(records.RecordLayout):
    def __init__(
        self, hir: PredictEnsemble, shape: records.RecordShape, order: NodeOrder
    ) -> None:
        tiles = hir.tiles
        self._order, self._forest_heap = order, order == "array" and _one_heap(hir)
        self._heap, self._n_trees = _heap_size(tiles), tiles.n_trees
        #: Single nodes are numbered from 1, so that children are 2 n and 2 n + 1.
        self._root = 1 if shape.tile_size == 1 else 0
        if self._forest_heap:
            self._root = self._n_trees
        #: The first leaf's number, if leaves come last; else words have a flag.
        self._first_leaf: int | None = None
        #: First interleaved tree in shared memory, and the most trees there.
        self._shared_trees: tuple[Value, int] | None = None
        if self._forest_heap and _even(tiles):
            self._first_leaf = self._n_trees << int(tiles.max_depth.max(initial=0))
        flagged = self._first_leaf is None
        self._leaf_flag = 1 << shape.encoding.free_bit if flagged else 0
        tree = np.repeat(np.arange(tiles.n_trees), np.diff(tiles.item_offset))
        record = _heap_numbers(tiles)
        if self._forest_heap:
            # Before a tree's node of some level are as many of its level in each tree.
            level = np.left_shift(1, tiles.depth.astype(np.int64))
            record += (level - 1) * (self._n_trees - 1) + tree * level
        elif order == "array":
            record += tree * self._heap
        else:
            record = record * tiles.n_trees + tree
        n_records = self._heap * self._n_trees
        super().__init__(hir, shape, record, n_records, leaf_flag=self._leaf_flag)

    def record_of(self, b: Builder, tree: Value, node: Value) -> Value:
        if self._forest_heap:
            return node + -self._root
        tree = tree.to(layouts.node_scalar(node))
        if self._order == "array":
            first = tree * self._heap + -self._root
            return first + node
        first = tree + -self._root * self._n_trees
        return node * self._n_trees + first

    def root(self, b: Builder, tree: Value) -> Value:
        if self._forest_heap:
            return tree.to(layouts.node_scalar(tree)) + self._root
        return b.const(self._root, with_lanes(layouts.node_scalar(tree), tree.type))

    def move_to_child(self, b: Builder, cursor: layouts.Cursor, exit_: Value) -> Value:
        first = cursor.node * (self.shape.tile_size + 1)
        if self.shape.tile_size > 1:
            first = first + 1
        return first + exit_

    def is_leaf(self, b: Builder, cursor: layouts.Cursor) -> Value:
        if self._first_leaf is not None:
            return cursor.node >= self._first_leaf
        if self.shape.tile_size == 1:
            word = cursor.words[1]
        else:
            word = self.nodes[cursor.words[0] + self.shape.feature_at]
        return (word & self._leaf_flag).ne(0)

    def cache_trees(self, b: Builder, first: Value, count: Value) -> None:
        words = self.shape.words
        near = min(self._heap, MOST_PREFETCHED)

        def lines(record: Value, length: Value) -> None:
            lo = record * words
            records.prefetch_lines(self.nodes, lo, lo + length * words)

        if self._forest_heap:
            levels = int(np.log2(near + 1))
            for level in range(levels):
                lo = first * (1 << level) + self._n_trees * ((1 << level) - 1)
                lines(lo, count * (1 << level))
        elif self._order == "reorg":
            with b.loop(near, hint="heap") as place:
                lines(place * self._n_trees + first, count)
        elif near < self._heap:
            with b.loop(count, hint="tree") as tree:
                lines((first + tree) * self._heap, b.const(near))
        else:
            lines(first * self._heap, count * self._heap)

    def share_trees(
        self, memory: layouts.SharedMemory, first: Value, count: Value, most: int
    ) -> layouts.HopLayout:
        heap = self._heap
        if self._order == "array":
            lo, n = first * heap, count * heap
            return self._share(memory, lo, n, most * heap)
        shared = copy.copy(self)
        words, n_words = self.shape.words, heap * most * self.shape.words
        nodes = memory.allocate("cached_nodes", U32, n_words, "cache of trees")
        with memory.each(b.const(n_words)) as i:
            word, record = i % words, i // words
            node, tree = record // most, record % most
            with b.when(tree < count):
                number = node + self._root
                there = self.record_of(b, first + tree, number) * words + word
                nodes[i] = self.nodes[there]
        shared.nodes, shared._shared_trees = nodes, (first, most)
        return shared

    def _stored_at(self, b: Builder, tree: Value, node: Value) -> Value:
        if self._shared_trees is None:
            return super()._stored_at(b, tree, node)
        first, most = self._shared_trees
        local = tree.to(layouts.node_scalar(node)) - first + -self._root * most
        return node * most + local


def _one_heap(hir: PredictEnsemble) -> bool:
    return hir.tiles.tile_size == 1 and not hir.nest.on_grid


def _even(tiles: TiledForest) -> bool:
    depth = tiles.depth[tiles.leaf >= 0]
    return bool((depth == depth.max(initial=0)).all())


class Heap(layouts.WalkRepresentation):
    """``represent("array")`` and ``represent("reorg")``."""

    def __init__(self, order: NodeOrder) -> None:
        self.name = order
        self._order: NodeOrder = order

    def _shape(self, hir: PredictEnsemble) -> records.RecordShape:
        encoding = TestEncoding.of(hir, code_on_top=True)
        alone = encoding.bits == encoding.feature_bits
        if self.name == "array" and alone and _one_heap(hir) and _even(hir.tiles):
            encoding = replace(encoding, feature_bits=WORD_BITS)  # no mask
            return records.RecordShape(hir.tiles.tile_size, encoding, False, False)
        if encoding.bits >= 32:
            self.refuse(
                f"has no room for {hir.forest.n_features:,} features beside its leaf "
                'flag; use represent("sparse").'
            )
        return records.RecordShape(hir.tiles.tile_size, encoding, False, False)

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        return _heap_size(hir.tiles) * hir.tiles.n_trees * self._shape(hir).words * 4

    def check(self, hir: PredictEnsemble) -> None:
        if self._order == "reorg" and hir.tiles.tile_size > 1:
            self.refuse(
                'stores single nodes; leave out tile_nodes or use represent("array").'
            )
        super().check(hir)

    def lay_out(self, hir: PredictEnsemble) -> layouts.HopLayout:
        return HeapLayout(hir, self._shape(hir), self._order)


layouts.register(Heap("array"))
layouts.register(Heap("reorg"))
