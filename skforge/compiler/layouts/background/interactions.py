"""Interventional interaction values, from the conditions that rows meet at leaves.

At a leaf of value v, let a be the number of features whose conditions only the row x
meets, and c the number of those that only the background row b meets; every condition
must be met by one of them. In this game a pair of features has the Shapley interaction
index (Grabisch and Roubens 1999) ::

    v (a-2)! c! / (a+c-1)!        of two features of x
   -v (a-1)! (c-1)! / (a+c-1)!    of one of x and one of b
    v a! (c-2)! / (a+c-1)!        of two features of b

Half of it belongs to each order of the pair (Lundberg et al. 2018, section 4). Rows
with the same conditions have the same values, so that background rows are counted.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import factorial

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Bools, Float64s, Int64s
from skforge.compiler.layouts.blocks.paths import Paths, edges_above, trace
from skforge.forest.forest import Forest
from skforge.forest.reference import cast_rows, evaluate_predicates

#: Most features of a leaf for which the values of all pairs of patterns are kept.
_KEPT = 7
#: Elements of an array, and explained rows, at a time.
_CELLS, _ROWS = 1 << 23, 2048


def interactions(forest: Forest, background: Array, rows: Array) -> Float64s:
    """Return interactions, (n_rows, n_outputs, n_features, n_features).

    Those of a feature with itself are 0.
    """
    n, width = len(rows), forest.n_features
    paths, counted = trace(forest), len(background)
    found = np.zeros((forest.n_outputs, width * width, n))
    leaves = np.flatnonzero((forest.left < 0) & (paths.distinct > 1))
    tree = paths.tree[leaves]
    for start in range(0, n, _ROWS):
        part = slice(start, min(n, start + _ROWS))
        given = cast_rows(forest, np.concatenate([background, rows[part]]))
        for number in np.unique(tree):
            passed = _passed(forest, paths, int(number), given)
            first = int(forest.tree_offset[number])
            output = max(0, int(forest.tree_output[number]))
            own = leaves[tree == number]
            owner, edges = edges_above(forest, paths, own)
            ends = np.searchsorted(owner, np.arange(len(own) + 1))
            for leaf, begin, end in zip(own, ends[:-1], ends[1:], strict=True):
                edge = edges[begin:end]
                bits = np.unpackbits(passed[edge - first], axis=1, count=len(given))
                meets = bits.astype(np.bool_)
                table, which = _table(meets[:, :counted], meets[:, counted:])
                columns = forest.feature[forest.predicate[paths.parent[edge]]]
                place, table = _by_columns(columns.astype(np.int64), width, table)
                values = forest.leaf_value[forest.leaf[leaf]].astype(np.float64)
                for k, value in enumerate(values):
                    found[output + k, place, part] += (value * table)[:, which]
    found /= 2 * forest.divisor
    result = found.reshape(forest.n_outputs, width, width, n)
    result += result.swapaxes(1, 2)
    every = np.arange(width)
    result[:, every, every] = 0.0  # of features that share a column
    return result.transpose(3, 0, 1, 2)


def _passed(forest: Forest, paths: Paths, tree: int, rows: Array) -> NDArray[np.uint8]:
    first, last = forest.tree_offset[tree : tree + 2]
    passed = np.full((last - first, -(-len(rows) // 8)), 255, np.uint8)
    step = max(1, _CELLS // max(1, len(rows)))
    for level in paths.levels:
        of_tree = level[paths.tree[level] == tree]
        for k in range(0, len(of_tree), step):
            nodes = of_tree[k : k + step]
            tests, before = forest.predicate[nodes], paths.before[nodes]
            values = rows[:, forest.feature[tests]].T.ravel()
            goes = evaluate_predicates(forest, np.repeat(tests, len(rows)), values)
            left = np.packbits(goes.reshape(len(nodes), -1), axis=1)
            # the bits of a root, which has no edge, are all set
            comes = passed[np.where(before >= 0, before - first, 0)]
            passed[forest.left[nodes] - first] = comes & left
            passed[forest.right[nodes] - first] = comes & ~left
    return passed


def _by_columns(
    features: Int64s, width: int, table: Float64s
) -> tuple[Int64s, Float64s]:
    """Return the places of pairs of columns in a matrix, and a row of numbers for each.

    Columns of a pipeline's input may stand for several features, whose pairs are added.
    """
    low, high = np.sort([*combinations(features.tolist(), 2)], axis=1).T
    place, which = np.unique(low * width + high, return_inverse=True)
    which = which.reshape(-1)
    if len(place) == len(which):
        return place, table[np.argsort(which)]
    summed = np.zeros((len(place), table.shape[1]))
    np.add.at(summed, which, table)
    return place, summed


def _table(background: Bools, rows: Bools) -> tuple[Float64s, Int64s]:
    """Return the values of pairs by pattern, (pairs, patterns), and rows' patterns.

    Arguments have a line for each feature of a leaf: which rows meet its condition.
    """
    size, counted = background.shape
    if size <= _KEPT:
        bit = 1 << np.arange(size)
        share = np.bincount(bit @ background, minlength=1 << size) / counted
        return _all_terms(size) @ share, bit @ rows
    b, counts = np.unique(background, axis=1, return_counts=True)
    x, which = np.unique(rows, axis=1, return_inverse=True)
    step = max(1, _CELLS // (b.shape[1] * size * size))
    parts = [
        _terms(x[:, i : i + step], b) @ (counts / counted)
        for i in range(0, x.shape[1], step)
    ]
    return np.concatenate(parts, axis=1), which.reshape(-1)


@lru_cache
def _all_terms(size: int) -> Float64s:
    every = (np.arange(1 << size) >> np.arange(size)[:, None] & 1).astype(np.bool_)
    return _terms(every, every)


def _terms(x: Bools, b: Bools) -> Float64s:
    """Return the values of pairs for a leaf of value 1, (pairs, rows, background)."""
    size = len(x)
    of_x, of_b = x[:, :, None] & ~b[:, None], b[:, None] & ~x[:, :, None]
    reached = (x[:, :, None] | b[:, None]).all(axis=0)
    a, c = of_x.sum(axis=0), of_b.sum(axis=0)
    both, mixed, other = (np.where(reached, w[a, c], 0.0) for w in _weights(size))
    return np.stack(
        [
            both * (of_x[i] & of_x[j])
            - mixed * ((of_x[i] & of_b[j]) | (of_b[i] & of_x[j]))
            + other * (of_b[i] & of_b[j])
            for i, j in combinations(range(size), 2)
        ]
    )


@lru_cache
def _weights(size: int) -> Float64s:
    weights = np.zeros((3, size + 1, size + 1))
    for a in range(size + 1):
        for c in range(max(0, 2 - a), size + 1 - a):
            for kind, (p, q) in enumerate(((a - 2, c), (a - 1, c - 1), (a, c - 2))):
                if min(p, q) >= 0:
                    orders = factorial(p) * factorial(q)
                    weights[kind, a, c] = orders / factorial(a + c - 1)
    return weights
