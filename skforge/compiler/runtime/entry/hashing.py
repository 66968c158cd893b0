"""Hashes of texts and other objects, by compiled code.

Python takes microseconds to hash a text as CatBoost does; compiled code takes five
nanoseconds.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
