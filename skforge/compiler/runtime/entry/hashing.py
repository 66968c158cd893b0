"""Rows with categories, read by compiled code: hashes of texts, and what they mean.

Python takes microseconds to hash a text as CatBoost does; compiled code takes ten
nanoseconds, and some more to look a combination of hashes up.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.categories import HashedCategories
from skforge.compiler.runtime.cpu.programs import program
from skforge.compiler.target import Target
from skforge.runtime.python_objects import addresses, is_known_python

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Routine

Array = NDArray[Any]

_FUNCTIONS = {
    "skf_utf8": "PyUnicode_AsUTF8AndSize",
    "skf_long": "PyLong_AsLongLong",
    "skf_number": "PyFloat_AsDouble",
    "skf_error": "PyErr_Occurred",
    "skf_clear": "PyErr_Clear",
}
_KINDS = {kind.__name__: kind for kind in (str, float, int, bool)}


def _routines() -> Sequence[Routine]:
    from skforge.compiler.runtime.entry.hashing_routines import routines

    return routines(tuple(_KINDS))


@lru_cache(maxsize=1)
def _functions() -> Any:
    """Return the compiled functions by name."""
    symbols = {f"skf_{name}": id(kind) for name, kind in _KINDS.items()}
    symbols |= {**addresses(_FUNCTIONS), "skf_none": id(None)}
    facts = "hashing", str(sys.implementation.cache_tag)
    code = program(facts, _routines, Target.host(), symbols)
    size, place = ctypes.c_int64, ctypes.c_void_p
    kinds = {
        "skf_texts": (place, size, place, place, size),
        "skf_objects": (place, *[size] * 4, place, place, size, place),
        "skf_encode": (*[size] * 4, *[place] * 16),
    }
    # objects are read while the interpreter's lock is held
    made = {
        name: (ctypes.PYFUNCTYPE if name == "skf_objects" else ctypes.CFUNCTYPE)(
            size, *types
        )(code.address(name))
        for name, types in kinds.items()
    }
    return {**made, "": code}


def read_objects(objects: Array, is_category: Array, places: Array, out: Array) -> bool:
    """Write objects of shape (n_rows, n_columns) to columns of rows, at ``places``.

    Those of categories get hashes. Return False if some category is no text, whole
    number or boolean, or some number is no number, boolean or None.
    """
    if not is_known_python():
        return False
    read = _functions()["skf_objects"]
    n_rows, n_columns = objects.shape
    sizes = n_rows, *objects.strides, n_columns
    flags, at = is_category.ctypes.data, places.ctypes.data
    given = objects.ctypes.data, *sizes, flags, at, out.shape[1], out.ctypes.data
    return bool(read(*given) == n_rows)


def hash_texts(texts: bytes | Array, ends: Array, out: Array) -> None:
    """Write the hashes of texts in UTF-8 that lie one after the other.

    ``ends`` are n + 1 offsets of int64. ``out`` has n numbers of int32.
    """
    at = texts.ctypes.data if isinstance(texts, np.ndarray) else texts
    step = out.strides[0] // 4 if len(out) > 1 else 1
    given = len(ends) - 1, ends.ctypes.data, out.ctypes.data, step
    _functions()["skf_texts"](at, *given)


class Encoder:
    """Makes rows of a forest of rows with numbers and hashes."""

    def __init__(self, hashed: HashedCategories) -> None:
        arrays: dict[str, Array] = dict(hashed.arrays())
        sizes = np.diff(hashed.key_offset)
        # as many starts as keys, and twice as many at most
        bits = np.array([int(size).bit_length() for size in sizes], np.int64)
        bits = np.maximum(bits, 1)
        starts = [
            np.searchsorted(
                hashed.key[first:end],
                np.arange(1 << int(n), dtype=np.uint64) << np.uint64(64 - int(n)),
            )
            for first, end, n in zip(
                hashed.key_offset[:-1], hashed.key_offset[1:], bits, strict=True
            )
        ]
        counts = np.diff(hashed.statistic_offset)
        ends = [
            np.append(start, size).astype(np.int32)
            for start, size in zip(starts, sizes, strict=True)
        ]
        # in the order of ``hashing_routines.ENCODER_ARRAYS``
        arrays["bucket_offset"] = np.append(0, np.cumsum((sizes + 1) * counts))
        arrays["start"] = np.concatenate([np.zeros(0, np.int32), *ends])
        arrays["start_offset"] = np.append(0, np.cumsum((1 << bits) + 1))
        arrays["shift"] = 64 - bits
        self._kept = [np.ascontiguousarray(array) for array in arrays.values()]
        self._sizes = hashed.n_features, hashed.n_columns, len(sizes)
        self._addresses = [array.ctypes.data for array in self._kept]

    def encode(self, rows: Array) -> None:
        """Encode C-contiguous rows of float32 in place.

        They have the forest's columns; those of categories hold the bits of hashes.
        """
        given = len(rows), *self._sizes, rows.ctypes.data
        _functions()["skf_encode"](*given, *self._addresses)
