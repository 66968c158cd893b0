"""The canonical forest: NumPy arrays with shared predicates, validated once read."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skforge._typing import Array, Bools, FloatArray, Int32s, Int64s, Uint32s
from skforge._version import FORMAT, __version__, check_format
from skforge.compiler.forest import arrays
from skforge.compiler.forest.arrays import Comparison
from skforge.runtime.digests import sha256


@dataclass(frozen=True, eq=False, repr=False)
class Forest(arrays.ForestArrays):
    """A fitted ensemble of binary decision trees as read-only arrays.

    Row ``i`` of every node array describes node ``i``; the nodes of tree ``t`` are
    ``tree_offset[t] .. tree_offset[t + 1]`` and its root is the first of them. A node
    is either inner (``predicate``, ``left``, ``right`` >= 0, ``leaf`` == -1) or a leaf
    (``leaf`` >= 0, the others -1). Predicate ``p`` is true for a row that goes left.

    Rows are cast to ``input_dtype`` and compared with thresholds of that dtype:
    frontends round source thresholds with ``round_thresholds``, which is exact.

    Parameters
    ----------
    tree_offset : ndarray of int64, shape (n_trees + 1,)
        The first node of each tree.
    tree_output : ndarray of int32, shape (n_trees,)
        The output that a leaf's single value is added to; -1 if leaves have one value
        per output.
    predicate, left, right : ndarray of int32, shape (n_nodes,)
        For inner nodes: the predicate, and the children's numbers among all nodes.
    leaf : ndarray of int32, shape (n_nodes,)
        For leaves: the row of ``leaf_value``.
    source_node : ndarray of int32, shape (n_nodes,)
        The source's own number of the node, which ``apply`` returns.
    cover : ndarray of float64, shape (n_nodes,) or (0,)
        The weight of the training rows that reached the node; empty if unknown.
    leaf_value : ndarray, shape (n_leaves, 1) or (n_leaves, n_outputs)
        In the dtype of the sums.
    feature : ndarray of int32, shape (n_predicates,)
        The column that each distinct predicate tests.
    comparison : ndarray of uint8, shape (n_predicates,)
        How it is tested: a ``Comparison``.
    threshold : ndarray, shape (n_predicates,)
        In ``input_dtype``; 0 for tests of categories.
    missing : ndarray of uint8, shape (n_predicates,)
        Which values are missing: a ``Missing``.
    missing_left : ndarray of bool, shape (n_predicates,)
        Whether a missing value goes left.
    category_offset : ndarray of int64, shape (n_predicates + 1,)
        The first word of each predicate's set of categories.
    category_words : ndarray of uint32
        Bit ``c % 32`` of a set's word ``c // 32`` is category ``c``.
    n_features : int
        Columns of a row.
    base : ndarray, shape (n_outputs,)
        Start value of each sum, in the sums' dtype.
    divisor : int, default=1
        Divisor of the sums: the number of trees for averages.
    outputs : OutputSpec
        How raw scores become the results of the source's methods.
    task : str, default="regression"
        One of regression, binary, multiclass, multilabel, ranking, outlier.
    source : str
        The library: xgboost, lightgbm, sklearn, onnx, or that of another frontend.
    missing_value : float, default=nan
        The value that marks missing values in rows.
    feature_names : tuple of str or None
        The source's feature names.
    output_sizes : tuple of int
        Outputs per target; empty if there is one target.
    category_names : tuple of tuple of (str, int or float)
        The names of each feature's categories, in the order of their numbers; empty
        for a feature without any, and () if the source stores none.
    truncate_categories : bool, default=False
        Whether categories are truncated toward zero, as by C's cast to int, so that
        -0.9 is category 0. Otherwise negative values are in no set.
    class_labels : tuple of (str, int, float or bool)
        Labels stored in a classifier's file (ONNX, CatBoost); empty means 0, 1, ...
    aggregate : {"sum", "min", "max"}, default="sum"
        How a row's leaves become one score (ONNX has all three). For "min" and "max",
        an infinite leaf value (+inf for "min", -inf for "max") means no value, and an
        output without any value is 0.
    wider_rows : bool, default=False
        Whether rows may have more columns than ``n_features``; they are ignored. An
        ONNX graph need not declare a width.
    source_feature : ndarray of int32, shape (n_nodes,) or (0,)
        The column of the source's own rows that each inner node tests, where a pipeline
        is folded into the tests; empty if it is the ``feature`` of the node's
        predicate.
    scaling : tuple of float, default=()
        What the sums are multiplied by, and what is then added to each output. Only
        ``predict_raw`` and what follows from it support it: kernels add, and NumPy
        does the rest.
    hashed : HashedCategories or None
        How the columns of the forest follow from those of the source's rows (CatBoost's
        categories). ``n_features`` then counts the columns of the forest, and
        ``n_columns`` those of the source.
    parallel_trees : int, default=0
        Trees of a boosting round for each output if they are not one (XGBoost's
        ``num_parallel_tree``); -1 if rounds differ in their trees.
    """

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild through the constructor: copies and pickles stay read-only."""
        values = (getattr(self, field.name) for field in fields(self))
        return _rebuilt, (FORMAT, __version__, *values)

    def __repr__(self) -> str:
        shallow, deep = self.leaf_depths()
        depth = f"{shallow.min()}..{deep.max()}" if self.n_trees else "none"
        return (
            f"<Forest {self.source} {self.task}: {self.n_trees} trees, "
            f"{self.n_nodes} nodes, {self.n_predicates} distinct predicates, "
            f"depth {depth}, {self.n_features} features, {self.n_outputs} outputs, "
            f"{self.input_dtype} rows, {self.accumulator_dtype} sums>"
        )

    def leaf_depths(self) -> tuple[Int32s, Int32s]:
        """Return each tree's shallowest and deepest leaf depth, read-only."""
        if not hasattr(self, "_leaf_depths"):
            leaves = np.flatnonzero(self.leaf >= 0)
            depth = self.node_depths()[leaves]
            first = np.searchsorted(leaves, self.tree_offset[:-1])
            depths = [f.reduceat(depth, first) for f in (np.minimum, np.maximum)]
            for array in depths:
                array.flags.writeable = False
            object.__setattr__(self, "_leaf_depths", tuple(depths))
        return self._leaf_depths

    def tree_depths(self) -> Int32s:
        """Return the depth of each tree's deepest leaf."""
        return self.leaf_depths()[1]

    def mean_depth(self) -> float:
        """Return the mean of :meth:`tree_depths`; 0 without trees."""
        if not hasattr(self, "_mean_depth"):
            mean = float(self.tree_depths().mean()) if self.n_trees else 0.0
            object.__setattr__(self, "_mean_depth", mean)
        return self._mean_depth

    @property
    def node_feature(self) -> Int32s:
        """The source's column that each inner node tests; -1 for leaves."""
        if len(self.source_feature):
            return self.source_feature
        return np.append(self.feature, np.int32(-1))[self.predicate]

    def validate(self) -> Forest:
        """Return self after checking, once, that the arrays describe proper trees.

        Raises
        ------
        InvalidModelError
            The text names the array, index and tree of the first fault found.
        """
        if not hasattr(self, "_valid"):
            from skforge.compiler.forest.validation import validate

            validate(self)
            object.__setattr__(self, "_valid", True)
        return self

    def content_hash(self) -> str:
        """Return a hex digest of every field; equal forests have equal digests."""
        if not hasattr(self, "_hash"):
            parts: list[Any] = []
            for field in fields(self):
                value = getattr(self, field.name)
                if isinstance(value, np.ndarray):
                    head = f"{field.name}:{value.dtype}:{value.shape};"
                    parts += [head.encode(), value.data]
                elif field.name not in arrays.RARE or value:
                    parts += [f"{field.name}={value!r};".encode()]
            object.__setattr__(self, "_hash", sha256(*parts).hexdigest())
        return self._hash


