"""Contributions by their definitions, slowly: sums over all subsets of features.

The worth of a subset of features is the mean of a tree where all other features follow
both children, weighted by covers (Lundberg et al. 2018, Algorithm 1); a node without
cover gives its children none. All numbers are long doubles, 64 bits wide on x86-64.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skforge.forest.forest import Forest
from skforge.forest.reference import (
    cast_rows,
    evaluate_predicates,
    reference_leaves,
)

Array = NDArray[np.longdouble]
LONG = np.longdouble


def shap_values(forest: Forest, rows: ArrayLike) -> Array:
    """Return SHAP values of shape (n_rows, n_outputs, n_features + 1).

    The sum over all subsets: right for any tree, for a dozen features at most.
    """
    lefts = goes_left(forest, rows)
    made = np.zeros((len(lefts), forest.n_outputs, forest.n_features + 1), LONG)
    for root, outputs, used in trees(forest):
        worth = worths(forest, root, lefts, used)
        for k, feature in enumerate(used):
            made[:, outputs, feature] += _shapley(worth, len(used), k)
        made[:, outputs, -1] += worth[:, 0]
    made[..., -1] += forest.base
    return made / LONG(forest.divisor)


def shap_interactions(forest: Forest, rows: ArrayLike) -> Array:
    """Return SHAP interaction values (Lundberg et al. 2018, section 4).

    The shape is (n_rows, n_outputs, n_features + 1, n_features + 1). The last row and
    column are 0 but for the expected value in their corner, as in XGBoost.
    """
    lefts = goes_left(forest, rows)
    width = forest.n_features + 1
    made = np.zeros((len(lefts), forest.n_outputs, width, width), LONG)
    for root, outputs, used in trees(forest):
        worth = worths(forest, root, lefts, used)
        for i, first in enumerate(used):
            for j, second in enumerate(used[:i]):
                both = _shared(worth, len(used), i, j)
                made[:, outputs, first, second] += both
                made[:, outputs, second, first] += both
        made[:, outputs, -1, -1] += worth[:, 0]
    made[..., -1, -1] += forest.base
    made /= LONG(forest.divisor)
    alone = shap_values(forest, rows)
    for i in range(forest.n_features):
        made[..., i, i] = alone[..., i] - made[..., i, :].sum(axis=-1)
    return made


def interventional_interactions(
    forest: Forest, rows: NDArray[Any], background: NDArray[Any]
) -> Array:
    """Return interactions, (n_rows, n_outputs, n_features, n_features).

    The worth of a subset is the mean score where all other features are those of the
    background rows. Values of a feature with itself are 0.
    """
    n, worth = forest.n_features, _mixed_worths(forest, rows, background)
    made = np.zeros((len(rows), forest.n_outputs, n, n), LONG)
    for i, j in combinations(range(n), 2):
        made[..., i, j] = made[..., j, i] = _shared(worth, n, i, j)
    return made


def interventional_values(
    forest: Forest, rows: NDArray[Any], background: NDArray[Any]
) -> Array:
    """Return values, (n_rows, n_outputs, n_features + 1), of the same worths."""
    n, worth = forest.n_features, _mixed_worths(forest, rows, background)
    values = [_shapley(worth, n, k) for k in range(n)]
    return np.stack([*values, worth[:, 0]], axis=-1)


def _mixed_worths(
    forest: Forest, rows: NDArray[Any], background: NDArray[Any]
) -> Array:
    """Return worths, of shape (n_rows, 2 ** n_features, n_outputs)."""
    n = forest.n_features
    known = (np.arange(1 << n)[:, None] >> np.arange(n) & 1)[:, None] == 1
    mixed = np.where(known, rows[:, None, None], background)
    scores = margins(forest, mixed.reshape(-1, n))
    worth: Array = scores.reshape(*mixed.shape[:3], -1).mean(axis=2)
    return worth


def saabas_values(forest: Forest, rows: ArrayLike) -> Array:
    """Return the changes of the mean along each row's paths (Saabas 2014)."""
    lefts = goes_left(forest, rows)
    made = np.zeros((len(lefts), forest.n_outputs, forest.n_features + 1), LONG)
    for root, outputs, _ in trees(forest):
        made[:, outputs, -1] += mean(forest, root)
        for row, left in enumerate(lefts):
            node = root
            while forest.left[node] >= 0:
                test = forest.predicate[node]
                child = (forest.left if left[test] else forest.right)[node]
                change = mean(forest, child) - mean(forest, node)
                made[row, outputs, forest.feature[test]] += change
                node = child
    made[..., -1] += forest.base
    return made / LONG(forest.divisor)


