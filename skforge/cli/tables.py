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
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from skforge.exceptions import InvalidInputError

#: Values in a batch, and the most rows in one.
_VALUES, _ROWS = 1 << 21, 1 << 16
#: Bytes of a CSV file that are parsed at a time.
_BLOCK = 2 << 20

ENDINGS = (".npy", ".csv", ".parquet", ".arrow", ".feather", ".ipc")

#: A column of a batch: texts of a CSV file, or an Arrow array.
Column: TypeAlias = Any


class Batch(NamedTuple):
    """Some rows of a file: an array of numbers, or a list of columns."""

    n_rows: int
    values: NDArray[Any] | list[Column]


class Table(AbstractContextManager["Table"]):
    """A file of rows.

    Attributes
    ----------
    name : str
        The file's name, for messages.
    names : list of str or None
        The names of its columns, if it has any.
    width : int
        How many columns it has.
    total : int or None
        Its rows, or its bytes if it is a CSV file; None if that is not known.
    done : int
        How many of these have been read.
    """

    names: list[str] | None = None
    width: int = 0
    total: int | None = None
    done: int = 0

    def __init__(self, path: Path) -> None:
        self.name = "standard input" if str(path) == "-" else path.name
        self._open = ExitStack()

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._open.close()

    def batches(self, places: Sequence[int]) -> Iterator[Batch]:
        """Yield the columns at these places, some rows at a time."""
        raise NotImplementedError

    def _mapped(self, path: Path) -> mmap.mmap:
        file = self._open.enter_context(path.open("rb"))
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def open_table(path: Path) -> Table:
    """Open a file of rows; ``-`` is CSV from standard input.

    Raises
    ------
    InvalidInputError
        If the file is of another kind or damaged, or if pyarrow is needed for it.
    """
    ending = ".csv" if str(path) == "-" else path.suffix.lower()
    if ending not in ENDINGS:
        raise InvalidInputError(
            f"{path.name} ends in {path.suffix!r}; rows are read from "
            f"{', '.join(ENDINGS[:-1])} and {ENDINGS[-1]} files."
        )
    try:
        if ending == ".npy":
            return _NpyTable(path)
        if ending == ".csv":
            return _CsvTable(path)
        return _ParquetTable(path) if ending == ".parquet" else _ArrowTable(path)
    except ImportError as error:
        raise InvalidInputError(
            f"Reading {path.name} needs pyarrow: pip install 'skforge[files]'."
        ) from error
    except (OSError, ValueError, EOFError, TypeError) as error:
        raise unreadable(path.name, error) from error


def unreadable(name: str, error: Exception) -> InvalidInputError:
    """Return the error for a file that its library cannot read."""
    if isinstance(error, InvalidInputError):
        return error
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InvalidInputError(f"{name} cannot be read as a table: {reason}")


def merged(batches: Sequence[Batch]) -> Batch:
    """Return batches as one."""
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
        with path.open("rb") as file:
            version = npy.read_magic(file)
            read: Any = npy.read_array_header_1_0
            if version != (1, 0):
                read = npy.read_array_header_2_0
            shape, fortran, dtype = read(file)
            start = file.tell()
        if dtype.hasobject:
            raise ValueError("it holds pickled objects, which are not opened.")
        if len(shape) != 2 or dtype.kind not in "fiub":
            raise InvalidInputError(
                f"{path.name} holds an array of shape {shape} and dtype {dtype}; rows "
                "are a two-dimensional array of numbers."
            )
        self.total, self.width = shape
        self._map = self._mapped(path)
        if len(self._map) < start + dtype.itemsize * shape[0] * shape[1]:
            raise ValueError("it ends too early.")
        order: Any = "F" if fortran else "C"
        self._rows = np.ndarray(shape, dtype, self._map, start, order=order)

    def batches(self, places: Sequence[int]) -> Iterator[Batch]:
        step = _rows_at_a_time(self.width)
        taken: Any = list(places)
        if taken == [*range(self.width)]:
            taken = slice(None)
        for first in range(0, len(self._rows), step):
            rows = self._rows[first : first + step, taken]
            self.done = first + len(rows)
            yield Batch(len(rows), rows)
            self._map.madvise(mmap.MADV_DONTNEED)


