"""Every node's place in its tree: the edge above it, and the features on its path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skforge._typing import Bools, Float64s, Int64s
from skforge.forest.forest import Forest
from skforge.forest.means import shares


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """Every node's edge from its parent, and the features on the way from the root.

    Arrays have one element for each node of the forest. A node's ``before`` is the
    lower end of the nearest edge above it that tests the same feature as the node
    itself, or -1. Columns that a folded pipeline makes are features of their own.
    """

    levels: tuple[Int64s, ...]  # inner nodes by depth
    tree: Int64s
    parent: Int64s  # -1 at a root
    is_right: Bools
    depth: Int64s
    before: Int64s
    distinct: Int64s  # features on the path from the root
    share: Float64s  # product of cover ratios of its edge's feature

    @property
    def inner(self) -> Int64s:
        """All inner nodes, level by level."""
        return np.concatenate([*self.levels, np.zeros(0, np.int64)])

    def sums_below(self, number: Int64s) -> Int64s:
        """Return the sum of the inner nodes' numbers over the subtree of each."""
        total = number.copy()
        for level in self.levels[:0:-1]:
            np.add.at(total, self.parent[level], total[level])
        return total

    def edges(self, order: Int64s, below: Int64s) -> Int64s:
        """Return which edge of its tree leads to each node, and 0 for -1.

        With inner nodes in this order, tree after tree, 2 i + 1 is the left edge of a
        tree's i-th node, 2 i + 2 its right one.
        """
        place = np.zeros(len(self.tree), np.int64)
        place[order] = np.arange(len(order))
        up = self.parent[below]
        start = np.searchsorted(self.tree[order], self.tree[up])
        number = 2 * (place[up] - start) + 1 + self.is_right[below]
        return np.where(below >= 0, number, 0)


def trace(forest: Forest) -> Paths:
    """Return the paths of a forest; without covers, ``share`` means nothing."""
    n = forest.n_nodes
    parent = np.full(n, -1, np.int64)
    is_right = np.zeros(n, np.bool_)
    depth = np.zeros(n, np.int64)
    inner = forest.left >= 0
    feature = forest.node_feature.astype(np.int64)
    for children, side in ((forest.left, False), (forest.right, True)):
        parent[children[inner]] = np.flatnonzero(inner)
        is_right[children[inner]] = side
    before = _before(feature, parent, np.flatnonzero(inner))
    distinct = np.zeros(n, np.int64)
    share, ratio = np.ones(n), shares(forest)
    levels = []
    level = np.flatnonzero(inner & (parent < 0))
    while len(level):
        levels.append(level)
        above = before[level]
        upper = np.where(above >= 0, share[above], 1.0)
        for children in (forest.left, forest.right):
            below = children[level]
            share[below] = upper * ratio[below]
            distinct[below] = distinct[level] + (above < 0)
            depth[below] = depth[level] + 1
        both = np.concatenate([forest.left[level], forest.right[level]])
        level = np.sort(both[inner[both]]).astype(np.int64)
    tree = np.repeat(np.arange(forest.n_trees), np.diff(forest.tree_offset))
    return Paths(tuple(levels), tree, parent, is_right, depth, before, distinct, share)


def _before(feature: Int64s, parent: Int64s, nodes: Int64s) -> Int64s:
    before = np.full(len(feature), -1, np.int64)
    at = nodes
    while len(nodes):
        above = parent[at]
        some = above >= 0
        nodes, at, above = nodes[some], at[some], above[some]
        same = feature[above] == feature[nodes]
        before[nodes[same]] = at[same]
        nodes, at = nodes[~same], above[~same]
    return before


def edges_above(
    forest: Forest, paths: Paths, nodes: Int64s, own: bool = False
) -> tuple[Int64s, Int64s]:
    """Return, by node, the lowest edge of each feature above: node and lower end.

    With ``own``, edges of the node's own feature are left out.
    """
    number, at = np.arange(len(nodes)), nodes
    seen = forest.node_feature[nodes][:, None][:, : int(own)]
    owners, edges = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    while len(at):
        some = paths.parent[at] >= 0
        number, at, seen = number[some], at[some], seen[some]
        up = paths.parent[at]
        feature = forest.node_feature[up][:, None]
        new = (seen != feature).all(axis=1)
        owners.append(number[new])
        edges.append(at[new])
        seen, at = np.column_stack([seen, feature]), up
    owner = np.concatenate(owners)
    by = np.argsort(owner, kind="stable")
    return owner[by], np.concatenate(edges)[by]
