"""The arrays of a forest: their contents, dtypes and shapes; the depths of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Bools, Float64s, FloatArray, Int32s, Uint32s
from skforge.exceptions import InvalidModelError
from skforge.forest.outputs import (
    CLASSIFICATION,
    SCORES,
    AnswerSpec,
    OutputSpec,
    Task,
)
from skforge.runtime.libm import multiply_add

if TYPE_CHECKING:
    from skforge.forest.categories import HashedCategories

OffsetArray = NDArray[np.int64]

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
    """A place for what is known of a forest beside its fields."""

    __slots__ = (
        *("_depth", "_dtypes", "_hash", "_leaf_depths", "_mean_depth"),
        *("_read", "_valid"),
    )

    _depth: Int32s
    #: Those of the rows and of the sums.
    _dtypes: tuple[np.dtype[Any], np.dtype[Any]]
    _hash: str
    _leaf_depths: tuple[Int32s, Int32s]
    _mean_depth: float
    #: Returns the arrays that are not read yet.
    _read: Callable[[], ForestArrays]
    _valid: bool


def dropped_name(column: int) -> str:
    """Return what stands for the name of a column that a model has dropped."""
    return f"(dropped column {column})"


@dataclass(frozen=True, eq=False)
class ForestArrays(_Known):
    """The fields of a forest; ``Forest`` documents each."""

    # trees
    tree_offset: OffsetArray
    tree_output: Int32s
    # nodes
    predicate: Int32s
    left: Int32s
    right: Int32s
    leaf: Int32s
    source_node: Int32s
    cover: Float64s
    # leaves
    leaf_value: FloatArray
    # distinct predicates
    feature: Int32s
    comparison: NDArray[np.uint8]
    threshold: FloatArray
    missing: NDArray[np.uint8]
    missing_left: Bools
    category_offset: OffsetArray
    category_words: Uint32s
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
    category_names: tuple[tuple[str | float | bool, ...], ...] = ()
    truncate_categories: bool = False
    class_labels: tuple[str | float | bool, ...] = ()
    aggregate: str = "sum"
    wider_rows: bool = False
    source_feature: Int32s = field(default_factory=lambda: np.zeros(0, np.int32))
    scaling: tuple[float, ...] = field(default=(), metadata={"stored": False})
    hashed: HashedCategories | None = field(default=None, metadata={"stored": False})
    parallel_trees: int = field(default=0, metadata={"stored": False})
    leaf_linear: Float64s = field(default_factory=lambda: np.zeros((0, 0)))
    category_lists: tuple[tuple[str | float | bool, ...], ...] = field(
        default=(), metadata={"stored": False}
    )
    closed_columns: tuple[int, ...] = field(default=(), metadata={"stored": False})
    whole_columns: tuple[tuple[int, int], ...] = field(
        default=(), metadata={"stored": False}
    )
    row_norms: tuple[tuple[str, tuple[int, ...]], ...] = field(
        default=(), metadata={"stored": False}
    )

    def __post_init__(self) -> None:
        for name in LAYOUT:
            object.__setattr__(self, name, frozen(name, getattr(self, name)))
        dtypes = self.threshold.dtype, self.leaf_value.dtype
        object.__setattr__(self, "_dtypes", dtypes)
        base = _frozen("base", self.base.astype(dtypes[1]), None, 1)
        object.__setattr__(self, "base", base)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Read the arrays of a file when the first of them is needed."""
            if name not in LAYOUT:
                raise AttributeError(f"{type(self).__name__!r} has no {name!r}")
            whole = self._read()
            for array in LAYOUT:
                object.__setattr__(self, array, getattr(whole, array))
            object.__setattr__(self, "_read", lambda: whole)  # closes the file
            return getattr(self, name)

    def node_depths(self) -> Int32s:
        """Return the depth of every node, 0 for roots; the array is read-only."""
        if not hasattr(self, "_depth"):
            depth = node_depths(self.left, self.right, self.tree_offset)
            depth.flags.writeable = False
            object.__setattr__(self, "_depth", depth)
        return self._depth

    def levels(self) -> list[NDArray[np.integer]]:
        """Return the nodes of all trees level by level; siblings are adjacent.

        The last level has leaves alone, each other one an inner node.
        """
        return [*_fronts(self.left, self.right, self.tree_offset, 0, self.n_trees)]

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
    def n_columns(self) -> int:
        """Number of columns of the source's rows."""
        return self.n_features if self.hashed is None else self.hashed.n_columns

    @property
    def is_encoded(self) -> bool:
        """Whether its rows are made of the source's: categories of CatBoost, norms."""
        return self.hashed is not None or bool(self.row_norms)

    @property
    def n_made(self) -> int:
        """Number of features if rows are made of the source's; 0 if they are these."""
        return 0 if self.hashed is None else self.n_features

    @property
    def is_plain(self) -> bool:
        """Whether its rows are the source's, and no category is known by name."""
        return not (self.names_categories or self.is_encoded)

    @property
    def tests_bytes(self) -> bool:
        """Whether categories are hashed, and all tests of statistics compare bytes."""
        if self.hashed is None or (self.comparison > Comparison.LE).any():
            return False
        bounds = self.threshold[self.feature >= self.n_columns]
        return bool(len(bounds) and (bounds < 255).all())

    @property
    def is_category(self) -> Bools:
        """Which columns of the source's rows hold categories that are hashed."""
        known = self.hashed
        return np.zeros(self.n_features, bool) if known is None else known.is_category

    def of_columns(self, contribs: Array) -> Array:
        """Return contributions of the source's columns for those of features."""
        known = self.hashed if self.n_columns < self.n_features else None
        return contribs if known is None else known.shared(contribs)

    @property
    def column_names(self) -> tuple[str, ...] | None:
        """The names of the columns of the source's rows, if they have any."""
        names = self.feature_names
        return None if names is None else names[: self.n_columns]

    @property
    def dropped_columns(self) -> frozenset[int]:
        """The columns that CatBoost's ``drop_unused_features()`` left without a name.

        Arrays have them at their places; frames need not have them.
        """
        names = self.column_names if self.source == "catboost" else None
        return frozenset(
            i for i, name in enumerate(names or ()) if name == dropped_name(i)
        )

    @property
    def names_categories(self) -> bool:
        """Whether the categories of some columns are known by name."""
        return bool(self.category_lists) or any(self.category_names)

    @property
    def lacks_columns(self) -> bool:
        """Whether names of categories are known, but not their columns."""
        return bool(self.category_lists) and not any(self.category_names)

    @property
    def is_graph(self) -> bool:
        """Whether rows are the inputs of an ONNX graph, by name or of other types."""
        named = self.feature_names is not None or any(self.category_names)
        kinds = self.whole_columns or self.row_norms
        return self.source == "onnx" and (named or bool(kinds))

    def finish(self, sums: Any) -> None:
        """Turn the sums of rows, an array, into their raw scores, in place."""
        if self.divisor != 1:
            sums /= self.divisor
        if self.scaling:
            factor, *more = self.scaling
            if not more:
                sums *= factor
            for output, value in enumerate(more):
                sums[:, output] = multiply_add(sums[:, output], factor, value)

    @property
    def classifies(self) -> bool:
        """Whether the forest predicts class labels."""
        return self.task in CLASSIFICATION

    @property
    def answers(self) -> AnswerSpec:
        """How raw scores become the answers of the model's methods."""
        sizes, names = self.output_sizes, self.class_labels
        rules = self.outputs, self.task, self.source
        return AnswerSpec(*rules, self.n_outputs, sizes, names)

    @property
    def vector_leaves(self) -> bool:
        """Whether a leaf adds to every output (``tree_output`` is then -1)."""
        return bool(self.leaf_value.shape[1] > 1)

    @property
    def input_dtype(self) -> np.dtype[Any]:
        """Dtype that rows are cast to before comparisons: that of the thresholds."""
        return self._dtypes[0]

    @property
    def accumulator_dtype(self) -> np.dtype[Any]:
        """Dtype in which leaf values are summed."""
        return self._dtypes[1]


