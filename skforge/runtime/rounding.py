"""Where source libraries have other bits: on 64-bit Arm.

Compilers make one instruction of ``a * b + c`` there, which rounds once (GCC's
``-ffp-contract=fast``, Clang's ``on``); the baseline of x86-64 has none.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from skforge.runtime.facts import c_library, machine


def on_arm() -> bool:
    return machine() in ("aarch64", "arm64")


def multiply_add(a: Any, b: Any, c: Any) -> Any:
    """Return an array times a number, plus ``c``, rounded as libraries do here.

    Arrays of a GPU are rounded twice everywhere.
    """
    if not on_arm() or b == 1 or not isinstance(a, np.ndarray):
        return a * b + c
    return _fused(a.dtype.itemsize)(a, b, c).astype(a.dtype)


@cache
def _fused(size: int) -> Any:
    name, kind = ("fmaf", ctypes.c_float) if size == 4 else ("fma", ctypes.c_double)
    function = getattr(c_library(), name)
    function.restype, function.argtypes = kind, [kind] * 3
    return np.frompyfunc(function, 3, 1)
