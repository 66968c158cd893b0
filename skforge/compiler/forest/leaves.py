"""Scores that are the minimum or maximum of a row's leaves (ONNX), not their sum.

Kernels only add. For these forests they find leaves, and NumPy computes the scores.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from skforge._typing import Array, Int32s
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.validation import ABSENT


def leaf_finder(forest: Forest) -> Forest:
    """Return a summing forest with the same trees, whose leaf numbers are rows.

    A summing forest is returned unchanged; otherwise each leaf's ``source_node`` is its
    row of ``leaf_value``.
    """
    if forest.aggregate == "sum":
        return forest
    values = forest.leaf_value
    return replace(
        forest,
        aggregate="sum",
        source_node=forest.leaf,
        leaf_value=np.where(np.isfinite(values), values, 0).astype(values.dtype),
    )


def numbers_of_leaves(forest: Forest) -> Int32s:
    numbers = np.full(forest.n_leaves, -1, np.int32)
    inner = forest.leaf < 0
    numbers[forest.leaf[~inner]] = forest.source_node[~inner]
    return numbers


def scores_of_leaves(forest: Forest, leaves: Array) -> Array:
    """Return the least or greatest leaf value for each row and output.

    ``leaves`` are rows of ``leaf_value``, (n, n_trees). A score is 0 if no leaf has a
    value; zeros are positive, like those of sums that start from 0.
    """
    absent = ABSENT[forest.aggregate]
    better = np.minimum if forest.aggregate == "min" else np.maximum
    scores = np.full((len(leaves), forest.n_outputs), absent, forest.leaf_value.dtype)
    for tree, output in enumerate(forest.tree_output):
        part = scores if output < 0 else scores[:, output : output + 1]
        better(part, forest.leaf_value[leaves[:, tree]], out=part)
    scores[(scores == absent) | (scores == 0)] = 0
    return scores
