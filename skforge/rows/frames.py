"""Numbers from data frames: plain columns, and categories by name.

A frame stores a category as an index into its column's own list of names; a model uses
indices into the training frame's lists. XGBoost (since 3.1) and LightGBM translate
between the two, and so does this module, for pandas and polars frames and pyarrow
tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from operator import itemgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from skforge._typing import Array
from skforge.exceptions import InvalidInputError

if TYPE_CHECKING:
    from skforge.forest.arrays import ForestArrays
    from skforge.forest.predicates import AnyForest

ColumnNames: TypeAlias = tuple[tuple[str | float, ...], ...]
Dtypes: TypeAlias = tuple[str, ...]
#: The category names of a column, and the codes of its rows, -1 for missing ones.
ColumnCodes: TypeAlias = tuple[Any, Array]
#: The numbers of a column, and where they are missing; None if none is.
ColumnNumbers: TypeAlias = tuple[Array, Array | None]

#: float64 holds all whole numbers below this one.
_EXACT = 2**53
_FEW_ROWS = 256  # of which polars' expressions take longer than Python

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


#: Native numbers of up to 8 bytes; of another order, none is equal to these.
_PLAIN = frozenset(map(np.dtype, "?bBhHiIlLqQefd"))


class Kept(dict[Any, Any]):
    """What was found of frames, for the next ones; it starts anew when it is full."""

    most = 256

    def __setitem__(self, key: Any, value: Any) -> None:
        if len(self) >= self.most:
            self.clear()
        super().__setitem__(key, value)


def is_plain(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype in _PLAIN


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


def columns_of(X: Any) -> list[tuple[Any, Any]]:
    """Return the place of each column of a frame or table, and its values.

    pandas' plain numbers come in blocks of shape (n_columns, n_rows), with a slice or
    an array of their places.
    """
    blocks = getattr(getattr(X, "_mgr", None), "blocks", None)
    if blocks is None:
        if is_pandas(X):  # of Modin, say
            return [(i, X.iloc[:, i].array) for i in range(X.shape[1])]
        return [*enumerate(table_columns(X))]
    columns: list[tuple[Any, Any]] = []
    for block in blocks:
        values, places = block.values, block.mgr_locs
        if type(values) is np.ndarray and is_plain(values.dtype):
            columns.append((places.indexer, values))
        else:
            each = values if values.ndim > 1 else [values]
            columns += zip(places.as_array.tolist(), each, strict=True)
    return columns


def table_columns(X: Any) -> list[Any]:
    columns: list[Any] = X.get_columns() if hasattr(X, "get_columns") else X.columns
    return columns


def each_column(X: Any) -> list[Any]:
    """Return the values of each column of a frame or table, in their order."""
    columns: dict[int, Any] = {}
    every = np.arange(len(labels_of(X)))
    for places, values in columns_of(X):
        if type(places) is int:
            columns[places] = values
        else:
            columns.update(zip(every[places].tolist(), values, strict=True))
    return [columns[i] for i in range(len(columns))]


class WithoutColumn:
    """A pandas frame without the column at a place, for those who read its blocks.

    pandas' own ``drop`` takes as long as hundreds of predictions, and copies. ``known``
    keeps where the columns of a block then are, by their places in the frame.
    """

    def __init__(self, X: Any, at: int, columns: Any, known: Kept) -> None:
        self.columns, self.shape = columns, (len(X), len(columns))
        self._mgr = SimpleNamespace(blocks=[])
        for block in X._mgr.blocks:
            places, values = block.mgr_locs.as_array, block.values
            if (plan := known.get(key := places.tobytes())) is None:
                plan = known[key] = _without(places, at)
            taken, locs = plan
            if len(locs.as_array):
                values = values[taken] if values.ndim > 1 else values
                made = SimpleNamespace(dtype=block.dtype, values=values, mgr_locs=locs)
                self._mgr.blocks.append(made)


def without_column(columns: Any, label: str) -> Callable[[Any], Any] | None:
    """Return what makes a frame with these columns one without that of a label.

    None if no column has it.
    """
    labels = columns.tolist()
    if label not in labels:
        return None
    at = labels.index(label)
    others, known = columns.delete(at), Kept()
    return partial(WithoutColumn, at=at, columns=others, known=known)


def _without(places: Array, at: int) -> tuple[Any, SimpleNamespace]:
    """Return which columns of a block stay, in their order, and where these are."""
    taken = np.argsort(places)
    taken = taken[places[taken] != at]
    places = places[taken] - (places[taken] > at)
    locs = SimpleNamespace(as_array=places, indexer=as_slice(places))
    return as_slice(taken), locs


def as_slice(places: Array) -> Any:
    """Return places as a slice if each follows the one before: it makes no copy."""
    if len(places) and (np.diff(places) == 1).all():
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def numbers_in(column: Any, arrow: bool = True) -> ColumnNumbers | None:
    """Return the numbers of a column of any library, and their gaps.

    Where none is missing, they are of the column's own dtype. None if it holds no
    numbers; ``arrow`` accepts pandas' columns of pyarrow.
    """
    polars = hasattr(column, "to_arrow")
    if not polars and not hasattr(column, "to_pylist"):  # of NumPy or pandas
        number = number_dtype(column.dtype, arrow)
        return None if number is None else nullable_numbers(column, number)
    number = number_of(column.dtype if polars else column.type)
    if number is None:
        return None
    gaps = column.null_count() if polars else column.null_count
    if not gaps or number.kind == "f":  # they become NaN
        values = column.to_numpy() if polars else np.asarray(column)
        return values, np.isnan(values) if gaps else None
    zero = number.type(0).item()
    return np.asarray(column.fill_null(zero)), np.asarray(column.is_null())


def holds_texts(column: Any) -> bool:
    """Tell whether NumPy's array of a column of polars or pyarrow has its texts.

    That of pyarrow's dictionary has the last text in place of missing ones.
    """
    if hasattr(column, "to_arrow"):
        return _type_name(column.dtype) in ("string", "categorical", "enum")
    kind = column.type
    if not hasattr(kind, "index_type"):
        return _type_name(kind) in ("string", "large_string")
    texts = _type_name(kind.value_type) in ("string", "large_string")
    return texts and not column.null_count


@lru_cache(maxsize=256)
def _type_name(dtype: Any) -> str:
    return str(dtype).lower().partition("(")[0]


def objects_in(column: Any) -> Any:
    """Return a column of any library as a sequence of objects."""
    for name in ("to_list", "to_pylist"):  # of polars and pyarrow
        if hasattr(column, name):
            return getattr(column, name)()
    return column


def nullable_numbers(values: Any, number: np.dtype[Any]) -> ColumnNumbers:
    if (mask := getattr(values, "_mask", None)) is None:
        if isinstance(values, np.ndarray):
            return values, None
        return values.to_numpy(number, na_value=number.type(0)), values.isna()
    return values._data, mask  # as its to_numpy does, five times as fast


def write_numbers(rows: Array, place: Any, found: ColumnNumbers) -> None:
    """Write a column's numbers to rows, NaN where they are missing."""
    rows[:, place], gaps = found
    if gaps is not None:
        rows[gaps, place] = np.nan


