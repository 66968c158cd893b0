"""Forests whose nodes and tests are written by hand; what is not said is plain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest


def forest_of_nodes(
    left: Any, right: Any, offset: Sequence[int] | None = None, **fields: Any
) -> Forest:
    """Return a forest of nodes' children, whose trees begin at ``offset``.

    Inner nodes have tests of their own, ``feature < threshold`` unless told otherwise,
    and leaves values of their own. ``fields`` are other arrays of the forest.
    """
    left = np.asarray(left)
    offset = np.asarray([0, len(left)] if offset is None else offset)
    inner, n_trees = left >= 0, len(offset) - 1
    feature = np.asarray(fields.get("feature", np.zeros(inner.sum(), int)))
    n_tests, n_leaves = len(feature), int((~inner).sum())
    plain: dict[str, Any] = {
        "tree_offset": offset,
        "tree_output": np.zeros(n_trees, int),
        "predicate": np.where(inner, np.cumsum(inner) - 1, -1),
        "left": left,
        "right": right,
        "leaf": np.where(inner, -1, np.cumsum(~inner) - 1),
        "source_node": np.arange(len(left)) - np.repeat(offset[:-1], np.diff(offset)),
        "cover": np.zeros(0),
        "leaf_value": np.arange(n_leaves, dtype=np.float32)[:, None],
        "feature": feature,
        "comparison": np.full(n_tests, Comparison.LT),
        "threshold": np.zeros(n_tests, np.float32),
        "missing": np.full(n_tests, Missing.NAN),
        "missing_left": np.zeros(n_tests, bool),
        "category_offset": np.zeros(n_tests + 1, int),
        "category_words": np.zeros(0, np.uint32),
        "n_features": int(feature.max(initial=0)) + 1,
        "base": np.zeros(1, np.float32),
    }
    as_given = ("n_features", "divisor", "feature_names", "output_sizes", "outputs")
    given = {
        name: value if name in as_given else np.asarray(value)
        for name, value in fields.items()
    }
    return Forest(**{**plain, **given})


def stumps(n: int, **fields: Any) -> Forest:
    """Return trees of one test and two leaves."""
    start = 3 * np.arange(n)
    left, right = np.full((2, 3 * n), -1)
    left[start], right[start] = start + 1, start + 2
    return forest_of_nodes(left, right, 3 * np.arange(n + 1), **fields)
