"""Where compiled code finds CPython's and NumPy's functions, and parts of objects.

Code that reads these objects needs no C extension, but their layouts: those known here
are compared with the interpreter's before any code relies on them. Exported wheels ship
this file as it is.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

#: Offsets in PyObject, PyArrayObject and PyArray_Descr on 64-bit machines.
OB_TYPE, ARRAY_DATA, ARRAY_NDIM, ARRAY_SHAPE, ARRAY_STRIDES = 8, 16, 24, 32, 40
ARRAY_DTYPE, DTYPE_KIND = 56, 24
#: Those of float, and of texts of ASCII, whose characters follow their head.
FLOAT_VALUE, TEXT_LENGTH, TEXT_STATE = 16, 16, 32
#: Kind, character and byte order of the row dtypes, as three bytes of a number.
DTYPE_CODES = {
    dtype: int.from_bytes(f"f{np.dtype(dtype).char}=".encode(), "little")
    for dtype in ("float32", "float64")
}
#: In Python 3.10 the general call is an inline function, which no library exports; a
#: method's fallback is always a Python function, which has its own.
_INLINE = sys.version_info < (3, 11)
_CALL = "_PyFunction_Vectorcall" if _INLINE else "PyObject_Vectorcall"
#: Functions that compiled code calls, by its names for them.
_FUNCTIONS = {
    "skf_incref": "Py_IncRef",
    "skf_decref": "Py_DecRef",
    "skf_error": "PyErr_Occurred",
    "skf_clear": "PyErr_Clear",
    "skf_number": "PyFloat_AsDouble",
    "skf_long": "PyLong_AsLongLong",
    "skf_utf8": "PyUnicode_AsUTF8AndSize",
    "skf_compare": "PyUnicode_Compare",
    "skf_item": "PyList_GetItem",
    "skf_next": "PyDict_Next",
    "skf_find": "PyDict_GetItemWithError",
    "skf_take": "PyObject_GetItem",
    "skf_vectorcall": _CALL,
    "skf_save_thread": "PyEval_SaveThread",
    "skf_restore_thread": "PyEval_RestoreThread",
}
#: Flags of functions that take one argument, and of those that take vectors of them.
METH_O, METH_FASTCALL_KEYWORDS = 0x0008, 0x0080 | 0x0002


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


#: Bytes that a builtin function reads until it is freed.
DEFINITION = ctypes.sizeof(_MethodDef)


def builtin(
    owner: bytearray, number: int, address: int, flags: int, name: str, doc: str | None
) -> tuple[Any, object]:
    """Return compiled code as a method of ``owner``, and what must outlive it.

    The owner's bytes from ``number * DEFINITION`` on are its definition, which Python
    reads once more when it frees the method. That may be after the collector of garbage
    has cleared attributes and objects of ctypes, which therefore must not have it.
    """
    texts = name.encode(), None if doc is None else doc.encode()
    definition = _MethodDef.from_buffer(owner, number * DEFINITION)
    definition.name, definition.doc = texts
    definition.function, definition.flags = address, flags
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return make(ctypes.addressof(definition), owner, None), texts


def is_known_python() -> bool:
    free = "free-threading" in sys.version
    known = sys.implementation.name == "cpython" and float.__basicsize__ == 24
    return known and not free


@lru_cache(maxsize=1)
def ascii_layout() -> dict[str, int]:
    """Return the bits that texts of ASCII alone have, and the size of their head.

    Bits that no text has, if this Python's texts are none of those known.
    """
    texts = "", "a", "ab" * 20, str(123456789), sys.implementation.name
    others = "é", "été" * 9, "日本", "a\U0001f333", type("Own", (str,), {})("own")
    for bits, head in product((0x60, 0x60 << 6, 0x60 << 14), (40, 48)):
        has = all(_is_ascii(text, bits, head) for text in texts)
        if has and not any(_state(text) & bits == bits for text in others):
            return {"skf_ascii": bits, "skf_head": head}
    return {"skf_ascii": 1 << 40, "skf_head": 40}


def _state(text: str) -> int:
    return ctypes.c_uint32.from_address(id(text) + TEXT_STATE).value


def _is_ascii(text: str, bits: int, head: int) -> bool:
    if _state(text) & bits != bits:
        return False
    length = ctypes.c_int64.from_address(id(text) + TEXT_LENGTH).value
    given = text.encode() + b"\0"
    held = length == len(text) and ctypes.string_at(id(text) + head, length + 1)
    return bool(held == given)


@lru_cache(maxsize=2)
def numpy_table(name: str) -> Any:
    try:
        from numpy._core import _multiarray_umath as core  # type: ignore[attr-defined, unused-ignore]
    except ImportError:  # NumPy 1
        from numpy.core import _multiarray_umath as core  # type: ignore[attr-defined, no-redef, unused-ignore]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = ctypes.py_object, ctypes.c_char_p
    capsule = getattr(core, name, None)
    if capsule is None:
        return None
    return ctypes.cast(pointer(capsule, None), ctypes.POINTER(ctypes.c_void_p))


@lru_cache(maxsize=1)
def numpy_api() -> dict[str, int] | None:
    table = numpy_table("_ARRAY_API")
    if table is None:
        return None
    version = ctypes.CFUNCTYPE(ctypes.c_uint)(table[0])()
    if version >> 24 not in (1, 2) or table[2] != id(np.ndarray):
        return None
    empty, descr = table[184], table[45]
    if not empty or not descr or not _arrays_are_laid_out_as_known():
        return None
    return {"skf_ndarray": id(np.ndarray), "skf_empty": empty, "skf_descr": descr}


def _arrays_are_laid_out_as_known() -> bool:
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    for dtype, code in DTYPE_CODES.items():
        array = np.empty((3, 5), dtype)
        kind, data, shape, strides, descr = (
            ctypes.c_int64.from_address(id(array) + offset).value
            for offset in (OB_TYPE, ARRAY_DATA, ARRAY_SHAPE, ARRAY_STRIDES, ARRAY_DTYPE)
        )
        if (kind, data, descr) != (id(np.ndarray), array.ctypes.data, id(array.dtype)):
            return False
        n_dims = ctypes.c_int.from_address(id(array) + ARRAY_NDIM).value
        if n_dims != array.ndim:
            return False
        pair = ctypes.c_int64 * 2
        laid_out = *pair.from_address(shape), *pair.from_address(strides)
        if laid_out != (*array.shape, *array.strides):
            return False
        bits = ctypes.c_uint32.from_address(descr + DTYPE_KIND).value
        if bits & 0xFFFFFF != code:
            return False
    return True


@lru_cache(maxsize=1)
def _functions() -> dict[str, int]:
    found = {name: getattr(ctypes.pythonapi, of) for name, of in _FUNCTIONS.items()}
    void_p = ctypes.c_void_p
    return {name: ctypes.cast(f, void_p).value or 0 for name, f in found.items()}


def symbols(*classes: type) -> dict[str, int]:
    """Return the addresses of Python's functions, of None, and of classes."""
    known = {f"skf_{kind.__name__}": id(kind) for kind in classes}
    return {**_functions(), **known, "skf_none": id(None)}
