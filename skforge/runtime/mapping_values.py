"""What one value of a mapping is: a number, a label, missing, or an error."""

from __future__ import annotations

import decimal
import numbers
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skforge.exceptions import InvalidInputError, shortened

#: Types of numbers that float64 takes without a question.
NUMBERS = frozenset(
    (float, int, bool, np.bool_, np.float16, np.float32, np.float64)
) | frozenset(np.dtype(code).type for code in "bhilqBHILQ")
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class ColumnRule:
    name: str  # the key
    place: int  # its column in the rows of the kernels
    #: The number of each label, None where the source answers for such rows; None for a
    #: column of numbers. With an empty one and a number for missing values, it is one
    #: of numbers, too, unless some row has a text.
    table: Mapping[Any, float | None] | None = None
    #: The number of a missing label, and of one that the table does not have. None: the
    #: source answers for such rows.
    missing: float | None = None
    unknown: float | None = None
    #: Categories of the frame's column; None for a column without dtype.
    categories: Sequence[Any] | None = None
    #: What the frame of a column without dtype has for a missing value: None or NaN.
    gap: Any = NAN


def is_missing(value: Any) -> bool:
    if value is None or (isinstance(value, numbers.Real) and value != value):
        return True
    pandas = sys.modules.get("pandas")
    return pandas is not None and value is pandas.NA


def is_real(value: Any) -> bool:
    """Tell whether a value is a real number; NumPy counts spans of time as such."""
    return isinstance(value, numbers.Real) and not isinstance(value, np.timedelta64)


def is_date_or_span(value: Any) -> bool:
    from datetime import datetime, timedelta

    return isinstance(value, (datetime, timedelta, np.datetime64, np.timedelta64))


def kind_of_value(value: Any) -> str:
    if is_missing(value):
        return "missing"
    real = is_real(value) or isinstance(value, (np.bool_, decimal.Decimal))
    return "number" if real else "other"


def number_of(value: Any, name: str, where: str) -> float:
    if is_missing(value):
        return NAN
    if kind_of_value(value) == "number":
        try:
            return float(value)
        except (OverflowError, ValueError):  # Decimal's signalling NaN
            pass
    if not isinstance(value, (str, bytes)) and isinstance(value, Iterable):
        raise _of_many(value, name, where)
    cure = "pass a number, or None if it is missing."
    if is_date_or_span(value):
        cure = "pass a DataFrame whose column has the dtype that it had in training."
    raise InvalidInputError(
        f"{name!r} of {where} is {value!r}, which is not a number; {cure}"
    )


def _of_many(value: Any, name: str, where: str) -> InvalidInputError:
    return InvalidInputError(
        f"{name!r} of {where} is of type {type(value).__name__}, but a row has one "
        "value there; for columns of values pass one mapping of sequences."
    )


def code_of(
    label: Any,
    rule: ColumnRule,
    table: Mapping[Any, float | None],
    kinds: frozenset[type],
    where: str,
) -> float | None:
    if type(label) in kinds and label in table:
        return table[label]
    code = None
    if is_missing(label):
        return rule.missing
    if not table and rule.unknown is not None and kind_of_value(label) == "number":
        return number_of(label, rule.name, where)
    if not isinstance(label, (str, bytes)) and isinstance(label, Iterable) and kinds:
        raise _of_many(label, rule.name, where)
    flag = isinstance(label, (bool, np.bool_))
    if flag or isinstance(label, str) or is_real(label):
        code = table.get(label)
    if flag and code is not None:
        if rule.categories is None:
            return None
        raise InvalidInputError(
            f"{rule.name!r} of {where} is {label!r}, but its categories are numbers; "
            f"pass {int(label)} if that is meant."
        )
    if code is None and not isinstance(label, str) and str in kinds:
        if rule.categories is not None and rule.unknown is not None:
            raise InvalidInputError(
                f"{rule.name!r} of {where} is {label!r}, but its categories are texts; "
                "pass a text, or None if it is missing."
            )
        return None  # how the source compares it with texts is its own affair
    return rule.unknown if code is None else code


def unlike_training(label: Any, rule: ColumnRule) -> str | None:
    """Return what is wrong with a label without a code; None if that is not certain."""
    known = [name for name in rule.table or () if not is_missing(name)]
    if is_missing(label) or not known or not all(isinstance(n, str) for n in known):
        return None
    missing = "." if rule.missing is None else ", or None if it is missing."
    shown = shortened(repr(label), 80)
    if not isinstance(label, str):
        return f"{shown}; training had texts there. Pass a text{missing}"
    if rule.unknown is None:
        return f"{shown}, which training did not have. Pass a text that it had{missing}"
    return None


def categorical(labels: list[Any], rule: ColumnRule) -> Any:
    import pandas as pd

    assert rule.categories is not None
    place = {name: code for code, name in enumerate(rule.categories)}
    for label in labels:  # the library decides what others become
        if not is_missing(label):
            place.setdefault(label, len(place))
    codes = [-1 if is_missing(label) else place[label] for label in labels]
    return pd.Categorical.from_codes(codes, categories=[*place])
