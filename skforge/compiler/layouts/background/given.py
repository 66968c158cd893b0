"""The tables of background rows that the walk reads, computed by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.reference import evaluate_predicates
from skforge.compiler.layouts.background.game import Game

Words = NDArray[np.uint64]

#: Background rows of a group, a bit each; a state holds a set of them.
GROUP = 128

#: Tests evaluated at a time, to bound memory.
_CELLS = 1 << 20


def background_tables(game: Game, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the model buffers that depend on the background rows.

    For each group of rows: which of them there are (``members``), and which pass the
    tests of an edge's feature up to that edge (``given``). Leaves have the values of
    their tree less its mean, divided by the number of rows: a constant contributes
    nothing, and smaller numbers have smaller errors.
    """
    forest, n = game.forest, len(rows)
    n_groups = -(-n // GROUP)
    bits = np.zeros((n_groups, GROUP), np.bool_)
    bits.reshape(-1)[:n] = True
    members = _words(bits)
    given = np.empty((n_groups, 2 * len(game.node), 2), np.uint64)
    counts = np.zeros(forest.n_nodes, np.int64)
    for k in range(n_groups):
        part = rows[k * GROUP : (k + 1) * GROUP]
        _follow(game, _goes_left(forest, part), members[k], given[k], counts)
    leaf = np.flatnonzero(forest.leaf >= 0)
    values = forest.leaf_value[forest.leaf[leaf]].astype(np.float64)
    tree = np.searchsorted(forest.tree_offset, leaf, "right") - 1
    mean = np.zeros((forest.n_trees, values.shape[1]))
    np.add.at(mean, tree, values * counts[leaf, None] / n)
    bias = forest.base.astype(np.float64)
    if forest.vector_leaves:
        bias = bias + mean.sum(axis=0)
    else:
        np.add.at(bias, forest.tree_output, mean[:, 0])
    scaled = np.zeros((forest.n_nodes, values.shape[1]))
    scaled[leaf] = (values - mean[tree]) / n
    return {
        "groups": np.array([n_groups], np.int64),
        "members": members.reshape(-1).view(np.int64),
        "given": given.reshape(-1).view(np.int64),
        "leaf_scores": scaled[game.leaves].reshape(-1),
        "bias": bias / forest.divisor,
    }


def _words(bits: NDArray[np.bool_]) -> Words:
    """Pack rows of up to ``GROUP`` bits to two words each."""
    packed = np.zeros((len(bits), GROUP // 8), np.uint8)
    made = np.packbits(bits, axis=1, bitorder="little")
    packed[:, : made.shape[1]] = made
    return packed.view("<u8").astype(np.uint64)


def _goes_left(forest: Forest, rows: NDArray[Any]) -> Words:
    """Return which rows go left at each predicate."""
    found = np.zeros((forest.n_predicates, GROUP // 64), np.uint64)
    step = max(1, _CELLS // len(rows))
    columns = np.ascontiguousarray(rows.T)
    for first in range(0, forest.n_predicates, step):
        predicate = np.arange(first, min(first + step, forest.n_predicates))
        values = columns[forest.feature[predicate]]
        each = np.repeat(predicate, len(rows))
        left = evaluate_predicates(forest, each, values.reshape(-1))
        found[predicate] = _words(left.reshape(values.shape))
    return found


def _follow(
    game: Game, left: Words, members: Words, given: Words, counts: NDArray[np.int64]
) -> None:
    """Fill a group's ``given``; add to ``counts`` how many rows reach each leaf."""
    forest = game.forest
    passed = np.full((2 * len(game.node) + 1, 2), ~np.uint64(0))
    reach = np.zeros((forest.n_nodes, 2), np.uint64)
    reach[forest.tree_offset[:-1]] = members
    first = np.repeat(game.start[:-1], np.diff(game.start))
    before = np.where(game.before > 0, 2 * first + game.before, 0)
    test = left[forest.predicate[game.node]]
    for level in game.levels:
        node, goes, up = game.node[level], test[level], passed[before[level]]
        passed[2 * level + 1], passed[2 * level + 2] = up & goes, up & ~goes
        reach[forest.left[node]] = reach[node] & goes
        reach[forest.right[node]] = reach[node] & ~goes
    given[:] = passed[1:]
    leaf = np.flatnonzero(forest.leaf >= 0)
    bytes_ = np.ascontiguousarray(reach[leaf]).view(np.uint8)
    counts[leaf] += _ONES[bytes_].sum(axis=1)


#: How many bits each byte has.
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, np.int64)
