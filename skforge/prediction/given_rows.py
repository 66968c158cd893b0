"""The rows that ``fit`` is given, of which it looks at some."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge._compat import cached_property, no_warnings
from skforge._typing import Array
from skforge.compiler.backend import on_device
from skforge.engine.arrays import is_device_array
from skforge.forest.rows import read_columns
from skforge.rows.frames import is_pandas
from skforge.rows.sparse_rows import dense_blocks
from skforge.sources.base import Source

#: Rows that are kept, with which a saved file is compared.
_KEPT = 16


class GivenRows:
    """Rows of any kind: how many there are, and some of them."""

    def __init__(self, X: Any) -> None:
        self.all = X

    @cached_property
    def n(self) -> int:
        X = self.all
        if (type(X) is np.ndarray and X.ndim) or is_pandas(X):
            return len(X)
        from sklearn.utils.validation import _num_samples

        return int(_num_samples(X))

    def spread(self, most: int) -> NDArray[np.intp]:
        """Return the places of up to so many rows, evenly spread."""
        return np.unique(np.linspace(0, max(0, self.n - 1), most).astype(int))

    def some(self, most: int) -> Any:
        return take_rows(self.all, self.spread(most))

    def one(self, place: int) -> Any:
        return take_rows(self.all, np.array([place]))

    def kept(self) -> Any:
        with suppress(Exception):  # of containers that are not known
            return self.some(_KEPT) if self.n else None
        return None


def take_rows(X: Any, at: NDArray[np.intp]) -> Any:
    if type(X) is np.ndarray:
        return X[at]  # scikit-learn looks for plug-ins of data frames: 7 to 25 ms
    if is_pandas(X):
        return X.take(at)
    if is_device_array(X):
        return on_device().rows_on_host(X, at)
    if hasattr(X, "tocsr"):
        return X.tocsr()[at]
    is_table = hasattr(X, "columns") or hasattr(X, "iloc")
    if isinstance(X, (np.ndarray, list)) or is_table:
        from skforge.rows.forms import rows_at

        return rows_at(X, at)
    return np.asarray(X)[at]


def kernel_rows(source: Source, X: Any) -> Array | None:
    """Return rows as kernels get them; None if the model has to read them."""
    with no_warnings():  # of the rows' form, as calls do
        rows = source.rows(X, "predict_raw")
    if rows is None:
        return None
    forests = source.forest, *source.answers.more
    dtype = np.result_type(*(forest.input_dtype for forest in forests))
    if hasattr(rows, "tocsr"):
        return np.concatenate(list(dense_blocks(rows, source.facts.fill, dtype)))
    with np.errstate(over="ignore"):
        return np.asarray(read_columns(source.forest, np.asarray(rows)), dtype)
