"""Draws rows for a model of a table: odd values, dtypes of columns, and containers."""

from __future__ import annotations

import decimal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from scipy import sparse

from tests.random_pipelines import N_ROWS, NUMBERS, TEXTS, Table

#: Returns the values of a column at which some answer changes.
Cuts = Callable[[int], Any]

EXTREME = (np.inf, -np.inf, 1e308, -1e308, 1e38, 3.5e38, 5e-324, -0.0, -1e-40, 1e17)
SIZES = (0, 1, 1, 1, 2, 7, 24, 24, 65, N_ROWS)


class Rows:
    """Draws rows.

    Parameters
    ----------
    table : Table
        The rows of training.
    cuts : callable
        Values of a column near which rows are drawn.
    random : Generator
    """

    def __init__(self, table: Table, cuts: Cuts, random: np.random.Generator) -> None:
        self._table, self._cuts, self._random = table, cuts, random

    def draw(self) -> tuple[str, Any]:
        """Return rows, and words for how they were drawn.

        A ``dict`` or list of them stands for the frame that :func:`framed` returns.
        """
        n = int(self._one(SIZES))
        how = self._one(["", "", "near", "near", "missing", "none", "unknown"])
        how = self._one([how, how, how, "extreme", "huge"])
        with np.errstate(all="ignore"):
            rows = self._changed(n, how)
        words = [f"{n} rows", how]
        if isinstance(rows, pd.DataFrame):
            if self._one([True, False]):
                words.append(self._one(["one", "all", "each", "whole"]))
                rows = self._typed(rows, words[-1])
            if self._one([True, False]):
                rows, word = self._contained(rows, _FRAMES)
                words.append(word)
        else:
            if self._one([True, False]):
                rows, word = self._contained(rows, _ARRAYS)
                words.append(word)
            if self._one([True, False]):
                rows, word = self._contained(rows, _CONTAINERS)
                words.append(word)
        return ", ".join(filter(None, words)), rows

    def _one(self, options: Sequence[Any]) -> Any:
        return options[int(self._random.integers(len(options)))]

    def _many(self, options: Sequence[Any], n: int) -> list[Any]:
        return [options[i] for i in self._random.integers(0, len(options), n)]

    # ------------------------------------------------------------ values

    def _changed(self, n: int, how: str) -> Any:
        """Return rows of the table with a third of the values replaced."""
        table, random = self._table, self._random
        frame = pd.DataFrame(table.X).iloc[random.integers(0, len(table.X), n)]
        frame = frame.reset_index(drop=True)
        columns = {}
        for j, (name, old) in enumerate(frame.items()):
            new = getattr(self, f"_{how}")(old, table.kinds[j], j) if how else None
            columns[name] = old if new is None else mixed(old, new, random)
        found = pd.DataFrame(columns, index=frame.index)
        if table.names is not None:
            return found
        try:
            return found.to_numpy(table.X.dtype)
        except (TypeError, ValueError, OverflowError):  # NaN among whole numbers
            return found.to_numpy(np.float64)

    def _near(self, old: Any, kind: str, column: int) -> Any:
        """Draw values at most three steps beside cuts."""
        if kind not in NUMBERS or kind == "bool":
            return None
        cuts = np.asarray(self._cuts(column), np.float64)
        cuts = cuts[np.isfinite(cuts)]
        if not len(cuts):
            return None
        values = cuts[self._random.integers(0, len(cuts), len(old))]
        if kind in ("whole", "marked"):
            return np.floor(np.clip(values, -1e15, 1e15)).astype(np.int64)
        if old.dtype == np.float32 or self._one([False, False, True]):
            values = values.astype(np.float32)
        steps = self._random.integers(-3, 4, len(old))
        towards = (np.sign(steps) * np.inf).astype(values.dtype)
        for step in range(1, 4):
            moved = np.nextafter(values, towards)
            values = np.where(abs(steps) >= step, moved, values)
        return values

    def _missing(self, old: Any, kind: str, column: int) -> Any:
        return [np.nan] * len(old)

    def _none(self, old: Any, kind: str, column: int) -> Any:
        return self._many([np.nan] if kind in NUMBERS else [np.nan, None], len(old))

    def _unknown(self, old: Any, kind: str, column: int) -> Any:
        if kind in ("whole", "marked", "codes"):
            return self._many([77, -77, 3, 10**6], len(old))
        if kind in ("gaps", "float", "grid", "halves", "empty"):
            return self._many([77.0, 0.5, 1e6, -1.0, 0.0], len(old))
        texts = ["zzz", "", "s", "nan", "?", "S "]
        return self._many(texts, len(old)) if kind in TEXTS else None

    def _extreme(self, old: Any, kind: str, column: int) -> Any:
        if kind in ("whole", "marked"):
            return self._many([2**53 + 1, -(2**62), 2**31, 2**24 + 1, 0], len(old))
        numbers = kind in NUMBERS and kind != "bool"
        return self._many(EXTREME, len(old)) if numbers else None

    def _huge(self, old: Any, kind: str, column: int) -> Any:
        floats = kind in ("float", "gaps", "grid")
        values = [1e30, -1e30, 1e-30, 1e300, -1e300]
        return self._many(values, len(old)) if floats else None

    # ------------------------------------------------------------ dtypes

    def _typed(self, frame: Any, which: str) -> Any:
        """Return a frame with other dtypes of one column, all alike, or each."""
        kinds = self._table.kinds
        if which == "whole":
            numbers = [k in NUMBERS and k != "bool" for k in kinds]
            names = [name for name, fine in zip(frame, numbers, strict=True) if fine]
            return frame.assign(**whole_columns(names, len(frame), self._random))
        alike = {True: self._one(NUMBER_TYPES), False: self._one(TEXT_TYPES)}
        changes = [int(self._random.integers(len(kinds)))]
        if which != "one":
            changes = [*range(len(kinds))]
        columns = dict(frame.items())
        for j in changes:
            name, numeric = frame.columns[j], kinds[j] in NUMBERS
            kind = alike[numeric]
            if which == "each":
                kind = self._one([None, *(NUMBER_TYPES if numeric else TEXT_TYPES)])
            try:
                columns[name] = converted(frame[name], kind)
            except (TypeError, ValueError, OverflowError, NotImplementedError):
                continue  # no such values in this dtype
            except pa.ArrowException:
                continue
        return pd.DataFrame(columns, index=frame.index)

    # ------------------------------------------------------------ containers

    def _contained(self, rows: Any, ways: dict[str, Any]) -> tuple[Any, str]:
        """Return rows in another container, or as they are if it cannot hold them."""
        word = self._one([*ways])
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return ways[word](rows, self._random), word
        except (
            *(TypeError, ValueError, OverflowError, KeyError, IndexError),
            *(NotImplementedError, pa.ArrowException, pl.exceptions.PolarsError),
            pl.exceptions.PanicException,
        ):
            return rows, ""


