"""Converts the trees of an ONNX node to a graph, and the graph to a Forest's arrays.

Both file forms (a node table, and lists of tests and leaves) become one :class:`Graph`.
All trees are then followed from their roots level by level, at once; every later step
is one pass over all nodes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skforge._typing import Bools, FloatArray, Int32s
from skforge.exceptions import UnsupportedModelError
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.predicates import deduplicate_predicates, round_thresholds
from skforge.forest.validation import damaged, first_true
from skforge.frontends.arrays import Ints, Sets, category_words, forest_arrays

_MAX_WORDS = 1 << 24  # of all sets; a small file could ask for terabytes
_MAX_MEMBER = 1 << 31
_MAX_NODES = 1 << 25  # of trees after sharing is expanded


class Graph(NamedTuple):
    """Tests that refer to tests (>= 0) or leaves (``~leaf``); may not be trees."""

    feature: Ints
    comparison: Ints  # Comparison; MEMBER and IN have their values in ``members``
    value: FloatArray
    tracks: Bools  # NaN goes the way of a true test
    true: Ints
    false: Ints
    number: Ints  # the source's number of each test
    leaf_number: Ints
    roots: Ints  # a test or leaf per tree
    members: dict[int, FloatArray]


class Weights(NamedTuple):
    """The leaves' weights as parallel arrays, those of one leaf in order."""

    leaf: Ints
    output: Ints
    value: FloatArray


class OnnxTrees(NamedTuple):
    """Arrays of a Forest; ``leaf_of[i]`` is the graph leaf of leaf row ``i``."""

    arrays: dict[str, Any]
    leaf_of: Ints
    tree_of: Ints
    copy: Ints  # per tree: the number of its copies before it


