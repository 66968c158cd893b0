"""Columns of polars frames, pyarrow tables, and arrays and lists of Python objects.

They are read as pandas' frame of the same values is; whether a pipeline takes them so
is found out by ``PipelineSource.of_form``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.frontends.pipeline.codes import MANY, TextCodes

Array = NDArray[Any]

#: NumPy's dtype of a column's numbers, by the name of its type.
_NUMBERS = {
    **{f"int{8 * size}": f"i{size}" for size in (1, 2, 4, 8)},
    **{f"uint{8 * size}": f"u{size}" for size in (1, 2, 4, 8)},
    **{"halffloat": "f2", "float": "f4", "float32": "f4", "double": "f8"},
    **{"float64": "f8", "bool": "?", "boolean": "?"},
}
_TEXTS = {"string", "large_string", "string_view", "categorical", "enum", "dictionary"}
#: The type of all columns of arrays and lists of Python objects.
_OBJECT = "object"
#: Types of Python objects that are numbers.
_PLAIN = frozenset((float, int, bool))
_TABLES = {("polars", "DataFrame"), ("pyarrow", "Table")}


class TableForm(NamedTuple):
    """The container of rows, and the types of its columns; None for those not read."""

    kind: str
    types: tuple[Any, ...]


@lru_cache(maxsize=256)
def number_of(own: Any) -> np.dtype[Any] | None:
    """Return NumPy's dtype of a type of numbers; None for texts and others."""
    code = _NUMBERS.get(str(own).lower())
    return None if code is None else np.dtype(code)


def row_of(X: Any, kind: str) -> tuple[list[Any], Sequence[Any]]:
    """Return the kinds of a table's columns, and the values of its only row."""
    if kind == "polars":
        return [*map(type, X.dtypes)], X.row(0)
    kinds = [one.id for one in X.schema.types]
    return kinds, [column[0].as_py() for column in X.columns]


@lru_cache(maxsize=256)
def _is_known(own: Any) -> bool:
    name = str(own).lower().partition("(")[0].partition("<")[0]
    return name in _NUMBERS or name in _TEXTS or own == _OBJECT


def kind_of(X: Any) -> str:
    """Return "polars", "pyarrow", "array" or "list"; "" for rows not read here."""
    kind = type(X)
    if kind is np.ndarray:
        return "array" if X.dtype == np.object_ and X.ndim == 2 else ""
    if kind is list or kind is tuple:
        # scikit-learn makes an array of objects of them if there are texts
        first = X[0] if len(X) else None
        if type(first) is list or type(first) is tuple:
            return "list" if str in map(type, first) else ""
        return ""
    library = kind.__module__.partition(".")[0]
    return library if (library, kind.__name__) in _TABLES else ""


def columns_of(
    X: Any, kind: str
) -> tuple[list[str] | None, Sequence[Any], list[Any]] | None:
    """Return names, columns and types; None for ragged rows and for other types."""
    names: list[str] | None = None
    columns: Sequence[Any]
    if kind == "polars":
        names, columns, types = X.columns, X.get_columns(), X.dtypes
    elif kind == "pyarrow":
        names, columns, types = X.schema.names, X.columns, X.schema.types
    else:
        if kind == "list" and len({*map(len, X)}) > 1:
            return None
        columns = [*zip(*X, strict=True)] if kind == "list" else X.T.tolist()
        types = [_OBJECT] * len(columns)
    return (names, columns, types) if all(map(_is_known, types)) else None


def numbers_in(column: Any, kind: str) -> tuple[Array, Array | None] | None:
    """Return a column's numbers, and where they are missing, if some are."""
    if kind in ("polars", "pyarrow"):
        polars = kind == "polars"
        number = number_of(column.dtype if polars else column.type)
        if number is None:
            return None
        gaps = column.null_count() if polars else column.null_count
        if not gaps or number in (np.float32, np.float64):  # they become NaN
            values = column.to_numpy() if polars else np.asarray(column)
            return values, np.isnan(values) if gaps else None
        zero = number.type(0).item()
        return np.asarray(column.fill_null(zero)), np.asarray(column.is_null())
    if not _PLAIN.issuperset(map(type, column)):
        return None
    try:
        return np.array(column, np.float64), None
    except OverflowError:
        return None


def codes_in(column: Any, kind: str, texts: TextCodes) -> Array | float | None:
    """Return the codes of a column's texts; None if the pipeline must answer."""
    if kind == "polars":
        if len(column) < MANY or find_spec("pyarrow") is None:
            return texts.codes(column.to_list())
        return texts.of_arrow(column.to_arrow(), None)
    if kind == "pyarrow":
        if column.null_count and hasattr(column.type, "index_type"):
            return None  # pyarrow's array of it has the last text in their places
        return texts.of_arrow(column, None)
    return texts.codes(column)


def table_of(frame: Any, form: TableForm, gaps: Collection[int]) -> Any:
    """Return pandas' frame in the container, and with the types, of a form."""
    if form.kind == "array":
        return frame.to_numpy(object)
    if form.kind == "list":
        return frame.to_numpy(object).tolist()
    columns = {}
    for place, (name, own) in enumerate(zip(frame.columns, form.types, strict=True)):
        values = frame[name].to_numpy(object)
        number = None if own is None else number_of(own)
        if number is not None:  # NaN is a number of floats
            values = values.astype(number if number.kind == "f" else object)
        gone = [place in gaps or number is None] * np.array([v != v for v in values])
        if number is not None and number.kind != "f":
            values = [number.type(0 if v != v else v).item() for v in values]
        objects = [None if out else v for v, out in zip(values, gone, strict=True)]
        columns[str(name)] = _column(form.kind, objects, own)
    if form.kind == "polars":
        import polars

        return polars.DataFrame(columns)
    import pyarrow

    return pyarrow.table(columns)


def _column(kind: str, values: list[Any], own: Any) -> Any:
    """Return a column of polars or pyarrow; texts that its type lacks are missing."""
    texts = own is not None and number_of(own) is None
    if kind == "polars":
        import polars

        column = polars.Series(values, dtype=polars.String if texts else own)
        return column.cast(own, strict=False) if texts else column
    import pyarrow

    found = pyarrow.array(values, None if texts else own)
    if not texts:
        return found
    if not hasattr(own, "index_type"):
        return found.cast(own)
    coded = found.dictionary_encode()
    at, known = coded.indices.cast(own.index_type), coded.dictionary
    return pyarrow.DictionaryArray.from_arrays(at, known.cast(own.value_type))
