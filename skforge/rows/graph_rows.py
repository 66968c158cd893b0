"""Reads rows of ONNX graphs whose inputs are columns with names, or hold texts.

Columns of frames are found by name, in any order and beside others, as onnxruntime
finds its inputs. Texts become codes: their place in ``category_names``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.engine.rows import forest_rows
from skforge.exceptions import InvalidInputError, shortened
from skforge.forest import mistakes
from skforge.forest.forest import Forest
from skforge.forest.rows import whole_range
from skforge.frontends.pipeline.codes import TextCodes
from skforge.outputs.graph_operators import OPERATORS
from skforge.rows import frames
from skforge.rows.sparse_rows import blocks_of, is_sparse


def text_codes(forest: Forest) -> dict[int, TextCodes]:
    """Return the codes of each column of texts.

    To onnxruntime, None is the text "None", and NaN the text "nan".
    """
    codes = {}
    for column, texts in enumerate(forest.category_names):
        if texts:
            names = tuple(map(str, texts))
            place = {name: float(code) for code, name in enumerate(names)}
            other = None if column in forest.closed_columns else np.nan
            none, nan, na = (place.get(x, other) for x in ("None", "nan", "<NA>"))
            codes[column] = TextCodes(names, other, none, nan, na=na)
    return codes


def mapping_rule(codes: TextCodes) -> dict[str, Any]:
    """Return how mappings' texts become codes; None and NaN are two texts there."""
    table = {text: code for text, code in codes.table.items() if text is not None}
    if codes.none is None:  # if one is refused, both are left to the reader of frames
        return {"table": table, "missing": None, "unknown": codes.unknown}
    return {
        "table": {**table, None: codes.none},
        "missing": codes.nan,
        "unknown": codes.unknown,
    }


class WholeNumbers:
    """Refuses other numbers where a graph reads whole ones, as onnxruntime does."""

    def __init__(self, forest: Forest) -> None:
        self._names, self._columns = forest.feature_names, forest.whole_columns
        dtype = forest.input_dtype
        self._ranges = [whole_range(bits, dtype) for _, bits in self._columns]
        self._least, self._most = np.array(self._ranges, np.float64).reshape(-1, 2).T
        self._places = [column for column, _ in self._columns]

    def _fits(self, values: Array) -> Any:
        fits = (values >= self._least) & (values <= self._most)
        return fits & (values == np.trunc(values))

    def takes(self, rows: Array) -> bool:
        return bool(self._fits(rows[:, self._places].astype(np.float64)).all())

    def check(self, rows: Array) -> None:
        if not self._places or self.takes(rows):
            return
        values = rows[:, self._places].astype(np.float64)
        row, place = np.argwhere(~self._fits(values))[0].tolist()
        column, bits = self._columns[place]
        name = column if self._names is None else repr(self._names[column])
        kind = {1: "booleans", 32: "int32 numbers"}.get(bits, "int64 numbers")
        least, most = self._ranges[place]
        raise InvalidInputError(
            f"column {name} holds {values[row, place]} in row {row}, and the graph "
            f"reads {kind} there, from {least} to {most}; give it such numbers, or "
            "convert the model with float input."
        )


def with_norms(forest: Forest, rows: Array) -> Array:
    """Return rows as the nodes before the trees make them: in float32."""
    made = rows.copy()
    with np.errstate(all="ignore"):
        for norm, columns in forest.row_norms:
            numbers = rows[:, columns].astype(np.float32)
            made[:, columns] = OPERATORS[norm]({}, numbers)
    return made


class GraphRows:
    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._names = forest.feature_names
        self._codes = text_codes(forest)
        self._whole = WholeNumbers(forest)

    def rows(self, X: Any) -> Array:
        rows = self._read(X)
        self._whole.check(rows)
        return with_norms(self._forest, rows) if self._forest.row_norms else rows

    def _read(self, X: Any) -> Array:
        if frames.is_pandas(X) or frames.is_table(X):
            return self._of_columns(*self._columns_of(X))
        if is_sparse(X):
            return np.concatenate([*blocks_of(self._forest, X)])
        why = mistakes.kind_mistake(X, self._forest.n_features)
        if why is not None:
            raise InvalidInputError(why)
        values = mistakes.as_array(X)
        if values.dtype.kind == "U" and not isinstance(X, np.ndarray):
            values = np.array(X, object)  # numbers beside texts stay numbers
        if not self._codes or values.dtype.kind in "fiub":
            return forest_rows(self._forest, values, X)
        values = values.astype(object, copy=False)
        mistakes.check_shape(values.shape, self._forest.n_features)
        names = self._names or range(values.shape[1])
        return self._of_columns(values.T, names)

    def _columns_of(self, X: Any) -> tuple[list[Any], Sequence[Any]]:
        """Return the columns of a frame in the order of the forest's, and labels."""
        labels = frames.column_names(X)
        places = [*range(len(labels))]
        if self._names is not None:
            known = {label: i for i, label in enumerate(labels)}
            if len(known) < len(labels) or not known.keys() >= {*self._names}:
                absent = [name for name in self._names if name not in known]
                shown = shortened(str(absent))
                raise InvalidInputError(
                    f"the columns {shown} are not in the rows; the graph has an input "
                    "for each."
                    if absent
                    else "several columns of the rows have the same name."
                )
            places = [known[name] for name in self._names]
        else:
            mistakes.check_shape((len(X), len(labels)), self._forest.n_features)
        every = frames.each_column(X)
        return [every[i] for i in places], [labels[i] for i in places]

    def _of_columns(self, columns: Any, labels: Sequence[Any]) -> Array:
        n_rows = len(columns[0])
        rows = np.empty((n_rows, len(columns)), self._forest.input_dtype)
        for i, (column, label) in enumerate(zip(columns, labels, strict=True)):
            codes = self._codes.get(i)
            if codes is None:
                frames.write_numbers(rows, i, _numbers(column, label))
            else:
                rows[:, i] = _codes(codes, column, label)
        return rows


def _numbers(column: Any, label: Any) -> frames.ColumnNumbers:
    if (found := frames.numbers_in(column)) is not None:
        return found
    values = np.asarray(column)
    if values.dtype.kind in "fiub":
        return values, None
    try:
        return values.astype(object).astype(np.float64), None
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"column {label!r} holds values that are no numbers ({error}), and the "
            "graph reads numbers there."
        ) from error


def _codes(codes: TextCodes, column: Any, label: Any) -> Any:
    if isinstance(column, np.ndarray):
        column = column.astype(object, copy=False)
    numbers = frames.numbers_in(column) is not None
    if not numbers and (read := codes.of_column(column)) is not None:
        return read
    listed = [*frames.objects_in(column)]
    wrong = next((value for value in listed if codes.code(value) is None), listed[0])
    if isinstance(wrong, str) or wrong is None or wrong != wrong:
        known = shortened(str([*codes.texts]))
        raise InvalidInputError(
            f"column {label!r} holds {wrong!r}, for which the graph has no category "
            f"and raises an error; it knows {known}."
        )
    raise InvalidInputError(
        f"column {label!r} holds {wrong!r} of type {type(wrong).__name__}, and the "
        "graph reads texts there; convert it with astype(str)."
    )
