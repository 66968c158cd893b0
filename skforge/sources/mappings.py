"""Rows as mappings from column names to values, such as ``{"age": 41}``.

No library takes such rows, so their meaning is ours: a mapping is the one-row frame
``pandas.DataFrame([mapping])`` with the columns in the order of training, numbers as
float64 and categories as ``pandas.Categorical``. Rows are converted for the kernels
without a frame where that is certain; the source gets the frame for all others.
"""

from __future__ import annotations

import decimal
import numbers
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.exceptions import InvalidInputError

Array = NDArray[Any]

#: Types of numbers that float64 takes without a question.
_NUMBERS = frozenset(
    (float, int, bool, np.bool_, np.float16, np.float32, np.float64)
) | frozenset(np.dtype(code).type for code in "bhilqBHILQ")
_NAN = float("nan")
#: In place of a label's code that is not known yet.
_UNSURE = object()


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """How a column's value becomes a number.

    Parameters
    ----------
    name : str
        The key.
    place : int
        Its column in the rows of the kernels.
    table : mapping or None, default=None
        The number of each label, None where the source answers for such rows; None for
        a column of numbers. With an empty one and a number for missing values, it is
        one of numbers, too, unless some row has a text.
    missing, unknown : float or None, default=None
        The number of a missing label, and of one that the table does not have. None:
        the source answers for such rows.
    categories : sequence or None, default=None
        Categories of the frame's column; None for a column without dtype.
    gap : None or NaN
        What the frame of a column without dtype has for a missing value.
    """

    name: str
    place: int
    table: Mapping[Any, float | None] | None = None
    missing: float | None = None
    unknown: float | None = None
    categories: Sequence[Any] | None = None
    gap: Any = _NAN


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of mappings.

    Parameters
    ----------
    rules : tuple of ColumnRule
        In the order of the frame's columns.
    width : int
        Columns of the kernels' rows; those without a rule are 0.
    dtype : dtype, default=float64
        Dtype of the kernels' rows.
    ignores : bool, default=False
        Whether other keys are ignored, or refused.
    by_frame : bool, default=False
        Whether the source gets frames alone, as kernels' rows would not be certain.
    """

    rules: tuple[ColumnRule, ...]
    width: int
    dtype: Any = np.float64
    ignores: bool = False
    by_frame: bool = False


def is_mapped(X: Any) -> bool:
    """Tell whether rows are a mapping, or a sequence that begins with one."""
    match X:
        case {}:
            return not hasattr(X, "tocsr")  # a sparse matrix by keys is a mapping, too
        case [{}, *_]:
            return True
        case _:
            return False


class Mappings:
    """Reads mappings.

    Parameters
    ----------
    columns : Columns
    """

    def __init__(self, columns: Columns) -> None:
        rules = columns.rules
        self._columns, self._rules, self._count = columns, rules, len(rules)
        self._names = [rule.name for rule in rules]
        only = self._names[0]
        #: Returns a row's values in the order of the rules.
        self._get: Callable[[Any], tuple[Any, ...]] = (
            itemgetter(*self._names) if len(rules) > 1 else lambda row: (row[only],)
        )
        #: Tables of columns with labels, by position, and the types of their labels.
        self._coded = {
            at: (rule.table, frozenset(map(type, rule.table)))
            for at, rule in enumerate(rules)
            if rule.table is not None
        }
        places = [rule.place for rule in rules]
        self._places = None if places == [*range(columns.width)] else places
        order = sorted(range(len(rules)), key=places.__getitem__)
        #: Writes one row, columns without a rule included.
        self._pack = None
        if order == [*range(len(rules))]:
            given = {*places}
            parts = ["d" if i in given else "8x" for i in range(columns.width)]
            self._pack = struct.Struct("".join(parts)).pack_into
        #: Rows that no call uses, and their memory; a list's pop and append are atomic.
        self._free: list[tuple[Array, memoryview]] = []
        self._index: Any = None

    def ask(self, entry: Callable[[Any], Any], X: Any) -> Any:
        """Return a compiled entry's answer, or None if it cannot be certain.

        Raises
        ------
        InvalidInputError
            If a column is absent or unknown, or a value is not a number.
        """
        if self._columns.by_frame:
            return None
        if type(X) is not dict or self._pack is None:
            rows = self.rows(X)
            return None if rows is None else entry(rows)
        try:
            values: Any = self._get(X)
        except KeyError:
            raise self._absent([X], alone=True) from None
        if len(X) != self._count and not self._columns.ignores:
            raise self._unknown([X], alone=True)
        if self._coded:
            values = list(values)
            for at, (table, kinds) in self._coded.items():
                label = values[at]
                known = type(label) in kinds
                code = table.get(label) if known else None
                if code is None:
                    rule = self._rules[at]
                    if type(label) is float and label != label:
                        code = rule.missing
                    elif known and label not in table:
                        code = rule.unknown
                values[at] = _UNSURE if code is None else code
        if not _NUMBERS.issuperset(map(type, values)):
            values = [_NAN if value is None else value for value in values]
            if not _NUMBERS.issuperset(map(type, values)):
                rows = self.rows(X)
                return None if rows is None else entry(rows)
        try:
            row, memory = self._free.pop()
        except IndexError:
            row = np.empty((1, self._columns.width))
            memory = row.data
        try:
            self._pack(memory, 0, *values)
        except (struct.error, OverflowError):
            raise self._too_large(values, alone=True) from None
        found = entry(row)
        self._free.append((row, memory))
        return found

    def rows(self, X: Any) -> Array | None:
        """Return rows for the kernels; None if the source must answer.

        Raises
        ------
        InvalidInputError
            If a column is absent or unknown, or a value is not a number.
        """
        given, alone = _as_dicts(X)
        flat = self._values(given, alone)
        step = self._count
        for at, (table, kinds) in self._coded.items():
            labels = flat[at::step]
            codes: list[Any] = [None]
            if kinds.issuperset(map(type, labels)):
                codes = list(map(table.get, labels))
            if None in codes:
                codes = self._codes(at, labels, alone)
                if None in codes:
                    return None
            flat[at::step] = codes
        found = {*map(type, flat)}
        if not found <= _NUMBERS:
            if type(None) in found:
                flat = [_NAN if value is None else value for value in flat]
            self._to_numbers(flat, alone)
        rows = values = self._packed(flat, alone)
        if self._places is not None:
            rows = np.zeros((len(given), self._columns.width))
            rows[:, self._places] = values
        try:
            with np.errstate(over="raise"):
                return rows.astype(self._columns.dtype, copy=False)
        except FloatingPointError:
            return None

    def frame(self, X: Any) -> Any:
        """Return the pandas frame that mappings stand for.

        Raises
        ------
        InvalidInputError
            If a column is absent or unknown, a value is not a number, or pandas is not
            installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise InvalidInputError(
                "these mappings have to become a pandas.DataFrame first, but pandas "
                "is not installed; install it, or pass an array."
            ) from None
        given, alone = _as_dicts(X)
        flat = self._values(given, alone)
        if self._index is None:
            self._index = pd.Index(self._names)
        if not self._coded:
            self._to_numbers(flat, alone)
            return pd.DataFrame(self._packed(flat, alone), columns=self._index)
        parts: dict[int, Any] = {}
        for at, rule in enumerate(self._rules):
            values: Any = flat[at :: self._count]
            kinds = {*map(_kind, values)}
            if rule.table is not None:
                self._codes(at, values, alone)  # raises
            if not rule.table and rule.missing is not None:
                kinds.add("number")
            if rule.categories is not None:
                values = _categorical(values, rule)
            elif rule.table is None or {"number"} <= kinds <= {"number", "missing"}:
                values = [
                    _number(value, rule.name, _where(row, alone))
                    for row, value in enumerate(values)
                ]
                values = self._packed(values, alone, at)[:, 0]
            else:
                values = [rule.gap if _is_missing(v) else v for v in values]
                values = pd.Series(values, dtype=object)
            parts[at] = values
        frame = pd.DataFrame(parts)
        frame.columns = self._index
        return frame

    def _values(self, given: list[dict[Any, Any]], alone: bool) -> list[Any]:
        """Return the values of all rows in one list, row after row."""
        try:
            flat = list(chain.from_iterable(map(self._get, given)))
        except KeyError:
            raise self._absent(given, alone) from None
        if not self._columns.ignores and {*map(len, given)} != {self._count}:
            raise self._unknown(given, alone)
        return flat

    def _to_numbers(self, flat: list[Any], alone: bool) -> None:
        """Replace values of columns of numbers that are not plain numbers."""
        for at, rule in enumerate(self._rules):
            column = flat[at :: self._count]
            if rule.table is None and not _NUMBERS.issuperset(map(type, column)):
                flat[at :: self._count] = [
                    value
                    if type(value) in _NUMBERS
                    else _number(value, rule.name, _where(row, alone))
                    for row, value in enumerate(column)
                ]

    def _packed(self, flat: list[Any], alone: bool, at: int | None = None) -> Array:
        """Return numbers as rows of float64, or as the column of one rule."""
        try:
            packed = struct.pack(f"{len(flat)}d", *flat)
        except (struct.error, OverflowError):
            raise self._too_large(flat, alone, at) from None
        width = self._count if at is None else 1
        return np.frombuffer(packed, np.float64).reshape(-1, width)

    def _codes(self, at: int, labels: list[Any], alone: bool) -> list[float | None]:
        """Return numbers of labels of any type; None where the source must answer."""
        rule, (table, kinds) = self._rules[at], self._coded[at]
        return [
            _code(label, rule, table, kinds, _where(row, alone))
            for row, label in enumerate(labels)
        ]

    def _absent(self, given: list[dict[Any, Any]], alone: bool) -> InvalidInputError:
        known = {*self._names}
        for at, row in enumerate(given):
            for name in self._names:
                if name not in row:
                    near = _nearest(name, [key for key in row if key not in known])
                    hint = "" if near is None else f"; its nearest key is {near!r}"
                    return InvalidInputError(
                        f"{_where(at, alone)} has no {name!r}{hint}. Give every column "
                        "of the model, with None where the value is missing."
                    )
        raise AssertionError

    def _unknown(self, given: list[dict[Any, Any]], alone: bool) -> InvalidInputError:
        known = {*self._names}
        for at, row in enumerate(given):
            for key in row:
                if key not in known:
                    near = _nearest(key, self._names)
                    return InvalidInputError(
                        f"{_where(at, alone)} has the key {key!r}, which is not a "
                        f"column of the model; the nearest column is {near!r}. Leave "
                        "it out."
                    )
        raise AssertionError

    def _too_large(
        self, flat: Sequence[Any], alone: bool, at: int | None = None
    ) -> InvalidInputError:
        """Return the error for the first number that float64 cannot hold."""
        for place, value in enumerate(flat):
            try:
                float(value)
            except OverflowError:
                row, rule = divmod(place, self._count)
                if at is not None:
                    row, rule = place, at
                return InvalidInputError(
                    f"{self._names[rule]!r} of {_where(row, alone)} is a whole number "
                    "too large for float64 (above 1e308); pass float('inf'), or None "
                    "if it is missing."
                )
        raise AssertionError


