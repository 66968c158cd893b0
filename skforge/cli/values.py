"""Turn columns of a file into numbers, or into words and their codes."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.rows.frames import numbers_in

#: Texts of missing values in files, which are those of pandas.
_MISSING = {
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND",
    "1.#QNAN", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
}  # fmt: skip
#: What cells of a column of numbers stand for that ``float`` does not read, in lower
#: case.
_NUMBERS = {word.lower(): np.nan for word in _MISSING} | {"true": 1.0, "false": 0.0}
del _NUMBERS["nan"], _NUMBERS["-nan"]


class WrongColumnError(Exception):
    """A column holds something that the model cannot take; a cell has its row."""

    def __init__(self, why: str, row: int | None = None) -> None:
        super().__init__(why)
        self.row = row


def _no_numbers(what: str, row: int | None = None) -> WrongColumnError:
    return WrongColumnError(
        f"{what}, and the model takes numbers there; encode texts as for training, and "
        "leave cells empty whose values are missing",
        row,
    )


def number_in(cell: str) -> float | None:
    """Return the number in a cell, NaN for a missing one, None for anything else.

    >>> number_in(" 1e3"), number_in("True"), number_in(" NA"), number_in("red")
    (1000.0, 1.0, nan, None)
    """
    try:
        return float(cell)
    except ValueError:
        return _NUMBERS.get(cell.strip().lower())


def is_missing(cell: str, known: Container[Any] = ()) -> bool:
    """Tell whether a cell stands for a missing value, and for no known text.

    >>> is_missing("None"), is_missing("None", {"None"}), is_missing("none")
    (True, False, False)
    """
    return not cell or (cell in _MISSING and cell not in known)


def numbers(column: Any, dtype: Any = np.float64) -> Array:
    """Return a column's numbers in a dtype of floats, NaN for missing ones.

    Texts are parsed as Python's ``float`` parses them. Raises WrongColumnError if a
    value is no number.
    """
    if isinstance(column, np.ndarray):
        return _parsed(column)
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if _is_text(kind):
        # the latter of views, in old releases
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            column = _cast(column)
        kind = column.type
    if _is_text(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return _parsed(column.to_pylist())
    read = _lent(column) or numbers_in(column)
    if read is None:
        raise _no_numbers(f"has values of type {kind}")
    values, missing = read
    # a whole number is rounded once, to the dtype asked for
    with np.errstate(over="ignore"):
        values = values.astype(dtype, copy=missing is not None)
    if missing is not None:
        values[missing] = np.nan
    return values


def _lent(column: Any) -> tuple[Array, None] | None:
    """Return numbers that Arrow can lend, without gaps: only that imports no pandas."""
    import pyarrow as pa

    if column.null_count and pa.types.is_float64(column.type):
        column = column.fill_null(arrow_of(np.full(1, np.nan))[0])
        return np.from_dlpack(column).copy(), None
    lent = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    return (np.from_dlpack(column), None) if lent and not column.null_count else None


def arrow_of(values: Array) -> Any:
    """Return Arrow's array of numbers; ``pyarrow.array`` imports pandas for it."""
    import pyarrow as pa

    kind, values = pa.from_numpy_dtype(values.dtype), np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _cast(texts: Any) -> Any:
    """Return Arrow's numbers of texts; ArrowInvalid if Python has to look at one."""
    import pyarrow as pa
    from pyarrow import compute

    texts = texts.cast(pa.large_string())  # views have few functions
    try:  # reads most texts that float reads, and to the same numbers
        numbers = compute.cast(texts, pa.float64())
    except pa.ArrowInvalid:
        cells = compute.ascii_trim_whitespace(texts)
        words = pa.array([*_NUMBERS], pa.large_string())
        place = compute.index_in(compute.ascii_lower(cells), words)
        others = compute.if_else(place.is_null(), cells, None)
        meant = pa.array([*_NUMBERS.values()], pa.float64()).take(place)
        numbers = compute.coalesce(meant, compute.cast(others, pa.float64()))
    # only Arrow takes nan(0)
    if "(" in "".join(texts.filter(compute.is_nan(numbers)).to_pylist()):
        raise pa.ArrowInvalid
    return numbers


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view")


def holds_texts(column: Any) -> bool:
    if isinstance(column, np.ndarray):
        return True
    kind = column.type
    return _is_text(getattr(kind, "value_type", kind))


