"""Plain data as JSON, and back with a check of every value against a type.

The types are those of a dataclass's fields, so that the class says what a file may
hold. Floats are stored as hexadecimal text, which loses no bit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from skforge.exceptions import InvalidModelError


def refusal(name: str) -> InvalidModelError:
    return InvalidModelError(
        f"the entry {name!r} of its manifest has a value that save never writes; save "
        "the model again."
    )


def entry(record: Mapping[str, Any], name: str, *types: type | None) -> Any:
    value = record.get(name)
    if not any(value is None if t is None else type(value) is t for t in types):
        wanted = " or ".join("null" if t is None else t.__name__ for t in types)
        raise InvalidModelError(
            f"the entry {name!r} of its manifest is not of type {wanted}; save the "
            "model again."
        )
    return value


def plain_out(value: Any) -> Any:
    if isinstance(value, float):
        return {"float": float(value).hex()}
    if isinstance(value, (tuple, list)):
        return [plain_out(item) for item in value]
    if isinstance(value, Mapping):  # whose keys may be numbers
        return [[plain_out(key), plain_out(item)] for key, item in value.items()]
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "values": value.tolist()}
    if isinstance(value, np.generic):
        return plain_out(value.item())
    if hasattr(value, "to_json"):  # a schedule or a target
        return json.loads(value.to_json())
    return values_out(fields_of(value)) if is_dataclass(value) else value


def values_out(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain_out(value) for name, value in values.items()}


def values_in(types: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: plain_in(kind, record.get(name), name) for name, kind in types.items()
    }


def fields_of(value: Any, *but: str) -> dict[str, Any]:
    kind: Any = type(value)
    return {name: getattr(value, name) for name in field_types(kind) if name not in but}


def fields_in(kind: type, record: Mapping[str, Any], *but: str) -> dict[str, Any]:
    types = {name: t for name, t in field_types(kind).items() if name not in but}
    return values_in(types, record)


@lru_cache(maxsize=64)
def field_types(kind: type) -> dict[str, Any]:
    types: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        space = vars(sys.modules[base.__module__])
        for name, text in getattr(base, "__annotations__", {}).items():
            types[name] = text, space
    stored = (f.name for f in fields(kind) if f.init and f.metadata.get("stored", True))
    # typing.get_type_hints takes 25 times as long
    return {name: eval(*types[name]) for name in stored}


def plain_in(kind: Any, value: Any, name: str) -> Any:
    """Return a value of a type from JSON; an error for other JSON has the ``name``."""
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if (alias := getattr(origin, "__value__", None)) is not None:  # as NDArray may be
        origin = get_origin(alias) or alias
    if origin in (Union, UnionType):
        for part in parts:
            with suppress(InvalidModelError):
                return plain_in(part, value, name)
    elif origin is Literal:
        if type(value) is str and value in parts:
            return value
    elif origin is float and type(value) not in (int, float):
        if type(value) is dict and value.keys() == {"float"}:
            return float_in(name, value["float"])
    elif kind is Any:
        plain = type(value) in (bool, int, str, type(None))
        return value if plain else plain_in(float, value, name)
    elif origin in (tuple, list, Sequence) and type(value) is list:
        several = origin is not tuple or parts[-1] is Ellipsis
        kinds = [parts[0]] * len(value) if several else parts
        if len(kinds) == len(value):
            pairs = zip(kinds, value, strict=True)
            items = [plain_in(part, item, name) for part, item in pairs]
            return items if origin is list else tuple(items)
    elif origin is np.ndarray:
        return _array_in(value, name)
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        pair = tuple[parts]  # type: ignore[valid-type]
        return dict(plain_in(list[pair], value, name))
    elif hasattr(origin, "from_json") and type(value) is dict:
        return _object_in(origin, json.dumps(value))
    elif is_dataclass(origin):
        types = field_types(origin)  # type: ignore[arg-type]
        # what a file lacks is None, if it may be: the field came later
        if type(value) is dict and value.keys() <= types.keys():
            values = {
                key: plain_in(kind, value.get(key), f"{name}.{key}")
                for key, kind in types.items()
            }
            return origin(**values)  # type: ignore[operator]
    elif origin is float or type(value) is origin or value is origin is None:
        return value
    raise refusal(name)


#: Models of one kind have the same schedules.
@lru_cache(maxsize=256)
def _object_in(kind: Any, text: str) -> Any:
    return kind.from_json(text)


def _array_in(value: Any, name: str) -> Any:
    if type(value) is dict and value.keys() == {"dtype", "values"}:
        with np.errstate(all="ignore"):
            try:
                dtype = np.dtype(value["dtype"])
                if dtype.kind in "fiub":  # texts of a dtype may fill memory
                    array = np.array(value["values"], dtype)
                    if array.ndim == 1:
                        return array
            except (OverflowError, TypeError, ValueError, SyntaxError):
                raise refusal(name) from None
    raise refusal(name)


def float_in(name: str, text: Any) -> float:
    try:
        return float.fromhex(text)
    except (TypeError, ValueError, OverflowError):
        raise refusal(name) from None
