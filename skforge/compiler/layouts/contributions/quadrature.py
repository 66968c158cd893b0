"""The constants of the walk: SHAP values as a Gauss-Legendre sum, linear in the nodes.

For a leaf of value v, let o be 1 for each feature of its path whose tests the row
passes and 0 for the others, and z the product of the cover ratios of a feature's
edges. The Shapley weights are Beta integrals, so that the feature i gets (Lundberg
et al. 2018, Algorithm 1, written as an integral)::

    v (o_i - z_i) integral over t of  product over j != i of (t o_j + (1 - t) z_j)

D features give a polynomial of degree D - 1, which D / 2 points integrate exactly. At
each point, an edge multiplies what comes down by the factor of its feature, and a node
sums what comes up. With f = t + (1 - t) z, the factor of a feature whose tests were
passed, and A = (1 - z) / f, a node gives its feature ::

    w (A of the side the row takes - A of the edge before) times what that side sums
    - w (1 / (1 - t) + A of the edge before)               times what the other sums

if the row passed the tests of the feature above. Sums over a path telescope to the
formula. Nothing cancels that the formula keeps apart, so float32 has six digits.
Factors are stored relative to a row that passes every test, and the leaves have the
product of f: nothing overflows.

A leaf with D features on its path needs D / 2 points, and a tree as many as its
neediest leaf. So a tree may be cut in two, the shallow leaves and the others: walked
twice, each time without the subtrees of the other leaves, it visits some upper nodes
twice and most nodes with fewer points (random forests of depth 12: .82 of the time, of
full depth .72). Small trees are walked together, as if they were one of several roots:
what they give a feature is summed once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skforge._typing import Array, Bools, Float64s, Int32s, Int64s
from skforge.compiler.layouts.blocks.paths import Paths
from skforge.compiler.layouts.contributions.order import Order
from skforge.forest.forest import Forest

#: Most points of one walk. More are walked in several turns.
MOST_POINTS = 8

#: Most inner nodes of trees that are walked together, by the bytes of their numbers.
#: More cost digits of float32: errors of 2.6e-7 with 128, 8.2e-7 with 512.
MOST_NODES = {4: 128, 8: 512}

#: Share of the work that a cut must save: nodes have costs besides their points.
WORTH = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class JoinedTrees:
    """A forest whose trees are parts of trees or small trees together."""

    forest: Forest
    node: Int64s  # of each node: that of the whole forest
    kept: Bools  # whether a leaf stands for itself, not for a subtree cut


def parts_of(forest: Forest, paths: Paths) -> JoinedTrees:
    """Return a forest's trees in one part or two, whichever takes less work."""
    needs = np.maximum(1, -(-paths.distinct // 2))
    leaf, inner = forest.leaf >= 0, np.flatnonzero(forest.left >= 0)
    least, most = np.where(leaf, needs, 1 << 30), np.where(leaf, needs, 0)
    for level in paths.levels[::-1]:
        for children in (forest.left, forest.right):
            least[level] = np.minimum(least[level], least[children[level]])
            most[level] = np.maximum(most[level], most[children[level]])
    of_tree = np.zeros(forest.n_trees, np.int64)
    np.maximum.at(of_tree, paths.tree, most)
    of_node = of_tree[paths.tree[inner]]
    highest = int(of_node.max(initial=0))
    costs = {highest: int(of_node.sum())}
    if highest > MOST_POINTS // 2:  # else as many places in the lanes of a single row
        for limit in range(1, highest):
            low, high = least[inner] <= limit, most[inner] > limit
            work = low * np.minimum(limit, of_node) + high * of_node
            costs[limit] = int(work.sum())
    limit = min(costs, key=lambda one: costs[one])
    if costs[limit] > (1 - WORTH) * costs[highest]:
        limit = highest
    group = _groups(forest, paths, of_tree)
    if limit == highest and len(np.unique(group)) == forest.n_trees:
        every = np.arange(forest.n_nodes)
        return JoinedTrees(forest, every, leaf)
    return _in_parts(forest, paths, group, least <= limit, most > limit)


def _groups(forest: Forest, paths: Paths, needs: Int64s) -> Int64s:
    """Return a number for each tree, which trees that are walked together share.

    They have the same output, and need as many points.
    """
    order = np.lexsort((needs, forest.tree_output))
    size = np.bincount(paths.tree[paths.inner], minlength=forest.n_trees)
    keys = np.stack([forest.tree_output, needs], axis=1).tolist()
    group = np.zeros(forest.n_trees, np.int64)
    number, total, last = -1, 0, None
    most = MOST_NODES[forest.leaf_value.itemsize]
    for tree in order.tolist():
        total += size[tree]
        if keys[tree] != last or total > most:
            number, total, last = number + 1, size[tree], keys[tree]
        group[tree] = number
    return group


def _in_parts(
    forest: Forest, paths: Paths, group: Int64s, few: Bools, many: Bools
) -> JoinedTrees:
    in_part = np.stack([few, many])
    below = in_part[:, paths.parent] & (paths.parent >= 0)
    side, node = np.nonzero(in_part | below)  # a child that is cut off becomes a leaf
    part = 2 * group[paths.tree[node]] + side
    by = np.argsort(part, kind="stable")
    side, node, part = side[by], node[by], part[by]
    place = np.zeros((2, forest.n_nodes), np.int64)
    place[side, node] = np.arange(len(node))
    used, counts = np.unique(part, return_counts=True)
    keep = in_part[side, node]
    inner = (forest.left[node] >= 0) & keep

    def children(of_whole: Int32s) -> Int32s:
        return np.where(inner, place[side, of_whole[node]], -1).astype(np.int32)

    output = forest.tree_output[np.unique(group, return_index=True)[1]]
    named = forest.source_feature
    cut_forest = replace(
        forest,
        tree_offset=np.append(0, np.cumsum(counts)),
        tree_output=output[used // 2],
        predicate=np.where(inner, forest.predicate[node], -1).astype(np.int32),
        left=children(forest.left),
        right=children(forest.right),
        leaf=np.where(inner, -1, np.maximum(forest.leaf[node], 0)).astype(np.int32),
        source_node=forest.source_node[node],
        cover=forest.cover[node],
        source_feature=named[node] if len(named) else named,
    )
    return JoinedTrees(cut_forest, node, keep & ~inner)


#: Constants of a node at a point: for each side the factors of a row that takes it, of
#: one that leaves the feature's tests here, and of one that left them above; then the
#: weights of each side if the row takes it, and of the other side.
LEFT, RIGHT, WEIGHTS = 0, 3, 6
ROWS = tuple(range(9))

#: More for interactions: A of both edges where they are passed, and where not.
GAINS, LOSS = 9, 11
PAIR_ROWS = (*ROWS, 9, 10, 11)

#: For one row: factors and weights of both sides if it takes the left one, the right
#: one, or left the feature's tests above.
_NONE = 12
ROWS_BY_SIDE = (0, 4, 6, 8, 1, 3, 8, 7, 2, 5, _NONE, _NONE)

#: Nodes whose constants are computed at once: few enough for the cache.
CHUNK = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """How many points each tree needs, in how many turns.

    A turn has ``of_turn`` points, and room for ``places``, where the rest is zero.
    """

    of_turn: Int64s  # (n_trees,)
    turns: Int64s  # (n_trees,)
    places: Int64s  # (n_trees,)

    @classmethod
    def of(cls, parts: JoinedTrees, paths: Paths, in_lanes: bool) -> Points:
        """Return as few points as are exact; in lanes they fill a power of two."""
        distinct = np.ones(parts.forest.n_trees, np.int64)
        leaf = parts.kept
        np.maximum.at(distinct, paths.tree[leaf], paths.distinct[leaf])
        needed = -(-distinct // 2)
        turns = -(-needed // MOST_POINTS)
        of_turn = -(-needed // turns)
        half = MOST_POINTS // 2
        in_vector = np.where(of_turn > half, MOST_POINTS, half)
        return cls(of_turn, turns, in_vector if in_lanes else of_turn)


@dataclass(frozen=True, slots=True, eq=False)
class Constants:
    """The constants of all nodes: of each the points of a turn, ``rows`` times.

    Those of a tree's first turn begin at ``first``; the next turn's are ``step`` later.
    """

    values: Array
    first: Int64s
    step: Int64s


def fill(
    forest: Forest,
    paths: Paths,
    order: Order,
    points: Points,
    values: Float64s,
    dtype: np.dtype[Any],
    rows: tuple[int, ...],
    some: Bools,
) -> Constants:
    """Return constants of ``some`` nodes; those of leaves include ``values[node]``."""
    counts = np.bincount(order.tree[some], minlength=forest.n_trees)
    each = counts * points.turns * points.places * len(rows)
    constants = np.zeros(int(each.sum()), dtype)
    first = np.zeros(forest.n_trees, np.int64)
    step = np.zeros(forest.n_trees, np.int64)
    shapes = np.stack([points.of_turn, points.turns, points.places], axis=1)
    at = 0
    for n, turns, places in np.unique(shapes, axis=0).tolist():
        trees = np.flatnonzero((shapes == (n, turns, places)).all(axis=1))
        nodes = np.flatnonzero(np.isin(order.tree, trees) & some)
        offset = np.searchsorted(order.tree[nodes], trees)
        first[trees] = at + offset * len(rows) * places
        step[trees] = len(nodes) * len(rows) * places
        # Points of a turn lie together, turn after turn.
        shape = turns, len(nodes), len(rows), places
        part = constants[at : at + int(np.prod(shape))].reshape(shape)
        formula = Formula(forest, paths, values, n * turns)
        for k in range(0, len(nodes), CHUNK):
            of_rows = formula.of(order.node[nodes[k : k + CHUNK]])
            for place, row in enumerate(rows):
                if row in of_rows:
                    of_turns = of_rows[row].reshape(-1, turns, n).transpose(1, 0, 2)
                    part[:, k : k + CHUNK, place, :n] = of_turns
        at += part.size
    return Constants(constants, first, step)


class Formula:
    """The constants of nodes at all points, each of shape (nodes, points)."""

    def __init__(
        self, forest: Forest, paths: Paths, values: Float64s, n_points: int
    ) -> None:
        x, weight = np.polynomial.legendre.leggauss(n_points)
        self._forest, self._paths, self._values = forest, paths, values
        self._t, self._rest, self._weight = (1 + x) / 2, (1 - x) / 2, weight / 2

    def of(self, node: Int64s) -> dict[int, Float64s]:
        forest, paths = self._forest, self._paths
        rest, weight = self._rest, self._weight
        before = paths.before[node]
        above = np.where(before >= 0, paths.share[before], 1.0)[:, None]
        passed_above = self._t + rest * above
        gain_above = (1 - above) / passed_above
        left_above = np.where(before[:, None] >= 0, rest * above / passed_above, 1.0)
        constants: dict[int, Float64s] = {}
        for first, children in ((LEFT, forest.left), (RIGHT, forest.right)):
            child = children[node]
            share = paths.share[child][:, None]
            passed = self._t + rest * share
            left = rest * share / passed
            with np.errstate(divide="ignore", invalid="ignore"):
                stays = np.where(left_above > 0, left / left_above, 0.0)
            leaf = np.flatnonzero(forest.leaf[child] >= 0)
            at = child[leaf].astype(np.int64)
            scale = np.ones(left.shape)
            scale[leaf] = self._products(at) * self._values[at][:, None]
            gain = (1 - share) / passed
            factors = scale, left * scale, stays * scale
            constants.update(zip(range(first, first + 3), factors, strict=True))
            constants[WEIGHTS + first // 3] = weight * (gain - gain_above)
            constants[GAINS + first // 3] = gain
        constants[WEIGHTS + 2] = -weight / (rest * passed_above)
        constants[LOSS] = np.broadcast_to(-1 / rest, constants[WEIGHTS].shape)
        return constants

    def _products(self, leaf: Int64s) -> Float64s:
        paths, t, rest = self._paths, self._t, self._rest
        product = np.ones((len(leaf), len(t)))
        at, rows = leaf, np.arange(len(leaf))
        while len(at):
            up = paths.parent[at]
            some = up >= 0
            at, up, rows = at[some], up[some], rows[some]
            edge = paths.before[up]
            above = np.where(edge >= 0, paths.share[edge], 1.0)[:, None]
            factor = t + rest * paths.share[at][:, None]
            product[rows] *= factor / (t + rest * above)
            at = up
        return product