def values_by_leaf(forest: Forest, rows: ArrayLike) -> Array:
    """Return SHAP values as sums over leaves, for hundreds of features on a path.

    A leaf's subsets of one size are the coefficients of a product of polynomials,
    which has no negative number.
    """
    lefts = goes_left(forest, rows)
    made = np.zeros((len(lefts), forest.n_outputs, forest.n_features + 1), LONG)
    for root, outputs, _ in trees(forest):
        for row, left in enumerate(lefts):
            for leaf, path in paths(forest, root, left):
                value = forest.leaf_value[forest.leaf[leaf]].astype(LONG)
                shares = np.array([share for share, _ in path.values()], LONG)
                passed = np.array([one for _, one in path.values()], LONG)
                made[row, outputs, -1] += value * shares.prod()
                factors = [np.array(pair) for pair in zip(shares, passed, strict=True)]
                weights = _weights(len(path))
                for feature, own, product in zip(
                    path, passed - shares, _others(factors), strict=True
                ):
                    made[row, outputs, feature] += value * own * (product @ weights)
    made[..., -1] += forest.base
    return made / LONG(forest.divisor)


def margins(forest: Forest, rows: ArrayLike) -> Array:
    """Return the raw scores, of shape (n_rows, n_outputs)."""
    leaves = reference_leaves(forest, rows)
    made = np.zeros((len(leaves), forest.n_outputs), LONG)
    for (_, outputs, _), node in zip(trees(forest), leaves.T, strict=True):
        made[:, outputs] += forest.leaf_value[forest.leaf[node]]
    return (made + forest.base) / LONG(forest.divisor)


# ------------------------------------------------------------ trees


def goes_left(forest: Forest, rows: ArrayLike) -> NDArray[np.bool_]:
    """Return which rows pass each predicate, of shape (n_rows, n_predicates)."""
    cast = cast_rows(forest, rows)
    tests = np.arange(forest.n_predicates)
    return (
        np.stack(
            [evaluate_predicates(forest, tests, row[forest.feature]) for row in cast]
        )
        if len(cast)
        else np.zeros((0, len(tests)), np.bool_)
    )


def trees(forest: Forest) -> Iterator[tuple[int, slice, list[int]]]:
    """Yield the root, the outputs and the features of each tree."""
    for tree, output in enumerate(forest.tree_output.tolist()):
        first, last = forest.tree_offset[tree], forest.tree_offset[tree + 1]
        tests = forest.predicate[first:last]
        used = np.unique(forest.feature[tests[tests >= 0]]).tolist()
        outputs = slice(None) if output < 0 else slice(output, output + 1)
        yield int(first), outputs, used


def ratios(forest: Forest, node: int) -> tuple[np.longdouble, np.longdouble]:
    """Return the shares of a node's cover that its children have."""
    whole = LONG(forest.cover[node])
    if whole <= 0:
        return LONG(0.5), LONG(0.5)
    left, right = forest.cover[forest.left[node]], forest.cover[forest.right[node]]
    return left / whole, right / whole


def worths(
    forest: Forest, node: int, lefts: NDArray[np.bool_], used: list[int]
) -> Array:
    """Return each row's means, of shape (n_rows, 2 ** features, width of leaves).

    Bit k of a subset's number is set if it has the feature ``used[k]``.
    """
    n_sets = 1 << len(used)
    if forest.left[node] < 0:
        value = forest.leaf_value[forest.leaf[node]].astype(LONG)
        return np.tile(value, (len(lefts), n_sets, 1))
    test = forest.predicate[node]
    left = worths(forest, int(forest.left[node]), lefts, used)
    right = worths(forest, int(forest.right[node]), lefts, used)
    share = ratios(forest, node)
    known = np.arange(n_sets) >> used.index(int(forest.feature[test])) & 1
    taken = np.where(lefts[:, test, None, None], left, right)
    both = share[0] * left + share[1] * right
    made: Array = np.where(known[:, None] == 1, taken, both)
    return made


