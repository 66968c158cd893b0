"""Python entry points compiled with the kernels, called without any wrapper.

``ctypes`` costs 4 us per call and NumPy's checks about as much, several times the cost
of walking one row. So the checks, the output array and the transform are compiled too,
as a C function that Python calls directly (a ``PyCFunction``; no C extension)::

    entry(rows):
      if type(rows) is not numpy.ndarray: return None
      if not 2-d, no floats, other width, gaps between columns: return None
      if no kernel is compiled for this many rows: return None
      if float64 for float32 or the other way: convert
      if a value is one the source refuses (inf): return None
      out = numpy.empty(...)
      kernel(rows, out)           # without the GIL and on threads when it is worth it
      transform(out)
      return out

``None`` means declined: the caller uses its ordinary path, which validates, warns and
raises as the source does. :func:`as_method` makes a method of an entry, which calls the
ordinary path itself.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from inspect import Parameter, signature
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from skforge.compiler.forest.forest import Forest
from skforge.compiler.outputs.libm import power_loop
from skforge.compiler.outputs.steps import EntryKind, Steps
from skforge.compiler.runtime.cpu.code import MachineCode
from skforge.compiler.runtime.cpu.programs import program
from skforge.compiler.runtime.cpu.threads import entry_symbols
from skforge.compiler.system import c_address
from skforge.compiler.target import Target
from skforge.runtime import python_objects

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Routine

#: Work, in rows * node visits, from which the GIL is released: about 20 us.
GIL_WORK = 30_000
#: Work up to which a bound method is an entry: about 40 us.
METHOD_WORK = 60_000
#: Most labels in a table in an entry's code.
MAX_LABELS = 1000
#: Most values of a batch; for larger ones the ordinary path costs nothing noticeable.
MAX_VALUES = 1 << 20


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
        """Make entries decline a range."""
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
        """Publish a plan for ``threads``: a range and threads from each batch size on.

        None is the range of the batch size, and one thread.
        """
        steps = [0, 0, 1]
        for first, share in zip(firsts, shares, strict=True):
            number, threads = share or (0, 1)
            steps += [first, 3 * number, threads]
        self._point(tuple(steps))
        self.threads = threads

    def _point(self, steps: tuple[int, ...]) -> None:
        words = (*steps, sys.maxsize)
        held = self._kept.setdefault(words, (ctypes.c_int64 * len(words))(*words))
        self._word.value = ctypes.addressof(held)


class _Holder:
    """Owns everything an entry needs; it is the function's ``self``."""

    def __init__(self, table: KernelTable) -> None:
        self.table = table
        self.jit: MachineCode | None = None
        #: The method's owner while its entry may answer, and its function.
        self.words = (ctypes.c_int64 * 2)()
        #: Calls that the entry has answered, and their rows.
        self.counts = (ctypes.c_int64 * 2)()
        self.function: Any = None
        self.kept: list[object] = []

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle a method's holder so that the method is looked up by name again."""
        if self.function is None:
            raise TypeError("compiled entries cannot be pickled")
        return _ByName, ()

    def define(self, symbol: str, flags: int, name: str, doc: str | None) -> Any:
        """Return a compiled function as one that Python can call."""
        assert self.jit is not None
        address = self.jit.address(symbol)
        function, kept = python_objects.builtin(address, flags, name, doc, self)
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


def supports(forest: Forest) -> bool:
    """Tell whether this process and forest can have entry points.

    Entries read CPython's object layout. Other interpreters, free-threaded builds and
    missing-value markers other than NaN use the ordinary path.
    """
    return (
        python_objects.is_known_python()
        and bool(np.isnan(forest.missing_value))
        and forest.n_trees > 0
        and forest.n_features > 0
        and python_objects.numpy_api() is not None
    )


