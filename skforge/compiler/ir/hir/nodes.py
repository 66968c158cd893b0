"""HIR, the high-level IR: one operation, ``predict_ensemble``, over trees of tiles.

A *NodeTile* groups up to ``tile_size`` connected inner nodes of one tree, compared
together; a look-up table maps (shape, comparison bits) to the exit taken
(Treebeard §3). Tile size 1 is the plain binary tree: one shape, two exits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Bools, Int32s, Int64s
from skforge.forest.bins import CodeTable
from skforge.forest.forest import Forest
from skforge.schedule.bound import BoundNest

T = TypeVar("T")

Reduction: TypeAlias = Literal["exact", "reproducible", "fast"]


#: Arrays of trees with an element for each item, besides ``child``.
OF_ITEMS = "predicate", "shape", "leaf", "node", "depth"


@dataclass(frozen=True, slots=True, eq=False)
class TiledForest:
    """All trees as trees of NodeTiles and leaves, in read-only arrays.

    Item ``i`` is a tile (``leaf[i] == -1``) or a leaf. The tree at position ``p`` of
    the walking order owns items ``item_offset[p] .. item_offset[p + 1]``: its root
    first, then level by level, so that the children of a tile are neighbours. Exits are
    numbered left to right, ``0 .. tile_size``; an exit that no row can take (below a
    dummy node) is -1. A slot without a node (``predicate == -1``) holds a dummy test
    that is *false* for every row; a tile of only dummies is padding.

    ``node[i]`` is the Forest node that a walk has reached when it stands on item ``i``:
    the first node of a tile, or the leaf below a padding tile.
    """

    tile_size: int
    item_offset: Int64s  # (n_trees + 1,)
    tree_order: Int32s  # (n_trees,) tree (model order) at each position
    predicate: Int32s  # (n_items, tile_size) into Forest's predicates
    shape: Int32s  # (n_items,) row of ``exit_table``; 0 for leaves
    child: Int32s  # (n_items, tile_size + 1) items; -1 for leaves' exits
    leaf: Int32s  # (n_items,) row of Forest.leaf_value, or -1
    node: Int32s  # (n_items,) Forest node that a walk here stands on
    depth: Int32s  # (n_items,) tiles above this item

    def __post_init__(self) -> None:
        """Make the arrays read-only: passes return new ones."""
        for name in self.__slots__:
            value: Any = getattr(self, name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @property
    def n_trees(self) -> int:
        return len(self.item_offset) - 1

    @property
    def n_items(self) -> int:
        return len(self.leaf)

    @property
    def min_depth(self) -> Int32s:
        """The least leaf depth of the tree at each position, in tiles."""
        leaves = np.flatnonzero(self.leaf >= 0)  # level by level
        return self.depth[leaves[np.searchsorted(leaves, self.item_offset[:-1])]]

    @property
    def max_depth(self) -> Int32s:
        return self.depth[self.item_offset[1:] - 1]

    def take(self, order: Int64s | slice) -> TiledForest:
        """Return the trees at these positions; arrays of a slice of them are views."""
        sizes = np.diff(self.item_offset)[order]
        offset = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        # distance between the old and new numbers of each position's items
        shift = np.repeat(self.item_offset[:-1][order] - offset[:-1], sizes)
        items: Any = slice(shift[0], shift[0] + len(shift)) if len(shift) else slice(0)
        if not isinstance(order, slice):
            items = np.arange(len(shift)) + shift
        child = self.child[items]
        child = child - (child >= 0) * shift[:, None].astype(np.int32)
        arrays: dict[str, Any] = {name: getattr(self, name)[items] for name in OF_ITEMS}
        arrays |= {"item_offset": offset, "tree_order": self.tree_order[order]}
        return replace(self, child=child, **arrays)


class HirCache(dict[tuple[object, ...], Any]):
    """What a forest's schedules share: tiles, layouts, and checks not yet lowered."""

    def once(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        if key not in self:
            self[key] = make()
        return self[key]


@dataclass(frozen=True, slots=True, eq=False)
class PredictEnsemble:
    """The HIR of one kernel: a forest, its tiles, and the loops that walk it.

    ``forest`` is normalised: all ordering predicates share ``comparison`` (LT or LE),
    equality tests are EQ, and category tests IN or MEMBER. ``n_rows`` is known only at
    call time. ``codes`` describes how rows are quantised, if they are. Layouts cache in
    ``shared`` what depends only on the forest, for its other kernels. With ``hashes``,
    rows have the columns of the source, with hashes of categories in place of numbers.
    """

    forest: Forest
    tiles: TiledForest
    nest: BoundNest
    reduction: Reduction
    comparison: Literal["lt", "le"]
    codes: CodeTable | None = None
    shared: HirCache = field(default_factory=HirCache)
    hashes: bool = False


# ---------------------------------------------------------------- shapes of tiles

MAX_TILE_SIZE = 8

_Tree: TypeAlias = "tuple[_Tree, _Tree] | None"


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """Every shape of one tile size, as read-only arrays with one row per shape.

    Shapes are the binary trees of n nodes. The slots of a tile are its nodes in level
    order, left to right. Exits are the n + 1 edges that leave it, numbered left to
    right regardless of level (Treebeard §3.5, §3.7). Shapes are enumerated as in
    Treebeard's equation 1: shapes with k nodes in the root's left subtree come before
    those with k + 1, and among these the left subtree varies slowest. Shape 0 is the
    chain to the right.
    """

    size: int
    # (n_shapes, 2 * size): where slot s leads, left at 2 * s and right at 2 * s + 1;
    # >= 0 is a slot, ~e is exit e
    edge: NDArray[np.int8]
    exit_edge: NDArray[np.int8]  # (n_shapes, size + 1) column of `edge` with exit e
    number: NDArray[np.int16]  # (4 ** size,) shape of a code (see `shape_id`), or -1

    @property
    def n_shapes(self) -> int:
        """Number of shapes: the Catalan number of the size."""
        return len(self.edge)


@cache
def shapes(size: int) -> Shapes:
    """Return the shapes of tiles with ``size`` nodes, 1 to 8.

    Examples
    --------
    >>> [shapes(n).n_shapes for n in range(1, 9)]
    [1, 2, 5, 14, 42, 132, 429, 1430]
    """
    if not 1 <= size <= MAX_TILE_SIZE:
        raise ValueError(f"tiles have 1 to {MAX_TILE_SIZE} nodes, not {size}.")
    trees = _trees(size)
    edge = np.array([_edges(tree) for tree in trees], dtype=np.int8)
    row, column = np.nonzero(edge < 0)
    exit_edge = np.empty((len(trees), size + 1), dtype=np.int8)
    exit_edge[row, ~edge[row, column]] = column
    number = np.full(4**size, -1, dtype=np.int16)
    number[_code(edge >= 0)] = np.arange(len(trees))
    for array in (edge, exit_edge, number):
        array.flags.writeable = False
    return Shapes(size, edge, exit_edge, number)


def shape_id(inside: Bools) -> Int32s:
    """Return the shape numbers of tiles, given which edges stay inside the tile.

    ``inside`` has one row per tile: whether the left (even columns) and right edge of
    each slot, in level order, leads to another slot. Rows that describe no tree give
    -1.

    Examples
    --------
    A root with a left child, a root with a right child, and nonsense:

    >>> shape_id(np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]], dtype=bool))
    array([ 1,  0, -1], dtype=int32)
    """
    return shapes(inside.shape[1] // 2).number[_code(inside)].astype(np.int32)


@cache
def exit_table(size: int) -> NDArray[np.uint8]:
    """Return the look-up table from (shape, comparison bits) to the exit taken.

    Node 0, the root, is the most significant bit; a set bit is a true comparison,
    which leads left.

    Examples
    --------
    >>> exit_table(1)
    array([[1, 0]], dtype=uint8)
    """
    known = shapes(size)
    rows = np.arange(known.n_shapes)[:, None]
    bits = np.arange(2**size)[None, :]
    at = np.zeros((known.n_shapes, 2**size), dtype=np.int8)
    for _ in range(size):  # the longest path through a tile
        slot = np.maximum(at, 0).astype(np.int64)
        false = 1 - (bits >> (size - 1 - slot) & 1)
        at = np.where(at < 0, at, known.edge[rows, 2 * slot + false])
    table: NDArray[np.uint8] = (~at).astype(np.uint8)
    table.flags.writeable = False
    return table


@cache
def _trees(size: int) -> tuple[_Tree, ...]:
    if size == 0:
        return (None,)
    return tuple(
        (left, right)
        for k in range(size)
        for left in _trees(k)
        for right in _trees(size - 1 - k)
    )


def _edges(root: _Tree) -> list[int]:
    level = [(1, root)]  # heap index and node; heap order is level order
    slots: list[tuple[int, _Tree]] = []
    while level:
        inner = [(heap, node) for heap, node in level if node is not None]
        slots += inner
        level = [
            (2 * heap + side, child)
            for heap, node in inner
            for side, child in enumerate(node)
        ]
    slot_of = {heap: slot for slot, (heap, _) in enumerate(slots)}
    ends = [2 * h + side for h, _ in slots for side in (0, 1)]
    # left to right is the order of the paths, written as binary fractions
    exits = [end for end in ends if end not in slot_of]
    exits.sort(key=lambda end: end / (1 << end.bit_length()))
    exit_of = {end: ~number for number, end in enumerate(exits)}
    return [slot_of.get(end, exit_of.get(end, 0)) for end in ends]


def _code(inside: Bools) -> Array:
    packed = np.packbits(inside, axis=1, bitorder="little").astype(np.uint16)
    return packed[:, 0] if packed.shape[1] == 1 else packed[:, 0] | packed[:, 1] << 8
