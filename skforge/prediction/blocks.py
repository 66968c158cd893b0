"""Answers for large rows by blocks, so that a call needs memory for one block.

Arrays on disk (``numpy.memmap``), and frames whose copy would not fit in memory, are
read a block at a time; the answers go to ``out`` or to one new array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.runtime.out import check_out

Array = NDArray[Any]

#: Values of a block, and of rows that are still converted at once. A block of float64
#: has 32 MB: enough to share among threads, and a copy of it stays small.
BLOCK_VALUES, MOST_VALUES = 1 << 22, 1 << 24


def is_large(X: Any) -> bool:
    """Tell whether rows are an array or a frame of more than ``MOST_VALUES``."""
    kind = type(X)
    if kind is not np.ndarray and kind is not np.memmap and not _is_frame(kind):
        return False
    shape = X.shape
    return len(shape) == 2 and shape[0] * shape[1] > MOST_VALUES


def _is_frame(kind: type) -> bool:
    library = kind.__module__.partition(".")[0]
    return kind.__name__ == "DataFrame" and library in ("pandas", "polars")


def row_blocks(X: Any) -> Iterator[tuple[slice, Any]]:
    """Yield the rows of an array or a frame by blocks, with each block's place."""
    step = max(1, BLOCK_VALUES // max(1, X.shape[1]))
    X = X.view(np.ndarray) if type(X) is np.memmap else X
    rows = getattr(X, "iloc", X)
    for first in range(0, X.shape[0], step):
        place = slice(first, min(first + step, X.shape[0]))
        yield place, rows[place]


def joined(parts: Iterator[tuple[slice, Array]], n_rows: int, out: Any = None) -> Array:
    """Write parts of an answer to ``out``, or to a new array.

    Raises
    ------
    InvalidInputError
        If ``out`` does not fit the answer; nothing is written then.
    """
    for place, part in parts:
        if place.start == 0:
            shape = (n_rows, *part.shape[1:])
            if out is None:
                out = np.empty(shape, part.dtype)
            check_out(out, shape, part.dtype)
        out[place] = part
    made: Array = out
    return made


Part = Callable[[Any], Any]


def by_blocks(X: Any, answer: Part, out: Any = None) -> Array | None:
    """Return the answer for large rows, or None if the source must answer.

    ``answer`` takes a block and returns its answer, or None for rows that the source
    must read.
    """

    def parts() -> Iterator[tuple[slice, Array]]:
        for place, rows in row_blocks(X):
            part = answer(rows)
            if part is None:
                raise _LeftError
            yield place, part

    try:
        return joined(parts(), X.shape[0], out)
    except _LeftError:
        return None


class _LeftError(Exception):
    """A block is left to the source."""