def _as_dicts(X: Any) -> tuple[list[dict[Any, Any]], bool]:
    """Return rows as a list of dicts, and whether it was one mapping alone."""
    alone = isinstance(X, Mapping)
    given: list[Any] = [X] if alone else X if type(X) is list else list(X)
    if {*map(type, given)} == {dict}:
        return given, alone
    for at, row in enumerate(given):
        if not isinstance(row, Mapping):
            raise InvalidInputError(
                f"row {at} is of type {type(row).__name__}, but row 0 is a mapping; "
                "make all of them mappings."
            )
    # the default of a defaultdict would be written to the user's row
    return [row if type(row) is dict else dict(row) for row in given], alone


def _is_missing(value: Any) -> bool:
    """Tell whether a value is None, a NaN or pandas' NA."""
    if value is None or (isinstance(value, numbers.Real) and value != value):
        return True
    pandas = sys.modules.get("pandas")
    return pandas is not None and value is pandas.NA


def _is_real(value: Any) -> bool:
    """Tell whether a value is a real number; NumPy counts spans of time as such."""
    return isinstance(value, numbers.Real) and not isinstance(value, np.timedelta64)


def _kind(value: Any) -> str:
    if _is_missing(value):
        return "missing"
    real = _is_real(value) or isinstance(value, (np.bool_, decimal.Decimal))
    return "number" if real else "other"


