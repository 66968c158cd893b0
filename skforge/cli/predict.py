"""The command ``predict``: the rows of a file in, a table of results out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from skforge.cli.data import RowsFile, no_rows
from skforge.cli.errors import check_output, naming, say
from skforge.cli.models import fitted, open_model
from skforge.cli.needs import needs_of
from skforge.cli.options import DataColumns, ModelFile, RowsArgument
from skforge.cli.progress import RowsProgress
from skforge.cli.report import count
from skforge.cli.results import ENDINGS, ReaderGoneError, writer
from skforge.cli.tables import Batch, merged
from skforge.exceptions import InvalidInputError

if TYPE_CHECKING:
    from skforge.prediction.answers import Answer

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
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to write, in one of these formats. Default: print CSV.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="What to compute: predict, proba, raw or contribs."),
    ] = None,
    contribs: Annotated[
        bool, typer.Option("--contribs", help="Short for --method contribs.")
    ] = False,
    columns: DataColumns = None,
) -> None:
    """Predict the rows of a file, however large it is."""
    name = _method(method, contribs)
    if output is not None:
        check_output(output, *ENDINGS)
        if output.exists() and rows_file.exists() and output.samefile(rows_file):
            raise InvalidInputError(f"{output} has the rows; name another output.")
    opened = open_model(model_file)
    with ExitStack() as stack:
        file = stack.enter_context(RowsFile(rows_file, needs_of(opened), columns))
        batches = file.batches()
        first = next(batches, None)
        if first is None:
            raise no_rows(file.table.name)
        stack.enter_context(naming(file.table.name))
        model = fitted(opened, file.rows(first.first(min(first.n_rows, _CHECKED))))
        asked = _described(model, name)
        progress = RowsProgress("predicting", file.table.total)
        try:
            with writer(output, asked) as made, progress:
                for batch in _batches(file, model, chain([first], batches)):
                    rows = file.rows(batch)
                    table = _answer(model, name, rows)
                    made.write(table.astype(asked.dtype, copy=False))
                    progress.add(batch.n_rows, file.table.done)
        except ReaderGoneError:
            return
        done = count(progress.n_rows, "row")
        if output is not None:
            done = f"saved {output}: {done}, {count(len(asked.names), 'column')}"
        say(progress.closing(done))


def _batches(file: RowsFile, model: Any, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches; as one if steps that run in their library may need that."""
    from skforge.sources.delegation import start_of

    if start_of(model) is None:
        return batches
    every = list(batches)
    file.before = 0
    return iter([merged(every)])


def _method(method: str | None, contribs: bool) -> str:
    """Return the model's method that the options ask for."""
    asked = method or ("contribs" if contribs else "predict")
    if asked not in METHODS:
        raise InvalidInputError(
            f"--method is one of {', '.join(METHODS)}, not {asked!r}."
        )
    if contribs and asked != "contribs":
        raise InvalidInputError(
            f"--contribs is short for --method contribs, and --method {asked} is given "
            "as well; give one of them."
        )
    return METHODS[asked]


def _described(model: Any, name: str) -> Answer:
    """Return a method's result type; labels that are objects become texts."""
    from skforge.prediction.answers import described

    answer = described(model, name)
    if answer.dtype != object:
        return answer
    classes = model.classes_
    every = classes if isinstance(classes, list) else [classes]
    texts = [str(label) for labels in every for label in labels]
    return replace(answer, dtype=np.array(texts).dtype)


def _answer(model: Any, name: str, rows: Any) -> Any:
    """Return a method's result for some rows, as a table."""
    from skforge.prediction.answers import as_array

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # columns were found by name
        return as_array(getattr(model, name)(rows)).reshape(len(rows), -1)
