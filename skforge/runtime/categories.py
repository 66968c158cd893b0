"""Objects as CatBoost's categories and numbers; exported packages read rows by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.exceptions import InvalidInputError
from skforge.runtime.mapping_values import is_missing

#: What is wrong with a value, after it and its place.
NO_CATEGORY = (
    "which is no category: these are texts, whole numbers and booleans; make a text of "
    "all else, of missing ones, too."
)
_NO_NUMBER = "which is no number; pass one, or None if it is missing."
_NO_TEXT = "whose characters a library cannot read: 0, or some that UTF-8 lacks."


def category(value: Any) -> str | int | None:
    if type(value) is bytes or type(value) is np.bytes_:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    if isinstance(value, str):
        return str.__str__(value)  # of subclasses, too, as CatBoost
    if isinstance(value, (int, np.integer, np.bool_)):
        number = int(value)
        return number if -(2**63) <= number < 2**63 and number == value else None
    return None


def number(value: Any) -> float | None:
    if value is None:
        return np.nan
    if isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)):
        try:
            return float(value)
        except OverflowError:
            return None
    return None


def numbers_and_texts(
    objects: NDArray[Any], places: Sequence[int], names: Sequence[str] | None
) -> tuple[NDArray[np.float32], list[bytes]]:
    """Return numbers, and texts at ``places``; InvalidInputError for other values."""
    numbers = np.zeros(objects.shape)
    texts = [b""] * (len(objects) * len(places))
    for place, column in enumerate(objects.T):
        values, why = column.tolist(), _NO_NUMBER
        found: list[Any] = [*map(_text if place in places else _known_number, values)]
        if None in found:
            row = found.index(None)
            if place in places:
                why = NO_CATEGORY if category(values[row]) is None else _NO_TEXT
            name = place if names is None else names[place]
            raise InvalidInputError(
                f"row {row} has {values[row]!r} in column {name!r}, {why}"
            )
        if place in places:
            texts[places.index(place) :: len(places)] = found
        else:
            numbers[:, place] = found
    with np.errstate(all="ignore"):
        return numbers.astype(np.float32), texts


def _known_number(value: Any) -> float | None:
    if type(value) is float:
        return value
    known = number(value)
    return np.nan if known is None and is_missing(value) else known  # pandas' NA


def _text(value: Any) -> bytes | None:
    known = value if type(value) is str else category(value)  # most are
    try:
        text = None if known is None else str(known).encode()
    except UnicodeEncodeError:
        return None
    return None if text is None or b"\0" in text else text