def mean(forest: Forest, node: int) -> Array:
    """Return the mean of a subtree's leaves, weighted by covers."""
    if forest.left[node] < 0:
        return forest.leaf_value[forest.leaf[node]].astype(LONG)
    share = ratios(forest, node)
    left, right = (mean(forest, int(c[node])) for c in (forest.left, forest.right))
    return share[0] * left + share[1] * right


def paths(
    forest: Forest, root: int, left: NDArray[np.bool_]
) -> Iterator[tuple[int, dict[int, tuple[np.longdouble, bool]]]]:
    """Yield each leaf with its path: the share and the tests of every feature."""
    pending: list[tuple[int, dict[int, tuple[np.longdouble, bool]]]] = [(root, {})]
    while pending:
        node, path = pending.pop()
        if forest.left[node] < 0:
            yield node, path
            continue
        test = forest.predicate[node]
        feature = int(forest.feature[test])
        share, passed = path.get(feature, (LONG(1), True))
        shares = ratios(forest, node)
        for child, ratio, taken in (
            (forest.left[node], shares[0], bool(left[test])),
            (forest.right[node], shares[1], not left[test]),
        ):
            further = path | {feature: (share * ratio, passed and taken)}
            pending.append((int(child), further))


# ------------------------------------------------------------ subsets


def _weights(n: int) -> Array:
    """Return the Shapley weight of each size of a subset of n - 1 other features."""
    made = np.ones(max(n, 1), LONG)
    for size in range(n):
        # |S|! (n - |S| - 1)! / n! = 1 / (n binomial(n - 1, |S|))
        whole = factorial(n) // factorial(size) // factorial(n - size - 1)
        made[size] = 1 / LONG(str(whole))
    return made


def _sizes(n: int) -> NDArray[np.int64]:
    return np.array([bin(one).count("1") for one in range(1 << n)])


def _shapley(worth: Array, n: int, k: int) -> Array:
    """Return the Shapley values of the k-th of n features, (n_rows, width)."""
    without = np.flatnonzero((np.arange(1 << n) >> k & 1) == 0)
    weight = _weights(n)[_sizes(n)[without]]
    gain = worth[:, without | 1 << k] - worth[:, without]
    made: Array = (weight[:, None] * gain).sum(axis=1)
    return made


def _shared(worth: Array, n: int, i: int, j: int) -> Array:
    """Return half the interaction of the i-th and the j-th of n features."""
    sets = np.arange(1 << n)
    without = np.flatnonzero((sets >> i & 1) + (sets >> j & 1) == 0)
    # |S|! (n - |S| - 2)! / (n - 1)!
    weight = _weights(n - 1)[_sizes(n)[without]]
    a, b = 1 << i, 1 << j
    gain = worth[:, without | a | b] - worth[:, without | a]
    gain = gain - worth[:, without | b] + worth[:, without]
    made: Array = (weight[:, None] * gain).sum(axis=1) / 2
    return made


def _others(factors: list[Array]) -> Iterator[Array]:
    """Yield, for each of some polynomials, the product of all the others."""

    def parts(chosen: list[Array], outside: Array) -> Iterator[Array]:
        if len(chosen) == 1:
            yield outside
            return
        half = len(chosen) // 2
        first, second = chosen[:half], chosen[half:]
        yield from parts(first, _product([outside, *second]))
        yield from parts(second, _product([outside, *first]))

    if factors:
        yield from parts(factors, np.ones(1, LONG))


def _product(factors: list[Array]) -> Array:
    if len(factors) == 1:
        return factors[0]
    half = len(factors) // 2
    made: Array = np.convolve(_product(factors[:half]), _product(factors[half:]))
    return made
