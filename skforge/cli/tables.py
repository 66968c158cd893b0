"""Open files of rows and read them a batch at a time, so that memory does not grow.

``.npy``, ``.csv`` and standard input are read with NumPy and the standard library.
pyarrow reads ``.csv`` about seven times as fast, and Parquet and Arrow files at all.
"""

from __future__ import annotations

import csv
import io
import mmap
import os
import select
import signal
import sys
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from skforge.cli.errors import either
from skforge.exceptions import InvalidInputError, shortened

#: Values in a batch, and the most rows in one.
_VALUES, _ROWS = 1 << 21, 1 << 16
#: Bytes of a CSV file that are parsed at a time.
_BLOCK = 2 << 20

ENDINGS = (".csv", ".parquet", ".arrow", ".feather", ".ipc", ".npy")

#: Separators of cells that skforge does not read.
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
#: The text of a last row that is added to CSV: a quote left open would swallow it.
_END = "\x04"

#: What the errors of libraries with these parts mean.
_REASONS = {
    "codec can't decode": "it is not text in UTF-8; save it in UTF-8.",
    "invalid UTF8": "it is not text in UTF-8; save it in UTF-8.",
    "straddling object": "a line has no end within 2 MB; a quote may be left open.",
    "Python objects in dtype": "it holds pickled objects, which are not opened.",
    "mmap length": "it ends too early.",
}

#: A column of a batch: texts of a CSV file, or an Arrow array.
Column: TypeAlias = Any


class Batch(NamedTuple):
    """Some rows of a file: an array of numbers, or a list of columns."""

    n_rows: int
    values: NDArray[Any] | list[Column]

    def first(self, n_rows: int) -> Batch:
        if isinstance(self.values, np.ndarray):
            return Batch(n_rows, self.values[:n_rows])
        return Batch(n_rows, [column[:n_rows] for column in self.values])


class Table(ExitStack):
    """A file of rows; ``name`` is how messages call it."""

    separator: str | None = None  # what seems to stand between cells, if not commas
    spelled = False  # whether texts such as NA stand for missing values
    names: list[str] | None = None  # of its columns
    width: int = 0  # how many columns it has
    total: int | None = None  # rows, or bytes of a CSV file; None if not known
    done: int = 0  # how many of these have been read

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.name = name_of(path)

    def batches(self, places: Sequence[int]) -> Iterator[Batch]:
        """Yield the columns at these places, some rows at a time."""
        raise NotImplementedError

    def _slices(self, columns: Sequence[Column], step: int) -> Iterator[Batch]:
        """Yield Arrow columns of the same length, some rows at a time."""
        for first in range(0, len(columns[0]), step):
            part = [column.slice(first, step) for column in columns]
            yield Batch(len(part[0]), part)


def name_of(path: Path) -> str:
    """Return how messages call a file."""
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
    try:
        if ending == ".npy":
            return _NpyTable(path)
        if ending == ".csv":
            return _CsvTable(path, known)
        return _ParquetTable(path) if ending == ".parquet" else _ArrowTable(path)
    except ImportError as error:
        raise InvalidInputError(
            f"Reading {path.name} needs pyarrow: pip install pyarrow."
        ) from error
    except (OSError, ValueError, EOFError, TypeError, csv.Error) as error:
        raise unreadable(name_of(path), error) from error


def unreadable(name: str, error: Exception) -> InvalidInputError:
    """Return the error for a file that its library cannot read."""
    if isinstance(error, InvalidInputError):
        return error
    reason = (str(error) or type(error).__name__).splitlines()[0]
    if isinstance(error, OSError) and error.strerror:
        reason = f"{error.strerror}."
    reason = next((why for part, why in _REASONS.items() if part in reason), reason)
    return InvalidInputError(f"{name} cannot be read as a table: {reason}")


def merged(batches: Sequence[Batch]) -> Batch:
    n_rows = sum(batch.n_rows for batch in batches)
    values: list[Any] = [batch.values for batch in batches]
    if len(values) == 1 or isinstance(values[0], np.ndarray):
        return Batch(n_rows, values[0] if len(values) == 1 else np.concatenate(values))
    return Batch(n_rows, [_joined(parts) for parts in zip(*values, strict=True)])


def _joined(parts: Sequence[Column]) -> Column:
    if isinstance(parts[0], list):
        return [cell for part in parts for cell in part]
    import pyarrow as pa

    return pa.chunked_array(list(parts)).unify_dictionaries().combine_chunks()


