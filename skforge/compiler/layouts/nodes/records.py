"""One record of 32-bit words a tile: shared by array, sparse and reorg.

A record is ``thresholds | feature words | shape | child``. Tile size 1 has no shape,
and packs the child into the feature word if both fit (8 bytes a node).
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.ir.hir.nodes import PredictEnsemble, TiledForest
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I32, I64, U32, Buffer, Scalar, Value, Vec
from skforge.compiler.ir.lir.numpy_types import scalar_of
from skforge.compiler.layouts.base import (
    BufferData,
    Cursor,
    Layout,
    SharedMemory,
    node_scalar,
)
from skforge.compiler.layouts.nodes.encoding import TestEncoding

CACHE_LINE = 64

#: From this many words on, a lane's 32-bit record number times words overflows.
WIDE_OFFSETS = 1 << 31


@dataclass(frozen=True, slots=True)
class RecordShape:
    """Positions of the words of a record."""

    tile_size: int
    threshold_words: int  # of one threshold: 1 (float32), 2 (float64), 0 (codes)
    child: bool  # whether a child pointer is stored
    packed: bool  # child above the feature word's bits

    @property
    def feature_at(self) -> int:
        """First feature word."""
        return self.tile_size * self.threshold_words

    @property
    def shape_at(self) -> int:
        """The shape word (tiles of several nodes)."""
        return self.feature_at + self.tile_size

    @property
    def child_at(self) -> int:
        """The child word, if it is separate."""
        return self.shape_at + (self.tile_size > 1)

    @property
    def words(self) -> int:
        """Words of a record; even, so that float64 thresholds stay aligned."""
        n = self.child_at + (self.child and not self.packed)
        return n + n % 2 if self.threshold_words == 2 else n


class RecordLayout(Layout):
    """A buffer of records; subclasses compute the record of a node."""

    def __init__(
        self, hir: PredictEnsemble, shape: RecordShape, encoding: TestEncoding
    ) -> None:
        self.shape, self.encoding = shape, encoding
        self.threshold_type: Scalar = scalar_of(self.encoding.tests.threshold.dtype)
        self.nodes = Buffer("nodes", U32, alignment=CACHE_LINE)
        self._data: tuple[BufferData, ...] = ()
        self._wide_offsets = False
        self._on_gpu = hir.nest.on_gpu
        #: The first record in shared memory, if any is there.
        self._shared_from: Value | None = None

    # ------------------------------------------------------------ filling

    def fill_records(
        self,
        hir: PredictEnsemble,
        n_records: int,
        record: NDArray[np.int64],
        child: NDArray[np.int64] | None,
        idle_child: NDArray[np.int64] | None,
        leaf_flag: int = 0,
    ) -> NDArray[np.uint32]:
        """Write every HIR item's record.

        ``record[i]`` is the record of item i, and ``child`` its child word.
        ``idle_child`` fills the records without an item. ``leaf_flag`` is ored into the
        first feature word of leaves.
        """
        tiles, shape, nt = hir.tiles, self.shape, self.shape.tile_size
        self._wide_offsets = n_records * shape.words >= WIDE_OFFSETS
        words = np.zeros((n_records, shape.words), np.uint32)
        features = self.encoding.encode(tiles.predicate)
        # Idle records: every test is false, as it is for codes of 0.
        if shape.threshold_words:
            thresholds = self.encoding.thresholds(tiles.predicate)
            nan = np.full(nt, np.nan, thresholds.dtype).view(np.uint32)
            words[:, : shape.feature_at] = nan
            words[record, : shape.feature_at] = np.ascontiguousarray(thresholds).view(
                np.uint32
            )
        if leaf_flag:
            features[tiles.leaf >= 0, 0] |= np.uint32(leaf_flag)
        words[record, shape.feature_at : shape.shape_at] = features
        if nt > 1:
            words[record, shape.shape_at] = tiles.shape
        if child is not None and idle_child is not None:
            if shape.packed:
                up = np.uint32(self.encoding.bits)
                words[:, shape.feature_at] = idle_child.astype(np.uint32) << up
                words[record, shape.feature_at] = features[:, 0] | (
                    child.astype(np.uint32) << up
                )
            else:
                words[:, shape.child_at] = idle_child
                words[record, shape.child_at] = child
        return words

    def buffers(self) -> tuple[BufferData, ...]:
        """Return the declared and filled buffers."""
        return self._data

    # ------------------------------------------------------------ reading

    @abstractmethod
    def record_of(self, b: Builder, tree: Value, node: Value) -> Value:
        """Return the record number of a node."""

    def open(self, b: Builder, tree: Value, node: Value) -> Cursor:
        """Read the feature word (tile size 1); larger tiles are read as vectors."""
        record = self._stored_at(b, tree, node)
        if self._wide_offsets:
            record = b.convert(record, I64)
        base = b.mul(record, self.shape.words)
        if self.shape.tile_size > 1:
            return Cursor(tree, node, (base,))
        if self._pairs:
            pair = b.load(self.nodes, base, Vec(U32, 2))
            low, high = b.extract(pair, 0), b.extract(pair, 1)
            return Cursor(tree, node, (base, high, low))
        word = b.load(self.nodes, b.add(base, self.shape.feature_at))
        return Cursor(tree, node, (base, word))

    @property
    def _pairs(self) -> bool:
        """Whether a node is a threshold and a test word, read as a pair.

        A GPU reads both in one transaction.
        """
        words = self.shape.threshold_words, self.shape.feature_at, self.shape.words
        return self._on_gpu and words == (1, 1, 2)

    def _stored_at(self, b: Builder, tree: Value, node: Value) -> Value:
        """Return the position of a record in ``nodes``."""
        record = self.record_of(b, tree, node)
        if self._shared_from is not None:
            record = b.binary("sub", record, self._shared_from)
        return record

    def _share(
        self, memory: SharedMemory, first: Value, count: Value, most: int
    ) -> Layout:
        """Copy ``count`` records, at most ``most``, from ``first`` to shared memory."""
        b, words = memory.b, self.shape.words
        shared = copy.copy(self)
        lo, n = b.mul(first, words), b.mul(count, words)
        shared.nodes = memory.copy("cached_nodes", self.nodes, lo, n, most * words)
        shared._shared_from = first
        return shared

    def _features(self, b: Builder, at: Cursor) -> Value:
        if self.shape.tile_size == 1:
            return at.words[1]
        index = b.add(at.words[0], self.shape.feature_at)
        return b.load(self.nodes, index, Vec(U32, self.shape.tile_size))

    def load_threshold(self, b: Builder, at: Cursor) -> Value:
        """Return one threshold, or a vector of the tile's."""
        if not self.shape.threshold_words:
            return self.encoding.code(b, self._features(b, at))
        base = at.words[0]
        if self._pairs and self.shape.tile_size == 1:
            return b.bitcast(at.words[2], self.threshold_type)
        if self.shape.tile_size == 1:
            return b.load(self.nodes, base, self.threshold_type)
        return b.load(self.nodes, base, Vec(self.threshold_type, self.shape.tile_size))

    def load_feature_index(self, b: Builder, at: Cursor) -> Value:
        """Return the feature number(s) as u32."""
        return self.encoding.feature(b, self._features(b, at))

    def load_flag(self, b: Builder, at: Cursor, flag: str) -> Value:
        """Return a flag of the test(s)."""
        return self.encoding.flag(b, self._features(b, at), flag)

    def load_tile_shape(self, b: Builder, at: Cursor) -> Value:
        """Return the shape number as i64."""
        word = b.load(self.nodes, b.add(at.words[0], self.shape.shape_at))
        return b.convert(word, I64)

    def child_word(self, b: Builder, at: Cursor) -> Value:
        """Return the stored child number, in the node's type."""
        scalar = node_scalar(at.node)
        if self.shape.packed:
            word = b.binary("shr", at.words[1], self.encoding.bits)
        else:
            word = b.load(self.nodes, b.add(at.words[0], self.shape.child_at))
        return b.bitcast(word, I32) if scalar == I32 else b.convert(word, scalar)


def heap_numbers(tiles: TiledForest) -> NDArray[np.int64]:
    """Return each item's place in its tree's heap, level by level."""
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


def prefetch_lines(b: Builder, buffer: Buffer, first: Value, end: Value) -> None:
    """Prefetch elements ``first .. end`` of a buffer, one hint a cache line."""
    per_line = CACHE_LINE // buffer.element.bytes
    b.for_(
        first,
        end,
        b.const(per_line),
        lambda i, _: b.prefetch(buffer, i),
        hint="line",
    )


__all__ = [
    "CACHE_LINE",
    "RecordLayout",
    "RecordShape",
    "heap_numbers",
    "prefetch_lines",
]
