"""Objects that scikit-learn takes for numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.runtime.mapping_values import NUMBERS

#: Types of objects that scikit-learn takes for numbers, or for a missing one.
OBJECTS = NUMBERS | {type(None), Decimal}


def only_number(value: Any, kinds: Collection[type]) -> Any:
    if (kind := type(value)) not in kinds:
        return None
    if kind is not Decimal:
        return value
    return float(value) if value.is_finite() else None


def numbers_among(objects: Sequence[Any], types: set[type]) -> Array | None:
    """Return objects as float64, with NaN for None; None if some is no number."""
    if not OBJECTS.issuperset(types):
        return None
    if Decimal in types:
        decimals = (value for value in objects if type(value) is Decimal)
        if not all(value.is_finite() for value in decimals):
            return None
    try:
        return np.array(objects, np.float64)
    except OverflowError:
        return None
