"""Kernels kept on disk with the arrays they read, so that nothing is lowered again.

A kernel's key is a digest of all that it is made from: the forest, the schedule, the
target, the reduction, and the sources of the compiler. A hit skips the lowering, the
encoding of the trees and the LLVM text; :mod:`~skforge.runtime.object_cache`
has the rules for the folder, damage and several writers. As a key cannot know of code
outside this package, kernels of others' directives or representations are not kept.

A random forest of 1.5 million nodes is loaded and answers its first row in .34 s with
its kernel stored, and in .94 s without (two cores of Emerald Rapids).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge._compat import cached_property
from skforge.compiler.forest.forest import Forest
from skforge.compiler.runtime.cpu import programs
from skforge.compiler.runtime.cpu.code import code_facts
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.runtime import object_cache

if TYPE_CHECKING:
    from skforge.compiler.ir.hir.nodes import Reduction
    from skforge.compiler.ir.mir.nodes import Element

Arrays: TypeAlias = dict[str, NDArray[Any]]

#: The folders of the cache, and the bytes that arrays are aligned to.
_KERNELS, _SAMPLES, _LINE = "kernels", "samples", 64
#: The name of a kernel's object among its arrays, which have names of buffers.
_CODE = ""


class StoredKernel(NamedTuple):
    """A kernel as an object with its arrays, which are aligned to a cache line."""

    name: str
    names: list[str]  # all functions of the object
    most_rows: int | None
    binary: bytes
    data: Arrays


class KernelStore:
    """The stored kernels of one forest for one target."""

    def __init__(self, forest: Forest, target: Target, reduction: Reduction) -> None:
        self._forest, self._target, self._reduction = forest, target, reduction

    def find(self, schedule: Schedule, element: Element) -> StoredKernel | None:
        """Return a schedule's kernel, or None if there is none that is intact."""
        keeps = self._keeps(schedule)
        stored = _read(self._key(schedule, element), _KERNELS) if keeps else None
        with suppress(KeyError):
            if stored is not None:
                facts, data = stored
                code = data.pop(_CODE).tobytes()
                names, most = facts["names"], facts["most_rows"]
                return StoredKernel(facts["name"], names, most, code, data)
        return None

    def add(self, schedule: Schedule, element: Element, kernel: StoredKernel) -> None:
        """Keep a kernel, if it is not too large."""
        size = len(kernel.binary) + sum(data.nbytes for data in kernel.data.values())
        if self._keeps(schedule) and size < object_cache.MOST_OF_ONE:
            *facts, binary, data = kernel
            named = dict(zip(kernel._fields, facts, strict=False))
            arrays = {_CODE: np.frombuffer(binary, np.uint8), **data}
            _write(self._key(schedule, element), _KERNELS, named, arrays)

    def drawn(self, draw: Callable[[], Arrays], anew: bool) -> Arrays:
        """Return rows and their scores, drawn once for all kernels and processes.

        ``anew`` replaces those that are stored.
        """
        if not programs.keeps():
            return draw()
        key = object_cache.key_of(self._facts)
        stored = None if anew else _read(key, _SAMPLES)
        if stored is not None:
            return stored[1]
        _write(key, _SAMPLES, {}, arrays := draw())
        return arrays

    def _keeps(self, schedule: Schedule) -> bool:
        if self._target.kind != "cpu" or not programs.keeps():
            return False
        if "skforge.compiler.layouts.base" not in sys.modules:  # to which others add
            return schedule.is_ours
        from skforge.compiler.layouts import base as representations

        names = (getattr(d, "representation", None) for d in schedule.directives)
        makers = [type(representations.get(name)) for name in names if name is not None]
        ours = all(maker.__module__.startswith("skforge.") for maker in makers)
        return ours and schedule.is_ours

    def _key(self, schedule: Schedule, element: Element) -> str:
        return object_cache.key_of((*self._facts, schedule.to_json(), element))

    @cached_property
    def _facts(self) -> tuple[str, ...]:
        forest, target = self._forest.content_hash(), self._target
        code = code_facts(target)
        width = str(target.vector_bits)  # cores and caches change the schedule alone
        return (programs.sources(), *code, width, self._reduction, forest)


def _write(key: str, kind: str, facts: dict[str, Any], arrays: Arrays) -> None:
    object_cache.write(key, kind, list(_packed(facts, arrays)))


def _read(key: str, kind: str) -> tuple[dict[str, Any], Arrays] | None:
    content = object_cache.read(key, kind)
    if content is not None:
        with suppress(ValueError, TypeError, KeyError):
            return _unpacked(content)
    return None


def _packed(facts: dict[str, Any], arrays: Arrays) -> Iterator[object_cache.Part]:
    """Yield a header's length, the header and the arrays.

    Each begins on a cache line, with at least one spare line after each array, which
    vector loads may touch.
    """
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
