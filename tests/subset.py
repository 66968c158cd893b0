"""Some of a forest's trees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from skforge._typing import Int32s
from skforge.compiler.forest.forest import Forest


def subset(forest: Forest, trees: ArrayLike | slice) -> Forest:
    """Return a forest with some of the trees, in the given order.

    Parameters
    ----------
    trees : slice or array of int
        Tree numbers. ``base`` and ``divisor`` stay as they are.

    Returns
    -------
    Forest
        Predicates and leaves that are no longer used are left out.
    """
    chosen = np.arange(forest.n_trees)[
        trees if isinstance(trees, slice) else np.asarray(trees, dtype=np.int64)
    ]
    sizes = np.diff(forest.tree_offset)[chosen]
    offset = np.concatenate(([0], np.cumsum(sizes)))
    old_start = np.repeat(forest.tree_offset[:-1][chosen], sizes)
    new_start = np.repeat(offset[:-1], sizes)
    nodes = np.arange(offset[-1]) - new_start + old_start
    shift = new_start - old_start
    predicate, used = _renumber(forest.predicate[nodes], forest.n_predicates)
    leaf, used_leaves = _renumber(forest.leaf[nodes], forest.n_leaves)
    words = np.diff(forest.category_offset)[used]
    starts = np.repeat(forest.category_offset[:-1][used], words)
    ends = np.concatenate(([0], np.cumsum(words)))
    at = np.arange(ends[-1]) - np.repeat(ends[:-1], words) + starts
    return replace(
        forest,
        tree_offset=offset,
        tree_output=forest.tree_output[chosen],
        predicate=predicate,
        left=np.where(forest.left[nodes] < 0, -1, forest.left[nodes] + shift),
        right=np.where(forest.right[nodes] < 0, -1, forest.right[nodes] + shift),
        leaf=leaf,
        source_node=forest.source_node[nodes],
        cover=forest.cover[nodes] if len(forest.cover) else forest.cover,
        source_feature=forest.source_feature[nodes]
        if len(forest.source_feature)
        else forest.source_feature,
        leaf_value=forest.leaf_value[used_leaves],
        feature=forest.feature[used],
        comparison=forest.comparison[used],
        threshold=forest.threshold[used],
        missing=forest.missing[used],
        missing_left=forest.missing_left[used],
        category_offset=ends,
        category_words=forest.category_words[at],
    )


def _renumber(values: Int32s, size: int) -> tuple[Int32s, Int32s]:
    """Return values replaced by ranks among those in use, and the values in use."""
    mark = np.zeros(size + 1, dtype=np.bool_)
    mark[values] = True  # -1 marks the last place, which is not a value
    rank = np.cumsum(mark, dtype=np.int32) - 1
    rank[-1] = -1
    return rank[values].astype(np.int32), np.flatnonzero(mark[:-1]).astype(np.int32)
