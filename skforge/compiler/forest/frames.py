"""Numbers from data frames: plain columns, and categories by name.

A frame stores a category as an index into its column's own list of names; a model uses
indices into the training frame's lists. XGBoost (since 3.1) and LightGBM translate
between the two, and so does this module, for pandas and polars frames and pyarrow
tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from skforge._typing import Array
from skforge.exceptions import InvalidInputError

ColumnNames: TypeAlias = tuple[tuple[str | float, ...], ...]
Dtypes: TypeAlias = tuple[str, ...]

#: Tables of pandas' dtypes that are kept.
_MOST_TABLES = 256


#: How classes of rows are called here, so that no library is imported.
_KINDS = {
    ("pandas", "DataFrame"): "pandas",
    ("polars", "DataFrame"): "polars",
    ("pyarrow", "Table"): "pyarrow",
    ("pyarrow", "RecordBatch"): "batch",
    ("scipy", "csr_matrix"): "csr",
}
#: NumPy's dtype of numbers of polars and pyarrow, by the name of their type.
_NUMBERS = {
    **{f"int{8 * size}": f"i{size}" for size in (1, 2, 4, 8)},
    **{f"uint{8 * size}": f"u{size}" for size in (1, 2, 4, 8)},
    **{"halffloat": "f2", "float16": "f2", "float": "f4", "float32": "f4"},
    **{"double": "f8", "float64": "f8", "bool": "?", "boolean": "?"},
}


def is_plain(dtype: Any) -> bool:
    return (
        isinstance(dtype, np.dtype)
        and dtype.kind in "fiub"
        and dtype.isnative
        and dtype.itemsize <= 8
    )


def is_date(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind == "M"


def is_category(dtype: Any) -> bool:
    return type(dtype).__name__ == "CategoricalDtype"


def number_dtype(dtype: Any, arrow: bool = False) -> Any:
    """Return the dtype of a column's numbers, or None; ``arrow`` accepts pyarrow's."""
    if arrow or type(dtype).__name__ != "ArrowDtype":
        dtype = getattr(dtype, "numpy_dtype", dtype)  # pandas' nullable numbers
    return dtype if is_plain(dtype) else None


@lru_cache(maxsize=256)
def number_of(dtype: Any) -> np.dtype[Any] | None:
    """Return the NumPy dtype of any library's numbers, dates as integers, or None."""
    if is_date(dtype):
        return np.dtype(np.int64)
    number: np.dtype[Any] | None = number_dtype(dtype, arrow=True)
    if number is None and (code := _NUMBERS.get(str(dtype).lower())) is not None:
        number = np.dtype(code)
    return number


def numbers_in(column: Any) -> tuple[Array, Array | None] | None:
    """Return a polars or pyarrow column's numbers, and where they are missing.

    The second is None if none is; the first are then of the column's own dtype. None if
    it holds no numbers.
    """
    polars = hasattr(column, "to_arrow")
    number = number_of(column.dtype if polars else column.type)
    if number is None:
        return None
    gaps = column.null_count() if polars else column.null_count
    if not gaps or number.kind == "f":  # they become NaN
        values = column.to_numpy() if polars else np.asarray(column)
        return values, np.isnan(values) if gaps else None
    zero = number.type(0).item()
    return np.asarray(column.fill_null(zero)), np.asarray(column.is_null())


def nullable_numbers(values: Any, number: np.dtype[Any]) -> tuple[Array, Array]:
    mask = getattr(values, "_mask", None)
    if mask is None:  # of pyarrow
        return values.to_numpy(number, na_value=number.type(0)), values.isna()
    return values._data, mask  # as its to_numpy does, five times as fast


def numbers_of_dates(dates: Any, taken: Any) -> Array | None:
    """Return NumPy's or pandas' dates as float64; None if float64 rounds a taken one.

    None also if one is missing: it is a number to scalers, and missing to imputers.
    """
    whole = np.asarray(dates).view(np.int64)
    numbers = whole.astype(np.float64)
    exact = (numbers.astype(np.int64) == whole) & (whole > np.iinfo(np.int64).min)
    return numbers if exact[taken].all() else None


def kind_of(X: Any) -> str:
    """Return "pandas", "polars", "pyarrow", "batch" or "csr"; "" for other classes."""
    class_: Any = type(X)
    return _kind_of_class(class_)


@lru_cache(maxsize=256)
def _kind_of_class(class_: type) -> str:
    return _KINDS.get((class_.__module__.partition(".")[0], class_.__name__), "")


def is_pandas(X: Any) -> bool:
    return hasattr(X, "iloc") and hasattr(X, "columns")


