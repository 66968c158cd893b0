"""XGBoost's list of trees, as JSON or UBJSON holds it, to the arrays of a Forest.

Per-tree lists are joined first; everything after that is one pass over all nodes,
so 20,000 small trees cost no more than 100 large ones.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.arrays import Comparison, Missing
from skforge.compiler.forest.forest import deduplicate_predicates
from skforge.exceptions import InvalidModelError, UnsupportedModelError

_NODE_ARRAYS = (
    "left_children",
    "right_children",
    "split_indices",
    "split_conditions",
    "default_left",
)
_OPTIONAL = frozenset(
    (
        *("base_weights", "leaf_weights", "leaf_child_counts", "loss_changes"),
        *("categories", "categories_nodes", "categories_segments", "categories_sizes"),
        *("id", "parents", "split_type", "sum_hessian", "tree_param"),
    )
)
#: What no prediction reads, but has to have a number for each node.
_UNREAD = ("base_weights", "loss_changes", "parents", "sum_hessian")
_MAX_CATEGORY = 1 << 24  # XGBoost keeps categories in float32, exact up to here
_MAX_WORDS = 1 << 26  # of all category sets; a small file could ask for terabytes


def tree_arrays(trees: list[dict[str, Any]], n_outputs: int) -> dict[str, Any]:
    """Return the tree, node, leaf and predicate arrays of a Forest.

    Parameters
    ----------
    trees : list of dict
        ``gradient_booster.model.trees``, or the part of it to keep.
    n_outputs : int
        Width of vector leaves, when the trees have them.

    Returns
    -------
    dict
        Arguments of :class:`Forest`, all but ``tree_output``.
    """
    sizes = np.array([_size(tree, i) for i, tree in enumerate(trees)], dtype=np.int64)
    offset = np.concatenate(([0], np.cumsum(sizes)))
    column = {
        "left_children": np.int64,
        "right_children": np.int64,
        "split_indices": np.int64,
        "split_conditions": np.float32,
        "default_left": np.int64,
    }
    nodes = {k: _join(trees, k, sizes, dtype) for k, dtype in column.items()}
    is_leaf = nodes["left_children"] == -1
    vector = _vector_leaves(trees, n_outputs)
    if not vector:
        for name in _UNREAD:
            for i, one in enumerate(trees):
                if name in one:
                    _check_array(name, i, one[name], int(sizes[i]))
    if vector:
        leaf_value = _vector_values(trees, nodes, offset, is_leaf, n_outputs)
    else:
        leaf_value = nodes["split_conditions"][is_leaf][:, np.newaxis]
    inner = ~is_leaf
    start = np.repeat(offset[:-1], sizes)
    for name in ("left_children", "right_children"):
        local, size = nodes[name], np.repeat(sizes, sizes)
        bad = inner & ((local < 0) | (local >= size))
        if bad.any():
            node = int(bad.argmax())
            tree = int(np.searchsorted(offset, node, side="right")) - 1
            raise InvalidModelError(
                f"{name}[{node - offset[tree]}] = {local[node]} of tree {tree} is "
                f"outside 0..{size[node] - 1}; the model is damaged, export it again."
            )
    left = np.where(inner, nodes["left_children"] + start, -1)
    right = np.where(inner, nodes["right_children"] + start, -1)
    is_category, categories = _categories(trees, sizes, offset, inner)
    threshold = nodes["split_conditions"][inner]
    predicates, index = deduplicate_predicates(
        nodes["split_indices"][inner],
        np.where(is_category[inner], int(Comparison.NOT_IN), int(Comparison.LT)),
        np.where(is_category[inner], np.float32(0), threshold),
        int(Missing.NAN),
        nodes["default_left"][inner] == 1,  # XGBoost takes all else for right
        categories,
    )
    predicate = np.full(len(left), -1, dtype=np.int32)
    predicate[inner] = index
    leaf = np.full(len(left), -1, dtype=np.int64)
    leaf[is_leaf] = np.arange(len(leaf_value))
    cover = np.zeros(0)
    if all("sum_hessian" in tree for tree in trees):
        cover = _join(trees, "sum_hessian", sizes, np.float32).astype(np.float64)
        if not (np.isfinite(cover) & (cover >= 0)).all():
            cover = np.zeros(0)  # covers only steer tuning: no reason to refuse
    arrays = {
        "tree_offset": offset,
        "predicate": predicate,
        "left": left,
        "right": right,
        "leaf": leaf,
        "source_node": np.arange(offset[-1]) - start,
        "cover": cover,
    }
    if len(left) != 2 * int(inner.sum()) + len(trees):
        arrays, kept = _drop_deleted(arrays)
        leaf_value = leaf_value[kept]
    return {**arrays, **predicates, "leaf_value": leaf_value}


def in_order(trees: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the trees by their ``id``, which is where XGBoost puts each of them."""
    _check_keys(trees)
    place: dict[int, int] = {}
    for i, tree in enumerate(trees):
        number: Any = tree.get("id")
        known = type(number) is int and 0 <= number < len(trees)  # True equals 1
        if not known or place.setdefault(number, i) != i:
            raise InvalidModelError(
                f"id of trees[{i}] is {number!r:.60}, which is no number from 0 to "
                f"{len(trees) - 1} or another tree's; the model is damaged, export it "
                "again."
            )
    return [trees[place[number]] for number in range(len(trees))]


