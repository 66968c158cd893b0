"""The sparse representation: only existing nodes, with pointers to their children.

It follows SilvanForge §6 and Treebeard §3.8.2. The children of a tile are neighbours,
so it stores one pointer.

Single nodes store leaves among the inner nodes, each pointing to itself: a finished
walk may take further hops at no cost, and a node takes 8 bytes, whether leaf or not.

Tiles of several nodes are large, so their leaves lie in an array of their own, as in
Treebeard. Its numbers follow those of the tiles. If a tile has tiles below it, a leaf
beside them is a tile of dummies that leads to the leaf in one more hop::

    tiles     t1 | l1  l2  l3  t2 |             t1 points to tile 1
    leaves    l1 l2 l3 | l4 l5 l6 l7            t2 points to leaf 3, number 5 + 3

Measured on three models of 100 trees, with tiles of 2 to 8 nodes on a CPU: a walk takes
0.75 times as long as with two pointers in a tile, one to tiles and one to leaves, which
need no tiles of dummies and up to 40 % fewer bytes, but a mask and a count of bits.
"""

from __future__ import annotations

import numpy as np

from skforge._typing import Bools, Int64s
from skforge.compiler.ir.hir.nodes import PredictEnsemble, TiledForest
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I32, I64, Buffer, Value
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.encoding import TestEncoding
from skforge.compiler.layouts.nodes import records
from skforge.exceptions import ScheduleError


class SparseLayout(records.RecordLayout):
    def _add_trees(self, roots: Int64s, first: Int64s) -> None:
        self._tree_records = first
        self._root = Buffer("roots", I32)
        self._first = Buffer("tree_records", I32)
        self._data += (
            layouts.BufferData(self._root, roots.astype(np.int32)),
            layouts.BufferData(self._first, first.astype(np.int32)),
        )

    def record_of(self, b: Builder, tree: Value, node: Value) -> Value:
        return node

    def root(self, b: Builder, tree: Value) -> Value:
        return self._root[tree].to(layouts.node_scalar(tree))

    def move_to_child(self, b: Builder, cursor: layouts.Cursor, exit_: Value) -> Value:
        return self.child_word(b, cursor) + exit_

    def cache_trees(self, b: Builder, first: Value, count: Value) -> None:
        words = self.shape.words
        lo = self._first[first].to(first.type)  # type: ignore[arg-type]
        end = self._first[first + count]
        hi = end.to(first.type)  # type: ignore[arg-type]
        records.prefetch_lines(self.nodes, lo * words, hi * words)

    def share_trees(
        self, memory: layouts.SharedMemory, first: Value, count: Value, most: int
    ) -> layouts.HopLayout:
        starts = self._tree_records
        most = min(most, len(starts) - 1)
        longest = int((starts[most:] - starts[: len(starts) - most]).max())
        lo = self._first[first].to(I64)
        hi = self._first[first + count].to(I64)
        return self._share(memory, lo, hi - lo, longest)


def _pairs(tiles: TiledForest) -> Int64s:
    first = tiles.item_offset[:-1]
    inner = np.add.reduceat(tiles.leaf < 0, first, dtype=np.int64)
    return 2 * np.append(0, np.cumsum(inner + 1))


class SingleNodes(SparseLayout):
    """Inner nodes and leaves; a leaf leads to itself."""

    leaves_stay = True

    def __init__(self, hir: PredictEnsemble, shape: records.RecordShape) -> None:
        tiles = hir.tiles
        first = _pairs(tiles)
        inner = np.flatnonzero(tiles.leaf < 0)
        # The k-th inner node of a tree owns the tree's (k + 1)-th pair of records; the
        # root is the last of pair 0, so that siblings never straddle a pair.
        pairs = np.arange(1, len(inner) + 1, dtype=np.int32)
        pairs += np.repeat(
            np.arange(tiles.n_trees, dtype=np.int32), np.diff(first) // 2 - 1
        )
        children = pairs * np.int32(2)
        record = np.zeros(tiles.n_items, np.int32)
        record[tiles.item_offset[:-1]] = first[:-1] + 1
        for side, exits in enumerate(tiles.child[inner].T):
            present = slice(None) if exits.min(initial=0) >= 0 else exits >= 0
            record[exits[present]] = children[present] + np.int32(side)
        child = record - np.int32(1)  # leaves: the test is false, exit 1, themselves
        child[inner] = children
        n_records = int(first[-1])
        super().__init__(hir, shape, record, n_records, child)
        self._add_trees(first[:-1] + 1, first)

    def _idle_child(self, record: Int64s) -> Int64s:
        return np.maximum(record - 1, 0)

    def is_leaf(self, b: Builder, cursor: layouts.Cursor) -> Value:
        return (self.child_word(b, cursor) + 1).eq(cursor.node)


