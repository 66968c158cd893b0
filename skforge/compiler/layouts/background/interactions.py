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

from skforge.compiler.forest.arrays import Array
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.reference import _cast_rows, evaluate_predicates
from skforge.compiler.layouts.background.patterns import edges_above
from skforge.compiler.layouts.contributions.paths import IntArray, Paths, trace

#: Most features of a leaf for which the values of all pairs of patterns are kept.
_KEPT = 7
#: Elements of an array at a time.
_CELLS = 1 << 23

FloatArray = NDArray[np.float64]


def interactions(forest: Forest, background: Array, rows: Array) -> FloatArray:
    """Return interactions, (n_rows, n_outputs, n_features, n_features).

    Those of a feature with itself are 0.
    """
    n, width = len(rows), forest.n_features
    paths, counted = trace(forest), len(background)
    found = np.zeros((forest.n_outputs, width * width, n))
    leaves = np.flatnonzero((forest.left < 0) & (paths.distinct > 1))
    tree = paths.tree[leaves]
    for start in range(0, n, step := max(1, _CELLS // 4096)):
        part = slice(start, start + step)
        given = np.concatenate([background, rows[part]])
        for number in np.unique(tree):
            own = leaves[tree == number]
            passed = _passed(forest, paths, int(number), given)
            first = int(forest.tree_offset[number])
            output = max(0, int(forest.tree_output[number]))
            for edges, at in _by_size(forest, paths, own):
                tested = forest.feature[forest.predicate[paths.parent[edges]]]
                values = forest.leaf_value[forest.leaf[at]].astype(np.float64)
                for leaf, columns, value in zip(edges, tested, values, strict=True):
                    bits = passed[leaf - first].T
                    conditions = bits @ (1 << np.arange(len(leaf)))
                    table, which = _table(conditions, counted, len(leaf))
                    pairs = [*combinations(columns.astype(np.int64).tolist(), 2)]
                    low, high = np.sort(pairs, axis=1).T
                    # columns of a pipeline's input may stand for several features
                    place, own_place = np.unique(
                        low * width + high, return_inverse=True
                    )
                    if len(place) < len(pairs):
                        summed = np.zeros((len(place), table.shape[1]))
                        np.add.at(summed, own_place.reshape(-1), table)
                        table = summed
                    else:
                        table = table[np.argsort(own_place.reshape(-1))]
                    for k, v in enumerate(value):
                        found[output + k, place, part] += (v * table)[:, which]
    result = found.reshape(forest.n_outputs, width, width, n) / (2 * forest.divisor)
    result = result + result.swapaxes(1, 2)
    every = np.arange(width)
    result[:, every, every] = 0.0  # of features that share a column
    return result.transpose(3, 0, 1, 2)


def _passed(forest: Forest, paths: Paths, tree: int, rows: Array) -> NDArray[np.int64]:
    """Return which rows passed the tests of each node's edge, (nodes of tree, n)."""
    first, last = forest.tree_offset[tree : tree + 2]
    rows = _cast_rows(forest, rows)
    passed = np.ones((last - first, len(rows)), np.int64)
    for level in paths.levels:
        nodes = level[paths.tree[level] == tree]
        if not len(nodes):
            break
        tests, before = forest.predicate[nodes], paths.before[nodes]
        values = rows[:, forest.feature[tests]].T.ravel()
        goes = evaluate_predicates(forest, np.repeat(tests, len(rows)), values)
        goes = goes.reshape(len(nodes), -1)
        comes = np.where(before[:, None] >= 0, passed[np.maximum(before - first, 0)], 1)
        passed[forest.left[nodes] - first] = comes & goes
        passed[forest.right[nodes] - first] = comes & ~goes
    return passed


def _by_size(
    forest: Forest, paths: Paths, leaves: IntArray
) -> list[tuple[IntArray, IntArray]]:
    """Return the edges of leaves with as many features, and these leaves."""
    owner, edges = edges_above(forest, paths, leaves)
    start = np.searchsorted(owner, np.arange(len(leaves)))
    sizes = paths.distinct[leaves]
    found = []
    for size in np.unique(sizes):
        which = np.flatnonzero(sizes == size)
        found.append((edges[start[which, None] + np.arange(size)], leaves[which]))
    return found


def _table(
    conditions: IntArray, counted: int, size: int
) -> tuple[FloatArray, IntArray]:
    """Return the values of pairs by pattern, (pairs, patterns), and rows' patterns.

    The first ``counted`` conditions are those of background rows.
    """
    background, rows = conditions[:counted], conditions[counted:]
    if size <= _KEPT:
        share = np.bincount(background, minlength=1 << size) / counted
        return _all_terms(size) @ share, rows
    b, counts = np.unique(background, return_counts=True)
    x, which = np.unique(rows, return_inverse=True)
    step = max(1, _CELLS // (len(b) * size * size))
    parts = [
        _terms(x[i : i + step], b, size) @ (counts / counted)
        for i in range(0, len(x), step)
    ]
    return np.concatenate(parts, axis=1), which.reshape(-1)


@lru_cache
def _all_terms(size: int) -> FloatArray:
    every = np.arange(1 << size)
    return _terms(every, every, size)


def _terms(x: IntArray, b: IntArray, size: int) -> FloatArray:
    """Return the values of pairs for a leaf of value 1, (pairs, rows, background)."""
    only_x, only_b = x[:, None] & ~b, b & ~x[:, None]
    reached = (x[:, None] | b) == (1 << size) - 1
    bits = [[(o >> k & 1) > 0 for k in range(size)] for o in (only_x, only_b)]
    a, c = (np.sum(each, axis=0) for each in bits)
    weights = np.zeros((3, size + 1, size + 1))
    for i in range(size + 1):
        for j in range(size + 1 - i):
            whole = factorial(max(0, i + j - 1))
            both = (i - 2, j), (i - 1, j - 1), (i, j - 2)
            for kind, (p, q) in enumerate(both):
                if min(p, q) >= 0:
                    sign = -1 if kind == 1 else 1
                    weights[kind, i, j] = sign * factorial(p) * factorial(q) / whole
    of_both = [np.where(reached, w[a, c], 0.0) for w in weights]
    terms = []
    for i, j in combinations(range(size), 2):
        x_i, x_j, b_i, b_j = (of[k] for of in bits for k in (i, j))
        kinds = x_i & x_j, (x_i & b_j) | (b_i & x_j), b_i & b_j
        terms.append(sum(w * kind for w, kind in zip(of_both, kinds, strict=True)))
    return np.stack(terms)