def may_round(values: Array) -> bool:
    """Tell whether float64 may hold another number for some whole one."""
    wide = values.dtype.kind in "iu" and values.dtype.itemsize == 8
    return wide and has_large(values)


def has_large(values: Array) -> bool:
    return bool(((values >= _EXACT) | (values <= -_EXACT)).any())


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


def types_of(X: Any) -> Any:
    """Return the type of each column of a frame or table, as its library has it."""
    arrow = type(X).__module__.startswith("pyarrow")
    return X.schema.types if arrow else X.dtypes


def same_labels(labels: Any, others: Any) -> bool:
    """Compare what :func:`labels_of` returns; 1, 1.0 and True are three labels."""
    if type(labels) is not type(others) or getattr(labels, "nlevels", 1) > 1:
        return False  # in each level, they may be of many types
    if not hasattr(labels, "equals"):
        return bool(labels == others)
    if labels.dtype != others.dtype or labels.dtype != np.object_:
        return labels.dtype == others.dtype and bool(labels.equals(others))
    a, b = labels.tolist(), others.tolist()  # faster than ``equals``
    return [*map(type, a)] == [*map(type, b)] and a == b


def column_names(X: Any) -> list[str]:
    return list(map(str, labels_of(X)))


def texts_of(labels: Any, joins: bool) -> list[str]:
    """Return labels as texts; with ``joins``, those of several levels as XGBoost."""
    if joins and getattr(labels, "nlevels", 1) > 1:
        return [" ".join(map(str, label)) for label in labels]
    return list(map(str, labels))