def _check_keys(trees: list[dict[str, Any]]) -> None:
    known = _OPTIONAL.union(_NODE_ARRAYS)
    for i, tree in enumerate(trees):
        if not isinstance(tree, dict):
            raise InvalidModelError(
                f"trees[{i}] is no object; the model is damaged, export it again."
            )
        if unknown := tree.keys() - known:
            raise UnsupportedModelError(
                f"trees[{i}] has the unknown field {min(unknown)!r}; "
                "it may change predictions, so the model is refused."
            )


def _number(tree: dict[str, Any], name: str, default: int | None = None) -> int:
    param = tree.get("tree_param")
    value = param.get(name, default) if isinstance(param, dict) else default
    try:
        return int(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise InvalidModelError(
            f"tree_param.{name} of tree {tree.get('id')} is {value!r}, no number; "
            "the model is damaged, export it again."
        ) from None


def _size(tree: dict[str, Any], i: int) -> int:
    children = tree.get("left_children")
    length = len(children) if isinstance(children, (list, np.ndarray)) else 0
    announced = _number(tree, "num_nodes", length)
    if length < 1 or announced != length:
        raise InvalidModelError(
            f"trees[{i}] has {length} left_children and num_nodes = {announced}; "
            "the model is damaged, export it again."
        )
    return length


def _check_array(name: str, i: int, values: Any, size: int | None) -> None:
    if not isinstance(values, (list, np.ndarray)):
        raise InvalidModelError(
            f"{name} of tree {i} is missing or no array; "
            "the model is damaged, export it again."
        )
    if size is not None and len(values) != size:
        raise InvalidModelError(
            f"{name} of tree {i} has length {len(values)} for {size} nodes; "
            "the model is damaged, export it again."
        )


def _join(
    trees: list[dict[str, Any]], name: str, sizes: NDArray[np.int64] | None, dtype: Any
) -> NDArray[Any]:
    """Join one array of every tree, checking its length and that it holds numbers."""
    parts = [tree.get(name) for tree in trees]
    for i, part in enumerate(parts):
        _check_array(name, i, part, None if sizes is None else int(sizes[i]))
    if not parts:
        return np.zeros(0, dtype)
    flat: NDArray[Any]
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
    # XGBoost 1.0 wrote booleans there; among other numbers NumPy takes them for one.
    if name == "default_left":
        kinds, mixed = "biu", False
    else:
        lists = (part for part in parts if isinstance(part, list))
        mixed = any(bool in {*map(type, part)} for part in lists)
    if flat.ndim != 1 or flat.dtype.kind not in kinds or mixed:
        raise InvalidModelError(
            f"{name} holds something that is no "
            f"{'number' if 'f' in kinds else 'integer'}; "
            "the model is damaged, export it again."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        return flat.astype(dtype)


def _vector_leaves(trees: list[dict[str, Any]], n_outputs: int) -> bool:
    widths = {_number(tree, "size_leaf_vector", 0) or 1 for tree in trees}
    if widths <= {1}:
        return False
    if widths != {n_outputs}:
        raise InvalidModelError(
            f"size_leaf_vector takes the values {sorted(widths)} in a model of "
            f"{n_outputs} outputs; the model is damaged, export it again."
        )
    return True


def _vector_values(
    trees: list[dict[str, Any]],
    nodes: dict[str, NDArray[Any]],
    offset: NDArray[np.int64],
    is_leaf: NDArray[np.bool_],
    n_outputs: int,
) -> NDArray[np.float32]:
    """Return (n_leaves, n_outputs) values of multi-output trees.

    Since 3.2 a leaf's right child is its row of ``leaf_weights``; before, the node's
    row of ``base_weights`` held its value.
    """
    sizes = np.diff(offset)
    new = ["leaf_weights" in tree for tree in trees]
    if not any(new):
        values: NDArray[np.float32] = _join(
            trees, "base_weights", sizes * n_outputs, np.float32
        )
        by_node: NDArray[np.float32] = values.reshape(-1, n_outputs)[is_leaf]
        return by_node
    if not all(new):
        raise InvalidModelError(
            f"leaf_weights is missing in tree {new.index(False)}; "
            "the model is damaged, export it again."
        )
    values = _join(trees, "leaf_weights", None, np.float32)
    lengths = np.array([len(tree["leaf_weights"]) for tree in trees], dtype=np.int64)
    if (lengths % n_outputs).any():
        at = int((lengths % n_outputs > 0).argmax())
        raise InvalidModelError(
            f"leaf_weights of tree {at} has length {lengths[at]}, no multiple of the "
            f"{n_outputs} outputs; the model is damaged, export it again."
        )
    rows = lengths // n_outputs
    row = nodes["right_children"][is_leaf]
    tree_of = np.repeat(np.arange(len(trees)), sizes)[is_leaf]
    bad = (row < 0) | (row >= rows[tree_of])
    if bad.any():
        at = int(bad.argmax())
        raise InvalidModelError(
            f"right_children of a leaf of tree {tree_of[at]} is {row[at]}, which is "
            f"outside 0..{rows[tree_of[at]] - 1}, the rows of leaf_weights; "
            "the model is damaged, export it again."
        )
    first = np.cumsum(rows) - rows
    by_leaf: NDArray[np.float32] = values.reshape(-1, n_outputs)[row + first[tree_of]]
    return by_leaf


def _categories(
    trees: list[dict[str, Any]],
    sizes: NDArray[np.int64],
    offset: NDArray[np.int64],
    inner: NDArray[np.bool_],
) -> tuple[NDArray[np.bool_], dict[int, NDArray[np.uint32]]]:
    """Return which nodes test a category, and the set each inner node tests."""
    is_category = np.zeros(int(offset[-1]), dtype=np.bool_)
    sets: dict[int, NDArray[np.uint32]] = {}
    if not any("split_type" in tree for tree in trees):
        return is_category, sets
    # XGBoost takes the nodes of a tree without the field for numeric ones
    typed = [
        tree if "split_type" in tree else {"split_type": [0] * int(size)}
        for tree, size in zip(trees, sizes, strict=True)
    ]
    kinds = _join(typed, "split_type", sizes, np.int64)
    if ((kinds != 0) & (kinds != 1)).any():
        kind = kinds[((kinds != 0) & (kinds != 1)).argmax()]
        raise UnsupportedModelError(
            f"split_type {kind} is unknown; it may change predictions, "
            "so the model is refused."
        )
    is_category = (kinds == 1) & inner
    users = np.unique(np.searchsorted(offset, np.flatnonzero(is_category), "right") - 1)
    number_of_inner = np.cumsum(inner) - 1
    n_words = 0
    for i in users.tolist():
        at = slice(int(offset[i]), int(offset[i + 1]))
        expected = np.flatnonzero(is_category[at])
        one = [trees[i]]
        listed = _join(one, "categories_nodes", None, np.int64)
        begins = _join(one, "categories_segments", None, np.int64)
        counts = _join(one, "categories_sizes", None, np.int64)
        values = _join(one, "categories", None, np.int64)
        ends = begins + counts if len(begins) == len(counts) else begins
        if (
            not len(listed) == len(begins) == len(counts)
            or set(expected.tolist()) - set(listed.tolist())
            or (counts < 0).any()
            or (begins < 0).any()
            or (ends > len(values)).any()
            or (values < 0).any()
            or (values >= _MAX_CATEGORY).any()
        ):
            raise InvalidModelError(
                f"The categories of tree {i} do not fit its nodes; "
                "the model is damaged, export it again."
            )
        wanted = set(expected.tolist())
        n_words += sum(
            int(values[b:e].max(initial=0)) // 32
            for b, e in zip(begins, ends, strict=True)
        )
        if n_words > _MAX_WORDS:
            raise UnsupportedModelError(
                f"The category sets of the first {i + 1} trees take more than "
                f"{_MAX_WORDS * 4} bytes; number the categories from 0 without gaps."
            )
        for node, begin, end in zip(listed, begins, ends, strict=True):
            if int(node) in wanted:
                sets[int(number_of_inner[at.start + node])] = _bits(values[begin:end])
    return is_category, sets


def _bits(categories: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Pack categories into words: bit ``c % 32`` of word ``c // 32``."""
    size = int(categories.max()) // 32 + 1 if len(categories) else 0
    words = np.zeros(size, dtype=np.uint32)
    bits = np.left_shift(np.uint32(1), (categories % 32).astype(np.uint32))
    np.bitwise_or.at(words, categories // 32, bits)
    return words


def _drop_deleted(
    arrays: dict[str, Any],
) -> tuple[dict[str, Any], NDArray[np.int64]]:
    """Leave out the nodes that pruning has cut off, and return the kept leaves.

    ``num_deleted`` counts them since 1.1 only, so reaching them is what decides.
    """
    left, right, offset = arrays["left"], arrays["right"], arrays["tree_offset"]
    reached = np.zeros(len(left), dtype=np.bool_)
    front = offset[:-1]
    while front.size:
        if reached[front].any() or len(np.unique(front)) != len(front):
            raise InvalidModelError(
                "A node is the child of two nodes or lies on a cycle; "
                "the model is damaged, export it again."
            )
        reached[front] = True
        front = np.concatenate((left[front], right[front]))
        front = front[front >= 0]
    number = np.cumsum(reached) - 1
    leaf = arrays["leaf"][reached]
    kept = leaf[leaf >= 0]
    leaf[leaf >= 0] = np.arange(len(kept))
    counts = np.add.reduceat(reached.astype(np.int64), offset[:-1])
    return {
        "tree_offset": np.concatenate(([0], np.cumsum(counts))),
        "predicate": arrays["predicate"][reached],
        "left": np.where(left[reached] >= 0, number[left[reached]], -1),
        "right": np.where(right[reached] >= 0, number[right[reached]], -1),
        "leaf": leaf,
        "source_node": arrays["source_node"][reached],
        "cover": arrays["cover"][reached] if len(arrays["cover"]) else arrays["cover"],
    }, kept
