"""Columns of a pipeline's rows: one reader for pandas frames, one for other tables.

A reader finds the columns that a pipeline takes, and copies numbers; the rules for
numbers and texts are those of ``PipelineRows``. The tables are polars frames, pyarrow
tables, and arrays and lists of Python objects, all read as pandas' frame of the same
values is; whether a pipeline takes them so is found out by ``PipelineSource.of_form``.

pandas' own selection and conversion of a one-row frame takes more than 100 µs. A frame
keeps its values in blocks, one per dtype, each with the places of its columns. Where
the wanted columns lie is found once for each column index and each block's places;
a later frame of the same layout costs a comparison of its names and a copy per block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from skforge._typing import Array
from skforge.frontends.pipeline.codes import TEXT_DTYPES, TextCodes, is_text
from skforge.rows import frames
from skforge.rows.forms import OBJECT, Form, form_text, is_wide
from skforge.rows.objects import OBJECTS, numbers_among

#: Types of texts of polars and pyarrow.
_TEXTS = {"string", "large_string", "string_view", "categorical", "enum", "dictionary"}
#: Dtypes of whole numbers that make float64 beside any other.
_LARGE = frozenset(map(np.dtype, ("i4", "i8", "u4", "u8")))
_DATES = type(np.dtype("M8[ns]"))
_INTEGERS = frozenset(np.dtype(code).type for code in "bhilqBHILQ")
#: Types of objects that are whole numbers, which float64 may round.
WHOLE = frozenset((int, *_INTEGERS))

#: What :meth:`only_row` returns: the form, and the places and values of columns.
OnlyRow: TypeAlias = "tuple[Form | None, Sequence[int], Sequence[Any]]"


class ReadColumns(NamedTuple):
    rows: Array  # of float64 numbers; 0 in all other columns
    #: Integers among them, as the frame has them, or as float64 if they are objects,
    #: and their places in the rows: float64 may round larger ones.
    whole: list[tuple[Sequence[int], Array]]
    others: list[tuple[int, Any]]  # columns of texts: their place, and their values
    #: Places of columns with missing values other than NaN, which are NaN here.
    gaps: list[int]

    def write_objects(
        self, column: int, objects: Sequence[Any], kinds: Collection[type]
    ) -> bool:
        """Write numbers of some ``kinds``; return False if an object is none."""
        types = {*map(type, objects)}
        if not types.issubset(kinds):
            return False
        if Decimal in types and not types.isdisjoint(_INTEGERS):
            return False  # to compare them raises an error
        if (numbers := numbers_among(objects, types)) is None:
            return False
        self.rows[:, column] = numbers
        if type(None) in types:
            self.gaps.append(column)
        if not types.isdisjoint(WHOLE):
            whole = [value for value in objects if type(value) in WHOLE]
            self.whole.append(([column], np.array(whole, np.float64)))
        return True

    def write_numbers(self, column: int, numbers: Array, missing: Array | None) -> None:
        self.rows[:, column] = numbers
        if missing is not None and missing.any():
            self.rows[missing, column] = np.nan
            self.gaps.append(column)
            numbers = numbers[~missing]
        if numbers.dtype.kind in "iu":
            self.whole.append(([column], numbers))


class _ColumnReader:
    """Finds the wanted columns of a frame: those with ``names``, or all by position.

    ``layout`` returns the form of rows, and the parts for ``read_columns``. The form is
    None if all columns are float64, whole numbers or texts.
    """

    def __init__(
        self,
        names: Sequence[str] | None,
        places: Sequence[int],  # of the wanted columns in the rows that are returned
        width: int,  # columns of these rows
        ordered: bool = False,  # frames have these columns alone, in this order
        texts: Collection[int] = (),  # the places of columns of texts
        kinds: Collection[type] = OBJECTS,  # the types of objects that are numbers
        #: Whether a frame's only row is read value by value: arrays of one number take
        #: 3 us each.
        by_value: bool = True,
        exact: bool = False,  # whether steps take whole numbers otherwise than float64
    ) -> None:
        self._texts, self._kinds = texts, kinds
        self._names = None if names is None else list(names)
        self._places, self._width, self._ordered = list(places), width, ordered
        self._by_value, self._exact = by_value, exact
        self._layouts = frames.Kept()  # by what subclasses know of frames

    def _places_of(self, names: Sequence[Any] | None, count: int) -> list[int] | None:
        """Return the place of each column in the rows, -1 for none.

        None if a column is missing or there twice, or if a name is not text:
        scikit-learn warns or raises.
        """
        if self._names is None or names is None:
            return [*range(count)] if count == self._width else None
        if self._ordered and names != self._names:
            return None
        where = {name: i for i, name in enumerate(names)}
        if len(where) < count or {*map(type, names)} != {str}:
            return None
        if self._ordered:
            return self._places
        indices = [where.get(name, -1) for name in self._names]
        if -1 in indices:
            return None
        places = [-1] * count
        for i, column in zip(indices, self._places, strict=True):
            places[i] = column
        return places

    def read_columns(
        self, parts: Iterable[tuple[Any, _Plan | None]], n_rows: int
    ) -> ReadColumns | None:
        """Read blocks as planned, and columns with their places; None for others."""
        read = ReadColumns(np.zeros((n_rows, self._width)), [], [], [])
        for values, plan in parts:
            if plan is None:
                pairs = values
            elif plan.number is None:
                columns = values[plan.taken] if values.ndim > 1 else [values]
                read.others.extend(zip(plan.places, columns, strict=True))
                continue
            elif plan.dtype is OBJECT:
                pairs = zip(plan.places, values[plan.taken].tolist(), strict=True)
            elif type(values) is np.ndarray:
                part = values[plan.taken]
                read.rows[:, plan.to] = part.T
                if part.dtype.kind in "iu":
                    read.whole.append((plan.places, part))
                continue
            else:
                pairs = [(plan.places[0], values)]
            for place, column in pairs:
                if place in self._texts:
                    read.others.append((place, column))
                elif type(column) is list or type(column) is tuple:
                    if not read.write_objects(place, column, self._kinds):
                        return None
                elif (numbers := frames.numbers_in(column)) is None:
                    return None
                else:
                    read.write_numbers(place, *numbers)
        return read

    @staticmethod
    def codes(column: Any, texts: TextCodes) -> Array | float | None:
        """Return the codes of a column of texts; None if the pipeline must answer."""
        arrow = not hasattr(column, "to_arrow") and hasattr(column, "to_pylist")
        if arrow and column.null_count and hasattr(column.type, "index_type"):
            return None  # pyarrow's array of it has the last text in their places
        return texts.of_column(column)


# ------------------------------------------------------------ pandas


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Which columns of a block are wanted, where they go, and their dtype.

    ``places`` are their columns in the rows; ``taken`` and ``to`` index the block and
    the rows. ``number`` is the NumPy dtype of numbers, also if these are objects; None
    for texts. ``plain`` tells whether every step takes them as float64.
    """

    places: list[int]
    taken: Any
    to: Any
    dtype: Any
    number: Any
    plain: bool


