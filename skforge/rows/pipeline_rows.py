"""The rows of a folded pipeline: numbers for the forest, by place or by name.

All that is known of the rows is plain data, so that an artifact needs no scikit-learn
to read them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Array, Bools
from skforge.forest.forest import Forest
from skforge.frontends.pipeline.bounds import Bounds
from skforge.frontends.pipeline.codes import NumberCodes, TextCodes
from skforge.frontends.pipeline.columns import frame_of
from skforge.rows import column_readers, forms
from skforge.rows.frames import FrameColumns, is_date, is_plain, kind_of, labels_of
from skforge.rows.known_forms import ReadForm
from skforge.rows.objects import OBJECTS, only_number
from skforge.rows.plain import (
    PlainRows,
    ReadArray,
    Reading,
    array_of,
)
from skforge.runtime.mappings import MappingColumns
from skforge.runtime.records import plain_out

#: Columns up to which a frame's only row is read value by value.
_FEW_COLUMNS = 64
#: Tables whose only row is read by its values.
_TABLES = "pandas", "polars", "pyarrow"


@dataclass(frozen=True, eq=False)
class PipelineRows:
    width: int  # columns of the rows
    bounds: Bounds  # the numbers that the pipeline takes
    texts: Mapping[int, TextCodes]  # the codes of columns
    numbers: Mapping[int, NumberCodes]
    names: tuple[str, ...] | None  # of the columns, if the first step knows them
    #: The columns that a ColumnTransformer takes by name, from frames of any order.
    by_name: list[int] | None
    by_position: bool  # whether lists and frames without known names are read
    estimator: str  # the class name in warnings about names
    warning: str | None  # about arrays, "" for none; None if arrays are not read
    #: Larger integers may be rounded in other places than in float64 rows.
    largest: int
    #: The forms of rows that are read, as text, with their columns that may have
    #: pandas' NA; "" are float64, whole numbers and texts.
    forms: dict[str, list[int]]
    #: Columns that may hold numbers or texts, as the steps read only what is missing.
    either: tuple[int, ...] = ()
    #: Whether some step gets each column in its own dtype.
    by_column: bool = False
    #: Whether Decimals are read: to encoders, one of 0.1 does not equal 0.1.
    decimals: bool = False
    #: Whether booleans among objects are read: to pandas' look-ups, True is not 1.
    booleans: bool = True

    @cached_property
    def reading(self) -> Reading:
        dtype, said_by = self.bounds.low.dtype, self.estimator
        return Reading(dtype, self.names, tables=False, estimator=said_by, arrow=False)

    @cached_property
    def _plain(self) -> PlainRows:
        return PlainRows(self.reading, self.width, FrameColumns(()))

    @cached_property
    def _wanted(self) -> tuple[Any, ...]:
        columns = [*range(self.width)] if self.by_name is None else self.by_name
        names = None if self.names is None else [self.names[i] for i in columns]
        how = self._kinds, self.width <= _FEW_COLUMNS, self._is_by_dtype
        return names, columns, self.width, self.by_name is None, self.texts, *how

    @cached_property
    def _kinds(self) -> frozenset[type]:
        kinds = OBJECTS if self.decimals else OBJECTS - {Decimal}
        return kinds if self.booleans else kinds - {bool, np.bool_}

    @cached_property
    def _frames(self) -> column_readers.FrameReader:
        return column_readers.FrameReader(*self._wanted)

    @cached_property
    def _tables(self) -> column_readers.TableReader:
        return column_readers.TableReader(*self._wanted)

    def columns(self, columns: MappingColumns) -> MappingColumns:
        rules = [
            replace(rule, categories=None, **self.texts[column].rule())
            if column in self.texts
            else replace(rule, table={}, missing=np.nan, unknown=0.0)
            if column in self.either
            else rule
            for column, rule in enumerate(columns.rules)
        ]
        if self.by_name is not None:
            rules = [rules[column] for column in self.by_name]
        ignores, by_frame = self.by_name is not None, bool(self.numbers)
        return replace(columns, rules=tuple(rules), ignores=ignores, by_frame=by_frame)

    def read(self, X: Any) -> ReadArray | None:
        kind = type(X)
        if kind is np.ndarray or kind is np.memmap:
            read = self._array(X)
        elif (kind is list or kind is tuple) and self.by_position:
            read = self._array(array_of(X))
        elif kind_of(X) == "pandas":
            read = self._columns(self._frames, X, X.columns)
        else:
            read = None
        others = len(self.forms) > ("" in self.forms)
        if read is None and others and column_readers.table_kind(X):
            read = self._columns(self._tables, X, labels_of(X))
        if read is None or not self._holds(read[0]):
            return None
        return self._coded(*read)

    @cached_property
    def _is_by_dtype(self) -> bool:
        return self.by_column or bool(self.bounds.whole)

    def _holds(self, rows: Array) -> bool:
        if self.width > _FEW_COLUMNS or len(rows) != 1:
            return self.bounds.holds(rows)
        for x, (low, high, nan) in zip(rows[0].tolist(), self._limits, strict=True):
            if not (low <= x <= high or (nan and x != x)):
                return False
        return True

    @cached_property
    def _limits(self) -> list[tuple[float, float, bool]]:
        ends = self.bounds.low.tolist(), self.bounds.high.tolist()
        return [*zip(*ends, self.bounds.nan.tolist(), strict=True)]

    def _coded(self, rows: Array, said: str) -> ReadArray | None:
        if not self.numbers:
            return rows, said
        if any(codes.coded for codes in self.numbers.values()):
            rows = rows.copy()
        for column, codes in self.numbers.items():
            coded = codes.codes(rows[:, column])
            if coded is None:
                return None
            if codes.coded:
                rows[:, column] = coded
        return rows, said

    def form_of(self, X: Any) -> Any:
        kind = type(X)
        is_array = (kind is np.ndarray or kind is np.memmap) and X.ndim == 2
        if is_array and is_plain(X.dtype) and X.dtype.kind in "fb":
            return None if self.warning is None else X.dtype
        reader = self._frames if kind_of(X) == "pandas" else self._tables
        layout = reader.layout(X)
        return None if layout is None else layout[0]

    def parts_of(self, form: Any) -> tuple[Any, ...]:
        return forms.parts_of(form, bools=not self._is_by_dtype)

    def gaps_of(self, form: Any) -> Collection[int] | None:
        """Return the columns that may have NA or None; None if a part is not read."""
        gaps = self.forms.get(forms.form_text(form))
        if gaps is None and (parts := self.parts_of(form)) != (form,):
            every = map(self.forms.get, map(forms.form_text, parts))
            known = [gaps for gaps in every if gaps is not None]
            if len(known) == len(parts):
                gaps = self.forms[forms.form_text(form)] = [
                    i
                    for i, dtype in enumerate(form.types)
                    if i in known[0 if dtype is forms.OBJECT else -1]
                ]
        return gaps

    def _warning_of(self, X: Any, names: Any) -> str | None:
        if self.names is not None:
            return ""
        return self._plain.warning_of(X, names) if self.by_position else None

    def _array(self, X: Any) -> ReadArray | None:
        if X is None or self.warning is None or not self._is_known(X.dtype):
            return None
        if X.dtype.kind in "iu" and not (
            self._is_exact(X) and self.bounds.takes(enumerate([X.dtype] * self.width))
        ):
            return None
        read = self._plain.read(X)
        return None if read is None else (read[0], self.warning)

    def _columns(self, reader: Any, X: Any, names: Any) -> ReadArray | None:
        said = self.warning or "" if names is None else self._warning_of(X, names)
        if said is None or self.bounds.low.dtype != np.float64:
            return None
        if len(X) == 1 and not self.bounds.whole:
            only: column_readers.OnlyRow | None = reader.only_row(X, names, self.forms)
            if only is not None:
                row = self._only_row(self.forms[forms.form_text(only[0])], *only[1:])
                return None if row is None else (row, said)
        form, parts = reader.layout(X) or (None, None)
        gaps = None if parts is None else self.gaps_of(form)
        if gaps is None:
            return None
        rows = self._several(reader, form, gaps, parts, len(X))
        return None if rows is None else (rows, said)

    def _several(
        self, reader: Any, form: Any, gaps: Collection[int], parts: Any, n_rows: int
    ) -> Array | None:
        read = reader.read_columns(parts, n_rows)
        if read is None or not {*gaps}.issuperset(read.gaps):
            return None
        if not all(self._is_exact(values) for _, values in read.whole):
            return None
        if self.bounds.whole and not self._takes(form, read):
            return None
        rows: Array = read.rows
        for column, values in read.others:
            if (codes := reader.codes(values, self.texts[column])) is None:
                return None
            rows[:, column] = codes
        return rows

    def _takes(self, form: Any, read: column_readers.ReadColumns) -> bool:
        if form is None or forms.has_objects(form):
            whole = ((i, x.dtype) for columns, x in read.whole for i in columns)
            return self.bounds.takes(pair for pair in whole if pair[1].kind in "iu")
        return self._takes_form(form, read.gaps)

    def refuses(self, form: Any) -> bool:
        """Tell whether no rows of a form are read that lack nothing."""
        if not isinstance(form, forms.Form) or form.kind not in _TABLES:
            return False
        if not self.bounds.whole or forms.has_objects(form):
            return False
        return not self._takes_form(form, ())

    def _takes_form(self, form: Any, gaps: Collection[int]) -> bool:
        if form.kind == "pandas":
            # functions compute with whole numbers of nullable columns as such
            dtypes = zip(forms.computed(form, self.width), form.numbers, strict=True)
            own = [n if n is not None and n.kind in "iu" else d for d, n in dtypes]
            return self.bounds.takes(enumerate(own), own=8)
        # wide ones are folded as float64, which nulls make of all
        numbers = enumerate(form.numbers)
        return self.bounds.takes((p for p in numbers if p[0] not in gaps), own=2)

    def reader(self, X: Any, most: int) -> ReadForm | None:
        """Return what reads further frames of this form, up to ``most`` values.

        It has been read. None if they need every check.
        """
        if type(X) in (list, tuple):
            wide = self.bounds.low.dtype == np.float64 and "" in self.forms
            known = wide and self.warning is not None and self.by_position
            return self._list if known else None
        kind = kind_of(X)
        if kind not in _TABLES:
            return None
        reader: Any = self._frames if kind == "pandas" else self._tables
        parts_of, layout = reader.reads(X), reader.layout(X)
        gaps = None if layout is None else self.gaps_of(layout[0])
        if parts_of is None or gaps is None:
            return None
        one, form = self._reads_only(reader, X), layout[0]

        def further(X: Any) -> Array | None:
            n_rows = len(X)
            if not 0 < n_rows * self.width <= most:
                return None
            if n_rows == 1 and one is not None:
                rows = one(X)
            else:
                rows = self._several(reader, form, gaps, parts_of(X), n_rows)
            return self._taken(rows)

        return further

    def _list(self, X: Any) -> Array | None:
        rows = array_of(X)
        if rows is None or rows.dtype != np.float64 or len(rows.shape) != 2:
            return None
        return self._taken(rows) if rows.shape[1] == self.width else None

    def _taken(self, rows: Array | None) -> Array | None:
        if rows is None or not self._holds(rows):
            return None
        if not self.numbers:
            return rows
        coded = self._coded(rows, "")
        return None if coded is None else coded[0]

    def _reads_only(self, reader: Any, X: Any) -> ReadForm | None:
        if self.bounds.whole or self.numbers:
            return None
        only = reader.only_row(X, labels_of(X), self.forms)
        values_of = None if only is None else reader.reads_only(X, self.forms)
        if only is None or values_of is None:
            return None
        gaps, places = self.forms[forms.form_text(only[0])], only[1]
        return lambda X: self._only_row(gaps, places, values_of(X))

    def _only_row(
        self, gaps: Collection[int], places: Sequence[int], values: Sequence[Any]
    ) -> Array | None:
        row, most, coded = [0.0] * self.width, self.largest, self.texts
        for column, value in zip(places, values, strict=True):
            if (kind := type(value)) is not float or column in coded:
                if column in coded:
                    value = coded[column].code(value)
                elif value is None and column in gaps:
                    value = np.nan
                else:
                    value = only_number(value, self._kinds)
                if value is None or (
                    kind in column_readers.WHOLE and not -most <= value <= most
                ):
                    return None
            row[column] = value
        return np.array([row], np.float64)

    def _is_known(self, dtype: Any) -> bool:
        if not isinstance(dtype, np.dtype) or not dtype.isnative:
            return False
        wide = self.bounds.low.dtype == np.float64 and "" in self.forms
        return forms.form_text(dtype) in self.forms or (
            wide and (dtype == np.float64 or dtype.kind in "iu")
        )

    def _is_exact(self, values: Array) -> bool:
        most = self.largest
        if values.dtype.itemsize < 4:
            return True
        return not bool(((values > most) | (values < -most)).any())

    def shares(self, other: PipelineRows) -> bool:
        mine, others = (plain_out([x.texts, x.numbers]) for x in (self, other))
        return bool(mine == others)

    def decoded(self, rows: Array, form: Any = None, gaps: Collection[int] = ()) -> Any:
        """Return rows as the pipeline takes them, for rows as the forest does.

        ``form`` is what :meth:`form_of` says of them, None for float64; ``gaps`` are
        columns with missing values.
        """
        plain = self.fitted(rows, form, gaps)
        if isinstance(form, np.dtype):
            return plain.astype(form)
        known = {i: texts.values(rows[:, i]) for i, texts in self.texts.items()}
        if self.warning is not None and form is None:
            return plain
        frame = self._framed(plain, known)
        if form is None:
            return frame
        return forms.as_form(frame, form, gaps, self.decimals)

    def fitted(self, rows: Array, form: Any, gaps: Collection[int]) -> Array:
        """Return the numbers that :meth:`decoded` gives a form, as floats."""
        plain = rows.copy()
        for column, numbers in self.numbers.items():
            plain[:, column] = numbers.values(rows[:, column])
        return plain if form is None else forms.fitting(plain, form, gaps)

    def may_read(self, fitted: Array, form: Any) -> Bools:
        """Tell which rows may be read; numbers of the others are out of bounds."""
        bounds = self.bounds
        outside = (fitted < bounds.low) | (fitted > bounds.high)
        outside |= np.isnan(fitted) & ~bounds.nan
        if isinstance(form, np.dtype):
            form = forms.Form("", (form,) * self.width)
        pairs = zip(form.types, form.numbers, strict=True)
        for column, (dtype, number) in enumerate(pairs):
            if number is None or is_date(dtype) or column in self.texts:
                outside[:, column] = False
            elif number.kind in "iu" and number.itemsize >= 4:
                outside[:, column] |= np.abs(fitted[:, column]) > self.largest
        return np.asarray(~outside.any(axis=1))

    def sample(self, dtype: Any) -> Any:
        rows = self.bounds.repaired(np.zeros((1, self.width)))
        texts = {i: codes.values(rows[:, 0]) for i, codes in self.texts.items()}
        # texts were trained on as objects
        if self.names is None and not (texts and dtype in (np.float64, np.object_)):
            return rows.astype(dtype)
        frame = self._framed(rows, texts)
        if self.names is None:
            return frame.to_numpy(object)
        numbers = [name for i, name in enumerate(frame) if i not in texts]
        return frame.astype(dict.fromkeys(numbers, dtype))

    def _framed(self, rows: Array, texts: Mapping[int, Array]) -> Any:
        columns = [texts.get(i, rows[:, i]) for i in range(self.width)]
        names = range(self.width) if self.names is None else self.names
        return frame_of(columns).set_axis(names, axis=1)

    def repaired(self, rows: Array) -> Array:
        rows = self.bounds.repaired(rows)
        coded: Mapping[int, Any] = {**self.texts, **self.numbers}
        for column, codes in coded.items():
            rows[:, column] = codes.codes(codes.values(rows[:, column]))
        return rows

    def suits(self, forest: Forest) -> bool:
        bounds, places = self.bounds, {*self.texts, *self.numbers, *self.either}
        places.update(self.by_name or (), *self.forms.values())
        places.update(*(columns for columns, *_ in bounds.whole))
        columns = bounds.low, bounds.high, bounds.nan, self.names or bounds.low
        dtypes = [part.dtype for part in columns[:3]]
        return (
            dtypes == [forest.input_dtype, forest.input_dtype, np.bool_]
            and {forest.n_features} == {self.width, *map(len, columns)}
            and places <= {*range(self.width)}
            and all(map(NumberCodes.is_sound, self.numbers.values()))
        )
