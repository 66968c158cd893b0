"""The code that finds leaves by the entries of rows; :mod:`.sparse` describes it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import BOOL, I32, I64, Buffer, Function, Value
from skforge.compiler.ir.lir.types import scalar_of


def function(
    values_dtype: np.dtype[Any], sums_dtype: np.dtype[Any], less: bool, step: int
) -> Function:
    """Return the function for rows and sums of these types, ``step`` rows at a time."""
    value, sum_ = scalar_of(values_dtype), scalar_of(sums_dtype)
    n, result, leaves = (Value(name, I64) for name in ("n", "result", "leaves"))
    counts = "n_features", "n_trees", "n_columns", "width", "n_outputs"
    sizes = [Value(name, I64) for name in counts]
    n_features, n_trees, n_columns, width, n_outputs = sizes
    names = (
        *("indptr", "indices", "data", "fine", "places", "starts", "bounds", "ids"),
        *("columns", "limits", "turns", "leaf_values", "outputs", "base"),
    )
    first_kinds = I64, I32, value, I64, I32, I32, value, I32
    kinds = (*first_kinds, I32, value, I32, sum_, I32, sum_)
    fill = Value("fill", value)
    buffers = [Buffer(*pair) for pair in zip(names, kinds, strict=True)]
    indptr, indices, data, fine, places, starts, bounds, ids = buffers[:8]
    columns, limits, turns, values, outputs, base = buffers[8:]
    with Builder() as b, b.parallel((n + (step - 1)) // step) as block:
        zero, one = b.const(0), b.const(1)
        leaf_of = b.alloc("at", I32, n_trees, alignment=0)  # each tree's leaf
        # the trees whose first chain a row leaves, as bits, and the nodes where it does
        left, nodes = (
            b.alloc(n, k, n_trees) for n, k in (("left", I64), ("nodes", I32))
        )
        n_groups = (n_trees + 63) >> 6
        row_values = b.alloc("row_values", value, n_columns, alignment=0)
        n_words = (n_columns >> 6) + 1
        words = b.alloc("words", I64, n_words, alignment=0)  # which columns a row has

        def passes(x: Value, limit: Value) -> Value:
            return x < limit if less else x <= limit

        def fails(x: Value, limit: Value) -> Value:
            return x >= limit if less else x > limit

        def leave(begin: Value, end: Value, cond: Callable[[Value], Value]) -> None:
            cursor = [begin]
            with b.repeat(lambda: (cursor[0] < end) & cond(cursor[0]), cursor):
                node, tree = (ids[cursor[0] * 2 + k] for k in range(2))
                tree, group = tree.to(I64), tree.to(I64) >> 6
                bit = one << (tree & 63)
                first_of = b.select((left[group] & bit).eq(0), node, nodes[tree])
                nodes[tree], left[group] = first_of.min(node), left[group] | bit
                cursor[0] = cursor[0] + 1

        def is_absent(node: Value) -> Value:
            column = columns[node].to(I64)
            return ((words[column >> 6] >> (column & 63)) & 1).eq(0)

        def walk(chain: Value, node: Value, end: Value) -> Value:
            state = [chain, node, end]
            with b.repeat(lambda: state[1] < state[2], state):
                chain, node, end = state
                near = [node]
                with b.repeat(lambda: (near[0] < end) & is_absent(near[0]), near):
                    near[0] = near[0] + 1
                node = near[0]
                x = row_values[columns[node].to(I64)]
                way, *turn = (turns[node * 4 + k] for k in range(4))
                goes = passes(x, limits[node]).to(I32)
                goes = b.select(b.is_nan(x), way >> 1, goes)
                turns_off = (node < end) & goes.ne(way & 1)
                for k, stays in enumerate((chain, node + 1, end)):
                    state[k] = b.select(turns_off, turn[k].to(I64), stays)
            return state[0].to(I32)

        first_row = block * step
        with b.loop(first_row, (first_row + step).min(n)) as row:
            with b.loop(n_words) as k:
                words[k] = zero
            with b.loop(n_groups) as k:
                left[k] = zero
            with b.loop(n_trees) as t:
                leaf_of[t] = t.to(I32)
            state = [b.const(-1), b.const(True, BOOL)]
            with b.loop(indptr[row], indptr[row + 1], carry=state) as e:
                column, x = indices[e].to(I64), data[e]
                good = (column > state[0]) & (column < n_features)
                state[:] = column, state[1] & good
                index = places[b.select(good, column, zero)].to(I64)
                changes = b.compare("ne", x, fill, unordered=True)
                with b.when(good & (index >= 0) & changes):
                    word = index >> 6
                    words[word] = words[word] | (one << (index & 63))
                    row_values[index] = x
                    ends = [starts[index * 3 + k].to(I64) for k in range(4)]
                    above, below, odd = itertools.pairwise(ends)
                    leave(*above, lambda j: fails(x, bounds[j]))
                    leave(*below, lambda j: passes(x, bounds[j]))
                    leave(*odd, lambda j: b.is_nan(x))
            with b.when(~state[1]):
                fine[0] = zero
            with b.loop(n_groups) as k:
                bits = [left[k]]
                with b.repeat(lambda: bits[0].ne(0), bits):
                    tree = k * 64 + b.count_zeros(bits[0])
                    turn = nodes[tree].to(I64) * 4 + 1
                    leaf_of[tree] = walk(*(turns[turn + k].to(I64) for k in range(3)))
                    bits[0] = bits[0] & (bits[0] - 1)

            def give_leaves() -> None:
                out = b.view("leaves", I32, leaves)
                with b.loop(n_trees) as t:
                    out[row * n_trees + t] = leaf_of[t]

            def give_sum() -> None:
                total = [base[0]]
                with b.loop(n_trees, carry=total) as t:
                    total[0] = total[0] + values[leaf_of[t].to(I64)]
                b.view("sums", sum_, result)[row] = total[0]

            def give_sums() -> None:
                sums = b.view("sums", sum_, result)
                first = row * n_outputs
                with b.loop(n_outputs) as k:
                    sums[first + k] = base[k]
                with b.loop(n_trees) as t:
                    leaf, to = leaf_of[t].to(I64) * width, first + outputs[t].to(I64)
                    with b.loop(width) as k:
                        sums[to + k] = sums[to + k] + values[leaf + k]

            def give_scores() -> None:
                b.if_(n_outputs.eq(1), give_sum, give_sums)

            b.if_(result.eq(0), give_leaves, give_scores)
    rows = n, indptr, indices, data, fine, result, leaves
    params: tuple[Value | Buffer, ...] = (*rows, *buffers[4:], *sizes, fill)
    return Function("skf_sparse", params, b.finish())