#: The values of a frame's blocks, and how they are read.
ReadParts: TypeAlias = "list[tuple[Any, _Plan]]"


class FrameReader(_ColumnReader):
    #: The last column index, the place of each of its columns in the rows (-1 for
    #: none) and the plans of its blocks. None: such frames are not read.
    _last: tuple[Any, Array | None, dict[Any, Any]] = None, None, frames.Kept()

    def layout(self, X: Any) -> tuple[Form | None, ReadParts] | None:
        """Return the form of a frame, and how each block's values are read.

        None if columns, dtypes or pandas' internals are not as wanted, or without rows.
        """
        try:
            columns, blocks = X.columns, X._mgr.blocks
        except AttributeError:  # another pandas' internals
            return None
        last, to, plans = self._last
        if columns is not last:
            if not frames.same_labels(columns, last):
                places = self._places_of(columns.tolist(), len(columns))
                plans = frames.Kept()
                to = None if places is None else np.array(places, np.intp)
            self._last = columns, to, plans
        if to is None or not len(X):
            return None
        parts: ReadParts = []
        plain = True
        for block in blocks:
            locations, values = block.mgr_locs.as_array, block.values
            kind = type(dtype := values.dtype)  # the hash of texts' dtypes takes 3 us
            key = (locations.tobytes(), kind if kind.__name__ in TEXT_DTYPES else dtype)
            if (planned := plans.get(key)) is None:
                planned = plans[key] = _plans(to[locations], dtype, self._texts)
            if planned is False:
                return None
            if kind is _DATES and planned:
                values = frames.numbers_of_dates(values, planned[0].taken)
                if values is None:
                    return None
            for plan in planned:
                plain = plain and plan.plain
                parts.append((values, plan))
        return (None if plain else self._form_of(parts)), parts

    def _form_of(self, parts: ReadParts) -> Form:
        """Return the dtypes of columns, found once for each layout.

        Beside any narrow dtype, whole numbers of 32 bits and more are float64.
        """
        plans = tuple([plan for _, plan in parts])
        form: Form | None = self._layouts.get(plans)
        if form is None:
            dtypes: list[Any] = [None] * self._width
            for plan in plans:
                wide = plan.dtype in _LARGE and not self._exact
                for column in plan.places if plan.number is not None else ():
                    dtypes[column] = np.dtype(np.float64) if wide else plan.dtype
            form = self._layouts[plans] = Form("pandas", tuple(dtypes))
        return form

    def only_row(self, X: Any, names: Any, forms: Collection[str]) -> OnlyRow | None:
        layout = self.layout(X) if self._by_value else None
        if layout is None or form_text(layout[0]) not in forms:
            return None
        form, parts = layout
        places = [place for _, plan in parts for place in plan.places]
        return form, places, _only_values(parts)

    def reads(self, X: Any) -> Callable[[Any], ReadParts] | None:
        """Return what finds the parts of further rows of this form, which was read."""
        parts = (self.layout(X) or (None, ()))[1]
        where = {id(block.values): k for k, block in enumerate(X._mgr.blocks)}
        if not where.keys() >= {id(values) for values, _ in parts}:  # dates
            return None
        plans = [(where[id(values)], plan) for values, plan in parts]

        def parts_of(X: Any) -> ReadParts:
            blocks = X._mgr.blocks
            return [(blocks[k].values, plan) for k, plan in plans]

        return parts_of

    def reads_only(
        self, X: Any, forms: Collection[str]
    ) -> Callable[[Any], Sequence[Any]] | None:
        """Return what reads the values of further rows of the form of this only one.

        They are in the order of :meth:`only_row`, which has read it.
        """
        parts_of = self.reads(X)
        return None if parts_of is None else lambda X: _only_values(parts_of(X))


