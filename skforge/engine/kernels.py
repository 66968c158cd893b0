"""Kernels of a compiled forest: machine code and its arrays, compiled once."""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import DTypeLike

from skforge._compat import cached_property
from skforge._typing import Array, Arrays
from skforge.compiler.backend import backend_of
from skforge.compiler.target import Target
from skforge.engine.cpu.code import MachineCode, code_facts
from skforge.engine.cpu.threads import parallel_for_pointer
from skforge.exceptions import CompilerError, SkforgeError, check_choice
from skforge.forest.forest import Forest
from skforge.forest.leaves import row_dtype, rows_in, scores_of_leaves
from skforge.outputs.steps import MAX_SLOTS
from skforge.runtime import object_cache, stored_kernels
from skforge.runtime.entries import KernelTable
from skforge.runtime.float_errors import own_arithmetic
from skforge.runtime.stored_kernels import StoredKernel
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule

if TYPE_CHECKING:
    from skforge.compiler.driver import Lowered
    from skforge.compiler.ir.hir.nodes import PredictEnsemble, Reduction
    from skforge.compiler.ir.mir.nodes import Element
    from skforge.engine.compiling import ScheduleLowering


#: Schedules by batch size.
Chosen: TypeAlias = dict[BatchRange, Schedule]


class AnyKernel(Protocol):
    """A kernel in the machine code of this process, or on a device."""

    def load(self) -> None: ...

    def __call__(self, rows: Array, result: Array, threads: int) -> None: ...


class Kernel:
    def __init__(self, source: Lowered | StoredKernel, target: Target) -> None:
        self.target = target
        if isinstance(source, StoredKernel):
            name = source.name
            self.jit = MachineCode(source.names, source.binary, target)
            data, most = source.data, source.most_rows
        else:
            from skforge.engine import compiling

            name = source.kernel.function.name
            self.jit = compiling.compiled(source, target)
            data = {k.buffer.name: aligned(k.data) for k in source.kernel.data}
            most = compiling.most_rows(source, compiling.SCRATCH_BYTES)
        #: Where the cache has it: its key and digest; None if it has not.
        self.cache_key = source.cache_key if isinstance(source, StoredKernel) else None
        self._name = name
        self._function, self.address = self.jit.function(name), self.jit.address(name)
        self._names = list(data)
        self._set([*data.values()])
        #: Most rows per run; None if scratch does not grow with the batch.
        self.most_rows = most

    def load(self) -> None:
        """Do nothing, as the code is loaded when it is compiled."""

    def stored(self) -> StoredKernel:
        data = dict(zip(self._names, self._data, strict=True))
        names, binary = self.jit.all_names, self.jit.binary
        return StoredKernel(self._name, names, self.most_rows, binary, data)

    def _set(self, data: list[Array]) -> None:
        self._data = data
        addresses = [array.ctypes.data for array in data]
        self.slots = struct.pack(f"{len(addresses)}q", *addresses)

    def with_data(self, other: Mapping[str, Array]) -> Kernel:
        kernel = copy(self)
        kernel.cache_key = None
        buffers = zip(self._names, self._data, strict=True)
        kernel._set([other.get(name, data) for name, data in buffers])
        return kernel

    def __call__(self, rows: Array, result: Array, threads: int) -> None:
        most = self.most_rows
        if most is None or len(rows) <= most:
            self._run(rows, result, threads)
            return
        for first in range(0, len(rows), most):
            part = slice(first, first + most)
            self._run(rows[part], result[part], threads)

    def _run(self, rows: Array, result: Array, threads: int) -> None:
        stride = rows.strides[0] // rows.itemsize
        head = _CALL.pack(address_of(rows), len(rows), stride, address_of(result))
        slots = head + self.slots
        if threads <= 1:
            self._function(slots, None, 1)
            return
        address, threads = parallel_for_pointer(threads)
        self._function(slots, address, threads)


#: The slots before the model's: rows, n_rows, row_stride, result.
_CALL = struct.Struct("4q")


def address_of(array: Array) -> int:
    """Return the address of an array's data; 3 times faster than ``array.ctypes``."""
    return array.__array_interface__["data"][0]


def line_aligned(
    make: Callable[[int, DTypeLike], Array], n: int, dtype: DTypeLike
) -> Array:
    """Return ``n`` elements that begin a cache line, with a spare line at the end."""
    size = n * np.dtype(dtype).itemsize
    raw = make(size + 128, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype)


def aligned(data: Array) -> Array:
    """Return a copy of the data, aligned to a cache line, with spare elements."""
    at_line = line_aligned(np.empty, data.size, data.dtype).reshape(data.shape)
    at_line[:] = data
    return at_line


#: The folder of the cache.
_SAMPLES = "samples"


