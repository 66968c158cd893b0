"""Lays a forest out for the walk of interventional values: what no background changes.

Inner nodes are in preorder, so that a subtree that no row needs is skipped by one jump.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.forest import Forest
from skforge.compiler.layouts.contributions.paths import Paths, trace
from skforge.compiler.layouts.contributions.predicates import Tests

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Game:
    """A normalised forest as the walk reads it.

    The edges of a tree are counted as in ``Order``: 2 i + 1 is the left edge of its i-th
    inner node, 2 i + 2 the right one. A path's distinct features are counted from the
    root; ``bit`` is the number of a node's feature on its path.
    """

    forest: Forest
    tests: Tests
    node: IntArray  # inner nodes in preorder, tree after tree
    levels: tuple[IntArray, ...]  # their places by depth
    start: IntArray  # (n_trees + 1,) into the nodes
    before: IntArray  # edge that tested the node's feature before, or 0
    skip: IntArray  # the next node outside a node's subtree
    area: IntArray  # where a node's states lie: by depth and side
    bit: IntArray
    leaves: IntArray  # the forest's leaf nodes below inner nodes
    side_leaf: IntArray  # (n_inner, 2): the row in ``leaves``, or -1
    leaf_start: IntArray  # (n_leaves + 1,) into the two below
    leaf_edge: IntArray  # a leaf's last edge of each feature of its path
    leaf_slot: IntArray  # that feature, among its tree's features
    features: IntArray  # the features of each tree
    feature_start: IntArray  # (n_trees + 1,) into the features
    trees: IntArray  # in the order of the walk, those of an output together

    @property
    def line(self) -> IntArray:
        """The line of each node's predicate."""
        return self.tests.line_of[self.forest.predicate[self.node]]

    @property
    def n_areas(self) -> int:
        """How many lists of states are held at once."""
        return int(self.area.max(initial=0)) + 3

    @property
    def most_distinct(self) -> int:
        """The most distinct features on a path."""
        return int(np.diff(self.leaf_start).max(initial=0))

    @classmethod
    def of(cls, forest: Forest) -> Game:
        """Lay out a normalised forest."""
        paths = trace(forest)
        place, size = _preorder(forest, paths)
        inner = paths.inner
        node = inner[np.argsort(place[inner])]
        tree = paths.tree[node]
        start = np.searchsorted(tree, np.arange(forest.n_trees + 1))

        def edge(below: IntArray) -> IntArray:
            """Return the number in its tree of the edge that leads to each node."""
            up = paths.parent[below]
            return 2 * (place[up] - start[paths.tree[up]]) + 1 + paths.is_right[below]

        above = paths.before[node]
        bit = np.zeros(forest.n_nodes, np.int64)
        for level in paths.levels:
            seen = paths.before[level]
            old = bit[paths.parent[seen]]
            bit[level] = np.where(seen >= 0, old, paths.distinct[level])
        depth = paths.depth[node]
        area = np.where(depth > 0, 2 * depth - 1 + paths.is_right[node], 0)
        feature = forest.feature[forest.predicate[node]]
        width = max(1, forest.n_features)
        pairs, slot = np.unique(tree * width + feature, return_inverse=True)
        feature_start = np.searchsorted(pairs, np.arange(forest.n_trees + 1) * width)
        slots = np.zeros(forest.n_nodes, np.int64)
        slots[node] = slot.reshape(-1) - feature_start[tree]
        children = np.stack([forest.left, forest.right], axis=1)[node]
        leaves = children[forest.leaf[children] >= 0].astype(np.int64)
        number = np.full(forest.n_nodes, -1, np.int64)
        number[leaves] = np.arange(len(leaves))
        leaf_start, last = _last_edges(paths, bit, leaves)
        return cls(
            forest=forest,
            tests=Tests.of(forest),
            node=node,
            levels=tuple(place[level] for level in paths.levels),
            start=start,
            before=np.where(above >= 0, edge(above), 0),
            skip=place[node] + size[node],
            area=area,
            bit=bit[node],
            leaves=leaves,
            side_leaf=number[children],
            leaf_start=leaf_start,
            leaf_edge=edge(last),
            leaf_slot=slots[paths.parent[last]],
            features=pairs % width,
            feature_start=feature_start,
            trees=np.argsort(forest.tree_output, kind="stable"),
        )

    def weights(self, entries: int) -> NDArray[np.float64]:
        """Return a! c! / (a + c)! for all a, and for c in a row of ``entries``."""
        a = np.arange(self.most_distinct + 1)
        c = np.arange(entries)
        table = np.ones((len(a), entries))
        for k in a[1:]:
            table[k] = table[k - 1] * (k / (k + c))
        return table


def _preorder(forest: Forest, paths: Paths) -> tuple[IntArray, IntArray]:
    """Return the place of each inner node, and the inner nodes of its subtree."""
    size = np.zeros(forest.n_nodes, np.int64)
    for level in reversed(paths.levels):
        size[level] = 1 + size[forest.left[level]] + size[forest.right[level]]
    place = np.zeros(forest.n_nodes, np.int64)
    roots = forest.tree_offset[:-1]
    place[roots] = np.cumsum(size[roots]) - size[roots]
    for level in paths.levels:
        left, right = forest.left[level], forest.right[level]
        place[left] = place[level] + 1
        place[right] = place[level] + 1 + size[left]
    return place, size


def _last_edges(
    paths: Paths, bit: IntArray, leaves: IntArray
) -> tuple[IntArray, IntArray]:
    """Return where each leaf's features begin, and the lower ends of their edges."""
    start = np.concatenate(([0], np.cumsum(paths.distinct[leaves])))
    last = np.full(start[-1], -1, np.int64)
    at, first = leaves, start[:-1]
    while len(at):
        up = paths.parent[at]
        some = up >= 0
        at, up, first = at[some], up[some], first[some]
        to = first + bit[up]
        new = last[to] < 0
        last[to[new]] = at[new]
        at = up
    return start, last


__all__: list[Any] = ["Game"]
