"""Representations as a third party would write them: an array for each kind of number.

``toy`` writes one hop, ``toy_walks`` whole walks. Only the public interface is
imported. Nodes are the numbers of the HIR's own items.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from skforge.compiler.layouts.base import (
    I32,
    I64,
    U8,
    U32,
    Buffer,
    BufferData,
    Builder,
    Cursor,
    HopLayout,
    PredictEnsemble,
    TreeLayout,
    Value,
    Vec,
    WalkLayout,
    WalkRepresentation,
    node_scalar,
    node_tests,
    register,
    scalar_of,
)


class ToyNodes(TreeLayout):
    """thresholds[n], features[n], children[n], … : no records, nothing packed."""

    def __init__(self, hir: PredictEnsemble) -> None:
        tiles = hir.tiles
        tests = node_tests(hir)
        self._size = tiles.tile_size
        self._n_items = tiles.n_items
        self._buffers: list[BufferData] = []
        threshold = scalar_of(tests.threshold.dtype)
        self._thresholds = self._buffer("toy_thresholds", threshold, tests.threshold)
        self._features = self._buffer("toy_features", U32, tests.feature)
        self._children = self._buffer("toy_children", I32, np.maximum(tiles.child, 0))
        self._shapes = self._buffer("toy_shapes", I32, tiles.shape)
        is_leaf = (tiles.leaf >= 0).astype(np.uint8)
        self._is_leaf = self._buffer("toy_is_leaf", U8, is_leaf)
        offset = tiles.item_offset.astype(np.int32)
        self._roots = self._buffer("toy_roots", I32, offset)
        self._flags = {
            flag: self._buffer(f"toy_{flag}", U8, values.astype(np.uint8))
            for flag, values in tests.flags.items()
        }

    def _buffer(self, name: str, element, values: np.ndarray) -> Buffer:
        buffer = Buffer(name, element)
        self._buffers.append(BufferData(buffer, np.ascontiguousarray(values).ravel()))
        return buffer

    def buffers(self) -> tuple[BufferData, ...]:
        return tuple(self._buffers)

    def root(self, b: Builder, tree: Value) -> Value:
        return b.convert(b.load(self._roots, tree), node_scalar(tree))

    def open(self, b: Builder, tree: Value, node: Value) -> Cursor:
        return Cursor(tree, node, ())

    def _of_tile(self, b: Builder, buffer: Buffer, cursor: Cursor) -> Value:
        """Load a number, or those of all nodes of a tile."""
        if self._size == 1:
            return b.load(buffer, cursor.node)
        tile = Vec(buffer.element, self._size)
        return b.load(buffer, b.mul(cursor.node, self._size), tile)

    def load_threshold(self, b: Builder, cursor: Cursor) -> Value:
        return self._of_tile(b, self._thresholds, cursor)

    def load_feature_index(self, b: Builder, cursor: Cursor) -> Value:
        return self._of_tile(b, self._features, cursor)

    def load_flag(self, b: Builder, cursor: Cursor, flag: str) -> Value:
        return b.compare("ne", self._of_tile(b, self._flags[flag], cursor), 0)

    def load_tile_shape(self, b: Builder, cursor: Cursor) -> Value:
        return b.convert(b.load(self._shapes, cursor.node), I64)

    def move_to_child(self, b: Builder, cursor: Cursor, exit_: Value) -> Value:
        place = b.binary("add", b.mul(cursor.node, self._size + 1), exit_)
        return b.convert(b.load(self._children, place), node_scalar(cursor.node))

    def is_leaf(self, b: Builder, cursor: Cursor) -> Value:
        return b.compare("ne", b.load(self._is_leaf, cursor.node), 0)

    def leaf_item(self, b: Builder, tree: Value, node: Value) -> Value:
        return node

    def item_of(self) -> np.ndarray:
        return np.arange(self._n_items)

    @property
    def n_items(self) -> int:
        return self._n_items

    def cache_trees(self, b: Builder, first: Value, count: Value) -> None:
        """Prefetch every fourth node's children, a line or so each."""
        lo = b.convert(b.load(self._roots, first), I64)
        end = b.load(self._roots, b.binary("add", first, count))
        with b.loop(lo, b.convert(end, I64), 4) as i:
            b.prefetch(self._children, b.mul(i, self._size + 1))


class ToyLayout(ToyNodes, HopLayout):
    """The core writes loops of hops, checks and lanes around these nodes."""


class ToyWalks(ToyNodes, WalkLayout):
    """Hops down to the deepest leaf, one after the other, over the codes of rows."""

    def __init__(self, hir: PredictEnsemble) -> None:
        super().__init__(hir)
        self._hops = int(hir.tiles.max_depth.max(initial=0))

    def walk(self, b: Builder, tree: Value, read: Callable[[Value], Value]) -> Value:
        node = self.root(b, tree)
        for _ in range(self._hops):
            at = self.open(b, tree, node)
            code = read(self.load_feature_index(b, at))
            least = b.convert(self.load_threshold(b, at), U32)
            right = b.compare("ge", code, least)
            child = self.move_to_child(b, at, b.convert(right, node_scalar(node)))
            node = b.select(self.is_leaf(b, at), node, child)
        return node


class Toy(WalkRepresentation):
    name = "toy"

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        return hir.tiles.n_items * (hir.tiles.tile_size * 16 + 16)

    def lay_out(self, hir: PredictEnsemble) -> TreeLayout:
        return ToyLayout(hir)


class WholeToy(Toy):
    name = "toy_walks"

    def check(self, hir: PredictEnsemble) -> None:
        if hir.codes is None or hir.tiles.tile_size > 1:
            self.refuse("compares codes, node by node.")
        super().check(hir)

    def lay_out(self, hir: PredictEnsemble) -> WalkLayout:
        return ToyWalks(hir)


register(Toy())
register(WholeToy())
