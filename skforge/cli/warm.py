"""The command ``warm``: fill the cache that a service's processes start from."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from skforge.cli.models import open_model
from skforge.cli.screen import say
from skforge.exceptions import InvalidInputError
from skforge.runtime import object_cache

#: The names of the cache's entries.
_ENTRY = re.compile("[0-9a-f]{64}")


def warm(
    model_files: Annotated[
        list[Path], typer.Argument(metavar="MODELS", exists=True, dir_okay=False)
    ],
    contribs: bool = False,
    n_jobs: int | None = None,
    shared: bool = False,
) -> None:
    """Compile saved models now, so that no process that loads them has to.

    For images: the cache holds code for this CPU and this release alone.

    :param model_files: Files of skforge.save.
    :param contribs: Compile SHAP values, too.
    :param n_jobs: Threads of the service, if it sets others than the model has.
    :param shared: Let other users read the cache.
    """
    from skforge.runtime.facts import note_llvm_version

    folder = object_cache.directory()
    if folder is None or not object_cache.is_writable():
        raise InvalidInputError(
            f"The cache ({folder or 'SKFORGE_CACHE=off'}) cannot be written. Set "
            "SKFORGE_CACHE_DIR to a folder of yours, and do not set SKFORGE_CACHE."
        )
    for path in model_files:
        model = open_model(path)
        if not hasattr(model, "warm_up"):
            raise InvalidInputError(
                f"{path.name} holds no compiled model. Give a file that skforge.save "
                "wrote of a CompiledForest."
            )
        if n_jobs is not None:
            model.n_jobs = n_jobs
        model.warm_up(contribs=contribs)
    note_llvm_version()
    entries = [file for file in Path(folder).glob("*/*") if _ENTRY.fullmatch(file.name)]
    sizes = []
    for place in {Path(folder), *(file.parent for file in entries)} if shared else ():
        place.chmod(0o755)
    for file in entries:
        with suppress(FileNotFoundError):  # another process has removed it
            sizes.append(file.stat().st_size)
            if shared:
                file.chmod(0o644)
    say(f"{folder}: {len(sizes)} entries, {sum(sizes):,} bytes")