def _parsed(cells: Any) -> Array:
    with suppress(ValueError, TypeError):
        return np.fromiter(map(float, cells), np.float64, len(cells))
    values = np.empty(len(cells))
    for row, cell in enumerate(cells):
        number = np.nan if cell is None else number_in(cell)
        if number is None:
            raise _no_numbers(f"has {cell!r}", row)
        values[row] = number
    return values


def hashed(column: Any, booleans: bool) -> Array:
    """Return CatBoost's categories: texts as they are spelled, and whole numbers.

    ``booleans`` tells whether True or False was a text in training.
    """
    if isinstance(column, np.ndarray):  # an empty cell is missing, as pyarrow reads it
        cells = [cell or None for cell in column.tolist()]
    else:
        cells = column.to_pylist()
    if {"True", "False"} >= {*cells} and cells and not booleans:
        raise WrongColumnError(
            "has the texts True and False, and booleans are 1 and 0 to CatBoost; write "
            "1 and 0, or predict with Python if they were texts in training"
        )
    for row, cell in enumerate(cells):
        if not isinstance(cell, (str, int)):
            raise WrongColumnError(
                f"has {cell!r}, and the model takes categories there: texts, whole "
                "numbers and booleans; write a text for all else",
                row,
            )
    return np.array(cells, object)


def words(column: Any, known: Container[Any], spelled: bool) -> tuple[list[Any], Array]:
    """Return the different texts of a column, and each row's number among them.

    A missing text has the number -1; with ``spelled``, some texts stand for missing
    values. Columns of numbers have numbers as words.
    """
    if isinstance(column, np.ndarray):
        places: dict[Any, int] = {}
        codes = np.array([places.setdefault(cell, len(places)) for cell in column])
        distinct = [*places]
    elif holds_texts(column):
        import pyarrow as pa

        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        distinct = column.dictionary.to_pylist()
        codes = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    else:
        values, codes = np.unique(numbers(column), return_inverse=True)
        whole = bool((values[~np.isnan(values)] % 1 == 0).all())
        distinct = [int(v) if whole and v == v else float(v) for v in values.tolist()]
    gone = [w is None or w != w or (spelled and is_missing(w, known)) for w in distinct]
    if any(gone):
        codes = np.where(np.array([*gone, True])[codes], -1, codes)
    return distinct, codes


def texts(column: Any, known: Container[Any] = (), spelled: bool = True) -> Array:
    distinct, codes = words(column, known, spelled)
    table = np.empty(len(distinct) + 1, object)
    table[:-1], table[-1] = distinct, np.nan
    return table[codes]


def categories(
    column: Any, known: Sequence[str | float], spelled: bool, dtype: str = ""
) -> Any:
    """Return a column as pandas' categories, with those that are not ``known``, too.

    ``dtype`` is what their index must have, or "" for any.
    """
    from pandas import Categorical, Index

    distinct, codes = words(column, known, spelled)
    if known and not isinstance(known[0], str):
        distinct = [_category(word, type(known[0]) is float) for word in distinct]
    used = {distinct[code] for code in np.unique(codes) if code >= 0}
    place: dict[Any, int] = {word: i for i, word in enumerate(known)}
    if used and all(map(_is_number, used)) and not any(map(_is_number, known)):
        # codes in place of texts: as new categories they would be missing values
        some = ", ".join(map(repr, known[:3])) + ", …" * (len(known) > 3)
        raise WrongColumnError(
            f"holds numbers, and the model's categories are texts ({some}); write its "
            "categories as they were in training"
        )
    new = [word for word in distinct if word in used and word not in place]
    place |= {word: i for i, word in enumerate(dict.fromkeys(new), len(place))}
    table = np.array([*(place.get(word, -1) for word in distinct), -1])
    names: Any = list(place)
    if dtype and all(type(word) is int for word in names):
        with suppress(OverflowError):  # new ones, which the model refuses
            names = Index(names, dtype=dtype)
    return Categorical.from_codes(table[codes], categories=names)


def _category(word: Any, is_float: bool) -> Any:
    number = number_in(word) if isinstance(word, str) else word
    if number is None or number != number:
        return word
    return float(number) if is_float else int(number) if number % 1 == 0 else word


def _is_number(word: Any) -> bool:
    return not isinstance(word, str) or number_in(word) is not None