def _stored(tiles: TiledForest) -> Bools:
    """Return which items have a record: tiles, and leaves beside a tile."""
    stored = tiles.leaf < 0
    exits = tiles.child[stored]
    beside = exits[((exits >= 0) & stored[exits]).any(axis=1)]
    stored[beside[beside >= 0]] = True
    return stored


class SparseTiles(SparseLayout):
    """Tiles of several nodes, and leaves numbered after them.

    A tile's exits in use are its last ones, since its dummies are above its nodes. So
    its pointer is the number of its first child less the exits before it, and leaves
    lie without gaps. Records 0 to ``tile_size - 1`` are idle: no pointer is negative.
    """

    leaves_by_number = True

    def __init__(self, hir: PredictEnsemble, shape: records.RecordShape) -> None:
        tiles, nt = hir.tiles, shape.tile_size
        stored, is_leaf = _stored(tiles), tiles.leaf >= 0
        first = nt + np.concatenate([[0], np.cumsum(stored)])[tiles.item_offset]
        n_records = int(first[-1])
        self._first_leaf, self._n_leaves = n_records, int(is_leaf.sum())
        self._leaf = np.where(is_leaf, np.cumsum(is_leaf) - 1, -1)
        record = np.where(stored, nt - 1 + np.cumsum(stored), -1)
        number = np.where(stored, record, n_records + self._leaf)
        child = n_records + self._leaf - nt  # a leaf's record leads there by exit nt
        inner = np.flatnonzero(~is_leaf)
        unused = (tiles.child[inner] >= 0).argmax(axis=1)
        child[inner] = number[tiles.child[inner, unused]] - unused
        super().__init__(hir, shape, record, n_records, child)
        self._add_trees(number[tiles.item_offset[:-1]], first)

    def item_of(self) -> Int64s:
        return self._leaf

    @property
    def n_items(self) -> int:
        return self._n_leaves

    def leaf_item(self, b: Builder, tree: Value, node: Value) -> Value:
        return node + -self._first_leaf

    def is_leaf(self, b: Builder, cursor: layouts.Cursor) -> Value:
        return cursor.node >= self._first_leaf

    def readable(self, b: Builder, node: Value) -> Value:
        first = self._shared_from
        is_leaf = node >= self._first_leaf
        return b.select(is_leaf, 0 if first is None else first, node)


def _n_records(tiles: TiledForest) -> int:
    if tiles.tile_size == 1:
        return int(_pairs(tiles)[-1])
    return tiles.tile_size + int(_stored(tiles).sum())


def _shape(hir: PredictEnsemble) -> records.RecordShape:
    tiles = hir.tiles
    n_records = _n_records(tiles)
    numbers = n_records if tiles.tile_size == 1 else n_records + tiles.n_items
    if numbers >= 1 << 31:
        raise ScheduleError(
            f"the forest has {tiles.n_items:,} tiles and leaves, more than 32-bit "
            "indices can number; compile it in parts."
        )
    encoding = TestEncoding.of(hir)
    bits = encoding.bits + max(1, n_records.bit_length())
    packed = tiles.tile_size == 1 and bits <= 32
    return records.RecordShape(tiles.tile_size, encoding, True, packed)


class Sparse(layouts.WalkRepresentation):
    name = "sparse"
    byte_limit = 1 << 36

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        return _n_records(hir.tiles) * _shape(hir).words * 4

    def lay_out(self, hir: PredictEnsemble) -> layouts.HopLayout:
        kind = SingleNodes if hir.tiles.tile_size == 1 else SparseTiles
        return kind(hir, _shape(hir))


layouts.register(Sparse())
