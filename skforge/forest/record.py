"""Stores a forest as plain JSON and arrays, and reads it back with every check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from skforge._container import Container
from skforge._typing import Array, Arrays
from skforge.exceptions import InvalidModelError
from skforge.forest.arrays import LAYOUT, RARE, frozen
from skforge.forest.categories import PACKED, HashedCategories
from skforge.forest.forest import Forest
from skforge.forest.predicates import with_sets_of_here
from skforge.runtime.records import fields_in, plain_out, refusal, values_in


def forest_out(forest: Forest, arrays: Arrays, name: str = "forest") -> dict[str, Any]:
    record: dict[str, Any] = {}
    for field in fields(Forest):
        value = getattr(forest, field.name)
        if isinstance(value, np.ndarray):
            if (stored := _stored(field.name, value, forest)) is not None:
                arrays[f"{name}.{field.name}"] = stored
        elif isinstance(value, HashedCategories):
            arrays.update({f"{name}.{k}": a for k, a in value.packed().items()})
        elif field.name not in RARE or value:
            record[field.name] = plain_out(value)
    return record


def forest_in(
    record: dict[str, Any], arrays: Mapping[str, Array], of: str = "forest"
) -> Forest:
    """Return the valid forest of a record and its arrays."""
    values: dict[str, Any] = {
        field.name: arrays.get(f"{of}.{field.name}")
        for field in fields(Forest)
        if field.name in LAYOUT
    }
    for name, array in values.items():
        if array is None and name not in _FOLLOWS:
            raise InvalidModelError(f"it lacks the array {of}.{name}.")
    try:
        _fill(values)
    except (IndexError, TypeError, ValueError) as error:
        raise refusal("forest") from error
    forest = Forest(**_plain_fields(record), **values, hashed=_hashed_in(arrays, of))
    return with_sets_of_here(forest.validate())


def _hashed_in(arrays: Mapping[str, Array], of: str) -> HashedCategories | None:
    found = {k: arrays[f"{of}.{k}"] for k in PACKED if f"{of}.{k}" in arrays}
    if not found:
        return None
    if found.keys() != {*PACKED}:
        raise refusal("forest")
    return HashedCategories.unpacked(found)


def _plain_fields(record: dict[str, Any]) -> dict[str, Any]:
    plain = fields_in(Forest, record, *LAYOUT)
    rare = {name: kind for name, kind in RARE.items() if kind and name in record}
    plain |= values_in(rare, record)
    if record.keys() != plain.keys():
        raise refusal("forest")
    return plain


def forest_later(
    record: dict[str, Any],
    container: Container,
    of: str,
    content_hash: str,
    mean_depth: float,
) -> Forest:
    """Return a forest whose arrays are read when the first large one is needed.

    They were valid when its hash and its mean depth were noted.
    """
    forest = object.__new__(Forest)
    hashed = (f"{of}.{k}" for k in PACKED if f"{of}.{k}" in container)
    stored = container.read(*(f"{of}.{name}" for name in _SMALL), *hashed)
    values = _plain_fields(record)
    values["hashed"] = _hashed_in(stored, of)
    for name in _SMALL:
        values[name] = frozen(name, stored[f"{of}.{name}"])

    def read() -> Forest:
        names = [name for name in container if name.startswith(f"{of}.")]
        return forest_in(record, container.read(*names), of)

    dtypes = (container.dtype(f"{of}.{name}") for name in ("threshold", "leaf_value"))
    values |= {
        "_dtypes": tuple(dtypes),
        "_hash": content_hash,
        "_mean_depth": mean_depth,
    }
    for name, value in {**values, "_read": read, "_valid": True}.items():
        object.__setattr__(forest, name, value)
    return forest


#: Arrays that are read at once: they tell the numbers of trees and outputs.
_SMALL = ("tree_offset", "tree_output", "base")


# ------------------------------------------------------------ smaller arrays

#: Arrays that most forests have as others tell, which are not stored then.
_FOLLOWS: dict[str, Callable[[Any, Any, Any], Array]] = {
    # leaves are numbered in the order of the nodes
    "leaf": lambda offset, predicate, _: np.where(
        predicate < 0, np.cumsum(predicate < 0, dtype=np.int32) - 1, -1
    ),
    # a node is followed by its left child, or a left child by its right sibling
    "left": lambda offset, predicate, _: np.where(
        predicate < 0, -1, np.arange(1, 1 + len(predicate), dtype=np.int32)
    ),
    "right": lambda offset, _, left: np.where(left < 0, -1, left + 1),
    "leaf_linear": lambda *_: np.zeros((0, 0)),
    # the source numbers the nodes of a tree as the forest does
    "source_node": lambda offset, predicate, _: (
        np.arange(len(predicate), dtype=np.int32)
        - np.repeat(offset[:-1].astype(np.int32), np.diff(offset))
    ),
}
#: Arrays of predicates that may be stored as the one value of all, and those with one
#: element more.
_ALIKE = {"comparison": 0, "missing": 0, "missing_left": 0, "category_offset": 1}


def _stored(name: str, array: Array, forest: Forest) -> Array | None:
    if name in _FOLLOWS:
        follows = _FOLLOWS[name](forest.tree_offset, forest.predicate, forest.left)
        if np.array_equal(follows, array):
            return None
    if name in _ALIKE and len(array) > 1 and (array == array[0]).all():
        array = array[:1]
    return array if name in ("leaf_value", "threshold", "base") else _narrowed(array)


def _narrowed(array: Array) -> Array:
    if array.dtype.kind == "b" or not array.size:
        return array
    least, most = array.min(), array.max()
    with np.errstate(invalid="ignore", over="ignore"):
        for dtype in "|u1", "|i1", "<u2", "<i2", "<u4", "<f4":
            if array.dtype.kind == "f" or dtype != "<f4":
                info = np.finfo(dtype) if dtype == "<f4" else np.iinfo(dtype)
                if info.min <= least and most <= info.max:
                    narrow = array.astype(dtype)
                    if narrow.astype(array.dtype).tobytes() == array.tobytes():
                        return narrow
    return array


def _fill(values: dict[str, Any]) -> None:
    offset, predicate = values["tree_offset"], values["predicate"]
    whole = offset[0] == 0 and offset[-1] == len(predicate)
    if not whole or (np.diff(offset) < 0).any():
        raise ValueError("the trees are not the nodes")  # and may be too many
    for name, follows in _FOLLOWS.items():
        if values[name] is None:
            values[name] = follows(offset, predicate, values["left"])
    for name, more in _ALIKE.items():
        if len(values[name]) == 1:
            values[name] = np.repeat(values[name], len(values["feature"]) + more)
