"""Orders the inner nodes of all trees for the walk of contributions.

A walk goes down and up every tree. It keeps one vector of each quadrature point for
every edge it has entered and not left, in *slots*. To keep the slots in L1, trees are
cut into clusters: connected groups of inner nodes, at most ``most`` each, from the
leaves up. The nodes of a cluster are neighbours, its child clusters follow. A *run*
goes down one range of nodes and up another one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from skforge._typing import Bools, Int64s
from skforge.compiler.layouts.blocks.paths import Paths, edges_above
from skforge.forest.forest import Forest


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Inner nodes in the order of the walk, all trees one after another.

    A tree's first slots are above its roots; the right edge's slot follows the left
    one's. A run has four numbers: it goes down from the first to the second, then up
    from the fourth to the third. Nodes of subtrees follow the others of their tree;
    they have no slots.
    """

    node: Int64s
    tree: Int64s
    start: Int64s  # (n_trees + 1,) into the nodes
    is_walked: Bools
    roots: Int64s  # (n_trees,) their number
    slot: Int64s
    left_slot: Int64s
    subtree: Int64s  # the number of each subtree, in the order of the walk
    subtree_slot: Int64s
    runs: Int64s  # (n_runs, 4)
    run_subtrees: Int64s  # (2 * n_runs + 1,) between down and up: few cases, others
    run_start: Int64s  # (n_trees + 1,) into the runs
    feature_slot: Int64s  # of a node, among its tree's features
    features: Int64s  # the features of each tree
    feature_start: Int64s  # (n_trees + 1,) into the features
    n_slots: int


def put_in_order(
    forest: Forest, paths: Paths, most: Int64s, subtrees: Int64s, are_few: Bools
) -> Order:
    """Return the order of the walk, with at most ``most[tree]`` nodes in a cluster.

    ``subtrees`` has the nodes of each, the top first and -1 behind the last. In a run,
    those with few cases come first.
    """
    is_walked = np.ones(forest.n_nodes, np.bool_)
    is_walked[subtrees[subtrees >= 0]] = False
    paths = replace(paths, levels=tuple(at[is_walked[at]] for at in paths.levels))
    inner, parent = paths.inner, paths.parent
    n_trees, n = forest.n_trees, forest.n_nodes
    cluster, size = _clusters(paths, most, n)
    owner = cluster[inner]
    own = np.bincount(owner, minlength=n)  # nodes of each cluster, by its root
    tops = np.unique(owner)
    above = np.where(parent[tops] >= 0, cluster[parent[tops]], -1)
    begin, base = np.zeros(n, np.int64), np.ones(n, np.int64)
    roots = tops[above < 0]
    roots = roots[np.argsort(paths.tree[roots], kind="stable")]
    n_roots = np.bincount(paths.tree[roots], minlength=n_trees)
    base[roots] = n_roots[paths.tree[roots]]
    begin[roots] = np.cumsum(size[roots]) - size[roots]
    first_root = np.cumsum(n_roots) - n_roots
    root_slot = np.zeros(n, np.int64)
    root_slot[roots] = np.arange(len(roots)) - first_root[paths.tree[roots]]
    counts = np.bincount(paths.tree[inner], minlength=n_trees)
    start = np.append(0, np.cumsum(counts))
    while len(roots):
        here = np.isin(above, roots)
        children, owners = tops[here], above[here]
        by = np.lexsort((children, owners))
        children, owners = children[by], owners[by]
        sums = np.cumsum(size[children]) - size[children]
        first = np.searchsorted(owners, owners)
        begin[children] = begin[owners] + own[owners] + sums - sums[first]
        base[children] = base[owners] + 2 * own[owners]
        roots = children
    by = np.lexsort((inner, paths.depth[inner], begin[owner]))
    node = inner[by]
    place = np.zeros(n, np.int64)
    place[node] = np.arange(len(node))
    owner = cluster[node]
    left_slot = base[owner] + 2 * (place[node] - begin[owner])
    lefts = np.zeros(n, np.int64)
    lefts[node] = left_slot
    slots = np.where(parent >= 0, lefts[parent] + paths.is_right, root_slot)
    runs, run_tree = _runs(tops, begin, own, size, paths.tree)
    top = subtrees[:, 0]
    goes_down = np.flatnonzero(runs[:, 1] > runs[:, 0])
    run_of = np.repeat(goes_down, (runs[:, 1] - runs[:, 0])[goes_down])
    part = 2 * run_of[place[parent[top]]] + ~are_few
    # loops over as many nodes follow each other, which branch predictors learn
    subtree = np.lexsort(((subtrees >= 0).sum(axis=1), part))
    part = part[subtree]
    below = subtrees[subtree]
    below = below[below >= 0]
    # those of subtrees come last in their tree
    before = np.searchsorted(paths.tree[below], np.arange(n_trees + 1))
    runs += before[run_tree, None]
    node = np.concatenate([node, below])
    by = np.argsort(paths.tree[node], kind="stable")
    node = node[by]
    tree = paths.tree[node]
    walked = is_walked[node]
    feature = forest.feature[forest.predicate[node]]
    pairs, which = np.unique(tree * forest.n_features + feature, return_inverse=True)
    feature_start = np.searchsorted(pairs, np.arange(n_trees + 1) * forest.n_features)
    return Order(
        node=node,
        tree=tree,
        start=start + before,
        is_walked=walked,
        roots=n_roots,
        slot=np.where(walked, slots[node], 0),
        left_slot=np.where(walked, lefts[node], 0),
        subtree=subtree,
        subtree_slot=slots[top[subtree]],
        runs=runs,
        run_subtrees=np.searchsorted(part, np.arange(2 * len(runs) + 1)),
        run_start=np.searchsorted(run_tree, np.arange(n_trees + 1)),
        feature_slot=which.reshape(-1) - feature_start[tree],
        features=pairs % max(1, forest.n_features),
        feature_start=feature_start,
        n_slots=int(lefts.max(initial=0)) + 2,
    )


