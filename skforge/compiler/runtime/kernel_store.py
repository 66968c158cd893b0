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
        if not self._keeps(schedule):
            return None
        return _read(self._key(schedule, element), _KERNELS)

    def add(self, schedule: Schedule, element: Element, kernel: StoredKernel) -> None:
        """Keep a kernel, if it is not too large."""
        size = len(kernel.binary) + sum(data.nbytes for data in kernel.data.values())
        if self._keeps(schedule) and size < object_cache.MOST_OF_ONE:
            key = self._key(schedule, element)
            object_cache.write(key, _KERNELS, list(_packed(kernel)))

    def drawn(self, draw: Callable[[], Arrays]) -> Arrays:
        """Return rows and their scores, drawn once for all kernels and processes."""
        if not programs.keeps():
            return draw()
        key = object_cache.key_of(self._facts)
        if (stored := _read(key, _SAMPLES)) is None:
            stored = StoredKernel("", [], None, b"", draw())
            object_cache.write(key, _SAMPLES, list(_packed(stored)))
        return stored.data

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


def _read(key: str, kind: str) -> StoredKernel | None:
    content = object_cache.read(key, kind)
    if content is not None:
        with suppress(ValueError, TypeError, KeyError):
            return _unpacked(content)
    return None


def _packed(kernel: StoredKernel) -> Iterator[object_cache.Part]:
    """Yield a header's length, the header, the object and the arrays.

    Each begins on a cache line, with at least one spare line after each array, which
    vector loads may touch.
    """
    parts = [np.frombuffer(kernel.binary, np.uint8), *kernel.data.values()]
    facts = {
        "name": kernel.name,
        "names": kernel.names,
        "most_rows": kernel.most_rows,
        "buffers": list(kernel.data),
        "dtypes": [part.dtype.str for part in parts],
        "shapes": [part.shape for part in parts],
    }
    header = json.dumps(facts).encode()
    header += b" " * (-(8 + len(header)) % _LINE)
    yield len(header).to_bytes(8, "little") + header
    for part in parts:
        yield np.ascontiguousarray(part).data
        yield bytes(_room(part.nbytes) - part.nbytes)


def _room(size: int) -> int:
    return -(-size // _LINE) * _LINE + _LINE


def _unpacked(content: object_cache.Bytes) -> StoredKernel:
    at = 8 + int.from_bytes(content[:8].tobytes(), "little")
    facts = json.loads(content[8:at].tobytes())
    parts = []
    for dtype, shape in zip(facts["dtypes"], facts["shapes"], strict=True):
        size = prod(shape) * np.dtype(dtype).itemsize
        parts.append(content[at : at + size].view(dtype).reshape(shape))
        at += _room(size)
    if at != len(content):
        raise ValueError("the sizes of the parts do not add up")
    binary, *data = parts
    return StoredKernel(
        facts["name"],
        facts["names"],
        facts["most_rows"],
        binary.tobytes(),
        dict(zip(facts["buffers"], data, strict=True)),
    )