def kind_of(
    forest: Forest, steps: Steps, first_rows: Sequence[int], most_rows: int | None
) -> EntryKind:
    """Return what an entry computes, for batches of a size that pays.

    ``first_rows`` are the least rows of each batch range.
    """
    work = max(1, int(forest.n_trees * max(1.0, forest.mean_depth())))
    most = max(1, MAX_VALUES // max(forest.n_features, forest.n_outputs))
    return EntryKind(
        n_features=forest.n_features,
        n_outputs=forest.n_outputs,
        row_dtype=forest.input_dtype.name,
        sum_dtype=forest.accumulator_dtype.name,
        steps=steps,
        refused="nothing",
        last_rows=tuple(first - 1 for first in first_rows[1:]),
        most_rows=most if most_rows is None else min(most, most_rows),
        gil_rows=max(1, GIL_WORK // work),
        method_rows=max(1, METHOD_WORK // work),
    )


def build_entry(
    kind: EntryKind,
    table: KernelTable,
    target: Target,
    classes: Any = None,
    shares: ShareTable | None = None,
) -> Any:
    """Compile an entry point and return it as a builtin function of one argument.

    It returns ``classes``, if given, in place of class indices, and runs batches on
    several threads as ``shares`` says.
    """
    api = python_objects.numpy_api()
    assert api is not None
    holder = _Holder(table)
    symbols = {
        **_python_symbols(),
        **api,
        "skf_table": table.address,
        "skf_counts": ctypes.addressof(holder.counts),
        "skf_owner": ctypes.addressof(holder.words),
        "skf_none": id(None),
        "skf_classes": id(classes),
    }
    if classes is not None:
        known = _labels(classes)
        takes = known is None
        kind = replace(kind, takes=takes, steps=replace(kind.steps, labels=known or ()))
        if takes:
            holder.kept.append(classes)
    if shares is not None:
        holder.kept.append(shares)
        symbols |= {**entry_symbols(), "skf_shares": shares.address}
    if kind.steps.function == "path_score":
        symbols["skf_power"] = power_loop() or 0
    labels = (ctypes.c_int64 * len(kind.steps.labels))(*kind.steps.labels)
    holder.kept.append(labels)
    symbols["skf_labels"] = ctypes.addressof(labels)
    # The code reads objects of Python and NumPy where these releases have them.
    releases = str(sys.implementation.cache_tag), np.__version__
    facts = "entry", *releases, repr(kind)
    holder.jit = program(facts, partial(_routines, kind), target, symbols)
    return holder.define("skf_entry", python_objects.METH_O, "predict", None)


def _routines(kind: EntryKind) -> Sequence[Routine]:
    from skforge.compiler.runtime.entry import routines

    return routines.write(kind)


def _labels(classes: Any) -> tuple[int, ...] | None:
    """Return the table of labels, empty if they are indices; None for NumPy's take."""
    if classes.dtype != np.int64 or classes.ndim > 1 or len(classes) > MAX_LABELS:
        return None
    if np.array_equal(classes, np.arange(len(classes))):
        return ()
    return tuple(classes.tolist())


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
    return holder.define(
        "skf_method", python_objects.METH_FASTCALL_KEYWORDS, function.__name__, doc
    )


@lru_cache(maxsize=64)
def _holder_named(name: str) -> type[_Holder]:
    return type(name, (_Holder,), {}) if name else _Holder


def retire(entry: Any) -> None:
    """Make an entry's method pass on every call from now on."""
    entry.__self__.words[0] = 0


# ------------------------------------------------------------ the process


@lru_cache(maxsize=1)
def _python_symbols() -> dict[str, int]:
    # In Python 3.10 the general call is an inline function, which no library exports;
    # a method's fallback is always a Python function, which has its own.
    inline = sys.version_info < (3, 11)
    names = {
        "skf_vectorcall": "_PyFunction_Vectorcall" if inline else "PyObject_Vectorcall",
        "skf_take": "PyObject_GetItem",
        "skf_decref": "Py_DecRef",
        "skf_clear": "PyErr_Clear",
        "skf_incref": "Py_IncRef",
        "skf_save_thread": "PyEval_SaveThread",
        "skf_restore_thread": "PyEval_RestoreThread",
    }
    symbols: dict[str, int | None] = {**python_objects.addresses(names)}
    symbols |= {name: c_address(name) for name in ("expf", "exp", "log1pf", "log1p")}
    return {name: int(address or 0) for name, address in symbols.items()}
