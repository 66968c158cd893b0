"""Converts rows for the kernels: two-dimensional, one dtype, features contiguous."""

from __future__ import annotations

from functools import lru_cache
from math import isnan
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.compiler.forest import frames, mistakes, sparse_rows
from skforge.compiler.forest.categories import HashedCategories
from skforge.compiler.forest.forest import Forest
from skforge.exceptions import InvalidInputError

#: Libraries that compare the names of columns; scikit-learn if all are texts.
COMPARES = ("catboost", "sklearn", "skforge", "xgboost")


def prepare_rows(forest: Forest, X: Any, made: bool = True) -> Array:
    """Return ``X`` as an array that the kernels can read, copied only if necessary.

    Rows of a forest with hashed categories may be ``made`` already.

    The array is in ``forest.input_dtype``, cast as in the source, and each row is
    contiguous. The names of a frame's columns and categories must be the model's, if it
    has any.
    """
    if (
        type(X) is np.ndarray
        and X.dtype == forest._dtypes[0]
        and X.ndim == 2
        and X.shape[1] == forest.n_features
        and X.flags.c_contiguous
        and X.flags.aligned
        and isnan(forest.missing_value)
        and (made or forest.hashed is None)
    ):
        return X  # the checks below cost more than walking one row
    if forest.hashed is not None:
        return _reader_of(forest.hashed, forest.column_names).rows(X)
    if isinstance(X, np.ndarray):
        rows = X
    elif frames.is_pandas(X) or frames.is_table(X):
        rows = _of_frame(forest, X)
    elif sparse_rows.is_sparse(X):
        rows = np.concatenate([*sparse_rows.blocks_of(forest, X)])
    else:
        rows = _as_array(X, forest.n_features)
    rows = read_columns(forest, rows)
    mistakes.check_shape(rows.shape, forest.n_features)
    kind = rows.dtype
    if kind.kind not in "fiub":
        rows = mistakes.numbers(rows, X)
    with np.errstate(all="ignore"):
        # LightGBM accepts two dtypes and casts all others to float32.
        if forest.source == "lightgbm" and kind not in (np.float32, np.float64):
            rows = np.asarray(rows, np.float32)
        rows = np.asarray(rows, forest.input_dtype)
    width = rows.dtype.itemsize
    if rows.strides[1] != width or rows.strides[0] % width or not rows.flags.aligned:
        rows = np.ascontiguousarray(rows)
    if not isnan(forest.missing_value):
        marker = rows.dtype.type(forest.missing_value)
        rows = np.where(rows == marker, rows.dtype.type(np.nan), rows)
    return rows


def _of_frame(forest: Forest, X: Any) -> Array:
    columns = frames.texts_of(frames.labels_of(X), forest.source == "xgboost")
    if not forest.wider_rows:
        mistakes.check_shape((len(X), len(columns)), forest.n_features)
    why = mistakes.name_mistake(columns, forest.feature_names or columns)
    if why and _names_count(forest, X):
        raise InvalidInputError(why)
    if forest.source not in ("xgboost", "lightgbm") and not any(forest.category_names):
        return _as_array(X, forest.n_features)  # categories are given by value
    coded = _columns(*frames.about_categories(forest))
    unseen = None if forest.source == "xgboost" else np.nan
    dtype, read = forest.input_dtype, frames.any_numbers
    with np.errstate(all="ignore"):
        return coded.numbers(X, dtype, unseen=unseen, read=read)


def _names_count(forest: Forest, X: Any) -> bool:
    texts = all(isinstance(name, str) for name in frames.labels_of(X))
    return forest.source in COMPARES and (texts or forest.source != "sklearn")


_columns = lru_cache(8)(frames.FrameColumns)


_reader_of = lru_cache(8)(HashedCategories.reader)


def read_columns(forest: Forest, rows: Any) -> Any:
    width = forest.n_features
    wide = forest.wider_rows and rows.ndim == 2 and rows.shape[1] > width
    return rows[:, :width] if wide else rows


def _as_array(X: Any, n_features: int) -> Array:
    if hasattr(X, "collect_schema") and not hasattr(X, "get_columns"):
        raise InvalidInputError("rows are a lazy frame; pass X.collect().")
    why = mistakes.kind_mistake(X, n_features)
    if why is not None:
        raise InvalidInputError(why)
    return mistakes.as_array(X)
