"""Plane operations of the interpreter, called by the interpreted program.

A plane is a bool array in natural row order, whatever order its buffers declare: row
order says how a backend lays rows out, not what they are. A table holds a plane in
rows / 8 bytes, bit i of byte j for row 8 j + i.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.oracles.lir_memory import Array, fault


def _plane_bytes(raw: Array, index: int, rows: int) -> Array:
    size = rows // 8
    start = index * size
    if not 0 <= start <= start + size <= len(raw):
        fault(f"plane {index} is outside the table's {len(raw) // size} planes")
    return raw[start : start + size]


def load_plane(raw: Array, index: int, rows: int) -> Array:
    """Return plane ``index`` of a table."""
    bits = np.unpackbits(_plane_bytes(raw, index, rows), bitorder="little")
    return bits.view(np.bool_)


def store_plane(raw: Array, index: int, plane: Array) -> None:
    """Write plane ``index`` of a table."""
    target = _plane_bytes(raw, index, len(plane))
    target[:] = np.packbits(plane, bitorder="little")


def fold_tree(
    depth: int, level: int, indices: Array, offset: int, raw: Array, rows: int
) -> Array:
    """Return each row's decision at ``level`` on its way down a complete tree."""
    nodes = (1 << depth) - 1
    if not 0 <= offset <= offset + nodes <= len(indices):
        fault(
            f"nodes {offset} to {offset + nodes} are outside the buffer's "
            f"{len(indices)} elements"
        )
    needed = indices[offset : offset + (1 << (level + 1)) - 1]
    table = np.stack([load_plane(raw, int(i), rows) for i in needed])
    node = np.zeros(rows, np.int64)
    row = np.arange(rows)
    for _ in range(level):
        node = 2 * node + 1 + table[node, row]
    decision: Array = table[node, row]
    return decision


def planes_to_index(planes: tuple[Array, ...], dtype: np.dtype[Any]) -> Array:
    """Return per row the number whose bits are ``planes``, the first the highest."""
    number = np.zeros(len(planes[0]), np.int64)
    for plane in planes:
        number = 2 * number + plane
    return number.astype(dtype)


def lookup(table: Array, base: int, index: Array) -> Array:
    """Return ``table[base + index[row]]`` for each row."""
    where = base + index.astype(np.int64)
    bad = (where < 0) | (where >= len(table))
    if bad.any():
        fault(
            f"index {int(where[bad][0])} is outside the buffer's {len(table)} elements"
        )
    return table[where]


def transpose_block(
    target: Array,
    source: Array,
    stride: int,
    first: int,
    n_rows: int,
    features: Array,
    n_features: int,
    rows: int,
) -> None:
    """Copy the columns of a block of rows; rows past the last repeat it."""
    if not 0 <= n_features <= len(features):
        fault(f"{n_features} features from a buffer of {len(features)} elements")
    if first < 0 or n_rows <= 0:
        fault(f"a block from row {first} of {n_rows} rows")
    row = np.minimum(first + np.arange(rows), n_rows - 1)
    for f in features[:n_features].astype(np.int64):
        where = row * stride + f
        bad = (where < 0) | (where >= len(source))
        if bad.any():
            fault(
                f"reads element {int(where[bad][0])} of a source of {len(source)} "
                f"elements (feature {f})"
            )
        start = int(f) * rows
        if not 0 <= start <= start + rows <= len(target):
            fault(f"feature {f} is outside the target's {len(target)} elements")
        target[start : start + rows] = source[where]


def unpermute_store(
    target: Array, index: int, source: Array, n_valid: int, rows: int
) -> None:
    """Write the first ``n_valid`` rows of a block."""
    if not 0 <= n_valid <= rows or rows > len(source):
        fault(f"{n_valid} of {rows} rows from a source of {len(source)} elements")
    if not 0 <= index <= index + n_valid <= len(target):
        fault(
            f"elements {index} to {index + n_valid} are outside the target's "
            f"{len(target)} elements"
        )
    target[index : index + n_valid] = source[:n_valid]
