"""Loaded models that answer from the cache before anything else of them is made.

The first process that calls a method of a file's model notes in the cache which code
and arrays answered (:mod:`skforge.persistence.note`). Later processes link these and
call the entry. Rows that the entry declines, and all that is not a prediction, take the
model whole from the file, with the modules that this needs. ``warm_up`` links the same,
if a process has warmed up before, so that the cache has all the rest, too.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from _thread import RLock
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from types import MethodType
from typing import Any

import numpy as np

from skforge.runtime import entries, facts, object_cache, stored_kernels
from skforge.runtime.entries import EntrySizes, KernelTable
from skforge.runtime.loading import LoadedCode
from skforge.runtime.python_objects import is_known_python, numpy_api

#: Held while a model is made whole. It must not wait for a thread that a fork ended.
_lock = RLock()


def ready(digest: str, load: Callable[[], Any]) -> ReadyForest | None:
    """Return what the cache has to answer for a file; ``load`` loads the rest."""
    record = record_of(digest)
    return None if record is None else ReadyForest(record, load)


def record_of(digest: str) -> Any:
    key = key_of(digest)
    stored = None if key is None else object_cache.find(key)
    return None if stored is None else json.loads(stored)


def key_of(digest: str) -> str | None:
    here = _machine_key()
    if here is None or not object_cache.keeps():
        return None
    return object_cache.key_of(("ready", object_cache.sources(), *here, digest))


@lru_cache(maxsize=1)
def _machine_key() -> tuple[str, ...] | None:
    """Return what code depends on in this process; None if that is not known."""
    cpu, python = facts.cpu_facts(), sys.implementation.cache_tag
    if not cpu or not is_known_python() or numpy_api() is None:
        return None
    return str(python), np.__version__, facts.llvm_version(), facts.machine(), cpu


@lru_cache(maxsize=64)
def _code_of(key: str, digest: str) -> bytes:
    """Return an entry's code, which models of one kind share.

    Raise ``LookupError`` if the cache lacks it; the next call looks again.
    """
    if (stored := object_cache.find(key, digest)) is None:
        raise LookupError(key)
    return stored


def _read_dicts(key: str, digest: str) -> Any:
    """Return the function that reads many dicts; None if the cache lacks it."""
    with suppress(LookupError):
        return _dicts_code(key, digest)
    return None


@lru_cache(maxsize=1)
def _dicts_code(key: str, digest: str) -> Any:
    from skforge.runtime import dict_reader
    from skforge.runtime.python_objects import symbols

    names, _, binary = _code_of(key, digest).partition(b"\n")
    known = symbols(*dict_reader.CLASSES)
    code = LoadedCode(names.decode().split(), binary, known)
    return dict_reader.function_of(code)


#: Packages whose rows take a whole model: who has imported one may have such rows.
_OF_ROWS = {"pandas", "polars", "pyarrow", "scipy.sparse"}
_FLOATS = np.dtype(np.float32), np.dtype(np.float64)
#: Rows of a batch that is answered in parts: a multiple of what kernels and CatBoost's
#: exponential take at a time, so that each row has the bits that it has in the whole.
_PART = 64


def takes_whole(modules: Iterable[str]) -> bool:
    return not _OF_ROWS.isdisjoint(modules)


def _labels_in(labels: Any) -> Any:
    if isinstance(labels, dict):
        return np.array(labels["values"], np.dtype(labels["dtype"]))
    return tuple(labels)


def _loops_in(loops: list[Any]) -> dict[str, int]:
    """Return the addresses of NumPy's loops; another process compared them."""
    if not loops:
        return {}
    from skforge.runtime.numpy_loops import address_of

    found = {f"skf_{name}": address_of(name, dtype) for name, dtype in loops}
    known = {symbol: address for symbol, address in found.items() if address}
    if len(known) < len(found):
        raise LookupError(*found)
    return known


class Becoming:
    """An object that becomes another where something asks for what it lacks."""

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        """``CompiledForest`` for isinstance, in a process that may know estimators."""
        if "sklearn.base" not in sys.modules:
            return type(self)
        from skforge.estimators import CompiledForest

        return CompiledForest


def change_class(thing: Any, kind: type[Any]) -> None:
    vars(object)["__class__"].__set__(thing, kind)


#: The dictionary of an object whose class tells another one.
_STATE: Any = vars(Becoming)["__dict__"]