def build_trees(
    graph: Graph, input_dtype: np.dtype[Any], copies: Ints | None = None
) -> OnnxTrees:
    """Follow the trees from their roots and return the arrays of a Forest.

    References of the graph must be in range. Thresholds are rounded to ``input_dtype``
    so that no test changes. ``copies`` gives the number of adjacent copies per tree.
    """
    followed = _follow(graph)
    whole = _without_fractions(graph)
    copy = np.zeros(len(graph.roots), np.int64)
    if copies is not None:
        whole = whole._replace(roots=np.repeat(graph.roots, copies))
        copy = np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies)
    if whole is not graph:
        graph, followed = whole, _follow(whole, shared=True)
    tree, reference, left, right = followed
    # stable, so that a tree keeps the order of levels and its root comes first
    order = np.argsort(tree, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    tree, reference = tree[order], reference[order]
    inner = reference >= 0
    test = reference[inner]
    left, right = left[order], right[order]
    leaf_of = ~reference[~inner]
    number = np.empty(len(tree), np.int64)
    number[inner] = graph.number[test]
    number[~inner] = graph.leaf_number[leaf_of]
    offset = np.searchsorted(tree, np.arange(len(graph.roots) + 1))
    tests, values = _predicates(graph, test, input_dtype), np.zeros((len(leaf_of), 1))
    children = rank[left], rank[right]
    arrays = forest_arrays(offset, inner, *children, tests, values, number)
    return OnnxTrees(arrays, leaf_of, tree[~inner], copy)


def _follow(graph: Graph, shared: bool = False) -> Ints:
    """Return tree, reference and children (positions) of every node, level by level.

    Nodes reachable in several ways are refused, or duplicated with ``shared``.
    """
    seen = np.zeros(len(graph.true), np.bool_)
    tree = np.arange(len(graph.roots))
    front = graph.roots
    levels = [np.zeros((4, 0), np.int64)]
    start = 0
    while len(front):
        inner = np.flatnonzero(front >= 0)
        test = front[inner]
        values, counts = np.unique(test, return_counts=True)
        twice = (counts > 1) | seen[values]
        if shared:
            if start + len(front) > _MAX_NODES:
                raise UnsupportedModelError(
                    f"The model needs more than {_MAX_NODES} nodes, because each "
                    "weight of a leaf for one target and each fraction in a set takes "
                    "a node of its own; export a smaller model."
                )
        elif twice.any():
            at = int(graph.number[values[twice][0]])
            damaged(
                f"node {at} is reached in more than one way, so its tree is not a tree"
            )
        seen[test] = True
        start += len(front)
        children = np.zeros((2, len(front)), np.int64)
        children[:, inner] = start + np.arange(2 * len(inner)).reshape(2, -1)
        levels.append(np.stack((tree, front, *children)))
        tree = np.tile(tree[inner], 2)
        front = np.concatenate((graph.true[test], graph.false[test]))
    return np.concatenate(levels, axis=1)


def merge_equal_chains(graph: Graph) -> Graph:
    """Replace chains of ``==`` that lead to the same node when true by set tests.

    Converters write ``x in {a, b}`` as ``x == a ? n : x == b ? n : ...``, which shares
    the node ``n``. onnxruntime merges such chains too, and then uses only the first
    test's missing track, so chains with different tracks are refused.
    """
    equal = graph.comparison == Comparison.EQ
    following = np.where(graph.false >= 0, graph.false, 0)
    linked = equal & (graph.false >= 0) & equal[following]
    linked &= graph.feature[following] == graph.feature
    linked &= graph.true[following] == graph.true
    mixed = linked & (graph.tracks[following] != graph.tracks)
    if (at := first_true(mixed)) >= 0:
        raise UnsupportedModelError(
            f"node {graph.number[at]} starts a chain of equality tests with different "
            "nodes_missing_value_tracks_true, which onnxruntime treats as one test, "
            "so its predictions cannot be reproduced."
        )
    if not linked.any():
        return graph
    inner_chain = np.zeros(len(linked), np.bool_)
    inner_chain[graph.false[linked]] = True
    comparison, false = graph.comparison.copy(), graph.false.copy()
    members = dict(graph.members)
    for head in np.flatnonzero(linked & ~inner_chain).tolist():
        chain = [head]
        while linked[chain[-1]] and len(chain) <= len(linked):
            chain.append(int(graph.false[chain[-1]]))
        comparison[head] = Comparison.MEMBER
        members[head] = graph.value[chain]
        false[head] = graph.false[chain[-1]]
    return graph._replace(comparison=comparison, false=false, members=members)


def _without_fractions(graph: Graph) -> Graph:
    """Test members that a bit set cannot hold by ``==``, before the rest of the set.

    onnxruntime makes such chains from small sets, and refuses models with others.
    """
    comparison, false = graph.comparison.copy(), graph.false.copy()
    value, members = graph.value.copy(), dict(graph.members)
    source = [np.arange(len(graph.true))]
    n_tests = len(graph.true)
    for test, values in graph.members.items():
        fits = _can_be_member(values)
        if fits.all() or graph.comparison[test] != Comparison.MEMBER:
            continue
        odd = np.unique(values[~fits])
        n_more = len(odd) - (not fits.any())
        chain = np.array([test, *range(n_tests, n_tests + n_more)])
        comparison = np.append(comparison, np.full(n_more, Comparison.EQ))
        value = np.append(value, np.zeros(n_more, value.dtype))
        false = np.append(false, np.full(n_more, false[test]))
        false[chain[:-1]] = chain[1:]
        comparison[test] = Comparison.EQ
        value[chain[: len(odd)]] = odd
        del members[test]
        if fits.any():
            comparison[chain[-1]] = Comparison.MEMBER
            members[int(chain[-1])] = values[fits]
        source.append(np.full(n_more, test))
        n_tests += n_more
    if len(source) == 1:
        return graph
    of = np.concatenate(source)
    return graph._replace(
        feature=graph.feature[of],
        comparison=comparison,
        value=value,
        tracks=graph.tracks[of],
        true=graph.true[of],
        false=false,
        number=graph.number[of],
        members=members,
    )


def _can_be_member(values: FloatArray) -> Bools:
    with np.errstate(invalid="ignore"):
        inside = (values >= 0) & (values < _MAX_MEMBER)
        return np.asarray(inside & (values == np.trunc(values)))


def _predicates(
    graph: Graph, test: Ints, input_dtype: np.dtype[Any]
) -> tuple[dict[str, Any], Int32s]:
    comparison = graph.comparison[test].copy()
    with np.errstate(invalid="ignore"):
        value = graph.value[test].astype(np.float64)
    tracks = graph.tracks[test]
    unequal = comparison == Comparison.NE
    equal = (comparison == Comparison.EQ) | unequal
    member = comparison >= Comparison.IN
    value[member] = 0
    with np.errstate(over="ignore", invalid="ignore"):
        never = np.isnan(value) | (equal & (value.astype(input_dtype) != value))
    # no number passes x < -inf and every number passes x >= -inf
    comparison[never] = np.where(unequal[never], Comparison.GE, Comparison.LT)
    value[never] = -np.inf
    sets = _member_words(graph, test)
    threshold = round_thresholds(value, comparison, input_dtype)
    columns, left = graph.feature[test], tracks | unequal  # NaN != t is true
    return deduplicate_predicates(
        columns, comparison, threshold, Missing.NAN, left, sets
    )


def _member_words(graph: Graph, test: Ints) -> Sets:
    sets: Sets = {}
    total = 0
    for position in np.flatnonzero(graph.comparison[test] >= Comparison.IN):
        values = graph.members[int(test[position])]
        fits = _can_be_member(values)
        if not fits.all():
            raise UnsupportedModelError(
                f"node {graph.number[test[position]]} tests membership of a set with "
                f"{values[~fits][0]}; only whole numbers from 0 to {_MAX_MEMBER - 1} "
                "are supported in sets with numbers above 30, below 0, or more than "
                "30 of them."
            )
        total += int(values.max()) // 32 + 1
        if total > _MAX_WORDS:
            raise UnsupportedModelError(
                "The sets of the model's membership tests take more than "
                f"{_MAX_WORDS} words of 32 bits; use smaller category numbers."
            )
        sets[int(position)] = category_words(values)
    return sets


class Leaves(NamedTuple):
    leaf_value: FloatArray
    tree_output: Int32s
    always: Bools  # (n_outputs,) every row scores the output
    never: Bools  # (n_outputs,) no row does
    each_scored: bool = True  # whether every row scores an output


def copies_of_trees(trees: OnnxTrees, weights: Weights, n_outputs: int) -> Ints:
    """Return, per tree, the largest number of weights of a leaf for one output."""
    copies = np.ones(len(trees.copy), np.int64)
    if n_outputs > 1 and len(weights.leaf):
        most = np.ones(int(max(weights.leaf.max(), trees.leaf_of.max())) + 1, np.int64)
        np.maximum.at(most, weights.leaf, _turns(weights, n_outputs) + 1)
        np.maximum.at(copies, trees.tree_of, most[trees.leaf_of])
    return copies


def _turns(weights: Weights, n_outputs: int) -> Ints:
    """Return how many weights of the same leaf and output precede each weight."""
    pair = weights.leaf * n_outputs + weights.output
    order = np.argsort(pair, kind="stable")
    ranked = pair[order]
    turns = np.empty_like(order)
    turns[order] = np.arange(len(pair)) - np.searchsorted(ranked, ranked)
    return turns


def leaf_values(
    trees: OnnxTrees,
    weights: Weights,
    n_outputs: int,
    unweighted: FloatArray,
    absent: float = 0.0,
) -> Leaves:
    """Return leaf values: a number each, or a vector if trees have several outputs.

    Weights of unused leaves are ignored. ``unweighted`` is what each leaf of the graph
    adds without weights, with one output; ``absent`` is the value of a leaf without a
    weight for an output.
    """
    dtype = weights.value.dtype
    n_trees = len(trees.arrays["tree_offset"]) - 1
    order = np.argsort(weights.leaf, kind="stable")
    columns = *weights, _turns(weights, n_outputs)
    leaf, output, value, turn = (column[order] for column in columns)
    first = np.searchsorted(leaf, trees.leaf_of)
    count = np.searchsorted(leaf, trees.leaf_of, side="right") - first
    if n_outputs == 1:
        # only the first weight counts
        at = np.minimum(first, max(0, len(value) - 1))
        weight_at = value[at] if len(value) else np.zeros(len(first), dtype)
        values = np.where(count > 0, weight_at, unweighted[trees.leaf_of].astype(dtype))
        scored = np.array([bool((count > 0).any())])
        return Leaves(values[:, None], np.zeros(n_trees, np.int32), scored, ~scored)
    row = np.repeat(np.arange(len(first)), count)
    at = np.repeat(first, count) + np.arange(len(row))
    at -= np.repeat(np.cumsum(count) - count, count)
    same_copy = turn[at] == trees.copy[trees.tree_of[row]]
    row, at = row[same_copy], at[same_copy]
    output, value = output[at], value[at]
    tree = trees.tree_of[row]
    key, hits = np.unique(tree * n_outputs + output, return_counts=True)
    size = np.bincount(trees.tree_of, minlength=n_trees)
    full = hits == size[key // n_outputs]
    always = np.bincount(key[full] % n_outputs, minlength=n_outputs) > 0
    never = np.bincount(key % n_outputs, minlength=n_outputs) == 0
    bare = np.bincount(trees.tree_of[count == 0], minlength=n_trees)
    each = bool((bare == 0).any())
    if (np.bincount(key // n_outputs, minlength=n_trees) <= 1).all():
        single = np.full((len(first), 1), absent, dtype)
        single[row, 0] = value
        tree_output = np.zeros(n_trees, np.int32)
        tree_output[key // n_outputs] = key % n_outputs
        return Leaves(single, tree_output, always, never, each)
    # a small file could ask for terabytes
    if len(first) * n_outputs > max(1 << 26, 16 * len(weights.value)):
        raise UnsupportedModelError(
            f"{len(first)} leaves with {n_outputs} numbers each do not fit in memory."
        )
    vector = np.full((len(first), n_outputs), absent, dtype)
    vector[row, output] = value
    return Leaves(vector, np.full(n_trees, -1, np.int32), always, never, each)
