"""The command ``convert``: a file of an older format, as one of today's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skforge._container import container_bytes
from skforge._version import FORMAT, __version__
from skforge.cli import options
from skforge.cli.errors import check_output
from skforge.cli.screen import say
from skforge.cli.verify import SourceModel, SourceRows, beside
from skforge.exceptions import InvalidInputError
from skforge.frontends.content import CONVERTED, HEAD


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
    """Write a .skforge file of an older release, or XGBoost's old binary file, anew."""
    from skforge.persistence.artifact import write
    from skforge.persistence.convert import ROWS, converted
    from skforge.persistence.loading import load, read

    with old.open("rb") as file:
        if CONVERTED.match(file.read(HEAD)):
            return _to_json(old, new, model is not None or data is not None)
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
    say(
        f"saved {new}: format {FORMAT} of skforge {__version__}, from format "
        f"{found.format} of {found.release}"
    )
    say(
        "its machine code agrees with a plain walk over the old file's trees, for "
        f"{ROWS} random rows around the thresholds"
    )
    if model is None:
        say(
            "not compared with the model that it was made from: skforge verify "
            f"{new} --model MODEL --data ROWS does that"
        )


def _to_json(old: Path, new: Path, asks: bool) -> None:
    from skforge import load_forest
    from skforge.persistence.convert import rewritten, write_json
    from skforge.persistence.loading import read

    check_output(new, ".json")
    if asks:
        raise InvalidInputError(
            f"--model and --data are for .skforge files, and {old.name} is one of "
            f"XGBoost; skforge predict {new.name} ROWS answers by it."
        )
    text = read(old, rewritten, CONVERTED)
    assert isinstance(text, bytes)
    write_json(text, new)
    forest = load_forest(text)
    say(f"saved {new}: {forest.n_trees:,} trees, in the JSON of XGBoost 3.0")
    say(
        "it was read back, and has the trees and base scores of the old file; "
        f"XGBoost reads it: xgboost.Booster(model_file='{new}')"
    )