def mixed(old: Any, new: Sequence[Any], random: np.random.Generator) -> Any:
    """Return a column with some values of another; its dtype, if it can be."""
    at = random.random(len(old)) < 0.35
    values = [b if c else a for a, b, c in zip(old, new, at, strict=True)]
    if isinstance(old.dtype, pd.CategoricalDtype):
        known = old.cat.categories
        more = {v for v in values if isinstance(v, str) and v not in known}
        kind = pd.CategoricalDtype([*known, *sorted(more)])
        values = [v if v in kind.categories else None for v in values]
        return pd.Series(values, index=old.index, dtype=kind)
    if old.dtype == object:
        return pd.Series(values, index=old.index, dtype=object)
    try:
        return pd.Series(values, index=old.index, dtype=old.dtype)
    except (TypeError, ValueError, OverflowError):
        return pd.Series(values, index=old.index)


def whole_columns(
    names: Sequence[str], n: int, random: np.random.Generator
) -> dict[str, Any]:
    """Return columns of small whole numbers: of one dtype, or each of its own."""
    dtypes = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
    alike = dtypes[random.integers(8)] if random.integers(2) else ""
    columns = {}
    for name in names:
        dtype = np.dtype(alike or dtypes[random.integers(8)])
        low = -2 if dtype.kind == "i" else 0
        columns[name] = random.integers(low, 4, n).astype(dtype)
    return columns