class FrameColumns:
    """The categorical columns of a training frame, with their category names.

    They are given as in ``Forest.category_names``, or as lists of names if their
    columns are not known. ``index_dtypes`` are the dtypes that a feature's integer
    categories must have, or "" for any. ``marker`` is ``Forest.missing_value``, which a
    frame's own codes may equal. ``in_order``: as in LightGBM, the lists belong to a
    frame's columns of categories in their order, whichever these are.
    """

    def __init__(
        self,
        category_names: ColumnNames,
        index_dtypes: Dtypes = (),
        marker: float = np.nan,
        lists: ColumnNames = (),
        in_order: bool = False,
    ) -> None:
        self._places = [i for i, names in enumerate(category_names) if names]
        self.lists = lists or tuple(names for names in category_names if names)
        self.index_dtypes, self._marker = index_dtypes, marker
        self._dtypes = [index_dtypes[i] for i in self._places] if index_dtypes else []
        self._in_order = in_order
        #: By list, id of pandas' dtype, which is kept alive, and what is ``unseen``.
        self._tables = Kept()

    def fits(self, coded: list[int]) -> bool:
        """Tell whether a frame with these columns of categories is known."""
        if self._in_order:
            return len(coded) == len(self.lists)
        return coded == self._places

    def numbers(
        self, X: Any, dtype: Any, *, unseen: float | None, strict: bool = False
    ) -> Array:
        """Return a frame's numbers, with NaN for missing categories and nulls.

        Columns match by position. ``unseen`` is the value of a category that the
        training frame did not have; None forbids such categories in rows. ``strict``
        forbids what the source may refuse: new ones that the frame lists and no row
        has, and pandas' columns of pyarrow and sparse ones.
        """
        parts = columns_of(X)
        if len(parts) == 1 and type(parts[0][0]) is slice and not self.lists:
            return np.ascontiguousarray(parts[0][1].T, dtype)  # a view, if it may be
        numbers, labels = np.empty(X.shape, dtype), labels_of(X)
        coded: dict[int, ColumnCodes] = {}
        others: dict[int, Any] = {}
        for places, values in parts:
            if type(places) is not int:
                numbers[:, places] = values.T
                continue
            others[places] = values
            if (codes_of_column := codes_in(values)) is not None:
                coded[places] = codes_of_column
        order = sorted(coded)
        self._check(order, X)
        number = {i: k for k, i in enumerate(order)}
        for i, column in sorted(others.items(), key=itemgetter(0)):
            if i in coded:
                listed, codes = coded[i]
                dtype = getattr(column, "dtype", None)
                at = number[i], labels, i
                if is_category(dtype):
                    table, new = self.of_dtype(dtype, *at, unseen)
                else:
                    table, new = self._table(listed, *at, unseen)
                if new is not None and unseen is None:
                    new = new if strict else np.intersect1d(new, codes)
                    if len(new):
                        raise _new_category(labels[i], [*listed][new[0]])
                numbers[:, i] = table[codes]
                continue
            found = numbers_in(column, arrow=False) if strict else any_numbers(column)
            if found is None:
                raise _no_numbers(labels[i], column)
            write_numbers(numbers, i, found)
        return numbers

    def _check(self, coded: list[int], X: Any) -> None:
        if self.fits(coded):
            return
        labels = column_names(X)
        if not self.lists:
            raise InvalidInputError(
                f"column {labels[coded[0]]!r} holds categories, but the model does "
                "not store their names; pass the codes that they had in training."
            )
        if self._in_order:
            raise InvalidInputError(_other_count(len(self.lists), len(coded)))
        for i in coded:
            if i not in self._places:
                raise InvalidInputError(
                    f"column {labels[i]!r} holds categories, but it held numbers in "
                    "training; convert it to numbers."
                )
        i = next(i for i in self._places if i not in coded)
        label = labels[i] if i < len(labels) else i
        raise InvalidInputError(
            f"column {label!r} held categories in training, but holds none here; "
            "convert it to categories, or pass an array of their codes."
        )

    def of_dtype(
        self, dtype: Any, k: int, labels: Any, i: int, unseen: float | None
    ) -> tuple[Array, Array | None]:
        """Return what :meth:`_table` does for the categories of pandas' dtype."""
        key = k, id(dtype), unseen is None
        if (known := self._tables.get(key)) is None:
            known = dtype, self._table(dtype.categories, k, labels, i, unseen)
            self._tables[key] = known
        found: tuple[Array, Array | None] = known[1]
        return found

    def _table(
        self, listed: Any, k: int, labels: Any, i: int, unseen: float | None
    ) -> tuple[Array, Array | None]:
        """Return the numbers in training of a column's own names, and new names.

        The last number, which is that of code -1, is NaN. None if no name is new.
        ``k`` is the column's place among those of categories.
        """
        wanted = self._dtypes[k] if self._dtypes else ""
        dtype = number_dtype(getattr(listed, "dtype", None), arrow=True)
        fits = not wanted or dtype == wanted  # also of nullable ones
        names, listed = self.lists[k], _values(listed)
        kind = _kind(names)
        known = kind is not None and fits and _kind(listed) is kind
        if self._in_order:  # LightGBM
            known = known or not names or _compared(names, listed)
        # XGBoost accepts some kinds for others and refuses the rest, used or not
        if not known and (len(listed) or unseen is None):
            what: dict[type | None, str] = {str: "texts", int: "integers"}
            what |= {float: "floats", bool: "booleans", None: "of several kinds"}
            raise InvalidInputError(
                f"the categories of column {labels[i]!r} were {what[kind]} in "
                f"training, but here they begin with {listed[:3]}; use the same kind "
                "of categories."
            )
        place = {name: number for number, name in enumerate(names)}
        numbers = np.array([place.get(name, np.nan) for name in listed], np.float64)
        new = np.flatnonzero(np.isnan(numbers))
        # A frame's own codes are markers, not those of training: trees drop fractions.
        numbers[numbers == self._marker] += 0.25
        numbers[np.arange(len(numbers)) == self._marker] = np.nan
        return np.append(numbers, np.nan), new if len(new) else None


