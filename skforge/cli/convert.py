"""The command ``convert``: a saved model of an older release, for this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skforge._container import container_bytes
from skforge._version import FORMAT, __version__
from skforge.cli import options
from skforge.cli.errors import check_output
from skforge.cli.verify import SourceModel, SourceRows, beside
from skforge.exceptions import InvalidInputError


def convert(
    old: Annotated[
        Path,
        typer.Argument(
            metavar="OLD", exists=True, dir_okay=False, help="The file to read."
        ),
    ],
    new: Annotated[
        Path,
        typer.Argument(metavar="NEW", help="The file to write; it may be the same."),
    ],
    model: SourceModel[Path | None] = None,
    data: SourceRows[Path | None] = None,
    columns: options.DataColumns = None,
) -> None:
    """Write a .skforge file of an older release anew, in the format of this one."""
    from skforge.persistence.artifact import write
    from skforge.persistence.convert import ROWS, converted
    from skforge.persistence.loading import load, read

    check_output(new, ".skforge")
    if (model is None) != (data is None):
        raise InvalidInputError(
            "--model and --data belong together: the answers of both models to these "
            "rows are compared."
        )
    found = read(old, converted)
    if model is not None and data is not None:
        opened = load(container_bytes(*found.contents))
        beside(new.name, opened, model, data, columns)
    write(found.contents, new)
    typer.echo(
        f"saved {new}: format {FORMAT} of skforge {__version__}, from format "
        f"{found.format} of {found.release}"
    )
    typer.echo(
        "its machine code agrees with a plain walk over the old file's trees, for "
        f"{ROWS} rows drawn around the thresholds"
    )
    if model is None:
        typer.echo(
            "not compared with the model that it was made from: skforge verify "
            f"{new} --model MODEL --data ROWS does that"
        )
