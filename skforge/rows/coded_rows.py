"""Rows of histogram boosting, whose encoder of categories is a part of the model.

The encoder compares values: 1, 1.0 and True are one category, in a column of any dtype.
Rows for the forest hold codes; where all categories are small whole numbers, they hold
these instead, so that arrays need no code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from skforge._typing import Array
from skforge.frontends.pipeline.codes import TextCodes
from skforge.rows import frames, pandas_blocks
from skforge.rows.known_forms import ReadForm
from skforge.rows.plain import PlainRows, ReadArray, Reading, array_of

#: NumPy 1 rounds some numbers to float32 where it compares them with a float32 array.
_ROUNDS = np.lib.NumpyVersion(np.__version__) < "2.0.0"


def _numbers_in(column: Any) -> frames.ColumnNumbers | None:
    """Return a column's numbers and gaps, of pyarrow's as scikit-learn makes them."""
    if (numbers := frames.numbers_in(column, arrow=False)) is not None:
        return numbers
    if frames.number_dtype(column.dtype, arrow=True) is None:
        return None
    values = np.asarray(column)  # booleans of which one is missing are objects
    return (values, None) if frames.is_plain(values.dtype) else None


class NumberCategories:
    """Categories that are numbers, in ascending order.

    Rows hold codes if the numbers are ``coded``. If not, rows hold the numbers, which
    are small and whole, and which a stored model does not know.
    """

    #: Whether columns may hold plain numbers.
    reads_numbers = True

    def __init__(self, known: Sequence[float], coded: bool, bools: bool) -> None:
        self.coded = coded
        #: Whether the encoder takes booleans: it fails on some that it does not know.
        self.bools = bools
        self._numbers = np.array([*map(float, known)], np.float64)
        self._codes = {x: float(code) for code, x in [*enumerate(known)][::-1]}
        #: Whether float64 may hold two of them as one.
        self.large = frames.has_large(self._numbers)
        self._exact = np.array(known)
        self.whole = self._exact.dtype.kind in "iu"
        with np.errstate(over="ignore"):
            narrow = self._numbers.astype(np.float32)
        #: Whether float32 rounds none.
        self.narrow = bool((narrow == self._numbers).all())

    def may_read(self, dtype: Any) -> bool:
        """Tell whether numbers of a dtype are compared as float64 holds them."""
        rounds = _ROUNDS and not self.narrow and dtype == np.float32
        return not rounds and (self.bools or dtype != np.bool_)

    def codes(self, values: Array) -> Array:
        """Return a code for each number, or NaN; infinite ones stay what they are."""
        if not self.coded:
            return values
        if not len(self._numbers):
            return np.where(np.isinf(values), values, np.nan)
        if len(values) == 1 and not self.large:
            (x,) = values.tolist()
            only = self._codes.get(x, np.nan)
            return np.array([x if x in (np.inf, -np.inf) else only])
        # numbers of one dtype are compared in that, and others as float64
        known = self._exact if values.dtype == self._exact.dtype else self._numbers
        code = np.searchsorted(known, values)
        code[code == len(known)] = 0
        codes = np.where(known[code] == values, code, np.nan)
        return np.where(np.isinf(values), values, codes)

    def of_column(self, column: Any) -> Array | None:
        """Return the codes of a column of pandas."""
        numbers = _numbers_in(column)
        if numbers is None:
            return None
        values, gaps = numbers
        if gaps is None:
            return self.codes(values) if self.may_read(values.dtype) else None
        # scikit-learn makes floats of nullable numbers
        codes = self.codes(values.astype(np.float64))
        codes[gaps] = np.nan
        return codes

    def of_table(self, column: Any) -> Array | None:
        """Return the codes of a table's column beside texts, when numbers are objects.

        As Python compares these, so does float64 if it rounds none.
        """
        numbers = frames.numbers_in(column)
        if numbers is None or self.large or numbers[0].dtype.kind == "b":
            return None
        values, gaps = numbers
        if frames.may_round(values):
            return None
        codes = self.codes(values.astype(np.float64))
        if gaps is not None:
            codes[gaps] = np.nan
        return codes

    def of_listed(self, listed: Any) -> Array | None:
        number = frames.number_dtype(listed.dtype)
        if number is None:
            return None
        # and of booleans
        values = listed.to_numpy(np.float64 if number == np.bool_ else number)
        return (
            self.codes(values).astype(np.float64)
            if self.may_read(values.dtype)
            else None
        )


class TextCategories:
    """Categories that are texts."""

    reads_numbers = False

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = TextCodes(tuple(texts), np.nan, np.nan, np.nan, na=np.nan)

    def of_column(self, column: Any) -> Array | None:
        codes = self._texts.of_column(column)
        return codes if codes is None else np.full(len(column), codes)

    def of_table(self, column: Any) -> Array | None:
        """Return the codes of a column of polars or pyarrow."""
        if not frames.holds_texts(column):
            return None
        return self.of_column(column)

    def of_listed(self, listed: Any) -> Array | None:
        return self._texts.codes(listed.tolist())


class ObjectCategories:
    """Categories that are compared as Python's objects: intervals, dates, and mixtures.

    ``rows`` are what the forest's rows hold for each one.
    """

    reads_numbers = False

    def __init__(self, labels: Sequence[Any], rows: Sequence[int], dtype: Any) -> None:
        self._table = dict(zip(labels, map(float, rows), strict=True))
        self._dtype = dtype

    def of_column(self, column: Any) -> Array | None:
        return None  # the encoder goes through objects one by one

    def of_table(self, column: Any) -> Array | None:
        return None

    def of_listed(self, listed: Any) -> Array | None:
        labels = np.asarray(listed)
        if labels.dtype != self._dtype:
            return None
        return np.array([self._table.get(label, np.nan) for label in labels.tolist()])


CodedColumn: TypeAlias = NumberCategories | TextCategories | ObjectCategories


class CodedRows(PlainRows):
    __slots__ = (
        *("_categories", "_kept", "_large", "_numbers", "_takes_every", "_has_texts"),
        "_whole",
    )

    def __init__(
        self, reading: Reading, width: int, categories: Mapping[int, CodedColumn]
    ) -> None:
        super().__init__(reading, width, frames.FrameColumns(()))
        self._one_block = False  # some columns hold categories
        self._categories = categories
        #: By column and id of pandas' dtype, which is kept alive: a code per category.
        self._kept = frames.Kept()
        self._numbers = {
            i: known
            for i, known in categories.items()
            if isinstance(known, NumberCategories)
        }
        self._has_texts = len(self._numbers) < len(categories)
        self._large = [i for i, known in self._numbers.items() if known.large]
        self._whole = any(self._numbers[i].whole for i in self._large)
        narrow = (np.bool_, np.float32)  # dtypes that some categories refuse
        self._takes_every = all(
            known.may_read(np.dtype(dtype))
            for known in self._numbers.values()
            for dtype in narrow
        )

    def reads_plainly(self, X: Any) -> bool:
        """Tell whether further rows of the form of these are read by their values."""
        known = self._categories.values()
        if not all(isinstance(k, NumberCategories) and not k.coded for k in known):
            return False
        if self._takes_every or not frames.is_table(X):
            return True
        types = [*frames.types_of(X)]
        return all(
            k.may_read(frames.number_of(types[i])) for i, k in self._numbers.items()
        )

    def _array(self, X: Array) -> ReadArray | None:
        read = super()._array(X)
        return None if read is None else self._encoded(*read, X)

    def _list(self, X: Any) -> ReadArray | None:
        values = array_of(X)
        if values is None or frames.may_round(values):
            return None
        # the encoder gets objects: it takes booleans, and compares as Python does
        read = self._array(values.astype(np.float64) if values.dtype == "?" else values)
        large = self._large if read is not None else []
        if large and frames.has_large(values[:, large]):
            kinds = {type(row[i]) for i in large for row in X}
            if self._whole or kinds != {float}:
                return None
        return read

    def _table(self, X: Any) -> ReadArray | None:
        if self._has_texts:
            return self._table_with_texts(X) if self._r.tables else None
        read = super()._table(X)
        if read is None or not self._takes_kinds(self._kinds_of(X), read[0]):
            return None
        encoded = self._encoded(*read, read[0])
        if encoded is None or not self._large or self._with_large(encoded[0], X):
            return encoded
        return None

    def _table_with_texts(self, X: Any) -> ReadArray | None:
        """Read a table of whose categories the encoder gets an array of objects."""
        if self.warning_of(X, frames.labels_of(X)) != "":
            return None
        rows = np.empty(X.shape, self._r.dtype)
        for i, column in enumerate(frames.table_columns(X)):
            if (known := self._categories.get(i)) is not None:
                if (codes := known.of_table(column)) is None:
                    return None
                rows[:, i] = codes
            elif (numbers := frames.numbers_in(column)) is not None:
                frames.write_numbers(rows, i, numbers)
            else:
                return None
        return rows, ""

    def _takes_kinds(self, kinds: list[Any], values: Array) -> bool:
        """Tell whether the encoder takes a table's columns of its own.

        It gets them as one array, whose dtype is theirs in common; booleans of which
        one is missing are objects to it, and all objects are taken.
        """
        if self._takes_every:
            return True
        one = kinds[next(iter(self._numbers))]
        if not _ROUNDS and one is not None and one.kind != "b":
            return True  # of booleans alone, it is that of booleans
        dtype, known = self._dtype_of(kinds), self._numbers.values()
        if dtype == np.bool_ and np.isnan(values[:, [*self._numbers]]).any():
            return True
        return dtype is not None and all(each.may_read(dtype) for each in known)

    def _dtype_of(self, kinds: list[Any]) -> Any:
        of_columns = [kinds[i] for i in self._numbers]
        if any(kind is None for kind in of_columns):
            return None
        return np.result_type(*of_columns, *of_columns[:1])

    def _with_large(self, rows: Array, X: Any) -> bool:
        """Compare whole numbers that a table's array of float64 rounds.

        False if the encoder gets objects, which it compares as Python does.
        """
        kinds, columns = self._kinds_of(X), frames.each_column(X)
        numbers: dict[int, Any] = {
            i: frames.numbers_in(columns[i]) for i in self._numbers
        }
        gaps = {kinds[i].kind for i, pair in numbers.items() if pair[1] is not None}
        if "b" in gaps:  # of booleans of which one is missing
            return False
        dtype = self._dtype_of(kinds)
        # the array of whole numbers of which one is missing is of float64
        if dtype.kind in "iu" and not gaps:
            for i in self._large:
                rows[:, i] = self._numbers[i].codes(numbers[i][0])
        return True

    def _encoded(self, rows: Array, said: str, values: Array) -> ReadArray | None:
        copied = False
        for i, known in self._numbers.items():
            if not known.may_read(values.dtype):
                return None
            if not known.coded:
                continue
            if not copied:  # they may be the caller's
                rows, copied = rows.copy(), True
            rows[:, i] = known.codes(values[:, i])
        return rows, said

    def reader(self, X: Any, most: int) -> ReadForm | None:
        by_plan = frames.kind_of(X) == "pandas"
        return super().reader(X, most) if by_plan or self.reads_plainly(X) else None

    def _plan(self, X: Any) -> list[pandas_blocks.WriteBlock]:
        writes: list[pandas_blocks.WriteBlock] = []
        for block in X._mgr.blocks:
            dtype, where = block.values.dtype, block.mgr_locs
            places = where.as_array.tolist()
            if frames.is_plain(dtype):
                coded = [at for at, i in enumerate(places) if self._is_coded(i, dtype)]
                wide = pandas_blocks.is_wide(dtype)
                write = partial(self._write_numbers, where.indexer, places, coded, wide)
                writes.append(write if coded or wide else pandas_blocks.plain(block))
            else:
                writes.append(partial(self._write_columns, places))
        return writes

    def _is_coded(self, i: int, dtype: Any) -> bool:
        """Tell whether a column's numbers are not those of rows."""
        if (known := self._categories.get(i)) is None:
            return False
        if not isinstance(known, NumberCategories):
            return True
        return known.coded or not known.may_read(dtype)

    def _write_numbers(
        self,
        to: Any,
        places: list[int],
        coded: list[int],
        wide: bool,
        rows: Array,
        values: Array,
    ) -> bool:
        rows[:, to] = values.T
        every = wide and frames.has_large(values)  # of which others may be rounded
        for at in range(len(places)) if every else coded:
            if not self._column(rows, places[at], values[at]):
                return False
        return True

    def _write_columns(self, places: list[int], rows: Array, values: Any) -> bool:
        each = values if values.ndim > 1 else [values]
        pairs = zip(places, each, strict=True)
        return all([self._column(rows, i, column) for i, column in pairs])

    def _column(self, rows: Array, i: int, column: Any) -> bool:
        if (known := self._categories.get(i)) is not None:
            codes = self._codes(known, i, column)
            if codes is not None:
                rows[:, i] = codes
            return codes is not None
        numbers = _numbers_in(column)
        if numbers is None or frames.may_round(numbers[0]):
            return False
        frames.write_numbers(rows, i, numbers)
        return True

    def _codes(self, known: CodedColumn, i: int, column: Any) -> Array | None:
        dtype = column.dtype
        if not frames.is_category(dtype):
            return known.of_column(column)
        # beside missing values, the encoder gets floats
        key = i, id(dtype), i in self._large and (column.codes < 0).any()
        kept, table = self._kept.get(key, (None, None))
        if kept is None:
            listed = dtype.categories
            codes = known.of_listed(listed.astype(np.float64) if key[2] else listed)
            table = None if codes is None else np.append(codes, np.nan)
            self._kept[key] = dtype, table
        return None if table is None else table[column.codes]
