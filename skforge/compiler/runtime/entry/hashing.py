"""Hashes of objects, and statistics of combinations of them, by compiled code.

A hash of a text takes 5 ns, in Python microseconds.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array
from skforge.compiler.forest.categories import HashedCategories
from skforge.compiler.runtime.cpu.code import MachineCode
from skforge.compiler.runtime.cpu.programs import program
from skforge.compiler.runtime.entry.encoder_tables import tables_of
from skforge.compiler.runtime.kernels import address_of
from skforge.compiler.target import Target
from skforge.runtime.entries import open_entry
from skforge.runtime.python_objects import addresses, is_known_python

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Function, Routine

_FUNCTIONS = {
    "skf_utf8": "PyUnicode_AsUTF8AndSize",
    "skf_long": "PyLong_AsLongLong",
    "skf_number": "PyFloat_AsDouble",
    "skf_error": "PyErr_Occurred",
    "skf_clear": "PyErr_Clear",
}
_TYPES = ctypes.c_int64, ctypes.c_void_p
_CLASSES = str, np.str_, float, np.float64, int, bool
_KINDS = {kind.__name__: kind for kind in _CLASSES}


def _routines() -> Sequence[Routine]:
    from skforge.compiler.runtime.entry.hashing_routines import city_hash, object_reader

    return [city_hash(), object_reader([*_KINDS])]


def _symbols() -> dict[str, int]:
    symbols = {f"skf_{name}": id(kind) for name, kind in _KINDS.items()}
    return {**symbols, **addresses(_FUNCTIONS), "skf_none": id(None)}


def _program(name: str, write: Any, symbols: Mapping[str, int]) -> MachineCode:
    facts = name, str(sys.implementation.cache_tag)
    return program(facts, write, Target.host(), symbols)


@lru_cache(maxsize=1)
def _reader() -> Any:
    code, size, place = _program("hashing", _routines, _symbols()), *_TYPES
    kinds = place, *[size] * 4, place, place, size, place
    # the interpreter's lock is held
    function = ctypes.PYFUNCTYPE(size, *kinds)(code.address("skf_objects"))
    function.code = code  # type: ignore[attr-defined]  # keeps it
    return function


def read_objects(objects: Array, is_category: Array, places: Array, out: Array) -> bool:
    """Write objects of shape (n_rows, n_columns) to columns of rows, at ``places``.

    Those of categories get hashes. Return False if some category is no text, whole
    number or boolean, or some number is no number, boolean or None.
    """
    if not is_known_python():
        return False
    n_rows, n_columns = objects.shape
    sizes = n_rows, *objects.strides, n_columns
    at, *others = map(address_of, (objects, is_category, places, out))
    given = at, *sizes, *others[:2], out.shape[1], others[2]
    return bool(_reader()(*given) == n_rows)


def _encoder_functions() -> Sequence[Function]:
    from skforge.compiler.runtime.entry.encoder_routines import encoder

    return [encoder(Target.host())]


_encoder_code = lru_cache(maxsize=1)(
    lambda: program(("encoder",), _encoder_functions, Target.host())
)


class Encoder:
    def __init__(self, hashed: HashedCategories) -> None:
        sizes, self._kept = tables_of(hashed)
        addresses = (array.ctypes.data for array in self._kept)
        #: What the code reads, behind the number of rows and their address.
        self.slots = struct.pack(f"{len(sizes) + len(self._kept)}q", *sizes, *addresses)

    @property
    def address(self) -> int:
        return _encoder_code().address("skf_encode")

    def encode(self, rows: NDArray[Any]) -> None:
        """Encode C-contiguous float32 rows in place; categories hold bits of hashes."""
        slots = struct.pack("2q", len(rows), address_of(rows)) + self.slots
        _encoder_code().function("skf_encode")(slots, None, 1)


#: Most rows of an entry of objects, and those of a method: it holds the lock.
_MOST_ROWS, _METHOD_ROWS = 1024, 64


def entry_of_objects(entry: Any, encoder: Encoder, is_category: Array) -> Any:
    """Return an entry that takes arrays of objects, before one that takes their rows.

    It makes the rows of a forest with categories, and declines what
    :func:`read_objects` does not read.
    """
    inner = entry.__self__
    places = np.arange(len(is_category), dtype=np.int32)
    slots = np.frombuffer(encoder.slots, np.int64)
    flags = np.ascontiguousarray(is_category)
    arrays = flags, places, slots
    words = (
        *(len(flags), slots[0], *(array.ctypes.data for array in arrays), len(slots)),
        *(encoder.address, inner.jit.address("skf_entry")),
    )
    known = (ctypes.c_int64 * len(words))(*map(int, words))

    def write() -> Sequence[Routine]:
        from skforge.compiler.runtime.entry import hashing_routines, routines

        ends = routines.functions(_MOST_ROWS, _METHOD_ROWS)
        return [*_routines(), hashing_routines.body_of_objects(), *ends]

    def code(symbols: Mapping[str, int]) -> MachineCode:
        given = {**symbols, **_symbols(), "skf_known": ctypes.addressof(known)}
        return _program("objects", write, given)

    made = open_entry(code, inner.table, ())
    made.__self__.kept += [known, entry, encoder, arrays]
    return made
