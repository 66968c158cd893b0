"""Stores a forest as plain JSON and arrays, and reads it back with every check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeAlias

import numpy as np

from skforge.compiler.forest.arrays import Array
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.outputs import CHOICES, OutputSpec
from skforge.exceptions import InvalidModelError

Arrays: TypeAlias = dict[str, Array]


def forest_out(forest: Forest, arrays: Arrays, name: str = "forest") -> dict[str, Any]:
    """Return a forest's JSON fields; its arrays are added, named after it."""
    record: dict[str, Any] = {}
    for field in fields(Forest):
        value = getattr(forest, field.name)
        if isinstance(value, np.ndarray):
            arrays[f"{name}.{field.name}"] = value
        elif field.name == "outputs":
            parts = {f.name: plain_out(getattr(value, f.name)) for f in fields(value)}
            record[field.name] = parts
        else:
            record[field.name] = plain_out(value)
    return record


def forest_in(record: dict[str, Any], arrays: Arrays, of: str = "forest") -> Forest:
    """Return the forest of a record and its arrays, not yet validated."""
    values: dict[str, Any] = {}
    for field in fields(Forest):
        if field.name not in _CHECKS:
            values[field.name] = arrays.get(f"{of}.{field.name}")
            if values[field.name] is None:
                raise InvalidModelError(f"it lacks the array {of}.{field.name}.")
    if record.keys() != _CHECKS.keys():
        raise refusal("forest")
    for name, check in _CHECKS.items():
        values[name] = plain_in(name, record[name])
        if not check(values[name]):
            raise refusal(name)
    return Forest(**values)


def entry(record: Mapping[str, Any], name: str, *types: type | None) -> Any:
    """Return a manifest entry after checking its type; bool is not int here."""
    value = record.get(name)
    if not any(value is None if t is None else type(value) is t for t in types):
        wanted = " or ".join("null" if t is None else t.__name__ for t in types)
        raise InvalidModelError(
            f"the entry {name!r} of its manifest is not of type {wanted}; save the "
            "model again."
        )
    return value


def refusal(name: str) -> InvalidModelError:
    """Return the error for an entry that ``save`` does not write."""
    return InvalidModelError(
        f"the entry {name!r} of its manifest has a value that save never writes; save "
        "the model again."
    )


def plain_out(value: Any) -> Any:
    """Return a plain value as JSON: floats as hexadecimal text, tuples as lists."""
    if isinstance(value, (tuple, list)):
        return [plain_out(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return {"float": value.hex()} if isinstance(value, float) else value


def plain_in(name: str, value: Any) -> Any:
    """Return a plain value from its JSON; lists become tuples."""
    if isinstance(value, list):
        return tuple(plain_in(name, item) for item in value)
    if isinstance(value, dict):
        if value.keys() == {"float"}:
            return float_in(name, value["float"])
        if name != "outputs" or value.keys() != {f.name for f in fields(OutputSpec)}:
            raise refusal(name)
        return OutputSpec(**{k: plain_in(name, v) for k, v in value.items()})
    return value


def float_in(name: str, text: Any) -> float:
    """Return a float stored as hexadecimal text."""
    try:
        return float.fromhex(text)
    except (TypeError, ValueError, OverflowError):
        raise refusal(name) from None


def _is(*types: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in types


def _all(*types: type) -> Callable[[Any], bool]:
    return lambda value: (
        type(value) is tuple and all(type(item) in types for item in value)
    )


def _is_outputs(value: Any) -> bool:
    return (
        type(value) is OutputSpec
        and all(getattr(value, name) in known for name, known in CHOICES.items())
        and type(value.named) is bool
        and type(value.parameter) in (float, int)
        and type(value.divisor) is int
        and type(value.cutoff) in (float, int)
        and _all(float, int)(value.offsets)
    )


#: Checks of a forest's fields that are not arrays.
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "n_features": _is(int),
    "divisor": _is(int),
    "outputs": _is_outputs,
    "task": _is(str),
    "source": _is(str),
    "missing_value": _is(float, int),
    "feature_names": lambda names: names is None or _all(str)(names),
    "output_sizes": _all(int),
    "category_names": lambda names: (
        type(names) is tuple and all(map(_all(str, int, float, bool), names))
    ),
    "truncate_categories": _is(bool),
    "class_labels": _all(str, int, float, bool),
    "aggregate": _is(str),
    "wider_rows": _is(bool),
}
