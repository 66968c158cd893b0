"""Plane operations of the interpreter, called by the interpreted program.

A plane is a bool array. A table holds a plane in rows / 8 bytes, bit i of byte j for
row 8 j + i.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.oracles.lir_memory import Array, fault


def _plane_bytes(raw: Array, index: int, rows: int, words: bool) -> Array:
    size = rows // 8
    start = index * (8 if words else size)
    if not 0 <= start <= start + size <= len(raw):
        fault(f"plane {index} is outside the table's {len(raw) // size} planes")
    return raw[start : start + size]


def load_plane(raw: Array, index: int, rows: int, words: bool) -> Array:
    """Return plane ``index`` of a table, or the one that begins with this word."""
    bits = np.unpackbits(_plane_bytes(raw, index, rows, words), bitorder="little")
    return bits.view(np.bool_)


def store_plane(raw: Array, index: int, plane: Array, words: bool) -> None:
    """Write plane ``index`` of a table, or the one that begins with this word."""
    target = _plane_bytes(raw, index, len(plane), words)
    target[:] = np.packbits(plane, bitorder="little")


def planes_to_index(planes: tuple[Array, ...], dtype: np.dtype[Any]) -> Array:
    """Return per row the number whose bits are ``planes``, the first the highest."""
    number = np.zeros(len(planes[0]), np.int64)
    for plane in planes:
        number = 2 * number + plane
    return number.astype(dtype)
