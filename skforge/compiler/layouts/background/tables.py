"""Lays a forest and background rows out for the walk of interventional values.

Inner nodes are in preorder, so that a subtree that no row needs is skipped by one jump.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skforge._typing import Array, Bools, Float64s, Int64s, Uint64s
from skforge.compiler.layouts.blocks.paths import Paths, trace
from skforge.compiler.layouts.blocks.tree_block import Trees
from skforge.forest.forest import Forest
from skforge.forest.reference import evaluate_predicates


@dataclass(frozen=True, slots=True, eq=False)
class Preorder:
    """A normalised forest as the walk reads it.

    A path's distinct features are counted from the root; ``bit`` is the number of a
    node's feature on its path.
    ``events`` has 2 n where the walk enters node n, and 2 n + 1 where it leaves it.
    """

    trees: Trees
    node: Int64s  # inner nodes in preorder, tree after tree
    levels: tuple[Int64s, ...]  # their places by depth
    events: Int64s  # tree after tree, two for each node
    size: Int64s  # inner nodes of a node's subtree
    depth: Int64s
    is_right: Bools
    bit: Int64s
    leaves: Int64s  # the forest's leaf nodes below inner nodes
    side_leaf: Int64s  # (n_inner, 2): the row in ``leaves``, or -1
    distinct: Int64s  # features on each leaf's path

    @property
    def most_distinct(self) -> int:
        return int(self.distinct.max(initial=0))

    @classmethod
    def of(cls, forest: Forest) -> Preorder:
        paths = trace(forest)
        place, size = _preorder(forest, paths)
        inner = paths.inner
        node = inner[np.argsort(place[inner])]
        bit = np.zeros(forest.n_nodes, np.int64)
        for level in paths.levels:
            seen = paths.before[level]
            old = bit[paths.parent[seen]]
            bit[level] = np.where(seen >= 0, old, paths.distinct[level])
        depth = paths.depth[node]
        children = np.stack([forest.left, forest.right], axis=1)[node]
        leaves = children[forest.leaf[children] >= 0].astype(np.int64)
        number = np.full(forest.n_nodes, -1, np.int64)
        number[leaves] = np.arange(len(leaves))
        # Before a node is entered, all but its ancestors before it were left, too.
        enter = 2 * np.arange(len(node)) - depth
        events = np.zeros(2 * len(node), np.int64)
        events[enter] = 2 * np.arange(len(node))
        events[enter + 2 * size[node] - 1] = 2 * np.arange(len(node)) + 1
        return cls(
            trees=Trees.of(forest, paths, node, np.zeros(forest.n_outputs)),
            node=node,
            levels=tuple(place[level] for level in paths.levels),
            events=events,
            size=size[node],
            depth=depth,
            is_right=paths.is_right[node],
            bit=bit[node],
            leaves=leaves,
            side_leaf=number[children],
            distinct=paths.distinct[leaves],
        )

    def weights(self) -> Float64s:
        """Return a! c! / (a + c)! and that over c (0 for c = 0): (a, 2, c)."""
        c = np.arange(self.most_distinct + 1)
        table = np.zeros((len(c), 2, len(c)))
        table[0, 0] = 1
        for a in c[1:]:
            table[a, 0] = table[a - 1, 0] * (a / (a + c))
        table[:, 1, 1:] = table[:, 0, 1:] / c[1:]
        return table


def _preorder(forest: Forest, paths: Paths) -> tuple[Int64s, Int64s]:
    size = paths.sums_below((forest.left >= 0).astype(np.int64))
    place = np.zeros(forest.n_nodes, np.int64)
    roots = forest.tree_offset[:-1]
    place[roots] = np.cumsum(size[roots]) - size[roots]
    for level in paths.levels:
        left, right = forest.left[level], forest.right[level]
        place[left] = place[level] + 1
        place[right] = place[level] + 1 + size[left]
    return place, size


#: Background rows of a group, a bit each; a state holds a set of them.
GROUP = 128

#: Tests evaluated at a time, to bound memory.
_CELLS = 1 << 20


def background_tables(
    order: Preorder, rows: Array
) -> tuple[dict[str, Array], Float64s]:
    """Return the model buffers that depend on the background rows, and ``centred``.

    For each group of rows: which of them there are (``members``), and which pass the
    tests of an edge's feature up to that edge (``given``). Leaves have the values of
    their tree less its mean, divided by the number of rows: a constant contributes
    nothing, and smaller numbers have smaller errors.
    """
    forest, n = order.trees.forest, len(rows)
    n_groups = -(-n // GROUP)
    bits = np.zeros((n_groups, GROUP), np.bool_)
    bits.reshape(-1)[:n] = True
    members = _words(bits)
    passing = np.empty((n_groups, 2 * len(order.node), 2), np.uint64)
    counts = np.zeros(forest.n_nodes, np.int64)
    for k in range(n_groups):
        part = rows[k * GROUP : (k + 1) * GROUP]
        _follow(order, _goes_left(forest, part), members[k], passing[k], counts)
    scaled, bias = centred(forest, counts, n)
    tables = {
        "groups": np.array([n_groups], np.int64),
        "members": members.reshape(-1).view(np.int64),
        "given": passing.reshape(-1).view(np.int64),
        "leaf_scores": scaled[order.leaves].reshape(-1),
        "bias": bias,
    }
    return tables, scaled


def centred(forest: Forest, counts: Int64s, n: int) -> tuple[Float64s, Float64s]:
    """Return the values of leaf nodes less their tree's mean, by n, and the bias.

    ``counts`` tells how many of n background rows reach each leaf.
    """
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
    return scaled, bias / forest.divisor


def _words(bits: Bools) -> Uint64s:
    packed = np.zeros((len(bits), GROUP // 8), np.uint8)
    bytes_ = np.packbits(bits, axis=1, bitorder="little")
    packed[:, : bytes_.shape[1]] = bytes_
    return packed.view("<u8").astype(np.uint64)


def _goes_left(forest: Forest, rows: Array) -> Uint64s:
    lefts = np.zeros((forest.n_predicates, GROUP // 64), np.uint64)
    step = max(1, _CELLS // len(rows))
    columns = np.ascontiguousarray(rows.T)
    for first in range(0, forest.n_predicates, step):
        predicate = np.arange(first, min(first + step, forest.n_predicates))
        values = columns[forest.feature[predicate]]
        each = np.repeat(predicate, len(rows))
        left = evaluate_predicates(forest, each, values.reshape(-1))
        lefts[predicate] = _words(left.reshape(values.shape))
    return lefts


def _follow(
    order: Preorder, left: Uint64s, members: Uint64s, given: Uint64s, counts: Int64s
) -> None:
    forest, trees = order.trees.forest, order.trees
    passed = np.full((2 * len(order.node) + 1, 2), ~np.uint64(0))
    reach = np.zeros((forest.n_nodes, 2), np.uint64)
    reach[forest.tree_offset[:-1]] = members
    first = np.repeat(trees.start[:-1], np.diff(trees.start))
    before = np.where(trees.before > 0, 2 * first + trees.before, 0)
    test = left[forest.predicate[order.node]]
    for level in order.levels:
        node, goes, up = order.node[level], test[level], passed[before[level]]
        passed[2 * level + 1], passed[2 * level + 2] = up & goes, up & ~goes
        reach[forest.left[node]] = reach[node] & goes
        reach[forest.right[node]] = reach[node] & ~goes
    given[:] = passed[1:]
    leaf = np.flatnonzero(forest.leaf >= 0)
    bytes_ = np.ascontiguousarray(reach[leaf]).view(np.uint8)
    counts[leaf] += _ONES[bytes_].sum(axis=1)


#: How many bits each byte has.
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, np.int64)