def _only_values(parts: Iterable[tuple[Any, _Plan]]) -> list[Any]:
    only: list[Any] = []
    for values, plan in parts:
        if type(values) is np.ndarray:
            only += values[plan.taken, 0].tolist()
        else:
            only.append(_only_value(values, plan.number))
    return only


def _only_value(values: Any, number: Any) -> Any:
    if (arrow := getattr(values, "_pa_array", None)) is not None:
        value = arrow[0].as_py()  # a third of the time
        if value is None and number is None:
            return values.dtype.na_value
    elif number is None:
        if hasattr(values, "categories") and values.codes[0] < 0:
            # a missing one is what texts of theirs have, as in several rows
            return getattr(values.categories.dtype, "na_value", np.nan)
        return values[0]
    else:
        value = None if values._mask[0] else values._data[0].item()
    return None if number is not None and value != value else value


def _plans(to: Array, dtype: Any, texts: Collection[int]) -> Any:
    """Return which columns of a block are wanted, and where they go.

    Objects are texts in columns of texts, and numbers in all others. False if there are
    numbers in columns of texts, or other things in columns of numbers.
    """
    coded, number, plans = np.isin(to, [*texts]), frames.number_of(dtype), []
    of_texts, objects = number is None and is_text(dtype), dtype == np.object_
    for group in [coded, (to >= 0) & ~coded] if objects else [to >= 0]:
        if not group.any():
            continue
        places, taken = to[group].tolist(), frames.as_slice(np.flatnonzero(group))
        if objects:
            dtype = None if places[0] in texts else OBJECT
            number = None if dtype is None else np.dtype(np.float64)
        for column in places:
            if not (of_texts if column in texts else number is not None):
                return False
        # float32, float16 and booleans are kept by some steps, or refused
        plain = number is None or is_wide(dtype)
        columns = frames.as_slice(to[group])
        plans.append(_Plan(places, taken, columns, dtype, number, plain))
    return plans


# ------------------------------------------------------------ other tables

#: Columns of a table, after their places in the rows.
PlacedColumns: TypeAlias = "list[tuple[list[tuple[int, Any]], None]]"


