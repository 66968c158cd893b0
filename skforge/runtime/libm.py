"""Arithmetic of arrays with the bits of source libraries, which NumPy's own lacks.

They call the C library's scalar functions. NumPy's vector versions differ in the last
bit, so NumPy's loops that call a function for each element become ufuncs with them.

On 64-bit Arm, compilers make one instruction of ``a * b + c``, which rounds once (GCC's
``-ffp-contract=fast``, Clang's ``on``); the baseline of x86-64 has none.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.runtime.facts import c_address, machine
from skforge.runtime.python_objects import numpy_table


def _apply(name: str, values: NDArray[Any]) -> NDArray[Any]:
    function, _ = _ufunc(name)
    return function(np.ascontiguousarray(values))


#: The C library's function of each float64 value: ``expf``, say, of float32 values.
#: NumPy warns of overflow, so that callers set ``np.errstate``.
exp, expm1, log, log1p = (
    partial(_apply, name) for name in ("exp", "expm1", "log", "log1p")
)


def power(x: Any, y: Any) -> Any:
    """Return ``pow``, or ``powf`` of float32 numbers, which warns of overflow, too."""
    function, _ = _ufunc("pow", 2)
    return function(x, y)


#: In NumPy's table: PyUFunc_FromFuncAndData, and by the number of arguments the loops
#: PyUFunc_f_f and PyUFunc_d_d, PyUFunc_ff_f and PyUFunc_dd_d.
_MAKE, _LOOPS = 1, {1: (6, 5), 2: (14, 15)}


@cache
def _ufunc(name: str, n_arguments: int = 1) -> tuple[Any, Any]:
    table = numpy_table("_UFUNC_API")
    assert table is not None
    pair, pointer, number = ctypes.c_void_p * 2, ctypes.c_void_p, ctypes.c_int
    loops = pair(*(table[i] for i in _LOOPS[n_arguments]))
    functions = pair(c_address(f"{name}f"), c_address(name))
    kinds_of = "f" * (n_arguments + 1) + "d" * (n_arguments + 1)
    kinds = bytes(np.dtype(kind).num for kind in kinds_of)
    text = name.encode()
    types = *[pointer] * 3, *[number] * 4, *[ctypes.c_char_p] * 2, number
    make = ctypes.PYFUNCTYPE(ctypes.py_object, *types)(table[_MAKE])
    addresses = map(ctypes.addressof, (loops, functions))
    # two loops, one result, no identity
    ufunc = make(*addresses, kinds, 2, n_arguments, 1, -1, text, b"", 0)
    return ufunc, (loops, functions, kinds, text)


def on_arm() -> bool:
    return machine() in ("aarch64", "arm64")


def multiply_add(a: Any, b: Any, c: Any) -> Any:
    """Return an array times ``b``, plus ``c``, rounded as libraries do here.

    Arrays of a GPU are rounded twice everywhere.
    """
    if not on_arm() or not isinstance(a, np.ndarray) or np.all(b == 1):
        return a * b + c
    return fused(a, b, c)


def fused(a: Any, b: Any, c: Any) -> Any:
    """Return an array times ``b``, plus ``c``, rounded once."""
    return _fused(a.dtype.itemsize)(a, b, c).astype(a.dtype)


@cache
def _fused(size: int) -> Any:
    name, kind = ("fmaf", ctypes.c_float) if size == 4 else ("fma", ctypes.c_double)
    function = ctypes.CFUNCTYPE(kind, *[kind] * 3)(c_address(name))
    return np.frompyfunc(function, 3, 1)
