"""The command ``predict``: the rows of a file in, a table of results out."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

import numpy as np
import typer
from numpy.lib import format as npy
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from skforge._container import replacing
from skforge._typing import Array
from skforge.cli.data import RowsFile
from skforge.cli.errors import check_output, naming
from skforge.cli.first_rows import compare_first
from skforge.cli.models import fitted, open_model, quiet
from skforge.cli.options import DataColumns, ModelFile, OutputOption, RowsArgument
from skforge.cli.screen import say
from skforge.cli.tables import Batch, merged
from skforge.cli.values import arrow_of
from skforge.exceptions import InvalidInputError, check_choice, duration, plural
from skforge.prediction.answers import Answer, described
from skforge.sources.fitted import start_of
from skforge.sources.row_spec import row_spec

#: Columns of the file of rows that are copied: by name, arrays of NumPy or Arrow.
Copied: TypeAlias = Mapping[str, Any]
#: Writes some rows of results, which have two axes, below those before, and beside what
#: is copied.
Write: TypeAlias = Callable[[Array, Copied], None]
_NOTHING: Copied = MappingProxyType({})


@contextmanager
def writer(
    path: Path | None, answer: Answer, copied: Copied = _NOTHING
) -> Iterator[Write]:
    """Yield what writes; until the block ends without an error, the old file stays.

    ``copied`` are the first rows of what is copied.
    """
    if path is None:
        try:
            with _csv(lambda x: sys.stdout.write(x.decode()), answer, copied) as write:
                yield write
            sys.stdout.flush()
        except BrokenPipeError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit from error  # ``head``, for example, has seen enough
        return
    with replacing(Path(os.path.realpath(path))) as file, ExitStack() as stack:
        try:
            begin = _KINDS[path.suffix.lower()]
            write = stack.enter_context(begin(file, answer, copied))
        except ImportError as error:
            raise InvalidInputError(
                f"Writing {path.name} needs pyarrow: pip install pyarrow."
            ) from error
        yield write


@contextmanager
def _csv(
    put: Callable[[bytes], object], answer: Answer, copied: Copied
) -> Iterator[Write]:
    try:
        from pyarrow import csv as arrow
    except ImportError:
        arrow = None
    head: list[Iterable[str]] = [[*copied, *answer.names]]

    def write(table: Array, copied: Copied = _NOTHING) -> None:
        by_arrow = arrow is not None and table.dtype.kind in "fiu"
        results = _arrow_columns(table, answer) if by_arrow else table.T.astype(str)
        lines = None
        if by_arrow:
            texts = [_arrow_texts(name, column) for name, column in copied.items()]
            lines = _lines(arrow, [*texts, *results])
        text, rows = io.StringIO(), [*head]
        head.clear()  # an error in the first rows leaves nothing printed
        if lines is None:
            cells = chain(copied.items(), zip(answer.names, results, strict=True))
            rows += zip(*(_texts(name, column) for name, column in cells), strict=True)
        csv.writer(text, lineterminator="\n").writerows(rows)
        put(text.getvalue().encode() + (lines or b""))

    yield write


def _lines(arrow: Any, columns: list[Any]) -> bytes | None:
    """Return lines of CSV; None if a text needs quotes, as Arrow quotes all or none."""
    import pyarrow as pa

    options = arrow.WriteOptions(include_header=False, quoting_style="none")
    buffer = io.BytesIO()
    with suppress(pa.ArrowInvalid):
        names = [str(i) for i in range(len(columns))]
        arrow.write_csv(pa.table(columns, names), buffer, options)
        return buffer.getvalue()
    return None


def _texts(name: str, column: Any) -> list[str]:
    if isinstance(column, np.ndarray):
        return [*map(str, column.tolist())]
    return [cell or "" for cell in _arrow_texts(name, column).to_pylist()]


def _arrow_texts(name: str, column: Any) -> Any:
    import pyarrow as pa

    column = _arrow_column(column)
    try:
        return column.cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            f"--keep {name}: the column has values of type {column.type}, which CSV "
            "does not hold; write .parquet, .arrow or .feather."
        ) from error


def _arrow_column(column: Any) -> Any:
    """Return a column of Arrow; categories become values, as batches have others."""
    import pyarrow as pa

    if isinstance(column, np.ndarray):
        return pa.array(np.ascontiguousarray(column))
    coded = pa.types.is_dictionary(column.type)
    return column.dictionary_decode() if coded else column


@contextmanager
def _npy_file(file: Any, answer: Answer, _: Copied) -> Iterator[Write]:
    """Write the header again when the number of rows is known: NumPy leaves room."""
    more = () if answer.width is None else (answer.width,)
    n_rows = 0

    def begin() -> None:
        file.seek(0)
        dtype = npy.dtype_to_descr(answer.dtype)
        facts = {"descr": dtype, "fortran_order": False, "shape": (n_rows, *more)}
        npy.write_array_header_1_0(file, facts)

    def write(table: Array, copied: Copied = _NOTHING) -> None:
        nonlocal n_rows
        n_rows += len(table)
        file.write(np.ascontiguousarray(table, answer.dtype))

    begin()
    yield write
    begin()


@contextmanager
def _arrow_file(
    file: Any, answer: Answer, copied: Copied, parquet: bool = False
) -> Iterator[Write]:
    from pyarrow import ipc
    from pyarrow.parquet import ParquetWriter

    empty = np.empty((0, len(answer.names)), answer.dtype)
    first = {name: column[:0] for name, column in copied.items()}
    begin = ParquetWriter if parquet else ipc.new_file
    with begin(file, _arrow_table(empty, answer, first).schema) as out:

        def write(table: Array, copied: Copied = _NOTHING) -> None:
            out.write_table(_arrow_table(table, answer, copied))

        yield write


_KINDS: dict[str, Callable[..., AbstractContextManager[Write]]] = {
    ".csv": lambda file, *what: _csv(file.write, *what),
    ".parquet": partial(_arrow_file, parquet=True),
    ".arrow": _arrow_file,
    ".feather": _arrow_file,
    ".npy": _npy_file,
}


def _arrow_columns(table: Array, answer: Answer) -> list[Any]:
    import pyarrow as pa

    if answer.dtype.kind in "fiu":
        return [arrow_of(column) for column in table.T]
    text = pa.string() if answer.dtype.kind == "U" else None
    return [pa.array(np.ascontiguousarray(column), text) for column in table.T]


def _arrow_table(table: Array, answer: Answer, copied: Copied) -> Any:
    import pyarrow as pa

    columns = [*map(_arrow_column, copied.values()), *_arrow_columns(table, answer)]
    return pa.table(columns, names=[*copied, *answer.names])


def _bar(total: int | None) -> Progress:
    return Progress(
        TextColumn("predicting"),
        BarColumn(),
        *([] if total is None else [TaskProgressColumn()]),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def _speed(n_rows: int, seconds: float) -> str:
    two_digits = f"{n_rows / max(seconds, 1e-9):.2g}"
    return f"{int(float(two_digits)):,} rows/s"


#: The values of ``--method``, and the methods of a model.
METHODS = {
    "predict": "predict",
    "proba": "predict_proba",
    "raw": "predict_raw",
    "contribs": "predict_contribs",
}

#: Rows on which a model is checked when it is compiled.
_CHECKED = 1000


def predict(
    model_file: ModelFile,
    rows_file: RowsArgument,
    output: OutputOption[Path | None] = None,
    method: str | None = None,
    contribs: bool = False,
    columns: DataColumns = None,
    keep: Annotated[str | None, typer.Option(metavar="COLUMNS")] = None,
) -> None:
    """Predict the rows of a file, however large it is.

    :param output: The file to write: .csv, .parquet, .arrow, .feather or .npy.
        Default: print CSV.
    :param keep: Columns of the rows to copy to the output, such as a key: names with
        commas, or a range such as 0:1.
    :param method: What to compute: predict, proba, raw or contribs.
    :param contribs: Short for --method contribs.
    """
    began, name = perf_counter(), _method(method, contribs)
    if output is not None:
        check_output(output, *_KINDS)
        if output.exists() and rows_file.exists() and output.samefile(rows_file):
            raise InvalidInputError(f"{output} has the rows; name another output.")
        if keep is not None and output.suffix.lower() == ".npy":
            raise InvalidInputError(
                f"{output} can hold results alone; with --keep, write .csv, .parquet, "
                ".arrow or .feather."
            )
    opened = open_model(model_file)
    with RowsFile(rows_file, row_spec(opened), columns, keep) as file:
        batches = file.batches()
        first = next(batches)
        file.enter_context(naming(file.table.name))
        model = fitted(opened, file.rows(first[:_CHECKED]))
        answer, call = _described(model, name), quiet(model, name)
        copied = file.copied(first)
        _check_names(copied, answer)
        bar, start, n_rows = _bar(file.table.total), perf_counter(), 0
        task = bar.add_task("", total=file.table.total)
        parts: Iterable[Batch] = chain([first], batches)
        by_place = model.forest_.outputs.graph is not None  # a row's bits may depend
        if by_place or start_of(model) is not None:  # steps of libraries need all rows
            parts = [merged([*parts])]
            file.before = 0
        with writer(output, answer, copied) as write, bar:
            for batch in parts:
                rows = file.rows(batch)
                values = call(rows)
                if not n_rows:
                    compare_first(model_file, opened, file, model, name, rows, values)
                values = values.reshape(len(batch), -1)
                values = values.astype(answer.dtype, copy=False)
                write(values, file.copied(batch))
                n_rows += len(batch)
                told = f"{n_rows:,} rows, {_speed(n_rows, perf_counter() - start)}"
                bar.update(task, completed=file.table.done, description=told)
        end, done = perf_counter(), plural(n_rows, "row")
        if output is not None:
            width = plural(len(copied) + len(answer.names), "column")
            done = f"saved {output}: {done}, {width}"
        opened_in, speed = duration(start - began), _speed(n_rows, end - start)
        told = f"{done} in {duration(end - began)}: {opened_in} to open, then {speed}"
        say(told, stderr=True)


def _method(method: str | None, contribs: bool) -> str:
    asked = method or ("contribs" if contribs else "predict")
    check_choice("--method", asked, METHODS)
    if contribs and asked != "contribs":
        raise InvalidInputError(
            f"--contribs is short for --method contribs, and --method {asked} is given "
            "as well; give one of them."
        )
    return METHODS[asked]


def _check_names(copied: Copied, answer: Answer) -> None:
    for name in copied:
        if name in answer.names:
            raise InvalidInputError(
                f"--keep {name}: the column of results is called {name!r}, too; rename "
                "the column of the rows."
            )


def _described(model: Any, name: str) -> Answer:
    answer = described(model, name)
    if answer.dtype != object:
        return answer
    classes = model.classes_
    every = classes if isinstance(classes, list) else [classes]
    texts = [str(label) for labels in every for label in labels]
    return replace(answer, dtype=np.array(texts).dtype)
