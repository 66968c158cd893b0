"""Python entry points compiled with the kernels: a call without any wrapper.

``ctypes`` costs 4 us a call and NumPy's own checks about as much, several times what
walking a row costs. So the checks, the output array and the transform are compiled
too, as a C function that Python calls directly (a ``PyCFunction``; no C extension)::

    entry(rows):
      if type(rows) is not numpy.ndarray: return None
      view = buffer(rows)
      if not 2-d, no floats, other width, gaps between columns: return None
      if no kernel is compiled for this many rows: return None
      if float64 for float32 or the other way: convert
      if a value is one the source refuses (inf): return None
      out = numpy.empty(...)
      kernel(view, out)           # without the GIL when it is worth it
      transform(out)
      return out

``None`` means "not for me": the caller takes its ordinary path, which validates, warns
and raises as the source does.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from types import BuiltinFunctionType
from typing import Any

import numpy as np

from skforge.compiler.backends.entry_code import (
    ARRAY_DATA,
    MAX_SLOTS,
    OB_TYPE,
    REFUSED,
    EntryKind,
    Refused,
    write,
)
from skforge.compiler.backends.entry_steps import OUTPUTS, Output, Steps, steps
from skforge.compiler.backends.llvm_jit import JitModule, compile_functions
from skforge.compiler.forest import Forest
from skforge.compiler.target import Target

__all__ = [
    "GIL_WORK",
    "MAX_SLOTS",
    "MAX_VALUES",
    "OUTPUTS",
    "REFUSED",
    "EntryKind",
    "KernelTable",
    "Output",
    "Refused",
    "Steps",
    "build_entry",
    "steps",
    "supports",
]

#: Work, in rows * hops, from which the GIL is released: about 20 us.
GIL_WORK = 30_000
#: Values of the rows from which the ordinary path's microseconds do not count.
MAX_VALUES = 1 << 20


class KernelTable:
    """Addresses of the kernels of each batch range, read by the compiled entry.

    A range is (kernel, model slots, their number); 0 where none is compiled yet.
    """

    def __init__(self, n_ranges: int) -> None:
        self._words = (ctypes.c_int64 * (3 * max(1, n_ranges)))()
        self._kept: dict[int, tuple[Any, object]] = {}

    @property
    def address(self) -> int:
        """Where the table is."""
        return ctypes.addressof(self._words)

    def fill(self, index: int, kernel: int, slots: bytes, keep: object) -> None:
        """Publish a kernel, once; ``keep`` holds its code and data alive."""
        held = ctypes.create_string_buffer(slots, len(slots))
        if self._kept.setdefault(index, (held, keep))[0] is not held:
            return  # another thread was first, and an entry may be reading its slots
        self._words[3 * index + 1] = ctypes.addressof(held)
        self._words[3 * index + 2] = len(slots)
        self._words[3 * index] = kernel  # last: only now may the entry use it


class _Holder:
    """Owns everything an entry needs; it is the function's ``self``."""

    def __init__(self, jit: JitModule, table: KernelTable, name: bytes) -> None:
        self.jit, self.table, self.name = jit, table, name
        self.definition = _MethodDef()


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METH_O = 0x0008


def supports(forest: Forest) -> bool:
    """Whether this process and forest can have entry points.

    They read CPython's object layout: other interpreters and free-threaded builds
    take the ordinary path, as do markers for missing values other than NaN.
    """
    return (
        sys.implementation.name == "cpython"
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and bool(np.isnan(forest.missing_value))
        and forest.n_trees > 0
        and forest.n_features > 0
        and _numpy_api() is not None
    )


def build_entry(kind: EntryKind, table: KernelTable, target: Target) -> Any:
    """Compile an entry point and return it as a Python function of one argument."""
    api = _numpy_api()
    assert api is not None
    symbols = dict(_python_symbols())
    symbols["skf_empty"], symbols["skf_descr"] = api.empty, api.descr_from_type
    text = write(kind, table.address, api.array_type)
    jit = compile_functions([text], target, symbols)
    holder = _Holder(jit, table, b"predict")
    holder.definition.name = holder.name
    holder.definition.function = jit.address("skf_entry")
    holder.definition.flags = _METH_O
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    function = make(ctypes.addressof(holder.definition), holder, None)
    assert isinstance(function, BuiltinFunctionType)
    return function


# ------------------------------------------------------------ the process


@dataclass(frozen=True, slots=True)
class _NumpyApi:
    array_type: int
    empty: int
    descr_from_type: int


@lru_cache(maxsize=1)
def _numpy_api() -> _NumpyApi | None:
    """Return NumPy's C functions from its table, or None if it is not as expected."""
    try:
        from numpy._core import (  # type: ignore[attr-defined, unused-ignore]
            _multiarray_umath as core,
        )
    except ImportError:  # NumPy 1
        from numpy.core import (  # type: ignore[attr-defined, no-redef, unused-ignore]
            _multiarray_umath as core,
        )
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = (
        ctypes.c_void_p,
        (ctypes.py_object, ctypes.c_char_p),
    )
    capsule = getattr(core, "_ARRAY_API", None)
    if capsule is None:
        return None
    table = ctypes.cast(pointer(capsule, None), ctypes.POINTER(ctypes.c_void_p))
    version = ctypes.CFUNCTYPE(ctypes.c_uint)(table[0])()
    if version >> 24 not in (1, 2) or table[2] != id(np.ndarray):
        return None
    empty, descr = table[184], table[45]
    if not empty or not descr or not _arrays_are_laid_out_as_known():
        return None
    return _NumpyApi(id(np.ndarray), empty, descr)


def _arrays_are_laid_out_as_known() -> bool:
    """Look for the type and the data of an array where an entry looks for them."""
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    array = np.empty(1)
    found = [
        ctypes.c_void_p.from_address(id(array) + offset).value
        for offset in (OB_TYPE, ARRAY_DATA)
    ]
    return found == [id(np.ndarray), array.ctypes.data]


@lru_cache(maxsize=1)
def _python_symbols() -> tuple[tuple[str, int], ...]:
    names = {
        "skf_get_buffer": "PyObject_GetBuffer",
        "skf_release": "PyBuffer_Release",
        "skf_clear": "PyErr_Clear",
        "skf_incref": "Py_IncRef",
        "skf_save_thread": "PyEval_SaveThread",
        "skf_restore_thread": "PyEval_RestoreThread",
    }
    found = {
        symbol: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        for symbol, name in names.items()
    }
    library = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
    for name in ("expf", "exp", "log1p"):
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        found[f"skf_{name}"] = address
    return tuple((name, int(address or 0)) for name, address in found.items())
