"""The operations that functions of scores are written in, for arrays.

Scores are rows and columns: an array on the host or on a GPU, or
:class:`~skforge.engine.entry.terms.RowTerms` of one row. Both have Python's
operators; ``on`` has the other operations: an :class:`ArrayLibrary`, or a
:class:`~skforge.engine.entry.terms.TermLibrary`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.runtime.libm import exp, log1p
from skforge.runtime.numpy_loops import NumPyLoop, address_of

#: XGBoost clips the exponent in its logistic function: expf overflows above this.
SIGMOID_LIMIT = 88.7


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
HOST = ArrayLibrary(np, exp, log1p, partial(np.sort, axis=1, kind="stable"))


def library_of(xp: Any) -> ArrayLibrary:
    return ArrayLibrary(xp, xp.exp, xp.log1p, partial(xp.sort, axis=1))


# NumPy computes powers and exponentials with vector code of its own, whose last bit
# differs from the C library's, and adds in an order of its own. So code calls NumPy's
# loops, which are used only if they match its results for many values.


@lru_cache(maxsize=6)
def numpy_loop(name: NumPyLoop, dtype: str = "float64") -> int | None:
    """Return the address of a ufunc's loop over floats, or None."""
    loop = address_of(name, dtype)
    return loop if loop is not None and _agrees(name, loop, dtype) else None


def _agrees(name: NumPyLoop, loop: int, dtype: str) -> bool:
    drawn = np.random.default_rng(0).random(4096)
    edges = np.array([0.0, -0.0, 1.0, 0.5, 2.0, 1074.0, np.inf, -np.inf, np.nan])
    values = -np.concatenate([drawn, 40 * drawn, 1e-6 * drawn, edges]).astype(dtype)
    sizes = [values[:n] for n in (*range(2, 20), 31, 33, 64, 127, 130, 300)]
    with np.errstate(all="ignore"):
        for part in (values, *sizes, *values[:20, np.newaxis], values[-9:]):
            match name:
                case "power":
                    wanted = 2**part
                case "exp":
                    wanted = np.exp(part)
                case "add":
                    wanted = np.add.reduce(part[np.newaxis], axis=1)
            if not np.array_equal(_run(name, loop, part), wanted, equal_nan=True):
                return False
    return True


def _run(name: NumPyLoop, loop: int, values: NDArray[Any]) -> NDArray[Any]:
    many = values.copy()
    one = np.array([2.0 if name == "power" else 0.0], values.dtype)
    operands = {
        "power": (one, many, many),
        "exp": (many, many),
        "add": (one, many, one),
    }[name]
    numbers = ctypes.c_int64 * len(operands)
    places = numbers(*(operand.ctypes.data for operand in operands))
    count = (ctypes.c_int64 * 1)(len(many))
    steps = numbers(*(many.itemsize * (operand is many) for operand in operands))
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(loop)
    function(places, count, steps, None)
    return operands[-1]
