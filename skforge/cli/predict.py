"""The command ``predict``: the rows of a file in, a table of results out."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

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
from skforge.cli.tables import Batch, merged
from skforge.exceptions import InvalidInputError, check_choice, duration, plural
from skforge.prediction.answers import Answer, described
from skforge.sources.fitted import start_of
from skforge.sources.row_spec import row_spec

#: Writes some rows, which have two axes, below those before.
Write: TypeAlias = Callable[[Array], None]


@contextmanager
def writer(path: Path | None, answer: Answer) -> Iterator[Write]:
    """Yield what writes; until the block ends without an error, the old file stays."""
    if path is None:
        try:
            with _csv(lambda x: sys.stdout.write(x.decode()), answer) as write:
                yield write
            sys.stdout.flush()
        except BrokenPipeError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit from error  # ``head``, for example, has seen enough
        return
    with replacing(Path(os.path.realpath(path))) as file, ExitStack() as stack:
        try:
            write = stack.enter_context(_KINDS[path.suffix.lower()](file, answer))
        except ImportError as error:
            raise InvalidInputError(
                f"Writing {path.name} needs pyarrow: pip install pyarrow."
            ) from error
        yield write


@contextmanager
def _csv(put: Callable[[bytes], object], answer: Answer) -> Iterator[Write]:
    try:
        from pyarrow import csv as arrow
    except ImportError:
        arrow = None
    head = [answer.names]

    def write(table: Array) -> None:
        text, rows = io.StringIO(), [*head]
        head.clear()  # an error in the first rows leaves nothing printed
        by_arrow = arrow is not None and table.dtype.kind in "fiu"
        if not by_arrow:
            rows += table.astype(str).tolist()
        csv.writer(text, lineterminator="\n").writerows(rows)
        put(text.getvalue().encode())
        if by_arrow:
            buffer, options = io.BytesIO(), arrow.WriteOptions(include_header=False)
            arrow.write_csv(_arrow_table(table, answer), buffer, options)
            put(buffer.getvalue())

    yield write


@contextmanager
def _npy_file(file: Any, answer: Answer) -> Iterator[Write]:
    """Write the header again when the number of rows is known: NumPy leaves room."""
    more = () if answer.width is None else (answer.width,)
    n_rows = 0

    def begin() -> None:
        file.seek(0)
        dtype = npy.dtype_to_descr(answer.dtype)
        facts = {"descr": dtype, "fortran_order": False, "shape": (n_rows, *more)}
        npy.write_array_header_1_0(file, facts)

    def write(table: Array) -> None:
        nonlocal n_rows
        n_rows += len(table)
        file.write(np.ascontiguousarray(table, answer.dtype))

    begin()
    yield write
    begin()


@contextmanager
def _arrow_file(file: Any, answer: Answer, parquet: bool = False) -> Iterator[Write]:
    from pyarrow import ipc
    from pyarrow.parquet import ParquetWriter

    empty = np.empty((0, len(answer.names)), answer.dtype)
    begin = ParquetWriter if parquet else ipc.new_file
    with begin(file, _arrow_table(empty, answer).schema) as out:
        yield lambda table: out.write_table(_arrow_table(table, answer))


_KINDS: dict[str, Callable[..., AbstractContextManager[Write]]] = {
    ".csv": lambda file, answer: _csv(file.write, answer),
    ".parquet": partial(_arrow_file, parquet=True),
    ".arrow": _arrow_file,
    ".feather": _arrow_file,
    ".npy": _npy_file,
}


def _arrow_table(table: Array, answer: Answer) -> Any:
    import pyarrow as pa

    text = pa.string() if answer.dtype.kind == "U" else None
    columns = [pa.array(np.ascontiguousarray(column), text) for column in table.T]
    return pa.table(columns, names=list(answer.names))


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
) -> None:
    """Predict the rows of a file, however large it is.

    :param output: The file to write, in one of these formats. Default: print CSV.
    :param method: What to compute: predict, proba, raw or contribs.
    :param contribs: Short for --method contribs.
    """
    began, name = perf_counter(), _method(method, contribs)
    if output is not None:
        check_output(output, *_KINDS)
        if output.exists() and rows_file.exists() and output.samefile(rows_file):
            raise InvalidInputError(f"{output} has the rows; name another output.")
    opened = open_model(model_file)
    with RowsFile(rows_file, row_spec(opened), columns) as file:
        batches = file.batches()
        first = next(batches)
        file.enter_context(naming(file.table.name))
        model = fitted(opened, file.rows(first[:_CHECKED]))
        answer, call = _described(model, name), quiet(model, name)
        bar, start, n_rows = _bar(file.table.total), perf_counter(), 0
        task = bar.add_task("", total=file.table.total)
        parts: Iterable[Batch] = chain([first], batches)
        if start_of(model) is not None:  # steps in their library may need all rows
            parts = [merged([*parts])]
            file.before = 0
        with writer(output, answer) as write, bar:
            for batch in parts:
                rows = file.rows(batch)
                values = call(rows)
                if not n_rows:
                    compare_first(model_file, opened, file, model, name, rows, values)
                values = values.reshape(len(batch), -1)
                write(values.astype(answer.dtype, copy=False))
                n_rows += len(batch)
                told = f"{n_rows:,} rows, {_speed(n_rows, perf_counter() - start)}"
                bar.update(task, completed=file.table.done, description=told)
        end, done = perf_counter(), plural(n_rows, "row")
        if output is not None:
            done = f"saved {output}: {done}, {plural(len(answer.names), 'column')}"
        opened_in, speed = duration(start - began), _speed(n_rows, end - start)
        told = f"{done} in {duration(end - began)}: {opened_in} to open, then {speed}"
        typer.echo(told, err=True)


def _method(method: str | None, contribs: bool) -> str:
    asked = method or ("contribs" if contribs else "predict")
    check_choice("--method", asked, METHODS)
    if contribs and asked != "contribs":
        raise InvalidInputError(
            f"--contribs is short for --method contribs, and --method {asked} is given "
            "as well; give one of them."
        )
    return METHODS[asked]


def _described(model: Any, name: str) -> Answer:
    answer = described(model, name)
    if answer.dtype != object:
        return answer
    classes = model.classes_
    every = classes if isinstance(classes, list) else [classes]
    texts = [str(label) for labels in every for label in labels]
    return replace(answer, dtype=np.array(texts).dtype)
