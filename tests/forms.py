"""Forms in which users have rows: containers, dtypes, orders, and odd values.

``NUMBERS`` makes each of them of a frame of six columns of float64, and ``PASSENGERS``
of a frame of numbers and texts. ``MAPPED`` makes mappings of a frame, with the frame
that each stands for.
"""

from __future__ import annotations

from collections import OrderedDict, UserDict, deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from scipy import sparse

Maker = Callable[[Any], Any]

COLUMNS = [*"abcdef"]
LEVELS = ["low", "mid", "high"]
BIG = 2**53 + 1  # the first integer that float64 does not hold
#: Values that a cast, a check or a step may treat in its own way.
ODD = (np.inf, -np.inf, np.nan, 1e300, -1e300, 1e39, 3.5e38, 3.4e38, 1e-46, 1e-320)
ODD = (*ODD, -0.0, -999.0, 77.0, 2.5, -1.0, 1e9)


def _with_wide_indices(X: Any) -> Any:
    rows = sparse.csr_matrix(absent(X))
    rows.indices, rows.indptr = rows.indices.astype("i8"), rows.indptr.astype("i8")
    return rows


def framed(X: Any) -> Any:
    return pd.DataFrame(X, columns=COLUMNS)


def with_value(X: Any, row: int, column: int, value: Any) -> Any:
    """Return rows with one value changed."""
    X = X.copy()
    if hasattr(X, "iloc"):
        X.iloc[row, column] = value
    else:
        X[row, column] = value
    return X


def with_categories(frame: Any, levels: Any = LEVELS) -> Any:
    codes = (frame["b"].abs() * 7).astype(int) % len(levels)
    return frame.assign(b=pd.Categorical.from_codes(codes, levels))


def absent(X: Any) -> Any:
    """Return rows of which many values are 0."""
    return np.where(X > 0, X, 0)


def _unaligned(X: Any) -> Any:
    data = b"." + X.astype(np.float32).tobytes()
    return np.frombuffer(data, np.float32, offset=1).reshape(X.shape)


def _large_ints(X: Any) -> Any:
    return np.arange(X.size).reshape(X.shape) + BIG


def _large_frame(frame: Any, **dtypes: Any) -> Any:
    big = np.arange(len(frame), dtype=np.int64) + BIG
    return frame.assign(a=big).astype(dtypes)


def _each_twice(X: Any) -> Any:
    """Return sparse rows that have two entries of the same place."""
    n = len(X)
    parts = np.ones(2 * n), np.tile([1, 1], n), np.arange(0, 2 * n + 1, 2)
    return sparse.csr_matrix(parts, X.shape)