class _CsvTable(Table):
    """A CSV file or standard input; a first line of numbers is a row."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file: BinaryIO
        if str(path) == "-":
            self._file = self._open.enter_context(_standard_input())
        else:
            self._file = self._open.enter_context(path.open("rb"))
            self.total = path.stat().st_size
        self._first = b""  # the first record, where it is a row
        cells = next(filter(None, csv.reader(self._lines())), None)
        if cells is None:
            raise ValueError("it is empty.")
        self.width = len(cells)
        if _are_names(cells):
            self.names = [cell.strip() for cell in cells]
            self._first = b""

    def _lines(self) -> Iterator[str]:
        """Yield the lines of the first record, and keep them."""
        for line in iter(self._file.readline, b""):
            self.done += len(line)
            text = line.decode("utf-8" if self._first else "utf-8-sig")
            self._first += text.encode()
            yield text

    def readable(self) -> bool:
        """Return True, as pyarrow asks for it."""
        return True

    closed = False

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes after the names."""
        found, self._first = self._first[:size], self._first[size:]
        while len(found) < size:
            more = self._file.read(size - len(found))
            if not more:
                break
            self.done += len(more)
            found += more
        return found

    def batches(self, places: Sequence[int]) -> Iterator[Batch]:
        try:
            from pyarrow import csv as arrow
        except ImportError:
            yield from self._plain_batches(places)
        else:
            yield from self._arrow_batches(arrow, places)

    def _plain_batches(self, places: Sequence[int]) -> Iterator[Batch]:
        head = io.StringIO(self._first.decode(), newline="")
        text = io.TextIOWrapper(self._file, encoding="utf-8", newline="")
        reader = csv.reader(_both(head, text))
        step = _rows_at_a_time(self.width)
        try:
            while rows := list(islice(filter(None, reader), step)):
                for row in rows:
                    if len(row) != self.width:
                        raise self._ragged(len(row), ",".join(row))
                if self.total is not None:
                    self.done = self._file.tell()
                columns = list(zip(*rows, strict=True))
                yield Batch(len(rows), [list(columns[i]) for i in places])
        except (csv.Error, ValueError) as error:
            raise unreadable(self.name, error) from error
        finally:
            text.detach()

    def _arrow_batches(self, arrow: Any, places: Sequence[int]) -> Iterator[Batch]:
        import pyarrow as pa

        pa.enable_signal_handlers(False)  # Ctrl-C stays Python's, see _Piped
        names = [str(i) for i in range(self.width)]
        wanted = [names[i] for i in places]
        ragged: list[Any] = []

        def refuse(row: Any) -> str:
            ragged.append(row)
            return "error"

        block = max(_BLOCK, 16 * len(self._first))
        step = _rows_at_a_time(len(wanted))
        try:
            reader = arrow.open_csv(
                pa.PythonFile(self, "r"),
                arrow.ReadOptions(block_size=block, column_names=names),
                arrow.ParseOptions(newlines_in_values=True, invalid_row_handler=refuse),
                arrow.ConvertOptions(
                    include_columns=list(dict.fromkeys(wanted)),
                    column_types=dict.fromkeys(wanted, pa.string()),
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            )
            for found in reader:
                columns = [found.column(name) for name in wanted]
                for first in range(0, found.num_rows, step):
                    part = [column.slice(first, step) for column in columns]
                    yield Batch(min(step, found.num_rows - first), part)
        except pa.ArrowInvalid as error:
            if ragged:
                row = ragged[0]
                raise self._ragged(row.actual_columns, row.text) from error
            if "Empty CSV file" not in str(error):  # nothing but names
                raise unreadable(self.name, error) from error

    def _ragged(self, n_cells: int, text: str) -> InvalidInputError:
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        return InvalidInputError(
            f"{self.name} cannot be read as a table: a line has {n_cells} cells, not "
            f"{self.width}: {shown}"
        )


@contextmanager
def _standard_input() -> Iterator[BinaryIO]:
    """Yield standard input, whose reads end at Ctrl-C in any thread."""
    try:
        source = sys.stdin.fileno()
    except (OSError, ValueError):  # replaced by an object
        yield sys.stdin.buffer
        return
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    before = signal.set_wakeup_fd(wake)
    try:
        yield io.BufferedReader(_Piped(source, woken), 1 << 16)
    finally:
        signal.set_wakeup_fd(before)
        os.close(woken)
        os.close(wake)


class _Piped(io.RawIOBase):
    """Bytes of a pipe or terminal.

    pyarrow reads in a thread of its own while the main thread waits for it, and only
    the main thread can handle a signal: the thread's read has to end first.
    """

    def __init__(self, source: int, woken: int) -> None:
        self._source, self._woken = source, woken

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        ready, _, _ = select.select([self._source, self._woken], [], [])
        if self._woken in ready:
            raise InterruptedError
        found = os.read(self._source, len(buffer))
        buffer[: len(found)] = found
        return len(found)


def _both(head: io.StringIO, text: io.TextIOWrapper) -> Iterator[str]:
    yield from head
    yield from text


def _are_names(cells: Sequence[str]) -> bool:
    """Tell whether the first line of a CSV file has names: not only numbers.

    Numbers from 0 are names, too, as pandas writes those of a frame without names.

    >>> _are_names(["age", "1"]), _are_names(["0.5", "NA"]), _are_names(["0", "1", "2"])
    (True, False, True)
    """
    from skforge.cli.values import number_in

    counted = len(cells) > 2 and list(cells) == [str(i) for i in range(len(cells))]
    return counted or any(number_in(cell) is None for cell in cells)


class _ParquetTable(Table):
    """A Parquet file, read page by page."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        from pyarrow import parquet

        self._file = self._open.enter_context(
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
                yield Batch(batch.num_rows, [batch.column(name) for name in wanted])
        except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
            raise unreadable(self.name, error) from error


class _ArrowTable(Table):
    """An Arrow or Feather file, or an Arrow stream, in a map of the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        import pyarrow as pa

        self._map = self._mapped(path)
        source = pa.BufferReader(pa.py_buffer(self._map))
        try:
            self._reader = pa.ipc.open_file(source)
            self._n = self._reader.num_record_batches
        except pa.ArrowInvalid:
            self._reader = pa.ipc.open_stream(source)
            self._n = None
        self.names = list(self._reader.schema.names)
        self.width = len(self.names)

    def _record_batches(self) -> Iterator[Any]:
        if self._n is None:
            yield from self._reader
        else:
            for i in range(self._n):
                yield self._reader.get_batch(i)

    def batches(self, places: Sequence[int]) -> Iterator[Batch]:
        step = _rows_at_a_time(len(places))
        try:
            for batch in self._record_batches():
                for first in range(0, batch.num_rows, step):
                    part = batch.slice(first, step)
                    self.done += part.num_rows
                    yield Batch(part.num_rows, [part.column(i) for i in places])
                    self._map.madvise(mmap.MADV_DONTNEED)
        except (OSError, ValueError) as error:
            raise unreadable(self.name, error) from error