class KernelStore:
    """Kernels kept on disk with the arrays they read, so that nothing is lowered again.

    A kernel's key is a digest of all that it is made from: the forest, the schedule,
    the target, the reduction, and the sources of the compiler. A hit skips the
    lowering, the encoding of the trees and the LLVM text;
    :mod:`~skforge.runtime.object_cache` has the rules for the folder, damage and
    several writers. As a key cannot know of code outside this package, kernels of
    others' directives or representations are not kept.

    A random forest of 1.5 million nodes is loaded and answers its first row in .34 s
    with its kernel stored, and in .94 s without (two cores of Emerald Rapids).
    """

    def __init__(
        self,
        forest: Forest,
        target: Target,
        reduction: Reduction,
        hashes: bool = False,
    ) -> None:
        self._forest, self._target, self._reduction = forest, target, reduction
        self._hashes = hashes

    def find(self, schedule: Schedule, element: Element) -> StoredKernel | None:
        if not self._keeps(schedule):
            return None
        return stored_kernels.find(self._key(schedule, element))

    def add(
        self, schedule: Schedule, element: Element, kernel: StoredKernel
    ) -> tuple[str, str] | None:
        if not self._keeps(schedule):
            return None
        return stored_kernels.add(self._key(schedule, element), kernel)

    def drawn(self, draw: Callable[[], Arrays], anew: bool) -> Arrays:
        """Return rows and scores, drawn once for all processes, or ``anew``."""
        if not object_cache.keeps():
            return draw()
        key = object_cache.key_of(self._facts)
        stored = None if anew else stored_kernels.read(key, _SAMPLES)
        if stored is not None:
            return stored[1]
        stored_kernels.write(key, _SAMPLES, {}, arrays := draw())
        return arrays

    def chosen(
        self, what: str, given: Sequence[Schedule], choose: Callable[[], Chosen]
    ) -> Chosen:
        """Return the schedules that ``choose`` returns for those given, kept by name.

        To choose imports the compiler, which takes longer than to load all kernels.
        """
        if not all(map(self._keeps, given)):
            return choose()
        texts = (schedule.to_json() for schedule in given)
        key = object_cache.key_of((*self._facts, self._target.to_json(), what, *texts))
        stored = object_cache.find(key)
        with suppress(ValueError, TypeError, LookupError, SkforgeError):
            entries = json.loads(b"" if stored is None else stored)
            return {(a, b): Schedule.from_json(text) for a, b, text in entries}
        chosen = choose()
        if all(map(self._keeps, chosen.values())):
            entries = [(*sizes, chosen[sizes].to_json()) for sizes in chosen]
            object_cache.store(key, json.dumps(entries).encode())
        return chosen

    def _keeps(self, schedule: Schedule) -> bool:
        if self._target.kind != "cpu" or not object_cache.keeps():
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
        how = width, self._reduction, *["hashes"] * self._hashes
        return (object_cache.sources(), *code, *how, forest)


_caches: weakref.WeakSet[KernelCache] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for cache in list(_caches):
        cache.lock = threading.RLock()  # in the child, its holder does not exist


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class KernelCache:
    """Compiles the kernels of a forest; ``hashes``: of rows with hashes of categories.

    These have the columns of the source.
    """

    def __init__(
        self,
        forest: Forest,
        target: Target,
        reduction: Reduction,
        hashes: bool = False,
    ) -> None:
        self.forest, self._target, self._hashes = forest, target, hashes
        self._reduction: Reduction = reduction
        self._kernels: dict[tuple[Schedule, Element], AnyKernel] = {}
        #: The schedule that finds leaves in place of each.
        self._walking: dict[Schedule, Chosen] = {}
        #: Where kernels are kept for other processes, if they are.
        self.store: KernelStore | None = None
        self.lock = threading.RLock()
        _caches.add(self)

    def kernel(self, schedule: Schedule, element: Element) -> AnyKernel:
        schedule = self.that_runs(schedule, element)
        key = (schedule, element)
        kernel = self._kernels.get(key)
        if kernel is None:
            with self.lock:
                kernel = self._kernels.get(key)
                if kernel is None:
                    kernel = self._kernels[key] = self._load_or_make(schedule, element)
        return kernel

    @own_arithmetic
    def _load_or_make(self, schedule: Schedule, element: Element) -> AnyKernel:
        if self.store is not None:
            stored = self.store.find(schedule, element)
            if stored is not None:
                # If a valid digest covers a damaged object, it is compiled again.
                with suppress(CompilerError):
                    return self.made(stored)
        kernel = self.made(self.lowered(schedule, element))
        if self.store is not None and isinstance(kernel, Kernel):
            kernel.cache_key = self.store.add(schedule, element, kernel.stored())
        return kernel

    def that_runs(self, schedule: Schedule, element: Element) -> Schedule:
        if element != "leaf_number":
            return schedule
        if schedule not in self._walking:

            def choose() -> Chosen:
                return {(1, None): self._lowering.walking(schedule)}

            self._walking[schedule] = self.chosen("walking", [schedule], choose)
        return self._walking[schedule][1, None]

    @own_arithmetic
    def chosen(
        self, what: str, given: Sequence[Schedule], choose: Callable[[], Chosen]
    ) -> Chosen:
        if self.store is None:
            return choose()
        return self.store.chosen(what, given, choose)

    def made(self, source: Lowered | StoredKernel) -> AnyKernel:
        return backend_of(self._target).kernel(source, self._target)

    def keep(self, schedule: Schedule, kernel: AnyKernel) -> None:
        self._kernels[schedule, "accumulator"] = kernel
        if self.store is not None and isinstance(kernel, Kernel):
            kernel.cache_key = self.store.add(schedule, "accumulator", kernel.stored())

    @cached_property
    def _lowering(self) -> ScheduleLowering:
        from skforge.engine.compiling import ScheduleLowering

        how = self._target, self._reduction, self._hashes
        return ScheduleLowering(self.forest, *how)

    def bind(
        self, schedule: Schedule, element: Element = "accumulator"
    ) -> PredictEnsemble:
        return self._lowering.bind(schedule, element)

    def lowered(self, schedule: Schedule, element: Element) -> Lowered:
        return self._lowering.lowered(schedule, element)

    def text(self, schedule: Schedule, element: Element, level: str) -> str:
        if level == "schedule":
            return repr(schedule)
        if level == "loops":
            return str(schedule.loop_nest(self.forest))
        from skforge.engine.compiling import code_text

        lowered = self.lowered(self.that_runs(schedule, element), element)
        code = backend_of(self._target).code_levels(self._target)
        if level in code:
            return code_text(lowered, self._target, level)
        check_choice("level", level, ("schedule", "loops", *lowered.levels, *code))
        return lowered.text(level)


