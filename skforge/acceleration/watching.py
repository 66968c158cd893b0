"""Tells whether a model is still the one that was compiled.

Everything that a library reads of its model is looked at in each call: which objects
the attributes of the model and of its members are, what lists and arrays hold, and the
nodes and values of scikit-learn's trees, byte by byte, as a program may write to them.
What C++ keeps of a Booster changes by its methods alone, which are wrapped.

Of attributes that the library does not know, only the names count. A model whose
members have such attributes is not compiled: they might refer to the model, and what
refers to it here must not keep it alive.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections.abc import Iterable
from functools import partial
from operator import is_
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: What no library reads again after training, and what only its training reads.
_UNREAD = frozenset(
    (
        *("evals_result_", "_evals_result", "_best_score", "best_score", "params"),
        *("train_set", "valid_sets", "name_valid_sets", "train_score_", "_rng"),
        *("validation_score_", "oob_score_", "oob_scores_", "oob_improvement_"),
        *("oob_decision_function_", "oob_prediction_", "estimators_samples_"),
        *("random_state", "_random_seed", "_feature_subsample_rng", "callbacks"),
        "_transformers_feature_names_out",  # which each call writes anew
    )
)
#: Packages whose objects have attributes that are looked at.
PACKAGES = ("sklearn", "xgboost", "lightgbm", "catboost")
_PLAIN = (
    *(int, float, complex, bool, str, bytes, type(None), range, slice, type),
    *(np.generic, np.dtype, FunctionType, BuiltinFunctionType, ModuleType),
    *(np.random.RandomState, np.random.Generator, np.ufunc),
)
#: Bytes of arrays up to which they are copied to be compared.
_SMALL = 1 << 15
#: Most bytes that are kept of a model to compare with.
MOST_BYTES = 1 << 30

_memcmp = ctypes.CDLL(None).memcmp if sys.platform != "win32" else None
if _memcmp is not None:
    _memcmp.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t


class UnwatchedError(Exception):
    """A model has a part whose changes would not be noticed."""


class Watch:
    """The parts of a model, as they were when it was compiled."""

    def __init__(self, model: Any) -> None:
        #: The names of the model's attributes, and the values of those that count.
        self._names = [*vars(model)]
        self._own: list[tuple[str, Any]] = []
        #: Attributes of members and entries of dictionaries, all or those that count.
        self._dicts: list[tuple[Any, dict[Any, Any], list[Any]]] = []
        self._some: list[tuple[Any, dict[Any, Any], dict[Any, Any], int]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._arrays: list[tuple[NDArray[Any], Any, bytes | NDArray[Any]]] = []
        self._trees: list[tuple[Any, int, Any, Any]] = []
        #: Objects of libraries that wrapped methods may change.
        self.parts: list[Any] = []
        self._seen: dict[int, Any] = {}
        self._bytes = 0
        kind = type(model)
        settings = _settings(kind)
        for name, value in vars(model).items():
            if callable(getattr(kind, name, None)):
                raise UnwatchedError(f"its own {name} stands before its class's")
            if not (
                name in settings or "_" in (name[0], name[-1]) or is_booster(model)
            ):
                continue  # an attribute of the program's
            if name in _UNREAD:
                continue
            if not self._is_known(value):
                kind_of_value = type(value).__name__
                raise UnwatchedError(f"its {name} is a {kind_of_value}")
            self._own.append((name, value))
            self._add(value, model)

    def twin(self, model: Any) -> Any:
        """Return a model with the same parts, and none that may refer to the model.

        A Booster has none: it is its C++ object.
        """
        if is_booster(model):
            return model
        twin = object.__new__(type(model))
        twin.__dict__.update(self._own)
        for name in _UNREAD & {*vars(model)}:
            if isinstance(vars(model)[name], _PLAIN):
                twin.__dict__[name] = vars(model)[name]
        return twin

    # ------------------------------------------------------------ collecting

    def _is_known(self, value: Any, depth: int = 0) -> bool:
        if isinstance(value, _PLAIN) or _is_of_library(value):
            return True
        if isinstance(value, np.ndarray):
            return value.dtype != object or self._all_known(value.flat, depth)
        if type(value) in (list, tuple, set, frozenset):
            return self._all_known(value, depth)
        if type(value).__name__ in ("dict", "OrderedDict", "defaultdict", "Bunch"):
            return self._all_known(value.keys(), depth) and self._all_known(
                value.values(), depth
            )
        if type(value) is partial:
            parts = (value.func, *value.args, *value.keywords.values())
            return self._all_known(parts, depth)
        return type(value).__module__ == "ctypes"

    def _all_known(self, values: Iterable[Any], depth: int) -> bool:
        return depth < 8 and all(self._is_known(value, depth + 1) for value in values)

    def _add(self, value: Any, model: Any) -> None:
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        if value is model:
            raise UnwatchedError("a part of it refers to it")
        self._seen[id(value)] = value
        if isinstance(value, np.ndarray):
            self._add_array(value, model)
        elif isinstance(value, dict):
            self._add_items(value, model)
        elif type(value) is list:
            self._lists.append((value, [*value]))
            for part in value:
                self._add(part, model)
        elif type(value) in (tuple, set, frozenset):
            for part in value:
                self._add(part, model)
        elif type(value) is partial:
            for part in (value.func, *value.args, *value.keywords.values()):
                self._add(part, model)
        elif _is_tree(value):
            self._add_tree(value)
        elif hasattr(value, "__dict__"):
            self._add_object(value, model)

    def _add_items(self, value: dict[Any, Any], model: Any) -> None:
        self._dicts.append((None, value, [*value.values()]))
        for part in value.values():
            self._add(part, model)

    def _add_object(self, value: Any, model: Any) -> None:
        attributes = vars(value)
        read = {name: x for name, x in attributes.items() if name not in _UNREAD}
        for name, part in read.items():
            if callable(getattr(type(value), name, None)):
                kind = type(value).__name__
                raise UnwatchedError(f"the {name} of its {kind} is not the class's")
            if not self._is_known(part):
                kind = type(part).__name__
                raise UnwatchedError(f"a part of it has {name}, a {kind}")
        self.parts.append(value)
        if len(read) < len(attributes):
            self._some.append((value, attributes, read, len(attributes)))
        else:
            self._dicts.append((value, attributes, [*attributes.values()]))
        for part in read.values():
            self._add(part, model)

    def _add_array(self, array: NDArray[Any], model: Any) -> None:
        if array.dtype == object:
            items = array.ravel().tolist()
            self._seen[id(items)] = items  # so that no address is used again
            for part in items:
                self._add(part, model)
        elif array.dtype.names and array.flags.c_contiguous:
            array = array.view(np.uint8)  # copies leave out bytes between fields
        self._arrays.append((array, array.shape, self._copied(array)))

    def _add_tree(self, tree: Any) -> None:
        state = tree.__getstate__()
        nodes, values = map(self._copied, _content_of(state))
        self._trees.append((tree, state["node_count"], nodes, values))

    def _copied(self, array: NDArray[Any]) -> bytes | NDArray[Any]:
        self._bytes += array.nbytes
        if self._bytes > MOST_BYTES:
            raise UnwatchedError(f"its arrays have more than {MOST_BYTES:,} bytes")
        if array.nbytes <= _SMALL or not array.flags.c_contiguous:
            return array.tobytes()
        return array.copy()

    # ------------------------------------------------------------ comparing

    def same(self, model: Any) -> bool:
        """Tell whether nothing that predictions follow from has changed."""
        attributes = vars(model)
        if len(attributes) != len(self._names) or [*attributes] != self._names:
            return False
        for name, value in self._own:
            if attributes[name] is not value:
                return False
        return self._same_references() and self._same_content()

    def _same_references(self) -> bool:
        for owner, known, values in self._dicts:
            if owner is not None and owner.__dict__ is not known:
                return False
            if len(known) != len(values) or not all(map(is_, known.values(), values)):
                return False
        for owner, known, read, n_names in self._some:
            if owner.__dict__ is not known or len(known) != n_names:
                return False
            if not all(map(is_, map(known.get, read), read.values())):
                return False
        return all(
            len(items) == len(parts) and all(map(is_, items, parts))
            for items, parts in self._lists
        )

    def _same_content(self) -> bool:
        for array, shape, content in self._arrays:
            if array.shape != shape or not _equal(array, content):
                return False
        for tree, count, nodes, values in self._trees:
            state = tree.__getstate__()
            now = _content_of(state)
            if state["node_count"] != count or not _equal(now[0], nodes):
                return False
            if not _equal(now[1], values):
                return False
        return True


def _content_of(state: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a tree's nodes as bytes, since copies leave out those between fields."""
    return state["nodes"].view(np.uint8), state["values"]


def _equal(array: NDArray[Any], content: bytes | NDArray[Any]) -> bool:
    if isinstance(content, bytes):
        return array.tobytes() == content
    if array.nbytes != content.nbytes or not array.flags.c_contiguous:
        return False
    if _memcmp is None:
        return array.tobytes() == content.tobytes()
    addresses = array.ctypes.data, content.ctypes.data
    return not _memcmp(*addresses, content.nbytes)


def is_booster(model: Any) -> bool:
    return type(model).__name__ == "Booster"


def _settings(kind: type) -> set[str]:
    """Return the names of a class's parameters."""
    bases = (base for base in kind.__mro__ if "__init__" in vars(base))
    return {
        name
        for base in bases
        if base is not object
        for name in inspect.signature(vars(base)["__init__"]).parameters
    }


def _is_of_library(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in (*PACKAGES, "_catboost")


def _is_tree(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ == "Tree" and kind.__module__ == "sklearn.tree._tree"
