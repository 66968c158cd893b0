"""Numbers of data frames: plain columns, and categories by their names.

Frames keep a category as a position in a list of names that each column has for
itself; a model keeps positions in the training frame's lists. Both XGBoost (since 3.1)
and LightGBM translate one into the other, and so does this module, for frames of
pandas and polars and tables of pyarrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.exceptions import InvalidInputError

Array = NDArray[Any]


def is_plain(dtype: Any) -> bool:
    """Tell whether values of a dtype are native numbers or booleans of NumPy."""
    return (
        isinstance(dtype, np.dtype)
        and dtype.kind in "fiub"
        and dtype.isnative
        and dtype.itemsize <= 8
    )


def is_category(dtype: Any) -> bool:
    """Tell whether a column's dtype is that of pandas' categories."""
    return type(dtype).__name__ == "CategoricalDtype"


def number_dtype(dtype: Any) -> Any:
    """Return NumPy's dtype of a column's numbers, with gaps or without, or None."""
    if type(dtype).__name__ != "ArrowDtype":
        dtype = getattr(dtype, "numpy_dtype", dtype)  # of pandas' nullable numbers
    return dtype if is_plain(dtype) else None


def is_pandas(X: Any) -> bool:
    """Tell whether rows are a data frame of pandas, or one that is like it."""
    return hasattr(X, "iloc") and hasattr(X, "columns")


def is_table(X: Any) -> bool:
    """Tell whether rows are a frame of polars, or a table or batch of pyarrow."""
    library = type(X).__module__.partition(".")[0]
    names = {"polars": ("DataFrame",), "pyarrow": ("Table", "RecordBatch")}
    return type(X).__name__ in names.get(library, ())


def column_names(X: Any) -> list[str]:
    """Return the names of a frame's or table's columns, as text."""
    arrow = type(X).__module__.startswith("pyarrow")
    return [str(name) for name in (X.schema.names if arrow else X.columns)]


class FrameColumns:
    """The columns of a training frame: which had categories, and their names.

    Parameters
    ----------
    category_names : tuple of tuple of (str or int)
        For each feature, its categories' names in the order of their numbers; empty
        for a feature without. () if there are none at all.
    """

    def __init__(self, category_names: tuple[tuple[str | int, ...], ...]) -> None:
        self._names = {i: names for i, names in enumerate(category_names) if names}

    def numbers(
        self, X: Any, dtype: Any, *, unseen: float | None, strict: bool = False
    ) -> Array:
        """Return a frame's numbers.

        Parameters
        ----------
        X : frame of pandas or polars, or table of pyarrow, (n_rows, n_features)
            Columns count by position.
        dtype : dtype
            Of the result.
        unseen : float or None
            What a category is that the training frame did not have; with None, no
            row may have one.
        strict : bool, default=False
            Whether to leave to the source what it answers in its own way: columns of
            other libraries in a pandas frame, and with ``unseen=None`` categories that
            the training frame did not have and no row has.

        Returns
        -------
        ndarray of shape (n_rows, n_features)
            NaN where a category is missing, and in the gaps of nullable numbers.

        Raises
        ------
        InvalidInputError
            If a column holds neither numbers nor the categories that are known of it.
        """
        if is_table(X):
            return self._of_table(X, dtype, unseen, strict)
        dtypes = list(X.dtypes)
        self._check([i for i, one in enumerate(dtypes) if is_category(one)], X)
        plain = [i for i, one in enumerate(dtypes) if is_plain(one)]
        with np.errstate(over="ignore"):
            if len(plain) == len(dtypes):
                return np.asarray(X.to_numpy(dtype))
            numbers = np.empty(X.shape, dtype)
            if plain:
                numbers[:, plain] = X.iloc[:, plain].to_numpy(dtype)
            for i in sorted({*range(len(dtypes))} - {*plain, *self._names}):
                column = X.iloc[:, i]
                if number_dtype(dtypes[i]) is None:
                    values = None if strict else _foreign_numbers(column)
                    if values is None:
                        raise _no_numbers(X.columns[i], dtypes[i])
                    numbers[:, i] = values
                else:
                    numbers[:, i] = column.to_numpy(dtype, na_value=np.nan)
        for i in self._names:
            column = X.iloc[:, i].array
            numbers[:, i] = self._codes(column, i, X.columns[i], unseen, strict)
        return numbers

    def _of_table(
        self, X: Any, dtype: Any, unseen: float | None, strict: bool
    ) -> Array:
        """Return the numbers of a frame of polars or a table of pyarrow."""
        read = _polars_column if hasattr(X, "get_columns") else _arrow_column
        labels = column_names(X)
        columns = [read(X, i) for i in range(len(labels))]
        self._check([i for i, c in enumerate(columns) if c[1] is not None], X)
        numbers = np.empty(X.shape, dtype)
        for i, (values, names, gaps, kind) in enumerate(columns):
            if names is not None:
                at = (i, labels[i], unseen, strict)
                values = self._positions(names, values, gaps, *at)
            elif values is None or not is_plain(values.dtype):
                raise _no_numbers(labels[i], kind)
            with np.errstate(over="ignore"):
                numbers[:, i] = values
            numbers[gaps, i] = np.nan
        return numbers

    def table(self, i: int, given: Any, label: Any, unseen: float | None) -> Array:
        """Return the numbers of a column's categories, by code; NaN for code -1."""
        if i not in self._names:
            raise InvalidInputError(f"column {label!r} held numbers in training.")
        codes = np.arange(len(given))
        at = (i, label, unseen, True)
        numbers = self._positions(given.tolist(), codes, codes < 0, *at)
        return np.append(numbers, np.nan)

    def unseen(self, X: Any) -> dict[Any, list[Any]]:
        """Return the categories that the training frame did not have, by column."""
        found = {}
        for i, names in self._names.items():
            if i < X.shape[1] and is_category(X.dtypes.iloc[i]):
                new = [n for n in X.iloc[:, i].cat.categories if n not in set(names)]
                if new:
                    found[X.columns[i]] = new
        return found

    def _check(self, given: list[int], X: Any) -> None:
        """Raise unless the columns with categories are those of the training frame."""
        if given == [*self._names]:
            return
        labels = column_names(X)
        if not self._names:
            raise InvalidInputError(
                f"column {labels[given[0]]!r} holds categories, but the model keeps "
                "no names of categories; pass their numbers in the training frame."
            )
        for i in given:
            if i not in self._names:
                raise InvalidInputError(
                    f"column {labels[i]!r} holds categories, but it held numbers in "
                    "the training frame; convert it to numbers."
                )
        i = next(i for i in self._names if i not in given)
        raise InvalidInputError(
            f"column {labels[i]!r} held categories in the training frame, but holds "
            "none here; convert it to categories, or pass an array of their numbers."
        )

    @cached_property
    def _indexes(self) -> dict[int, Any]:
        import pandas as pd

        return {i: pd.Index(list(names)) for i, names in self._names.items()}

    def _codes(
        self, column: Any, i: int, label: Any, unseen: float | None, strict: bool
    ) -> Array:
        """Return a pandas column's categories by their numbers in training."""
        trained, given = self._indexes[i], column.categories
        codes: Array = column.codes
        # As a rule: much cheaper than a search. True equals 1 there.
        if given.inferred_type in ("string", "integer") and trained.equals(given):
            return np.append(np.arange(len(given), dtype=np.float64), np.nan)[codes]
        at = (i, label, unseen, strict)
        return self._positions(given.tolist(), codes, codes < 0, *at)

    def _positions(
        self,
        given: Sequence[Any],
        codes: Array,
        gaps: Array,
        i: int,
        label: Any,
        unseen: float | None,
        strict: bool,
    ) -> Array:
        """Return the numbers in training of codes that count a column's own names."""
        names = self._names[i]
        kind = _kind(names)
        known = kind is not None and _kind(given) is kind
        if not known and (len(given) or unseen is None):
            what: dict[type | None, str]
            what = {str: "texts", int: "integers", None: "of several kinds"}
            raise InvalidInputError(
                f"the categories of column {label!r} were {what[kind]} in the training "
                f"frame, but here they begin with {list(given[:3])}; make them the "
                "same."
            )
        place = {name: number for number, name in enumerate(names)}
        numbers = np.array([place.get(name, -1) for name in given], np.float64)
        new = np.flatnonzero(numbers < 0)
        if len(new) and unseen is None:
            # XGBoost takes some for others and refuses the rest, held by rows or not
            if not strict:
                new = np.intersect1d(new, codes[~gaps])
            if len(new):
                raise InvalidInputError(
                    f"column {label!r} has the category {given[new[0]]!r}, which the "
                    "training frame did not have; make it missing, or a known one."
                )
        numbers[numbers < 0] = np.nan if unseen is None else unseen
        # a missing category is number -1: the last one
        return np.append(numbers, np.nan)[np.where(gaps, -1, codes)]


