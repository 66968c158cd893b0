"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelFile = Annotated[
    Path,
    typer.Argument(
        exists=True, dir_okay=False, readable=True, help="A model file to load."
    ),
]
DataFile = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        readable=True,
        help="Rows: .npy, .csv or .parquet; default: drawn around thresholds.",
    ),
]
DataColumns = Annotated[
    str | None, typer.Option(help="Columns of the data to take, such as 0:13.")
]
ScheduleOption = Annotated[
    str | None,
    typer.Option(help="A preset's name, JSON text or a .json file; default: chosen."),
]
SecondsOption = Annotated[
    float, typer.Option(min=0.01, help="Seconds to measure for, a batch size.")
]
RunTarget = Annotated[
    str, typer.Option(help="cpu, cuda, hip, emulated, emulated-source or auto.")
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
