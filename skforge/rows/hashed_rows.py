"""Reads rows with categories as CatBoost does: by the hashes of their texts.

A category is a text, bytes in UTF-8, or a whole number or boolean, which count as its
decimal digits. What CatBoost refuses (fractions, missing categories), or converts by
rules of its own (texts for numbers), is left to the model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Array
from skforge.engine.hashing import (
    Encoder,
    encoder_of,
    entry_of_objects,
    read_objects,
    write_texts,
)
from skforge.exceptions import InvalidInputError
from skforge.forest import mistakes
from skforge.forest.categories import HASH, MULTIPLIER
from skforge.forest.forest import Forest
from skforge.rows import frames
from skforge.rows.prepare import places_in, with_dropped
from skforge.runtime.categories import NO_CATEGORY, category, number

#: Arrow's types of texts, and the dtypes of where texts begin.
_ARROW_TEXTS = {"string": np.int32, "large_string": np.int64}

#: Fewer texts of polars are read sooner as objects.
_MANY = 256


class HashedRows:
    """Makes rows of a forest with categories; returns None for what the model reads."""

    #: The warning for arrays: there is none.
    unnamed = ""
    on_host = True

    def __init__(self, forest: Forest) -> None:
        assert forest.hashed is not None
        hashed = forest.hashed
        self._forest, self._names = forest, forest.column_names
        self._is_category, self._hashed = hashed.is_category, hashed
        self._width = hashed.n_features
        self._places = np.arange(hashed.n_columns, dtype=np.int32)
        self._last: Any = None
        #: By id of pandas' dtype, which is kept alive: hashes of its categories.
        self._tables = frames.Kept()

    @cached_property
    def _encoder(self) -> Encoder:
        return encoder_of(self._hashed)

    def spelled_booleans(self) -> dict[int, bool]:
        texts = np.array([["True", "False"]], object)
        bits, places = np.zeros((1, 2), np.float32), np.arange(2, dtype=np.int32)
        read_objects(texts, np.ones(2, np.bool_), places, bits)
        keys = bits.view(np.int32).astype(np.uint64) * np.uint64(MULTIPLIER**2 % 2**64)
        columns = dict.fromkeys(np.flatnonzero(self._is_category).tolist(), False)
        hashed, first = self._hashed, self._hashed.part_offset[:-1]
        alone = (np.diff(hashed.part_offset) == 1) & (hashed.part_kind[first] == HASH)
        for i in np.flatnonzero(alone).tolist():
            known = hashed.key[slice(*hashed.key_offset[i : i + 2])]
            is_known = bool(np.isin(keys, known).any())
            columns[int(hashed.part_column[first[i]])] |= is_known
        return columns

    def read(self, X: Any) -> tuple[Array, str] | None:
        """Return rows of float32 and the warning ""; None leaves ``X`` to the model."""
        if (rows := self.hashes(X, self._width)) is None:
            return None
        self._encoder.encode(rows)
        return rows, self.unnamed

    def hashes(self, X: Any, width: int = 0) -> Array | None:
        """Return rows with hashes of categories, and room for ``width`` columns."""
        width = width or len(self._places)
        kind = type(X)
        if kind is list:
            X = objects_of(X)
        elif kind is not np.ndarray and kind is not np.memmap:
            known = frames.kind_of(X) in ("pandas", "polars", "pyarrow", "batch")
            if not known or not self._fits(X):
                return None
            return self._of_columns(frames.columns_of(X), len(X), width)
        if X is None or X.ndim != 2 or X.shape[1] != len(self._places) or not len(X):
            return None
        X = X.astype(object) if X.dtype.kind in "US" else X
        if frames.is_plain(X.dtype):
            return self._of_columns([(slice(None), X.T)], len(X), width)
        if X.dtype != np.object_:
            return None
        rows = np.empty((len(X), width), np.float32)
        read = _write_objects(X, self._is_category, self._places, rows)
        return rows if read else None

    def entry(self, entry: Any, of_hashes: Any = None, least: int = sys.maxsize) -> Any:
        hashes = self._is_category, of_hashes, least
        return entry_of_objects(entry, self._encoder, *hashes)

    def parts(self, X: Any) -> Sequence[Any]:
        return (self.rows(X),)

    def reader(self, X: Any, most: int) -> None:
        """Return nothing that reads rows faster: texts are hashed at each call."""

    def rows(self, X: Any) -> Array:
        if (places := places_in(self._forest, X)) is not None:
            X = with_dropped(self._forest, X, places)
        if (read := self.read(X)) is not None:
            return read[0]
        width, named = len(self._places), frames.is_pandas(X) or frames.is_table(X)
        names = frames.column_names(X) if named else None
        if names is None:
            why = mistakes.kind_mistake(X, width)
        else:
            mistakes.check_shape((len(X), len(names)), width)
            why = mistakes.name_mistake(names, self._names or names)
        if why:
            raise InvalidInputError(why)
        objects = np.zeros((0, width))
        with suppress(Exception):  # of libraries that cannot convert it
            frame = X.to_pandas() if frames.is_table(X) else X
            objects = np.asarray(frame, object)
        mistakes.check_shape(objects.shape, width)
        for (row, index), value in np.ndenumerate(objects):
            column = repr(index if names is None else names[index])
            if not self._is_category[index]:
                if number(value) is None:
                    raise InvalidInputError(mistakes.no_number(value, row, column))
            elif category(value) is None:
                raise InvalidInputError(
                    f"row {row} has {value!r} in column {column}, {NO_CATEGORY}"
                )
        raise InvalidInputError(
            f"the rows ({type(X).__name__}) are not read; pass an array of objects or "
            "a DataFrame whose columns are of the kinds of training."
        )

    def _fits(self, X: Any) -> bool:
        labels = frames.labels_of(X)
        if labels is not self._last and not frames.same_labels(labels, self._last):
            names = frames.column_names(X)
            if not len({*names}) == len(names) == len(self._places):
                return False
            if self._names is not None and names != [*self._names]:
                return False
            self._last = labels
        return len(X) > 0

    def _of_columns(
        self, columns: Iterable[tuple[Any, Any]], n_rows: int, width: int
    ) -> Array | None:
        rows = np.empty((n_rows, width), np.float32)
        listed: dict[int, Any] = {}  # columns of objects, which are read together
        for places, values in columns:
            if type(places) is not int:
                if not self._write_plain(values, self._places[places], rows, listed):
                    return None
            elif type(values) is np.ndarray and values.dtype == np.object_:
                listed[places] = values
            elif not self._is_category[places]:
                if not _write_numbers(values, rows, places):
                    return None
            elif (found := frames.codes_in(own := _of_arrow(values))) is not None:
                hashes, codes = self._hashes(values, found[0]), found[1]
                # CatBoost refuses missing ones
                if hashes is None or (len(codes) and codes.min() < 0):
                    return None
                rows[:, places] = hashes[codes]
            elif (texts := _texts_in(own)) is not None:
                if texts.null_count or not _write_texts(texts, rows, places):
                    return None  # missing ones, too
            else:
                listed[places] = frames.objects_in(own)
        if listed:
            objects = np.empty((len(listed), n_rows), object)
            for i, column in enumerate(listed.values()):
                objects[i] = column
            places = np.array([*listed], np.int32)
            flags = self._is_category[places]
            if not _write_objects(objects.T, flags, places, rows):
                return None
        return rows

    def _hashes(self, column: Any, listed: Any) -> Array | None:
        dtype = getattr(column, "dtype", None)
        known = self._tables.get(id(dtype))
        if known is not None and known[0] is dtype:
            return known[1]
        objects = np.empty((len(listed), 1), object)
        objects[:, 0] = listed
        hashes = np.empty((len(objects), 1), np.float32)
        flags, places = np.ones(1, np.bool_), np.zeros(1, np.int32)
        if not _write_objects(objects, flags, places, hashes):
            return None
        if hasattr(column, "codes"):  # pandas' columns share their lists
            self._tables[id(dtype)] = dtype, hashes[:, 0]
        return hashes[:, 0]

    def _write_plain(
        self, values: Array, places: Array, rows: Array, listed: dict[int, Any]
    ) -> bool:
        flags = self._is_category[places]
        if flags.any():
            if values.dtype.kind == "f":
                return False
            whole = values[flags].astype(object)
            listed.update(zip(places[flags].tolist(), whole, strict=True))
            values, places = values[~flags], places[~flags]
        if frames.may_round(values):  # CatBoost takes large ones as float64 first
            return False
        with np.errstate(all="ignore"):
            rows[:, places] = values.T
        return True


def objects_of(X: list[Any]) -> Array | None:
    if not X or {*map(type, X)} != {list} or len({*map(len, X)}) > 1:
        return None
    objects = np.empty((len(X), len(X[0])), object)
    try:
        objects[:] = X
    except ValueError:  # sequences in it
        return None
    return objects


def _write_objects(objects: Array, flags: Array, places: Array, rows: Array) -> bool:
    if read_objects(objects, flags, places, rows):
        return True
    known = objects.copy()  # some of which compiled code does not know
    for column, is_category in zip(known.T, flags.tolist(), strict=True):
        for i, value in enumerate(column.tolist()):
            plain = category(value) if is_category else number(value)
            if plain is None:
                return False
            column[i] = plain
    return read_objects(known, flags, places, rows)


def _of_arrow(column: Any) -> Any:
    if hasattr(column, "to_arrow"):  # of polars, which takes 10 us to deny the other
        return column
    return getattr(column, "_pa_array", column)  # pandas' columns of pyarrow have it


def _texts_in(column: Any) -> Any:
    """Return a column of texts as Arrow has them; None if it is no such column."""
    if str(getattr(column, "dtype", "")) == "String":  # of polars
        if len(column) < _MANY or find_spec("pyarrow") is None:
            return None
        column = column.to_arrow()
    return column if str(getattr(column, "type", "")) in _ARROW_TEXTS else None


def _write_texts(texts: Any, rows: Array, place: int) -> bool:
    first = 0
    for part in getattr(texts, "chunks", [texts]):
        if not (n := len(part)):
            continue
        _, offsets, data = part.buffers()
        starts = np.frombuffer(offsets, _ARROW_TEXTS[str(part.type)])
        starts = starts[part.offset : part.offset + n + 1].astype(np.int64)
        address = 0 if data is None else data.address
        if not write_texts(address, starts, rows[first : first + n], place):
            return False
        first += n
    return True


def _write_numbers(column: Any, rows: Array, index: int) -> bool:
    if (found := frames.numbers_in(column)) is None or frames.may_round(found[0]):
        return False
    with np.errstate(all="ignore"):
        frames.write_numbers(rows, index, found)
    return True
