"""The code that adds the vectors of a row's leaves; :mod:`.sums` describes it."""

from __future__ import annotations

from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import F64, I32, I64, Buffer, Function, Value
from skforge.compiler.ir.lir.types import Vec

#: Numbers that one instruction adds.
LANES = 8

SIZES = "n_rows", "step", "n_trees", "n_leaves", "n_tiles", "chunk"


def function(tile: int) -> Function:
    """Return the function for tables in tiles of so many columns."""
    sizes = [Value(name, I64) for name in SIZES]
    n_rows, step, n_trees, n_leaves, n_tiles, chunk = sizes
    leaves, table, out = Buffer("leaves", I32), Buffer("table", F64), Buffer("out", F64)
    some, places = Vec(F64, LANES), range(0, tile, LANES)
    with Builder() as b, b.parallel((n_rows + (step - 1)) // step) as part:
        first = part * step
        end = (first + step).min(n_rows)
        with b.loop(n_tiles) as k, b.loop(0, n_trees, chunk) as tree:
            behind = (tree + chunk).min(n_trees)
            with b.loop(first, end) as row:
                to = (row * n_tiles + k) * tile
                total = [out[to + v, some] for v in places]
                with b.loop(tree, behind, carry=total) as t:
                    leaf = leaves[row * n_trees + t].to(I64)
                    at = (k * n_leaves + leaf) * tile
                    for i, v in enumerate(places):
                        total[i] = total[i] + table[at + v, some]
                for i, v in enumerate(places):
                    out[to + v] = total[i]
    return Function("skf_leaf_sums", (*sizes, leaves, table, out), b.finish())
