"""Scores of trees with linear models in their leaves: LightGBM's ``linear_tree``.

Kernels find the leaves, see :mod:`.by_tree`. The code here adds their models, 64 rows
at a time and tree by tree, so that rows and models stay in the cache.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from skforge._typing import Array
from skforge.compiler.forest.arrays import ZERO_THRESHOLD
from skforge.compiler.forest.forest import Forest
from skforge.compiler.runtime.cpu.programs import program
from skforge.compiler.runtime.cpu.threads import parallel_for_pointer
from skforge.compiler.runtime.kernels import address_of
from skforge.compiler.target import Target
from skforge.runtime.libm import on_arm

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Function

#: Rows that a thread takes at a time.
_ROWS = 64


class LinearLeaves:
    """The linear models of a forest's leaves.

    All models of a tree get as many terms, so that no branch depends on the leaf: the
    others multiply a column of zeros by -0.0, whose sum with a number is the number.
    """

    def __init__(self, forest: Forest) -> None:
        self._forest, models = forest, forest.leaf_linear
        count, features, factors = models[:, 1], models[:, 2::2], models[:, 3::2]
        absent = np.arange(features.shape[1]) >= count[:, np.newaxis]
        columns = np.unique(features[~absent])
        places = np.where(absent, len(columns), np.searchsorted(columns, features))
        terms = np.where(forest.leaf < 0, 0, count[forest.leaf])
        self._data = [
            np.ascontiguousarray(part, dtype)
            for part, dtype in (
                (models[:, 0], np.float64),
                (places, np.int32),
                (np.where(absent, -0.0, factors), np.float64),
                (forest.leaf_value, np.float64),
                (np.maximum.reduceat(terms, forest.tree_offset[:-1]), np.int32),
                (forest.tree_output, np.int32),
                (columns, np.int32),
            )
        ]
        addresses = [array.ctypes.data for array in self._data]
        sizes = (
            *(forest.n_features, forest.n_trees, forest.n_outputs),
            *(features.shape[1], len(columns)),
        )
        self._slots = struct.pack("12q", *addresses, *sizes)
        self._jit = _compiled()

    def __call__(
        self, rows: Array, places: Array, threads: int | None, by_tree: bool
    ) -> Array:
        """Return raw scores, or what each tree adds, for rows of ``leaf_value``."""
        forest, n = self._forest, len(rows)
        rows = np.ascontiguousarray(rows, np.float64)
        out = np.zeros((n, forest.n_trees if by_tree else forest.n_outputs))
        ends = [0, address_of(out)] if by_tree else [address_of(out), 0]
        slots = struct.pack("5q", n, address_of(rows), address_of(places), *ends)
        pfor, threads = (None, 1) if n <= _ROWS else parallel_for_pointer(threads)
        self._jit.function("skf_linear")(slots + self._slots, pfor, threads)
        return out[:, 0] if forest.n_outputs == 1 and not by_tree else out


@lru_cache(maxsize=1)
def _compiled() -> Any:
    return program(("linear",), _functions, Target.host())


def _functions() -> Sequence[Function]:
    from skforge.compiler.ir.lir.builder import Builder
    from skforge.compiler.ir.lir.nodes import (
        BOOL,
        F64,
        I32,
        I64,
        Buffer,
        Function,
        Value,
    )

    names = "n", "sums", "values", "n_features", "n_trees", "n_outputs", "width"
    sizes = [Value(name, I64) for name in (*names, "n_columns")]
    n, sums, values, n_features, n_trees, n_outputs, width, n_columns = sizes
    kinds = {
        **{"rows": F64, "places": I32, "constant": F64, "feature": I32},
        **{"factor": F64, "leaf_values": F64, "terms": I32, "outputs": I32},
        **{"columns": I32},
    }
    buffers = [Buffer(*pair) for pair in kinds.items()]
    rows, places, constant, feature, factor, leaf_values = buffers[:6]
    terms, outputs, columns = buffers[6:]
    with Builder() as b, b.parallel((n + (_ROWS - 1)) // _ROWS) as block:
        first = block * _ROWS
        last = (first + _ROWS).min(n)
        n_x = n_columns + 1
        x = b.alloc("x", F64, n_x * _ROWS, alignment=0)  # the columns of models
        with b.loop(first, last) as row:
            to = (row - first) * n_x
            with b.loop(n_columns) as k:
                number = rows[row * n_features + columns[k].to(I64)]
                near = b.magnitude(number) <= ZERO_THRESHOLD
                x[to + k] = b.select(near, 0.0, number)
            x[to + n_columns] = b.const(0.0, F64)

        def value(row: Value, tree: Value, n_terms: Value) -> Value:
            leaf = places[row * n_trees + tree].to(I64)
            at, of_row = leaf * width, (row - first) * n_x
            # the sum, and whether a feature is missing
            state = [constant[leaf], b.const(False, BOOL)]
            with b.loop(n_terms, carry=state) as k:
                number = x[of_row + feature[at + k].to(I64)]
                if on_arm():  # where LightGBM's steps are fused
                    total = b.multiply_add(factor[at + k], number, state[0])
                else:
                    total = state[0] + factor[at + k] * number
                state[:] = total, state[1] | b.is_nan(number)
            return b.select(state[1], leaf_values[leaf], state[0])

        def give(out: Buffer, by_tree: bool) -> None:
            with b.loop(n_trees) as tree:
                n_terms, output = terms[tree].to(I64), outputs[tree].to(I64)
                with b.loop(first, last) as row:
                    if by_tree:
                        out[row * n_trees + tree] = value(row, tree, n_terms)
                    else:
                        at = row * n_outputs + output
                        out[at] = out[at] + value(row, tree, n_terms)

        b.if_(
            sums.eq(0),
            lambda: give(b.view("of_trees", F64, values), True),
            lambda: give(b.view("scores", F64, sums), False),
        )
    of_call = n, rows, places, sums, values
    return [Function("skf_linear", (*of_call, *buffers[2:], *sizes[3:]), b.finish())]