class RangeKernels:
    """The kernel of each range, by its number in the order of batch sizes.

    ``element`` is what the kernels for scores write.
    """

    def __init__(
        self,
        schedules: Mapping[BatchRange, Schedule],
        cache: KernelCache,
        element: Element,
    ) -> None:
        self.ranges = sorted(schedules.items())
        self.first_rows = [first for (first, _), _ in self.ranges]
        #: Read by compiled entries.
        self.table = KernelTable(len(self.ranges))
        #: Gets this object, the number of a range and its kernel for scores before that
        #: answers, and returns the kernel that is to answer.
        self.arrives: Callable[[RangeKernels, int, AnyKernel], AnyKernel] | None = None
        #: Is told of each kernel for scores that answers from now on.
        self.note: Callable[[RangeKernels, int, AnyKernel], None] | None = None
        self.element: Element = element
        self.cache = cache
        self._ready: dict[tuple[int, Element], AnyKernel] = {}

    def number(self, n_rows: int) -> int:
        """Return the range of a batch size; between ranges, the lower one."""
        return max(0, bisect_right(self.first_rows, n_rows) - 1)

    def scores(self, n_rows: int) -> AnyKernel:
        return self.kernel(self.number(n_rows))

    def kernel(self, number: int, element: Element | None = None) -> AnyKernel:
        element = element or self.element
        # Looked up by range: hashing a schedule costs more than walking one row.
        kernel = self._ready.get((number, element))
        return self._arrived(number, element) if kernel is None else kernel

    def _arrived(self, number: int, element: Element) -> AnyKernel:
        kernel = self.cache.kernel(self.ranges[number][1], element)
        if self.arrives is not None and element == self.element:
            kernel = self.arrives(self, number, kernel)
        self._use(number, element, kernel)
        if self.note is not None and element == self.element:
            self.note(self, number, kernel)
        return kernel

    def lend(self, number: int, others: Iterable[int]) -> None:
        """Compile a range's kernel for scores, and let it answer for others, too.

        They may be lent another one later, or get their own.
        """
        kernel = self._arrived(number, self.element)
        for other in others:
            self._use(other, self.element, kernel)

    def compiled(self) -> list[int]:
        ready = list(self._ready)  # other threads may add to it
        return sorted(n for n, element in ready if element == self.element)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Let the first range's kernel for scores answer for ranges without one."""
        with self.cache.lock:
            first, element = self.kernel(0), self.element
            lent = set(range(len(self.ranges))).difference(self.compiled())
            for number in lent:
                self._use(number, element, first)
            try:
                yield
            finally:
                for number in lent:
                    self.table.clear(number)
                    del self._ready[number, element]

    def _use(self, number: int, element: Element, kernel: AnyKernel) -> None:
        self._ready[number, element] = kernel
        if element in ("accumulator", "contribution") and suits_entries(kernel):
            self.table.fill(number, kernel.address, kernel.slots, kernel)


def suits_entries(kernel: AnyKernel) -> TypeGuard[Kernel]:
    """Tell whether entries may call a kernel: they run whole batches, not parts."""
    if not isinstance(kernel, Kernel) or kernel.most_rows is not None:
        return False
    return len(kernel.slots) <= 8 * MAX_SLOTS


def raw_scores(
    forest: Forest, kernel: AnyKernel | None, rows: Array, threads: int = 1
) -> Array:
    if forest.aggregate == "sum":
        raw = np.empty((len(rows), forest.n_outputs), forest.accumulator_dtype)
        if kernel is not None:
            kernel(rows, raw, threads)
        forest.finish(raw)
    else:
        leaves: Array = np.empty((len(rows), forest.n_trees), row_dtype(forest))
        if kernel is not None and forest.n_trees:
            kernel(rows, leaves, threads)
        raw = scores_of_leaves(forest, rows_in(leaves), rows)
    return raw[:, 0] if forest.n_outputs == 1 else raw