def _no_numbers(label: Any, dtype: Any) -> InvalidInputError:
    return InvalidInputError(
        f"column {label!r} has the dtype {dtype}, which holds no plain numbers; "
        "convert it to float64."
    )


def _kind(names: Sequence[Any]) -> type | None:
    """Return whether names are all texts or all integers; None if neither.

    XGBoost refuses integers of another width than in training; they mean the same.
    """
    kinds = {type(name) for name in names}
    return kinds.pop() if kinds in ({str}, {int}) else None


def _foreign_numbers(column: Any) -> Array | None:
    """Return a pandas column's numbers that pyarrow or a sparse array holds."""
    if type(column.dtype).__name__ == "ArrowDtype":
        found = column.array.__arrow_array__().to_numpy(zero_copy_only=False)
    elif type(column.dtype).__name__ == "SparseDtype":
        found = np.asarray(column)
    else:
        return None
    if found.dtype == np.object_ and column.dtype.kind == "b":  # with gaps
        found = column.to_numpy(np.float64, na_value=np.nan)
    return found if is_plain(found.dtype) else None


#: Of a column: its numbers or the codes of its categories (None if it has neither),
#: the names of these, where values are missing, and what it holds.
_Column = tuple[Any, list[Any] | None, Array, Any]


def _polars_column(X: Any, i: int) -> _Column:
    column = X.to_series(i)
    gaps = column.is_null().to_numpy()
    kind = column.dtype
    if str(kind).startswith(("Categorical", "Enum")):
        held = column.unique().drop_nulls()  # of lists that all frames may share
        codes = held.to_physical().to_numpy()
        order = np.argsort(codes)
        found = column.to_physical().fill_null(codes[0] if len(codes) else 0)
        return (
            np.searchsorted(codes[order], found.to_numpy()),
            [str(name) for name in held.gather(order).to_list()],
            gaps,
            kind,
        )
    if kind.is_numeric() and not kind.is_decimal():
        return column.fill_null(0).to_numpy(), None, gaps, kind
    if str(kind) == "Boolean":
        return column.fill_null(False).to_numpy(), None, gaps, kind
    return None, None, gaps, kind


def _arrow_column(X: Any, i: int) -> _Column:
    import pyarrow as pa

    column = X.column(i)
    if isinstance(column, pa.ChunkedArray):
        # chunks may number their categories each in its own way
        column = column.unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # of no chunk, or of too many bytes
        return None, None, np.zeros(len(column), np.bool_), column.type
    kind = column.type
    gaps = column.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_dictionary(kind):
        codes = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return codes.astype(np.int64), column.dictionary.to_pylist(), gaps, kind
    if pa.types.is_floating(kind):
        return column.to_numpy(zero_copy_only=False), None, gaps, kind
    if pa.types.is_integer(kind):
        return column.fill_null(0).to_numpy(zero_copy_only=False), None, gaps, kind
    if pa.types.is_boolean(kind):
        return column.fill_null(False).to_numpy(zero_copy_only=False), None, gaps, kind
    return None, None, gaps, kind
