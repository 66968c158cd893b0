"""Rows as they may lie in memory, by name: made anew by each call."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Layouts = dict[str, Callable[[], np.ndarray]]


def _far_apart(rows: np.ndarray) -> np.ndarray:
    n, width = rows.shape
    wide = np.full((90 * n, width + 20), np.nan, rows.dtype)
    wide[::90, 7 : 7 + width] = rows
    return wide[::90, 7 : 7 + width]


def _read_only(rows: np.ndarray) -> np.ndarray:
    rows = rows.copy()
    rows.flags.writeable = False
    return rows


def _unaligned(rows: np.ndarray) -> np.ndarray:
    made = np.zeros(rows.nbytes + 1, np.uint8)[1:].view(rows.dtype).reshape(rows.shape)
    made[:] = rows
    assert not made.flags.aligned
    return made


def _of_records(rows: np.ndarray) -> np.ndarray:
    """Return rows an odd number of bytes apart: no whole number of elements."""
    records = np.zeros(len(rows), [("x", rows.dtype, rows.shape[1:]), ("y", "u1")])
    records["x"] = rows
    return records["x"]


def strided(rows: np.ndarray) -> Layouts:
    """Return layouts that compiled code reads where the rows lie."""
    return {
        "contiguous": lambda: rows,
        "read-only": lambda: _read_only(rows),
        "backwards": lambda: rows[::-1],
        "far apart": lambda: _far_apart(rows),
        "one row repeated": lambda: np.broadcast_to(rows[0], (7, rows.shape[1])),
        "Fortran order": lambda: np.asfortranarray(rows),
        "columns backwards": lambda: rows[:, ::-1],
        "every other column": lambda: np.repeat(rows, 2, axis=1)[:, ::2],
    }


def converted(rows: np.ndarray) -> Layouts:
    """Return layouts and dtypes that are copied before compiled code reads them."""
    return {
        "unaligned": lambda: _unaligned(rows),
        "rows of records": lambda: _of_records(rows),
        "another byte order": lambda: rows.astype(rows.dtype.newbyteorder()),
        "float16": lambda: rows.astype(np.float16),
        "longdouble": lambda: rows.astype(np.longdouble),
        "int64": lambda: (rows * 3).astype(np.int64),
        "bool": lambda: rows > 0,
        "objects": lambda: rows.astype(object),
    }
