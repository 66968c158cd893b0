"""The arrays of a forest: their contents, dtypes and shapes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.depths import node_depths
from skforge.compiler.forest.outputs import (
    CLASSIFICATION,
    SCORES,
    OutputSpec,
    Task,
)
from skforge.exceptions import InvalidModelError

IntArray = NDArray[np.int32]
OffsetArray = NDArray[np.int64]
FloatArray = NDArray[np.floating[Any]]

#: LightGBM's ``kZeroThreshold``, the float 1e-35f: |x| up to this counts as zero.
ZERO_THRESHOLD = float(np.float32(1e-35))


class Comparison(IntEnum):
    """How a predicate tests a value; if the test is true, the row goes left."""

    LT = 0
    LE = 1
    GT = 2
    GE = 3
    EQ = 4
    NE = 5
    IN = 6  # category in the predicate's set
    NOT_IN = 7  # category not in the set; negative or too large counts as not in
    MEMBER = 8  # as IN, but a number with a fraction is in no set (ONNX)


class Missing(IntEnum):
    """Which values a predicate treats as missing (they go by ``missing_left``)."""

    NAN = 0  # NaN is missing
    NEVER = 1  # none: NaN is compared as 0.0 (LightGBM's missing type none)
    ZERO = 2  # NaN and |x| <= ZERO_THRESHOLD are (LightGBM's zero_as_missing)


class _Known:
    """A place for what is computed of a forest only once; it is no field."""

    __slots__ = ("_depth", "_leaf_depths", "_valid")

    _depth: IntArray
    _leaf_depths: tuple[IntArray, IntArray]
    _valid: bool


@dataclass(frozen=True, slots=True, eq=False)
class ForestArrays(_Known):
    """The fields of a forest; ``Forest`` documents each."""

    # trees
    tree_offset: OffsetArray
    tree_output: IntArray
    # nodes
    predicate: IntArray
    left: IntArray
    right: IntArray
    leaf: IntArray
    source_node: IntArray
    cover: NDArray[np.float64]
    # leaves
    leaf_value: FloatArray
    # distinct predicates
    feature: IntArray
    comparison: NDArray[np.uint8]
    threshold: FloatArray
    missing: NDArray[np.uint8]
    missing_left: NDArray[np.bool_]
    category_offset: OffsetArray
    category_words: NDArray[np.uint32]
    # the whole
    n_features: int
    base: FloatArray
    divisor: int = 1
    outputs: OutputSpec = SCORES
    task: Task = "regression"
    source: str = "unknown"
    missing_value: float = float("nan")
    feature_names: tuple[str, ...] | None = None
    output_sizes: tuple[int, ...] = ()
    category_names: tuple[tuple[str | int, ...], ...] = ()
    truncate_categories: bool = False
    class_labels: tuple[str | int, ...] = ()
    aggregate: str = "sum"
    wider_rows: bool = False
    source_feature: IntArray = field(default_factory=lambda: np.zeros(0, np.int32))

    def __post_init__(self) -> None:
        """Make the arrays contiguous, of the declared dtype and read-only."""
        for name, (dtype, ndim) in _LAYOUT.items():
            array = _frozen(name, getattr(self, name), dtype, ndim)
            object.__setattr__(self, name, array)
        base = _frozen("base", self.base.astype(self.accumulator_dtype), None, 1)
        object.__setattr__(self, "base", base)

    def node_depths(self) -> IntArray:
        """Return the depth of every node; roots have depth 0.

        The array is read-only.
        """
        if not hasattr(self, "_depth"):
            depth = node_depths(self.left, self.right, self.tree_offset)
            depth.flags.writeable = False
            object.__setattr__(self, "_depth", depth)
        return self._depth

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.tree_output)

    @property
    def n_nodes(self) -> int:
        """Number of nodes in all trees, including leaves."""
        return len(self.left)

    @property
    def n_leaves(self) -> int:
        """Number of rows of ``leaf_value``."""
        return len(self.leaf_value)

    @property
    def n_predicates(self) -> int:
        """Number of distinct predicates."""
        return len(self.feature)

    @property
    def n_outputs(self) -> int:
        """Number of raw scores per row."""
        return len(self.base)

    @property
    def classifies(self) -> bool:
        """Whether the forest predicts class labels."""
        return self.task in CLASSIFICATION

    @property
    def vector_leaves(self) -> bool:
        """Whether a leaf adds to every output (``tree_output`` is then -1)."""
        return bool(self.leaf_value.shape[1] > 1)

    @property
    def input_dtype(self) -> np.dtype[Any]:
        """Dtype that rows are cast to before comparisons: that of the thresholds."""
        return self.threshold.dtype

    @property
    def accumulator_dtype(self) -> np.dtype[Any]:
        """Dtype in which leaf values are summed."""
        return self.leaf_value.dtype


# dtype (None: float32 or float64, as given) and dimensions of every array field
_LAYOUT: dict[str, tuple[Any, int]] = {
    "tree_offset": (np.int64, 1),
    "tree_output": (np.int32, 1),
    "predicate": (np.int32, 1),
    "left": (np.int32, 1),
    "right": (np.int32, 1),
    "leaf": (np.int32, 1),
    "source_node": (np.int32, 1),
    "cover": (np.float64, 1),
    "source_feature": (np.int32, 1),
    "leaf_value": (None, 2),
    "feature": (np.int32, 1),
    "comparison": (np.uint8, 1),
    "threshold": (None, 1),
    "missing": (np.uint8, 1),
    "missing_left": (np.bool_, 1),
    "category_offset": (np.int64, 1),
    "category_words": (np.uint32, 1),
    "base": (None, 1),
}


def _frozen(name: str, value: Any, dtype: Any, ndim: int) -> NDArray[Any]:
    """Return a read-only contiguous array; the caller's own is never frozen."""
    array = np.asarray(value)
    if array.ndim != ndim:
        raise InvalidModelError(
            f"{name} has {array.ndim} dimensions where {ndim} were expected."
        )
    wanted = np.dtype(array.dtype.newbyteorder("=") if dtype is None else dtype)
    allowed = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}[
        "f" if dtype is None else wanted.kind
    ]
    known = wanted.char in "fdilqIB?" and array.dtype.kind in allowed
    if not known or (dtype is None and wanted.kind != "f"):
        raise InvalidModelError(
            f"{name} has dtype {array.dtype} where "
            f"{'float32 or float64' if dtype is None else wanted} was expected."
        )
    if wanted.kind in "iu" and array.dtype != wanted and array.size:
        info = np.iinfo(wanted)
        if array.min() < info.min or array.max() > info.max:
            raise InvalidModelError(
                f"{name} holds values from {array.min()} to {array.max()}, "
                f"which do not fit {wanted}."
            )
    frozen: NDArray[Any] = np.ascontiguousarray(array, dtype=wanted).view()
    frozen.flags.writeable = False
    return frozen
