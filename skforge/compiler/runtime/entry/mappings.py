"""Numbers of many dicts, read by compiled code without a Python object in between.

Python takes 40 ns to look a value up, to test its type and to convert it; walking the
items of dicts whose keys have one order takes 6. The code declines what it is not
certain about: other keys, another order of them, values of other types.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial, reduce
from math import nan
from operator import or_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import F64, I32, I64, Buffer, Value
from skforge.compiler.runtime.cpu.programs import program
from skforge.compiler.runtime.entry.entry import addresses, is_known_python
from skforge.compiler.runtime.entry.routines import OB_TYPE, field
from skforge.compiler.target import Target

#: Values that are read while the interpreter's lock is held: about 0.5 ms.
VALUES_AT_ONCE = 1 << 16

_FUNCTIONS = {
    "skf_item": "PyList_GetItem",
    "skf_next": "PyDict_Next",
    "skf_find": "PyDict_GetItemWithError",
    "skf_compare": "PyUnicode_Compare",
    "skf_number": "PyFloat_AsDouble",
    "skf_error": "PyErr_Occurred",
    "skf_clear": "PyErr_Clear",
}
_KINDS = {kind.__name__: kind for kind in (dict, str, float, int, bool)}


def _routine() -> lir.Routine:
    """Return a function that reads rows ``first`` to ``end``.

    It returns the first row that it declines.
    """
    rows, first, end, many, width = (
        Value(name, I64) for name in ("rows", "first", "end", "many", "width")
    )
    keys, places, tables = (Buffer(n, I64) for n in ("keys", "places", "tables"))
    out = Buffer("out", F64)
    with Builder() as b:
        position, key, value = (b.local(n, I64) for n in ("position", "key", "value"))
        cells = [b.address(cell) for cell in (position, key, value)]
        kinds = {name: b.symbol(f"skf_{name}") for name in _KINDS}
        none = b.symbol("skf_none")

        def is_a(object_: Value, *names: str) -> Value:
            kind = field(b, object_, OB_TYPE)
            return reduce(or_, (kind.eq(kinds[name]) for name in names))

        with b.loop(first, end) as r:

            def decline(cond: Value, *, error: bool = False) -> None:
                with b.when(cond):
                    if error:
                        b.run("skf_clear")
                    b.give(r)

            mapping = b.call("skf_item", rows, r)
            decline(~is_a(mapping, "dict"))
            position[0] = b.const(0)
            count = [b.const(0)]
            step = partial(b.call, "skf_next", mapping, *cells, gives=I32)
            with b.repeat(lambda: step().ne(0), count):
                k = count[0]
                decline(k.eq(many))
                given, wanted = key[0], keys[k]
                with b.when(given.ne(wanted)):
                    decline(~is_a(given, "str"))
                    order = b.call("skf_compare", given, wanted, gives=I32)
                    decline(order.ne(0), error=True)
                place = places[k]
                with b.when(place >= 0):
                    object_, table = value[0], tables[k]

                    def number(real: Value) -> Value:
                        x = b.call("skf_number", real, gives=F64)
                        with b.when(x.eq(-1.0)):
                            decline(b.call("skf_error").ne(0), error=True)
                        return x

                    def plain() -> Value:
                        real = is_a(object_, "float", "int", "bool")
                        return b.either(real, partial(number, object_), missing)

                    def missing() -> Value:
                        decline(object_.ne(none))
                        return b.const(nan, F64)

                    def coded() -> Value:
                        decline(~(is_a(object_, "str") | object_.eq(none)))
                        code = b.call("skf_find", table, object_)
                        decline(code.eq(0), error=True)
                        return number(code)

                    out[r * width + place] = b.either(table.eq(0), plain, coded)
                count[0] = k + 1
            decline(count[0].ne(many))
        b.give(end)
    params = rows, first, end, many, keys, places, tables, width, out
    return lir.Routine("skf_read", params, b.finish(), I64)


@lru_cache(maxsize=1)
def _reader() -> Any:
    """Return the compiled function; None where objects are not laid out as known."""
    if not is_known_python():
        return None
    symbols = {f"skf_{name}": id(kind) for name, kind in _KINDS.items()}
    symbols |= {**addresses(_FUNCTIONS), "skf_none": id(None)}
    facts = "mappings", str(sys.implementation.cache_tag)
    jit = program(facts, lambda: [_routine()], Target.host(), symbols)
    size, place = ctypes.c_int64, ctypes.c_void_p
    kind = ctypes.PYFUNCTYPE(
        size, ctypes.py_object, size, size, size, place, place, place, size, place
    )
    _reader.jit = jit  # type: ignore[attr-defined]  # keeps the code
    return kind(jit.address("skf_read"))


class DictReader:
    """Reads dicts whose keys have the order of the first one.

    ``places`` are the columns of keys in rows of ``width`` numbers, and ``tables`` the
    numbers of texts and of None, for keys with texts. Other keys are ignored.
    """

    def __init__(
        self,
        places: Mapping[str, int],
        tables: Mapping[str, dict[str | None, float]],
        width: int,
    ) -> None:
        self._places, self._tables, self._width = places, tables, width
        #: The order of keys met last, and what the compiled code reads of it: addresses
        #: of the keys, their columns, and addresses of tables.
        self._known: tuple[tuple[Any, ...], Any] = (), None

    def read(self, rows: list[Any]) -> NDArray[np.float64] | None:
        """Return numbers of shape (n_rows, width); None if any row is declined."""
        read = _reader()
        if read is None or type(rows[0]) is not dict:
            return None
        order = tuple(rows[0])
        known = self._known
        if known[0] != order:
            known = self._known = order, self._plan(order)
        plan = known[1]
        if plan is None:
            return None
        out = np.zeros((len(rows), self._width))
        step = max(1, VALUES_AT_ONCE // len(order))
        parts = len(order), *plan, self._width, out.ctypes.data
        for first in range(0, len(rows), step):
            end = min(first + step, len(rows))
            if read(rows, first, end, *parts) < end:
                return None
        return out

    def _plan(self, order: Sequence[Any]) -> Sequence[Any] | None:
        places = [self._places.get(key, -1) for key in order]
        if {*places} | {-1} != {*self._places.values()} | {-1}:
            return None
        tables = [id(self._tables[k]) if k in self._tables else 0 for k in order]
        numbers = ctypes.c_int64 * len(order)
        return [numbers(*part) for part in (map(id, order), places, tables)]
