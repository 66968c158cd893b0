"""Leaves as such: their numbers, and scores that are not sums of their values.

Kernels only add. In a forest with an output for each tree, each sum is a leaf. From
these, NumPy computes scores that are the minimum or maximum of a row's leaves (ONNX)
and, as a reference, those of linear models in leaves (LightGBM).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np

from skforge._typing import Array, Int32s
from skforge.forest.arrays import ZERO_THRESHOLD
from skforge.forest.forest import Forest
from skforge.forest.outputs import SCORES
from skforge.forest.validation import ABSENT
from skforge.runtime.libm import multiply_add

#: A float32 from 2**23 on has the whole number that it exceeds that by in its low bits;
#: this one is 0, as the number of a leaf without one is -1.
_ZERO = np.float32((1 << 23) + 1)

#: What is found of a leaf: its row of ``leaf_value``, the source's number, its value.
Found: TypeAlias = Literal["row", "number", "value"]


def leaf_finder(forest: Forest) -> Forest:
    """Return a forest whose sums are those of ``forest`` or, if it has none, leaves."""
    return forest if forest.aggregate == "sum" else finder_of(forest, "row")


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


def finder_of(forest: Forest, found: Found) -> Forest:
    """Return a forest with an output for each tree: what is found of the row's leaf.

    Sums start from -0.0, to which every number is added without a change.
    :func:`rows_in` reads rows and numbers, which are float32 where that can hold them,
    as kernels of float64 take up to twice as long. As they are, small ones would be
    denormal floats, which a library may have the processor flush.
    """
    values: Array = forest.leaf_value[:, 0]
    if found != "value":
        numbers = np.arange(forest.n_leaves)
        if found == "number":
            outer = forest.leaf >= 0
            numbers[:] = -1
            numbers[forest.leaf[outer]] = forest.source_node[outer]
        fit = numbers.min(initial=0) >= -1 and numbers.max(initial=0) < _ZERO - 1
        values = (numbers + int(_ZERO)).astype(np.float32) if fit else numbers * 1.0
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
        hashed=None,  # rows are made
        row_norms=(),
    )


def row_dtype(forest: Forest) -> np.dtype[np.floating[Any]]:
    return np.dtype(np.float32 if forest.n_leaves < _ZERO else np.float64)


def rows_in(values: Array) -> Int32s:
    """Return the rows or numbers of leaves that sums are; small ones in their place."""
    if values.dtype == np.float64:
        return values.astype(np.int32)
    rows: Int32s = values.view(np.int32)
    rows -= _ZERO.view(np.int32)
    return rows
