"""Rows of files as users have them: frames that pandas makes, without skforge's reader.

What a model's own library answers to them tells whether skforge reads them right.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skforge.cli.tables import Table


@dataclass(frozen=True)
class Rows:
    """Columns of a file with pandas' dtypes, and in CSV their texts as spelled."""

    plain: Any
    spelled: Any = None

    def of(
        self,
        names: Sequence[str] | None,
        width: int,
        places: Sequence[int] | None = None,
        part: bool = False,
        spaces: bool = True,
    ) -> Rows:
        """Return a model's columns: those at ``places``, or by name, or by position.

        With ``part``, those of its columns that are there suffice. Without ``spaces``,
        names have underscores for them.
        """
        if places is not None:
            return self._at(places, names)
        there = [str(name) for name in self.plain.columns]
        if not spaces and not {*(names or ())} <= {*there}:
            there = [name.replace(" ", "_") for name in there]
        found = [name for name in names or () if name in there]
        if not found or (len(found) < len(names or ()) and not part):
            return self._at(range(width), names)
        return self._at([there.index(name) for name in found], found)

    def _at(self, places: Sequence[int], names: Sequence[str] | None) -> Rows:
        parts = [self.plain, self.spelled]
        chosen = [None if p is None else p.iloc[:, list(places)].copy() for p in parts]
        for part in chosen:
            if part is not None and names is not None:
                part.columns = list(names)
        return Rows(*chosen)

    def head(self, n: int) -> Rows:
        return self.part(0, n)

    def part(self, start: int, stop: int) -> Rows:
        frames = [self.plain, self.spelled]
        return Rows(*(f if f is None else f.iloc[start:stop] for f in frames))

    def texts(self, place: int, known: Collection[Any] | None = None) -> Any:
        """Return a column as texts; None is no missing value if it is ``known``.

        Without ``known``, all cells of CSV are texts but empty ones.
        """
        column = self.plain.iloc[:, place]
        if self.spelled is None:
            if is_category(column):
                return column
            return column.astype(object).where(column.notna(), np.nan)
        spelled = self.spelled.iloc[:, place].astype(object)
        if known is None:
            return spelled.where(spelled != "", np.nan)
        gone = column.isna() & ~spelled.isin([*known])
        return spelled.where(~gone, np.nan)

    def numbers(self, place: int) -> Any:
        """Return a column of numbers; doubles if they are spelled."""
        column = self.plain.iloc[:, place]
        if self.spelled is None:
            return column.astype(float) if column.dtype == object else column
        if column.dtype.kind in "bi":
            return column.astype(float)
        return self.texts(place, ()).astype(float)  # as float reads them

    def categories(self, place: int, known: Collection[Any]) -> Any:
        """Return a column of categories, in which the known ones come first."""
        from pandas import Categorical, Series

        column = self.plain.iloc[:, place]
        if is_category(column):
            return column
        if all(isinstance(label, str) for label in known):
            column = self.texts(place, known)
        labels = list(known)
        labels += [v for v in column.dropna().unique().tolist() if v not in labels]
        return Series(Categorical(column, categories=labels), index=column.index)

    def framed(self, coded: Mapping[int, Collection[Any] | None]) -> Any:
        """Return a frame of numbers, and of texts (None) or categories, some known."""

        def column(i: int) -> Any:
            known = coded.get(i, ())
            if i not in coded:
                return self.numbers(i)
            return self.texts(i) if known is None else self.categories(i, known)

        return joined([*map(column, range(self.plain.shape[1]))], self.plain.columns)

    def is_text(self, place: int) -> bool:
        from pandas.api.types import is_numeric_dtype

        return not is_numeric_dtype(self.plain.iloc[:, place].dtype)


def is_category(column: Any) -> bool:
    from pandas import CategoricalDtype

    return isinstance(column.dtype, CategoricalDtype)


def joined(columns: Sequence[Any], names: Sequence[Any]) -> Any:
    from pandas import DataFrame

    return DataFrame(dict(zip(range(len(columns)), columns, strict=True))).set_axis(
        list(names), axis=1
    )


def read_rows(table: Table, n: int | None = None) -> Rows:
    """Read the first rows of an open file again; None: all of them."""
    import pandas as pd

    path, kind = table.path, table.path.suffix.lower()
    if not path.is_file() or kind == ".csv":
        return _of_csv(table, n)
    if kind == ".npy":
        return Rows(pd.DataFrame(np.load(path, mmap_mode="r")[:n]))
    if kind == ".parquet":
        from pyarrow import Table as ArrowTable
        from pyarrow.parquet import ParquetFile

        file = ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
        if n is None:
            return Rows(file.read().to_pandas())
        first = next(file.iter_batches(n, use_threads=False))
        return Rows(ArrowTable.from_batches([first]).to_pandas())
    from pyarrow import ArrowInvalid, ipc, memory_map

    with memory_map(str(path)) as source:
        try:
            read = ipc.open_file(source).read_all()
        except ArrowInvalid:
            source.seek(0)
            read = ipc.open_stream(source).read_all()
        return Rows(read.slice(0, n).to_pandas())


def _of_csv(table: Table, n: int | None) -> Rows:
    import pandas as pd

    how: dict[str, Any] = {
        "header": None if table.names is None else 0,
        "index_col": False,
        "nrows": n,
        "encoding": "utf-8-sig",
        "low_memory": False,
    }

    def read(**more: Any) -> Any:
        whole = n is None and table.path.is_file()
        source = table.path if whole else io.BytesIO(table.head)
        return pd.read_csv(source, **how, **more)

    plain = read()
    spelled = read(dtype=str, keep_default_na=False)
    if table.names is not None:  # not those that pandas numbers
        plain.columns = spelled.columns = [name.strip() for name in table.names]
    return Rows(plain, spelled)