def _rows_at_a_time(width: int) -> int:
    return max(1, min(_ROWS, _VALUES // max(1, width)))


class _NpyTable(Table):
    """An array; a map of the file, whose pages are given back after each batch."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._rows = npy.open_memmap(path, mode="r")
        shape, dtype = self._rows.shape, self._rows.dtype
        if len(shape) != 2 or dtype.kind not in "fiub":
            raise InvalidInputError(
                f"{path.name} holds an array of shape {shape} and dtype {dtype}; rows "
                "are a two-dimensional array of numbers."
            )
        self.total, self.width = shape

    def batches(self, places: Sequence[int]) -> Iterator[Batch]:
        step, pages = _rows_at_a_time(self.width), cast(mmap.mmap, self._rows.base)
        taken: Any = list(places)
        if taken == [*range(self.width)]:
            taken = slice(None)
        for first in range(0, len(self._rows), step):
            rows = np.asarray(self._rows)[first : first + step, taken]
            self.done = first + len(rows)
            yield Batch(len(rows), rows)
            pages.madvise(mmap.MADV_DONTNEED)


class _CsvTable(Table):
    """A CSV file, pipe or standard input; a first line of numbers is a row."""

    spelled = True

    def __init__(self, path: Path, known: Collection[str]) -> None:
        super().__init__(path)
        is_file = path.is_file()
        self._file = self.enter_context(path.open("rb") if is_file else _piped(path))
        self.total = path.stat().st_size if is_file else None
        self._first = self._rest = b""  # the first record, and what was read after it
        cells = next(filter(None, csv.reader(self._lines())), None)
        if cells is None:
            raise ValueError("it is empty.")
        self.width = len(cells)
        for separator, plural in _SEPARATORS.items():
            if self._first.count(separator.encode()) >= self.width:
                self.separator = plural
        if _are_names(cells, known):
            self.names = [cell.strip() for cell in cells]
            self._first = b""

    def _lines(self) -> Iterator[str]:
        """Yield the lines of the first record, which may end in a carriage return."""
        for block in iter(self._file.readline, b""):
            self.done += len(block)
            self._rest = block if self._first else block.removeprefix(BOM_UTF8)
            for line in self._rest.splitlines(keepends=True):
                self._rest = self._rest[len(line) :]
                self._first += line
                yield line.decode()

    def _parts(self) -> Iterator[bytes]:
        """Yield the bytes after the names, and a row of ``_END``."""
        yield self._first + self._rest
        while part := self._file.read(_BLOCK):
            self.done += len(part)
            yield part
        yield f"\n{','.join([_END] * self.width)}\n".encode()

    def batches(self, places: Sequence[int]) -> Iterator[Batch]:
        try:
            from pyarrow import csv as arrow
        except ImportError:
            arrow = None
        parse = self._plain if arrow is None else partial(self._arrow, arrow)
        read = parse(io.BufferedReader(_Stream(self._parts())), places or [0])
        batch = next(read)
        for following in read:
            yield batch
            batch = following
        if str(batch.values[0][-1]) != _END:
            raise InvalidInputError(
                f"{self.name} cannot be read as a table: a quote is left open, so that "
                "the last cell begins there and ends with the file."
            )
        yield batch.first(batch.n_rows - 1)

    def _plain(self, source: BinaryIO, places: Sequence[int]) -> Iterator[Batch]:
        reader = csv.reader(io.TextIOWrapper(source, encoding="utf-8", newline=""))
        step = _rows_at_a_time(self.width)
        try:
            while lines := list(islice(filter(None, reader), step)):
                rows = [line for line in lines if len(line) == self.width]
                for line in lines if len(rows) < len(lines) else ():
                    text = ",".join(line)
                    if len(line) != self.width and not text.isspace():
                        raise self._ragged(len(line), text)
                yield Batch(len(rows), [[row[i] for row in rows] for i in places])
        except (csv.Error, ValueError) as error:
            raise unreadable(self.name, error) from error

    def _arrow(
        self, arrow: Any, source: BinaryIO, places: Sequence[int]
    ) -> Iterator[Batch]:
        import pyarrow as pa

        pa.enable_signal_handlers(False)  # Ctrl-C stays Python's, see _arriving
        names = [str(i) for i in range(self.width)]
        wanted = [names[i] for i in places]
        ragged: list[Any] = []

        def refuse(row: Any) -> str:
            if not row.text.strip():
                return "skip"
            ragged.append(row)
            return "error"

        block = max(_BLOCK, 16 * len(self._first))
        step = _rows_at_a_time(len(wanted))
        try:
            reader = arrow.open_csv(
                pa.PythonFile(source, "r"),
                arrow.ReadOptions(block_size=block, column_names=names),
                arrow.ParseOptions(newlines_in_values=True, invalid_row_handler=refuse),
                arrow.ConvertOptions(
                    include_columns=list(dict.fromkeys(wanted)),
                    column_types=dict.fromkeys(wanted, pa.string()),
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            )
            for batch in reader:
                yield from self._slices([batch.column(name) for name in wanted], step)
        except pa.ArrowInvalid as error:
            if ragged:
                row = ragged[0]
                raise self._ragged(row.actual_columns, row.text) from error
            raise unreadable(self.name, error) from error

    def _ragged(self, n_cells: int, text: str) -> InvalidInputError:
        return InvalidInputError(
            f"{self.name} cannot be read as a table: a line has {n_cells} cells, not "
            f"{self.width}: {shortened(text, 60)}"
        )


class _Stream(io.RawIOBase):
    """Bytes that come in parts, as a file."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts, self._part = parts, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not len(self._part):
            part = next(self._parts, None)
            if part is None:
                return 0
            self._part = memoryview(part)
        taken = self._part[: len(buffer)]
        buffer[: len(taken)] = taken
        self._part = self._part[len(taken) :]
        return len(taken)


@contextmanager
def _piped(path: Path) -> Iterator[BinaryIO]:
    """Yield a pipe or standard input, whose reads end at Ctrl-C in any thread."""
    source: Any = sys.stdin.buffer
    if str(path) != "-":
        source = path.open("rb", buffering=0)
    try:
        number = source.fileno()
    except (OSError, ValueError):  # replaced by an object
        yield source
        return
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    before = signal.set_wakeup_fd(wake)
    try:
        yield io.BufferedReader(_Stream(_arriving(number, woken)), 1 << 16)
    finally:
        if str(path) != "-":
            source.close()
        signal.set_wakeup_fd(before)
        os.close(woken)
        os.close(wake)


def _arriving(source: int, woken: int) -> Iterator[bytes]:
    """Yield the bytes of a pipe or terminal as they come, until a signal.

    pyarrow reads in a thread of its own while the main thread waits for it, and only
    the main thread can handle a signal: the thread's read has to end first.
    """
    while woken not in select.select([source, woken], [], [])[0]:
        if not (part := os.read(source, 1 << 16)):
            return
        yield part
    raise InterruptedError


def _are_names(cells: list[str], known: Collection[str]) -> bool:
    """Tell whether the first line of a CSV file has names: not only numbers.

    Numbers are names, too, if they are the model's, or count from 0, as pandas writes
    those of a frame without names.

    >>> _are_names(["age", "1"], ()), _are_names(["0.5", "NA"], ())
    (True, False)
    >>> _are_names(["", "0", "1"], ()), _are_names(["400", "402"], {"402"})
    (True, True)
    """
    from skforge.cli.values import number_in

    columns = cells[1:] if not cells[0] else cells  # pandas gives an index no name
    counted = len(cells) > 2 and columns == [str(i) for i in range(len(columns))]
    known_ones = bool(known) and {*known} <= {*cells}
    return counted or known_ones or any(number_in(cell) is None for cell in cells)


class _ParquetTable(Table):
    """A Parquet file, read page by page."""

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
        self.width, self.total = len(self.names), self._file.metadata.num_rows

    def batches(self, places: Sequence[int]) -> Iterator[Batch]:
        assert self.names is not None
        wanted = [self.names[i] for i in places]
        step, columns = _rows_at_a_time(len(wanted)), list(dict.fromkeys(wanted))
        try:
            for batch in self._file.iter_batches(
                step, columns=columns, use_threads=False
            ):
                self.done += batch.num_rows
                yield from self._slices([batch.column(name) for name in wanted], step)
        except (OSError, ValueError, KeyError) as error:  # two columns of one name
            raise unreadable(self.name, error) from error


class _ArrowTable(Table):
    """An Arrow or Feather file, or an Arrow stream, in a map of the file."""

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

    def batches(self, places: Sequence[int]) -> Iterator[Batch]:
        step = _rows_at_a_time(len(places))
        try:
            for batch in self._batches:
                for part in self._slices([batch.column(i) for i in places], step):
                    self.done += part.n_rows
                    yield part
                    self._map.madvise(mmap.MADV_DONTNEED)
        except (OSError, ValueError) as error:
            raise unreadable(self.name, error) from error
