"""``.npy`` files of plain values, read without NumPy's own reader.

That one evaluates the header and takes the memory that it speaks of; both are no good
for files that somebody else may have written.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

# The one text that NumPy writes.
_HEADER = re.compile(
    rb"\{'descr': '([<|][biufSU]\d{1,6})', 'fortran_order': False, "
    rb"'shape': \(((?:\d{1,15}, ){0,8}\d{1,15}|\d{1,15},|)\), \} *\n?"
)


def plain_array(payload: bytes) -> NDArray[Any] | None:
    """Return the array of a ``.npy`` file, read-only; None if it is no plain one.

    Nothing of the header is evaluated and no memory is taken: the size it states has
    to fit the bytes that are there.
    """
    if payload[:8] != npy.magic(1, 0):
        return None
    start = 10 + int.from_bytes(payload[8:10], "little")
    found = _HEADER.fullmatch(payload[10:start])
    dtype = None if found is None else plain_dtype(found[1].decode())
    if found is None or dtype is None:
        return None
    shape = tuple(int(n) for n in found[2].decode().split(",") if n)
    if start + prod(shape) * dtype.itemsize != len(payload):
        return None
    return np.frombuffer(payload, dtype, offset=start).reshape(shape)


def plain_dtype(text: Any) -> np.dtype[Any] | None:
    """Return a dtype of plain values, None for every other text."""
    if not isinstance(text, str) or len(text) > 12:
        return None
    try:
        dtype = np.dtype(text)
    except (TypeError, ValueError, SyntaxError):
        return None
    plain = dtype.kind in "biufSU" and dtype.str == text and dtype.itemsize > 0
    return dtype if plain else None
