"""Sums of vectors that leaves hold, in the order of the trees.

Columns are added in tiles, with all rows of a block before the next few trees, so that
the vectors of these trees stay in the second cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array
from skforge.engine.routines import routine

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Function

#: Columns of a tile, of narrow tables and of others; rows of a block; bytes of a few
#: trees' vectors.
NARROW, TILE, ROWS, NEAR = 8, 32, 1024, 1 << 18

#: Numbers that one instruction adds.
LANES = 8


class PayloadSums:
    """Vectors of leaves, (n_leaves, n_columns) float64, which rows add up."""

    def __init__(self, vectors: Array) -> None:
        n_leaves, self.width = vectors.shape
        tile = NARROW if self.width <= NARROW else TILE
        n_tiles = -(-self.width // tile)
        padded = np.zeros((n_leaves, n_tiles * tile))
        padded[:, : self.width] = vectors
        tiles = padded.reshape(n_leaves, n_tiles, tile).swapaxes(0, 1)
        self._table = np.ascontiguousarray(tiles)

    def __call__(
        self, leaves: NDArray[np.int32], start: float = 0.0, n_jobs: int | None = None
    ) -> Array:
        """Return ``start`` plus the vectors of each row's leaves, tree by tree."""
        n, n_trees = leaves.shape
        n_tiles, n_leaves, tile = self._table.shape
        out = np.full((n, n_tiles * tile), start)
        chunk = max(1, NEAR * n_trees // max(1, n_leaves * tile * 8))
        sizes = n, n_trees, n_leaves, n_tiles, chunk
        add = routine(_function, tile)
        add(1 if n <= ROWS else n_jobs, *sizes, leaves, self._table, out)
        return out[:, : self.width]


def _function(tile: int) -> Function:
    """Return the function for tables in tiles of so many columns."""
    from skforge.compiler.ir.lir.builder import Builder
    from skforge.compiler.ir.lir.nodes import F64, I32, I64, Buffer, Function, Value
    from skforge.compiler.ir.lir.types import Vec

    names = "n_rows", "n_trees", "n_leaves", "n_tiles", "chunk"
    sizes = [Value(name, I64) for name in names]
    n_rows, n_trees, n_leaves, n_tiles, chunk = sizes
    leaves, table, out = Buffer("leaves", I32), Buffer("table", F64), Buffer("out", F64)
    some, places = Vec(F64, LANES), range(0, tile, LANES)
    with Builder() as b, b.parallel((n_rows + (ROWS - 1)) // ROWS) as part:
        first = part * ROWS
        end = (first + ROWS).min(n_rows)
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
