"""Saabas' approximate contributions: the changes of the mean along a row's paths.

They depend on the leaf alone, so each leaf has one sparse row of changes, and a row of
data sums those of its leaves (Saabas 2014, "Interpreting random forests").
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array  # type: ignore[import-untyped, unused-ignore]

from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.means import Means

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

    def joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    places = joined(row), joined(column)
    made = csr_array((joined(change).astype(np.float64), places), shape)
    return made.toarray() if 8 * shape[0] * shape[1] <= DENSE_BYTES else made


def approximate(
    forest: Forest, bias: NDArray[Any], table: Any, leaves: NDArray[np.int32]
) -> NDArray[Any]:
    """Return contributions from the nodes that rows reach, shape (n_rows, n_trees)."""
    n, width = len(leaves), forest.n_features + 1
    made = np.empty((n, forest.n_outputs, width), forest.accumulator_dtype)
    made[..., -1] = bias
    for at in range(0, n, ROWS):
        part = leaves[at : at + ROWS]
        shape = len(part), forest.n_outputs, forest.n_features
        sums = _sums(table, part).reshape(shape)
        made[at : at + ROWS, :, :-1] = sums / forest.divisor
    return made


def _sums(table: Any, leaves: NDArray[np.int32]) -> NDArray[Any]:
    """Return the sums of the rows of a table, tree after tree."""
    if len(leaves) <= FEW_ROWS and isinstance(table, np.ndarray):
        few: NDArray[Any] = np.zeros((len(leaves), table.shape[1]))
        for row, own in zip(few, leaves, strict=True):
            np.add.reduce(table[own], axis=0, out=row)
        return few
    ends = np.arange(len(leaves) + 1) * leaves.shape[1]
    entries = np.ones(leaves.size), leaves.reshape(-1), ends
    reached = csr_array(entries, (len(leaves), table.shape[0]))
    sums = reached @ table
    return sums if isinstance(sums, np.ndarray) else np.asarray(sums.toarray())