ARRAYS: dict[str, Maker] = {
    "float64": lambda X: X,
    "one row": lambda X: X[:1],
    "one row of float32": lambda X: X[:1].astype(np.float32),
    "float32": lambda X: X.astype(np.float32),
    "float16": lambda X: X.astype(np.float16),
    "int8": lambda X: X.astype(np.int8),
    "int64": lambda X: X.astype(np.int64),
    "uint8": lambda X: np.abs(X).astype(np.uint8),
    "uint64": lambda X: np.abs(X).astype(np.uint64),
    "large int64": _large_ints,
    "bool": lambda X: X > 0,
    "F-order": np.asfortranarray,
    "F-order of float32": lambda X: np.asfortranarray(X.astype(np.float32)),
    "strided": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "reversed": lambda X: X[::-1],
    "every third": lambda X: X[::3],
    "read-only": lambda X: np.broadcast_to(X[:1], (3, X.shape[1])),
    "memmap": lambda X: X.view(np.memmap),
    "unaligned": _unaligned,
    "big-endian": lambda X: X.astype(">f8"),
    "big-endian of float32": lambda X: X.astype(">f4"),
    "longdouble": lambda X: X.astype(np.longdouble),
    "object": lambda X: X.astype(object),
    "object with None": lambda X: with_value(X.astype(object), 1, 1, None),
    "text": lambda X: X.astype(str),
    "letters": lambda X: np.full(X.shape, "a"),
    "dates": lambda X: X.astype("M8[s]"),
    "complex": lambda X: X.astype(complex),
    "matrix": np.asmatrix,
    "masked": np.ma.masked_array,
    "NaN": lambda X: np.where(np.arange(X.size).reshape(X.shape) % 7, X, np.nan),
    "NaN of float32": lambda X: with_value(X.astype(np.float32), 1, 0, np.nan),
    "infinite": lambda X: with_value(X, 2, 1, np.inf),
    "infinite everywhere": lambda X: X * np.inf,
    "too large for float32": lambda X: with_value(X, 2, 1, 1e39),
    "marker": lambda X: with_value(X, 3, 2, -999),
    "marker of int64": lambda X: with_value(X.astype(np.int64), 3, 2, -999),
    "no rows": lambda X: X[:0],
    "no rows of float32": lambda X: X[:0].astype(np.float32),
    "narrow": lambda X: X[:, :3],
    "wide": lambda X: np.hstack([X, -X]),
    "one dimension": lambda X: X[0],
    "three dimensions": lambda X: X[None],
}
ARRAYS |= {
    f"one row, {value}": lambda X, value=value: with_value(X[:1], 0, 2, value)
    for value in ODD
}
LISTS: dict[str, Maker] = {
    "list": np.ndarray.tolist,
    "list of one": lambda X: X[:1].tolist(),
    "tuple": lambda X: tuple(map(tuple, X.tolist())),
    "list of arrays": list,
    "list of ints": lambda X: X.astype(int).tolist(),
    "list of bools": lambda X: (X > 0).tolist(),
    "list of ints and floats": lambda X: [[1, 2.5, 3, 4, 5, 6], [0, 1, 2, 3.5, 4, 5]],
    "list of large ints": lambda X: [[BIG, 1, 2, 3, 4, 5]],
    "list of huge ints": lambda X: [[2**70, 1, 2, 3, 4, 5]],
    "list with NaN": lambda X: [[float("nan"), 1, 2, 3, 4, 5]],
    "list with infinity": lambda X: [[float("inf"), 1, 2, 3, 4, 5]],
    "list with None": lambda X: [[None, 1, 2, 3, 4, 5]],
    "list of texts": lambda X: X.astype(str).tolist(),
    "ragged list": lambda X: [[1.0, 2.0], [1.0]],
    "empty list": lambda X: [],
    "flat list": lambda X: [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "memoryview": lambda X: memoryview(np.ascontiguousarray(X)),
    "narrow memoryview": lambda X: memoryview(X[:, :5].astype(np.float32)),
    "None": lambda X: None,  # no mappings: their meaning is ours
    "number": lambda X: 1.5,
    "one text": lambda X: "text",
}
FRAMES: dict[str, Maker] = {
    "float64": lambda f: f,
    "one row": lambda f: f[:1],
    "float32": lambda f: f.astype(np.float32),
    "one row of float32": lambda f: f[:1].astype(np.float32),
    "F-order": lambda f: framed(np.asfortranarray(f)),
    "mixed": lambda f: f.astype({"c": "int64", "b": "float32", "e": bool}),
    "mixed, one row": lambda f: f[:1].astype({"c": "int64"}),
    "with bools": lambda f: f.assign(d=f["d"] > 0),
    "all bools": lambda f: f > 0,
    "ints": lambda f: f.astype("int64"),
    "small ints": lambda f: f.astype("int8"),
    "large ints": _large_frame,
    "large ints, nullable": lambda f: _large_frame(f, b="Float64"),
    "large unsigned": lambda f: _large_frame(f, a="uint64", c="int64"),
    "nullable": lambda f: f.convert_dtypes(),
    "nullable float64": lambda f: f.astype("Float64"),
    "nullable with a gap": lambda f: with_value(f.convert_dtypes(), 1, 2, pd.NA),
    "nullable bool": lambda f: f.assign(d=pd.array(f["d"] > 0, dtype="boolean")),
    "other byte order": lambda f: f.astype(">f8"),
    "other byte order, float32": lambda f: f.astype(">f4"),
    "one of other byte order": lambda f: f.astype({"a": ">f8"}),
    "whole of other byte order": lambda f: f.astype({"a": ">i4", "c": ">i8"}),
    "Arrow": lambda f: f.astype("float64[pyarrow]"),
    "Arrow, one row": lambda f: f.astype("float64[pyarrow]").iloc[:1],
    "Arrow, gap": lambda f: with_value(f, 3, 1, np.nan).astype("float64[pyarrow]"),
    "Arrow, ints": lambda f: f.astype({"c": "int64[pyarrow]", "a": "float64[pyarrow]"}),
    "Arrow, large ints": lambda f: _large_frame(f, a="int64[pyarrow]"),
    "Arrow, bool": lambda f: f.assign(b=f["b"] > 0).astype({"b": "bool[pyarrow]"}),
    "sparse": lambda f: f.astype(pd.SparseDtype("float64", 0.0)),
    "one sparse column": lambda f: f.astype({"b": pd.SparseDtype("float64", 0.0)}),
    "object": lambda f: f.astype(object),
    "text column": lambda f: f.assign(b="x"),
    "text numbers": lambda f: f.astype({"b": str}),
    "dates": lambda f: f.assign(b=pd.Timestamp("2026-01-01")),
    "category": with_categories,
    "category of numbers": lambda f: f.assign(b=pd.Categorical(np.arange(len(f)) % 3)),
    "categories in another order": lambda f: with_categories(f, LEVELS[::-1]),
    "an ordered category": lambda f: with_categories(f).assign(
        b=lambda g: g["b"].cat.as_ordered()
    ),
    "an unseen category": lambda f: with_categories(f, ["low", "mid", "new"]),
    "an unused category": lambda f: f.assign(
        b=pd.Categorical(["mid"] * len(f), [*LEVELS, "new"])
    ),
    "a missing category": lambda f: with_value(with_categories(f), 3, 1, np.nan),
    "texts of categories": lambda f: with_categories(f).astype({"b": object}),
    "infinite": lambda f: with_value(f, 2, 1, np.inf),
    "NaN": lambda f: with_value(f, 2, 1, np.nan),
    "too large for float32": lambda f: with_value(f, 2, 1, 1e39),
    "other order": lambda f: f[COLUMNS[::-1]],
    "other names": lambda f: f.rename(columns={"b": "z"}),
    "numbered": lambda f: pd.DataFrame(f.to_numpy()),
    "names of several kinds": lambda f: f.rename(columns={"b": 1}),
    "twice the same name": lambda f: f.rename(columns={"b": "a"}),
    "levels of names": lambda f: f.set_axis(
        pd.MultiIndex.from_product([["x", "y"], ["1", "2", "3"]]), axis=1
    ),
    "named index": lambda f: f.rename_axis(columns="columns"),
    "other index": lambda f: f.set_axis(np.arange(len(f))[::-1], axis=0),
    "slice": lambda f: f[::2],
    "transposed": lambda f: pd.DataFrame(f.to_numpy().T, index=COLUMNS).T,
    "no rows": lambda f: f[:0],
    "narrow": lambda f: f[COLUMNS[:3]],
    "wide": lambda f: f.assign(g=1.0),
    "subclass": lambda f: type("Own", (pd.DataFrame,), {})(f),
    "series": lambda f: f["a"],
}
POLARS: dict[str, Maker] = {
    "float64": lambda p: p,
    "one row": lambda p: p[:1],
    "float32": lambda p: p.cast(pl.Float32),
    "ints": lambda p: p.cast({"c": pl.Int64}, strict=False),
    "large ints": lambda p: p.with_columns(a=pl.Series(np.arange(len(p)) + BIG)),
    "bools": lambda p: p.with_columns(d=p["d"] > 0),
    "gap": lambda p: p.with_columns(c=pl.Series([None, *range(1, len(p))])),
    "nulls": lambda p: p.with_columns(pl.lit(None).alias("a")),
    "text": lambda p: p.with_columns(c=pl.lit("x")),
    "all texts": lambda p: p.cast(pl.String),
    "other order": lambda p: p.select(COLUMNS[::-1]),
    "chunks": lambda p: pl.concat([p[:5], p[5:]], rechunk=False),
    "no rows": lambda p: p[:0],
    "narrow": lambda p: p.select(COLUMNS[:3]),
    "lazy": lambda p: p.lazy(),
}
ARROW: dict[str, Maker] = {
    "float64": lambda t: t,
    "one row": lambda t: t.slice(2, 1),
    "ints": lambda t: t.set_column(2, "c", pa.array(range(len(t)))),
    "gap": lambda t: t.set_column(2, "c", pa.array([None, *[1.0] * (len(t) - 1)])),
    "float16 beside others": lambda t: t.set_column(
        2, "c", pa.array(np.arange(len(t), dtype=np.float16))
    ),
    "chunks": lambda t: pa.concat_tables([t.slice(0, 5), t.slice(5)]),
    "batch": lambda t: t.to_batches()[0],
    "other order": lambda t: t.select(COLUMNS[::-1]),
    "text": lambda t: t.set_column(2, "c", pa.array(["x"] * len(t))),
}
SPARSE: dict[str, Maker] = {
    "CSR": lambda X: sparse.csr_matrix(absent(X)),
    "CSC": lambda X: sparse.csc_matrix(absent(X)),
    "COO": lambda X: sparse.coo_matrix(absent(X)),
    "LIL": lambda X: sparse.lil_matrix(absent(X)),
    "CSR array": lambda X: sparse.csr_array(absent(X)),
    "CSR, wide indices": _with_wide_indices,
    "CSR, one row": lambda X: sparse.csr_matrix(absent(X[:1])),
    "CSR, float32": lambda X: sparse.csr_array(absent(X).astype(np.float32)),
    "CSR, ints": lambda X: sparse.csr_matrix(absent(X).astype(np.int32)),
    "CSR, explicit zeros": lambda X: sparse.csr_matrix(
        (np.zeros(3), np.array([3, 0, 1]), np.array([0, 2, 2, 3])), (3, X.shape[1])
    ),
    "CSR, twice": _each_twice,
    "CSR, NaN": lambda X: sparse.csr_matrix(with_value(X, 1, 0, np.nan)),
    "CSR, infinite": lambda X: sparse.csr_matrix(with_value(X, 1, 0, np.inf)),
    "CSR, too large for float32": lambda X: sparse.csr_matrix(
        with_value(X, 1, 0, 1e39)
    ),
    "CSR, no entry": lambda X: sparse.csr_matrix((3, X.shape[1])),
    "CSR, no rows": lambda X: sparse.csr_matrix(absent(X[:0])),
    "CSR, narrow": lambda X: sparse.csr_matrix(absent(X[:, :5])),
    "CSR, wide": lambda X: sparse.csr_matrix(np.hstack([X, -X])),
}


def _of(
    first: Callable[[Any], Any], makers: dict[str, Maker], kind: str = ""
) -> dict[str, Maker]:
    """Return forms of a frame, which ``first`` converts."""
    return {
        f"{kind}{name}": lambda frame, make=make: make(first(frame))
        for name, make in makers.items()
    }


def _array(frame: Any) -> Any:
    return np.ascontiguousarray(frame.to_numpy())


NUMBERS: dict[str, Maker] = {
    **_of(_array, ARRAYS, "array, "),
    **_of(_array, LISTS),
    **_of(pd.DataFrame.copy, FRAMES, "frame, "),
    **_of(pl.from_pandas, POLARS, "polars, "),
    **_of(lambda f: pa.Table.from_pandas(f, preserve_index=False), ARROW, "arrow, "),
    **_of(_array, SPARSE),
}

# ------------------------------------------------------------ numbers and texts

PASSENGER_NUMBERS = ["age", "fare", "x", "kids", "alone"]
TEXT = pa.string()


def gaps(frame: Any) -> Any:
    """Return a frame with missing whole numbers."""
    return frame.assign(kids=frame.kids.astype("Int64").where(frame.kids > 0))


def with_views(frame: Any) -> Any:
    """Return a table whose texts are views."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    for at, name in enumerate(table.column_names):
        if name in ("sex", "port"):
            texts = table.column(at).cast(TEXT).cast(pa.string_view())
            table = table.set_column(at, name, texts)
    return table


def as_json(frame: Any) -> Any:
    """Return a frame of Python's values, whole numbers and None among them."""
    objects = frame.astype(object)
    return objects.assign(
        age=objects.age.where(frame.age > 30, None),
        kids=[int(kids) for kids in frame.kids],
    ).astype({"kids": object})


PASSENGERS: dict[str, Maker] = {
    "bool": lambda f: f.assign(alone=f.alone > 0),
    "float32": lambda f: f.astype(dict.fromkeys(PASSENGER_NUMBERS, "f4")),
    "float16": lambda f: f.astype(dict.fromkeys(PASSENGER_NUMBERS, "f2")),
    "mixed": lambda f: f.astype({"age": "f4", "kids": "i1", "alone": "?"}),
    "all narrow": lambda f: f.astype(
        {"age": "f4", "fare": "f4", "x": "f4", "kids": "i2", "alone": "?"}
    ),
    "Int64": lambda f: f.astype({"kids": "Int64"}),
    "Int64 with NA": gaps,
    "Float32": lambda f: f.astype({"age": "Float32", "alone": "boolean"}),
    "convert_dtypes": lambda f: f.convert_dtypes(),
    "pyarrow": lambda f: f.astype({"age": "float[pyarrow]", "kids": "int64[pyarrow]"}),
    "pyarrow with NA": lambda f: gaps(f).astype({"kids": "int64[pyarrow]"}),
    "pyarrow with texts": lambda f: f.convert_dtypes(dtype_backend="pyarrow"),
    "dictionaries": lambda f: f.astype(
        dict.fromkeys(["sex", "port"], pd.ArrowDtype(pa.dictionary(pa.int8(), TEXT)))
    ),
    "objects": lambda f: f.astype(object),
    "objects of all kinds": lambda f: as_json(f).assign(
        fare=[Decimal(str(x)) if i % 3 else x for i, x in enumerate(f.fare)],
        x=[np.float64(x) if i % 2 else x for i, x in enumerate(f.x)],
        alone=[np.bool_(x) for x in f.alone],
    ),
    "one object among narrow columns": lambda f: f.astype(
        {"age": object, "fare": "f4", "x": "f4", "kids": "i2", "alone": "?"}
    ),
    "polars": pl.from_pandas,
    "polars, all types": lambda f: pl.from_pandas(f).with_columns(
        pl.col("age").cast(pl.Float32),
        pl.col("kids").cast(pl.Int8),
        pl.col("alone") > 0,
        pl.col("sex").cast(pl.Categorical),
        pl.col("port").cast(pl.Enum(["S", "C", "Q"])),
    ),
    "polars with nulls": lambda f: pl.from_pandas(gaps(f)),
    "another order": lambda f: f[f.columns[::-1]],
    "categories": lambda f: f.astype({"sex": "category", "port": "category"}),
    "table": pa.Table.from_pandas,
    "table, all types": lambda f: pa.Table.from_pandas(
        f.astype({"age": "f4", "kids": "i1", "alone": "?", "sex": "category"})
    ),
    "table, views": with_views,
}

# ------------------------------------------------------------ mappings

#: Sequences that columns come in.
SEQUENCES: dict[str, Maker] = {
    "lists": lambda column: column.tolist(),
    "tuples": lambda column: tuple(column.tolist()),
    "deques": lambda column: deque(column.tolist()),
    "arrays": np.asarray,
    "arrays with strides": lambda column: np.repeat(np.asarray(column), 2)[::2],
    "object arrays": lambda column: np.array(column.tolist(), object),
    "masked arrays": lambda column: np.ma.array(np.asarray(column)),
    "series": lambda column: column,
    "series, reversed index": lambda column: column.set_axis(range(len(column))[::-1]),
    "nullable series": lambda column: column.convert_dtypes(),
    "pyarrow series": lambda column: column.convert_dtypes(dtype_backend="pyarrow"),
    "indexes": pd.Index,
    "polars": lambda column: pl.Series(column.tolist()),
    "arrow": lambda column: pa.array(column.tolist()),
    "arrow dictionaries": lambda column: pa.array(column.tolist()).dictionary_encode(),
    "arrow chunks": lambda column: pa.chunked_array(
        [column.tolist()[:9], column.tolist()[9:]]
    ),
}
#: Values that are numbers, or missing, in mappings.
VALUES = (None, float("nan"), np.float32("nan"), pd.NA, *ODD, 0.0, 1e38)
VALUES = (*VALUES, 41, True, np.True_, np.int8(3), np.uint64(7), BIG, 10**30)
VALUES = (*VALUES, np.float16(2.5), np.float32(0.1), np.longdouble(41.5))
VALUES = (*VALUES, Decimal("40.25"), Fraction(1, 3))
#: Three values of a column of numbers.
TRIPLES: tuple[Any, ...] = (
    *([1, 2, 3], [True, 2, 0.5], [1.5, None, float("nan")], [None, None, None]),
    *([pd.NA, np.float32(0.1), BIG], [Decimal("40.25"), 1e300, -1e39]),
    *([np.inf, 1.0, 2.0], [2**24 + 1, 2**60 + 129, -(2**63)], [0.1, -0.0, 1e-46]),
    *(np.array([0, 1, 3]).astype(code) for code in "bhilqBHILQ?efd"),
    np.array([2**24 + 1, 2**62 + 257, -(2**63)]),
    np.array([2**64 - 1, BIG, 3], np.uint64),
    np.array([0.1, np.nan, -3.5e38], ">f8"),
    np.array([40.25, np.nan, 1e-30], np.longdouble),
    np.ma.array([1.0, 2.0, 3.0], mask=[True, False, False]),
    pd.Series([1, None, 3], dtype="Int64"),
    pd.Series([True, None, False], dtype="boolean"),
)


def _records(frame: Any, order: int = 1) -> list[dict[str, Any]]:
    return frame[frame.columns[::order]].to_dict("records")


def _float(value: Any) -> float:
    gap = value is np.ma.masked or pd.isna(value)
    return float("nan") if gap else float(value)


def _with_values(frame: Any, values: Any) -> tuple[Any, Any]:
    """Return columns with values of the first column, and the frame of them."""
    part, first = frame[: len(values)], frame.columns[0]
    columns = {name: part[name].tolist() for name in frame} | {first: values}
    return columns, part.assign(**{first: [_float(value) for value in values]})


def mapped(frame: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield names of forms, mappings, and the frames that these stand for."""
    few, one, first = frame[:7], frame[3:4], frame.columns[0]
    row = _records(one)[0]
    for kind in (dict, OrderedDict, UserDict, MappingProxyType):
        yield f"a {kind.__name__}", kind(row), one
        yield f"a {kind.__name__} in a list", [kind(row)], one
    yield "a mapping, other order", _records(one, -1)[0], one
    for kind in (list, tuple, deque):
        yield f"a {kind.__name__} of mappings", kind(_records(few)), few
    turned = [*_records(one, -1), *_records(one)]
    yield "mappings, other order", turned, pd.concat([one, one])
    for value in VALUES:
        given = row | {first: value}
        stands = one.assign(**{first: _float(value)})
        yield f"a mapping with {value!r}", given, stands
        yield f"mappings with {value!r}", [given, given], pd.concat([stands] * 2)
    for name, kind in SEQUENCES.items():
        for rows in (one, frame):
            columns = {key: kind(rows[key]) for key in rows.columns[::-1]}
            yield f"columns of {name}, {len(rows)} rows", columns, rows
    for number, values in enumerate(TRIPLES):
        yield f"a column, {number}", *_with_values(frame, values)
