"""Write results a batch at a time: to a file that appears when it is whole, or as text.

Numbers in CSV have the digits that give their bits again.
"""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from skforge._container import replacing
from skforge.exceptions import InvalidInputError

if TYPE_CHECKING:
    from skforge.prediction.answers import Answer

Array: TypeAlias = NDArray[Any]

ENDINGS = (".csv", ".parquet", ".arrow", ".feather", ".npy")


class ReaderGoneError(Exception):
    """Whoever read standard output, such as ``head``, has seen enough."""


class Writer:
    """Writes tables of one answer, one below the other."""

    def __init__(self, file: Any, answer: Answer) -> None:
        self.file, self.answer = file, answer

    def write(self, table: Array) -> None:
        """Write some rows; ``table`` has two axes."""
        raise NotImplementedError

    def close(self) -> None:
        """Write what comes last."""


@contextmanager
def writer(path: Path | None, answer: Answer) -> Iterator[Writer]:
    """Yield a writer to a file, or to standard output.

    The file is there when the block ends without an error, and before that it is what
    it was.
    """
    if path is None:
        try:
            yield _CsvWriter(_Printed(), answer)
            sys.stdout.flush()
        except BrokenPipeError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise ReaderGoneError from error
        return
    with replacing(Path(os.path.realpath(path))) as file:
        try:
            made = _KINDS[path.suffix.lower()](file, answer)
        except ImportError as error:
            raise InvalidInputError(
                f"Writing {path.name} needs pyarrow: pip install 'skforge[files]'."
            ) from error
        yield made
        made.close()


class _Printed:
    """Standard output, as a file of bytes."""

    def write(self, text: bytes) -> None:
        sys.stdout.write(text.decode())


class _CsvWriter(Writer):
    def __init__(self, file: Any, answer: Answer) -> None:
        super().__init__(file, answer)
        try:
            from pyarrow import csv as arrow
        except ImportError:
            arrow = None
        self._arrow: Any = arrow
        self._begun = False

    def write(self, table: Array) -> None:
        if not self._begun:  # an error in the first rows leaves nothing printed
            self._begun = True
            self._lines([self.answer.names])
        if self._arrow is None or table.dtype.kind not in "fiu":
            self._lines(table.astype(str).tolist())
            return
        buffer = io.BytesIO()
        options = self._arrow.WriteOptions(include_header=False)
        self._arrow.write_csv(_arrow_table(table, self.answer), buffer, options)
        self.file.write(buffer.getvalue())

    def _lines(self, rows: Any) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self.file.write(text.getvalue().encode())


class _NpyWriter(Writer):
    """Writes the header again when the number of rows is known: NumPy leaves room."""

    def __init__(self, file: BinaryIO, answer: Answer) -> None:
        super().__init__(file, answer)
        self._n_rows = 0
        self._header()

    def _header(self) -> None:
        width = self.answer.width
        shape = (self._n_rows,) if width is None else (self._n_rows, width)
        self.file.seek(0)
        dtype = npy.dtype_to_descr(self.answer.dtype)
        facts = {"descr": dtype, "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(self.file, facts)

    def write(self, table: Array) -> None:
        self._n_rows += len(table)
        self.file.write(np.ascontiguousarray(table, self.answer.dtype))

    def close(self) -> None:
        self._header()


class _ArrowWriter(Writer):
    """Parquet, Arrow or Feather."""

    def __init__(self, file: BinaryIO, answer: Answer, parquet: bool = False) -> None:
        from pyarrow import ipc
        from pyarrow.parquet import ParquetWriter

        super().__init__(file, answer)
        empty = np.empty((0, len(answer.names)), answer.dtype)
        begin = ParquetWriter if parquet else ipc.new_file
        self._made = begin(file, _arrow_table(empty, answer).schema)

    def write(self, table: Array) -> None:
        self._made.write_table(_arrow_table(table, self.answer))

    def close(self) -> None:
        self._made.close()


_KINDS: dict[str, Callable[..., Writer]] = {
    ".csv": _CsvWriter,
    ".npy": _NpyWriter,
    ".parquet": partial(_ArrowWriter, parquet=True),
    ".arrow": _ArrowWriter,
    ".feather": _ArrowWriter,
}


def _arrow_table(table: Array, answer: Answer) -> Any:
    import pyarrow as pa

    text = pa.string() if answer.dtype.kind == "U" else None
    columns = [np.ascontiguousarray(column) for column in table.T]
    return pa.table(
        [pa.array(column, text) for column in columns], names=list(answer.names)
    )
