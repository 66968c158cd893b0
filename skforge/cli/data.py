"""Rows of files, in the form that a model takes."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.cli import values
from skforge.cli.errors import either, warn
from skforge.cli.models import forest_of, live_model
from skforge.cli.report import RowArray
from skforge.cli.tables import Batch, columns_of, merged, open_table
from skforge.exceptions import InvalidInputError, plural, shortened
from skforge.frontends.base import is_compiled
from skforge.rows.prepare import prepare_rows
from skforge.sources.row_facts import RowFacts
from skforge.sources.row_spec import row_spec


class RowsFile(ExitStack):
    """A file, read as rows of a model; ``-`` is CSV from standard input.

    ``columns`` is the text of ``--columns``. None takes the columns named like the
    features, or all columns if the file or the model has no names. ``keep`` is the text
    of ``--keep``: columns that are copied as they are.
    """

    def __init__(
        self,
        path: Path,
        spec: RowFacts,
        columns: str | None = None,
        keep: str | None = None,
    ) -> None:
        super().__init__()
        self.table = self.enter_context(open_table(path, spec.names or ()))
        self.spec = spec
        #: Rows of earlier batches.
        self.before = 0
        try:
            #: A column of the file for each feature; None if it is not there.
            self._places = self._chosen(columns)
            #: The columns that are copied, by the names that they get.
            self._copied = {} if keep is None else self._named(keep)
        except BaseException:
            self.close()
            raise
        self._read_columns = [place for place in self._places if place is not None]
        #: The places that --columns names; None if it was not given.
        self.chosen = None if columns is None else self._read_columns

    def batches(self) -> Iterator[Batch]:
        """Yield the columns that the model reads; all rows at once if it needs that.

        Raise InvalidInputError if there are no rows.
        """
        places = [*self._read_columns, *self._copied.values()]
        batches: Iterable[Batch] = self.table.batches(places)
        if self.spec.whole and (every := list(batches)):
            batches = [merged(every)]
        for batch in batches:
            yield batch
            self.before += len(batch)
        if not self.before:
            raise InvalidInputError(
                f"{self.table.name} has no rows; give at least one."
            )

    def copied(self, batch: Batch) -> dict[str, Any]:
        """Return the columns of ``--keep`` as the file has them, by their names."""
        columns = columns_of(batch)[len(self._read_columns) :]
        return dict(zip(self._copied, columns, strict=False))

    def rows(self, batch: Batch) -> Any:
        if isinstance(batch, np.ndarray) and batch.dtype != object:
            return self._spread(batch[:, : len(self._read_columns)])
        if self.spec.unread:
            raise InvalidInputError(
                f"{self.table.name} cannot be read as rows of the model: "
                f"{self.spec.unread}"
            )
        read = [i for i, place in enumerate(self._places) if place is not None]
        columns = zip(read, columns_of(batch), strict=False)
        parts = {feature: self._part(feature, column) for feature, column in columns}
        plain = all(isinstance(part, np.ndarray) for part in parts.values())
        if plain and not self.spec.framed:
            how = {"dtype": self.spec.dtype, "casting": "unsafe"}
            with np.errstate(over="ignore"):
                return self._spread(np.stack([*parts.values()], axis=1, **how))
        # steps that fold know arrays alone if training had no names; frames of float32
        # are computed with otherwise
        by_place = self.spec.steps and self.spec.names is None and not self.spec.whole
        if plain and by_place and all(p.dtype != "f4" for p in parts.values()):
            return np.stack([p.astype(object) for p in parts.values()], axis=1)
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise InvalidInputError(
                "The model takes columns by name or with texts, for which rows become "
                "a frame, and pandas is not installed: pip install pandas."
            ) from error
        names = self.spec.names or range(self.spec.width)
        if not self.spec.steps:  # columns that CatBoost has dropped keep their places
            parts = {i: parts.get(i, 0.0) for i in range(len(self._places))}
        return DataFrame({names[feature]: part for feature, part in parts.items()})

    def _spread(self, rows: Array) -> Array:
        """Return rows with zeros for columns of the model that no tree reads."""
        read = [i for i, place in enumerate(self._places) if place is not None]
        if len(read) == len(self._places):
            return rows
        spread = np.zeros((len(rows), len(self._places)), rows.dtype)
        spread[:, read] = rows
        return spread

    def _part(self, feature: int, column: Any) -> Any:
        spec, spelled = self.spec, self.table.spelled
        if feature in spec.texts and values.holds_texts(column):
            return values.texts(column, spec.texts[feature], spelled)
        dtype = spec.dtype
        if spec.framed and getattr(column, "type", None) == "float":
            dtype = np.float32  # steps compute in it, as with a frame of the file
        try:
            if feature in spec.hashed:
                return values.hashed(column, spec.hashed[feature])
            if feature in spec.categories:
                dtype = spec.index_dtypes.get(feature, "")
                known = spec.categories[feature]
                return values.categories(column, known, spelled, dtype)
            return values.numbers(column, dtype)
        except values.WrongColumnError as error:
            if spec.whole and values.holds_texts(column):
                return values.texts(column, (), spelled)
            label = str(feature) if spec.names is None else repr(spec.names[feature])
            row = "" if error.row is None else f"row {self.before + error.row + 1} of "
            raise InvalidInputError(
                f"{self.table.name} cannot be read as rows of the model: {row}column "
                f"{label} {error}."
            ) from error

    # ------------------------------------------------------------ which columns

    def _chosen(self, columns: str | None) -> Sequence[int | None]:
        spec, table, taken = self.spec, self.table, f"{self.table.name} has"
        if columns is not None:
            places: Sequence[int | None] = self._selected(columns)
            taken = f"--columns {columns} takes"
        elif table.names is not None and spec.names is not None:
            return self._by_name(spec.names)
        else:
            places = range(table.width)
        if spec.wider:
            places = places[: spec.width]
        if len(places) != spec.width:
            more = table.width - spec.width
            hint = self._hint()
            if table.names is None and more > 0:
                hint = (
                    f" --columns 0:{spec.width} takes the first {spec.width}, and "
                    f"--columns {more}:{table.width} the last {spec.width}."
                )
            raise InvalidInputError(
                f"{taken} {plural(len(places), 'column')}, but the model takes "
                f"{spec.width}.{hint}"
            )
        if isinstance(places, range) and columns and table.names and spec.names:
            names = [table.names[place] for place in places]
            called = [n.replace(" ", "_") if spec.underscores else n for n in names]
            if called != [*spec.names] != names:
                warn(
                    f"{taken} {listed(names)}; the model's columns are "
                    f"{listed(spec.names)}. Without --columns they are found by name."
                )
        return places

    def _hint(self) -> str:
        table = self.table
        if table.separator is not None:
            return (
                f" Its cells seem to be separated by {table.separator}; write the file "
                "with commas."
            )
        if table.names is None:
            return ""
        wide = table.width >= self.spec.width
        choose = " Name the features, in the order of training, with --columns."
        return f"{choose if wide else ''} The file's columns are {listed(table.names)}."

    def _by_name(self, names: Sequence[str]) -> Sequence[int | None]:
        spec, there = self.spec, {*(self.table.names or ())}
        called = {name: name for name in there}
        if spec.underscores:
            called = {name.replace(" ", "_"): name for name in there} | called
        used = {*(range(spec.width) if spec.used is None else spec.used)}
        missing = [names[i] for i in sorted(used) if names[i] not in called]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise InvalidInputError(
                f"{self.table.name} lacks columns of the model: "
                f"{', '.join(map(repr, missing[:3]))}{more}.{self._hint()}"
            )
        return [
            self._column_of(called[name], self.table.names or (), "the model")
            if i in used
            else None
            for i, name in enumerate(names)
        ]

    def _named(self, keep: str) -> dict[str, int]:
        table, places = self.table, self._selected(keep, "--keep")
        every = [*(table.names or map("column_{}".format, range(table.width)))]
        every += table.index
        named = {every[place]: place for place in places}
        if len(named) < len(places):
            raise InvalidInputError(f"--keep {keep} names a column twice.")
        return named

    def _selected(self, columns: str, option: str = "--columns") -> Sequence[int]:
        table, keeps = self.table, option == "--keep"
        span = re.fullmatch(r"(-?\d+)?:(-?\d+)?", columns.strip())
        if span is not None:
            start, stop = int(span[1] or 0), int(span[2] or table.width)
            places = range(table.width)[start:stop]
            if not places or max(start, stop) > table.width:
                raise InvalidInputError(
                    f"{option} {columns} is no range of columns of {table.name}, "
                    f"which are 0:{table.width}."
                )
            return places
        if table.names is None:
            width = 1 if keeps else self.spec.width
            raise InvalidInputError(
                f"The columns of {table.name} have no names; {option} takes a range "
                f"of them, such as 0:{width}. Got {columns!r} instead."
            )
        every = [*table.names, *(table.index if keeps else ())]
        record = next(csv.reader(columns.splitlines(), skipinitialspace=True), [""])
        names = [name.strip() for name in record]
        unknown = [repr(name) for name in names if name not in every]
        if unknown:
            raise InvalidInputError(
                f"{table.name} has no column {either(unknown)}; its columns are "
                f"{listed(every)}."
            )
        taker = option if keeps else "the model"
        return [self._column_of(name, every, taker) for name in names]

    def _column_of(self, name: str, names: Sequence[str], taker: str) -> int:
        if names.count(name) > 1:
            raise InvalidInputError(
                f"{self.table.name} has {names.count(name)} columns {name!r}, and "
                f"{taker} takes one; rename the others."
            )
        return names.index(name)


def listed(names: Sequence[str]) -> str:
    """Return names as ``--columns`` takes them, at most 20.

    >>> listed(["", "id", "x,y"])
    '"",id,"x,y"'
    """
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    quoted = ('"{}"'.format(name.replace('"', '""')) for name in names[:20])
    shown = (q if re.search('[,"\n]|^$', q[1:-1]) else q[1:-1] for q in quoted)
    return shortened(",".join(shown)) + more


def all_rows(path: Path, spec: RowFacts, columns: str | None = None) -> Any:
    with RowsFile(path, spec, columns) as file:
        every = list(file.batches())
        file.before = 0
        return file.rows(merged(every))


def check_columns(data: Path | None, columns: str | None) -> None:
    if data is None and columns is not None:
        raise InvalidInputError(
            "--columns chooses columns of --data, which is missing."
        )


def load_rows(path: Path, model: Any, columns: str | None = None) -> RowArray:
    rows = all_rows(path, row_spec(model), columns)
    if live_model(model) is not None or forest_of(model).is_encoded:
        return rows  # of categories, too
    if is_compiled(model):
        source = model._compiled().source
        read = source.read(rows)
        return source.rows(rows, "predict_raw") if read is None else read[0]
    return np.ascontiguousarray(prepare_rows(forest_of(model), rows))
