"""Subtrees at the bottom of trees, which a walk looks up in tables.

At each node, a row passed the tests of its feature up to the left edge, or up to the
right one, or left them above. The nodes of a small subtree have few such *cases*
together. So what the subtree sums to, and what it gives the feature of each node, is
what comes down to it times a number from a table::

    case    = sum over nodes of by_right if the row passed up to the right edge,
              of by_left_above if it left the tests above
    P[top]  = P[top] * table[sum][case]
    g[node] = P[top] * table[node][case]

Two of three nodes of a forest are in such subtrees.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import product

import numpy as np

from skforge._typing import Array, Bools, Float64s, Int64s
from skforge.compiler.layouts.blocks.paths import Paths
from skforge.compiler.layouts.contributions import quadrature
from skforge.forest.forest import Forest

#: Most nodes of a subtree.
MOST_NODES = 4
#: The sizes of its tables: no more cases than one or two registers of numbers hold.
SIZES = FEW, CASES = 8, 16

#: What a row may do at a node: the states of all nodes of a subtree.
WENT_LEFT, WENT_RIGHT, LEFT_ABOVE = range(3)
_EVERY = range(MOST_NODES)


@dataclass(frozen=True, slots=True, eq=False)
class Subtrees:
    """Subtrees of inner nodes, each below an edge and above leaves alone."""

    node: Int64s  # (n, MOST_NODES) top first, nodes above others, -1 behind the last
    by_right: Int64s  # (n, MOST_NODES) what a node adds to the case
    by_left_above: Int64s
    cases: Int64s  # (n,) their number

    def __getitem__(self, which: slice | Array) -> Subtrees:
        return Subtrees(*(getattr(self, f.name)[which] for f in fields(self)))

    @property
    def are_few(self) -> Bools:
        """Whether the cases of each fit in the smaller size of tables."""
        return self.cases <= FEW

    @classmethod
    def of(cls, forest: Forest, paths: Paths, node: Int64s) -> Subtrees:
        """Return the cases of subtrees.

        The cases of nodes whose feature is tested below the same edge are counted
        together. Below an edge of the subtree, they are there only for rows that pass
        it; below one above it, one case more is that of rows that do not.
        """
        there = node >= 0
        before = np.where(there, paths.before[node], -1)
        children = np.stack([forest.left[node], forest.right[node]], axis=-1)
        own, stride = np.ones(node.shape, np.int64), np.ones(node.shape, np.int64)
        below = np.ones((*node.shape, 2), np.int64)  # cases of the nodes after an edge
        owner = np.full((*node.shape, 2), -1)
        for k in _EVERY[::-1]:
            own[:, k] = np.where(there[:, k], below[:, k].sum(axis=1), 1)
            for j, side in product(range(k), (0, 1)):
                here = there[:, k] & (before[:, k] == children[:, j, side])
                owner[here, k] = j, side
                stride[here, k] = below[here, j, side]
                below[here, j, side] *= own[here, k]
        is_free = there & (owner[..., 0] < 0)
        by_left_above = np.zeros(node.shape, np.int64)
        cases = np.ones(len(node), np.int64)
        for k in _EVERY:
            first, above = is_free[:, k].copy(), before[:, k]
            start = cases.copy()
            for j in range(k, MOST_NODES):
                same = is_free[:, j] & (before[:, j] == above) & (above >= 0)
                here = first & (same if j > k else True)
                stride[here, j] = cases[here]
                cases[here] *= own[here, j]
                is_free[here, j] = False
            more = first & (above >= 0)
            by_left_above[more, k] = cases[more]
            cases[more] += start[more]
        for k in _EVERY:
            here = np.flatnonzero(owner[:, k, 0] >= 0)
            stride[here, k] *= stride[here, owner[here, k, 0]]
        by_right = np.where(there, below[..., 0] * stride, 0)
        return cls(node, by_right, by_left_above, cases)

    def states(self, forest: Forest, paths: Paths, count: int) -> Int64s:
        """Return what rows of each case do at ``count`` nodes: (n, CASES, count)."""
        node = self.node[:, :count]
        every = np.array([*product(range(3), repeat=count)]).T
        before = paths.before[node][..., None]
        is_above = np.broadcast_to(every == LEFT_ABOVE, (len(node), *every.shape))
        occurs = np.ones((len(node), every.shape[1]), np.bool_)
        has_owner = np.zeros(node.shape, np.bool_)
        for k in range(count):
            for j, side in product(range(k), (0, 1)):
                child = (forest.right if side else forest.left)[node[:, j]]
                here = before[:, k, 0] == child
                has_owner[:, k] |= here
                occurs &= ~here[:, None] | (is_above[:, k] == (every[j] != side))
        for k in range(count):
            free = ~has_owner[:, k, None]
            occurs &= ~free | (before[:, k] >= 0) | ~is_above[:, k]
            for j in range(k):
                same = free & (before[:, j] == before[:, k]) & (before[:, k] >= 0)
                occurs &= ~same | (is_above[:, j] == is_above[:, k])
        right, above = (
            weight[:, :count] @ (state == every)
            for weight, state in (
                (self.by_right, WENT_RIGHT),
                (self.by_left_above, LEFT_ABOVE),
            )
        )
        states = np.zeros((len(node), CASES, count), np.int64)
        number, state = np.nonzero(occurs)
        states[number, (right + above)[number, state]] = every.T[state]
        return states


def find(forest: Forest, paths: Paths) -> Subtrees:
    """Return the largest subtrees with few nodes and cases; none has a tree's root."""
    is_known = forest.left < 0
    members = np.full((forest.n_nodes, MOST_NODES), -1)
    found = [Subtrees.of(forest, paths, members[:0])]
    for level in paths.levels[:0:-1]:
        left, right = forest.left[level], forest.right[level]
        at = level[is_known[left] & is_known[right]]
        some = [at[:, None], members[forest.left[at]], members[forest.right[at]]]
        node = np.concatenate(some, axis=1)
        few = (node >= 0).sum(axis=1) <= MOST_NODES
        node = node[few]
        order = np.argsort(node < 0, axis=1, kind="stable")[:, :MOST_NODES]
        level_found = Subtrees.of(forest, paths, np.take_along_axis(node, order, 1))
        level_found = level_found[level_found.cases <= CASES]
        found.append(level_found)
        members[level_found.node[:, 0]] = level_found.node
        is_known[level_found.node[:, 0]] = True
    joined = (
        np.concatenate([getattr(s, f.name) for s in found]) for f in fields(Subtrees)
    )
    every = Subtrees(*joined)
    is_known[forest.left < 0] = False
    tops = every[~is_known[paths.parent[every.node[:, 0]]]]
    return tops[np.lexsort((tops.node[:, 0], paths.tree[tops.node[:, 0]]))]


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """What subtrees sum to, and what they give each node, by case.

    Those of a subtree begin at ``place`` of its tree's turn. They have a *row* of what
    it sums to, then one for each node. Rows are ``[row][point][case]``, or
    ``[case][row][point]`` if points are the lanes of vectors.
    """

    subtrees: Subtrees  # in the order of the walk
    constants: quadrature.Constants
    offset: Int64s


