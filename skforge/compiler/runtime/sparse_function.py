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
    """Return the function for rows and sums of two types; tests are ``<`` or ``<=``.

    A thread takes ``step`` rows at a time.
    """
    value, sum_ = scalar_of(values_dtype), scalar_of(sums_dtype)
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
    with Builder() as b, b.parallel((n + (step - 1)) // step) as block:
        zero, one = b.const(0), b.const(1)
        at = b.alloc("at", I32, n_trees, alignment=0)  # each tree's leaf
        words = b.alloc("words", I64, n_words, alignment=0)
        n_groups = (n_words + 63) >> 6
        groups = b.alloc("groups", I64, n_groups, alignment=0)  # words that are not 0
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

        first_row = block * step
        with b.loop(first_row, (first_row + step).min(n)) as row:
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
    return Function("skf_sparse", params, b.finish())
