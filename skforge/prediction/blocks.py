"""Answers for large rows by blocks: a call needs memory for one block.

Arrays on disk (``numpy.memmap``), and frames whose copy would not fit in memory, are
read a block at a time; the answers go to ``out`` or to one new array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.engine.arrays import check_out, near_values
from skforge.rows.frames import kind_of

#: Values of a block, and of rows that are still converted at once. A block of float64
#: has 32 MB: enough to share among threads, and a copy of it stays small.
BLOCK_VALUES, MOST_VALUES = 1 << 22, 1 << 24


def is_large(X: Any, made: int = 0) -> bool:
    """Tell whether rows are an array or a frame of more than ``MOST_VALUES``.

    Or whether rows of ``made`` columns are made of it, of more than ``near_values``.
    """
    kind = type(X)
    is_array = kind is np.ndarray or kind is np.memmap
    if not is_array and kind_of(X) not in ("pandas", "polars"):
        return False
    if len(shape := X.shape) != 2:  # a frame counts its rows anew for each
        return False
    n, width = shape
    near = not made or n * made <= near_values()
    return not near or bool(n * width > MOST_VALUES)


def by_blocks(
    X: Any,
    answer: Callable[[Any], Any],
    out: Array | None = None,
    made: int = 0,
    most: int = 0,
) -> Array | None:
    """Write the answers to blocks of large rows to ``out``, or to a new array.

    Blocks have ``most`` rows at most, or as many as fit; rows of ``made`` columns may
    be made of them. Return None if ``answer`` does for a block, which the source must
    read. Raise ``InvalidInputError`` if ``out`` does not fit the answer; nothing is
    written then.
    """
    n_rows, width = X.shape
    # a multiple of the four values that CatBoost's exponential takes at a time, and of
    # the blocks of kernels
    fit = near_values() // made if made else BLOCK_VALUES // max(1, width)
    most = most or fit
    step = max(64, most // 64 * 64)
    X = X.view(np.ndarray) if type(X) is np.memmap else X
    rows = getattr(X, "iloc", X)
    for first in range(0, n_rows, step):
        place = slice(first, min(first + step, n_rows))
        part = answer(rows[place])
        if part is None:
            return None
        if out is None or first == 0:
            shape = (n_rows, *part.shape[1:])
            out = np.empty_like(part, shape=shape) if out is None else out
            check_out(out, shape, part.dtype)
        out[place] = part
    return out
