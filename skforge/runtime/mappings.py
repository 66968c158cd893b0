"""Rows as mappings from column names to values, such as ``{"age": 41}``.

No library takes such rows, so their meaning is ours: a mapping is the one-row frame
``pandas.DataFrame([mapping])`` with the columns in the order of training, numbers as
float64 and categories as ``pandas.Categorical``; a date is no number. A mapping to
sequences, such as ``{"age": [41, 33]}``, has a column of the frame in each. Rows are
converted for the kernels without a frame where that is certain; the source gets the
frame for all others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.exceptions import InputWarning, InvalidInputError, warn
from skforge.runtime.mapping_values import (
    NAN,
    NUMBERS,
    ColumnRule,
    categorical,
    code_of,
    is_date_or_span,
    is_missing,
    kind_of_value,
    number_of,
    unlike_training,
)

#: Rows that stay in a cache until all their columns are written.
_NEAR_ROWS = 1 << 11
#: The smallest whole number that float64 does not hold.
_TOO_LARGE = 2**1024 - 2**970
#: Further keys that a warning names.
_NAMED = 3
#: How alike names are that are suggested: "note" is not near "income".
_NEAR = 0.65
#: In place of a label's code that is not known yet.
_UNSURE = object()

#: Types of a row's values, where these may be objects.
_COMMON = {str, int, float, bool, type(None)}


@dataclass(frozen=True, slots=True)
class MappingColumns:
    rules: tuple[ColumnRule, ...]  # in the order of the frame's columns
    width: int  # columns of the kernels' rows; those without a rule are 0
    dtype: str = "<f8"  # of the kernels' rows
    ignores: bool = False  # whether the model ignores further keys, and nothing is said
    #: Whether the source gets frames alone, as kernels' rows would not be certain.
    by_frame: bool = False
    #: Whether it gets arrays of objects in place of frames.
    by_objects: bool = False


def without_names() -> InvalidInputError:
    return InvalidInputError(
        "the rows are mappings, but the model was trained without feature names; pass "
        "an array, or train the model on a DataFrame."
    )


def is_mapped(X: Any) -> bool:
    match X:
        case memoryview() | np.ndarray():
            return False  # sequences that may have no first row; arrays since NumPy 2.5
        case {}:
            return not hasattr(X, "tocsr")  # a sparse matrix by keys is a mapping, too
        case [{}, *_]:
            return True
        case _:
            return False


class Mappings:
    """Reads mappings.

    ``reader`` makes the compiled reader of many dicts, if there is one. Methods raise
    ``InvalidInputError`` if a column is absent, or the model takes no such value.
    """

    def __init__(
        self, columns: MappingColumns, reader: Callable[..., Any] | None = None
    ) -> None:
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
            at: (rule.table, _types(rule.table))
            for at, rule in enumerate(rules)
            if rule.table is not None
        }
        self._places = {at: rule.place for at, rule in enumerate(rules)}
        #: Makes an array of objects for one row, and where the rules' values are in it.
        self._make: Callable[..., Array] = np.empty
        self._at: Any = 0
        if self._count < columns.width:
            self._make, self._at = np.zeros, (0, [*self._places.values()])
        #: Writes one row, columns without a rule included.
        self._pack = None
        written = {*self._places.values()}
        if [*self._places.values()] == sorted(written) and not columns.by_frame:
            parts = ["d" if i in written else "8x" for i in range(columns.width)]
            self._pack = struct.Struct("".join(parts)).pack_into
        self._dicts = reader and reader(
            {rule.name: rule.place for rule in rules},
            {rule.name: _texts(rule) for rule in rules if rule.table is not None},
            columns.width,
        )
        #: Whether further keys are known of.
        self.ignores = columns.ignores
        #: Rows that no call uses, and their memory; a list's pop and append are atomic.
        self._free: list[tuple[Array, memoryview]] = []
        self._index: Any = None

    def load(self) -> Any:
        """Return the compiled code that reads many dicts; None if there is none."""
        return None if self._dicts is None else self._dicts.load()

    def ask(
        self,
        entry: Callable[[Any], Any] | None,
        X: Any,
        kernels: Callable[[Array], Any] | None = None,
    ) -> Any:
        """Return an answer of compiled code, or None if it cannot be certain.

        ``kernels`` are asked for the batches that the entry declines, if there is one.
        """
        packs = type(X) is dict and self._pack is not None and entry is not None
        entry = entry or (lambda rows: None)
        if self._columns.by_objects:
            objects = self._objects(X) if type(X) is dict else None
            return None if objects is None else entry(objects)
        row = self._row(X) if packs else None
        if row is None:
            if (rows := self.rows(X)) is None:
                return None
            answer = entry(rows)
            return kernels(rows) if kernels and answer is None else answer
        answer = entry(row[0])
        self._free.append(row)
        return answer

    def _values(self, X: dict[Any, Any]) -> Any:
        try:
            values = self._get(X)
        except KeyError:
            return None
        return values if len(X) == self._count or self.ignores else None

    def _row(self, X: dict[Any, Any]) -> tuple[Array, memoryview] | None:
        assert self._pack is not None
        if (values := self._values(X)) is None:
            return None
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
        if not NUMBERS.issuperset(map(type, values)):
            values = [NAN if value is None else value for value in values]
            if not NUMBERS.issuperset(map(type, values)):
                return None
        try:
            row, memory = self._free.pop()
        except IndexError:
            row = np.empty((1, self._columns.width))
            memory = row.data
        try:
            self._pack(memory, 0, *values)
        except (struct.error, OverflowError):
            return None
        return row, memory

    def _objects(self, X: dict[Any, Any]) -> Array | None:
        values = self._values(X)
        if values is None or not _COMMON.issuperset(map(type, values)):
            return None
        objects = self._make((1, self._columns.width), object)
        objects[self._at] = values
        return objects

    def rows(self, X: Any) -> Array | None:
        if self._columns.by_frame:
            return None
        # all rows that compiled code reads have the keys of the first
        listed = type(X) is list and (self.ignores or len(X[0]) == self._count)
        rows: Array | None = self._dicts.read(X) if self._dicts and listed else None
        try:
            with np.errstate(over="raise"):
                if rows is None:
                    return self._in_python(X)
                return rows.astype(self._columns.dtype, copy=False)
        except FloatingPointError:
            return None

    def of_table(self, X: Any) -> Array:
        if not is_mapped(X):
            there = {str(name): name for name in getattr(X, "column_names", X.columns)}
            X = {name: X[there[name]] for name in self._names if name in there}
        if self._columns.by_objects:
            return self.frame(X)
        rows = self.rows(X)
        if rows is None:
            raise InvalidInputError(
                f"{self._refused(X)} that training did not have and for which the "
                "model has no rule; use skforge, or the model itself."
            )
        return rows

    def _refused(self, X: Any) -> str:
        columns, alone = self._read(X)
        if (place := self._without_code(columns, alone)) is None:
            return "the rows have a value"
        at, row = place
        value = columns[at][row]
        return f"{self._names[at]!r} of {_where(row, alone)} is {value!r}, a value"

    def _without_code(self, columns: Any, alone: str) -> tuple[int, int] | None:
        """Return the place of a label for which there is no code."""
        for at in self._coded:
            codes = self._codes(at, list(columns[at]), alone)
            if None in codes:
                return at, codes.index(None)
        return None

    def refusal(
        self, X: Any, outside: Callable[[Array], tuple[int, int] | None]
    ) -> str | None:
        """Return which value no stored model takes, in words for who sent the rows.

        None if a model may take the frame of them. ``outside`` returns the place of a
        number that is too large, in the kernels' rows.
        """
        if self._columns.by_frame or self._columns.by_objects:
            return None
        columns, alone = self._read(X)
        if (place := self._without_code(columns, alone)) is not None:
            at, row = place
            why = unlike_training(columns[at][row], self._rules[at])
            return why and f"{self._names[at]!r} of {_where(row, alone)} is {why}"
        rows = self.rows(X)
        if rows is None or (found := outside(rows)) is None:
            return None
        at = next(at for at, place in self._places.items() if place == found[1])
        value = float(columns[at][found[0]])
        size = "finite numbers" if abs(value) == np.inf else "no numbers of this size"
        return (
            f"{self._names[at]!r} of {_where(found[0], alone)} is {value!r}; the model "
            f"takes {size} there."
        )

    def _in_python(self, X: Any) -> Array | None:
        columns, alone = self._read(X)
        for at, (table, kinds) in self._coded.items():
            labels: list[Any] = columns[at]
            codes: list[Any] = [None]
            if kinds.issuperset(found := {*map(type, labels)}):
                other = self._rules[at].unknown if found <= {str, np.str_} else None
                codes = list(map(table.get, labels, repeat(other)))
            if None in codes:
                codes = self._codes(at, labels, alone)
                if None in codes:
                    return None
            columns[at] = codes
        rows = np.zeros((len(columns[0]), self._columns.width), self._columns.dtype)
        self._write(rows, columns, self._places, alone)
        return rows

    def _array_of_objects(self, X: Any) -> Array:
        columns, _ = self._read(X)
        objects = np.zeros((len(columns[0]), self._columns.width), object)
        for at, column in enumerate(columns):
            if at not in self._coded:  # no library takes pandas' NA for a number
                column = [NAN if is_missing(value) else value for value in column]
            objects[:, self._places[at]] = column
        return objects

    def frame(self, X: Any) -> Any:
        if self._columns.by_objects:
            return self._array_of_objects(X)
        try:
            import pandas as pd
        except ImportError:
            raise InvalidInputError(
                "these mappings have to become a pandas.DataFrame first, but pandas "
                "is not installed; install it, or pass an array."
            ) from None
        columns, alone = self._read(X)
        if self._index is None:
            self._index = pd.Index(self._names)
        parts: dict[int, Any] = {}
        for at in self._coded:
            rule, labels = self._rules[at], columns[at]
            self._codes(at, labels, alone)  # raises
            kinds = {*map(kind_of_value, labels)}
            if not rule.table and rule.missing is not None:
                kinds.add("number")
            if rule.categories is not None:
                parts[at] = categorical(labels, rule)
            elif not {"number"} <= kinds <= {"number", "missing"}:
                values = [rule.gap if is_missing(label) else label for label in labels]
                dated = any(map(is_date_or_span, labels))
                parts[at] = pd.Series(values, dtype=None if dated else object)
        numeric = {at: at for at in range(self._count) if at not in parts}
        # as in a frame made of columns, the values of a column lie side by side
        numbers = np.empty((self._count, len(columns[0]))).T
        self._write(numbers, columns, numeric, alone)
        for at in numeric:  # in another way than kernels' rows, which meet this frame
            if type(columns[at]) is not list:
                numbers[:, at] = columns[at]
        if not parts:
            return pd.DataFrame(numbers, columns=self._index)
        parts.update((at, numbers[:, at]) for at in numeric)
        frame = pd.DataFrame({at: parts[at] for at in range(self._count)})
        frame.columns = self._index
        return frame

    def _read(self, X: Any) -> tuple[Any, str]:
        dicts, alone = self._as_dicts(X)
        try:
            flat = list(chain.from_iterable(map(self._get, dicts)))
        except KeyError:
            raise self._absent(dicts, alone) from None
        if not self.ignores and {*map(len, dicts)} != {self._count}:
            self.ignores = True
            warn(self._unknown(dicts, alone), InputWarning)
        if alone and any(map(_is_column, flat)):
            return self._in_columns(flat), ""
        return [flat[at :: self._count] for at in range(self._count)], alone

    def _as_dicts(self, X: Any) -> tuple[list[dict[Any, Any]], str]:
        alone = ""
        if isinstance(X, Mapping):
            known = {name: X[name] for name in self._names if name in X} or X
            alone, X = "the mapping" if is_columns(known) else "the row", [X]
        dicts: list[Any] = X if type(X) is list else list(X)
        if {*map(type, dicts)} == {dict}:
            return dicts, alone
        for at, row in enumerate(dicts):
            if not isinstance(row, Mapping):
                raise InvalidInputError(
                    f"row {at} is of type {type(row).__name__}, but row 0 is a "
                    "mapping; make all of them mappings."
                )
        # the default of a defaultdict would be written to the user's row
        return [row if type(row) is dict else dict(row) for row in dicts], alone

    def _in_columns(self, values: Sequence[Any]) -> list[Any]:
        many = [_is_column(value) for value in values]
        if not all(many):
            at, name = many.index(False), self._names[many.index(True)]
            raise InvalidInputError(
                f"{self._names[at]!r} has one value ({values[at]!r}), but {name!r} has "
                "a sequence of values; give every key one value, or every key a "
                "sequence."
            )
        # the feed of an ONNX session has matrices of one column
        values = [
            value[:, 0] if getattr(value, "shape", ())[1:] == (1,) else value
            for value in values
        ]
        sizes = dict(zip(map(len, values), self._names, strict=True))
        if len(sizes) > 1:
            counts = " and ".join(f"{n} for {name!r}" for n, name in sizes.items())
            raise InvalidInputError(
                f"the columns have different numbers of values: {counts}; give every "
                "column a value for each row, with None where it is missing."
            )
        columns = list(map(_objects, values))
        for at in self._coded:
            if type(columns[at]) is np.ndarray:
                columns[at] = columns[at].tolist()
        return columns

    def _write(
        self, rows: Array, columns: Any, places: dict[int, int], alone: str
    ) -> None:
        flat: list[Any] = []
        lists: list[int] = []
        for at in places:
            if type(column := columns[at]) is list:
                flat += column
                lists.append(at)
        arrays = [(columns[at], places[at]) for at in places if at not in lists]
        for first in range(0, len(rows) if arrays else 0, _NEAR_ROWS):
            part = slice(first, first + _NEAR_ROWS)
            for column, place in arrays:  # whole numbers are rounded as by ``float``
                rows[part, place] = column[part].astype(np.float64, copy=False)

        def where(i: int) -> tuple[str, str]:
            at, row = divmod(i, len(rows))
            return self._names[lists[at]], _where(row, alone)

        if not _is_plain(flat) and not NUMBERS.issuperset(map(type, flat)):
            flat = [
                value if type(value) in NUMBERS else number_of(value, *where(i))
                for i, value in enumerate(flat)
            ]
        try:
            packed = np.frombuffer(struct.pack(f"{len(flat)}d", *flat), np.float64)
        except (struct.error, OverflowError):
            large = (type(v) is int and abs(v) >= _TOO_LARGE for v in flat)
            name, row = where([*large].index(True))
            raise InvalidInputError(
                f"{name!r} of {row} is a whole number too large for float64 (above "
                "1e308); pass float('inf'), or None if it is missing."
            ) from None
        rows[:, [places[at] for at in lists]] = packed.reshape(len(lists), len(rows)).T

    def _codes(self, at: int, labels: list[Any], alone: str) -> list[float | None]:
        rule, (table, kinds) = self._rules[at], self._coded[at]
        return [
            code_of(label, rule, table, kinds, _where(row, alone))
            for row, label in enumerate(labels)
        ]

    def _absent(self, dicts: list[dict[Any, Any]], alone: str) -> InvalidInputError:
        at, row = next(
            (at, row)
            for at, row in enumerate(dicts)
            if not row.keys() >= {*self._names}
        )
        absent = [name for name in self._names if name not in row]
        others = [key for key in row if key not in {*self._names}]
        near = ((name, _nearest(name, others)) for name in absent)
        name, key = next((pair for pair in near if pair[1] is not None), ("", None))
        whose = "its" if len(absent) == 1 else f"for {name!r}, the"
        hint = "" if key is None else f"; {whose} nearest key is {key!r}"
        return InvalidInputError(
            f"{_where(at, alone)} has no {', '.join(map(repr, absent))}{hint}. Give "
            "every column of the model, with None where the value is missing."
        )

    def _unknown(self, dicts: list[dict[Any, Any]], alone: str) -> str:
        at = next(at for at, row in enumerate(dicts) if len(row) > self._count)
        keys = [key for key in dicts[at] if key not in {*self._names}]
        near = ((key, _nearest(key, self._names)) for key in keys[:_NAMED])
        told = [
            repr(key) if name is None else f"{key!r} (its nearest column is {name!r})"
            for key, name in near
        ]
        more = f" and {len(keys) - _NAMED} more" if keys[_NAMED:] else ""
        return (
            f"{_where(at, alone)} has keys that are not columns of the model: "
            f"{', '.join(told)}{more}. They are ignored; of such keys in later rows, "
            "nothing is said."
        )


def _types(labels: Iterable[Any]) -> frozenset[type]:
    types = frozenset(map(type, labels))
    return types | {np.str_} if str in types else types


def _texts(rule: ColumnRule) -> dict[str | None, float]:
    known = {None: rule.missing, **(rule.table or {})}.items()
    texts = (
        (label, code) for label, code in known if label is None or type(label) is str
    )
    return {label: float(code) for label, code in texts if code is not None}


def is_columns(X: Mapping[Any, Any]) -> bool:
    return any(map(_is_column, X.values()))


def _is_column(value: Any) -> bool:
    kind = type(value)
    if kind is list or kind is tuple or kind is np.ndarray:
        return kind is not np.ndarray or value.ndim > 0
    if isinstance(value, (str, bytes, bytearray, Mapping)):
        return False
    sequence = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    return sequence and getattr(value, "ndim", 1) > 0


def _objects(column: Any) -> Any:
    if type(column) is list:
        return column
    if not hasattr(column, "__array__"):
        return list(column)
    array = np.asarray(column)
    # a plain array is none, and numpy.ma takes 10 ms to import
    masked = type(column) is not np.ndarray and isinstance(column, np.ma.MaskedArray)
    if array.ndim == 1 and array.dtype.type in NUMBERS and not masked:
        return array
    # spans of time would become whole numbers
    listed: Any = column if masked else array
    return [*listed] if array.dtype.kind in "mM" else listed.tolist()


def _is_plain(values: list[Any]) -> bool:
    if not values or type(values[0]) not in (float, int):
        return False
    try:  # a fifth of the time of looking at each type; NumPy's make the sum another
        with np.errstate(all="ignore"):
            return type(sum(values, 0.0)) is float
    except (ArithmeticError, TypeError, ValueError):
        return False


def _nearest(name: Any, names: Iterable[Any]) -> Any:
    from difflib import get_close_matches

    folded = {str(known).casefold(): known for known in names}

    near = get_close_matches(str(name).casefold(), folded, 1, _NEAR)
    return folded[near[0]] if near else None


def _where(row: int, alone: str) -> str:
    return alone or f"row {row}"
