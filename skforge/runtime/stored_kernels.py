"""Kernels with the arrays that they read, in the cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from typing import Any, NamedTuple

import numpy as np

from skforge._typing import Arrays
from skforge.runtime import object_cache

#: The folder of the cache, and the bytes that arrays are aligned to.
KERNELS, _LINE = "kernels", 64
#: The name of a kernel's object among its arrays, which have names of buffers.
_CODE = ""


class StoredKernel(NamedTuple):
    """A kernel as an object with its arrays, which are aligned to a cache line."""

    name: str
    names: list[str]  # all functions of the object
    most_rows: int | None
    binary: bytes
    data: Arrays
    #: Where the cache has it: its key and digest; None if it has not.
    cache_key: tuple[str, str] | None = None


def find(key: str, digest: str | None = None) -> StoredKernel | None:
    stored = read(key, KERNELS, digest)
    with suppress(KeyError):
        if stored is not None:
            facts, data, found = stored
            code = data.pop(_CODE).tobytes()
            names, most = facts["names"], facts["most_rows"]
            return StoredKernel(facts["name"], names, most, code, data, (key, found))
    return None


def add(key: str, kernel: StoredKernel) -> tuple[str, str] | None:
    name, names, most, binary, data, _ = kernel
    if len(binary) + sum(x.nbytes for x in data.values()) >= object_cache.MOST_OF_ONE:
        return None
    facts = {"name": name, "names": names, "most_rows": most}
    arrays = {_CODE: np.frombuffer(binary, np.uint8), **data}
    digest = write(key, KERNELS, facts, arrays)
    return None if digest is None else (key, digest)


def write(key: str, kind: str, facts: dict[str, Any], arrays: Arrays) -> str | None:
    return object_cache.write(key, kind, list(_packed(facts, arrays)))


def read(
    key: str, kind: str, digest: str | None = None
) -> tuple[dict[str, Any], Arrays, str] | None:
    stored = object_cache.read_known(key, kind, digest)
    if stored is not None:
        with suppress(ValueError, TypeError, KeyError):
            return *_unpacked(stored[0]), stored[1]
    return None


def _packed(facts: dict[str, Any], arrays: Arrays) -> Iterator[object_cache.BytesLike]:
    """Yield a header and arrays on lines; vector loads may touch the spare one."""
    described = [(name, x.dtype.str, x.shape) for name, x in arrays.items()]
    header = json.dumps({**facts, "arrays": described}).encode()
    header += b" " * (-(8 + len(header)) % _LINE)
    yield len(header).to_bytes(8, "little") + header
    for array in arrays.values():
        yield np.ascontiguousarray(array).data
        yield bytes(_room(array.nbytes) - array.nbytes)


def _room(size: int) -> int:
    return -(-size // _LINE) * _LINE + _LINE


def _unpacked(content: object_cache.Bytes) -> tuple[dict[str, Any], Arrays]:
    at = 8 + int.from_bytes(content[:8].tobytes(), "little")
    facts, arrays = json.loads(content[8:at].tobytes()), {}
    for name, dtype, shape in facts["arrays"]:
        size = prod(shape) * np.dtype(dtype).itemsize
        arrays[name] = content[at : at + size].view(dtype).reshape(shape)
        at += _room(size)
    if at != len(content):
        raise ValueError("the sizes of the arrays do not add up")
    return facts, arrays
