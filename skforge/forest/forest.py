"""The canonical forest: NumPy arrays with shared predicates, validated once read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skforge._typing import Int32s
from skforge._version import FORMAT, __version__, check_format
from skforge.exceptions import InvalidInputError
from skforge.forest import arrays
from skforge.forest.predicates import with_sets_of_here
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
    category_names : tuple of tuple of (str, int, float or bool)
        The names of each feature's categories, in the order of their numbers; empty
        for a feature without any, and () if the source stores none.
    truncate_categories : bool, default=False
        Whether categories are truncated toward zero, as by C's cast to int, so that
        -0.9 is category 0. Otherwise negative values are in no set.
    class_labels : tuple of (str, int, float or bool)
        Labels stored in a classifier's file (ONNX, CatBoost); empty means 0, 1, ...
    aggregate : {"sum", "min", "max", "linear"}, default="sum"
        How a row's leaves become one score (ONNX has the first three). "linear" adds
        the linear models of leaves. For "min" and "max",
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
    leaf_linear : ndarray of float64, shape (n_leaves, 2 + 2 * k) or (0, 0)
        The linear models of leaves (LightGBM): a constant, the number of features,
        and up to ``k`` features, each followed by its coefficient. If one of these
        features is NaN, the leaf adds ``leaf_value``.
    category_lists : tuple of tuple of (str, int, float or bool), default=()
        The names of categories if the source does not tell of which features
        (LightGBM), or if a list is empty: a list for each column of categories that a
        frame has, in the order of its columns.
    closed_columns : tuple of int, default=()
        Columns of texts in which the source raises an error for a text that is not
        among ``category_names`` (ONNX).
    whole_columns : tuple of (int, int), default=()
        Columns that hold nothing but whole numbers, and of how many bits these are: 1
        of booleans (ONNX).
    row_norms : tuple of (str, tuple of int), default=()
        A norm, "L1", "L2" or "MAX", and the columns by whose norm each of them is
        divided, in the order of the sum. The trees test the quotients (ONNX).
    """

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild through the constructor: copies and pickles stay read-only."""
        values = (getattr(self, field.name) for field in fields(self))
        return _rebuilt, (FORMAT, __version__, *values)

    def __repr__(self) -> str:
        shallow, deep = self.leaf_depths()
        depth = f"{shallow.min()}..{deep.max()}" if self.n_trees else "none"
        norms = ", ".join(norm for norm, _ in self.row_norms)
        norms = f" divided by norms ({norms})" if norms else ""
        return (
            f"<Forest {self.source} {self.task}: {self.n_trees} trees, "
            f"{self.n_nodes} nodes, {self.n_predicates} distinct predicates, "
            f"depth {depth}, {self.n_features} features, {self.n_outputs} outputs, "
            f"{self.input_dtype} rows{norms}, {self.accumulator_dtype} sums>"
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
            from skforge.forest.validation import validate

            validate(self)
            object.__setattr__(self, "_valid", True)
        return self

    def select_trees(self, trees: slice | ArrayLike) -> Forest:
        """Return the forest of some of the trees, in the given order.

        The first trees predict what the library does with as many rounds or estimators,
        to the last bit: ``iteration_range=(0, k)`` of XGBoost, ``num_iteration=k`` of
        LightGBM, ``estimators_[:k]`` of scikit-learn. A round has a tree for each
        output, times ``num_parallel_tree``. CatBoost's bias is a last tree of one leaf.

        Parameters
        ----------
        trees : slice, array-like of int or array-like of bool
            The trees, counted from 0 or, with negative numbers, from the end; or for
            each tree whether it is chosen.

        Returns
        -------
        Forest
            The raw score starts from the same ``base`` and adds the trees one by one.
            Of forests that average their trees, it is the average of those chosen.
            Predicates and leaves that are no longer used are left out.

        Raises
        ------
        InvalidInputError
            A tree does not exist or is chosen twice; or an average would have no trees,
            or more of them for one output than for another.
        UnsupportedModelError
            The scores depend on all trees: AdaBoost and isolation forests, and averages
            of a divisor that is not the number of trees.

        Examples
        --------
        >>> from sklearn.ensemble import RandomForestRegressor
        >>> from skforge import load_forest
        >>> model = RandomForestRegressor(5, random_state=0).fit([[0], [1]], [0, 1])
        >>> load_forest(model).select_trees(slice(0, 3))
        <Forest sklearn regression: 3 trees, 5 nodes, 1 distinct predicates, \
depth 0..1, 1 features, 1 outputs, float32 rows, float64 sums>
        """
        from skforge.forest.combine import selected

        return selected(self.validate(), trees).validate()

    @staticmethod
    def concatenate(
        forests: Iterable[Forest],
        *,
        weights: Sequence[float] | None = None,
        average: bool = False,
    ) -> Forest:
        """Return one forest with the trees of several, whose raw scores add up.

        The raw score starts from the sum of the forests' ``base``, the first one's
        first, and adds the trees of the first forest in their order, then those of the
        second, and so on. Each step is rounded to the dtype of the sums, so that the
        last bits may differ from those of scores that are added afterwards. The
        transform applies to the whole score.

        Parameters
        ----------
        forests : iterable of Forest
            At least one. They must agree on all but trees, bases and divisors: on the
            rows, the outputs, the dtypes and the transform. Leaves for one output and
            leaves for all may be mixed.
        weights : sequence of float, optional
            By what the base and the leaves of each forest are multiplied, rounded to
            the dtype of the sums; ``[1 / 5] * 5`` for the mean of five models.
        average : bool, default=False
            Whether the raw score is the average of all trees. Forests whose ``divisor``
            is the number of their trees are averaged in any case; single trees, whose
            divisor is 1, only on request.

        Returns
        -------
        Forest
            The source's numbers of nodes stay as they are.

        Raises
        ------
        InvalidInputError
            The forests differ; the text names in what.
        UnsupportedModelError
            The scores of a forest are not sums of its trees alone.

        Examples
        --------
        >>> from sklearn.tree import DecisionTreeRegressor
        >>> from skforge import Forest, compile_forest, load_forest
        >>> X = [[0.0], [1.0]]
        >>> trees = [DecisionTreeRegressor().fit(X, y) for y in ([0, 1], [4, 8])]
        >>> forest = Forest.concatenate(map(load_forest, trees), average=True)
        >>> compile_forest(forest).predict(X)
        array([2. , 4.5])
        """
        from skforge.forest.combine import concatenated

        several = [*forests]
        for forest in several:
            if not isinstance(forest, Forest):
                raise InvalidInputError(
                    "forests must be Forests, as load_forest returns them. Got "
                    f"{type(forest).__name__} instead."
                )
            forest.validate()
        if not several:
            raise InvalidInputError("forests is empty; give at least one Forest.")
        return concatenated(several, weights, average).validate()

    def content_hash(self) -> str:
        """Return a hex digest of every field; equal forests have equal digests."""
        if not hasattr(self, "_hash"):
            parts: list[Any] = []
            for field in fields(self):
                value = getattr(self, field.name)
                if isinstance(value, np.ndarray):
                    if field.name in arrays.RARE and not value.size:
                        continue
                    head = f"{field.name}:{value.dtype}:{value.shape};"
                    parts += [head.encode(), value.data]
                elif field.name not in arrays.RARE or value:
                    parts += [f"{field.name}={value!r};".encode()]
            object.__setattr__(self, "_hash", sha256(*parts).hexdigest())
        return self._hash


def _rebuilt(form: int, release: str, *values: Any) -> Forest:
    check_format(form, release, "The pickle of a Forest")
    return with_sets_of_here(Forest(*values))