#: Subtrees whose tables are made at once: few enough for the cache.
_CHUNK = 512


def tables(
    forest: Forest,
    paths: Paths,
    points: quadrature.Points,
    values: Float64s,
    subtrees: Subtrees,
    in_lanes: bool,
    dtype: np.dtype[np.floating],
) -> Tables:
    """Return tables of subtrees, tree after tree; those of leaves include values."""
    tree = paths.tree[subtrees.node[:, 0]]
    rows = (subtrees.node >= 0).sum(axis=1) + 1
    width = subtrees.cases if in_lanes else np.where(subtrees.are_few, FEW, CASES)
    size = rows * points.places[tree] * width
    of_tree = np.bincount(tree, weights=size, minlength=forest.n_trees).astype(np.int64)
    first = np.append(0, np.cumsum(of_tree * points.turns))
    place = np.cumsum(size) - size
    place -= (np.cumsum(of_tree) - of_tree)[tree]
    filled = np.zeros(first[-1], dtype)
    shapes = np.stack([points.of_turn, points.turns, points.places], axis=1)[tree]
    kinds = np.column_stack([shapes, rows, width])
    for kind in np.unique(kinds, axis=0).tolist():
        n, turns, places, n_rows, cases = kind
        these = np.flatnonzero((kinds == kind).all(axis=1))
        formula = quadrature.Formula(forest, paths, values, n * turns)
        for k in range(0, len(these), _CHUNK):
            some = these[k : k + _CHUNK]
            of_rows = _of_rows(forest, paths, formula, subtrees[some], n_rows, cases)
            parts = of_rows.reshape(len(some), n_rows, cases, turns, n)
            parts = parts.transpose(3, 0, 1, 4, 2)
            whole = np.zeros((turns, len(some), n_rows, places, cases), dtype)
            whole[:, :, :, :n] = parts
            if in_lanes:
                whole = whole.transpose(0, 1, 4, 2, 3)
            for turn in range(turns):
                at = first[tree[some]] + turn * of_tree[tree[some]] + place[some]
                span = at[:, None] + np.arange(n_rows * places * cases)
                filled[span] = whole[turn].reshape(len(some), -1)
    return Tables(subtrees, quadrature.Constants(filled, first[:-1], of_tree), place)


