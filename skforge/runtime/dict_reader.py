"""Numbers of many dicts, read by compiled code without a Python object in between.

Python takes 40 ns to look a value up, to test its type and to convert it; walking the
items of dicts whose keys have one order takes 6. The code declines what it is not
certain about: other keys, another order of them, values of other types.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from skforge._typing import Float64s

if TYPE_CHECKING:
    from skforge.runtime.loading import LoadedCode

#: Values that are read while the interpreter's lock is held: about 0.5 ms.
VALUES_AT_ONCE = 1 << 16

#: The classes of objects that are read.
CLASSES = dict, str, float, int, bool


def function_of(code: LoadedCode) -> Any:
    """Return the function that reads dicts; it keeps its code."""
    size, void_p = ctypes.c_int64, ctypes.c_void_p
    kind = ctypes.PYFUNCTYPE(
        size, ctypes.py_object, size, size, size, void_p, void_p, void_p, size, void_p
    )
    function = kind(code.address("skf_read"))
    function.code = code  # type: ignore[attr-defined]
    return function


class DictReader:
    """Reads dicts whose keys have the order of the first one.

    ``code`` returns the compiled function, or None where there is none. ``places`` are
    the columns of keys in rows of ``width`` numbers, and ``tables`` the numbers of
    texts and of None, for keys with texts. Other keys are ignored.
    """

    def __init__(
        self,
        code: Callable[[], Any],
        places: Mapping[str, int],
        tables: Mapping[str, dict[str | None, float]],
        width: int,
    ) -> None:
        self._code = code
        self._places, self._tables, self._width = places, tables, width
        #: The order of keys met last, and what the compiled code reads of it: addresses
        #: of the keys, their columns, and addresses of tables.
        self._known: tuple[tuple[Any, ...], Any] = (), None

    def load(self) -> Any:
        return self._code()

    def read(self, rows: list[Any]) -> Float64s | None:
        read = self._code()
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
