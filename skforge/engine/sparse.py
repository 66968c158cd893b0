"""Finds leaves by the entries of sparse rows: work for what a row has, not its width.

A row without entries ends in the same leaf of a tree as all such rows. The nodes passed
on the way are a *chain*; every node is in one chain, that of the leaf where a row ends
which has no further entries. Only an entry can make a row leave a chain, and the child
that it takes then begins another one::

    for each entry of the row:
        for each node of the roots' chains that it leaves: note the first of its tree
    for each tree:
        from that node on, until a chain ends:
            go to the chain's next node whose column the row has
            if the entry leaves the chain there, go on with the other child's chain

Tests of a column are sorted by threshold, so that those which an entry fails come
first. Chains lie one after the other in memory, and the columns of a row are bits, so
that a node whose column is absent takes a cycle or two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skforge._typing import Array, Bools
from skforge.engine.routines import routine
from skforge.forest.arrays import ZERO_THRESHOLD, Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.reference import evaluate_predicates

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Function

#: Rows that a thread takes at a time.
_ROWS = 64

#: Entries that stand for all where costs are estimated.
_SAMPLE = 1024


class SparseWalk:
    """The trees of a forest, for rows given by their entries.

    ``fill`` is the value of absent entries. Tests must compare with thresholds, and
    scores be sums in the order of trees.
    """

    def __init__(self, forest: Forest, fill: float) -> None:
        from skforge.compiler.passes.hir import normalize_predicates

        self._forest = forest
        normal, name = normalize_predicates.run(forest)
        inner, leaves = (np.flatnonzero(x) for x in (normal.leaf < 0, normal.leaf >= 0))
        test = np.maximum(normal.predicate, 0)

        def left(value: float) -> Bools:
            values = np.full(len(test), value, normal.input_dtype)
            return evaluate_predicates(normal, test, values)

        usual, sides = left(fill), (normal.left, normal.right)
        chain = np.arange(normal.n_nodes, dtype=np.int32)  # the leaf at its end
        chain[inner] = np.where(usual, *sides)[inner]
        while (chain[chain] != chain).any():
            chain = chain[chain]
        # those of roots, tree by tree, and then the others
        ends = np.append(chain[normal.tree_offset[:-1]], leaves)
        ends = ends[np.sort(np.unique(ends, return_index=True)[1])]
        number = np.empty(normal.n_nodes, np.int32)
        number[ends] = np.arange(len(ends))
        number = number[chain]
        depth = normal.node_depths()
        nodes = inner[np.lexsort((depth[inner], number[inner]))]
        first = np.searchsorted(number[nodes], np.arange(len(ends) + 1))
        column, inverse = np.unique(normal.feature[test[nodes]], return_inverse=True)
        way, nan = usual[nodes].astype(np.int32), left(np.nan)[nodes]
        other = number[np.where(usual, *sides[::-1])[nodes]]
        turns = way + 2 * nan, other, first[other], first[other + 1]

        # of the roots' chains, by column: tests that larger values fail, that smaller
        # ones pass, that NaN decides otherwise
        ids = np.arange(first[normal.n_trees])
        odd = ids[nan[ids] != way[ids]]
        group = 3 * inverse[ids] + 1 - way[ids]
        ids, group = np.append(ids, odd), np.append(group, 3 * inverse[odd] + 2)
        limit = normal.threshold[test[nodes]]
        bound = limit[ids]
        order = np.lexsort((np.where(group % 3 == 1, -bound, bound), group))
        starts = np.searchsorted(group[order], np.arange(3 * len(column) + 1))
        places = np.full(normal.n_features, -1)
        places[column] = np.arange(len(column))
        self.tests = np.zeros(normal.n_features, np.intp)  # of each column
        self.tests[column] = np.diff(starts[::3])
        self._leaf, values = ends, normal.leaf_value[normal.leaf[ends]]
        #: The tests that a row passes in all trees, if each leaf is as likely.
        begins = np.searchsorted(leaves, normal.tree_offset[:-1])
        of_tree = np.add.reduceat(depth[leaves], begins)
        self._way = float((of_tree / np.diff(begins, append=len(leaves))).sum())
        data = [
            np.append(part, np.zeros(1, dtype)).astype(dtype, copy=False)
            for part, dtype in (
                (places, np.int32),
                (starts, np.int32),
                (bound[order], normal.input_dtype),
                (np.stack([ids, number[nodes[ids]]], axis=1)[order].ravel(), np.int32),
                (inverse, np.int32),
                (limit, normal.input_dtype),
                (np.stack(turns, axis=1).ravel(), np.int32),
                (values.ravel(), values.dtype),
                (np.maximum(normal.tree_output, 0), np.int32),
                (normal.base, values.dtype),
            )
        ]
        sizes = (
            *(normal.n_features, normal.n_trees, len(column)),
            *(values.shape[1], normal.n_outputs),
        )
        self._known = *data, *sizes, float(fill)
        dtypes = normal.input_dtype.name, values.dtype.name
        self._walk = routine(_function, *dtypes, name == "lt")

    @staticmethod
    def supports(forest: Forest) -> bool:
        """Tell whether a forest has nothing but sums of numbers' tests.

        Where some take numbers near zero for missing, to all these are as zero is.
        """
        if forest.aggregate != "sum" or not forest.n_predicates:
            return False
        if (forest.comparison >= Comparison.EQ).any():
            return False
        tests = np.arange(forest.n_predicates)
        near = [-ZERO_THRESHOLD, 0.0, ZERO_THRESHOLD] if _near_zero(forest) else [0.0]
        rows = (np.full(len(tests), x, forest.input_dtype) for x in near)
        first, *others = (evaluate_predicates(forest, tests, values) for values in rows)
        return all(np.array_equal(answer, first) for answer in others)

    def pays(self, X: Any, n_columns: int) -> bool:
        """Tell whether CSR rows take less time than dense ones of the columns read.

        Nanoseconds of a row, fitted to 45 pairs of models and rows: sparse ones' for
        trees, entries, tests that they fail, and the chains behind; dense ones' for
        entries, tests that a row passes, and columns.
        """
        indices = X.indices[:: max(1, X.nnz // _SAMPLE)]
        entries, n_trees = X.nnz / X.shape[0], self._forest.n_trees
        counts = self.tests.take(indices, mode="clip")
        tests = entries * int(counts.sum()) / max(1, len(counts))
        depth = self._way / n_trees
        sparse = (
            3 * n_trees + 4 * entries + 12.5 * tests + min(tests, n_trees) * depth / 5
        )
        # whether kernels walk node by node; how much of a row leaves the second cache
        deep = min(1.0, max(0.0, depth - 12) / 20)
        far = min(1.0, max(0, n_columns - 1000) / 4000)
        dense = 6 * entries + (3 * deep + 4 * far) * self._way
        dense += n_columns * self._forest.input_dtype.itemsize / 8
        return bool(sparse < dense)

    def __call__(self, X: Any, threads: int | None, leaves: bool) -> Array | None:
        """Return scores or source leaves; None if a row's columns do not ascend."""
        forest, n = self._forest, X.shape[0]
        indptr = np.ascontiguousarray(X.indptr, np.int64)
        indices = np.ascontiguousarray(X.indices, np.int32)
        if indices is not X.indices and (indices != X.indices).any():
            return None
        with np.errstate(all="ignore"):
            data = np.ascontiguousarray(X.data, forest.input_dtype)
        if _near_zero(forest):
            data = np.where(abs(data) <= ZERO_THRESHOLD, 0, data)
        if not np.isnan(forest.missing_value):
            data = np.where(data == forest.missing_value, np.nan, data)
        if indptr[0] or indptr[-1] > min(len(data), len(indices)):
            return None
        if (indptr[1:] < indptr[:-1]).any():
            return None
        dtype = np.dtype(np.int32) if leaves else forest.accumulator_dtype
        shape = n, forest.n_trees if leaves else forest.n_outputs
        out, fine = np.empty(shape, dtype), np.ones(1, np.int64)
        ends = (0, out) if leaves else (out, 0)
        threads = 1 if n <= _ROWS else threads
        self._walk(threads, n, indptr, indices, data, fine, *ends, *self._known)
        if not fine[0]:
            return None
        if leaves:
            return forest.source_node[self._leaf][out]
        forest.finish(out)
        return out[:, 0] if forest.n_outputs == 1 else out


def _near_zero(forest: Forest) -> bool:
    """Tell whether some tests take numbers near zero for missing, as LightGBM does."""
    return bool((forest.missing == Missing.ZERO).any())


def _function(values: str, sums: str, less: bool) -> Function:
    from skforge.engine.sparse_function import function

    return function(np.dtype(values), np.dtype(sums), less, _ROWS)
