"""The pairs of features on the paths of a forest, for interaction values.

At a node, the edges above it hold the state of every other feature of the path: for
each feature the lowest edge that tests it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skforge.compiler.forest.forest import Forest
from skforge.compiler.layouts.contributions.paths import IntArray, Order, Paths


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """The other features at each node, and the pairs of columns they make.

    Entry e of a node, ``start[i] <= e < start[i + 1]``, is the edge number ``edge[e]``
    of its tree (as in :class:`Order`), and adds to the tree's pair ``slot[e]``.
    """

    start: IntArray  # (n_nodes + 1,) into the entries
    edge: IntArray
    slot: IntArray
    pair_start: IntArray  # (n_trees + 1,) into the pairs of trees
    pair: IntArray  # of a tree's pair, among the forest's
    columns: IntArray  # (n_pairs, 2) features, the lower one first


def pair_up(forest: Forest, paths: Paths, order: Order) -> Pairs:
    """Return the pairs of a forest; those of one column are left out."""
    parent, tree = paths.parent, paths.tree
    column = np.append(forest.feature, -1)[forest.predicate].astype(np.int64)
    players = forest.node_feature
    node = order.node
    n = len(node)
    number, at = np.arange(n), node
    seen = players[node][:, None]  # features met below, the node's own first
    owners, edges = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    while len(at):
        some = parent[at] >= 0
        number, at, seen = number[some], at[some], seen[some]
        above = parent[at]
        new = (seen != players[above][:, None]).all(axis=1)
        new &= column[above] != column[node[number]]
        owners.append(number[new])
        edges.append(at[new])
        seen = np.column_stack([seen, players[above]])
        at = above
    owner, edge = np.concatenate(owners), np.concatenate(edges)
    by = np.argsort(owner, kind="stable")
    owner, edge = owner[by], edge[by]
    place = np.zeros(forest.n_nodes, np.int64)
    place[node] = np.arange(n)
    up = parent[edge]
    own = tree[node[owner]]
    mine, other = column[node[owner]], column[up]
    low, high = np.minimum(mine, other), np.maximum(mine, other)
    width = forest.n_features
    codes, which = np.unique(low * width + high, return_inverse=True)
    in_tree, slot = np.unique(own * len(codes) + which.reshape(-1), return_inverse=True)
    pair_start = np.searchsorted(in_tree, np.arange(forest.n_trees + 1) * len(codes))
    return Pairs(
        start=np.searchsorted(owner, np.arange(n + 1)),
        edge=2 * (place[up] - order.start[own]) + 1 + paths.is_right[edge],
        slot=slot.reshape(-1) - pair_start[own],
        pair_start=pair_start,
        pair=in_tree % max(1, len(codes)),
        columns=np.stack([codes // width, codes % width], axis=1),
    )
