"""Numbers of data frames: plain columns, and categories by their names.

Frames keep a category as a position in a list of names that each column has for
itself; a model keeps positions in the training frame's lists. Both XGBoost (since 3.1)
and LightGBM translate one into the other, and so does this module.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

    def numbers(self, X: Any, dtype: Any, *, unseen: float | None) -> Array | None:
        """Return a frame's numbers, or None if it has what is not known here.

        Parameters
        ----------
        X : pandas.DataFrame of shape (n_rows, n_features)
            Columns count by position.
        dtype : dtype
            Of the result.
        unseen : float or None
            What a category is that the training frame did not have; with None, there
            must be none.

        Returns
        -------
        ndarray of shape (n_rows, n_features), or None
            NaN where a category is missing, and in the gaps of nullable numbers.
        """
        dtypes = list(X.dtypes)
        categories = [i for i, one in enumerate(dtypes) if is_category(one)]
        if categories != list(self._names):
            return None
        plain = [i for i, one in enumerate(dtypes) if is_plain(one)]
        with np.errstate(over="ignore"):
            if len(plain) == len(dtypes):
                return np.asarray(X.to_numpy(dtype))
            numbers = np.empty(X.shape, dtype)
            if plain:
                numbers[:, plain] = X.iloc[:, plain].to_numpy(dtype)
            for i in sorted({*range(len(dtypes))} - {*plain, *categories}):
                if number_dtype(dtypes[i]) is None:
                    return None
                numbers[:, i] = X.iloc[:, i].to_numpy(dtype, na_value=np.nan)
        for i in categories:
            codes = self._codes(X.iloc[:, i].array, i, unseen)
            if codes is None:
                return None
            numbers[:, i] = codes
        return numbers

    def unseen(self, X: Any) -> dict[Any, list[Any]]:
        """Return the categories that the training frame did not have, by column."""
        found = {}
        for i, names in self._names.items():
            if i < X.shape[1] and is_category(X.dtypes.iloc[i]):
                new = [n for n in X.iloc[:, i].cat.categories if n not in set(names)]
                if new:
                    found[X.columns[i]] = new
        return found

    @cached_property
    def _indexes(self) -> dict[int, Any]:
        import pandas as pd

        return {i: pd.Index(list(names)) for i, names in self._names.items()}

    def _codes(self, column: Any, i: int, unseen: float | None) -> Array | None:
        """Return a column's categories by their numbers in the training frame."""
        trained, given = self._indexes[i], column.categories
        codes: Array = column.codes
        if not _same_kind(trained, given):
            return None
        if trained.equals(given):  # as a rule: much cheaper than a search
            numbers = np.arange(len(given), dtype=np.float64)
        else:
            numbers = trained.get_indexer(given).astype(np.float64)
            if (numbers < 0).any():
                if unseen is None:
                    return None
                numbers[numbers < 0] = unseen
        # a missing category is number -1: the last one
        return np.append(numbers, np.nan)[codes]


def _same_kind(trained: Any, given: Any) -> bool:
    """Tell whether two lists of names are both texts or both integers.

    XGBoost refuses integers of another width than in training; they mean the same.
    """
    if trained.inferred_type == "string":
        return bool(given.inferred_type == "string")
    return bool(trained.dtype.kind == "i" and given.dtype.kind in "iu")
