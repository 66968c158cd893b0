"""Compiled entries in this process: tables that they read, and methods made of them.

:mod:`~skforge.engine.entry.entry` says what an entry is, and compiles it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from inspect import Parameter, signature
from types import FunctionType
from typing import Any, NamedTuple

from skforge.runtime import python_objects
from skforge.runtime.facts import c_address
from skforge.runtime.loading import LoadedCode


class EntrySizes(NamedTuple):
    """Numbers of a model that its entries read: models of one kind share their code."""

    n_features: int
    most_rows: int  # larger batches use the ordinary path
    method_rows: int  # larger batches use the function behind a method
    gil_rows: int  # from this many rows the GIL is released
    last_rows: Sequence[int]  # upper end of each batch range but the last

    def words(self) -> ctypes.Array[ctypes.c_int64]:
        return _words(*self[:-1], *self.last_rows, sys.maxsize)


def _words(*numbers: int) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(numbers))(*numbers)


class KernelTable:
    """Kernel addresses of each batch range, read by the compiled entry.

    A range has three words: kernel, model slots, number of slots; 0 if not compiled.
    """

    def __init__(self, n_ranges: int) -> None:
        self._words = (ctypes.c_int64 * (3 * max(1, n_ranges)))()
        self.address = ctypes.addressof(self._words)
        # By owner; never freed, as an entry may be running without the GIL.
        self._kept: dict[int, tuple[Any, object]] = {}

    def fill(self, index: int, kernel: int, slots: bytes, keep: object) -> None:
        """Publish a range's kernel; ``keep`` owns its code and data."""
        held = ctypes.create_string_buffer(slots, len(slots))
        held = self._kept.setdefault(id(keep), (held, keep))[0]
        self._write(index, kernel, ctypes.addressof(held), len(slots))

    def clear(self, index: int) -> None:
        self._write(index, 0, 0, 0)

    def _write(self, index: int, *words: int) -> None:
        # One call with the GIL, under which entries read the three words.
        self._words[3 * index : 3 * index + 3] = list(words)


class ShareTable:
    """How entries run batches: by whose kernel, on how many threads.

    A step has three words: its first batch size, the place of a range's kernel, and the
    number of threads; none if it is not planned yet, so that entries decline.
    """

    def __init__(self, least_rows: int) -> None:
        #: Of how many threads the plan is; 0 before there is one.
        self.threads = 0
        self._word = ctypes.c_int64()
        self.address = ctypes.addressof(self._word)  # of a word with the steps' address
        self._kept: dict[tuple[int, ...], Any] = {}  # an entry may be reading
        self._point((0, 0, 1, least_rows, 0, 0))

    def fill(
        self,
        firsts: Sequence[int],
        shares: Sequence[tuple[int, int] | None],
        threads: int,
    ) -> None:
        """Publish a plan; None is the range of the batch size, on one thread."""
        steps = [0, 0, 1]
        for first, share in zip(firsts, shares, strict=True):
            number, threads = share or (0, 1)
            steps += [first, 3 * number, threads]
        self._point(tuple(steps))
        self.threads = threads

    def _point(self, steps: tuple[int, ...]) -> None:
        words = (*steps, sys.maxsize)
        held = self._kept.setdefault(words, _words(*words))
        self._word.value = ctypes.addressof(held)


class Holder(bytearray):
    """What an entry and its method belong to; its bytes are their definitions.

    The collector of garbage clears its attributes, but not these.
    """

    def __init__(self, table: KernelTable, sizes: EntrySizes, labels: Any) -> None:
        super().__init__(2 * python_objects.DEFINITION)
        self.table, self.sizes, self.labels = table, sizes, labels
        self.jit: LoadedCode | None = None
        #: The method's owner while its entry may answer, and its function.
        self.words = (ctypes.c_int64 * 2)()
        #: Whether the code needs no more than the symbols of every entry, and loops of
        #: NumPy: their names and dtypes.
        self.alone = True
        self.loops: list[list[str]] = []
        #: Calls that the entry has answered, and their rows.
        self.counts = (ctypes.c_int64 * 2)()
        self.function: Any = None
        self.kept: list[object] = []

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle a method's holder so that the method is looked up by name again."""
        if self.function is None:
            raise TypeError("compiled entries cannot be pickled")
        return _ByName, ()

    def define(
        self, number: int, symbol: str, flags: int, name: str, doc: str | None
    ) -> Any:
        assert self.jit is not None
        what = self.jit.address(symbol), flags, name, doc
        function, kept = python_objects.builtin(self, number, *what)
        self.kept.append(kept)
        return function


class _ByName:
    """Replaces a holder in another process, where methods are looked up by name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def ask(owner: Any, *given: Any, **named: Any) -> Any:
            return getattr(owner, name)(*given, **named)

        return ask


def open_entry(
    code: Callable[[Mapping[str, int]], LoadedCode],
    table: KernelTable,
    sizes: EntrySizes,
    labels: Any,
) -> Any:
    """Return a compiled entry as a builtin function of one argument.

    ``code`` links it with addresses of symbols. ``labels`` are what it returns for the
    numbers of classes: a tuple of whole numbers, empty for the numbers themselves, or
    an array.
    """
    api = python_objects.numpy_api()
    assert api is not None
    holder, known = Holder(table, sizes, labels), sizes.words()
    numbers = _words(*(labels if type(labels) is tuple else ()))
    holder.kept += [numbers, known]
    holder.jit = code(
        {
            **_symbols(),
            **api,
            "skf_table": table.address,
            "skf_sizes": ctypes.addressof(known),
            "skf_counts": ctypes.addressof(holder.counts),
            "skf_owner": ctypes.addressof(holder.words),
            "skf_classes": id(labels),
            "skf_labels": ctypes.addressof(numbers),
        }
    )
    return holder.define(0, "skf_entry", python_objects.METH_O, "predict", None)


def as_method(entry: Any, owner: object, function: FunctionType) -> Any:
    """Return an entry as a method of one object, backed by a Python function.

    The method must be bound to the owner with ``types.MethodType``. Called with rows
    alone, it answers as the entry does. Other calls, other owners and declined rows are
    passed on to the function, whose name, signature and documentation it has. The owner
    is not kept alive: call :func:`retire` before it is freed or changes. An entry has
    at most one method.
    """
    holder = entry.__self__
    assert holder.function is None
    holder.function = function
    # A builtin function's repr shows the class of its holder.
    holder.__class__ = _holder_named(function.__qualname__.rpartition(".")[0])
    holder.words[1] = id(function)
    holder.words[0] = id(owner)
    # CPython keeps parameters of builtins as text, without types.
    parameters = signature(function).parameters.values()
    names = [str(p.replace(annotation=Parameter.empty)) for p in parameters]
    doc = f"{function.__name__}({', '.join(names)})\n--\n\n{function.__doc__ or ''}"
    flags = python_objects.METH_FASTCALL_KEYWORDS
    return holder.define(1, "skf_method", flags, function.__name__, doc)


@lru_cache(maxsize=64)
def _holder_named(name: str) -> type[Holder]:
    return type(name, (Holder,), {}) if name else Holder


def retire(entry: Any) -> None:
    """Make an entry's method pass on every call from now on."""
    entry.__self__.words[0] = 0


@lru_cache(maxsize=1)
def _symbols() -> dict[str, int]:
    exponentials = ("expf", "exp", "log1pf", "log1p")
    return {**python_objects.symbols(), **{n: c_address(n) for n in exponentials}}
