"""The command ``convert``: a saved model of an older release, for this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skforge._version import FORMAT, __version__
from skforge.cli.errors import check_output


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
) -> None:
    """Write a .skforge file of an older release anew, in the format of this one."""
    from skforge.persistence.artifact import write
    from skforge.persistence.convert import ROWS, converted
    from skforge.persistence.loading import read

    check_output(new, ".skforge")
    found = read(old, converted)
    write(found.contents, new)
    typer.echo(
        f"saved {new}: format {FORMAT} of skforge {__version__}, from format "
        f"{found.format} of {found.release}"
    )
    typer.echo(
        "its machine code agrees with a plain walk over the old file's trees, for "
        f"{ROWS} rows drawn around the thresholds"
    )
    typer.echo(
        "not compared with the model that it was made from: skforge verify "
        f"{new} --model MODEL --data ROWS does that"
    )
