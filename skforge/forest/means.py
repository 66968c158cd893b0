"""Expected values of a forest: leaf values weighted by the covers of their paths.

Saabas' contributions are their changes along a row's paths.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from skforge._typing import Array, Bools, Float64s, Int32s, Int64s
from skforge.exceptions import UnsupportedModelError
from skforge.forest.forest import Forest

#: Covers of children may miss that of their parent by this share through rounding.
ROUNDED = 1e-6


class Means(NamedTuple):
    """The expected value of each tree and output."""

    forest: Forest
    of_tree: Float64s  # (n_trees, width of leaves)
    complete: Bools  # trees whose cover ratios sum to one at every node

    @classmethod
    def of(cls, forest: Forest) -> Means:
        _check_covers(forest)
        share = shares(forest)
        reach = np.ones(forest.n_nodes)  # product of shares from the root
        tree = np.repeat(np.arange(forest.n_trees), np.diff(forest.tree_offset))
        complete = np.ones(forest.n_trees, np.bool_)
        for level in forest.levels()[:-1]:
            level = level[forest.left[level] >= 0]
            total = np.zeros(len(level))
            for children in (forest.left, forest.right):
                below = children[level]
                reach[below] = reach[level] * share[below]
                total += share[below]
            complete[tree[level[np.abs(total - 1) > ROUNDED]]] = False
        leaf = np.flatnonzero(forest.leaf >= 0)
        values = forest.leaf_value[forest.leaf[leaf]].astype(np.float64)
        of_tree = np.zeros((forest.n_trees, values.shape[1]))
        np.add.at(of_tree, tree[leaf], reach[leaf, None] * values)
        return cls(forest, of_tree, complete)

    @property
    def of_node(self) -> Float64s:
        """The mean below each node, shape (n_nodes, width of leaves)."""
        forest = self.forest
        means = np.zeros((forest.n_nodes, forest.leaf_value.shape[1]))
        leaf = forest.leaf >= 0
        means[leaf] = forest.leaf_value[forest.leaf[leaf]]
        share = shares(forest)
        for level in reversed(forest.levels()[:-1]):
            level = level[forest.left[level] >= 0]
            for children in (forest.left, forest.right):
                below = children[level]
                means[level] += share[below, None] * means[below]
        return means

    @property
    def bias(self) -> Float64s:
        forest = self.forest
        total: Float64s = forest.base.astype(np.float64)
        if forest.vector_leaves:
            total += self.of_tree.sum(axis=0)
        else:
            np.add.at(total, forest.tree_output, self.of_tree[:, 0])
        return total / forest.divisor

    def centred(self, leaf: Int64s) -> Float64s:
        """Return values without their tree's mean: smaller ones have smaller errors."""
        forest = self.forest
        tree = np.searchsorted(forest.tree_offset, leaf, "right") - 1
        mean = np.where(self.complete[:, None], self.of_tree, 0.0)
        values: Array = forest.leaf_value[forest.leaf[leaf]]
        return values.astype(np.float64) - mean[tree]


def shares(forest: Forest) -> Float64s:
    """Return each node's cover by that of its parent: 1 for roots, or without covers.

    Both children of a node that no row reached get 0.5, as in XGBoost since 3.3.
    """
    share = np.ones(forest.n_nodes)
    if not len(forest.cover):
        return share
    inner = np.flatnonzero(forest.left >= 0)
    whole = forest.cover[inner]
    for children in (forest.left, forest.right):
        below, half = children[inner], np.full(len(inner), 0.5)
        share[below] = np.divide(forest.cover[below], whole, out=half, where=whole > 0)
    return share


def explained(forest: Forest) -> Forest:
    """Return the forest explained: of isolation forests, the mean path, as in shap."""
    if forest.outputs.function == "path_length":
        return replace(forest, divisor=max(1, forest.n_trees))
    return forest


def _check_covers(forest: Forest) -> None:
    bad = ~((forest.cover >= 0) & (forest.cover < np.inf))
    if bad.any():
        node = int(bad.argmax())
        tree = int(np.searchsorted(forest.tree_offset, node, "right")) - 1
        raise UnsupportedModelError(
            f"node {node - int(forest.tree_offset[tree])} of tree {tree} has the "
            f"cover {forest.cover[node]}, and path-dependent contributions need "
            "covers of at least 0; pass background rows, because contributions then "
            "need no covers."
        )


# Saabas' approximate contributions depend on the leaf alone, so each leaf has one
# sparse row of changes, and a row of data sums those of its leaves (Saabas 2014,
# "Interpreting random forests").

#: Rows of data multiplied at once, which bounds memory.
ROWS = 4096

#: Rows that are summed one by one: a sparse product costs half a millisecond.
FEW_ROWS = 16

#: Size up to which the table of changes is dense: sums are then 5 times as fast.
DENSE_BYTES = 1 << 26


def changes(forest: Forest, means: Means) -> Any:
    """Return the changes that lead to each node, (n_nodes, n_outputs * n_features).

    The table is an array if it is small, and sparse otherwise.
    """
    from scipy.sparse import csr_array

    parent = np.full(forest.n_nodes, -1, np.int64)
    inner = np.flatnonzero(forest.left >= 0)
    parent[forest.left[inner]] = parent[forest.right[inner]] = inner
    mean = means.of_node
    tree = np.searchsorted(forest.tree_offset, np.arange(forest.n_nodes), "right") - 1
    first = np.maximum(forest.tree_output, 0)[tree] * forest.n_features
    row, column, change = [], [], []
    leaf = np.flatnonzero(forest.leaf >= 0)
    at = leaf
    while len(at):
        some = parent[at] >= 0
        leaf, at = leaf[some], at[some]
        up = parent[at]
        feature = first[at] + forest.feature[forest.predicate[up]]
        for output in range(mean.shape[1]):
            row.append(leaf)
            column.append(feature + output * forest.n_features)
            change.append(mean[at, output] - mean[up, output])
        at = up
    shape = forest.n_nodes, forest.n_outputs * forest.n_features

    def joined(parts: list[Array]) -> Array:
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    places = joined(row), joined(column)
    matrix = csr_array((joined(change).astype(np.float64), places), shape)
    return matrix.toarray() if 8 * shape[0] * shape[1] <= DENSE_BYTES else matrix


def approximate(forest: Forest, bias: Array, table: Any, leaves: Int32s) -> Array:
    """Return contributions from the nodes that rows reach, shape (n_rows, n_trees)."""
    n, width = len(leaves), forest.n_features + 1
    values = np.empty((n, forest.n_outputs, width), forest.accumulator_dtype)
    values[..., -1] = bias
    for at in range(0, n, ROWS):
        part = leaves[at : at + ROWS]
        shape = len(part), forest.n_outputs, forest.n_features
        sums = _sums(table, part).reshape(shape)
        values[at : at + ROWS, :, :-1] = sums / forest.divisor
    return values


def _sums(table: Any, leaves: Int32s) -> Array:
    from scipy.sparse import csr_array

    if len(leaves) <= FEW_ROWS and isinstance(table, np.ndarray):
        few: Array = np.zeros((len(leaves), table.shape[1]))
        for row, values in zip(few, leaves, strict=True):
            np.add.reduce(table[values], axis=0, out=row)
        return few
    ends = np.arange(len(leaves) + 1) * leaves.shape[1]
    entries = np.ones(leaves.size), leaves.reshape(-1), ends
    reached = csr_array(entries, (len(leaves), table.shape[0]))
    sums = reached @ table
    return sums if isinstance(sums, np.ndarray) else np.asarray(sums.toarray())
