"""Strict reader of Universal Binary JSON, for the part that XGBoost writes.

The format is big-endian and length-prefixed. Lengths are compared with the remaining
bytes before anything is allocated, so a damaged file cannot use up memory.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from skforge.exceptions import InvalidModelError

_SCALARS: dict[int, struct.Struct] = {
    ord("i"): struct.Struct(">b"),
    ord("U"): struct.Struct(">B"),
    ord("I"): struct.Struct(">h"),
    ord("l"): struct.Struct(">i"),
    ord("L"): struct.Struct(">q"),
    ord("d"): struct.Struct(">f"),
    ord("D"): struct.Struct(">d"),
}
_DTYPES = {code: np.dtype(s.format) for code, s in _SCALARS.items()}
_LONG = _SCALARS[ord("L")]
# how XGBoost starts every array of numbers; the count follows as an int64
_OPENINGS = {b"[$" + bytes([code]) + b"#L": _DTYPES[code] for code in _DTYPES}
_CONSTANTS = {ord("Z"): None, ord("T"): True, ord("F"): False}
_INTEGERS = frozenset(b"iUIlL")
_MAX_DEPTH = 64  # XGBoost nests about ten levels
_ARRAY, _OBJECT, _STRING, _HIGH = b"[{SH"
_END_ARRAY, _END_OBJECT, _TYPE, _COUNT, _NOOP, _CHAR = b"]}$#NC"


def loads(data: bytes) -> Any:
    """Decode one UBJSON document.

    Typed arrays are big-endian read-only views of ``data``. Raises
    ``InvalidModelError``, naming the byte at which the document is invalid.
    """
    reader = _UbjsonReader(data)
    value = reader.value(reader.marker(), 0)
    if reader.offset != len(data):
        raise reader.error("data follows the end of the document")
    return value


class _UbjsonReader:
    __slots__ = ("data", "offset")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    def error(self, what: str) -> InvalidModelError:
        return InvalidModelError(
            f"Byte {self.offset} of {len(self.data)} of the UBJSON document: {what}; "
            "the file is damaged or not UBJSON, so save the model again."
        )

    def marker(self) -> int:
        data, at = self.data, self.offset
        while at < len(data) and data[at] == _NOOP:
            at += 1
        if at >= len(data):
            self.offset = len(data)
            raise self.error("the document ends too early")
        self.offset = at + 1
        return data[at]

    def take(self, size: int) -> int:
        start = self.offset
        if size > len(self.data) - start:
            raise self.error(f"{size} bytes are announced, but fewer follow")
        self.offset = start + size
        return start

    def length(self) -> int:
        code = self.marker()
        if code not in _INTEGERS:
            raise self.error(f"a length has the type {chr(code)!r}")
        scalar = _SCALARS[code]
        size = int(scalar.unpack_from(self.data, self.take(scalar.size))[0])
        if size < 0:
            raise self.error(f"a length is {size}")
        return size

    def text(self) -> str:
        size = self.length()
        start = self.take(size)
        try:
            return self.data[start : start + size].decode()
        except UnicodeDecodeError:
            raise self.error("a string is not UTF-8") from None

    def value(self, code: int, depth: int) -> Any:
        scalar = _SCALARS.get(code)
        if scalar is not None:
            return scalar.unpack_from(self.data, self.take(scalar.size))[0]
        if code in (_STRING, _HIGH):
            return self.text()
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code == _CHAR:
            return chr(self.data[self.take(1)])
        if depth >= _MAX_DEPTH:
            raise self.error(f"values are nested more than {_MAX_DEPTH} deep")
        if code == _OBJECT:
            return self.object(depth + 1)
        if code == _ARRAY:
            return self.array(depth + 1)
        raise self.error(f"{chr(code)!r} is not a type")

    def header(self) -> tuple[int | None, int | None]:
        kind = count = None
        if self.data[self.offset : self.offset + 1] == b"$":
            self.offset += 1
            kind = self.marker()
            if self.data[self.offset : self.offset + 1] != b"#":
                raise self.error("a typed container has no count")
        if self.data[self.offset : self.offset + 1] == b"#":
            self.offset += 1
            count = self.length()
        return kind, count

    def array(self, depth: int) -> Any:
        kind, count = self.header()
        if kind in _DTYPES and count is not None:
            dtype = _DTYPES[kind]
            start = self.take(count * dtype.itemsize)
            return np.frombuffer(self.data, dtype, count, start)
        if kind in _CONSTANTS:
            raise self.error("an array of constants is not supported")
        values: list[Any] = []
        while count is None or len(values) < count:
            code = self.marker() if kind is None else kind
            if code == _END_ARRAY and count is None:
                break
            values.append(self.value(code, depth))
        return values

    def object(self, depth: int) -> dict[str, Any]:
        kind, count = self.header()
        if kind in _CONSTANTS:
            raise self.error("an object of constants is not supported")
        values: dict[str, Any] = {}
        seen = 0
        while count is None or seen < count:
            seen += 1
            if kind is None and self.number_array(values):
                continue
            if count is None:
                if self.marker() == _END_OBJECT:
                    break
                self.offset -= 1
            name = self.text()
            values[name] = self.value(self.marker() if kind is None else kind, depth)
        return values

    def number_array(self, into: dict[str, Any]) -> bool:
        """Read a member that is an array of numbers, or read nothing.

        Models consist of these, hundreds of thousands in one file, so this fast path
        for XGBoost's own files makes no calls. Members of any other form, including
        damaged ones, are left to the general path.
        """
        data, at = self.data, self.offset
        stop = len(data) - 14  # the opening and the count that follow a name
        if at + 9 > stop or data[at] != ord("L"):
            return False
        begin = at + 9
        end = begin + int(_LONG.unpack_from(data, at + 1)[0])
        if not begin <= end <= stop:
            return False
        dtype = _OPENINGS.get(data[end : end + 5])
        if dtype is None:
            return False
        count = int(_LONG.unpack_from(data, end + 5)[0])
        start = end + 13
        after = start + count * dtype.itemsize
        name = data[begin:end]
        if count < 0 or after > len(data) or not name.isascii():
            return False
        into[name.decode()] = np.frombuffer(data, dtype, count, start)
        self.offset = after
        return True
