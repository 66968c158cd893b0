"""Checks that a forest's arrays describe trees, before anything walks them.

All later code (interpreters, tilings, native code) follows child indices without
checks, so damaged or hostile models must be refused here. Each check is one vectorised
pass; the error names the array, index and tree of the first fault.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from skforge.exceptions import InvalidModelError
from skforge.forest.arrays import Comparison, ForestArrays, Missing

#: Output functions for exactly one raw score, and for several only.
_OF_ONE = ("expit", "numpy_exp", "path_length", "fast_exp")
_OF_SEVERAL = (
    *("softmax_by_rows", "softmax_by_columns", "fast_softmax", "uncertainty"),
    "shares",
)

#: Norms of ONNX's Normalizer.
NORMS = ("L1", "L2", "MAX")

#: By ``aggregate``: the leaf value that means no value for an output.
ABSENT = {"min": np.inf, "max": -np.inf}


def validate(forest: ForestArrays) -> None:
    """Raise InvalidModelError, naming array, index and tree, unless these are trees."""
    _check_sizes(forest)
    if forest.hashed is not None:
        forest.hashed.validate()
    _check_norms(forest)
    _check_predicates(forest)
    _check_nodes(forest)
    _check_leaves(forest)
    _check_shape_of_trees(forest)


def damaged(what: str, repair: str = "export it again") -> NoReturn:
    raise InvalidModelError(f"{what}; the model is damaged, {repair}.")


def first_true(bad: Any) -> int:
    if not bad.size:
        return -1
    at = int(bad.argmax())
    return at if bad[at] else -1


def _tree_of(forest: ForestArrays, node: int) -> int:
    return int(np.searchsorted(forest.tree_offset, node, side="right")) - 1


def _refuse_node(forest: ForestArrays, name: str, node: int, what: str) -> NoReturn:
    value = getattr(forest, name)[node]
    damaged(f"{name}[{node}] = {value} in tree {_tree_of(forest, node)} {what}")


def _check_length(name: str, length: int, *expected: int) -> None:
    if length not in expected:
        damaged(f"{name} has length {length} where {expected[0]} was expected")


def _check_sizes(forest: ForestArrays) -> None:
    n_nodes, n_predicates = len(forest.left), len(forest.feature)
    n_outputs, offset = len(forest.base), forest.tree_offset
    for fields, lengths in (
        (("predicate", "right", "leaf", "source_node"), (n_nodes,)),
        (("comparison", "threshold", "missing", "missing_left"), (n_predicates,)),
        (("category_offset",), (n_predicates + 1,)),
        (("tree_output",), (len(offset) - 1,)),
        (("cover", "source_feature"), (n_nodes, 0)),
    ):
        for name in fields:
            _check_length(name, len(getattr(forest, name)), *lengths)
    for name, size in (
        ("nodes", n_nodes),
        ("predicates", n_predicates),
        ("leaves", len(forest.leaf_value)),
        ("features", forest.n_features),
        ("outputs", n_outputs),
    ):
        if not 0 <= size < 2**31:
            damaged(f"the number of {name}, {size}, does not fit a 32-bit index")
    _check_facts(forest)
    outputs = forest.outputs
    _check_length("transform.offsets", len(outputs.offsets), n_outputs, 0)
    _check_length("transform.weights", len(outputs.weights), n_outputs, 0)
    if outputs.function != "graph":  # whose outputs are several models'
        _check_length("class_labels", len(forest.class_labels), max(2, n_outputs), 0)
    if len(offset) < 1 or offset[0] != 0 or offset[-1] != n_nodes:
        damaged(f"tree_offset does not run from 0 to {n_nodes}, the number of nodes")
    if (at := first_true(np.diff(offset) < 1)) >= 0:
        damaged(
            f"tree_offset[{at + 1}] = {offset[at + 1]} leaves tree {at} without nodes"
        )


def _check_facts(forest: ForestArrays) -> None:
    base, n_outputs = forest.base, len(forest.base)
    function, aggregate = forest.outputs.function, forest.aggregate
    sizes = forest.output_sizes
    names, categories = forest.feature_names, forest.category_names
    n_features = forest.n_features
    for bad, what in (
        (n_outputs < 1, "base is empty, so the forest has no output"),
        (
            function in (_OF_ONE if n_outputs > 1 else _OF_SEVERAL),
            f"the transform {function!r} is not for {n_outputs} outputs",
        ),
        (forest.divisor < 1, f"divisor = {forest.divisor} is not positive"),
        (
            len(forest.scaling) not in (0, 1, 1 + n_outputs)
            or (len(forest.scaling) > 0 and aggregate != "sum"),
            f"scaling has {len(forest.scaling)} numbers for {n_outputs} outputs",
        ),
        (
            forest.parallel_trees < -1,
            f"parallel_trees = {forest.parallel_trees} is not a number of trees",
        ),
        (
            aggregate not in ("sum", "linear", *ABSENT),
            f"aggregate = {aggregate!r} is not 'sum', 'min', 'max' or 'linear'",
        ),
        (
            aggregate != "sum" and (forest.divisor != 1 or base.any()),
            f"aggregate = {aggregate!r} allows neither a divisor nor a base",
        ),
        (np.isnan(base).any(), f"base[{first_true(np.isnan(base))}] is not a number"),
        (
            names is not None and len(names) != n_features,
            f"feature_names has {len(names or ())} names for {n_features} features",
        ),
        (
            categories and len(categories) != n_features,
            f"category_names has {len(categories)} entries for {n_features} features",
        ),
        (
            forest.hashed is not None and forest.hashed.n_features != n_features,
            f"the columns of its categories are not {n_features} features",
        ),
        (
            sizes and (min(sizes) < 1 or sum(sizes) != n_outputs),
            f"output_sizes {sizes} do not add up to {n_outputs} outputs",
        ),
    ):
        if bad:
            damaged(what)


def _check_norms(forest: ForestArrays) -> None:
    every = [column for _, columns in forest.row_norms for column in columns]
    known = {norm for norm, _ in forest.row_norms} <= {*NORMS}
    inside = all(0 <= column < forest.n_features for column in every)
    differ = len({*every}) == len(every)
    if not (known and inside and differ) or (every and forest.source != "onnx"):
        damaged(f"row_norms = {forest.row_norms} are no norms of different columns")


def _check_predicates(forest: ForestArrays) -> None:
    for name, stop in (
        ("feature", forest.n_features),
        ("comparison", len(Comparison)),
        ("missing", len(Missing)),
    ):
        values = getattr(forest, name)
        if (at := first_true((values < 0) | (values >= stop))) >= 0:
            damaged(
                f"{name}[{at}] = {values[at]} of predicate {at} "
                f"(first used in tree {_first_user(forest, at)}) "
                f"is outside 0..{stop - 1}"
            )
    if (at := first_true(np.isnan(forest.threshold))) >= 0:
        damaged(
            f"threshold[{at}] of predicate {at} "
            f"(first used in tree {_first_user(forest, at)}) is not a number"
        )
    offset, n_words = forest.category_offset, len(forest.category_words)
    if offset[0] != 0 or offset[-1] != n_words:
        damaged(f"category_offset does not run from 0 to {n_words}")
    words = np.diff(offset)
    if (at := first_true(words < 0)) >= 0:
        damaged(f"category_offset[{at + 1}] = {offset[at + 1]} runs backwards")
    if (at := first_true((words > 0) & (forest.comparison < Comparison.IN))) >= 0:
        damaged(
            f"category_offset[{at}] gives categories to predicate {at}, which "
            "compares with a threshold"
        )


def _first_user(forest: ForestArrays, predicate: int) -> int:
    node = first_true(forest.predicate == predicate)
    return -1 if node < 0 else _tree_of(forest, node)


def _check_nodes(forest: ForestArrays) -> None:
    left, right, leaf = forest.left, forest.right, forest.leaf
    predicate = forest.predicate
    is_leaf = leaf >= 0
    n_nodes, n_leaves = len(left), len(forest.leaf_value)
    for name, values, stop in (
        ("left", left, n_nodes),
        ("right", right, n_nodes),
        ("predicate", predicate, len(forest.feature)),
        ("leaf", leaf, n_leaves),
    ):
        if (at := first_true((values < -1) | (values >= stop))) >= 0:
            _refuse_node(forest, name, at, f"is outside -1..{stop - 1}")
    for name, values in (("left", left), ("right", right), ("predicate", predicate)):
        if (at := first_true((values >= 0) == is_leaf)) >= 0:
            kind = "a leaf" if is_leaf[at] else "an inner node"
            _refuse_node(forest, name, at, f"does not fit {kind}, leaf = {leaf[at]}")


def _check_leaves(forest: ForestArrays) -> None:
    n_outputs = len(forest.base)
    if forest.leaf_value.shape[1] not in (1, n_outputs):
        damaged(
            f"leaf_value has {forest.leaf_value.shape[1]} columns "
            f"for {n_outputs} outputs"
        )
    vector = forest.leaf_value.shape[1] > 1
    if forest.aggregate == "linear":
        _check_models(forest, vector)
    wrong = (
        forest.tree_output != -1
        if vector
        else (forest.tree_output < 0) | (forest.tree_output >= n_outputs)
    )
    if (at := first_true(wrong)) >= 0:
        wanted = "-1 (vector leaves)" if vector else f"in 0..{n_outputs - 1}"
        damaged(f"tree_output[{at}] = {forest.tree_output[at]} is not {wanted}")
    absent = ABSENT.get(forest.aggregate)
    valid = np.isfinite(forest.leaf_value)
    if absent is not None:
        valid |= forest.leaf_value == absent
    if not valid.all():
        row = first_true(~valid.all(axis=1))
        node = first_true(forest.leaf == row)
        tree = -1 if node < 0 else _tree_of(forest, node)
        # not damage: LightGBM's set_leaf_output takes any number
        raise InvalidModelError(
            f"leaf_value[{row}] in tree {tree} is not finite, and skforge adds finite "
            "numbers only; give the leaf another value, or train the model again."
        )


def _check_models(forest: ForestArrays, vector: bool) -> None:
    models, n_features = forest.leaf_linear, forest.n_features
    n, width = models.shape
    if vector or n != len(forest.leaf_value) or width < 2 or width % 2:
        damaged(f"leaf_linear of shape {models.shape} is not that of linear leaves")
    count, feature = models[:, 1], models[:, 2::2]
    fine = np.isfinite(models).all(axis=1) & np.isin(count, np.arange(width // 2))
    fine &= np.isin(feature, np.arange(n_features)).all(axis=1)
    if (at := first_true(~fine)) >= 0:
        damaged(
            f"leaf_linear[{at}] = {models[at].tolist()} is no finite linear model of "
            f"{n_features} features"
        )


def _check_shape_of_trees(forest: ForestArrays) -> None:
    left, right, offset = forest.left, forest.right, forest.tree_offset
    inner = np.flatnonzero(left >= 0)
    roots = offset[:-1]
    for name, child in (("left", left), ("right", right)):
        # As unsigned numbers, the -1 of leaves are the largest.
        low = np.minimum.reduceat(child.view(np.uint32), roots)
        high = np.maximum.reduceat(child, roots)
        if (low < roots).any() or (high >= offset[1:]).any():
            of_tree = np.repeat(np.arange(len(roots)), np.diff(offset))[inner]
            outside = (child[inner] < roots[of_tree]) | (
                child[inner] >= offset[of_tree + 1]
            )
            at = first_true(outside)
            _refuse_node(forest, name, int(inner[at]), "points outside its tree")
    # Roots have no parent, so every node must be one root or one child.
    reached = np.zeros(len(left), np.bool_)
    children = left[inner], right[inner]
    for nodes in (*children, roots):
        reached[nodes] = True
    if not reached.all() or 2 * len(inner) + len(roots) != len(left):
        parents = np.bincount(np.concatenate([*children, roots]), minlength=len(left))
        at = first_true(parents != 1)
        tree = _tree_of(forest, at)
        if at == offset[tree]:
            damaged(f"the root of tree {tree}, node {at}, is a child of another node")
        what = "no parent" if parents[at] == 0 else f"{parents[at]} parents"
        damaged(f"node {at} in tree {tree} has {what}")
    if all((child > inner).all() for child in children):
        return  # no path leads back to a node
    if (at := first_true(forest.node_depths() < 0)) >= 0:
        damaged(f"node {at} in tree {_tree_of(forest, at)} lies on a cycle")
