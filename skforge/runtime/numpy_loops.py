"""Where the loops of NumPy's ufuncs are, which compiled code calls.

A ufunc is a table of C functions, with the types that each takes.
"""

from __future__ import annotations

import ctypes
from typing import Literal, TypeAlias

import numpy as np

NumPyLoop: TypeAlias = Literal["power", "exp", "add"]

#: Offsets in PyUFuncObject on 64-bit machines.
_NIN, _NOUT, _LOOPS, _DATA, _COUNT, _NAME, _TYPES = 16, 20, 32, 40, 48, 56, 64


def address_of(name: NumPyLoop, dtype: str) -> int | None:
    """Return the address of a ufunc's loop over floats, or None.

    It takes an array of the addresses of operands and results, an array with their
    number, an array of strides in bytes, and a null pointer.
    """
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    function = getattr(np, name)
    ufunc, n_operands = id(function), function.nin
    counts = [ctypes.c_int.from_address(ufunc + at).value for at in (_NIN, _NOUT)]
    loops, data, text, types = (
        ctypes.c_int64.from_address(ufunc + at).value
        for at in (_LOOPS, _DATA, _NAME, _TYPES)
    )
    n = ctypes.c_int.from_address(ufunc + _COUNT).value
    known = counts == [n_operands, 1] and n == function.ntypes
    if not (known and loops and text and types):
        return None
    width = n_operands + 1
    kinds = ctypes.string_at(types, width * n)
    kind = bytes([np.dtype(dtype).num] * width)
    at = [kinds[width * k : width * (k + 1)] for k in range(n)].index(kind)
    loop = ctypes.c_int64.from_address(loops + 8 * at).value
    user_data = ctypes.c_int64.from_address(data + 8 * at).value if data else 0
    return loop if loop and not user_data else None
