"""Open files of rows and read them a batch at a time, so that memory does not grow.

``.npy``, ``.csv`` and standard input are read with NumPy and the standard library.
pyarrow reads ``.csv`` about seven times as fast, and Parquet and Arrow files at all.
"""

from __future__ import annotations

import csv
import io
import mmap
import sys
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.lib import format as npy

from skforge._typing import Array
from skforge.cli.errors import either
from skforge.cli.values import number_in
from skforge.exceptions import InvalidInputError, shortened

#: Values in a batch, and the most rows in one.
_VALUES, _ROWS = 1 << 21, 1 << 16
#: Bytes of a CSV file that are parsed at a time, and the most in one line.
_BLOCK, _LINE = 2 << 20, 64 << 20

ENDINGS = (".csv", ".parquet", ".arrow", ".feather", ".ipc", ".npy")

#: Separators of cells that skforge does not read.
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
#: The cells of a last line that is added to CSV, one more than in a row: it comes back
#: as no row, unless a quote left open swallows it.
_END = "\x04"

_NO_END = f"a line has no end within {_LINE >> 20} MB; a quote may be left open."

#: What the errors of libraries with these parts mean.
_REASONS = {
    "codec can't decode": "it is not text in UTF-8; save it in UTF-8.",
    "invalid UTF8": "it is not text in UTF-8; save it in UTF-8.",
    "Python objects in dtype": "it holds pickled objects, which are not opened.",
    "mmap length": "it ends too early.",
}

#: Some rows of a file: an array of numbers or of the texts of cells, or Arrow's
#: RecordBatch.
Batch: TypeAlias = Any
#: The rows in CSV, and the lines that have another number of cells.
_Parsed: TypeAlias = tuple[Batch, list[tuple[int, str]]]


class Table(ExitStack):
    """A file of rows; ``name`` is how messages call it."""

    separator: str | None = None  # what seems to stand between cells, if not commas
    spelled = False  # whether texts such as NA stand for missing values
    names: list[str] | None = None  # of its columns
    index: Sequence[str] = ()  # further columns, behind these: pandas' index
    width: int = 0  # how many columns it has
    total: int | None = None  # rows, or bytes of a CSV file; None if not known
    done: int = 0  # how many of these have been read
    head: bytes = b""  # the first lines of CSV, which a pipe gives once
    _map: Any = None  # of the file, if its rows are in one

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.name = path, name_of(path)

    def batches(self, places: Sequence[int]) -> Iterator[Batch]:
        step = _rows_at_a_time(len(places))
        with _reading(self.name):
            for batch in self._read(places):
                for first in range(0, len(batch), step):
                    rows = batch[first : first + step]
                    if not self.spelled:  # CSV counts the bytes that are read
                        self.done += len(rows)
                    yield rows
                    if self._map is not None:  # or memory would grow with the file
                        self._map.madvise(mmap.MADV_DONTNEED)

    def _read(self, places: Sequence[int]) -> Iterator[Batch]:
        raise NotImplementedError


def name_of(path: Path) -> str:
    return "standard input" if str(path) == "-" else path.name


def open_table(path: Path, known: Collection[str] = ()) -> Table:
    """Open a file of rows; ``-`` is CSV from standard input, and so are pipes.

    A first line of CSV with all the ``known`` names is no row.
    """
    ending = path.suffix.lower() if path.is_file() else ".csv"
    if ending not in ENDINGS:
        raise InvalidInputError(
            f"{path.name} does not end in {either(ENDINGS)}; convert it, or pipe it as "
            "CSV to -."
        )
    with _reading(name_of(path)):
        if ending == ".npy":
            return _NpyTable(path)
        if ending == ".csv":
            return _CsvTable(path, known)
        return _ParquetTable(path) if ending == ".parquet" else _ArrowTable(path)


@contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except InvalidInputError:
        raise
    except ImportError as error:
        raise InvalidInputError(
            f"Reading {name} needs pyarrow: pip install pyarrow."
        ) from error
    except (OSError, ValueError, EOFError, TypeError, KeyError, csv.Error) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if isinstance(error, OSError) and error.strerror:
            reason = f"{error.strerror}."
        reason = next((why for part, why in _REASONS.items() if part in reason), reason)
        raise InvalidInputError(
            f"{name} cannot be read as a table: {reason}"
        ) from error


def columns_of(batch: Batch) -> Any:
    return batch.T if isinstance(batch, np.ndarray) else batch.columns


def merged(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    if isinstance(batches[0], np.ndarray):
        return np.concatenate(batches)
    import pyarrow as pa

    table = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
    return table.to_batches()[0]


def _rows_at_a_time(width: int) -> int:
    return max(1, min(_ROWS, _VALUES // max(1, width)))


class _Columns:
    """Some columns of an array, copied some rows at a time."""

    def __init__(self, rows: Array, places: Sequence[int]) -> None:
        self._rows, self._places = rows, list(places)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice) -> Array:
        return self._rows[rows][:, self._places]


class _NpyTable(Table):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        rows = npy.open_memmap(path, mode="r")
        self._rows, self._map = np.asarray(rows), rows.base
        shape, dtype = rows.shape, rows.dtype
        if len(shape) != 2 or dtype.kind not in "fiub":
            raise InvalidInputError(
                f"{path.name} holds an array of shape {shape} and dtype {dtype}; rows "
                "are a two-dimensional array of numbers."
            )
        self.total, self.width = shape

    def _read(self, places: Sequence[int]) -> Iterator[Batch]:
        first, end = places[0], places[-1] + 1
        as_range = list(places) == list(range(first, end))
        yield self._rows[:, first:end] if as_range else _Columns(self._rows, places)


class _CsvTable(Table):
    """A CSV file, pipe or standard input; a first line of numbers is a row."""

    spelled = True

    def __init__(self, path: Path, known: Collection[str]) -> None:
        super().__init__(path)
        if str(path) == "-":
            file: Any = sys.stdin.buffer
        else:
            file = self.enter_context(path.open("rb"))
        self.total = path.stat().st_size if path.is_file() else None
        parts = self._parts(file)
        self.head = part = next(parts).removeprefix(BOM_UTF8)
        lines = iter(part.splitlines(keepends=True))
        cells = next(filter(None, csv.reader(map(bytes.decode, lines))), None)
        if cells is None:
            raise ValueError("it is empty.")
        after = b"".join(lines)
        record = part.removesuffix(after)
        self.width = len(cells)
        for separator, plural in _SEPARATORS.items():
            if record.count(separator.encode()) >= self.width:
                self.separator = plural
        if _are_names(cells, known):
            self.names = [cell.strip() for cell in cells]
            part = after
        self._texts = chain([part], parts)

    def _parts(self, file: Any) -> Iterator[bytes]:
        """Yield some lines at a time, which may end in a carriage return."""
        held = bytearray()
        while piece := file.read1(_BLOCK):  # one read each, so that Ctrl-C ends it
            self.done += len(piece)
            held += piece
            if len(held) < _BLOCK:
                continue
            if end := held.rfind(b"\n") + 1 or held.rfind(b"\r") + 1:
                yield bytes(held[:end])
                del held[:end]
            elif len(held) > _LINE:
                raise ValueError(_NO_END)
        yield bytes(held)

    def _read(self, places: Sequence[int]) -> Iterator[Batch]:
        pa: Any = None
        with suppress(ImportError):
            import_module("pyarrow.csv")  # not in the thread, which Ctrl-C may find
            pa = sys.modules["pyarrow"]
        last = ",".join([_END] * (self.width + 1))
        text, ready = b"", None
        with ThreadPoolExecutor(1) as thread:
            for part in self._texts:
                text += part
                whole = b"%b\n%b\n" % (text, last.encode())
                parsed = thread.submit(self._parsed, pa, whole, places or [0])
                if ready is not None:
                    yield ready  # predicted while the next ones are parsed
                rows, ragged = parsed.result()
                for n_cells, line in ragged:
                    if line.strip(" \t") and last not in line:
                        raise ValueError(
                            f"a line has {n_cells} cells, not {self.width}: "
                            f"{shortened(line, 60)}"
                        )
                ready = None
                if ragged and ragged[-1][1] == last:
                    text, ready = b"", rows
                elif len(whole) > _LINE:
                    raise ValueError(_NO_END)
        if text:
            raise ValueError(
                "a quote is left open, so that the last cell begins there and ends "
                "with the file."
            )
        if ready is not None:
            yield ready

    def _parsed(self, pa: Any, text: bytes, places: Sequence[int]) -> _Parsed:
        if pa is None:
            lines = [*filter(None, csv.reader(io.StringIO(text.decode(), newline="")))]
            rows = [line for line in lines if len(line) == self.width]
            cells = np.array(rows, object).reshape(-1, self.width)[:, places]
            # a line of quotes alone is not blank
            others = [x for x in lines if len(x) != self.width]
            return cells, [(len(x), ",".join(x) or '""') for x in others]
        names = [str(i) for i in range(self.width)]
        wanted = [names[i] for i in places]
        ragged: list[tuple[int, str]] = []

        def skip(row: Any) -> str:
            ragged.append((row.actual_columns, row.text))
            return "skip"

        table = pa.csv.read_csv(
            pa.BufferReader(text),
            pa.csv.ReadOptions(block_size=len(text) + 1, column_names=names),
            pa.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
            pa.csv.ConvertOptions(
                include_columns=list(dict.fromkeys(wanted)),
                column_types=dict.fromkeys(wanted, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        ).select(wanted)
        return next(iter(table.to_batches()), table), ragged


def _are_names(cells: list[str], known: Collection[str]) -> bool:
    """Tell whether the first line of a CSV file has names: not only numbers.

    Numbers are names, too, if they are the model's, or count from 0, as pandas writes
    those of a frame without names.

    >>> _are_names(["age", "1"], ()), _are_names(["0.5", "NA"], ())
    (True, False)
    >>> _are_names(["", "0", "1"], ()), _are_names(["400", "402"], {"402"})
    (True, True)
    """
    columns = cells[1:] if not cells[0] else cells  # pandas gives an index no name
    counted = len(cells) > 2 and columns == [str(i) for i in range(len(columns))]
    known_ones = bool(known) and {*known} <= {*cells}
    return counted or known_ones or any(number_in(cell) is None for cell in cells)


class _ParquetTable(Table):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        from pyarrow import parquet

        self._file = self.enter_context(
            # with a buffer in advance or threads, memory grows with the file
            parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
        )
        schema = self._file.schema_arrow
        # pandas writes an index that is no range as a column
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        self.names = [name for name in schema.names if name not in index]
        self.index = [name for name in schema.names if name in index]
        self.width, self.total = len(self.names), self._file.metadata.num_rows

    def _read(self, places: Sequence[int]) -> Iterator[Batch]:
        assert self.names is not None
        every = [*self.names, *self.index]
        wanted = [every[i] for i in places]
        step, columns = _rows_at_a_time(len(wanted)), list(dict.fromkeys(wanted))
        for batch in self._file.iter_batches(step, columns=columns, use_threads=False):
            yield batch.select(wanted)


class _ArrowTable(Table):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        import pyarrow as pa

        file = self.enter_context(path.open("rb"))
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        source = pa.BufferReader(pa.py_buffer(self._map))
        try:
            reader = pa.ipc.open_file(source)
            self._batches = map(reader.get_batch, range(reader.num_record_batches))
        except pa.ArrowInvalid:
            self._batches = reader = pa.ipc.open_stream(source)
        self.names = list(reader.schema.names)
        self.width = len(self.names)

    def _read(self, places: Sequence[int]) -> Iterator[Batch]:
        for batch in self._batches:
            yield batch.select(places)
