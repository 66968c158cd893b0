"""Scores of trees with linear models in their leaves: LightGBM's ``linear_tree``.

Kernels find the leaves, see :mod:`.by_tree`. The code here adds their models, 64 rows
at a time and tree by tree, so that rows and models stay in the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from skforge._typing import Array
from skforge.engine.routines import routine
from skforge.forest.arrays import ZERO_THRESHOLD
from skforge.forest.forest import Forest
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
        self._known: list[int | Array] = [
            *(forest.n_features, forest.n_trees, forest.n_outputs),
            *(features.shape[1], len(columns)),
            *(np.ascontiguousarray(models[:, 0]), places.astype(np.int32)),
            *(np.where(absent, -0.0, factors), forest.leaf_value, forest.tree_output),
            np.maximum.reduceat(terms, forest.tree_offset[:-1]).astype(np.int32),
            columns.astype(np.int32),
        ]

    def __call__(
        self, rows: Array, leaves: Array, threads: int | None, by_tree: bool
    ) -> Array:
        """Return raw scores, or what each tree adds, for rows of ``leaf_value``."""
        forest, n = self._forest, len(rows)
        rows = np.ascontiguousarray(rows, np.float64)
        out = np.zeros((n, forest.n_trees if by_tree else forest.n_outputs))
        add = routine(_function, by_tree)
        add(1 if n <= _ROWS else threads, n, rows, leaves, out, *self._known)
        return out[:, 0] if forest.n_outputs == 1 and not by_tree else out


def _function(by_tree: bool) -> Function:
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

    n = Value("n", I64)
    given = {"rows": F64, "leaves": I32, "out": F64}
    rows, leaves, out = of_call = [Buffer(*pair) for pair in given.items()]
    names = "n_features", "n_trees", "n_outputs", "width", "n_columns"
    sizes = [Value(name, I64) for name in names]
    n_features, n_trees, n_outputs, width, n_columns = sizes
    kinds = {
        **{"constant": F64, "place": I32, "factor": F64, "leaf_values": F64},
        **{"outputs": I32, "terms": I32, "columns": I32},
    }
    known = [Buffer(*pair) for pair in kinds.items()]
    constant, place, factor, leaf_values, outputs, terms, columns = known
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
        with b.loop(n_trees) as tree:
            n_terms, output = terms[tree].to(I64), outputs[tree].to(I64)
            with b.loop(first, last) as row:
                leaf = leaves[row * n_trees + tree].to(I64)
                at, of_row = leaf * width, (row - first) * n_x
                # the sum, and whether a feature is missing
                state = [constant[leaf], b.const(False, BOOL)]
                with b.loop(n_terms, carry=state) as k:
                    number = x[of_row + place[at + k].to(I64)]
                    if on_arm():  # where LightGBM's steps are fused
                        total = b.multiply_add(factor[at + k], number, state[0])
                    else:
                        total = state[0] + factor[at + k] * number
                    state[:] = total, state[1] | b.is_nan(number)
                value = b.select(state[1], leaf_values[leaf], state[0])
                if by_tree:
                    out[row * n_trees + tree] = value
                else:
                    to = row * n_outputs + output
                    out[to] = out[to] + value
    return Function("skf_linear", (n, *of_call, *sizes, *known), b.finish())
