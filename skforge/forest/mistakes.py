"""Error texts for objects that users mistake for rows, with the remedy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.exceptions import InvalidInputError, shortened, with_article


def numbers(rows: Array, X: Any) -> Array:
    if rows.dtype.kind == "O":
        try:
            return rows.astype(np.float64)
        except (TypeError, ValueError) as error:
            why = (
                value_mistake(rows, X)
                or f"rows hold values that are not numbers: {error}"
            )
            raise InvalidInputError(why) from error
    raise InvalidInputError(
        value_mistake(rows, X)
        or f"rows have dtype {rows.dtype}; pass real numbers or booleans."
    )


def kind_mistake(X: Any, n_features: int) -> str | None:
    wanted = f"pass an array or a data frame of shape (n_rows, {n_features})."
    if X is None:
        return f"rows are None; {wanted}"
    if isinstance(X, (str, bytes, os.PathLike)):
        return f"rows are the text or path {X!r}; read the file, then {wanted}"
    by_name = "with its columns in the order of training"
    if isinstance(X, Mapping):
        kind = with_article(type(X).__name__)
        return f"rows are {kind}; pass pandas.DataFrame(rows), {by_name}."
    if isinstance(X, (list, tuple)) and len(X) and isinstance(X[0], Mapping):
        what = f"{type(X).__name__} of {type(X[0]).__name__}s"
        return f"rows are a {what}; pass pandas.DataFrame(rows), {by_name}."
    if not (hasattr(X, "__array__") or hasattr(X, "__len__")) or isinstance(X, Set):
        return f"rows are of type {type(X).__name__}, which is not a table; {wanted}"
    return None


def as_array(X: Any) -> Array:
    try:
        return np.asarray(X)
    except (TypeError, ValueError) as error:
        why = str(error)
        if isinstance(X, (list, tuple)) and all(hasattr(row, "__len__") for row in X):
            for i, row in enumerate(X):
                if len(row) != len(X[0]):
                    why = (
                        f"row 0 has {len(X[0])} values and row {i} has {len(row)}; "
                        "pass NaN where a value is missing."
                    )
                    break
        raise InvalidInputError(
            f"rows do not form a rectangular array: {why}"
        ) from error


def check_shape(shape: tuple[int, ...], n_features: int) -> None:
    if len(shape) != 2:
        mend = "Use X.reshape(1, -1) for one row."
        if shape == (0,):
            mend = "Give at least one row."
        elif len(shape) > 2:
            mend = f"Use X.reshape({shape[0]}, -1) to make one row of each X[i]."
        raise InvalidInputError(
            "rows must be two-dimensional, with one row per sample. Got shape "
            f"{shape} instead. {mend}"
        )
    if shape[1] != n_features:
        raise InvalidInputError(
            f"the model was trained on {n_features} features, but the rows have "
            f"{shape[1]} columns."
        )


def name_mistake(columns: Sequence[str], names: Sequence[str]) -> str:
    if [*columns] == [*names]:
        return ""
    given, wanted = (shortened(str([*texts])) for texts in (columns, names))
    return (
        f"the columns are {given}, but the model was trained on {wanted}; pass "
        "X[names] with the columns in that order."
    )


def value_mistake(rows: Array, X: Any) -> str | None:
    if rows.dtype.kind == "c":
        return "rows are complex numbers; pass real numbers."
    for at, value in np.ndenumerate(rows):
        if rows.dtype.kind == "O" and is_number(value):
            continue
        names = getattr(X, "column_names", getattr(X, "columns", None))
        column = repr(names[at[1]]) if names is not None else str(at[1])
        return no_number(value, at[0], column)
    return None


def no_number(value: Any, row: int, column: str) -> str:
    shown = repr(str(value)) if isinstance(value, str) else str(value)
    return (
        f"row {row} has {shown} in column {column}; encode texts, dates and categories "
        "as numbers the way the model was trained."
    )


def is_number(value: Any) -> bool:
    try:
        float("nan" if value is None else value)
    except (TypeError, ValueError):
        return False
    return True
