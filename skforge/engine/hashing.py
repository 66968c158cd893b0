"""Compiled code for categories: texts become hashes, and hashes statistics.

It hashes a text in 5 ns, Python in microseconds, and finds the statistics of
combinations of hashes.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Array
from skforge.compiler.target import Target
from skforge.engine.arrays import near_values
from skforge.engine.cpu.code import MachineCode
from skforge.engine.cpu.programs import program
from skforge.engine.kernels import address_of
from skforge.forest.categories import HashedCategories
from skforge.forest.encoder_tables import tables_of
from skforge.runtime.entries import EntrySizes, open_entry
from skforge.runtime.python_objects import ascii_layout, is_known_python, symbols

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Function, Routine

#: All readers of a forest share its tables, which may be large.
_encoders: WeakKeyDictionary[HashedCategories, Encoder] = WeakKeyDictionary()

_TYPES = ctypes.c_int64, ctypes.c_void_p
_CLASSES = str, np.str_, float, np.float64, int, bool


def _routines() -> Sequence[Routine]:
    from skforge.engine.entry.hashing_routines import city_hash, object_reader

    return [city_hash(), object_reader([kind.__name__ for kind in _CLASSES])]


def _hashing() -> Sequence[Routine]:
    from skforge.engine.entry.hashing_routines import text_hasher

    return [*_routines(), text_hasher()]


def _program(name: str, write: Any, more: Mapping[str, int]) -> MachineCode:
    facts = name, str(sys.implementation.cache_tag)
    known = {**symbols(*_CLASSES), **ascii_layout(), **more}
    return program(facts, write, Target.host(), known)


@lru_cache(maxsize=1)
def _hashing_code() -> MachineCode:
    return _program("hashing", _hashing, {})


def _function(name: str, *kinds: Any) -> Any:
    code = _hashing_code()
    # the interpreter's lock is held
    function = ctypes.PYFUNCTYPE(_TYPES[0], *kinds)(code.address(name))
    function.code = code  # type: ignore[attr-defined]  # keeps it
    return function


@lru_cache(maxsize=1)
def _reader() -> Any:
    size, void_p = _TYPES
    kinds = void_p, *[size] * 4, void_p, void_p, size, void_p
    return _function("skf_objects", *kinds)


@lru_cache(maxsize=1)
def _text_hasher() -> Any:
    size, void_p = _TYPES
    return _function("skf_texts", void_p, size, size, size, size)


def write_texts(data: int, starts: Array, rows: Array, place: int) -> bool:
    """Write hashes of texts to a column of rows; ``starts`` has one more, the end.

    Return False if nothing was written.
    """
    if not is_known_python():
        return False
    out = address_of(rows) + 4 * place
    _text_hasher()(address_of(starts), data, len(rows), out, rows.shape[1])
    return True


def read_objects(objects: Array, is_category: Array, places: Array, out: Array) -> bool:
    """Write objects of shape (n_rows, n_columns) to columns of rows, at ``places``.

    Those of categories get hashes. Return False if some category is no text, whole
    number or boolean, or some number is no number, boolean or None.
    """
    if not is_known_python():
        return False
    n_rows, n_columns = objects.shape
    sizes = n_rows, *objects.strides, n_columns
    address, *others = map(address_of, (objects, is_category, places, out))
    arguments = address, *sizes, *others[:2], out.shape[1], others[2]
    return bool(_reader()(*arguments) == n_rows)


@lru_cache(maxsize=1)
def _encoder_code() -> MachineCode:
    def write() -> Sequence[Function]:
        from skforge.compiler.binning.encoder_routines import encoder

        return [encoder(Target.host())]

    return program(("encoder",), write, Target.host())


class Encoder:
    def __init__(self, hashed: HashedCategories) -> None:
        sizes, self._data = tables_of(hashed)
        addresses = (array.ctypes.data for array in self._data)
        #: What the code reads, behind the number of rows and their address.
        self.slots = struct.pack(f"{len(sizes) + len(self._data)}q", *sizes, *addresses)

    @cached_property
    def _code(self) -> MachineCode:
        return _encoder_code()

    @property
    def address(self) -> int:
        """Return where its function is while this object lives."""
        return self._code.address("skf_encode")

    def encode(self, rows: Array) -> None:
        """Encode C-contiguous float32 rows in place; categories hold bits of hashes."""
        slots = struct.pack("2q", len(rows), address_of(rows)) + self.slots
        self._code.function("skf_encode")(slots, None, 1)


def encoder_of(hashed: HashedCategories) -> Encoder:
    if (known := _encoders.get(hashed)) is None:
        known = _encoders[hashed] = Encoder(hashed)
    return known


#: Most rows of an entry of objects, and those of a method: it holds the lock.
_MOST_ROWS, _METHOD_ROWS = 1024, 64
#: Fewer rows are those of a method, whose kernels are compiled by then.
LEAST_ROWS = _METHOD_ROWS + 1


def _most_rows(width: int) -> int:
    """Return the most rows of an entry, which are made in L2."""
    return max(_METHOD_ROWS, min(_MOST_ROWS, near_values() // width))


def entry_of_objects(
    entry: Any, encoder: Encoder, is_category: Array, of_hashes: Any, least: int
) -> Any:
    """Return an entry that takes arrays of objects, before one that takes their rows.

    It makes the rows of a forest with categories, or of ``least`` rows only the hashes,
    if the entry ``of_hashes`` takes them. It declines what :func:`read_objects` does
    not read.
    """
    inner, taker = entry.__self__, (entry if of_hashes is None else of_hashes).__self__
    places = np.arange(len(is_category), dtype=np.int32)
    slots = np.frombuffer(encoder.slots, np.int64)
    flags = np.ascontiguousarray(is_category)
    arrays = flags, places, slots
    words = (
        *(len(flags), slots[0], *(array.ctypes.data for array in arrays), len(slots)),
        *(encoder.address, inner.jit.address("skf_entry"), least),
        taker.jit.address("skf_entry"),
    )
    known = (ctypes.c_int64 * len(words))(*map(int, words))

    def write() -> Sequence[Routine]:
        from skforge.engine.entry import hashing_routines, routines

        body = hashing_routines.body_of_objects()
        return [*_routines(), body, *routines.functions()]

    def code(others: Mapping[str, int]) -> MachineCode:
        known_at = {"skf_known": ctypes.addressof(known)}
        return _program("objects", write, {**others, **known_at})

    most = _most_rows(int(slots[0]) if of_hashes is None else len(flags))
    most = min(most, max(inner.sizes.most_rows, taker.sizes.most_rows))
    sizes = EntrySizes(len(flags), most, _METHOD_ROWS, most, ())
    made = open_entry(code, inner.table, sizes, ())
    made.__self__.kept += [known, entry, encoder, arrays, of_hashes]
    return made
