"""Why a model without its source does not take rows: what is wrong, where, the remedy.

The reader that declined rows is asked again: about converted rows, about one row after
the other, and about each value in a row like those of training. Which conversion helps
is found by trying: of the fewest columns, or of all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import islice, product
from typing import Any, NoReturn, TypeAlias

import numpy as np

from skforge._compat import no_warnings
from skforge.exceptions import InvalidInputError, shortened, with_article
from skforge.forest import mistakes
from skforge.rows import frames
from skforge.runtime.mapping_values import is_missing, is_real
from skforge.sources.stored_model.model import StoredModel

Helps = Callable[[Any], bool]

#: The method by which a column of each library is converted, and the types to try.
_CASTS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "pandas": ("astype", ("float64", "str", "object", "category")),
    "polars": ("cast", (float, str)),
    "pyarrow": ("cast", ("float64", "string")),
}
#: Calls that convert rows as a whole.
_WHOLE = "X.to_pandas()", "X.toarray()", "numpy.asarray(X, 'float64')"
#: Columns that are named, and combinations of types that are tried.
_NAMED, _TRIED = 3, 12


def decline(source: Any, X: Any, method: str) -> NoReturn:
    """Raise an error: InvalidInputError if the model would certainly not take rows."""
    stored: StoredModel = source.held
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if hasattr(X, "tocsr"):
        mistakes.check_shape(shape, source.forest.n_columns)
        why = (
            "alone, it takes sparse rows only as a csr_matrix of floats without "
            "duplicate entries (see sum_duplicates)"
        )
        if source.facts.has_forms:
            why = "alone, it takes no sparse rows"
    else:
        try:
            why = _Declined(source, X, method).why()
        except InvalidInputError:
            raise
        except Exception:  # noqa: BLE001 - of a library that cannot take rows apart
            why = ""
    what = f"{method} of these rows ({type(X).__name__}"
    once = source.form(X) is not None
    stored.refuse(f"{what}{f' of shape {shape}' if shape else ''})", why, once=once)


class _Declined:
    def __init__(self, source: Any, X: Any, method: str) -> None:
        self.source, self.X, self.method = source, X, method
        self.facts = source.facts
        self.width = source.forest.n_columns
        self.framed = frames.is_pandas(X) or frames.is_table(X)
        joins = getattr(source.reading(), "joins", False)
        self.labels = frames.texts_of(frames.labels_of(X), joins) if self.framed else []
        self.usual = _usual_row(source)
        named = frames.is_pandas(self.usual)
        self.names = list(map(str, self.usual.columns)) if named else []
        #: The columns that frames must have.
        self.needed = self.names
        with suppress(InvalidInputError):  # names that count for mappings alone
            self.needed = [rule.name for rule in source.columns().rules]

    def reads(self, rows: Any) -> bool:
        by_place = self.framed and isinstance(rows, np.ndarray)
        if by_place and self.source.forest.names_categories:
            return False  # in an array, the values of categories would be codes
        if by_place and self.names and self.labels != self.names:
            return False  # each column would be another
        with no_warnings(), suppress(Exception):  # of any library
            return self.source.tried(rows, self.method) is not None
        return False

    def why(self) -> str:
        """Return why only the model takes the rows; raise if it would not, either."""
        rows = self.X
        if self.framed:
            if wrong := self._mistake_of_names():
                # a step may rename columns, and LightGBM makes names up
                if self.facts.has_forms and not self.facts.selects:
                    return wrong
                raise InvalidInputError(wrong)
        elif (mistake := mistakes.kind_mistake(rows, self.width)) is not None:
            if type(rows).__module__.startswith("polars."):  # XGBoost collects
                return mistake
            raise InvalidInputError(mistake)
        else:
            rows = mistakes.as_array(rows)
            mistakes.check_shape(rows.shape, self.width)
        if said := conversion(self.X, self.reads):
            return said
        if frames.is_table(rows):
            library, rows = type(rows).__module__.partition(".")[0], None
            with suppress(Exception):  # pandas is not installed, or has no such type
                rows = self.X.to_pandas()
            said = "" if rows is None else conversion(rows, self.reads)
            if said:
                return f"X is of {library}. After X.to_pandas(), {said}"
        elif self.names and not self.framed:
            import pandas as pd

            rows = pd.DataFrame(rows, columns=self.usual.columns).infer_objects()
            if self.reads(rows):
                names = shortened(str(self.names))
                call = f"pandas.DataFrame(X, columns={names})"
                return f"X does not name its columns. Convert with {call}."
        return "" if rows is None else self._of_values(rows)

    def _mistake_of_names(self) -> str:
        labels = self.labels
        named = all(isinstance(label, str) for label in frames.labels_of(self.X))
        # scikit-learn takes frames by position if no name is a text
        if self.names and self.facts.compares and (named or not self.facts.has_forms):
            absent = [name for name in self.needed if name not in labels]
            if absent:
                from difflib import get_close_matches

                near = get_close_matches(absent[0], labels, 1)
                hint = f"; the column nearest to {absent[0]!r} is {[*near, ''][0]!r}"
                return (
                    f"the rows have no column {', '.join(map(repr, absent[:5]))}"
                    f"{', ...' * bool(absent[5:])}{hint if near else ''}. Give every "
                    "column of the model, with NaN where values are missing."
                )
            wrong = mistakes.name_mistake(labels, self.names)
            if wrong and not self.facts.selects:
                return wrong
        if not self.facts.selects:
            mistakes.check_shape((len(self.X), len(labels)), self.width)
        return ""

    def _of_values(self, rows: Any) -> str:
        framed, usual = frames.is_pandas(rows), self.usual
        take = rows.iloc if framed else rows
        row = first_refused(len(rows), lambda n: self.reads(take[:n]))
        if self.reads(take[row : row + 1]):
            return ""  # each row is read by itself
        if framed and self.names and self.facts.selects:
            rows, usual = rows.loc[:, self.needed], usual.loc[:, self.needed]

        def reads(n: int) -> bool:
            if not framed:
                trial = usual.astype(object if usual.dtype == object else rows.dtype)
                trial[0, :n] = rows[row, :n]
                return self.reads(trial)
            named, columns = frames.is_pandas(usual), range(rows.shape[1])
            others = [usual.iloc[:, i].array for i in columns] if named else usual.T
            given = [rows.iloc[[row], i].array for i in columns[:n]]
            parts = dict(enumerate([*given, *others[n:]]))
            return self.reads(type(rows)(parts).set_axis(rows.columns, axis=1))

        position = first_refused(rows.shape[1], reads)
        if frames.is_pandas(usual):
            wanted = usual.dtypes.iloc[position]
        else:  # objects may be texts in some columns
            wanted = np.asarray(usual[0].tolist()[position]).dtype
        if not framed:
            name, column = repr(position), rows[:, position]
        else:
            name, column = repr(rows.columns[position]), rows.iloc[:, position].array
        return self._of_value(column, row, name, wanted)

    def _of_value(self, values: Any, row: int, name: str, wanted: Any) -> str:
        dtype = values.dtype
        texts, column = frames.number_of(wanted) is None, f"{name} ({dtype})"
        if not texts and dtype != np.float64:  # not all of its values are to blame
            odd = (i for i, v in enumerate(values) if not mistakes.is_number(v))
            gaps = (i for i, v in enumerate(values) if is_missing(v))
            row = next(odd, next(gaps, row))
        value = values[row]
        number = is_real(value) or isinstance(value, (bool, np.bool_))
        if number and hasattr(value, "item"):
            value = value.item()
        shown = f"row {row} has {shortened(repr(value), 80)} in column {column}"
        if is_missing(value):
            had = "training rows had texts" if texts else "alone it takes none missing"
            return f"row {row} has no value in column {column}, where {had}"
        if frames.is_category(wanted):
            return self._instead_of_category(dtype, wanted, shown, column)
        if texts:
            return self._instead_of_text(value, shown)
        if number:
            return self._of_number(value, shown)
        if isinstance(value, complex) or (
            frames.is_table(self.X) and not isinstance(value, str)
        ):  # such as dates, which some steps take
            return f"{shown}, which is not a real number"
        if mistakes.is_number(value):
            return f"{shown}; alone, it does not read numbers from texts"
        if self.facts.has_forms:  # encoders of arrays take texts
            return f"{shown}; alone, it takes numbers there"
        raise InvalidInputError(mistakes.no_number(value, row, name))

    def _instead_of_category(
        self, dtype: Any, wanted: Any, shown: str, column: str
    ) -> str:
        if not frames.is_category(dtype):
            return f"{shown}, where training rows had categories"
        unknown = [c for c in dtype.categories if c not in {*wanted.categories}]
        if unknown:
            shown = f"column {column} has {shortened(repr(unknown[0]), 80)}"
        return f"{shown}, which is not among the categories of training"

    def _instead_of_text(self, value: Any, shown: str) -> str:
        if isinstance(value, str):
            return f"{shown}, a text that training rows did not have"
        if self.facts.has_forms:
            return f"{shown}; training rows had texts there"
        raise InvalidInputError(f"{shown}, but training rows had texts there.")

    def _of_number(self, value: Any, shown: str) -> str:
        if abs(value) < np.inf:
            alone = "alone, it does not take numbers of this size or type there"
            return f"{shown}; {alone}"
        if self.facts.has_forms:
            return f"{shown}; alone, it takes finite numbers there"
        raise InvalidInputError(f"{shown}, where the model takes finite numbers.")


def first_refused(n: int, reads: Callable[[int], bool]) -> int:
    """Return the place of the value without which the first ones are read."""
    first, end = 0, n
    while end - first > 1:
        middle = 1 if (first, end) == (0, n) else (first + end) // 2
        first, end = (middle, end) if reads(middle) else (first, middle)
    return first


def _usual_row(source: Any) -> Any:
    sample = source.sample(np.float64)
    if sample is not None:
        return sample
    forest, reading = source.forest, source.reading()
    names = forest.column_names if reading is None else reading.names
    row = np.zeros((1, forest.n_columns), forest.input_dtype)
    if (labelled := forest.is_category).any():
        row = row.astype(object)
        row[:, labelled] = ""
    with suppress(ImportError):
        import pandas as pd

        by_value = reading is not None and reading.arrays and reading.estimator
        if names is None and (by_value or not any(forest.category_names)):
            return row
        columns: dict[Any, Any] = dict(enumerate(row.T))
        for column, labels in enumerate(forest.category_names):
            if labels:
                columns[column] = pd.Categorical(labels[:1], categories=labels)
        frame = pd.DataFrame(columns).infer_objects()
        return frame if names is None else frame.set_axis(names, axis=1)
    return row


def conversion(X: Any, helps: Helps) -> str:
    """Return what is special about rows, and the call that helps; "" if none does."""
    return _of_columns(X, helps) or _of_all(X, helps)


def _of_columns(X: Any, helps: Helps) -> str:
    library = type(X).__module__.partition(".")[0]
    if library not in _CASTS or not hasattr(X, "columns"):
        return ""
    columns = _WrongColumns(X, library)
    chosen = columns.fewest(helps)
    return columns.text(chosen) if chosen else ""


#: A dtype, and the types that its columns can be cast to.
_Group: TypeAlias = tuple[str, tuple[Any, ...]]


class _WrongColumns:
    """The columns of a frame, and what each of them can be cast to."""

    def __init__(self, X: Any, library: str) -> None:
        self._X, self._library = X, library
        self._names, pandas = [*frames.labels_of(X)], library == "pandas"
        self._columns = [
            X.iloc[:, i] if pandas else X[name] for i, name in enumerate(self._names)
        ]
        #: By the place of a column and a type.
        self._casts: dict[tuple[int, Any], Any] = {}
        self._places: dict[_Group, list[int]] = {}
        for place, column in enumerate(self._columns):
            self._cast(place, column)

    def _cast(self, place: int, column: Any) -> None:
        kind = column.type if self._library == "pyarrow" else column.dtype
        dtype, (method, types) = str(kind), _CASTS[self._library]
        if dtype == "object":
            dtype = f"object of {type(column.iloc[0]).__name__}"
        if dtype.lower() in ("float64", "double") or dtype.startswith("complex"):
            return
        for to in types if frames.number_of(kind) is None else types[:1]:
            with suppress(Exception):  # texts, of any library
                self._casts[place, to] = getattr(column, method)(to)
        if fits := tuple(to for to in types if (place, to) in self._casts):
            self._places.setdefault((dtype, fits), []).append(place)

    def _converted(self, chosen: dict[_Group, Any]) -> Any:
        to = {i: chosen[group] for group in chosen for i in self._places[group]}
        columns = [
            self._casts.get((i, to.get(i)), c) for i, c in enumerate(self._columns)
        ]
        made, names = type(self._X), self._names
        if self._library == "pandas":
            return made(dict(enumerate(columns))).set_axis(names, axis=1)
        if self._library == "polars":
            return made(columns)
        return made.from_arrays(columns, names)

    def fewest(self, helps: Helps) -> dict[_Group, Any]:
        """Return types for as few groups of columns as help; none if none do."""
        if not self._places:
            return {}
        each = product(*(types for _, types in self._places))
        tried = (
            dict(zip(self._places, to, strict=True)) for to in islice(each, _TRIED)
        )
        chosen = next((to for to in tried if helps(self._converted(to))), {})
        for group in [*chosen]:
            fewer = {other: to for other, to in chosen.items() if other != group}
            if fewer and helps(self._converted(fewer)):
                chosen = fewer
        return chosen

    def text(self, chosen: dict[_Group, Any]) -> str:
        """Return what is special about columns, and the call that converts them."""
        names, (method, _) = self._names, _CASTS[self._library]
        changes = [
            (names[i], dtype, to.__name__ if isinstance(to, type) else repr(to))
            for (dtype, types), to in chosen.items()
            for i in self._places[dtype, types]
        ]
        some, rest = changes[:_NAMED], len(changes) - _NAMED
        texts = ", ".join(f"{name!r} is {dtype}" for name, dtype, _ in some)
        call = ", ".join(f"{name!r}: {to}" for name, _, to in some)
        call = f"X.{method}({{{call}{', ...' * (rest > 0)}}})"
        if self._library == "pyarrow":
            call = ", ".join(f"X[{name!r}].cast({to})" for name, _, to in some)
        more = f" and {rest} more" if rest > 0 else ""
        return f"column{'s'[: len(changes) > 1]} {texts}{more}. Convert with {call}."


def _floats(X: Any) -> Any:
    rows = np.asarray(X)
    return rows if rows.dtype.kind == "c" else np.asarray(rows, np.float64)


def _of_all(X: Any, helps: Helps) -> str:
    for call in _WHOLE:
        try:
            rows = getattr(X, call[2:-2])() if call.startswith("X.") else _floats(X)
        except (AttributeError, ImportError, TypeError, ValueError):
            continue
        if helps(rows):
            library, name = type(X).__module__.partition(".")[0], type(X).__name__
            kind = "an array" if isinstance(X, np.ndarray) else with_article(name)
            if hasattr(X, "dtype"):
                kind += f" of {X.dtype}"
            elif hasattr(X, "columns"):
                kind += f" of {library}"
            return f"X is {kind}. Convert with {call}."
    return ""