def _of_rows(
    forest: Forest,
    paths: Paths,
    formula: quadrature.Formula,
    subtrees: Subtrees,
    n_rows: int,
    cases: int,
) -> Float64s:
    """Return rows of subtrees with as many nodes, (n, n_rows, cases, points)."""
    node = subtrees.node[:, : n_rows - 1]
    n, count = node.shape
    state = subtrees.states(forest, paths, count)[:, :cases]
    of_nodes = formula.of(node.ravel())
    where = np.arange(n)[:, None] * count + np.arange(count)

    def taken(rows: tuple[int, int, int], k: int) -> Float64s:
        three = np.stack([of_nodes[row][where[:, k]] for row in rows], axis=1)
        return np.take_along_axis(three, state[:, :, k, None], axis=1)

    shape = n, cases, taken((0, 1, 2), 0).shape[-1]
    comes, sums = np.ones((count, *shape)), np.ones((count, *shape))
    factors, inside = [], []
    for k in range(count):
        of_sides = taken((0, 1, 2), k), taken((4, 3, 5), k)
        factors.append(of_sides)
        for children, factor in zip((forest.left, forest.right), of_sides, strict=True):
            below = children[node[:, k]][:, None] == node
            inside.append(below)
            for j in range(k + 1, count):
                come = comes[k] * factor
                comes[j] = np.where(below[:, j, None, None], come, comes[j])
    result = np.zeros((n, n_rows, *shape[1:]))
    for k in range(count)[::-1]:
        total = np.zeros(shape)
        for side in (0, 1):
            up = factors[k][side]
            for j in range(k + 1, count):
                is_below = inside[2 * k + side][:, j, None, None]
                up = np.where(is_below, up * sums[j], up)
            total += up
            weights = (
                (quadrature.WEIGHTS, quadrature.WEIGHTS + 2)
                if side == 0
                else (quadrature.WEIGHTS + 2, quadrature.WEIGHTS + 1)
            )
            weight = taken((*weights, quadrature.WEIGHTS + 2), k)
            result[:, k + 1] += np.where(
                (state[:, :, k] == LEFT_ABOVE)[..., None], 0.0, up * weight
            )
        sums[k] = total
        result[:, k + 1] *= comes[k]
    result[:, 0] = sums[0]
    return result
