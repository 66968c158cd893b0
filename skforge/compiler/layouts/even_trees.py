"""Finds trees that several layouts store shorter: few leaves, or one test a level."""

from __future__ import annotations

import numpy as np

from skforge._typing import Array, Bools, Int64s
from skforge.forest.forest import Forest

#: Levels of even trees: bit logic loads the leaves of those with more than eight.
MAX_EVEN = 16


def leaf_counts(forest: Forest) -> Int64s:
    return np.diff(forest.tree_offset) // 2 + 1


def even_trees(forest: Forest) -> Bools:
    """Return which trees are complete, with a single test on each level."""
    depth = forest.tree_depths().astype(np.int64)
    whole = leaf_counts(forest) == 1 << np.minimum(depth, MAX_EVEN)
    even = np.zeros(forest.n_trees, np.bool_)
    for levels in np.unique(depth[whole & (depth > 0) & (depth <= MAX_EVEN)]):
        trees = np.flatnonzero(whole & (depth == levels))
        nodes = forest.tree_offset[trees][:, None]
        for _ in range(levels):
            test = forest.predicate[nodes]
            one = (test == test[:, :1]).all(axis=1)
            trees, nodes = trees[one], children(forest, nodes[one])
        even[trees] = True
    return even


def children(forest: Forest, nodes: Array) -> Array:
    children = np.stack([forest.left[nodes], forest.right[nodes]], axis=-1)
    return children.reshape(len(nodes), 2 * nodes.shape[1])