NUMBER_TYPES = (
    *("float32", "float16", "float64", "int64", "int32", "int8", "uint8", "uint64"),
    *("bool", "Float64", "Float32", "Int64", "Int8", "boolean", "object", "str"),
    *("double[pyarrow]", "float[pyarrow]", "int64[pyarrow]", "bool[pyarrow]"),
    *("sparse", "category", "decimal", "None", "objects", ">f8", "complex"),
)
TEXT_TYPES = (
    *("object", "category", "str", "string", "string[pyarrow]", "arrow", "large"),
    *("dictionary", "reversed", "more", "ordered", "bytes", "one"),
)


def converted(column: Any, kind: str | None) -> Any:
    """Return a column in another dtype."""
    if kind is None:
        return column
    if kind in NUMBER_TYPES and kind not in ("object", "str", "category", "None"):
        return _number_column(column, kind)
    if kind == "one":
        return pd.Series(1, index=column.index)
    if kind == "None":
        values = [None if value != value else value for value in column]
        return pd.Series(values, index=column.index, dtype=object)
    if kind in ("reversed", "more", "ordered"):
        codes = column.astype("category").cat
        if kind == "reversed":
            return codes.set_categories([*codes.categories[::-1]])
        more = ["zzz"] if kind == "more" else []
        return codes.set_categories([*codes.categories, *more], ordered=kind[0] == "o")
    if kind == "bytes":
        values = [v.encode() if isinstance(v, str) else v for v in column]
        return pd.Series(values, index=column.index, dtype=object)
    text = pa.string()
    arrow = {
        "arrow": text,
        "large": pa.large_string(),
        "dictionary": pa.dictionary(pa.int32(), text),
    }
    return column.astype(pd.ArrowDtype(arrow[kind]) if kind in arrow else kind)


def _number_column(column: Any, kind: str) -> Any:
    values = column.to_numpy(np.float64)
    if kind == "sparse":
        return column.astype(pd.SparseDtype("float64", 0.0))
    if kind == "decimal":
        return pd.Series(
            [decimal.Decimal(v) for v in values], index=column.index, dtype=object
        )
    if kind == "objects":
        objects = [_objects(v)[i % 7] for i, v in enumerate(values.tolist())]
        return pd.Series(objects, index=column.index, dtype=object)
    if kind == "complex":
        return pd.Series(values.astype(complex), index=column.index)
    if "bool" in kind:
        return pd.Series(values > 0, index=column.index).astype(kind)
    if "int" in kind.lower():
        if kind in ("Int64", "int64[pyarrow]") and not np.isinf(values).any():
            return pd.Series(np.floor(values), index=column.index).astype(kind)
        plain = np.dtype(kind.partition("[")[0].lower())
        limits = np.iinfo(plain)
        whole = np.nan_to_num(np.floor(values), nan=0.0, posinf=9, neginf=-9)
        whole = np.clip(whole, max(limits.min, -(2**62)), min(limits.max, 2**62))
        return pd.Series(whole.astype(plain), index=column.index).astype(kind)
    with np.errstate(all="ignore"):
        return column.astype(kind)


def _objects(value: float) -> list[Any]:
    """Return objects that some or all steps take for a number."""
    if value != value:
        return [None, value, np.float64(value), None, value, None, np.float32(value)]
    numbers = [value, np.float64(value), decimal.Decimal(str(value))]
    numbers += [np.float32(value)] if abs(value) < 1e30 else [value]
    if not value.is_integer():
        return numbers * 2
    if value in (0, 1):
        numbers = [value > 0, np.bool_(value > 0)]
    return [int(value), np.int64(np.clip(value, -(2.0**62), 2.0**62)), *numbers] * 4


class Frame(pd.DataFrame):
    """A frame of a class of its own."""


def _mappings(frame: Any, random: np.random.Generator) -> list[dict[str, Any]]:
    order = random.permutation(len(frame.columns))
    whole = bool(random.integers(2))
    return [
        {str(frame.columns[j]): _plain(frame.iloc[i, j], whole) for j in order}
        for i in range(len(frame))
    ]


