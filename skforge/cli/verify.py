"""The command ``verify``: a compiled model beside its source, on rows of yours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import typer
from rich.text import Text

from skforge._typing import Array
from skforge.cli import options
from skforge.cli.data import RowsFile
from skforge.cli.errors import MISMATCH, naming
from skforge.cli.frames import Rows, read_rows
from skforge.cli.library import METHODS, ModelLibrary, NoLibraryError, library_of
from skforge.cli.models import fitted, forest_of, live_model, open_model, quiet
from skforge.cli.report import new_table, title
from skforge.cli.screen import screen, show
from skforge.exceptions import InvalidInputError, SkforgeError, shortened
from skforge.prediction.answers import as_array
from skforge.sources.row_spec import row_spec

#: Files of rows as services log them: an object of JSON in each line.
_LINES = (".jsonl", ".ndjson")


class _Form(NamedTuple):
    """The same rows for both: as FILE gets them, and as the library takes them."""

    name: str
    rows: Any
    library_rows: Any


T = TypeVar("T")

SourceModel = Annotated[
    T,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="The model that the file was made from: its library's file or a pickle.",
    ),
]
SourceRows = Annotated[
    T,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="The rows: a file of rows, or .jsonl with an object in each line.",
    ),
]


def verify(
    model_file: options.ModelFile,
    model: SourceModel[Path],
    data: SourceRows[Path],
    columns: options.DataColumns = None,
    rows: Annotated[int | None, typer.Option(min=1)] = None,
) -> None:
    """Compare the answers of a saved model with those of the model it was made from.

    :param rows: Compare the first rows alone. Default: all.
    """
    beside(model_file.name, open_model(model_file), model, data, columns, rows)


def beside(
    name: str,
    opened: Any,
    model: Path,
    data: Path,
    columns: str | None = None,
    rows: int | None = None,
) -> None:
    """Print the comparison of an open model with its source; exit if they differ."""
    console, judge = screen(), open_model(model)
    library = _library(model, judge)
    with naming(data.name):
        given, logged, places = _read(data, judge, columns, rows)
        frame = library.frame(given, places)
        fast = fitted(opened, frame)
        methods = [m for m in _methods(library) if hasattr(fast, m)]
        found = [
            _compared(library, fast, method, form)
            for form in _forms(library, frame, logged)
            for method in methods
        ]
    title(console, f"{name} beside {model.name}, bit by bit")
    numbers = ("rows", "differ")
    table = new_table("method", "rows as", *numbers, "first difference", right=numbers)
    for one in found:
        style = "red" if one.n else "green" if one.n == 0 else "dim"
        n = "" if one.n is None else f"{one.n:,}"
        told = Text(one.told, style=style)
        table.add_row(one.method, one.form, f"{len(frame):,}", n, told)
    show(console, table)
    if all(one.n is None for one in found):
        raise InvalidInputError(
            f"{name} answers none of {data.name} by a method that "
            f"{model.name} has, so nothing was compared."
        )
    if any(one.n for one in found):
        raise typer.Exit(MISMATCH)


class _Compared(NamedTuple):
    method: str
    form: str
    #: Rows that differ; None if nothing was compared.
    n: int | None
    told: str


def _compared(library: ModelLibrary, fast: Any, method: str, form: _Form) -> _Compared:
    from skforge.prediction.differences import difference

    try:
        answer = library.answer(method, form.library_rows)
    except Exception as error:
        if form.name == "a frame":
            raise  # the rows are wrong, whatever their form
        why = (str(error) or type(error).__name__).splitlines()[0]
        return _Compared(method, form.name, None, shortened(f"refused: {why}", 80))
    expected = _labelled(library, fast, method, as_array(answer))
    try:
        found = quiet(fast, method)(form.rows)
    except SkforgeError as error:
        told = shortened(f"not answered: {error}", 80)
        return _Compared(method, form.name, None, told)
    if method == "apply":  # libraries have numbers of leaves in several types
        found = found.reshape(len(found), -1)
        expected = expected.astype(found.dtype).reshape(len(found), -1)
    gap = difference(found, expected)
    if gap is None:
        return _Compared(method, form.name, 0, "")
    told = f"row {gap.rows[0] + 1} has {gap.value}, not {gap.expected}"
    return _Compared(method, form.name, len(gap.rows), shortened(told, 200))


def _library(path: Path, judge: Any) -> ModelLibrary:
    try:
        forest = None if live_model(judge) is not None else forest_of(judge)
        library = library_of(path, judge, forest, row_spec(judge))
    except NoLibraryError as error:
        raise InvalidInputError(f"Nothing can be compared: {error}.") from error
    if library is None:
        raise InvalidInputError(
            f"{path.name} holds no model that its own library can answer for; name the "
            "file or the pickle of the model that was compiled."
        )
    return library


def _methods(library: ModelLibrary) -> list[str]:
    return [m for m in (*METHODS, "predict_raw") if m in library.answers]


def _labelled(library: ModelLibrary, fast: Any, method: str, answer: Array) -> Array:
    """Return labels in place of the numbers of classes, as ``fast`` was saved."""
    classes = getattr(fast, "classes_", None)
    if not library.numbered or method != "predict" or classes is None:
        return answer
    if np.array_equal(classes, np.arange(len(classes))):
        return answer
    return np.asarray(classes)[answer.astype(int)]


def _read(
    path: Path, judge: Any, columns: str | None, n: int | None
) -> tuple[Rows, list[Any] | None, Any]:
    """Return rows, mappings if these were logged, and what --columns chooses."""
    if path.suffix.lower() in _LINES:
        if columns is not None:
            raise InvalidInputError(
                f"--columns chooses columns of tables; in {path.name} each value has "
                "its name."
            )
        from pandas import DataFrame

        logged = [*_mappings(path, n)]
        return Rows(DataFrame(logged)), logged, None
    with RowsFile(path, row_spec(judge), columns) as file:
        return read_rows(file.table, n), None, file.chosen


def _mappings(path: Path, n: int | None) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        found = 0
        for number, line in enumerate(file, 1):
            if found == n:
                return
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise InvalidInputError(
                    f"Line {number} of {path.name} is no object of JSON such as "
                    '{"age": 41, "city": "Rome"}.'
                )
            found += 1
            yield row
    if not found:
        raise InvalidInputError(f"{path.name} has no rows; give at least one.")


def _forms(
    library: ModelLibrary, frame: Any, logged: list[Any] | None
) -> Iterator[_Form]:
    """Yield the forms in which FILE may get the rows, as far as they can have them."""
    taken = library.taken(frame)
    yield _Form("a frame", frame, taken)
    if all(getattr(dtype, "kind", "O") in "biuf" for dtype in frame.dtypes):
        array = frame.to_numpy()
        yield _Form("an array", array, array if taken is frame else taken)
    if library.names is not None:
        narrow = frame.select_dtypes("float32").columns
        wide = frame.astype(dict.fromkeys(narrow, np.float64))
        taken_wide = library.taken(wide)
        yield _Form("mappings", logged or wide.to_dict("records"), taken_wide)
        yield _Form("columns", wide.to_dict("list"), taken_wide)
    for module, name, make in _TABLES:
        if find_spec(module):
            with suppress(Exception):  # some columns have values of several types
                yield _Form(name, make(frame), taken)


def _polars(frame: Any) -> Any:
    import polars

    return polars.from_pandas(frame)


def _arrow(frame: Any) -> Any:
    import pyarrow

    return pyarrow.Table.from_pandas(frame, preserve_index=False)


_TABLES = (("polars", "Polars", _polars), ("pyarrow", "Arrow", _arrow))
