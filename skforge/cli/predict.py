"""The command ``predict``: rows of a file in, a table of results out."""

from __future__ import annotations

import csv
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, TextIO

import numpy as np
import typer
from numpy.typing import NDArray

from skforge.cli.data import load_rows
from skforge.cli.errors import check_output
from skforge.cli.options import DataColumns, ModelFile
from skforge.cli.tune import is_own
from skforge.exceptions import InvalidInputError, SkforgeError

#: The values of ``--method``, and the methods of a model.
METHODS = {
    "predict": "predict",
    "proba": "predict_proba",
    "raw": "predict_raw",
    "contribs": "predict_contribs",
}


def predict(
    model_file: ModelFile,
    rows_file: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            readable=True,
            help="Rows: .npy, .csv or .parquet.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="A .csv, .parquet or .npy; default: CSV, printed."
        ),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="predict, proba, raw or contribs.")
    ] = None,
    contribs: Annotated[
        bool, typer.Option("--contribs", help="Short for --method contribs.")
    ] = False,
    columns: DataColumns = None,
) -> None:
    """Predict the rows of a file, or explain them with --contribs."""
    name = _method(method, contribs)
    if output is not None:
        check_output(output, ".csv", ".parquet", ".npy")
    from skforge.prediction.answers import as_array, described

    model, rows = _model_and_rows(model_file, rows_file, columns)
    answer = described(model, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # names were compared above
        try:
            found = getattr(model, name)(rows)
        except ValueError as error:  # what the source says of values it refuses
            if isinstance(error, SkforgeError):
                raise
            why = str(error).splitlines()[0]
            raise InvalidInputError(f"{rows_file.name} is refused: {why}") from error
    table = as_array(found).reshape(len(rows), -1)
    if output is None:
        _print_csv(table, answer.names)
        return
    _write(output, table, answer.names)
    typer.echo(f"saved {output}: {len(table):,} rows, {table.shape[1]:,} columns")


def _method(method: str | None, contribs: bool) -> str:
    """Return the model's method that the options ask for."""
    asked = method or ("contribs" if contribs else "predict")
    if asked not in METHODS:
        raise InvalidInputError(
            f"--method is one of {', '.join(METHODS)}, not {asked!r}."
        )
    if contribs and asked != "contribs":
        raise InvalidInputError(
            f"--contribs is --method contribs, and {asked} is asked for as well; give "
            "one of them."
        )
    return METHODS[asked]


def _model_and_rows(
    model_file: Path, rows_file: Path, columns: str | None
) -> tuple[Any, NDArray[Any]]:
    """Return a compiled model, and its rows as the forest reads them."""
    from skforge import CompiledForest, load, load_forest

    model = load(model_file) if is_own(model_file) else None
    forest = getattr(model, "forest_", getattr(model, "forest", model))
    forest = load_forest(model_file) if forest is None else forest
    rows = load_rows(rows_file, forest, columns)
    assert rows is not None
    if not isinstance(model, CompiledForest):
        known = model_file if model is None else forest
        model = CompiledForest(known, tuning="off").fit(rows)
    return model, rows


def _print_csv(table: NDArray[Any], names: tuple[str, ...]) -> None:
    try:
        _write_csv(sys.stdout, table, names)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_csv(file: TextIO, table: NDArray[Any], names: tuple[str, ...]) -> None:
    """Write a table; each number has the digits that give its bits again."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for first in range(0, len(table), 1024):
        writer.writerows(table[first : first + 1024].astype(str).tolist())


def _write(path: Path, table: NDArray[Any], names: tuple[str, ...]) -> None:
    match path.suffix.lower():
        case ".csv":
            with path.open("w", encoding="utf-8", newline="") as file:
                _write_csv(file, table, names)
        case ".npy":
            np.save(path, table.astype(str) if table.dtype == object else table)
        case _:
            try:
                from pandas import DataFrame

                DataFrame(table, columns=list(names)).to_parquet(path, index=False)
            except ImportError as error:
                raise InvalidInputError(
                    f"Writing {path.name} needs pandas and pyarrow: pip install pandas "
                    "pyarrow."
                ) from error
