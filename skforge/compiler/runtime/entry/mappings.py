"""Numbers of many dicts, read by compiled code without a Python object in between.

Python takes 40 ns to look a value up, to test its type and to convert it; walking the
items of dicts whose keys have one order takes 6. The code declines what it is not
certain about: other keys, another order of them, values of other types.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.runtime.cpu.jit import compile_functions
from skforge.compiler.runtime.entry.entry import addresses, is_known_python
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
_OBJECTS: dict[str, object] = {
    **{f"skf_{kind.__name__}": kind for kind in (dict, str, float, int, bool)},
    "skf_none": None,
}

#: Reads rows ``first`` to ``end``, and returns the first one that it declines.
_TEXT = """
declare ptr @skf_item(ptr, i64)
declare i32 @skf_next(ptr, ptr, ptr, ptr)
declare ptr @skf_find(ptr, ptr)
declare i32 @skf_compare(ptr, ptr)
declare double @skf_number(ptr)
declare ptr @skf_error()
declare void @skf_clear()
@skf_dict = external global i8
@skf_str = external global i8
@skf_float = external global i8
@skf_int = external global i8
@skf_bool = external global i8
@skf_none = external global i8
define i64 @skf_read(ptr %rows, i64 %first, i64 %end, i64 %many, ptr %keys,
                     ptr %places, ptr %tables, i64 %width, ptr %out) {
begin:
  %position = alloca i64
  %key = alloca ptr
  %value = alloca ptr
  br label %row
row:
  %r = phi i64 [%first, %begin], [%r.next, %row.next]
  %is.end = icmp eq i64 %r, %end
  br i1 %is.end, label %return, label %open
open:
  %mapping = call ptr @skf_item(ptr %rows, i64 %r)
  %mapping.type.at = getelementptr i8, ptr %mapping, i64 8
  %mapping.type = load ptr, ptr %mapping.type.at
  %base = mul i64 %r, %width
  store i64 0, ptr %position
  %is.dict = icmp eq ptr %mapping.type, @skf_dict
  br i1 %is.dict, label %item, label %return
item:
  %k = phi i64 [0, %open], [%k.next, %item.next]
  %more = call i32 @skf_next(ptr %mapping, ptr %position, ptr %key, ptr %value)
  %is.over = icmp eq i32 %more, 0
  %is.last = icmp eq i64 %k, %many
  br i1 %is.over, label %close, label %check
close:
  br i1 %is.last, label %row.next, label %return
check:
  br i1 %is.last, label %return, label %name
name:
  %wanted.at = getelementptr ptr, ptr %keys, i64 %k
  %wanted = load ptr, ptr %wanted.at
  %given = load ptr, ptr %key
  %is.same = icmp eq ptr %given, %wanted
  br i1 %is.same, label %place, label %compare
compare:
  %given.type.at = getelementptr i8, ptr %given, i64 8
  %given.type = load ptr, ptr %given.type.at
  %is.str = icmp eq ptr %given.type, @skf_str
  br i1 %is.str, label %compare.texts, label %return
compare.texts:
  %order = call i32 @skf_compare(ptr %given, ptr %wanted)
  %is.equal = icmp eq i32 %order, 0
  br i1 %is.equal, label %place, label %failed
place:
  %place.at = getelementptr i64, ptr %places, i64 %k
  %to = load i64, ptr %place.at
  %is.ignored = icmp slt i64 %to, 0
  %object = load ptr, ptr %value
  %type.at = getelementptr i8, ptr %object, i64 8
  %type = load ptr, ptr %type.at
  br i1 %is.ignored, label %item.next, label %convert
convert:
  %table.at = getelementptr ptr, ptr %tables, i64 %k
  %table = load ptr, ptr %table.at
  %is.number = icmp eq ptr %table, null
  br i1 %is.number, label %plain, label %label
label:
  %is.text = icmp eq ptr %type, @skf_str
  %is.gap = icmp eq ptr %object, @skf_none
  %may.be = or i1 %is.text, %is.gap
  br i1 %may.be, label %find, label %return
find:
  %code = call ptr @skf_find(ptr %table, ptr %object)
  %is.unknown = icmp eq ptr %code, null
  br i1 %is.unknown, label %failed, label %number
plain:
  %is.float = icmp eq ptr %type, @skf_float
  %is.int = icmp eq ptr %type, @skf_int
  %is.bool = icmp eq ptr %type, @skf_bool
  %is.whole = or i1 %is.int, %is.bool
  %is.real = or i1 %is.float, %is.whole
  br i1 %is.real, label %number, label %missing
missing:
  %is.none = icmp eq ptr %object, @skf_none
  br i1 %is.none, label %write, label %return
number:
  %real = phi ptr [%object, %plain], [%code, %find]
  %x = call double @skf_number(ptr %real)
  %may.fail = fcmp oeq double %x, -1.0
  br i1 %may.fail, label %ask, label %write
ask:
  %error = call ptr @skf_error()
  %is.fine = icmp eq ptr %error, null
  br i1 %is.fine, label %write, label %failed
write:
  %y = phi double [%x, %number], [%x, %ask], [0x7FF8000000000000, %missing]
  %at = add i64 %base, %to
  %slot = getelementptr double, ptr %out, i64 %at
  store double %y, ptr %slot
  br label %item.next
item.next:
  %k.next = add i64 %k, 1
  br label %item
row.next:
  %r.next = add i64 %r, 1
  br label %row
failed:
  call void @skf_clear()
  br label %return
return:
  ret i64 %r
}
"""


@lru_cache(maxsize=1)
def _reader() -> Any:
    """Return the compiled function; None where objects are not laid out as known."""
    if not is_known_python():
        return None
    objects = {name: id(held) for name, held in _OBJECTS.items()}
    jit = compile_functions([_TEXT], Target.host(), addresses(_FUNCTIONS) | objects)
    size, place = ctypes.c_int64, ctypes.c_void_p
    kind = ctypes.PYFUNCTYPE(
        size, ctypes.py_object, size, size, size, place, place, place, size, place
    )
    _reader.jit = jit  # type: ignore[attr-defined]  # keeps the code
    return kind(jit.address("skf_read"))


class DictReader:
    """Reads dicts whose keys have the order of the first one.

    ``places`` are the columns of keys in rows of ``width`` numbers, and ``tables`` the
    numbers of texts and of None, for keys with texts. Other keys are ignored, or
    declined.
    """

    def __init__(
        self,
        places: Mapping[str, int],
        tables: Mapping[str, dict[str | None, float]],
        width: int,
        ignores: bool,
    ) -> None:
        self._places, self._tables = places, tables
        self._width, self._ignores = width, ignores
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
        known = {*self._places.values(), *([-1] if self._ignores else [])}
        if {*places} | {-1} != known | {-1} or not {*places} <= known:
            return None
        tables = [id(self._tables[k]) if k in self._tables else 0 for k in order]
        numbers = ctypes.c_int64 * len(order)
        return [numbers(*part) for part in (map(id, order), places, tables)]
