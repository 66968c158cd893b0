"""Convert data frames from engines to frames that the model accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from skforge.exceptions import InvalidInputError


def rows_of_frame(
    frame: Any,
    names: Sequence[str] | None,
    categories: bool,
    category_names: Sequence[Sequence[str | int]],
    texts: bool = False,
) -> Any:
    """Return a pandas frame with the model's column names, numbers and categories.

    Without ``names``, columns are numbered from 0, which no model checks. With
    ``categories``, text columns become categories; with ``texts``, they stay texts, and
    missing ones are NaN. A column without any value has lost its type;
    ``category_names`` tells whether it is categorical.
    """
    changed = {}
    for place, dtype in enumerate(frame.dtypes):
        known = category_names[place] if category_names else ()
        if len(known) and frame.iloc[:, place].first_valid_index() is None:
            changed[place] = _all_missing(frame.iloc[:, place], known)
        elif texts and _may_be_text(frame.iloc[:, place]):
            changed[place] = _texts(frame.iloc[:, place])
        elif not _is_taken(dtype):
            changed[place] = _column(frame.iloc[:, place], categories)
    labels = range(frame.shape[1]) if names is None else names
    if not changed:
        return frame.set_axis(labels, axis=1)
    from pandas import DataFrame

    columns = [changed.get(i, frame.iloc[:, i]) for i in range(frame.shape[1])]
    return DataFrame(dict(zip(labels, columns, strict=True)), index=frame.index)


def _is_taken(dtype: Any) -> bool:
    """Return whether models accept columns of this dtype without conversion."""
    if isinstance(dtype, np.dtype):
        return dtype.kind in "fiub"
    return type(dtype).__name__ == "CategoricalDtype"


def _all_missing(column: Any, names: Sequence[str | int]) -> Any:
    from pandas import Categorical, Series

    codes = np.full(len(column), -1, np.int8)
    missing = Categorical.from_codes(codes, categories=list(names))
    return Series(missing, index=column.index)


def _texts(column: Any) -> Any:
    from pandas import Series

    values = column.to_numpy(np.object_, na_value=np.nan)
    return Series(values, index=column.index, dtype=np.object_)


def _column(column: Any, categories: bool) -> Any:
    """Convert a column that is not a numeric NumPy array.

    Numeric extension arrays (``Int64``, ``double[pyarrow]``) become NumPy arrays.
    """
    from pandas.api.types import is_numeric_dtype

    dtype = column.dtype
    if not isinstance(dtype, np.dtype) and is_numeric_dtype(dtype):
        return column.astype("float64" if column.hasnans else dtype.numpy_dtype)
    if _is_text(column):
        if categories:
            return column.astype("category")
        raise InvalidInputError(
            f"The column {column.name!r} holds text, but the model has no category "
            "names; encode it as in training."
        )
    if isinstance(dtype, np.dtype) and dtype.kind == "O":
        numbers = _numbers_of_objects(column)
        if numbers is not None:
            return numbers
    raise InvalidInputError(
        f"The column {column.name!r} has the dtype {dtype}, which holds neither "
        "numbers nor categories; convert it to float64."
    )


def _may_be_text(column: Any) -> bool:
    """Tell whether a column holds texts, or nothing that would show its type."""
    empty = column.dtype == np.object_ and column.first_valid_index() is None
    return empty or _is_text(column)


def _is_text(column: Any) -> bool:
    from pandas.api.types import infer_dtype, is_string_dtype

    if isinstance(column.dtype, np.dtype) and column.dtype.kind == "O":
        return str(infer_dtype(column, skipna=True)) == "string"
    return bool(is_string_dtype(column.dtype))


def _numbers_of_objects(column: Any) -> Any:
    """Return numbers, booleans and missing values as float64, else None."""
    from pandas import isna

    known = (bool, int, float, np.bool_, np.integer, np.floating)
    values = column.to_list()
    missing = [value is None or bool(isna(value)) for value in values]
    if not all(
        gone or isinstance(value, known)
        for value, gone in zip(values, missing, strict=True)
    ):
        return None
    return column.astype("float64")