# dtype (None: float32 or float64, as given) and dimensions of every array field
LAYOUT: dict[str, tuple[Any, int]] = {
    **dict.fromkeys(("tree_offset", "category_offset"), (np.int64, 1)),
    **dict.fromkeys(("tree_output", "predicate", "left", "right"), (np.int32, 1)),
    **dict.fromkeys(("leaf", "source_node", "source_feature"), (np.int32, 1)),
    "cover": (np.float64, 1),
    **{"leaf_value": (None, 2), "leaf_linear": (np.float64, 2)},
    "feature": (np.int32, 1),
    **dict.fromkeys(("comparison", "missing"), (np.uint8, 1)),
    "missing_left": (np.bool_, 1),
    "category_words": (np.uint32, 1),
    **dict.fromkeys(("threshold", "base"), (None, 1)),
}


#: Fields of few models, which are neither stored nor hashed if they are empty.
RARE: dict[str, Any] = {
    "scaling": tuple[float, ...],
    "hashed": None,
    **{"parallel_trees": int, "leaf_linear": None},
    "category_lists": tuple[tuple[str | float | bool, ...], ...],
    "closed_columns": tuple[int, ...],
    "whole_columns": tuple[tuple[int, int], ...],
    "row_norms": tuple[tuple[str, tuple[int, ...]], ...],
}

