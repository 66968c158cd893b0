"""What ``export`` does: a model file to a C library, with its sizes printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from skforge.cli.tune import is_own
from skforge.exceptions import InvalidInputError


def export_file(
    console: Console,
    model_file: Path,
    output: Path,
    kind: str,
    targets: Sequence[str],
    **options: Any,
) -> None:
    """Export a model file of a source library, or one that skforge saved.

    ``options`` are those of :func:`skforge.export`.
    """
    import skforge

    own = is_own(model_file)
    model = skforge.load(model_file) if own else skforge.load_forest(model_file)
    try:
        folder = skforge.export(model, output, kind, targets, **options)
    except InvalidInputError as error:
        text = str(error).replace("overwrite=True", "--overwrite")
        raise InvalidInputError(text) from error
    except OSError as error:
        raise InvalidInputError(
            f"{output} cannot be written: {error.strerror}."
        ) from error
    for file in sorted(folder.iterdir()):
        line = f"{output / file.name}  {file.stat().st_size:,} bytes"
        console.print(line, soft_wrap=True)
        if file.suffix == ".json":
            facts = json.loads(file.read_text(encoding="utf-8"))
    sizes = facts["sizes"]
    console.print(
        f"{facts['library']}: {sizes['per_tree']:,} bytes a tree, "
        f"{sizes['scratch_per_thread']:,} of scratch for each thread, functions "
        f"{', '.join(facts['functions'])}",
        soft_wrap=True,
    )
    for function, why in facts["left_out"].items():
        console.print(f"without {function}: {why}", soft_wrap=True)
    if not facts["verified_here"]:
        console.print("not run here: compare it with the model on its own machine")