def is_table(X: Any) -> bool:
    return kind_of(X) in ("polars", "pyarrow", "batch")


def labels_of(X: Any) -> Any:
    arrow = type(X).__module__.startswith("pyarrow")
    return X.schema.names if arrow else getattr(X, "columns", None)


def column_names(X: Any) -> list[str]:
    return list(map(str, labels_of(X)))


class FrameColumns:
    """The categorical columns of a training frame, with their category names.

    They are given as in ``Forest.category_names``. ``index_dtypes`` are the dtypes that
    a feature's integer categories must have, or "" for any. ``marker`` is
    ``Forest.missing_value``, which a frame's own codes may equal.
    """

    def __init__(
        self,
        category_names: ColumnNames,
        index_dtypes: Dtypes = (),
        marker: float = np.nan,
    ) -> None:
        self.names = {i: names for i, names in enumerate(category_names) if names}
        self.index_dtypes, self._marker = index_dtypes, marker
        #: By column, id of pandas' dtype, which is kept alive, and what is ``unseen``.
        self._tables: dict[tuple[int, int, bool], tuple[Any, Array]] = {}

    def numbers(
        self, X: Any, dtype: Any, *, unseen: float | None, strict: bool = False
    ) -> Array:
        """Return a frame's numbers, with NaN for missing categories and nulls.

        Columns match by position. ``unseen`` is the value of a category that the
        training frame did not have; None forbids such categories in rows. ``strict``
        refuses what the source answers in its own way: columns of other libraries in a
        pandas frame, and with ``unseen=None`` new categories that the frame lists but
        no row has.
        """
        if is_table(X):
            return self._of_table(X, dtype, unseen, strict)
        dtypes = list(X.dtypes)
        self._check([i for i, kind in enumerate(dtypes) if is_category(kind)], X)
        plain = [i for i, kind in enumerate(dtypes) if is_plain(kind)]
        with np.errstate(over="ignore"):
            if len(plain) == len(dtypes):
                return np.asarray(X.to_numpy(dtype))
            numbers = np.empty(X.shape, dtype)
            if plain:
                numbers[:, plain] = X.iloc[:, plain].to_numpy(dtype)
            for i in sorted({*range(len(dtypes))} - {*plain, *self.names}):
                column = X.iloc[:, i]
                if number_dtype(dtypes[i], arrow=not strict) is not None:
                    values = column.to_numpy(dtype, na_value=np.nan)
                else:
                    values = None if strict else _foreign_numbers(column)
                if values is None:
                    raise _no_numbers(X.columns[i], dtypes[i])
                numbers[:, i] = values
        for i in self.names:
            column = X.iloc[:, i].array
            numbers[:, i] = self._codes(column, i, X.columns, unseen, strict)
        return numbers

    def _of_table(
        self, X: Any, dtype: Any, unseen: float | None, strict: bool
    ) -> Array:
        labels, polars = column_names(X), hasattr(X, "get_columns")
        columns = X.get_columns() if polars else X.columns
        coded = list(map(polars_codes if polars else arrow_codes, columns))
        self._check([i for i, codes in enumerate(coded) if codes is not None], X)
        numbers = np.empty(X.shape, dtype)
        for i, (column, names_and_codes) in enumerate(zip(columns, coded, strict=True)):
            if names_and_codes is not None:
                names, codes = names_and_codes
                used = None if strict else codes
                numbers[:, i] = self.table(names, i, labels[i], unseen, used)[codes]
                continue
            values_and_gaps = numbers_in(column)
            if values_and_gaps is None:
                raise _no_numbers(labels[i], column.dtype if polars else column.type)
            values, gaps = values_and_gaps
            with np.errstate(over="ignore"):
                numbers[:, i] = values
            if gaps is not None:
                numbers[gaps, i] = np.nan
        return numbers

    def _check(self, coded: list[int], X: Any) -> None:
        if coded == [*self.names]:
            return
        labels = column_names(X)
        if not self.names:
            raise InvalidInputError(
                f"column {labels[coded[0]]!r} holds categories, but the model does "
                "not store their names; pass the codes that they had in training."
            )
        for i in coded:
            if i not in self.names:
                raise InvalidInputError(
                    f"column {labels[i]!r} holds categories, but it held numbers in "
                    "training; convert it to numbers."
                )
        i = next(i for i in self.names if i not in coded)
        label = labels[i] if i < len(labels) else i
        raise InvalidInputError(
            f"column {label!r} held categories in training, but holds none here; "
            "convert it to categories, or pass an array of their codes."
        )

    def _codes(
        self, column: Any, i: int, labels: Any, unseen: float | None, strict: bool
    ) -> Array:
        codes: Array = column.codes
        try:
            table = self.of_dtype(column.dtype, i, labels, unseen)
        except InvalidInputError:
            if strict:
                raise
            table = self.table(column.categories, i, labels[i], unseen, codes)
        return table[codes]

    def of_dtype(self, dtype: Any, i: int, labels: Any, unseen: float | None) -> Array:
        key = i, id(dtype), unseen is None
        known = self._tables.get(key)
        if known is None:
            if len(self._tables) >= _MOST_TABLES:
                self._tables.clear()
            table = self.table(dtype.categories, i, labels[i], unseen)
            self._tables[key] = known = dtype, table
        return known[1]

    def _fits(self, i: int, listed: Any) -> bool:
        dtype = self.index_dtypes[i] if self.index_dtypes else ""
        return not dtype or getattr(listed, "dtype", None) == dtype

    def table(
        self,
        listed: Any,
        i: int,
        label: Any,
        unseen: float | None,
        used: Array | None = None,
    ) -> Array:
        """Return the numbers in training of a column's own names; NaN for code -1.

        ``used`` are the codes of the rows; None refuses new names that no row has, too.
        """
        names = self.names[i]
        kind, fits = _kind(names), self._fits(i, listed)
        listed = list(listed)
        known = kind is not None and fits and _kind(listed) is kind
        if not known and (len(listed) or unseen is None):
            what: dict[type | None, str]
            what = {str: "texts", int: "integers", float: "floats"}
            what[None] = "of several kinds"
            raise InvalidInputError(
                f"the categories of column {label!r} were {what[kind]} in training, "
                f"but here they begin with {list(listed[:3])}; use the same kind of "
                "categories."
            )
        place = {name: number for number, name in enumerate(names)}
        numbers = np.array([place.get(name, -1) for name in listed], np.float64)
        new = np.flatnonzero(numbers < 0)
        # XGBoost accepts some kinds for others and refuses the rest, used or not
        if used is not None:
            new = np.intersect1d(new, used)
        if len(new) and unseen is None:
            raise InvalidInputError(
                f"column {label!r} has the category {listed[new[0]]!r}, which did not "
                "occur in training; replace it by a missing value or a known category."
            )
        numbers[numbers < 0] = np.nan if unseen is None else unseen
        # A frame's own codes are markers, not those of training: trees drop fractions.
        numbers[numbers == self._marker] += 0.25
        numbers[np.arange(len(numbers)) == self._marker] = np.nan
        return np.append(numbers, np.nan)