#: By kind and size: the characters of C's types differ among systems.
_KNOWN = {"f4", "f8", "i4", "i8", "u4", "u1", "b1"}


def frozen(name: str, value: Any) -> Array:
    return _frozen(name, value, *LAYOUT[name])


def _frozen(name: str, value: Any, dtype: Any, ndim: int) -> Array:
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
    known = wanted.str[1:] in _KNOWN and array.dtype.kind in allowed
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
    frozen: Array = np.ascontiguousarray(array, dtype=wanted).view()
    frozen.flags.writeable = False
    return frozen


_LEVELS_BY_SWEEP = 256  # deeper trees (chains) switch to pointer doubling

#: Nodes swept together, so that their children stay in the cache: for 75 trees of
#: 20,000 nodes, a sweep takes .038 s where all 1.5 million nodes at once take .087.
_PART = 1 << 17


def node_depths(left: Int32s, right: Int32s, offset: OffsetArray) -> Int32s:
    """Return each node's distance from its root, -1 for unreachable nodes.

    Every node must have at most one parent, and roots none; the sweep then ends even if
    the arrays hold a cycle.
    """
    depth = np.full(len(left), -1, dtype=np.int32)
    for first, last in _parts(offset):
        part = depth[offset[first] : offset[last]]
        for level, front in enumerate(_fronts(left, right, offset, first, last)):
            if level == _LEVELS_BY_SWEEP:
                return _depths_by_doubling(left, right, offset[:-1])
            part[front] = level
    return depth


def level_order(
    left: Int32s, right: Int32s, offset: OffsetArray
) -> tuple[Int32s, Int32s]:
    order = np.empty(len(left), np.int32)
    depth = np.empty(len(left), np.int32)
    for first, last in _parts(offset):
        fronts = list(_fronts(left, right, offset, first, last))
        sizes = [len(front) for front in fronts]
        levels = np.repeat(np.arange(len(fronts), dtype=np.int32), sizes)
        nodes = np.concatenate(fronts)
        part = slice(offset[first], offset[last])
        if last - first > 1:
            # the smallest dtype, because numbers of 16 bits sort in linear time
            trees = np.arange(last - first, dtype=np.min_scalar_type(last - first))
            tree = np.repeat(trees, np.diff(offset[first : last + 1]))
            by_tree = np.argsort(tree[nodes], kind="stable")
            nodes, levels = nodes[by_tree], levels[by_tree]
        np.add(nodes, offset[first], out=order[part], casting="unsafe")
        depth[part] = levels
    return order, depth


def fronts_of(
    left: Int32s, right: Int32s, offset: OffsetArray
) -> Iterator[tuple[int, Iterator[NDArray[np.integer]]]]:
    """Yield the first node of some trees, and the nodes of their levels, from there."""
    for first, last in _parts(offset):
        yield int(offset[first]), _fronts(left, right, offset, first, last)


def _parts(offset: OffsetArray) -> Iterator[tuple[int, int]]:
    first, n_trees = 0, len(offset) - 1
    while first < n_trees:
        last = int(np.searchsorted(offset, offset[first] + _PART, side="right")) - 1
        last = max(first + 1, last)
        yield first, last
        first = last


def _fronts(
    left: Int32s, right: Int32s, offset: OffsetArray, first: int, last: int
) -> Iterator[NDArray[np.integer]]:
    part = slice(offset[first], offset[last])
    child = np.stack([left[part], right[part]], axis=1)
    child -= np.int32(offset[first])  # the -1 of leaves stays negative
    front: NDArray[np.integer] = offset[first:last] - offset[first]
    while front.size:
        yield front
        front = child.take(front, axis=0).reshape(-1)
        front = front[np.flatnonzero(front >= 0)]  # half of a mask's time


def _depths_by_doubling(left: Int32s, right: Int32s, roots: OffsetArray) -> Int32s:
    """Compute depths in log2(depth) passes that double each node's jump."""
    n = len(left)
    above = np.arange(n + 1, dtype=np.int64)  # n is the parent of every root
    above[roots] = n
    for child in (left, right):
        inner = np.flatnonzero(child >= 0)
        above[child[inner]] = inner
    depth = (above != np.arange(n + 1)).astype(np.int64)
    for _ in range(int(n).bit_length() + 1):
        depth += depth[above]
        above = above[above]
        if (above == n).all():
            break
    return np.where(above[:n] == n, depth[:n] - 1, -1).astype(np.int32)