def _number(value: Any, name: str, where: str) -> float:
    """Return a value that is no plain number as a float."""
    if _is_missing(value):
        return _NAN
    if _kind(value) == "number":
        try:
            return float(value)
        except (OverflowError, ValueError):  # Decimal's signalling NaN
            pass
    if not isinstance(value, (str, bytes)) and isinstance(value, Iterable):
        raise _of_many(value, name, where)
    raise InvalidInputError(
        f"{name!r} of {where} is {value!r}, which is not a number; pass a number, or "
        "None if it is missing."
    )


def _of_many(value: Any, name: str, where: str) -> InvalidInputError:
    return InvalidInputError(
        f"{name!r} of {where} is of type {type(value).__name__}, but a mapping is one "
        "row and has one value there; for columns of values pass "
        "pandas.DataFrame(rows)."
    )


def _code(
    label: Any,
    rule: ColumnRule,
    table: Mapping[Any, float | None],
    kinds: frozenset[type],
    where: str,
) -> float | None:
    """Return the number of a label; None if the source must answer."""
    if type(label) in kinds and label in table:
        return table[label]
    found = None
    if _is_missing(label):
        return rule.missing
    if not table and _kind(label) == "number":
        return _number(label, rule.name, where)
    if not isinstance(label, (str, bytes)) and isinstance(label, Iterable) and kinds:
        raise _of_many(label, rule.name, where)
    flag = isinstance(label, (bool, np.bool_))
    if flag or isinstance(label, str) or _is_real(label):
        found = table.get(label)
    if flag and found is not None:
        if rule.categories is None:
            return None
        raise InvalidInputError(
            f"{rule.name!r} of {where} is {label!r}, but its categories are numbers; "
            f"pass {int(label)} if that is meant."
        )
    if found is None and not isinstance(label, str) and str in kinds:
        return None  # how the source compares it with texts is its own affair
    return rule.unknown if found is None else found


def _categorical(labels: list[Any], rule: ColumnRule) -> Any:
    """Return labels as pandas' categories: those of training, then new ones."""
    import pandas as pd

    assert rule.categories is not None
    place = {name: code for code, name in enumerate(rule.categories)}
    if rule.unknown is None:
        for label in labels:
            if not _is_missing(label):
                place.setdefault(label, len(place))
    codes = [-1 if _is_missing(label) else place.get(label, -1) for label in labels]
    return pd.Categorical.from_codes(codes, categories=[*place])


def _nearest(name: Any, names: Iterable[Any]) -> Any:
    """Return the name that is spelled most alike, or None if there are no names."""
    folded = {str(one).casefold(): one for one in names}
    near = get_close_matches(str(name).casefold(), folded, 1, 0)
    return folded[near[0]] if near else None


def _where(row: int, alone: bool) -> str:
    return "the row" if alone else f"row {row}"