def _plain(value: Any, whole: bool) -> Any:
    """Return a value as JSON has it."""
    if value is pd.NA:
        return None
    if isinstance(value, (np.floating, float)):
        value = float(value)
        if whole and value.is_integer() and abs(value) < 2**53:
            return int(value)
        return None if whole and value != value else value
    return value.item() if isinstance(value, np.generic) else value


def framed(
    rows: Any, table: Table, in_categories: bool, gaps: Mapping[str, Any]
) -> Any:
    """Return the frame that mappings stand for, as ``docs/rows.md`` says.

    ``gaps`` are None or NaN, for missing texts of each column.

    Texts are ``pandas.Categorical`` with the categories of training for a model that
    reads those, and texts otherwise. Return None if a column has other values.
    """
    columns: dict[str, Any] = {}
    for name, kind in zip(table.names or [], table.kinds, strict=True):
        values = values_of(rows, name)
        missing = [v is None or v != v for v in values]
        numeric = all(v is None or isinstance(v, _NUMBERS) for v in values)
        if kind in (*NUMBERS, "codes") and not numeric:
            return None  # an error
        if in_categories and isinstance(table.X[name].dtype, pd.CategoricalDtype):
            columns[name] = pd.Categorical(values, dtype=table.X[name].dtype)
        elif numeric and (kind in NUMBERS or not all(missing)):
            numbers = [np.nan if value is None else float(value) for value in values]
            columns[name] = np.array(numbers, np.float64)
        else:
            values = [
                gaps[name] if m else v for v, m in zip(values, missing, strict=True)
            ]
            columns[name] = pd.Series(values, dtype=object)
    return pd.DataFrame(columns)


def values_of(rows: Any, name: str) -> list[Any]:
    """Return the values of a key in one mapping, in columns or in mappings."""
    if isinstance(rows, dict):
        values: list[Any] = np.atleast_1d(np.asarray(rows[name], object)).tolist()
        return values
    return [row[name] for row in rows]


_NUMBERS = (float, int, decimal.Decimal)


def is_mapped(rows: Any) -> bool:
    """Tell whether rows are mappings."""
    return isinstance(rows, dict) or (
        isinstance(rows, list) and bool(rows) and isinstance(rows[0], dict)
    )


def _columns(frame: Any, random: np.random.Generator) -> dict[str, Any]:
    """Return columns, as lists or as arrays of float64."""
    rows = _mappings(frame, random)
    columns: dict[str, Any] = {key: [row[key] for row in rows] for key in rows[0]}
    for key, values in columns.items():
        if random.integers(2) and {*map(type, values)} == {float}:
            columns[key] = np.array(values)
    return columns


def _requests(frame: Any, random: np.random.Generator) -> list[dict[str, Any]]:
    """Return rows as JSON has them: a whole number may be an int, NaN is null."""
    return [
        {key: None if value != value else value for key, value in row.items()}
        for row in _mappings(frame, random)
    ]


def _decimals(column: Any) -> Any:
    return converted(column, "decimal") if column.dtype.kind == "f" else column


def _retyped(frame: Any, kinds: Sequence[str], random: np.random.Generator) -> Any:
    """Return a frame whose columns of texts have one of some dtypes."""
    columns = {}
    for name, column in frame.items():
        texts = not pd.api.types.is_numeric_dtype(column.dtype)
        kind = kinds[random.integers(len(kinds))] if texts else None
        columns[name] = converted(column, kind)
    return pd.DataFrame(columns, index=frame.index)


def _with_dictionaries(table: Any) -> Any:
    texts = [
        pa.types.is_string(t) or pa.types.is_large_string(t) for t in table.schema.types
    ]
    columns = [
        column.dictionary_encode() if is_text else column
        for column, is_text in zip(table.columns, texts, strict=True)
    ]
    return pa.table(columns, names=table.column_names)


def _odd(rows: Any, random: np.random.Generator, kind: Any = np.int32) -> Any:
    """Return CSR rows with entries that are zero, tiny or out of order."""
    rows = rows.astype(float)
    tiny = random.random(rows.nnz) < 0.2
    some = np.array([0.0, 1e-35, -1e-35, float(np.float32(-1e-35)), 1e-36])
    rows.data[tiny] = some[random.integers(0, len(some), tiny.sum())]
    order = np.concatenate(
        [random.permutation(np.arange(*ends)) for ends in pairwise(rows.indptr)]
        or [np.arange(0)]
    ).astype(int)
    indices, ends = rows.indices[order].astype(kind), rows.indptr.astype(kind)
    return type(rows)((rows.data[order], indices, ends), shape=rows.shape)


