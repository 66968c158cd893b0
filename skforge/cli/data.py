"""Rows of files, in the form that a model takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skforge.cli import values
from skforge.cli.needs import Needs, needs_of
from skforge.cli.tables import Batch, Table, merged, open_table
from skforge.exceptions import InvalidInputError

if TYPE_CHECKING:
    from skforge.compiler.forest.forest import Forest

Rows = NDArray[np.floating[Any]]


class RowsFile(AbstractContextManager["RowsFile"]):
    """A file, read as rows of a model.

    Parameters
    ----------
    path : Path
        The file; ``-`` is CSV from standard input.
    needs : Needs
        What the model takes.
    columns : str or None
        The columns that are the features: ``"A:B"`` for A to B - 1, or names with
        commas. None takes the columns named like the features, or all columns if the
        file or the model has no names.

    Raises
    ------
    InvalidInputError
        If the file cannot be read, or lacks columns.
    """

    def __init__(self, path: Path, needs: Needs, columns: str | None = None) -> None:
        self.table: Table = open_table(path)
        self._needs = needs
        #: Rows of earlier batches.
        self.before = 0
        try:
            #: A column of the file for each feature; None if it is not there.
            self._places = self._chosen(columns)
        except BaseException:
            self.table.__exit__()
            raise
        self._there = [place for place in self._places if place is not None]

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.table.__exit__()

    def batches(self) -> Iterator[Batch]:
        """Yield the columns that the model reads; all rows at once if it needs that."""
        found: Iterator[Batch] = (
            one for one in self.table.batches(self._there) if one.n_rows
        )
        if self._needs.whole:
            every = list(found)
            found = iter([merged(every)] if every else [])
        for batch in found:
            yield batch
            self.before += batch.n_rows

    def whole(self, batches: Sequence[Batch]) -> Any:
        """Return all batches of the file as one array or frame."""
        self.before = 0
        return self.rows(merged(batches))

    def rows(self, batch: Batch) -> Any:
        """Return a batch as an array, or as a frame if the model needs one."""
        if isinstance(batch.values, np.ndarray):
            return batch.values
        columns = iter(batch.values)
        parts = {
            feature: self._part(feature, next(columns))
            for feature, place in enumerate(self._places)
            if place is not None
        }
        if not self._needs.framed and all(
            isinstance(p, np.ndarray) for p in parts.values()
        ):
            whole = np.empty((batch.n_rows, len(parts)), self._needs.dtype)
            for at, part in enumerate(parts.values()):
                with np.errstate(over="ignore"):
                    whole[:, at] = part
            return whole
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise InvalidInputError(
                "The model takes columns by name or with texts, for which rows become "
                "a frame, and pandas is not installed: pip install pandas."
            ) from error
        names = self._needs.names
        return DataFrame(
            {
                feature if names is None else names[feature]: p
                for feature, p in parts.items()
            }
        )

    def _part(self, feature: int, column: Any) -> Any:
        """Return a feature's values."""
        needs = self._needs
        if feature in needs.texts and values.holds_texts(column):
            return values.texts(column, needs.texts[feature])
        dtype = needs.dtype
        if needs.framed and getattr(column, "type", None) == "float":
            dtype = np.float32  # steps compute in it, as with a frame of the file
        try:
            if feature in needs.categories:
                return values.categories(column, needs.categories[feature])
            return values.numbers(column, dtype)
        except values.WrongColumnError as error:
            is_text = isinstance(error, values.NotNumbersError)
            if is_text and needs.whole and values.holds_texts(column):
                return values.texts(column)
            label = str(feature) if needs.names is None else repr(needs.names[feature])
            raise values.wrong_column(
                self.table.name, label, error, self.before
            ) from error

    # ------------------------------------------------------------ which columns

    def _chosen(self, columns: str | None) -> Sequence[int | None]:
        needs, table = self._needs, self.table
        if columns is not None:
            places: Sequence[int | None] = self._asked(columns)
        elif table.names is not None and needs.names is not None:
            return self._by_name(needs.names)
        else:
            places = range(table.width)
        if needs.wider:
            places = places[: needs.width]
        if len(places) != needs.width:
            raise InvalidInputError(
                f"{table.name} has {len(places)} columns, but the model takes "
                f"{needs.width}; choose them with --columns, such as "
                f"--columns 0:{needs.width}."
            )
        return places

    def _by_name(self, names: Sequence[str]) -> Sequence[int | None]:
        """Return the places of the model's features among the file's columns."""
        needs, table = self._needs, self.table
        where = {name: i for i, name in enumerate(table.names or ())}
        if needs.underscores:
            where = {name.replace(" ", "_"): i for name, i in where.items()} | where
        used = range(needs.width) if needs.used is None else needs.used
        missing = [names[i] for i in sorted(used) if names[i] not in where]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise InvalidInputError(
                f"{table.name} lacks columns of the model: "
                f"{', '.join(map(repr, missing[:3]))}{more}. To take columns by their "
                f"place, give --columns 0:{needs.width}."
            )
        return [
            where.get(name) if i in {*used} else None for i, name in enumerate(names)
        ]

    def _asked(self, columns: str) -> list[int]:
        """Return the places that ``--columns`` names."""
        table, every = self.table, range(self.table.width)
        first, colon, last = columns.partition(":")
        if colon:
            try:
                return list(every[slice(int(first or 0), int(last) if last else None)])
            except ValueError:
                pass
        names = [name.strip() for name in columns.split(",")]
        if table.names is not None and {*names} <= {*table.names}:
            return [table.names.index(name) for name in names]
        raise InvalidInputError(
            "--columns takes a range such as 0:13, or names of columns with commas. "
            f"Got {columns!r} instead."
        )


def all_rows(path: Path, needs: Needs, columns: str | None = None) -> Any:
    """Return all rows of a file as one array or frame.

    Raises
    ------
    InvalidInputError
        If the file cannot be read, lacks columns or has no rows.
    """
    with RowsFile(path, needs, columns) as file:
        every = list(file.batches())
        if not every:
            raise no_rows(file.table.name)
        return file.whole(every)


def no_rows(name: str) -> InvalidInputError:
    """Return the error for a file without rows."""
    return InvalidInputError(f"{name} has no rows; give at least one.")


def check_columns(data: Path | None, columns: str | None) -> None:
    """Raise if ``--columns`` is given without a file."""
    if data is None and columns is not None:
        raise InvalidInputError(
            "--columns chooses columns of --data, which is missing."
        )


def load_rows(path: Path, forest: Forest, columns: str | None = None) -> Rows:
    """Return the rows of a file as a forest's kernels read them."""
    from skforge.compiler.forest.rows import prepare_rows

    rows = all_rows(path, needs_of(forest), columns)
    made: Rows = np.ascontiguousarray(prepare_rows(forest, rows))
    return made