def _no_numbers(label: Any, dtype: Any) -> InvalidInputError:
    return InvalidInputError(
        f"column {label!r} has the dtype {dtype}, which is not plain numbers; convert "
        "it to float64."
    )


def _kind(names: Sequence[Any]) -> type | None:
    kinds = {type(name) for name in names}
    return kinds.pop() if kinds in ({str}, {int}, {float}) else None


def _foreign_numbers(column: Any) -> Array | None:
    arrow: Any = getattr(column.dtype, "pyarrow_dtype", None)
    if hasattr(arrow, "index_type"):
        values = column.array.__arrow_array__().cast(arrow.value_type).to_numpy()
    else:
        values = np.asarray(column) if hasattr(column, "sparse") else None
    return values if values is not None and is_plain(values.dtype) else None


#: The category names of a column, and the codes of its rows, -1 for missing ones.
_Codes: TypeAlias = tuple[list[Any], Array]


def polars_codes(column: Any) -> _Codes | None:
    if not str(column.dtype).startswith(("Categorical", "Enum")):
        return None
    numbers = column.to_physical().to_numpy()
    if str(column.dtype).startswith("Enum"):
        names, known = column.dtype.categories, np.arange(len(column.dtype.categories))
    else:  # the full list may be shared by all frames; Arrow lists them by row
        names = column.unique(maintain_order=True).drop_nulls()
        known = names.to_physical().to_numpy()
    order = np.append(np.argsort(known), -1)
    codes = order[np.searchsorted(known[order[:-1]], numbers)]
    return list(map(str, names.to_list())), codes


def arrow_codes(column: Any) -> _Codes | None:
    # XGBoost refuses categories of the type string_view
    kind = str(getattr(column.type, "value_type", "string_view"))
    if not hasattr(column.type, "index_type") or kind == "string_view":
        return None
    if hasattr(column, "unify_dictionaries"):
        # each chunk may number its categories differently
        column = column.unify_dictionaries().combine_chunks()
    if not hasattr(column, "indices"):  # no chunk, or too many bytes
        return None
    codes = column.indices.cast("int64").fill_null(-1)
    return column.dictionary.to_pylist(), codes.to_numpy(zero_copy_only=False)