def _more(frame: Any, **columns: Any) -> Any:
    frame = frame.assign(**columns)
    return frame[[*columns, *frame.columns[: -len(columns)]]]


def _one_mapping(frame: Any, random: np.random.Generator) -> Any:
    return _mappings(frame[:1], random)[0]


#: What becomes of a frame; each takes it and a random generator.
_FRAMES: dict[str, Callable[[Any, np.random.Generator], Any]] = {
    "reversed": lambda X, _: X[X.columns[::-1]],
    "shuffled": lambda X, r: X[r.permutation(X.columns)],
    "more columns": lambda X, _: X.assign(more=1.0),
    "more columns before": lambda X, _: _more(X, more=1.0),
    "a text more": lambda X, _: _more(X, more="x"),
    "a date more": lambda X, _: X.assign(more=pd.Timestamp("2026-01-01")),
    "reversed and more": lambda X, _: X.assign(more=1)[["more", *X.columns[::-1]]],
    "fewer columns": lambda X, _: X[X.columns[:-1]],
    "another name": lambda X, _: X.rename(columns={X.columns[-1]: "z"}),
    "twice a name": lambda X, _: X.rename(columns={X.columns[-1]: X.columns[0]}),
    "a column twice": lambda X, _: pd.concat([X, X[X.columns[:1]]], axis=1),
    "numbered": lambda X, _: X.set_axis(range(X.shape[1]), axis=1),
    "names of two kinds": lambda X, _: X.rename(columns={X.columns[-1]: 1}),
    "levels of names": lambda X, _: X.set_axis(
        pd.MultiIndex.from_product([["x"], X.columns]), axis=1
    ),
    "another index": lambda X, _: X.set_index(np.arange(len(X)) + 7),
    "index of dates": lambda X, _: X.set_index(
        pd.date_range("2026-01-01", periods=len(X))
    ),
    "named index": lambda X, _: X.rename_axis(columns="columns"),
    "every second": lambda X, _: X[::2],
    "F-order": lambda X, _: pd.DataFrame(
        np.asfortranarray(X.to_numpy()), columns=X.columns
    ),
    "subclass": lambda X, _: Frame(X),
    "nullable": lambda X, _: X.convert_dtypes(),
    "pyarrow": lambda X, _: X.convert_dtypes(dtype_backend="pyarrow"),
    "one request": lambda X, r: pd.DataFrame(_requests(X[:1], r)),
    "requests": lambda X, r: pd.DataFrame(_requests(X, r)),
    "a row turned": lambda X, _: X.iloc[0].to_frame().T,
    "objects of a frame": lambda X, _: X.astype(object),
    "objects and None": lambda X, _: X.astype(object).where(X.notna(), None),
    "objects and NA": lambda X, _: X.astype(object).where(X.notna(), pd.NA),
    "decimals": lambda X, _: X.apply(_decimals),
    "arrow texts": lambda X, r: _retyped(X, ["arrow", "large", "dictionary"], r),
    "categories of these rows": lambda X, r: _retyped(X, ["category"], r),
    "polars": lambda X, _: pl.from_pandas(X),
    "polars and a date": lambda X, _: pl.from_pandas(X).with_columns(
        more=pl.date(2026, 1, 1)
    ),
    "polars and a struct": lambda X, _: pl.from_pandas(X).with_columns(
        more=pl.struct(pl.lit(1))
    ),
    "polars categories": lambda X, _: pl.from_pandas(X).cast(
        {pl.String: pl.Categorical}
    ),
    "polars reversed": lambda X, _: pl.from_pandas(X)[:, ::-1],
    "polars float32": lambda X, _: pl.from_pandas(X).cast({pl.Float64: pl.Float32}),
    "polars lazy": lambda X, _: pl.from_pandas(X).lazy(),
    "arrow": lambda X, _: pa.Table.from_pandas(X, preserve_index=False),
    "arrow and a date": lambda X, _: pa.Table.from_pandas(
        X.assign(more=pd.Timestamp("2026-01-01")), preserve_index=False
    ),
    "arrow dictionaries": lambda X, _: _with_dictionaries(
        pa.Table.from_pandas(X, preserve_index=False)
    ),
    "arrow with index": lambda X, _: pa.Table.from_pandas(X[::-1]),
    "array": lambda X, _: X.to_numpy(),
    "objects": lambda X, _: X.to_numpy(object),
    "list": lambda X, _: X.to_numpy(object).tolist(),
    "tuples": lambda X, _: tuple(map(tuple, X.to_numpy(object).tolist())),
    "first row": lambda X, _: X.iloc[0],
    "first column": lambda X, _: X[X.columns[0]],
    **dict.fromkeys(["mappings", "mappings, too"], _mappings),
    "columns": _columns,
    **dict.fromkeys(["mapping", "mapping, too"], _one_mapping),
}

