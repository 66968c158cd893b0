"""The bit-sliced representation: a tree is the numbers of its predicates' lines.

A node of a complete tree of depth d stands at its heap place; the leaf a row reaches is
the number whose bits are the answers on the way, the root's highest (a set bit went
right). Shallower leaves are repeated below dummy nodes, whose answer does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest import Forest
from skforge.exceptions import ScheduleError

#: Bodies of code a kernel has for trees of different depth.
MAX_CLASSES = 3

#: Deepest complete tree; 256 leaves are what byte look-ups reach.
MAX_DEPTH = 8


@dataclass(frozen=True, slots=True, eq=False)
class SlicedTrees:
    """Complete trees of the depth each needs, in walking order."""

    depth: NDArray[np.uint8]  # (n_trees,)
    node_offset: NDArray[np.int32]  # (n_trees,) into lines
    lines: NDArray[np.int32]  # line of each heap node; 0 for dummies
    leaf_offset: NDArray[np.int32]  # (n_trees,) into leaf_row
    leaf_row: NDArray[np.int32]  # row of Forest.leaf_value of each leaf number
    depths: tuple[int, ...]  # that occur


def slice_trees(
    forest: Forest, line_of: NDArray[np.int32], order: NDArray[np.int32]
) -> SlicedTrees:
    """Lay every tree out as a heap of lines, level by level, all trees at once.

    Parameters
    ----------
    forest : Forest
        Normalised, no tree deeper than :data:`MAX_DEPTH`.
    line_of : ndarray of int32, shape (n_predicates,)
        The line of each predicate.
    order : ndarray of int32, shape (n_trees,)
        The tree at each position of the walking order.

    Raises
    ------
    ScheduleError
        If a tree is deeper.
    """
    depth = forest.tree_depths()[order].astype(np.int64)
    if depth.max(initial=0) > MAX_DEPTH:
        raise ScheduleError(
            f'represent("bitsliced") takes trees of at most {MAX_DEPTH} levels; this '
            f'forest has {int(depth.max())}. Use represent("sparse").'
        )
    depth = _classes(depth)
    n_nodes, n_leaves = (1 << depth) - 1, 1 << depth
    node_offset = np.cumsum(n_nodes) - n_nodes
    leaf_offset = np.cumsum(n_leaves) - n_leaves
    lines = np.zeros(int(n_nodes.sum()), np.int32)
    leaf_row = np.zeros(int(n_leaves.sum()), np.int32)
    # Every item is (position, heap place, forest node); a leaf above the bottom goes
    # on to both children of a dummy.
    position = np.arange(len(order))
    place = np.zeros(len(order), np.int64)
    node = forest.tree_offset[:-1][order].astype(np.int64)
    for level in range(int(depth.max(initial=0)) + 1):
        bottom = depth[position] == level
        number = place[bottom] - (1 << level) + 1
        leaf_row[leaf_offset[position[bottom]] + number] = forest.leaf[node[bottom]]
        position, place, node = position[~bottom], place[~bottom], node[~bottom]
        predicate = forest.predicate[node]
        inner = predicate >= 0
        at = node_offset[position] + place
        lines[at[inner]] = line_of[predicate[inner]]
        left = np.where(inner, forest.left[node], node)
        right = np.where(inner, forest.right[node], node)
        position = np.concatenate([position, position])
        place = np.concatenate([2 * place + 1, 2 * place + 2])
        node = np.concatenate([left, right])
    return SlicedTrees(
        depth=depth.astype(np.uint8),
        node_offset=node_offset.astype(np.int32),
        lines=lines,
        leaf_offset=leaf_offset.astype(np.int32),
        leaf_row=leaf_row,
        depths=tuple(sorted(set(depth.tolist()))),
    )


def _classes(depth: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the depth each tree is laid out with: few, so that the code is short.

    A depth joins the next greater one where that adds the fewest nodes.
    """
    kept, counts = np.unique(depth, return_counts=True)
    classes = dict(zip(kept.tolist(), counts.tolist(), strict=True))
    made = depth.copy()
    while len(classes) > MAX_CLASSES:
        order = sorted(classes)
        added = [classes[d] * ((1 << e) - (1 << d)) for d, e in zip(order, order[1:])]
        k = int(np.argmin(added))
        low, high = order[k], order[k + 1]
        made[made == low] = high
        classes[high] += classes.pop(low)
    return made


def byte_planes(values: NDArray[Any], entries: int) -> NDArray[np.uint8]:
    """Return tables of values as planes of bytes, lowest byte first.

    Parameters
    ----------
    values : ndarray of shape (n, size)
        One table a row.
    entries : int
        Entries of a plane; more than ``size`` are zero.

    Returns
    -------
    ndarray of uint8, shape (n, itemsize, entries)
    """
    n, size = values.shape
    item = values.dtype.itemsize
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(n, size, item)
    planes = np.zeros((n, item, entries), np.uint8)
    planes[:, :, :size] = raw.transpose(0, 2, 1)
    return planes
