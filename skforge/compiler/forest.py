"""The canonical forest: NumPy arrays, shared predicates, validated at the border."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
OffsetArray = NDArray[np.int64]
FloatArray = NDArray[np.floating[Any]]


class Comparison(IntEnum):
    """How a predicate tests a value; a true test sends the row left."""

    LT = 0
    LE = 1
    GT = 2
    GE = 3
    EQ = 4
    NE = 5
    IN = 6  # category in the predicate's set
    NOT_IN = 7  # category not in the set; negative or too large counts as not in


class Missing(IntEnum):
    """Which values a predicate takes for missing (they go by ``missing_left``)."""

    NAN = 0  # NaN is missing
    NEVER = 1  # nothing is: NaN is compared as 0.0 (LightGBM's missing type none)
    ZERO = 2  # NaN and |x| <= 1e-35 are (LightGBM's zero_as_missing)


@dataclass(frozen=True, slots=True)
class PostTransform:
    """The function from raw scores to the source's ``predict`` / ``predict_proba``.

    ``kind`` is one of ``identity, sigmoid, softmax, exp, hinge, ...``; ``parameter``
    is a constant of the function (such as LightGBM's sigmoid slope).
    """

    kind: str = "identity"
    parameter: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """A fitted ensemble of binary decision trees as read-only arrays.

    Row ``i`` of every node array describes node ``i``; the nodes of tree ``t`` are
    ``tree_offset[t] .. tree_offset[t + 1]`` and its root is the first of them. A node
    is either inner (``predicate``, ``left``, ``right`` >= 0, ``leaf`` == -1) or a leaf
    (``leaf`` >= 0, the others -1). Predicate ``p`` is true for a row that goes left.

    Rows are cast to ``input_dtype`` and compared with thresholds of that dtype:
    frontends round source thresholds with :func:`round_thresholds`, which is exact.
    """

    # trees
    tree_offset: OffsetArray  # (n_trees + 1,)
    tree_output: IntArray  # (n_trees,) output a scalar leaf adds to; -1: vector leaf
    # nodes
    predicate: IntArray  # (n_nodes,)
    left: IntArray  # (n_nodes,) absolute node numbers
    right: IntArray  # (n_nodes,)
    leaf: IntArray  # (n_nodes,) row of leaf_value
    source_node: IntArray  # (n_nodes,) the source's own number, what `apply` returns
    cover: NDArray[np.float64]  # (n_nodes,) training weight, or (0,) when unknown
    # leaves, in the accumulator's dtype
    leaf_value: FloatArray  # (n_leaves, 1) or (n_leaves, n_outputs)
    # distinct predicates
    feature: IntArray  # (n_predicates,)
    comparison: NDArray[np.uint8]  # (n_predicates,) Comparison
    threshold: FloatArray  # (n_predicates,) in input_dtype; 0 for category tests
    missing: NDArray[np.uint8]  # (n_predicates,) Missing
    missing_left: NDArray[np.bool_]  # (n_predicates,)
    category_offset: OffsetArray  # (n_predicates + 1,) into category_words
    category_words: NDArray[np.uint32]  # bit c % 32 of word c // 32 is category c
    # the whole
    n_features: int
    base: FloatArray  # (n_outputs,) where sums start, in the accumulator's dtype
    divisor: int = 1  # raw scores are sums / divisor (averages)
    transform: PostTransform = PostTransform()
    task: str = "regression"  # regression | binary | multiclass | multilabel | ranking
    source: str = "unknown"  # xgboost | sklearn | lightgbm | onnx | ...
    missing_value: float = float("nan")  # rows' own marker of a missing value
    feature_names: tuple[str, ...] | None = None