_ARRAYS: dict[str, Callable[[Any, np.random.Generator], Any]] = {
    **{
        kind: (lambda X, _, kind=kind: X.astype(kind))
        for kind in (
            *("float16", "float32", "float64", "int64", "int32", "int8", "uint8"),
            *("uint64", "bool", ">f8", "object", "U", "complex"),
        )
    },
    "whole": lambda X, _: np.floor(np.nan_to_num(X.astype(float))),
    "small": lambda X, r: np.column_stack(
        [*whole_columns([*map(str, range(X.shape[1]))], len(X), r).values()]
    ),
    "first whole": lambda X, _: np.where(
        np.arange(X.shape[1]) == 0, np.floor(X.astype(float)), X
    ),
}

_CONTAINERS: dict[str, Callable[[Any, np.random.Generator], Any]] = {
    "F-order": lambda X, _: np.asfortranarray(X),
    "strides": lambda X, _: np.repeat(X, 2, axis=1)[:, ::2],
    "backwards": lambda X, _: X[::-1],
    "read-only": lambda X, _: np.broadcast_to(X[:1], (3, X.shape[1])),
    "masked": lambda X, _: np.ma.masked_array(X),
    "matrix": lambda X, _: X.view(np.matrix),
    "list": lambda X, _: X.tolist(),
    "tuples": lambda X, _: tuple(map(tuple, X.tolist())),
    "list of arrays": lambda X, _: list(X),
    "list of whole numbers": lambda X, _: (
        np.nan_to_num(X.astype(float)).clip(-(2**62), 2**62).astype(int).tolist()
    ),
    "mixed list": lambda X, _: [
        [int(v) if abs(v) < 1e9 and v == int(v) else v for v in row]
        for row in X.tolist()
    ],
    "frame": lambda X, _: pd.DataFrame(X),
    "named frame": lambda X, _: pd.DataFrame(X, columns=[*"abcdefgh"[: X.shape[1]]]),
    "polars": lambda X, _: pl.from_numpy(np.ascontiguousarray(X)),
    "arrow": lambda X, _: pa.table({f"{i}": column for i, column in enumerate(X.T)}),
    "CSR": lambda X, _: sparse.csr_matrix(X),
    "CSR array": lambda X, _: sparse.csr_array(X),
    "CSR, odd": lambda X, r: _odd(sparse.csr_matrix(X), r),
    "CSR array, wide indices": lambda X, r: _odd(sparse.csr_array(X), r, np.int64),
    "COO": lambda X, _: sparse.coo_matrix(X),
    "CSC": lambda X, _: sparse.csc_matrix(X),
    "narrower": lambda X, _: X[:, :-1],
    "wider": lambda X, _: np.hstack([X, X]),
    "one dimension": lambda X, _: X[0],
    "three dimensions": lambda X, _: X[None],
    "ragged": lambda X, _: [X[0].tolist(), X[0, 1:].tolist()],
    "None": lambda X, _: None,
}


def every(table: Table, cuts: Cuts, random: np.random.Generator) -> Iterator[Any]:
    """Yield the rows of training, and then drawn ones without end."""
    yield "trained", table.X
    rows = Rows(table, cuts, random)
    while True:
        yield rows.draw()