def _rebuilt(form: int, release: str, *values: Any) -> Forest:
    check_format(form, release, "The pickle of a Forest")
    return Forest(*values)


def round_thresholds(
    thresholds: ArrayLike, comparison: ArrayLike, dtype: Any
) -> FloatArray:
    """Round float64 thresholds to the rows' dtype so that no test changes.

    A float32 ``x <= t`` is ``x <= r`` for ``r`` the largest float32 not above ``t``;
    ``x < t`` is ``x < r`` for the smallest float32 not below ``t``.
    -0.0 becomes 0.0, which compares the same.

    >>> round_thresholds([0.1, 1e300, -1e-50], Comparison.LE, "float32").tolist()
    [0.09999999403953552, 3.4028234663852886e+38, -1.401298464324817e-45]
    >>> round_thresholds([0.1, 1e300, -1e-50], Comparison.LT, "float32").tolist()
    [0.10000000149011612, inf, 0.0]
    """
    exact = np.asarray(thresholds, dtype=np.float64)
    tests = np.asarray(comparison)
    with np.errstate(over="ignore"):
        near = exact.astype(dtype)
    down = (tests == Comparison.LE) | (tests == Comparison.GT)
    up = (tests == Comparison.LT) | (tests == Comparison.GE)
    equal = (tests == Comparison.EQ) | (tests == Comparison.NE)
    if equal.any() and (bad := equal & (near != exact)).any():
        at = int(bad.argmax())
        raise ValueError(
            f"thresholds[{at}] = {exact.flat[at]!r} is tested for equality but is not "
            f"a {np.dtype(dtype)} number, so it cannot be rounded."
        )
    with np.errstate(over="ignore", under="ignore"):
        for way, over, end in ((down, np.greater, -np.inf), (up, np.less, np.inf)):
            if way.any():
                some = np.flatnonzero(way & over(near, exact))
                near[some] = np.nextafter(near[some], end)
    return near + near.dtype.type(0)


