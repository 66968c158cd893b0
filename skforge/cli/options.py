"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelFile = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        exists=True,
        dir_okay=False,
        readable=True,
        help="The model: a file of XGBoost, LightGBM or ONNX, .skforge, .joblib or "
        ".pkl.",
    ),
]


def _is_there(path: Path | None) -> Path | None:
    """Return the path of a file or pipe; ``-`` is standard input."""
    if path is not None and str(path) != "-" and (path.is_dir() or not path.exists()):
        problem = "is a directory" if path.is_dir() else "does not exist"
        raise typer.BadParameter(f"file {str(path)!r} {problem}.")
    return path


RowsArgument = Annotated[
    Path,
    typer.Argument(
        metavar="ROWS",
        callback=_is_there,
        help="The rows: .csv, .parquet, .arrow, .feather or .npy; - reads CSV from "
        "standard input.",
    ),
]
DataFile = Annotated[
    Path | None,
    typer.Option(
        callback=_is_there,
        help="A file of rows to use. Default: rows drawn around the thresholds.",
    ),
]
DataColumns = Annotated[
    str | None,
    typer.Option(
        help="The columns that are the features, in the order of training: names with "
        "commas, or a range such as 0:13."
    ),
]
ScheduleOption = Annotated[
    str | None,
    typer.Option(
        help="The schedule: a preset, JSON, what inspect --level schedule prints, a "
        "file with one of these, or - for standard input. Default: chosen by skforge."
    ),
]
SecondsOption = Annotated[
    float, typer.Option(min=0.01, help="Seconds to measure each batch size.")
]
RunTarget = Annotated[
    str,
    typer.Option(help="Where to run: cpu, cuda, hip, auto or emulated."),
]


def sizes_of(text: str) -> list[int]:
    """Parse the numbers of rows in ``--batch-sizes``."""
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise typer.BadParameter(
            f"{text!r} is not a list of positive numbers such as 1,64,4096.",
            param_hint="--batch-sizes",
        )
    return sizes
