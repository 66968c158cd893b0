"""One record of 32-bit words a tile: shared by array, sparse and reorg.

A record is ``thresholds | feature words | shape | child``. Tile size 1 has no shape,
and packs the child into the feature word if both fit (8 bytes a node).
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Int64s, Uint32s
from skforge.compiler.ir.hir.nodes import PredictEnsemble, TiledForest
from skforge.compiler.ir.lir.builder import Builder, b
from skforge.compiler.ir.lir.nodes import I32, I64, U32, Buffer, Scalar, Value, Vec
from skforge.compiler.ir.lir.types import scalar_of
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.base import BufferData, Cursor, HopLayout, node_scalar
from skforge.compiler.layouts.encoding import TestEncoding

CACHE_LINE = 64

#: From this many words on, a lane's 32-bit record number times words overflows.
WIDE_OFFSETS = 1 << 31


@dataclass(frozen=True, slots=True)
class RecordShape:
    """Positions of the words of a record."""

    tile_size: int
    encoding: TestEncoding
    child: bool  # whether a child pointer is stored
    packed: bool  # child above the feature word's bits

    @property
    def feature_at(self) -> int:
        return self.tile_size * self.encoding.threshold_words

    @property
    def shape_at(self) -> int:
        return self.feature_at + self.tile_size

    @property
    def child_at(self) -> int:
        return self.shape_at + (self.tile_size > 1)

    @property
    def words(self) -> int:
        """Words of a record; even, so that float64 thresholds stay aligned."""
        n = self.child_at + (self.child and not self.packed)
        return n + n % 2 if self.encoding.threshold_words == 2 else n


class RecordLayout(HopLayout):
    """A buffer of records; subclasses compute the record of a node.

    ``record[i]`` is the record of HIR item i (-1: none), ``n_records`` in all.
    ``child`` has the child word of each item. ``leaf_flag`` is ored into the first
    feature word of leaves.
    """

    def __init__(
        self,
        hir: PredictEnsemble,
        shape: RecordShape,
        record: NDArray[np.integer[Any]],
        n_records: int,
        child: NDArray[np.integer[Any]] | None = None,
        leaf_flag: int = 0,
    ) -> None:
        self.shape, self.encoding = shape, shape.encoding
        self.threshold_type: Scalar = scalar_of(self.encoding.tests.threshold.dtype)
        self.nodes = Buffer("nodes", U32, alignment=CACHE_LINE)
        self.record, self._n_records = record, n_records
        self._wide_offsets = n_records * shape.words >= WIDE_OFFSETS
        self._on_grid = hir.nest.on_grid
        #: The first record in shared memory, if any is there.
        self._shared_from: Value | None = None
        words = self._filled(hir.tiles, child, leaf_flag)
        self._data: tuple[BufferData, ...] = (BufferData(self.nodes, words),)

    def _filled(
        self, tiles: TiledForest, child: NDArray[np.integer[Any]] | None, leaf_flag: int
    ) -> Uint32s:
        record, shape, encoding = self.record, self.shape, self.encoding
        predicate, shapes, leaf = tiles.predicate, tiles.shape, tiles.leaf
        stored = record >= 0
        if not stored.all():
            record, leaf = record[stored], leaf[stored]
            predicate, shapes = predicate[stored], shapes[stored]
            child = None if child is None else child[stored]
        words = np.zeros((self._n_records, shape.words), np.uint32)
        unused = np.ones(self._n_records, np.bool_)
        unused[record] = False
        idle = np.flatnonzero(unused)
        if encoding.threshold_words:
            thresholds = np.ascontiguousarray(encoding.thresholds(predicate))
            # Every test of an idle record is false, as it is for codes of 0.
            nan = np.full(shape.tile_size, np.nan, thresholds.dtype).view(np.uint32)
            words[idle, : shape.feature_at] = nan
            for at, column in enumerate(thresholds.view(np.uint32).T):
                words[record, at] = column
            del thresholds, column  # forests may have gigabytes
        features = encoding.encode(predicate)
        if leaf_flag:
            features[leaf >= 0, 0] |= np.uint32(leaf_flag)
        if child is not None and shape.packed:
            up = np.uint32(encoding.bits)
            features[:, 0] |= child.astype(np.uint32) << up
            words[idle, shape.feature_at] = self._idle_child(idle) << up
        elif child is not None:
            words[record, shape.child_at] = child
            words[idle, shape.child_at] = self._idle_child(idle)
        for at, column in enumerate(features.T, shape.feature_at):
            words[record, at] = column
        if shape.tile_size > 1:
            words[record, shape.shape_at] = shapes
        return words.reshape(-1)

    def _idle_child(self, record: Int64s) -> Int64s:
        return np.zeros_like(record)

    def item_of(self) -> NDArray[np.integer[Any]]:
        return self.record

    @property
    def n_items(self) -> int:
        return self._n_records

    def buffers(self) -> tuple[BufferData, ...]:
        return self._data

    @abstractmethod
    def record_of(self, b: Builder, tree: Value, node: Value) -> Value: ...

    def leaf_item(self, b: Builder, tree: Value, node: Value) -> Value:
        return self.record_of(b, tree, node)

    def open(self, b: Builder, tree: Value, node: Value) -> Cursor:
        """Read the feature word (tile size 1); larger tiles are read as vectors."""
        record = self._stored_at(b, tree, node)
        if self._wide_offsets:
            record = record.to(I64)
        base = record * self.shape.words
        if self.shape.tile_size > 1:
            return Cursor(tree, node, (base,))
        if self._pairs:
            pair = self.nodes[base, Vec(U32, 2)]
            low, high = b.extract(pair, 0), b.extract(pair, 1)
            return Cursor(tree, node, (base, high, low))
        return Cursor(tree, node, (base, self.nodes[base + self.shape.feature_at]))

    @property
    def _pairs(self) -> bool:
        """Whether a GPU reads a node's threshold and test word in one transaction."""
        return self._on_grid and (self.shape.feature_at, self.shape.words) == (1, 2)

    def _stored_at(self, b: Builder, tree: Value, node: Value) -> Value:
        record = self.record_of(b, tree, node)
        if self._shared_from is not None:
            record = record - self._shared_from
        return record

    def _share(
        self, memory: layouts.SharedMemory, first: Value, count: Value, most: int
    ) -> HopLayout:
        words = self.shape.words
        shared = copy.copy(self)
        lo, n = first * words, count * words
        shared.nodes = memory.copy("cached_nodes", self.nodes, lo, n, most * words)
        shared._shared_from = first
        return shared

    def _features(self, cursor: Cursor) -> Value:
        if self.shape.tile_size == 1:
            return cursor.words[1]
        index = cursor.words[0] + self.shape.feature_at
        return self.nodes[index, Vec(U32, self.shape.tile_size)]

    def load_threshold(self, b: Builder, cursor: Cursor) -> Value:
        if not self.encoding.threshold_words:
            return self.encoding.code(self._features(cursor))
        size, type_ = self.shape.tile_size, self.threshold_type
        if self._pairs and size == 1:
            return b.bitcast(cursor.words[2], type_)
        return self.nodes[cursor.words[0], type_ if size == 1 else Vec(type_, size)]

    def load_feature_index(self, b: Builder, cursor: Cursor) -> Value:
        return self.encoding.feature(self._features(cursor))

    def load_flag(self, b: Builder, cursor: Cursor, flag: str) -> Value:
        return self.encoding.flag(self._features(cursor), flag)

    def load_tile_shape(self, b: Builder, cursor: Cursor) -> Value:
        return self.nodes[cursor.words[0] + self.shape.shape_at].to(I64)

    def child_word(self, b: Builder, cursor: Cursor) -> Value:
        scalar = node_scalar(cursor.node)
        if self.shape.packed:
            word = cursor.words[1] >> self.encoding.bits
        else:
            word = self.nodes[cursor.words[0] + self.shape.child_at]
        return b.bitcast(word, I32) if scalar == I32 else word.to(scalar)


def prefetch_lines(buffer: Buffer, first: Value, end: Value) -> None:
    with b.loop(first, end, CACHE_LINE // buffer.element.bytes, hint="line") as i:
        b.prefetch(buffer, i)
