"""Finds leaves by the entries of sparse rows: work for what a row has, not its width.

A row without entries ends in the same leaf of a tree as all such rows. The nodes passed
on the way are the leaf's *chain*; every node is in one chain, that of the leaf where a
row ends which has no further entries. Only an entry can make a row leave a chain::

    for each entry of the row:
        mark the nodes that send it where no row without the entry goes
    leaf = [the leaf of a row without entries, for each tree]
    for each marked node, those near the root first:
        if leaf[tree of the node] == chain of the node:
            leaf[tree of the node] = chain of the node's other child

Tests of a column are sorted by threshold, so that the marked ones come first. Nodes are
numbered by depth, and marked by bits, so that reading the bits in order sorts them.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.arrays import (
    ZERO_THRESHOLD,
    Array,
    Comparison,
    Missing,
)
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.reference import evaluate_predicates
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import BOOL, I32, I64, Buffer, Scalar, Value
from skforge.compiler.ir.lir.types import scalar_of
from skforge.compiler.passes.hir import normalize_predicates
from skforge.compiler.runtime.cpu.programs import program
from skforge.compiler.runtime.cpu.threads import parallel_for_pointer
from skforge.compiler.target import Target

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
        self._forest = forest
        normal, name = normalize_predicates.run(forest)
        inner, leaves = (np.flatnonzero(x) for x in (normal.leaf < 0, normal.leaf >= 0))
        depth = normal.node_depths()[inner]
        inner = inner[np.argsort(depth, kind="stable")]
        test = normal.predicate[inner]

        def left(value: float) -> NDArray[np.bool_]:
            values = np.full(len(test), value, normal.input_dtype)
            return evaluate_predicates(normal, test, values)

        usual, children = left(fill), (normal.left[inner], normal.right[inner])
        chain = np.empty(normal.n_nodes, np.int32)  # the leaf at its end
        chain[leaves] = leaves
        chain[inner] = np.where(usual, *children)
        while (chain[chain] != chain).any():
            chain = chain[chain]
        number = np.zeros(normal.n_nodes, np.int32)
        number[leaves] = np.arange(len(leaves))
        first_leaf = np.searchsorted(leaves, normal.tree_offset[:-1])
        tree = np.repeat(np.arange(normal.n_trees), np.diff(normal.tree_offset))
        other = chain[np.where(usual, *children[::-1])]
        nodes = np.stack([tree[inner], number[chain[inner]], number[other]], axis=1)

        # by column: tests that larger values fail, that smaller ones pass, that NaN
        # decides otherwise
        odd = np.flatnonzero(left(np.nan) != usual)
        ids = np.append(np.arange(len(inner)), odd)
        column, place = np.unique(normal.feature[test], return_inverse=True)
        group = place.astype(np.int64) * 3
        group = np.append(group + ~usual, group[odd] + 2)
        bound = np.append(normal.threshold[test], np.zeros(len(odd)))
        order = np.lexsort((np.where(group % 3 == 1, -bound, bound), group))
        starts = np.searchsorted(group[order], np.arange(3 * len(column) + 1))
        places = np.full(normal.n_features, -1)
        places[column] = np.arange(len(column))
        self.tests = np.zeros(normal.n_features, np.intp)  # of each column
        self.tests[column] = np.diff(starts[::3])
        self._leaf = leaves
        #: The tests that a row passes in all trees, if each leaf is as likely.
        depth = np.add.reduceat(normal.node_depths()[leaves], first_leaf)
        self._way = float((depth / np.diff(first_leaf, append=len(leaves))).sum())
        self._data = [
            np.append(part, np.zeros(1, dtype)).astype(dtype, copy=False)
            for part, dtype in (
                (places, np.int32),
                (starts, np.int32),
                (bound[order], normal.input_dtype),
                (ids[order], np.int32),
                (np.pad(nodes, ((0, 0), (0, 1))).ravel(), np.int32),
                (number[chain[normal.tree_offset[:-1]]], np.int32),
                (
                    normal.leaf_value[normal.leaf[leaves]].ravel(),
                    normal.leaf_value.dtype,
                ),
                (np.maximum(normal.tree_output, 0), np.int32),
                (normal.base, normal.leaf_value.dtype),
            )
        ]
        sizes = (
            *(normal.n_features, normal.n_trees, len(inner) // 64 + 1),
            *(normal.leaf_value.shape[1], normal.n_outputs),
        )
        addresses = [array.ctypes.data for array in self._data]
        self._slots = struct.pack(f"{len(addresses) + 5}qd", *addresses, *sizes, fill)
        dtypes = normal.input_dtype.name, normal.leaf_value.dtype.name
        self._jit = _compiled(*dtypes, name == "lt")

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
        answers = [
            evaluate_predicates(
                forest, tests, np.full(len(tests), x, forest.input_dtype)
            )
            for x in near
        ]
        return all(np.array_equal(answer, answers[0]) for answer in answers)

    def pays(self, X: Any, n_columns: int) -> bool:
        """Tell whether CSR rows take less time than dense ones of the columns read.

        Nanoseconds of a row, fitted to 40 pairs of models and rows: here for trees,
        entries and tests; there for entries, tests that a row passes, and columns.
        """
        indices = X.indices[:: max(1, X.nnz // _SAMPLE)]
        entries = X.nnz / X.shape[0]
        found = self.tests.take(indices, mode="clip")
        tests = entries * found.mean() if len(found) else 0.0
        here = 3 * self._forest.n_trees + 5 * entries
        here += 4 * tests + 7 * min(tests, 2 * entries)
        share = min(1.0, n_columns / 1000)  # of a row that lies outside of the cache
        there = (10 + 15 * share) * entries + share * self._way
        there += n_columns * self._forest.input_dtype.itemsize / 8
        return bool(here < there)

    def __call__(self, X: Any, threads: int | None, leaves: bool) -> Array | None:
        """Return raw scores of CSR rows, or numbers of the source's leaves.

        None if a row's columns are not in ascending order.
        """
        forest, n = self._forest, X.shape[0]
        indptr = np.ascontiguousarray(X.indptr, np.int64)
        indices = np.ascontiguousarray(X.indices, np.int32)
        if indices is not X.indices and (indices != X.indices).any():
            return None
        with np.errstate(over="ignore"):
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
        head = [n, *(a.ctypes.data for a in (indptr, indices, data, fine))]
        ends = [0, out.ctypes.data] if leaves else [out.ctypes.data, 0]
        slots = struct.pack("7q", *head, *ends) + self._slots
        pfor, threads = (None, 1) if n <= _ROWS else parallel_for_pointer(threads)
        self._jit.function("skf_sparse")(slots, pfor, threads)
        if not fine[0]:
            return None
        if leaves:
            return forest.source_node[self._leaf][out]
        if forest.divisor != 1:
            out /= forest.divisor
        return out[:, 0] if forest.n_outputs == 1 else out


def _near_zero(forest: Forest) -> bool:
    """Tell whether some tests take numbers near zero for missing, as LightGBM does."""
    return bool((forest.missing == Missing.ZERO).any())


@lru_cache(maxsize=8)
def _compiled(values: str, sums: str, less: bool) -> Any:
    def write() -> list[lir.Function]:
        types = scalar_of(np.dtype(values)), scalar_of(np.dtype(sums))
        return [_function(*types, less)]

    facts = "sparse", values, sums, str(less)
    return program(facts, write, Target.host())


def _function(value: Scalar, sum_: Scalar, less: bool) -> lir.Function:
    """Return the function for rows and sums of two types; tests are ``<`` or ``<=``."""
    n, result, leaves = (Value(name, I64) for name in ("n", "result", "leaves"))
    counts = "n_features", "n_trees", "n_words", "width", "n_outputs"
    sizes = [Value(name, I64) for name in counts]
    n_features, n_trees, n_words, width, n_outputs = sizes
    names = (
        *("indptr", "indices", "data", "fine", "places", "starts", "bounds", "ids"),
        *("nodes", "usual", "leaf_values", "outputs", "base"),
    )
    kinds = I64, I32, value, I64, I32, I32, value, I32, I32, I32, sum_, I32, sum_
    fill = Value("fill", value)
    buffers = [Buffer(*pair) for pair in zip(names, kinds, strict=True)]
    indptr, indices, data, fine, places, starts, bounds = buffers[:7]
    ids, nodes, usual, values, outputs, base = buffers[7:]
    with Builder() as b, b.parallel((n + (_ROWS - 1)) // _ROWS) as block:
        zero, one = b.const(0), b.const(1)
        at = b.alloc("at", I32, n_trees)  # each tree's leaf
        words, n_groups = b.alloc("words", I64, n_words), (n_words + 63) >> 6
        groups = b.alloc("groups", I64, n_groups)  # words that are not 0
        for bits, count in ((words, n_words), (groups, n_groups)):
            with b.loop(count) as k:
                bits[k] = zero

        def mark(first: Value, end: Value, cond: Callable[[Value], Value]) -> None:
            place = [first]
            with b.repeat(lambda: (place[0] < end) & cond(place[0]), place):
                node = ids[place[0]].to(I64)
                word = node >> 6
                words[word] = words[word] | (one << (node & 63))
                group = word >> 6
                groups[group] = groups[group] | (one << (word & 63))
                place[0] = place[0] + 1

        def each_bit(bits: Buffer, k: Value, use: Callable[[Value], None]) -> None:
            left = [bits[k]]
            bits[k] = zero
            with b.repeat(lambda: left[0].ne(0), left):
                use(k * 64 + b.count_zeros(left[0]))
                left[0] = left[0] & (left[0] - 1)

        def leave(node: Value) -> None:
            tree, chain, other = (nodes[node * 4 + k] for k in range(3))
            leaf = at[tree.to(I64)]
            at[tree.to(I64)] = b.select(leaf.eq(chain), other, leaf)

        first_row = block * _ROWS
        with b.loop(first_row, (first_row + _ROWS).min(n)) as row:
            with b.loop(n_trees) as t:
                at[t] = usual[t]
            state = [b.const(-1), b.const(True, BOOL)]
            with b.loop(indptr[row], indptr[row + 1], carry=state) as e:
                column, x = indices[e].to(I64), data[e]
                good = (column > state[0]) & (column < n_features)
                state[:] = column, state[1] & good
                place = places[b.select(good, column, zero)]
                changes = b.compare("ne", x, fill, unordered=True)
                with b.when(good & (place >= 0) & changes):
                    first = place.to(I64) * 3
                    ends = [starts[first + k].to(I64) for k in range(4)]
                    above, below, odd = itertools.pairwise(ends)
                    mark(*above, lambda j: x >= bounds[j] if less else x > bounds[j])
                    mark(*below, lambda j: x < bounds[j] if less else x <= bounds[j])
                    mark(*odd, lambda j: b.is_nan(x))
            with b.when(~state[1]):
                fine[0] = zero
            with b.loop(n_groups) as g:
                each_bit(groups, g, lambda w: each_bit(words, w, leave))

            def give_leaves() -> None:
                out = b.view("leaves", I32, leaves)
                with b.loop(n_trees) as t:
                    out[row * n_trees + t] = at[t]

            def give_sum() -> None:
                total = [base[0]]
                with b.loop(n_trees, carry=total) as t:
                    total[0] = total[0] + values[at[t].to(I64)]
                b.view("sums", sum_, result)[row] = total[0]

            def give_sums() -> None:
                sums = b.view("sums", sum_, result)
                first = row * n_outputs
                with b.loop(n_outputs) as k:
                    sums[first + k] = base[k]
                with b.loop(n_trees) as t:
                    leaf, to = at[t].to(I64) * width, first + outputs[t].to(I64)
                    with b.loop(width) as k:
                        sums[to + k] = sums[to + k] + values[leaf + k]

            def give_scores() -> None:
                b.if_(n_outputs.eq(1), give_sum, give_sums)

            b.if_(result.eq(0), give_leaves, give_scores)
    given = n, indptr, indices, data, fine, result, leaves
    params: tuple[Value | Buffer, ...] = (*given, *buffers[4:], *sizes, fill)
    return lir.Function("skf_sparse", params, b.finish())