def about_categories(forest: ForestArrays, index_dtypes: Dtypes = ()) -> Any:
    """Return what :class:`FrameColumns` is made of."""
    names, lists = forest.category_names, forest.category_lists
    in_order = forest.source == "lightgbm"
    return names, index_dtypes, forest.missing_value, lists, in_order


def placed(forest: AnyForest, columns: Sequence[int]) -> AnyForest:
    """Return a forest whose lists of categories belong to these columns of rows.

    It is the same one if the lists are not as many.
    """
    lists = forest.category_lists or tuple(filter(None, forest.category_names))
    of_column = dict(zip(columns, lists, strict=False))
    names = tuple(of_column.get(i, ()) for i in range(forest.n_features))
    if len(lists) != len(columns) or names == forest.category_names:
        return forest
    lists = () if all(lists) else lists
    return replace(forest, category_names=names, category_lists=lists)


def coded_columns(X: Any) -> list[int]:
    """Return the columns of a pandas frame that have the dtype category."""
    return [i for i, dtype in enumerate(X.dtypes) if is_category(dtype)]


def _new_category(label: Any, name: Any) -> InvalidInputError:
    return InvalidInputError(
        f"column {label!r} has the category {name!r}, which did not occur in training; "
        "replace it by a missing value or a known category."
    )


