"""Builds a :class:`Forest`'s arrays from the nodes of all trees, tree after tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Bools, Int32s, Uint32s
from skforge.forest.validation import damaged, first_true

#: Whole numbers, numbers, and flags of a library's nodes.
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
#: Sets of categories by test, as ``category_words`` packs them.
Sets: TypeAlias = dict[int, Uint32s]
#: The result of ``deduplicate_predicates`` for the tests of all inner nodes.
TestArrays: TypeAlias = tuple[dict[str, Array], Int32s]


def offsets(sizes: Any) -> Ints:
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))


def starts(offset: Ints, dtype: Any = np.int64) -> Array:
    return np.repeat(offset[:-1].astype(dtype), np.diff(offset))


def forest_arrays(
    offset: Ints,
    inner: Bools,
    left: Array,
    right: Array,
    tests: TestArrays,
    leaf_value: Array,
    source_node: Array | None = None,
    cover: Array | None = None,
) -> dict[str, Any]:
    """Return the array fields of a :class:`Forest`, except ``tree_output``.

    ``left`` and ``right`` are numbers among all nodes, overwritten at leaves; rows of
    ``leaf_value`` are those of the leaves, in order.
    """
    predicates, index = tests
    predicate = np.full(len(inner), -1, np.int32)
    predicate[np.flatnonzero(inner)] = index  # a quarter of a mask's time
    absent = inner.view(np.int8) - np.int8(1)  # all bits of leaves
    leaf = np.cumsum(~inner, dtype=np.int32)
    leaf -= 1
    leaf |= ~absent
    left |= absent
    right |= absent
    if source_node is None:
        source_node = np.arange(len(inner), dtype=np.int32)
        source_node -= starts(offset, np.int32)
    return {
        "tree_offset": offset,
        "predicate": predicate,
        "left": left,
        "right": right,
        "leaf": leaf,
        "source_node": source_node,
        "cover": np.zeros(0) if cover is None else cover,
        "leaf_value": leaf_value,
        **predicates,
    }


def check_nodes(
    name: str,
    values: Array,
    bad: Bools,
    limits: Callable[[int], str],
    offset: Ints,
    repair: str = "export it again",
) -> None:
    if (node := first_true(bad)) >= 0:
        tree = int(np.searchsorted(offset, node, side="right")) - 1
        damaged(
            f"{name}[{node - int(offset[tree])}] = {values[node]} of tree {tree} is "
            f"{limits(tree)}",
            repair,
        )


def check_children(
    name: str, child: Array, inner: Bools, offset: Ints, repair: str = "export it again"
) -> None:
    sizes = np.diff(offset)
    if bool((np.maximum.reduceat(child, offset[:-1]) < sizes).all()):
        bad = inner & (child < 0)
    else:
        bad = inner & ((child < 0) | (child >= np.repeat(sizes, sizes)))
    check_nodes(
        name, child, bad, lambda tree: f"outside 0..{sizes[tree] - 1}", offset, repair
    )


def category_words(categories: Any) -> Uint32s:
    """Pack a set of categories: bit ``c % 32`` of word ``c // 32``."""
    codes = np.asarray(categories, np.int64)
    words = np.zeros(int(codes.max(initial=-1)) // 32 + 1, np.uint32)
    bits = np.left_shift(np.uint32(1), (codes % 32).astype(np.uint32))
    np.bitwise_or.at(words, codes // 32, bits)
    return words
