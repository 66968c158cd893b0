"""The operations that functions of scores are written in, for arrays.

Scores are rows and columns: an array on the host or on a GPU, or
:class:`~skforge.compiler.outputs.text.Terms` of one row. Both have Python's operators;
``on`` has the other operations: a :class:`ArrayLibrary`, or a
:class:`~skforge.compiler.outputs.text.Code`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from skforge.compiler.outputs import libm


def total(x: Any, dtype: str) -> Any:
    if isinstance(x, np.ndarray) and x.shape[1] > 2 * len(x):
        # In the same order, without a Python operation for each column.
        return np.add.accumulate(x, axis=1, dtype=dtype)[:, -1:]
    result = x[:, :1].astype(dtype)
    for k in range(1, x.shape[1]):
        result = result + x[:, k : k + 1]
    return result


@dataclass(frozen=True, slots=True)
class ArrayLibrary:
    """The operations of an array library: NumPy, or a device's own.

    NumPy's ``exp`` and ``log1p`` are the C library's. Results of a row have one column.
    """

    xp: Any
    exp: Callable[[Any], Any]
    log1p: Callable[[Any], Any]
    sort: Callable[[Any], Any]

    def each_column(self, function: Callable[[Any], Any], x: Any) -> Any:
        return function(x)

    def where(self, test: Any, a: Any, b: Any) -> Any:
        dtype = next(x.dtype for x in (a, b) if hasattr(x, "dtype"))
        return self.xp.where(test, *(self.xp.asarray(x, dtype) for x in (a, b)))

    def least(self, x: Any, limit: float) -> Any:
        return self.xp.minimum(x, x.dtype.type(limit))

    def join(self, a: Any, b: Any) -> Any:
        return self.xp.concatenate((a, b), axis=1)

    def index(self, k: int, x: Any) -> Any:
        return self.xp.full((len(x), 1), k, "int64")

    def add_offsets(self, x: Any, offsets: tuple[float, ...]) -> Any:
        known = np.array(offsets, dtype=x.dtype)
        result = x + known
        result[:, np.isnan(known)] = 0
        return result

    def greatest(self, x: Any) -> Any:
        """Return each row's greatest float32, at least -FLT_MAX, without NaN."""
        largest = np.fmax(np.fmax.reduce(x, axis=1), LOWEST)
        return largest[:, np.newaxis]


#: The lowest finite float32.
LOWEST = np.finfo(np.float32).min

#: NumPy with the C library's ``exp``.
HOST = ArrayLibrary(np, libm.exp, libm.log1p, partial(np.sort, axis=1, kind="stable"))


def library_of(xp: Any) -> ArrayLibrary:
    return ArrayLibrary(xp, xp.exp, xp.log1p, partial(xp.sort, axis=1))