class _Method:
    def __init__(self, name: str) -> None:
        def method(self: Any, X: Any, **params: Any) -> Any:
            found = None if params else _ready_of(self)
            if found is not None and (answer := found.answer(name, X)) is not None:
                return answer
            return getattr(_loaded(self), name)(X, **params)

        method.__name__, method.__qualname__ = name, f"CompiledForest.{name}"
        method.__doc__ = f"See :meth:`skforge.CompiledForest.{name}`."
        self.function: Any = method

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        try:
            return MethodType(obj._methods[self], obj)
        except (AttributeError, KeyError):
            pass  # on the class, the model is whole, or first access
        if obj is None:
            return self.function
        function, name = self.function, self.function.__name__
        with _lock:
            found = _ready_of(obj)
            if found is not None and (entry := found.entry(name)) is not None:
                methods = obj._methods
                if self not in methods:  # no other thread was faster
                    direct = found.direct
                    methods[self] = (
                        entries.as_method(entry, obj, function) if direct else function
                    )
                return MethodType(methods[self], obj)
        return getattr(_loaded(obj), name)


class ReadyForest(Becoming):
    """A loaded ``CompiledForest`` of which the entries are linked that it has called.

    For all that they do not answer, it becomes what it stands for; see
    :class:`~skforge.persistence.loaded.LoadedForest`, which it then is.
    """

    _methods: dict[_Method, Any]
    predict = _Method("predict")
    predict_proba = _Method("predict_proba")
    predict_raw = _Method("predict_raw")
    decision_function = _Method("decision_function")
    score_samples = _Method("score_samples")

    def __init__(self, record: Any, load: Callable[[], Any]) -> None:
        state = _STATE.__get__(self)
        state["_ready"], state["_methods"] = _Ready(record, load), {}

    def warm_up(self, batch_sizes: Any = None, *, contribs: bool = False) -> Any:
        """See :meth:`skforge.CompiledForest.warm_up`."""
        ready = None if contribs or takes_whole(sys.modules) else _ready_of(self)
        if ready is None or not ready.warm_up(batch_sizes):
            return _loaded(self).warm_up(batch_sizes, contribs=contribs)
        for method in ready.methods:
            getattr(self, method)  # is bound now, and not by a request
        return self

    def counters(self) -> dict[str, dict[str, int]]:
        """See :meth:`skforge.CompiledForest.counters`."""
        if (ready := _ready_of(self)) is None:
            counts: dict[str, dict[str, int]] = _loaded(self).counters()
            return counts
        from skforge.prediction.counters import Counters

        return Counters(ready.counts).read()

    def __repr__(self) -> str:
        return repr(_loaded(self))

    def __dir__(self) -> list[str]:
        return dir(_loaded(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _loaded(self).__reduce_ex__(protocol)

    # the module takes .2 ms, which no start has to pay
    def __copy__(self) -> Any:
        from copy import copy

        return copy(_loaded(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        from copy import deepcopy

        return deepcopy(_loaded(self), memo)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return vars(_loaded(self))

    def __getattr__(self, name: str) -> Any:
        return getattr(_loaded(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_loaded(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_loaded(self), name)


class _Ready:
    """What a :class:`ReadyForest` answers with until it is whole."""

    def __init__(self, record: Any, load: Callable[[], Any]) -> None:
        self._record, self.load = record, load
        #: Whether entries take arrays as users pass them.
        self.direct: bool = record["direct"]
        self._entries: dict[str, Any] = {}
        self._table: KernelTable | None = None
        self._mappings: Any = None
        #: Calls that entries have counted for parts of batches, as a negative number.
        self._parts = [0, 0]

    @property
    def methods(self) -> list[str]:
        return [*self._record["entries"]]

    def warm_up(self, batch_sizes: Any) -> bool:
        """Link what answers batches of these sizes, if the cache has the rest, too."""
        warm, sizes = self._record["warm"], np.ravel([])
        if warm is None:
            return False
        if batch_sizes is not None:
            sizes = np.ravel(batch_sizes)
            if sizes.dtype.kind not in "iu" or (sizes < 0).any():
                return False  # the whole model refuses them
        known, every = warm["sizes"], batch_sizes is None
        if known is not None and (every or not {*known}.issuperset(sizes.tolist())):
            return False
        with _lock:
            linked = [self.entry(method) for method in self.methods]
        if not self.direct and self.mappings is None:
            return False  # it takes no rows
        if None in linked or not all(object_cache.holds(*one) for one in warm["used"]):
            return False
        mappings = self.mappings
        return mappings is None or mappings.load() is not None

    def entry(self, method: str) -> Any:
        if method not in self._entries:
            with suppress(LookupError):
                self._entries[method] = self._linked(method)
        return self._entries.get(method)

    def _linked(self, method: str) -> Any:
        key, digest, labels, sizes, loops = self._record["entries"][method]
        if self._table is None:
            self._table = self._filled()
        names, _, binary = _code_of(key, digest).partition(b"\n")
        known = _loops_in(loops)

        def code(symbols: Mapping[str, int]) -> LoadedCode:
            return LoadedCode(names.decode().split(), binary, {**symbols, **known})

        labels = _labels_in(labels)
        return entries.open_entry(code, self._table, EntrySizes(*sizes), labels)

    def _filled(self) -> KernelTable:
        table = KernelTable(len(self._record["ranges"]))
        for number, key, digest in self._record["kernels"]:
            stored = stored_kernels.find(key, digest)
            if stored is None:
                raise LookupError(key)
            code = LoadedCode(stored.names, stored.binary)
            data = [*stored.data.values()]
            addresses = [array.ctypes.data for array in data]
            slots = struct.pack(f"{len(addresses)}q", *addresses)
            table.fill(number, code.address(stored.name), slots, (code, data))
        return table

    def answer(self, method: str, X: Any) -> Any:
        entry = self._entries.get(method)
        if entry is None:
            with _lock:
                entry = self.entry(method)
        if entry is None:
            return None
        larger = partial(self._larger, method, entry)
        if type(X) is dict or (type(X) is list and X and type(X[0]) is dict):
            mappings = self.mappings
            if mappings is None or (type(X) is list and mappings.load() is None):
                return None
            return mappings.ask(entry, X, larger)
        if type(X) is list and self._record["lists"]:
            with suppress(ValueError):  # rows of several lengths
                X = np.asarray(X)
        if not self.direct:
            return None
        answer = entry(X)
        return larger(X) if answer is None and type(X) is np.ndarray else answer

    def _larger(self, method: str, entry: Any, X: Any) -> Any:
        """Answer arrays that an entry declined for their size, dtype or order alone."""
        sizes = EntrySizes(*self._record["entries"][method][3])
        if X.ndim != 2 or not len(X) or X.shape[1] != sizes.n_features:
            return None
        if len(X) <= sizes.most_rows:
            dense = self._dense(X)
            return None if dense is X or dense is None else entry(dense)
        step, parts = (sizes.most_rows - 1) // _PART * _PART, []
        # no part of one row at the end: ONNX graphs may compute it in another order
        for first in range(0, len(X) - 1 if step else 0, step or 1):
            end = first + step
            rows = self._dense(X[first : end + (end + 1 == len(X))])
            part = None if rows is None else entry(rows)
            if part is None:
                break
            parts.append(part)
        answered = sum(map(len, parts))
        whole = answered == len(X)
        with _lock:
            self._parts[0] += whole - len(parts)
            self._parts[1] -= 0 if whole else answered
        return np.concatenate(parts) if whole else None

    def _dense(self, X: Any) -> Any:
        """Return rows as kernels read them; None if an entry would not take them so."""
        wanted = np.dtype(self._record["dtype"])
        if X.dtype == wanted:
            return X if X.strides[1] == X.itemsize else np.ascontiguousarray(X)
        if self._record["converts"] and X.dtype in _FLOATS:
            # some sources warn of numbers too large
            with suppress(FloatingPointError), np.errstate(over="raise"):
                return X.astype(wanted, order="C")
        return None

    @property
    def mappings(self) -> Any:
        """The reader of mappings; None if the model takes them otherwise, or not."""
        columns, reader = self._record["columns"], self._record["reader"]
        if self._mappings is None and columns is not None:
            from skforge.runtime.dict_reader import DictReader
            from skforge.runtime.mappings import MappingColumns, Mappings
            from skforge.runtime.records import plain_in

            compiled = reader and partial(DictReader, partial(_read_dicts, *reader))
            rules = plain_in(MappingColumns, columns, "columns")
            self._mappings = Mappings(rules, compiled)
        return self._mappings

    @property
    def _opened(self) -> list[Any]:
        return [entry for entry in self._entries.values() if entry is not None]

    @property
    def counts(self) -> list[Any]:
        return [*(entry.__self__.counts for entry in self._opened), self._parts]

    @property
    def ignores(self) -> bool:
        """Whether a user was told that further keys of mappings are ignored."""
        return self._mappings is not None and self._mappings.ignores

    def retire(self) -> None:
        for entry in self._opened:
            entries.retire(entry)


def _ready_of(forest: Any) -> _Ready | None:
    with suppress(AttributeError):
        return forest._ready
    return None


def _loaded(forest: Any) -> Any:
    with _lock:
        if type(forest) is ReadyForest:  # and no other thread has made it whole
            state: dict[str, Any] = _STATE.__get__(forest)
            before = state["_ready"]
            whole = before.load()
            before.retire()
            state.update(vars(whole), _before=before)
            change_class(forest, type(whole))
            del state["_ready"], state["_methods"]
    return forest


def _after_fork_in_child() -> None:
    global _lock
    _lock = RLock()  # in the child, its holder does not exist


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
