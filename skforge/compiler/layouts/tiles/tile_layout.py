"""Encodes trees as sparse tiles of codes.

The top levels of a tree are one table, kept in registers for a block of rows: the
columns and ranks of its nodes, heap node h at lane h, and the item behind each exit.
Below, the nodes of each ``levels`` levels under one node are a *tile*::

    rank[2 ** levels]: u16   a missing node is never passed; slot 0: the nodes that test
                             for equality, as bits
    column[2 ** levels]: u8  slot 0 unused
    child exits, leaf exits: u16   the first exit of each child, of each leaf
    first child, first leaf: u16   minus one; u32 in *wide* tiles

The bits of a row's exit x in a tile are the directions it took. The children and the
leaves of a tile are numbered consecutively, so the item behind x is the first one plus
the number of exits marked up to x. The tiles of a tree are numbered in level order;
leaves are numbered from 1, those of the top first, then those of each tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Bools, Int32s, SignedInts, Uint32s
from skforge.compiler.binning.buckets import CodePlaces
from skforge.compiler.ir.hir.nodes import TiledForest
from skforge.compiler.target import Target
from skforge.forest.forest import Forest

#: A left and a right child.
_SIDES = np.arange(2, dtype=np.int32)

#: Bits of an entry for the row within a block; the others number a tile or leaf. Trees
#: of a million leaves or more use the smaller value.
ROW_BITS, FEWEST_ROW_BITS = 12, 10

#: Most leaves, and so most tiles, of a tree.
MAX_LEAVES = (1 << (32 - FEWEST_ROW_BITS)) - 2

#: Levels whose nodes are in registers, at most: one register holds five levels, another
#: the sixth.
TOP_LEVELS = 6

#: Lanes of a register of codes.
LANES = 32

#: Items of trees that are encoded together.
PART_ITEMS = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class TileTests:
    """The comparison of each predicate, in the dtypes that tiles store."""

    column: NDArray[np.unsignedinteger[Any]]  # place of the value or code in a row
    rank: Array  # the rank or threshold to exceed to go right
    never: float  # a rank that nothing exceeds
    top_levels: int = TOP_LEVELS
    #: Whether missing values go right too, or codes below the rank; None: nowhere.
    marked: Bools | None = None

    @classmethod
    def of_codes(cls, codes: CodePlaces, top: int = TOP_LEVELS) -> TileTests:
        place, rank = codes.place_of.astype(np.uint8), codes.rank_of.astype(np.uint16)
        equal = codes.table.equal
        return cls(place, rank, codes.most, top, equal if equal.any() else None)

    @property
    def slot_bytes(self) -> int:
        return self.column.itemsize + self.rank.itemsize

    def marks_at(self, slots: int) -> int:
        """Return the byte of a tile with the bits of marked nodes, in a slot 0."""
        return 0 if self.rank.itemsize == 2 else self.rank.itemsize * slots


@dataclass(frozen=True, slots=True, eq=False)
class TiledTrees:
    """Every tree, by position in walking order."""

    top_levels: int
    levels: int  # levels of a tile
    wide: bool  # whether items are numbered by 32 bits
    row_bits: int  # bits of an entry that hold its row
    top_column: NDArray[np.uint16]  # (n_trees, registers, 32)
    top_rank: Array  # (n_trees, registers, 32)
    top_item: Uint32s  # (n_trees, exits): number << row_bits | is a leaf
    tiles: NDArray[np.uint8]  # bytes of every tile, then spare bytes
    tile_offset: SignedInts  # (n_trees,) byte of a tree's tile 0
    leaf_offset: SignedInts  # (n_trees,) place of a tree's leaf 0, which is unused
    leaf_row: Int32s  # row of Forest.leaf_value at each place
    top_marked: Bools | None = None  # as TileTests.marked
    rank_bytes: int = 2
    slot_bytes: int = 3

    @property
    def stride(self) -> int:
        return tile_bytes(self.levels, self.wide, self.slot_bytes)

    @property
    def marked_bits(self) -> Uint32s:
        """Return the marked nodes of the top levels, (n_trees, registers)."""
        assert self.top_marked is not None
        packed = np.packbits(self.top_marked, axis=-1, bitorder="little")
        return packed.view(np.uint32)[..., 0]

    @property
    def column_at(self) -> int:
        return self.rank_bytes << self.levels

    @property
    def exits_at(self) -> int:
        return self.slot_bytes << self.levels


def tile_bytes(levels: int, wide: bool, slot_bytes: int = 3) -> int:
    """Return the bytes of a tile: a power of two, so that none crosses a cache line."""
    size = (slot_bytes << levels) + (12 if wide else 8)
    return 1 << (size - 1).bit_length()


def top_levels(forest: Forest, levels: int, target: Target) -> int:
    """Return how many levels are above tiles of so many.

    With 256 bits, five take .87 of the time of six, unless two of five leaves are then
    behind one more tile (as with depth 12 and tiles of three levels: 1.1; Zen 3).
    """
    if target.has_mask_registers:
        return TOP_LEVELS
    some = slice(PART_ITEMS)  # of larger forests, the first trees stand for all
    depth = forest.node_depths()[some][forest.leaf[some] >= 0]
    five, six = (np.ceil((depth - top).clip(0) / levels).sum() for top in (5, 6))
    return TOP_LEVELS if five - six > 0.4 * len(depth) else TOP_LEVELS - 1


def tile_roots(nodes: TiledForest, levels: int, top: int = TOP_LEVELS) -> Bools:
    below = np.arange(int(nodes.max_depth.max(initial=0)) + 1) - top
    begins = (below >= 0) & (below % levels == 0)  # by depth
    return begins[nodes.depth] & (nodes.leaf < 0)


def row_bits(nodes: TiledForest) -> int:
    fits = most_leaves(nodes) <= (1 << (32 - ROW_BITS)) - 2
    return ROW_BITS if fits else FEWEST_ROW_BITS


def most_leaves(nodes: TiledForest) -> int:
    return int(np.diff(nodes.item_offset).max(initial=0)) // 2 + 1


def needs_wide(nodes: TiledForest) -> bool:
    """Whether a tree has more leaves, and so perhaps tiles, than 16 bits number."""
    return most_leaves(nodes) + 1 > 0xFFFF


def tile_trees(nodes: TiledForest, tests: TileTests, levels: int) -> TiledTrees:
    """Encode trees of one-node tiles, in level order, as tiles of ``levels`` levels."""
    wide, bits = needs_wide(nodes), row_bits(nodes)
    is_root = tile_roots(nodes, levels, tests.top_levels)
    n_tiles = int(np.count_nonzero(is_root))
    # A spare tile keeps loads past the last one inside the buffer.
    tiles = np.zeros((n_tiles + 1, tile_bytes(levels, wide, tests.slot_bytes)), "u1")
    leaf_row = np.zeros(np.count_nonzero(nodes.leaf >= 0) + nodes.n_trees, np.int32)
    tops: list[_Top] = []
    tile_offsets, leaf_offsets = [], []
    n_items = n_tiles = n_leaves = 0
    for part in _some_trees(nodes):
        roots = np.flatnonzero(is_root[n_items : n_items + part.n_items])
        number = np.zeros(part.n_items, np.int32)  # of the tile that a root begins
        number[roots] = np.arange(len(roots))
        owner = np.searchsorted(part.item_offset, roots, side="right") - 1
        per_tree = np.bincount(owner, minlength=part.n_trees)
        first_tile = np.cumsum(per_tree) - per_tree

        top = _Top(part, tests, number, first_tile, bits)
        own = tiles[n_tiles : n_tiles + len(roots) + 1]
        body = _Body(part, tests, roots, levels, wide, own)

        # The leaves of a tree: a spare one, those of the top, then those of each tile.
        leaves = _COUNTS[body.leaf_exits]
        of_tree = np.bincount(owner, leaves, part.n_trees).astype(np.int64)
        sizes = 1 + top.n_leaves + of_tree
        leaf_offset = n_leaves + np.cumsum(sizes) - sizes
        first_leaf = (top.n_leaves - np.cumsum(of_tree) + of_tree)[owner]
        first_leaf += np.cumsum(leaves) - leaves
        body.store(number[body.first_child] - first_tile[owner] - 1, first_leaf)
        first_leaf += leaf_offset[owner]

        for tile, exit_, item in body.leaves:
            upto = body.leaf_exits[tile] & ((2 << exit_) - 1)
            leaf_row[first_leaf[tile] + _COUNTS[upto]] = part.leaf[item]
        for tree, number_of, item in top.leaves:
            leaf_row[leaf_offset[tree] + number_of] = part.leaf[item]
        tops.append(top)
        tile_offsets.append((n_tiles + first_tile) * tiles.shape[1])
        leaf_offsets.append(leaf_offset)
        n_items, n_tiles = n_items + part.n_items, n_tiles + len(roots)
        n_leaves += int(sizes.sum())

    def of_tops(name: str) -> Array:
        return np.concatenate([getattr(top, name) for top in tops])

    return TiledTrees(
        top_levels=tests.top_levels,
        levels=levels,
        wide=wide,
        row_bits=bits,
        top_column=of_tops("column"),
        top_rank=of_tops("rank"),
        top_item=of_tops("item"),
        tiles=tiles.reshape(-1),
        tile_offset=np.concatenate(tile_offsets),
        leaf_offset=np.concatenate(leaf_offsets),
        leaf_row=leaf_row,
        top_marked=None if tests.marked is None else of_tops("marked"),
        rank_bytes=tests.rank.itemsize,
        slot_bytes=tests.slot_bytes,
    )


def _some_trees(nodes: TiledForest) -> Iterator[TiledForest]:
    """Yield parts of a forest that stay in a cache while they are encoded."""
    ends, offset = [0], nodes.item_offset
    while ends[-1] < nodes.n_trees:
        last = np.searchsorted(offset, offset[ends[-1]] + PART_ITEMS, side="right") - 1
        ends.append(max(ends[-1] + 1, int(last)))
    for first, last in zip(ends, ends[1:] or [0], strict=False):
        yield nodes.take(slice(first, last))


class _Top:
    def __init__(
        self,
        nodes: TiledForest,
        tests: TileTests,
        number: Int32s,
        first_tile: SignedInts,
        bits: int,
    ) -> None:
        n, levels = nodes.n_trees, tests.top_levels
        self._row_bits, self._levels = bits, levels
        registers = -(-(1 << levels) // LANES) if levels else 0
        self.column = np.zeros((n, registers, LANES), np.uint16)
        shape = n, registers, LANES
        self.rank: Array = np.full(shape, tests.never, tests.rank.dtype)
        self.marked = np.zeros(shape, np.bool_)
        marked = self.marked.reshape(n, registers * LANES)
        columns = self.column.reshape(n, registers * LANES)
        ranks = self.rank.reshape(n, registers * LANES)
        self.item = np.zeros((n, 1 << levels), np.uint32)
        self.n_leaves = np.zeros(n, np.int64)
        self.leaves: list[tuple[SignedInts, SignedInts, SignedInts]] = []
        tree, heap = np.arange(n), np.ones(n, np.int64)
        item: SignedInts = nodes.item_offset[:-1]
        for level in range(levels + 1):
            inner = nodes.leaf[item] < 0
            self._end(tree[~inner], heap[~inner], item[~inner], level)
            tree, heap, item = tree[inner], heap[inner], item[inner]
            if level < levels:
                predicate = nodes.predicate[item, 0]
                columns[tree, heap] = tests.column[predicate]
                ranks[tree, heap] = tests.rank[predicate]
                if tests.marked is not None:
                    marked[tree, heap] = tests.marked[predicate]
                tree = np.repeat(tree, 2)
                heap = (2 * heap[:, None] + _SIDES).reshape(-1)
                item = nodes.child[item].reshape(-1).astype(np.int64)
        tile = number[item] - first_tile[tree]
        self.item[tree, heap - (1 << levels)] = tile << self._row_bits

    def _end(
        self, tree: SignedInts, heap: SignedInts, item: SignedInts, level: int
    ) -> None:
        # One level's nodes are ordered by tree.
        rank = np.arange(len(tree)) - np.searchsorted(tree, tree)
        number = self.n_leaves[tree] + 1 + rank
        self.n_leaves += np.bincount(tree, minlength=len(self.n_leaves))
        below = 1 << (self._levels - level)
        exits = (heap * below - (1 << self._levels))[:, None] + np.arange(below)
        self.item[tree[:, None], exits] = (number << self._row_bits | 1)[:, None]
        self.leaves.append((tree, number, item))


class _Body:
    def __init__(
        self,
        nodes: TiledForest,
        tests: TileTests,
        roots: SignedInts,
        levels: int,
        wide: bool,
        into: NDArray[np.uint8],  # zeros for each tile, and for the one after them
    ) -> None:
        self._wide, n, self.bytes = wide, len(roots), into
        size, slots = into.shape[1], 1 << levels
        self._exits_at = tests.slot_bytes * slots
        self.bytes.view(tests.rank.dtype)[:, :slots] = tests.never
        marks = self.bytes.view(np.uint16)[:n, tests.marks_at(slots) // 2]
        marks[:] = 0
        # Flat, because NumPy stores by one index three times faster than by two.
        rank = self.bytes.reshape(-1).view(tests.rank.dtype)
        column = self.bytes.reshape(-1).view(tests.column.dtype)
        ranks, columns = size // rank.itemsize, size // column.itemsize
        first = tests.rank.itemsize * slots // column.itemsize
        self.leaf_exits = np.zeros(n, np.int64)
        self.child_exits = np.zeros(n, np.int64)
        self.first_child = np.zeros(n, np.int64)  # its item
        self.leaves: list[tuple[SignedInts, SignedInts, SignedInts]] = []
        tile, item = np.arange(n, dtype=np.int32), roots.astype(np.int32)
        heap = np.ones(n, np.int32)
        for level in range(1, levels + 1):
            predicate = nodes.predicate[item, 0]
            wide_tile = tile.astype(np.int64)
            rank[wide_tile * ranks + heap] = tests.rank[predicate]
            column[wide_tile * columns + (first + heap)] = tests.column[predicate]
            if tests.marked is not None:  # as bits, in the unused slot 0
                right = np.where(tests.marked[predicate], 1 << heap, 0)
                marks += np.bincount(tile, right, n).astype(np.uint16)
            tile = np.repeat(tile, 2)
            heap = (2 * heap[:, None] + _SIDES).reshape(-1)
            item = nodes.child.take(item, axis=0).reshape(-1)
            leaf = nodes.leaf[item]
            ends, inner = np.flatnonzero(leaf >= 0), np.flatnonzero(leaf < 0)
            owner, exit_ = tile[ends], (heap[ends] << (levels - level)) - slots
            self.leaf_exits += _bits(owner, exit_, n)
            self.leaves.append((owner, exit_, item[ends]))
            tile, item, heap = tile[inner], item[inner], heap[inner]
        self.child_exits += _bits(tile, heap - slots, n)
        # The last one written to a tile is its first.
        self.first_child[tile[::-1]] = item[::-1]

    def store(self, first_child: SignedInts, first_leaf: SignedInts) -> None:
        n, start = len(first_child), self._exits_at
        words = self.bytes.view(np.uint16)[:n, start // 2 :]
        words[:, 0], words[:, 1] = self.child_exits, self.leaf_exits
        first_child = np.where(self.child_exits > 0, first_child, 0)
        if self._wide:
            wide = self.bytes.view(np.uint32)[:n, start // 4 :]
            wide[:, 1], wide[:, 2] = first_child, first_leaf
        else:
            words[:, 2], words[:, 3] = first_child, first_leaf


def _bits(tile: SignedInts, exit_: SignedInts, n: int) -> SignedInts:
    return np.bincount(tile, (1 << exit_).astype(np.float64), n).astype(np.int64)


#: The bits of each number that are 1.
_COUNTS = ((np.arange(1 << 16)[:, None] >> np.arange(16)) & 1).sum(axis=1)
