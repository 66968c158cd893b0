"""Converts XGBoost's list of trees, from JSON or UBJSON, to the arrays of a Forest.

Per-tree lists are joined first; every later step is one pass over all nodes, so 20,000
small trees cost no more than 100 large ones.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from skforge._typing import Array, Bools
from skforge.exceptions import UnsupportedModelError
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.predicates import deduplicate_predicates
from skforge.forest.validation import damaged, first_true
from skforge.frontends import arrays
from skforge.frontends.arrays import Ints, Sets, offsets
from skforge.frontends.checks import known_fields, refuse_unknown

TreeDicts: TypeAlias = list[dict[str, Any]]  # as documents hold them

_NODE_ARRAYS: dict[str, type[np.generic]] = {
    **dict.fromkeys(("left_children", "right_children", "split_indices"), np.int64),
    **{"split_conditions": np.float32, "default_left": np.int64},
}
_KNOWN = known_fields("xgboost")["trees"]
#: Fields that predictions do not use, but that must have one number per node.
_UNREAD = ("base_weights", "loss_changes", "parents", "sum_hessian")
_MAX_CATEGORY = 1 << 24  # XGBoost keeps categories in float32, exact up to here
_MAX_WORDS = 1 << 26  # of all category sets; a small file could ask for terabytes


def tree_arrays(trees: TreeDicts, n_outputs: int) -> dict[str, Any]:
    """Return the array fields of a Forest, except ``tree_output``.

    ``n_outputs`` is the width of vector leaves, if there are any.
    """
    sizes = np.array([_size(tree, i) for i, tree in enumerate(trees)], dtype=np.int64)
    offset = offsets(sizes)
    nodes = {k: _join(trees, k, sizes, dtype) for k, dtype in _NODE_ARRAYS.items()}
    is_leaf = nodes["left_children"] == -1
    if _vector_leaves(trees, n_outputs):
        leaf_value = _vector_values(trees, nodes, offset, is_leaf, n_outputs)
    else:
        for name in _UNREAD:
            for i, tree in enumerate(trees):
                if name in tree:
                    _check_array(name, i, tree[name], int(sizes[i]))
        leaf_value = nodes["split_conditions"][is_leaf][:, np.newaxis]
    inner = ~is_leaf
    for name in ("left_children", "right_children"):
        arrays.check_children(name, nodes[name], inner, offset)
    is_category, categories = _categories(trees, sizes, offset, inner)
    threshold = nodes["split_conditions"][inner]
    tests = deduplicate_predicates(
        nodes["split_indices"][inner],
        np.where(is_category[inner], int(Comparison.NOT_IN), int(Comparison.LT)),
        np.where(is_category[inner], np.float32(0), threshold),
        int(Missing.NAN),
        nodes["default_left"][inner] == 1,  # XGBoost treats all other values as right
        categories,
    )
    cover = np.zeros(0)
    if all("sum_hessian" in tree for tree in trees):
        cover = _join(trees, "sum_hessian", sizes, np.float32).astype(np.float64)
        if not (np.isfinite(cover) & (cover >= 0)).all():
            cover = np.zeros(0)  # covers only steer tuning, so they are not refused
    start = arrays.starts(offset)
    left, right = nodes["left_children"] + start, nodes["right_children"] + start
    nodes_of_trees = offset, inner, left, right, tests, leaf_value
    fields = arrays.forest_arrays(*nodes_of_trees, cover=cover)
    pruned = len(inner) != 2 * int(inner.sum()) + len(trees)
    return _drop_deleted(fields) if pruned else fields


def in_order(trees: TreeDicts) -> TreeDicts:
    """Return the trees sorted by ``id``, which is how XGBoost orders them."""
    for i, tree in enumerate(trees):
        if not isinstance(tree, dict):
            damaged(f"trees[{i}] is not an object")
        if unknown := tree.keys() - _KNOWN:
            refuse_unknown(f"trees[{i}] has the unknown field {min(unknown)!r}")
    place: dict[int, int] = {}
    for i, tree in enumerate(trees):
        number: Any = tree.get("id")
        known = type(number) is int and 0 <= number < len(trees)  # True equals 1
        if not known or place.setdefault(number, i) != i:
            damaged(
                f"id of trees[{i}] is {number!r:.60}, which is not a number from 0 to "
                f"{len(trees) - 1} or is the id of another tree"
            )
    return [trees[place[number]] for number in range(len(trees))]


def _number(tree: dict[str, Any], name: str, default: int | None = None) -> int:
    param = tree.get("tree_param")
    value = param.get(name, default) if isinstance(param, dict) else default
    try:
        return int(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        damaged(
            f"tree_param.{name} of tree {tree.get('id')} is {value!r}, which is not a "
            "number"
        )


def _size(tree: dict[str, Any], i: int) -> int:
    children = tree.get("left_children")
    length = len(children) if isinstance(children, (list, np.ndarray)) else 0
    announced = _number(tree, "num_nodes", length)
    if length < 1 or announced != length:
        damaged(f"trees[{i}] has {length} left_children and num_nodes = {announced}")
    return length


def _check_array(name: str, i: int, values: Any, size: int | None) -> None:
    if not isinstance(values, (list, np.ndarray)):
        damaged(f"{name} of tree {i} is missing or not an array")
    if size is not None and len(values) != size:
        damaged(f"{name} of tree {i} has length {len(values)} for {size} nodes")


def _join(trees: TreeDicts, name: str, sizes: Ints | None, dtype: Any) -> Array:
    parts = [tree.get(name) for tree in trees]
    for i, part in enumerate(parts):
        _check_array(name, i, part, None if sizes is None else int(sizes[i]))
    if not parts:
        return np.zeros(0, dtype)
    flat: Array
    if all(isinstance(part, np.ndarray) for part in parts):
        flat = np.concatenate(parts)  # type: ignore[arg-type]
    else:
        try:
            flat = np.array(list(chain.from_iterable(parts)))  # type: ignore[arg-type]
        except (ValueError, OverflowError):
            flat = np.array(["not numbers"])
        if not flat.size:
            flat = flat.astype(dtype)
    kinds = "iu" if np.dtype(dtype).kind == "i" else "iuf"
    # XGBoost 1.0 wrote booleans here; among other numbers NumPy converts them to 1.
    if name == "default_left":
        kinds, mixed = "biu", False
    else:
        lists = (part for part in parts if isinstance(part, list))
        mixed = any(bool in {*map(type, part)} for part in lists)
    if flat.ndim != 1 or flat.dtype.kind not in kinds or mixed:
        damaged(
            f"{name} holds something that is not "
            f"{'a number' if 'f' in kinds else 'an integer'}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        return flat.astype(dtype)


def _vector_leaves(trees: TreeDicts, n_outputs: int) -> bool:
    widths = {_number(tree, "size_leaf_vector", 0) or 1 for tree in trees}
    if widths <= {1}:
        return False
    if widths != {n_outputs}:
        damaged(
            f"size_leaf_vector takes the values {sorted(widths)} in a model of "
            f"{n_outputs} outputs"
        )
    return True


def _vector_values(
    trees: TreeDicts,
    nodes: dict[str, Array],
    offset: Ints,
    is_leaf: Bools,
    n_outputs: int,
) -> Array:
    """Return (n_leaves, n_outputs) values of multi-output trees.

    Since 3.2 a leaf's right child is its row of ``leaf_weights``; before, the node's
    row of ``base_weights`` held its value.
    """
    sizes = np.diff(offset)
    new = ["leaf_weights" in tree for tree in trees]
    if not any(new):
        by_node = _join(trees, "base_weights", sizes * n_outputs, np.float32)
        return np.asarray(by_node.reshape(-1, n_outputs)[is_leaf])
    if not all(new):
        damaged(f"leaf_weights is missing in tree {new.index(False)}")
    values = _join(trees, "leaf_weights", None, np.float32)
    lengths = np.array([len(tree["leaf_weights"]) for tree in trees], dtype=np.int64)
    if (at := first_true(lengths % n_outputs > 0)) >= 0:
        damaged(
            f"leaf_weights of tree {at} has length {lengths[at]}, which is not a "
            f"multiple of the {n_outputs} outputs"
        )
    rows = lengths // n_outputs
    row = nodes["right_children"][is_leaf]
    tree_of = np.repeat(np.arange(len(trees)), sizes)[is_leaf]
    bad = (row < 0) | (row >= rows[tree_of])
    if (at := first_true(bad)) >= 0:
        damaged(
            f"right_children of a leaf of tree {tree_of[at]} is {row[at]}, which is "
            f"outside 0..{rows[tree_of[at]] - 1}, the rows of leaf_weights"
        )
    first = np.cumsum(rows) - rows
    return np.asarray(values.reshape(-1, n_outputs)[row + first[tree_of]])


def _categories(
    trees: TreeDicts, sizes: Ints, offset: Ints, inner: Bools
) -> tuple[Bools, Sets]:
    is_category = np.zeros(int(offset[-1]), dtype=np.bool_)
    sets: Sets = {}
    if not any("split_type" in tree for tree in trees):
        return is_category, sets
    # XGBoost treats the nodes of a tree without the field as numeric
    typed = [
        tree if "split_type" in tree else {"split_type": [0] * int(size)}
        for tree, size in zip(trees, sizes, strict=True)
    ]
    kinds = _join(typed, "split_type", sizes, np.int64)
    if (node := first_true((kinds != 0) & (kinds != 1))) >= 0:
        refuse_unknown(f"split_type {kinds[node]} is unknown")
    is_category = (kinds == 1) & inner
    users = np.unique(np.searchsorted(offset, np.flatnonzero(is_category), "right") - 1)
    number_of_inner = np.cumsum(inner) - 1
    n_words = 0
    for i in users.tolist():
        at = slice(int(offset[i]), int(offset[i + 1]))
        expected = {*np.flatnonzero(is_category[at]).tolist()}
        listed, begins, counts, values = (
            _join([trees[i]], f"categories{part}", None, np.int64)
            for part in ("_nodes", "_segments", "_sizes", "")
        )
        ends = begins + counts if len(begins) == len(counts) else begins
        if (
            not len(listed) == len(begins) == len(counts)
            or expected - {*listed.tolist()}
            or (counts < 0).any()
            or (begins < 0).any()
            or (ends > len(values)).any()
            or (values < 0).any()
            or (values >= _MAX_CATEGORY).any()
        ):
            damaged(f"The categories of tree {i} do not fit its nodes")
        for node, begin, end in zip(listed, begins, ends, strict=True):
            categories = values[begin:end]
            n_words += int(categories.max(initial=0)) // 32
            if n_words > _MAX_WORDS:
                raise UnsupportedModelError(
                    f"The category sets of the first {i + 1} trees take more than "
                    f"{_MAX_WORDS * 4} bytes; number the categories from 0 without "
                    "gaps."
                )
            if int(node) in expected:
                test = int(number_of_inner[at.start + node])
                sets[test] = arrays.category_words(categories)
    return is_category, sets


def _drop_deleted(fields: dict[str, Any]) -> dict[str, Any]:
    """Drop unreachable nodes, cut off by pruning: ``num_deleted`` is new in 1.1."""
    left, right, offset = fields["left"], fields["right"], fields["tree_offset"]
    reached = np.zeros(len(left), dtype=np.bool_)
    front = offset[:-1]
    while front.size:
        if reached[front].any() or len(np.unique(front)) != len(front):
            damaged("A node is the child of two nodes or lies on a cycle")
        reached[front] = True
        front = np.concatenate((left[front], right[front]))
        front = front[front >= 0]
    number = np.cumsum(reached) - 1
    leaf = fields["leaf"][reached]
    rows = leaf[leaf >= 0]
    leaf[leaf >= 0] = np.arange(len(rows))
    counts = np.add.reduceat(reached.astype(np.int64), offset[:-1])
    return {
        **fields,
        "tree_offset": offsets(counts),
        "predicate": fields["predicate"][reached],
        "left": np.where(left[reached] >= 0, number[left[reached]], -1),
        "right": np.where(right[reached] >= 0, number[right[reached]], -1),
        "leaf": leaf,
        "source_node": fields["source_node"][reached],
        "cover": fields["cover"][reached] if len(fields["cover"]) else fields["cover"],
        "leaf_value": fields["leaf_value"][rows],
    }
