"""The sparse representation: only existing nodes, with pointers to their children.

It follows SilvanForge §6 and Treebeard §3.8.2, with one change: leaves are stored among
the tiles and their child pointer leads back to themselves, so that a finished walk may
take further hops at no cost. All exits of a tile are contiguous; an exit that no row
takes has an idle record.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.ir.hir.nodes import PredictEnsemble, TiledForest
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I32, I64, Buffer, Value
from skforge.compiler.layouts.base import (
    BufferData,
    Cursor,
    Layout,
    SharedMemory,
    WalkRepresentation,
    node_scalar,
    register,
)
from skforge.compiler.layouts.nodes.encoding import TestEncoding
from skforge.compiler.layouts.nodes.records import (
    RecordLayout,
    RecordShape,
    prefetch_lines,
)
from skforge.exceptions import ScheduleError


def _tree_records(tiles: TiledForest) -> NDArray[np.int64]:
    """Return each tree's first record, and the end, in blocks of tile_size + 1."""
    block = tiles.tile_size + 1
    inner = np.concatenate([[0], np.cumsum(tiles.leaf < 0)])[tiles.item_offset]
    return (inner + np.arange(len(inner))) * block


class SparseLayout(RecordLayout):
    """Records of existing tiles; a node is its record number."""

    leaves_stay = True

    def __init__(self, hir: PredictEnsemble, shape: RecordShape) -> None:
        tiles, nt = hir.tiles, hir.tiles.tile_size
        block = nt + 1
        first = _tree_records(tiles)
        tree = np.repeat(np.arange(tiles.n_trees), np.diff(tiles.item_offset))
        inner = np.flatnonzero(tiles.leaf < 0)
        # The k-th inner tile of a tree owns the tree's (k + 1)-th block of records; the
        # root is the last of block 0, so that siblings never straddle a pair.
        children = np.arange(len(inner)) * block + (tree[inner] + 1) * block
        record = np.zeros(tiles.n_items, np.int64)
        record[tiles.item_offset[:-1]] = first[:-1] + nt
        exits = tiles.child[inner]
        present = exits >= 0
        record[exits[present]] = (children[:, None] + np.arange(block))[present]
        child = record - nt  # leaves: all tests false, exit nt, themselves
        child[inner] = children
        n_records = int(first[-1])
        idle = np.maximum(np.arange(n_records) - nt, 0)
        super().__init__(hir, shape, record, n_records, (child, idle))
        self._tree_records = first
        self._root = Buffer("roots", I32)
        self._first = Buffer("tree_records", I32)
        self._data += (
            BufferData(self._root, (first[:-1] + nt).astype(np.int32)),
            BufferData(self._first, first.astype(np.int32)),
        )

    def record_of(self, b: Builder, tree: Value, node: Value) -> Value:
        """Return the node: it is the record number."""
        return node

    def root(self, b: Builder, tree: Value) -> Value:
        """Return the record of a tree's root."""
        return b.convert(b.load(self._root, tree), node_scalar(tree))

    def move_to_child(self, b: Builder, at: Cursor, exit_: Value) -> Value:
        """Return the record ``exit_`` places into the tile's block of children."""
        return b.add(self.child_word(b, at), exit_)

    def is_leaf(self, b: Builder, at: Cursor) -> Value:
        """Return whether the last exit leads back to the node."""
        back = b.add(self.child_word(b, at), self.shape.tile_size)
        return b.compare("eq", back, at.node)

    def cache_trees(self, b: Builder, first: Value, count: Value) -> None:
        """Prefetch the records of consecutive trees."""
        words = self.shape.words
        lo = b.convert(b.load(self._first, first), first.type)  # type: ignore[arg-type]
        end = b.load(self._first, b.add(first, count))
        hi = b.convert(end, first.type)  # type: ignore[arg-type]
        prefetch_lines(b, self.nodes, b.mul(lo, words), b.mul(hi, words))

    def share_trees(
        self, memory: SharedMemory, first: Value, count: Value, most: int
    ) -> Layout:
        """Copy the records of consecutive trees to shared memory."""
        b, starts = memory.b, self._tree_records
        most = min(most, len(starts) - 1)
        longest = int((starts[most:] - starts[: len(starts) - most]).max())
        lo = b.convert(b.load(self._first, first), I64)
        hi = b.convert(b.load(self._first, b.add(first, count)), I64)
        return self._share(memory, lo, b.sub(hi, lo), longest)


def _shape(hir: PredictEnsemble) -> RecordShape:
    tiles = hir.tiles
    n_records = int(_tree_records(tiles)[-1])
    if n_records >= 1 << 31:
        raise ScheduleError(
            f"the forest has {tiles.n_items:,} tiles and leaves, more than 32-bit "
            "indices can number; compile it in parts."
        )
    encoding = TestEncoding.of(hir)
    bits = encoding.bits + max(1, n_records.bit_length())
    packed = tiles.tile_size == 1 and bits <= 32
    return RecordShape(tiles.tile_size, encoding, True, packed)


class Sparse(WalkRepresentation):
    """``represent("sparse")``."""

    name = "sparse"
    byte_limit = 1 << 36

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        """Return the bytes of all records."""
        return int(_tree_records(hir.tiles)[-1]) * _shape(hir).words * 4

    def lay_out(self, hir: PredictEnsemble) -> Layout:
        """Build the records."""
        return SparseLayout(hir, _shape(hir))


register(Sparse())