def _no_numbers(label: Any, column: Any) -> InvalidInputError:
    dtype = column.type if hasattr(column, "type") else column.dtype
    return InvalidInputError(
        f"column {label!r} has the dtype {dtype}, which is not plain numbers; convert "
        "it to float64."
    )


def _other_count(known: int, coded: int) -> str:
    columns = "1 column" if known == 1 else f"{known} columns"
    held = f"{coded} columns here hold"
    if coded < 2:
        held = f"{coded or 'no'} column here holds"
    return (
        f"{columns} held categories in training, but {held} them; give the same "
        "columns the dtype category, or pass an array of their codes."
    )


def _values(names: Any) -> list[Any]:
    """Return names as Python's values: nullable and other indices hold NumPy's."""
    listed = names.tolist() if hasattr(names, "tolist") else list(names)
    return [x.item() if isinstance(x, np.generic) else x for x in listed]


def _compared(names: Sequence[Any], others: Sequence[Any]) -> bool:
    """Tell whether pandas compares whole numbers and fractions as Python does."""
    every = [*names, *others]
    numbers = {*map(type, every)} <= {int, float}
    return numbers and all(-_EXACT < value < _EXACT for value in every)


def _kind(names: Sequence[Any]) -> type | None:
    kinds = {type(name) for name in names}
    return kinds.pop() if kinds in ({str}, {int}, {float}, {bool}) else None


def any_numbers(column: Any) -> ColumnNumbers | None:
    """Return also pandas' sparse numbers, and those of pyarrow's dictionaries."""
    if (found := numbers_in(column)) is not None:
        return found
    arrow: Any = getattr(getattr(column, "dtype", None), "pyarrow_dtype", None)
    if hasattr(arrow, "index_type"):
        values = column.__arrow_array__().cast(arrow.value_type).to_numpy()
    elif hasattr(column, "sp_values"):
        values = np.asarray(column)
    else:
        return None
    return (values, None) if is_plain(values.dtype) else None


def codes_in(column: Any) -> ColumnCodes | None:
    """Return the codes of a column of categories, of any library; None for others."""
    if is_category(getattr(column, "dtype", None)):
        return column.categories, column.codes
    of_polars = hasattr(column, "to_physical")
    return _polars_codes(column) if of_polars else _arrow_codes(column)


def _polars_codes(column: Any) -> ColumnCodes | None:
    if not str(column.dtype).startswith(("Categorical", "Enum")):
        return None
    is_enum = type(column.dtype).__name__ == "Enum"
    if len(column) <= _FEW_ROWS:
        values = column.to_list()
        listed = column.dtype.categories.to_list() if is_enum else values
        names = [name for name in dict.fromkeys(listed) if name is not None]
        places: dict[Any, int] = {None: -1, **{x: i for i, x in enumerate(names)}}
        return names, np.array([places[x] for x in values], np.int64)
    numbers = column.to_physical().to_numpy()
    if is_enum:
        names, known = column.dtype.categories, np.arange(len(column.dtype.categories))
    else:  # the full list may be shared by all frames; Arrow lists them by row
        names = column.unique(maintain_order=True).drop_nulls()
        known = names.to_physical().to_numpy()
    order = np.append(np.argsort(known), -1)
    codes = order[np.searchsorted(known[order[:-1]], numbers)]
    return list(map(str, names.to_list())), codes


def _arrow_codes(column: Any) -> ColumnCodes | None:
    # XGBoost refuses categories of the type string_view
    kind = getattr(column, "type", None)
    value = str(getattr(kind, "value_type", "string_view"))
    if not hasattr(kind, "index_type") or value == "string_view":
        return None
    if hasattr(column, "unify_dictionaries"):
        # each chunk may number its categories differently
        column = column.unify_dictionaries().combine_chunks()
    if not hasattr(column, "indices"):  # no chunk, or too many bytes
        return None
    codes = column.indices.cast("int64").fill_null(-1)
    return column.dictionary.to_pylist(), codes.to_numpy(zero_copy_only=False)
