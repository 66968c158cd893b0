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
DataFile = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        readable=True,
        help="A file of rows to use. Default: rows drawn around the thresholds.",
    ),
]
DataColumns = Annotated[
    str | None,
    typer.Option(
        help="The columns that are the features: a range such as 0:13, or names with "
        "commas."
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