def deduplicate_predicates(
    feature: ArrayLike,
    comparison: ArrayLike,
    threshold: FloatArray,
    missing: ArrayLike,
    missing_left: ArrayLike,
    categories: dict[int, Uint32s] | None = None,
) -> tuple[dict[str, Array], Int32s]:
    """Return the distinct predicates of a list of tests, and each test's number.

    Arguments and result are fields of :class:`Forest`; all but ``threshold``, whose
    dtype becomes the input dtype, may be a single value for all tests. ``categories``
    are the words of the tests that have a set, by test number. Predicates are sorted by
    feature, then comparison, then threshold.
    """
    shape = threshold.shape
    value = threshold + threshold.dtype.type(0)  # -0.0 and 0.0 are one threshold
    columns = [np.asarray(c) for c in (feature, comparison, missing, missing_left)]
    sets, set_of = _distinct_sets(shape[0], categories or {})
    keys: list[Array] = [value]
    if len(sets) > 1:
        value[set_of > 0] = 0
        keys.insert(0, set_of)
    # One sortable integer: flags take 6 bits, so any 32-bit feature fits.
    code = np.full(shape, columns[0], np.int64)
    for column, size in zip(columns[1:], (8, 4, 2), strict=True):
        code *= size
        code += column
    keys.append(code)
    order, new = _sorted(keys)
    index = np.empty(shape, dtype=np.int32)
    index[order] = np.cumsum(new, dtype=np.int32) - 1
    pick = order[new]
    words = [sets[i] for i in set_of[pick]] if len(sets) > 1 else []
    offset = np.zeros(len(pick) + 1, np.int64)
    if words:
        offset[1:] = np.cumsum([len(w) for w in words])
    # a single value is repeated, not gathered
    picked = [
        c[pick] if c.shape == shape else np.broadcast_to(c, pick.shape) for c in columns
    ]
    fields_ = {
        "feature": picked[0],
        "comparison": picked[1],
        "threshold": value[pick],
        "missing": picked[2],
        "missing_left": picked[3] != 0,
        "category_offset": offset,
        "category_words": np.concatenate([np.zeros(0, np.uint32), *words]),
    }
    return fields_, index


def _sorted(keys: list[Array]) -> tuple[Int64s, Bools]:
    """Return the order of rows by several keys, the last one first, and what is new.

    Equal rows are in any order, and the first of them in that order is new.
    """
    if (found := _sorted_packed(*keys)) is not None:
        return found
    order = np.argsort(keys[0])
    for key in keys[1:]:
        if key.dtype.kind == "f" or key.min(initial=0) < 0:
            order = order[np.argsort(key[order], kind="stable")]
            continue
        # 16 bits at a time, in linear time: 5 times faster for a million tests
        for shift in range(0, int(key.max(initial=0)).bit_length(), 16):
            digit = (key >> shift).astype(np.uint16)
            order = order[np.argsort(digit[order], kind="stable")]
    new = np.zeros(len(order), np.bool_)
    new[:1] = True
    for key in keys:
        ranked = key[order]
        new[1:] |= ranked[1:] != ranked[:-1]
    return order, new


def _sorted_packed(value: Array, *others: Int64s) -> tuple[Int64s, Bools] | None:
    """Sort float32 values with one other key in a word each; None if these are wider.

    A sort of words takes a third of the time of finding their order, and the rows'
    numbers are in them.
    """
    bits, (code, *more) = len(value).bit_length(), others
    narrow = 0 <= code.min(initial=0) <= code.max(initial=0) < 1 << 24
    if value.dtype != np.float32 or more or not narrow:
        return None
    rank = np.cumsum(np.bincount(code) > 0)
    if rank[-1:].sum() >> (32 - bits):
        return None
    word = value.view(np.int32) >> 31 | np.int32(-1 << 31)  # all bits of negative ones
    word ^= value.view(np.int32)  # in their order
    packed = (rank.astype(np.uint64) << np.uint64(32))[code]
    packed |= word.view(np.uint32)
    packed <<= np.uint64(bits)
    packed |= np.arange(len(value), dtype=np.uint32)
    packed.sort()
    order = (packed & np.uint64((1 << bits) - 1)).view(np.int64)
    packed >>= np.uint64(bits)
    return order, np.append(True, packed[1:] != packed[:-1])[: len(packed)]


def _distinct_sets(
    n_tests: int, categories: dict[int, Uint32s]
) -> tuple[list[Uint32s], Int64s]:
    sets: list[Uint32s] = [np.zeros(0, np.uint32)]
    known: dict[bytes, int] = {}
    set_of = np.zeros(n_tests, dtype=np.int64)
    for test, words in categories.items():
        used = np.flatnonzero(words)
        trimmed = words[: used[-1] + 1 if len(used) else 0].astype(np.uint32)
        number = known.setdefault(trimmed.tobytes(), len(sets))
        if number == len(sets):
            sets.append(trimmed)
        set_of[test] = number
    return sets, set_of
