"""HIR, the high-level IR: one operation, ``predict_ensemble``, over trees of tiles.

A *NodeTile* groups up to ``tile_size`` connected inner nodes of one tree, compared
together; a look-up table maps (shape, comparison bits) to the exit taken
(Treebeard §3). Tile size 1 is the plain binary tree: one shape, two exits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.bins import CodeTable
from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule.bound import BoundNest

T = TypeVar("T")

Reduction: TypeAlias = Literal["exact", "reproducible", "fast"]


#: Arrays of trees with an element for each item, besides ``child``, and for each tree.
OF_ITEMS = "predicate", "shape", "leaf", "node", "depth"
OF_TREES = "tree_order", "min_depth", "max_depth"


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
    item_offset: NDArray[np.int64]  # (n_trees + 1,)
    tree_order: NDArray[np.int32]  # (n_trees,) tree (model order) at each position
    predicate: NDArray[np.int32]  # (n_items, tile_size) into Forest's predicates
    shape: NDArray[np.int32]  # (n_items,) row of exit_table; 0 for leaves
    child: NDArray[np.int32]  # (n_items, tile_size + 1) items; -1 for leaves' exits
    leaf: NDArray[np.int32]  # (n_items,) row of Forest.leaf_value, or -1
    node: NDArray[np.int32]  # (n_items,) Forest node that a walk here stands on
    depth: NDArray[np.int32]  # (n_items,) tiles above this item
    exit_table: NDArray[np.uint8]  # (n_shapes, 2 ** tile_size); node 0 = top bit
    min_depth: NDArray[np.int32]  # (n_trees,) least leaf depth, in tiles, by position
    max_depth: NDArray[np.int32]  # (n_trees,)

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

    def take(self, order: NDArray[np.int64] | slice) -> TiledForest:
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
        arrays |= {name: getattr(self, name)[order] for name in OF_TREES}
        return replace(self, item_offset=offset, child=child, **arrays)


class HirCache(dict[tuple[object, ...], Any]):
    """What the schedules of one forest share: its trees in tiles, and as laid out."""

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
    ``shared`` what depends only on the forest, for its other kernels.
    """

    forest: Forest
    tiles: TiledForest
    nest: BoundNest
    reduction: Reduction
    comparison: Literal["lt", "le"]
    codes: CodeTable | None = None
    shared: HirCache = field(default_factory=HirCache)
