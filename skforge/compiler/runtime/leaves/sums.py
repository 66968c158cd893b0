"""Sums of vectors that leaves hold, in the order of the trees.

Columns are added in tiles, with all rows of a block before the next few trees, so that
the vectors of these trees stay in the second cache.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array
from skforge.compiler.runtime.cpu.programs import program
from skforge.compiler.runtime.cpu.threads import parallel_for_pointer
from skforge.compiler.runtime.kernels import address_of
from skforge.compiler.target import Target

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Function

#: Columns of a tile, of narrow tables and of others; rows of a block; bytes of a few
#: trees' vectors.
NARROW, TILE, ROWS, NEAR = 8, 32, 1024, 1 << 18


class PayloadSums:
    """Vectors of leaves, (n_leaves, n_columns) float64, which rows add up."""

    def __init__(self, vectors: Array) -> None:
        self.width = vectors.shape[1]
        self._tile = NARROW if self.width <= NARROW else TILE
        n_tiles = -(-self.width // self._tile)
        self._table = np.zeros((n_tiles, len(vectors), self._tile))
        for k, tile in enumerate(self._table):
            part = vectors[:, k * self._tile : (k + 1) * self._tile]
            tile[:, : part.shape[1]] = part

    def __call__(
        self, leaves: NDArray[np.int32], start: float = 0.0, n_jobs: int | None = None
    ) -> Array:
        """Return ``start`` plus the vectors of each row's leaves, tree by tree."""
        n, n_trees = leaves.shape
        n_tiles, n_leaves, tile = self._table.shape
        out = np.full((n, n_tiles * tile), start)
        chunk = max(1, NEAR * n_trees // max(1, n_leaves * tile * 8))
        pfor, threads = (None, 1) if n <= ROWS else parallel_for_pointer(n_jobs)
        sizes = n, ROWS, n_trees, n_leaves, n_tiles, chunk
        arrays = map(address_of, (leaves, self._table, out))
        slots = struct.pack("9q", *sizes, *arrays)
        _compiled(tile).function("skf_leaf_sums")(slots, pfor, threads)
        return out[:, : self.width]


@lru_cache(maxsize=2)
def _compiled(tile: int) -> Any:
    def write() -> Sequence[Function]:
        from skforge.compiler.runtime.leaves.sums_function import function

        return [function(tile)]

    return program(("leaf sums", str(tile)), write, Target.host())
