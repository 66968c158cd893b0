"""Converts common kinds of rows in microseconds, exactly as the source does.

A library's own checks of one row take hundreds of microseconds. This module converts
numeric arrays, lists and frames itself, compares feature names as the source does, and
returns the source's warnings as text. Rows that the source might refuse, and all other
kinds, are left to the source, so that errors are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from skforge._typing import Array
from skforge.exceptions import InvalidInputError
from skforge.forest.arrays import ZERO_THRESHOLD
from skforge.rows import frames, known_forms, pandas_blocks
from skforge.rows.known_forms import ReadForm

#: Larger sparse rows are made dense by blocks, over the columns that trees read.
_MOST_CELLS, _MOST_COLUMNS = 1 << 16, 256


@dataclass(frozen=True, slots=True)
class Reading:
    dtype: Any  # of the rows for the kernels
    names: tuple[str, ...] | None = None  # of the columns seen in training, if any
    #: How the names of a pandas frame are compared. "sklearn": as scikit-learn does,
    #: with a warning if one side has none. "equal": they must be equal if both sides
    #: have names. "never": not compared.
    compares: Literal["sklearn", "equal", "never"] = "sklearn"
    joins: bool = False  # whether names of several levels are joined, as by XGBoost
    tables: bool = True  # whether polars frames and pyarrow tables are read
    #: The class name in scikit-learn's warnings; "" for a source without these.
    estimator: str = ""
    #: Value of a category that the training frame did not have; None leaves such frames
    #: to the source.
    unseen: float | None = None
    #: Arrays that are neither float32 nor float64 are cast to this dtype first.
    through: Any = None
    arrays: bool = True  # whether arrays are read
    lists: bool = True  # whether lists are, as by ``np.asarray``
    #: Value of absent entries of sparse rows; None leaves these to the source.
    fill: float | None = None
    arrow: bool = True  # whether pandas columns backed by pyarrow are read
    #: Whether pandas columns of objects are read if these are numbers or None.
    objects: bool = False
    #: A column of pandas frames that the source drops, wherever it is; "" for none.
    dropped: str = ""


#: Rows for the kernels, and the source's warning or "".
ReadArray = tuple[Array, str]


class PlainRows:
    """Reads common kinds of rows; returns None for rows that the source must read."""

    __slots__ = (
        *("_columns", "_dropped", "_kinds", "_last", "_one_block", "_r", "_width"),
        "unnamed",
    )

    def __init__(
        self, reading: Reading, width: int, columns: frames.FrameColumns
    ) -> None:
        self._r, self._width, self._columns = reading, width, columns
        #: Whether a frame's only block of numbers is its rows.
        self._one_block = not columns.lists
        #: By class of frames: the last one's columns, and the warning for them.
        self._last: dict[type, tuple[Any, str | None]] = {}
        #: By classes of Polars' dtypes, what numbers such columns hold.
        self._kinds: dict[Any, list[Any]] = frames.Kept()
        #: The last frame's columns, and what is made of a frame with these.
        self._dropped: tuple[Any, Callable[[Any], Any] | None] = None, None
        warns = reading.estimator and reading.names is not None
        self.unnamed = _without_names(reading.estimator) if warns else ""

    def read(self, X: Any) -> ReadArray | None:
        kind, r = type(X), self._r
        read: Callable[[Any], ReadArray | None] | None = None
        if kind is np.ndarray or kind is np.memmap:
            X, read = X.view(np.ndarray), self._array if r.arrays else None
        elif kind is list or kind is tuple:
            read = self._list if r.lists else None
        elif (name := _READERS.get(frames.kind_of(X))) is not None:
            X = self.kept(X)
            n_rows, width = X.shape
            read = getattr(self, name) if n_rows and width == self._width else None
        if read is None:
            return None
        try:
            with np.errstate(all="ignore", over="raise"):
                return read(X)
        except pandas_blocks.DECLINED:
            return None

    def reader(self, X: Any, most: int) -> ReadForm | None:
        """Return what reads further rows of the form of these, up to ``most`` values.

        None if all has to be checked.
        """
        if type(X) in (list, tuple):
            return partial(known_forms.of_list, self._r.dtype)
        dtype, kind = self._r.dtype, frames.kind_of(X)
        if kind == "pandas" and not self._r.dropped:
            writes = self._plan(X)
            if writes is None:
                return None
            return known_forms.of_pandas(X, writes, dtype, self._width, most)
        if kind in ("polars", "pyarrow"):
            whole = self._r.compares == "equal"
            large = [whole and _is_whole(k) for k in self._kinds_of(X)]
            return known_forms.of_table(_VALUES[kind], large, dtype)
        return None

    def kept(self, X: Any) -> Any:
        """Return a pandas frame without the column that the source drops."""
        if not self._r.dropped or frames.kind_of(X) != "pandas":
            return X
        columns, (last, make) = X.columns, self._dropped
        if columns is not last:
            if not frames.same_labels(columns, last):
                make = frames.without_column(columns, self._r.dropped)
            self._dropped = columns, make
        return X if make is None else make(X)

    def _array(self, X: Array) -> ReadArray | None:
        if X.ndim != 2 or X.shape[1] != self._width or not len(X):
            return None
        if not frames.is_plain(X.dtype):
            return None
        if self._r.through is not None and X.dtype not in (np.float32, np.float64):
            X = X.astype(self._r.through)
        return np.ascontiguousarray(X, self._r.dtype), self.unnamed

    def _list(self, X: Any) -> ReadArray | None:
        values = array_of(X)
        if values is None or frames.may_round(values):
            return None
        return self._array(values)

    def _csr(self, X: Any) -> ReadArray | None:
        fill, data, indices, shape = self._r.fill, X.data, X.indices, X.shape
        small = shape[0] * shape[1] <= _MOST_CELLS and shape[1] <= _MOST_COLUMNS
        if fill is None or not small or indices.dtype != np.intc:
            return None
        if data.dtype not in (np.float32, np.float64) or not np.isfinite(data).all():
            return None
        indptr = X.indptr
        if indptr.dtype != np.intc:  # CatBoost takes no others
            return None
        if len(indptr) != shape[0] + 1 or indptr[-1] - indptr[0] != len(data):
            return None
        if len(indices) != len(data):
            return None
        counts = np.diff(indptr)
        if ((indices < 0) | (indices >= shape[1])).any():
            return None
        rows, filled = np.full(shape, fill, self._r.dtype), np.zeros(shape, np.bool_)
        cells = np.repeat(np.arange(shape[0]), counts), indices
        rows[cells], filled[cells] = data, True
        if np.count_nonzero(filled) != len(data):
            return None
        return rows, self.unnamed

    def by_column(self, X: Any) -> Array | None:
        """Return a frame's numbers; None if the source may refuse it.

        Large whole numbers, categories of tables and other classes of frames, too.
        """
        X = self.kept(X)
        names, r = frames.labels_of(X), self._r
        if len(names) != self._width or self.warning_of(X, names) is None:
            return None
        with suppress(InvalidInputError), np.errstate(all="ignore"):
            return self._columns.numbers(X, r.dtype, unseen=r.unseen, strict=True)
        return None

    def warning_of(self, X: Any, names: Any) -> str | None:
        last, warning = self._last.get(type(X), (None, None))
        if names is not last:
            if not frames.same_labels(names, last):
                warning = self._compared(X, names)
            self._last[type(X)] = names, warning
        return warning

    def _pandas(self, X: Any) -> ReadArray | None:
        warning = self.warning_of(X, X.columns)
        if warning is None:
            return None
        blocks = X._mgr.blocks
        one = self._one_block and len(blocks) == 1
        if one and frames.is_plain(blocks[0].values.dtype):
            return np.ascontiguousarray(blocks[0].values.T, self._r.dtype), warning
        writes = self._plan(X)
        if writes is None:
            return None
        rows = pandas_blocks.rows_of(writes, X.shape, self._r.dtype, X)
        return None if rows is None else (rows, warning)

    def _plan(self, X: Any) -> list[pandas_blocks.WriteBlock] | None:
        return pandas_blocks.plan(X, self._columns, self._r)

    def _table(self, X: Any) -> ReadArray | None:
        if not self._r.tables or self._columns.lists:
            return None
        names, values = frames.labels_of(X), _VALUES[frames.kind_of(X)](X)
        if values is None or not frames.is_plain(values.dtype):
            return None
        kinds = self._kinds_of(X)
        if self._r.compares != "sklearn" and not _REFUSED.isdisjoint(kinds):
            return None  # the source may refuse it, although it holds numbers
        if self._r.compares == "equal":  # it reads column by column
            whole = [*map(_is_whole, kinds)]
            if any(whole) and frames.has_large(values[:, whole]):
                return None
        # To scikit-learn 1.7, pyarrow's tables have names and polars' frames none.
        warning = self.warning_of(X, names)
        rows = np.ascontiguousarray(values, self._r.dtype)
        return None if warning is None else (rows, warning)

    def _kinds_of(self, table: Any) -> list[Any]:
        polars = frames.kind_of(table) == "polars"
        types = frames.types_of(table)
        key = tuple(map(type, types)) if polars else None  # dtypes are slow as keys
        if (kinds := self._kinds.get(key)) is None:
            kinds = [frames.number_of(dtype) for dtype in types]
            if polars:
                self._kinds[key] = kinds
        return kinds

    def _compared(self, X: Any, columns: Any) -> str | None:
        names, labels = self._r.names, tuple(columns)
        if self._r.compares == "never":
            return "" if len({*labels}) == len(labels) else None
        if self._r.compares == "equal":
            texts = tuple(frames.texts_of(columns, self._r.joins))
            levels = 1 if self._r.joins else getattr(columns, "nlevels", 1)
            if len({*texts}) < len(texts) or levels != 1:
                return None
            return "" if names is None or texts == names else None
        from sklearn.utils.validation import _get_feature_names

        try:
            found_names = _get_feature_names(X)
        except (TypeError, ValueError):  # names of mixed types, or one twice
            return None
        if names is None:
            known = f"X has feature names, but {self._r.estimator} was fitted without"
            return "" if found_names is None else f"{known} feature names"
        if found_names is None:
            return _without_names(self._r.estimator)
        return "" if tuple(found_names) == names else None


#: Numbers of tables that some source may refuse; None are those without a name here.
_REFUSED = frozenset((None, np.dtype(np.float16)))

#: The method that reads each kind of rows.
_READERS = {"pandas": "_pandas", "csr": "_csr", "polars": "_table", "pyarrow": "_table"}


def _values_of(table: Any) -> Array | None:
    batches = table.to_batches()
    if len(batches) != 1:
        return None
    try:
        return batches[0].to_tensor().to_numpy()
    except (ValueError, TypeError, NotImplementedError):
        # nulls, columns that are not numeric, or float16 beside other numbers
        return None


def _is_whole(kind: Any) -> bool:
    return kind is None or kind.kind in "iu"


#: The values of tables of numbers; None for others.
_VALUES: dict[str, Callable[[Any], Array | None]] = {
    "polars": lambda frame: frame.to_numpy(),
    "pyarrow": _values_of,
}


def has_limit(X: Any, rows: Array) -> bool:
    """Tell whether some number is 0 to LightGBM in arrays and CSC alone."""
    return bool((rows == -ZERO_THRESHOLD).any())


def array_of(X: Any) -> Array | None:
    try:
        return np.asarray(X)
    except ValueError:
        return None


def rare_numbers(X: Array) -> Array:
    """Return an array of a rare dtype as float32, as XGBoost and LightGBM read it."""
    if frames.is_plain(X.dtype) or X.dtype.kind not in "fO":
        return X
    try:
        return X.astype(np.float32)
    except (TypeError, ValueError):  # texts: the caller says which
        return X


def dense_columns(X: Any) -> Any:
    from pandas import DataFrame, SparseDtype

    sparse = [i for i, dtype in enumerate(X.dtypes) if isinstance(dtype, SparseDtype)]
    if not sparse:
        return X
    columns = {i: X.iloc[:, i] for i in range(X.shape[1])}
    columns.update({i: columns[i].sparse.to_dense() for i in sparse})
    return DataFrame(columns).set_axis(X.columns, axis=1)


def _without_names(estimator: str) -> str:
    return (
        f"X does not have valid feature names, but {estimator} was fitted with feature "
        "names"
    )
