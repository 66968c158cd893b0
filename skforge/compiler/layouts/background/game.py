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

    The edges of a tree are counted as in ``Trees``. A path's distinct features are
    counted from the root; ``bit`` is the number of a node's feature on its path.
    ``events`` has 2 n where the walk enters node n, and 2 n + 1 where it leaves it.
    """

    forest: Forest
    tests: Tests
    node: IntArray  # inner nodes in preorder, tree after tree
    levels: tuple[IntArray, ...]  # their places by depth
    start: IntArray  # (n_trees + 1,) into the nodes
    events: IntArray  # tree after tree, two for each node
    before: IntArray  # edge that tested the node's feature before, or 0
    size: IntArray  # inner nodes of a node's subtree
    depth: IntArray
    is_right: NDArray[np.bool_]
    bit: IntArray
    leaves: IntArray  # the forest's leaf nodes below inner nodes
    side_leaf: IntArray  # (n_inner, 2): the row in ``leaves``, or -1
    distinct: IntArray  # features on each leaf's path

    @property
    def most_distinct(self) -> int:
        """The most features on a path."""
        return int(self.distinct.max(initial=0))

    @property
    def line(self) -> IntArray:
        """The line of each node's predicate."""
        return self.tests.line_of[self.forest.predicate[self.node]]

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
        children = np.stack([forest.left, forest.right], axis=1)[node]
        leaves = children[forest.leaf[children] >= 0].astype(np.int64)
        number = np.full(forest.n_nodes, -1, np.int64)
        number[leaves] = np.arange(len(leaves))
        # Before a node is entered, all but its ancestors before it were left, too.
        enter = 2 * np.arange(len(node)) - depth
        events = np.zeros(2 * len(node), np.int64)
        events[enter] = 2 * np.arange(len(node))
        events[enter + 2 * size[node] - 1] = 2 * np.arange(len(node)) + 1
        return cls(
            forest=forest,
            tests=Tests.of(forest),
            node=node,
            levels=tuple(place[level] for level in paths.levels),
            start=start,
            events=events,
            before=np.where(above >= 0, edge(above), 0),
            size=size[node],
            depth=depth,
            is_right=paths.is_right[node],
            bit=bit[node],
            leaves=leaves,
            side_leaf=number[children],
            distinct=paths.distinct[leaves],
        )

    def weights(self) -> NDArray[np.float64]:
        """Return a! c! / (a + c)! and that over c (0 for c = 0): (a, 2, c)."""
        c = np.arange(self.most_distinct + 1)
        table = np.zeros((len(c), 2, len(c)))
        table[0, 0] = 1
        for a in c[1:]:
            table[a, 0] = table[a - 1, 0] * (a / (a + c))
        table[:, 1, 1:] = table[:, 0, 1:] / c[1:]
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


__all__: list[Any] = ["Game"]
