"""Leaves as such: their numbers, and scores that are not sums of their values.

Kernels only add. Scores that are the minimum or maximum of a row's leaves (ONNX) are
computed by NumPy from the leaves that kernels find; those of linear models in leaves
(LightGBM), too, as a reference. The fast kernels find leaves as well: in a forest with
an output for each tree, each sum is a leaf.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from skforge._typing import Array, Int32s
from skforge.compiler.forest.arrays import ZERO_THRESHOLD
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.outputs import SCORES
from skforge.compiler.forest.validation import ABSENT
from skforge.runtime.libm import multiply_add

#: A float32 from 2**23 on has the whole number it exceeds that by in its low bits. The
#: number of no leaf, -1, is written as 0.
_FIRST = 1 << 23
_BITS = int(np.float32(_FIRST + 1).view(np.int32))
#: The least number that float32 values cannot hold.
LARGEST = _FIRST - 1


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
        leaf_linear=np.zeros((0, 0)),
        source_node=forest.leaf,
        leaf_value=np.where(np.isfinite(values), values, 0).astype(values.dtype),
    )


def numbers_of_leaves(forest: Forest) -> Int32s:
    numbers = np.full(forest.n_leaves, -1, np.int32)
    inner = forest.leaf < 0
    numbers[forest.leaf[~inner]] = forest.source_node[~inner]
    return numbers


def not_sums(forest: Forest) -> str:
    if forest.aggregate == "linear":
        return "The sum of linear models in leaves"
    return f"The aggregate function {forest.aggregate.upper()} of several trees"


@np.errstate(all="ignore")
def _linear_scores(forest: Forest, leaves: Array, rows: Array) -> Array:
    """Return the sums of the linear models of leaves, as LightGBM computes them."""
    x = np.where(np.abs(rows) <= ZERO_THRESHOLD, 0, rows.astype(np.float64))
    scores = np.zeros((len(leaves), forest.n_outputs))
    for tree, output in enumerate(forest.tree_output):
        leaf = leaves[:, tree]
        values, count, *terms = forest.leaf_linear[leaf].T
        missing = np.zeros(len(leaf), np.bool_)
        for k, (feature, factor) in enumerate(zip(*[iter(terms)] * 2, strict=True)):
            term = x[np.arange(len(leaf)), feature.astype(np.intp)]
            missing |= (k < count) & np.isnan(term)
            values = np.where(k < count, multiply_add(term, factor, values), values)
        scores[:, output] += np.where(missing, forest.leaf_value[leaf, 0], values)
    return scores


def scores_of_leaves(forest: Forest, leaves: Array, rows: Array) -> Array:
    """Return the least or greatest leaf value for each row and output.

    ``leaves`` are rows of ``leaf_value``, (n, n_trees). A score is 0 if no leaf has a
    value; zeros are positive, like those of sums that start from 0.
    """
    if forest.aggregate == "linear":
        return _linear_scores(forest, leaves, rows)
    absent = ABSENT[forest.aggregate]
    better = np.minimum if forest.aggregate == "min" else np.maximum
    scores = np.full((len(leaves), forest.n_outputs), absent, forest.leaf_value.dtype)
    for tree, output in enumerate(forest.tree_output):
        part = scores if output < 0 else scores[:, output : output + 1]
        better(part, forest.leaf_value[leaves[:, tree]], out=part)
    scores[(scores == absent) | (scores == 0)] = 0
    return scores


def by_tree(forest: Forest, values: Array) -> Forest:
    """Return a forest with an output for each tree: its leaves' ``values``.

    Sums start from -0.0, to which every number is added without a change.
    """
    return replace(
        forest,
        tree_output=np.arange(forest.n_trees, dtype=np.int32),
        leaf_value=values[:, np.newaxis],
        base=np.full(forest.n_trees, -0.0),
        divisor=1,
        outputs=SCORES,
        task="regression",
        output_sizes=(),
        class_labels=(),
        aggregate="sum",
        leaf_linear=np.zeros((0, 0)),
        scaling=(),
    )


def numbers_fit(forest: Forest) -> bool:
    """Tell whether float32 values can hold the leaf numbers."""
    return bool(forest.source_node.max(initial=0) < LARGEST)


def number_values(numbers: Int32s) -> Array:
    """Return leaf numbers as float32 values, which :func:`numbers_in` reads in place.

    Kernels of such values are up to twice as fast as those of float64. Small numbers as
    they are would be denormal floats, which a library may have the processor flush.
    """
    return (numbers + (_FIRST + 1)).astype(np.float32)


def numbers_in(values: Array) -> Int32s:
    """Return the leaf numbers of float32 values, in their place."""
    numbers: Int32s = values.view(np.int32)
    numbers -= np.int32(_BITS)
    return numbers