def _clusters(paths: Paths, most: Int64s, n: int) -> tuple[Int64s, Int64s]:
    inner, parent = paths.inner, paths.parent
    size = np.zeros(n, np.int64)
    rank = np.zeros(n, np.int64)  # clusters of one rank hang below those of the next
    left = np.zeros(n, np.bool_)
    left[inner] = True
    number = 0
    while left.any():
        number += 1
        count = paths.sums_below(left.astype(np.int64))
        if number == 1:
            size = count
        now = left & (count <= most[paths.tree])
        rank[now] = number
        left &= ~now
    cluster = np.arange(n)
    for level in paths.levels[1:]:
        same = level[rank[level] == rank[parent[level]]]
        cluster[same] = cluster[parent[same]]
    return cluster, size


def _runs(
    tops: Int64s, begin: Int64s, own: Int64s, size: Int64s, tree: Int64s
) -> tuple[Int64s, Int64s]:
    """Return the runs and their trees; a cluster comes before its child clusters."""
    first = begin[tops]
    last = first + own[tops]
    n = len(tops)
    moment = np.concatenate([first, first + size[tops]])
    up = np.arange(2 * n) >= n
    inside = np.concatenate([first, -first])  # the innermost is left first
    by = np.lexsort((inside, ~up, moment))
    up = up[by]
    cluster = by % n
    run: Int64s = np.cumsum(up) - up  # clusters entered before the next one is left
    runs = np.zeros((n, 4), np.int64)
    runs[:, 0] = len(tree)
    down = ~up
    np.minimum.at(runs[:, 0], run[down], first[cluster[down]])
    np.maximum.at(runs[:, 1], run[down], last[cluster[down]])
    runs[:, 0] = np.minimum(runs[:, 0], runs[:, 1])
    runs[:, 2], runs[:, 3] = first[cluster[up]], last[cluster[up]]
    return runs, tree[tops[cluster[up]]]


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """The other features at each node, and the pairs of columns they make.

    The edges above a node hold the state of every other feature of its path: for each
    feature the lowest edge that tests it.

    Entry e of a node, ``start[i] <= e < start[i + 1]``, is the edge number ``edge[e]``
    of its tree (see :meth:`Paths.edges`), and adds to the tree's pair ``slot[e]``.
    """

    start: Int64s  # (n_nodes + 1,) into the entries
    edge: Int64s
    slot: Int64s
    pair_start: Int64s  # (n_trees + 1,) into the pairs of trees
    pair: Int64s  # of a tree's pair, among the forest's
    columns: Int64s  # (n_pairs, 2) features, the lower one first


def pair_up(forest: Forest, paths: Paths, order: Order) -> Pairs:
    node, tree = order.node, paths.tree
    column = np.append(forest.feature, -1)[forest.predicate].astype(np.int64)
    owner, edge = edges_above(forest, paths, node, own=True)
    # Columns of a pipeline may be several features, which make no pair.
    apart = column[paths.parent[edge]] != column[node[owner]]
    owner, edge = owner[apart], edge[apart]
    of_tree = tree[node[owner]]
    mine, other = column[node[owner]], column[paths.parent[edge]]
    low, high = np.minimum(mine, other), np.maximum(mine, other)
    width = forest.n_features
    codes, which = np.unique(low * width + high, return_inverse=True)
    in_tree, slot = np.unique(
        of_tree * len(codes) + which.reshape(-1), return_inverse=True
    )
    pair_start = np.searchsorted(in_tree, np.arange(forest.n_trees + 1) * len(codes))
    return Pairs(
        start=np.searchsorted(owner, np.arange(len(node) + 1)),
        edge=paths.edges(node, edge),
        slot=slot.reshape(-1) - pair_start[of_tree],
        pair_start=pair_start,
        pair=in_tree % max(1, len(codes)),
        columns=np.stack([codes // width, codes % width], axis=1),
    )