class TableReader(_ColumnReader):
    """Reads numbers and texts of polars frames, pyarrow tables, and Python objects.

    Layouts are kept by names and types of columns: the form, the places of wanted
    columns, and which columns these are, if not all.
    """

    def layout(self, X: Any) -> tuple[Form, PlacedColumns] | None:
        """Return the form of a table or of objects, and its columns with their places.

        None if they are not as wanted: ragged rows, other types, no rows.
        """
        kind = table_kind(X)
        if not kind or not len(X):
            return None
        columns: Sequence[Any]
        if kind in ("polars", "pyarrow"):
            columns, types = frames.table_columns(X), frames.types_of(X)
        else:
            if kind == "list" and len({*map(len, X)}) > 1:
                return None
            columns = [*zip(*X, strict=True)] if kind == "list" else X.T.tolist()
            places = range(len(columns))
            types = [None if column in self._texts else OBJECT for column in places]
        to = self._places_of(frames.labels_of(X), len(columns))
        if to is None:
            return None
        of_place = dict(zip(to, types, strict=True))
        form = Form(kind, tuple(map(of_place.get, range(self._width))))
        if kind in ("polars", "pyarrow") and not all(
            dtype is None or _is_known(dtype) for dtype in form.types
        ):
            return None
        wanted = [pair for pair in zip(to, columns, strict=True) if pair[0] >= 0]
        return form, [(wanted, None)]

    def only_row(self, X: Any, names: Any, forms: Collection[str]) -> OnlyRow | None:
        if names is None:
            return None
        polars = frames.kind_of(X) == "polars"
        kinds = map(type, X.dtypes) if polars else [t.id for t in X.schema.types]
        key = (*names, *kinds)
        layout = self._layouts.get(key)
        if layout is None:
            if (layout := self._row_layout(X, names, forms)) is None:
                return None
            self._layouts[key] = layout
        form, places, wanted = layout
        return form, places, _values_of_table(polars, wanted, X)

    def reads(self, X: Any) -> Callable[[Any], PlacedColumns] | None:
        labels = frames.labels_of(X)
        if (to := self._places_of(labels, len(labels))) is None:
            return None
        wanted = [(place, i) for i, place in enumerate(to) if place >= 0]

        def parts_of(X: Any) -> PlacedColumns:
            columns = frames.table_columns(X)
            return [([(place, columns[i]) for place, i in wanted], None)]

        return parts_of

    def reads_only(
        self, X: Any, forms: Collection[str]
    ) -> Callable[[Any], Sequence[Any]] | None:
        layout = self._row_layout(X, frames.labels_of(X), forms)
        polars = frames.kind_of(X) == "polars"
        return None if layout is None else partial(_values_of_table, polars, layout[2])

    def _row_layout(
        self, X: Any, names: Any, forms: Collection[str]
    ) -> tuple[Form, list[int], list[int] | None] | None:
        known, to = self.layout(X), self._places_of(names, len(names))
        if known is None or form_text(known[0]) not in forms or to is None:
            return None
        form, there = known[0], [i for i, column in enumerate(to) if column >= 0]
        places = [to[i] for i in there]
        # rows are told apart by the classes of types, but not by their arguments
        if any(mark in str(dtype) for dtype in form.types for mark in "<("):
            return None
        if any((form.numbers[i] is None) != (i in self._texts) for i in places):
            return None
        return form, places, None if len(there) == len(to) else there


def _values_of_table(polars: bool, wanted: list[int] | None, X: Any) -> Sequence[Any]:
    """Return the first values of wanted columns; None stands for all of them."""
    if wanted is None and polars:
        row: tuple[Any, ...] = X.row(0)
        return row
    columns = frames.table_columns(X)
    taken = columns if wanted is None else [columns[i] for i in wanted]
    only = [column[0] for column in taken]
    return only if polars else [value.as_py() for value in only]


@lru_cache(maxsize=256)
def _is_known(dtype: Any) -> bool:
    name = str(dtype).lower().partition("(")[0].partition("<")[0]
    if name == "float16":  # of polars, which scikit-learn need not know
        return False
    return frames.number_of(dtype) is not None or name in _TEXTS


def table_kind(X: Any) -> str:
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
    library = frames.kind_of(X)
    return library if library in ("polars", "pyarrow") else ""
