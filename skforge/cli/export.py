"""The command ``export``: write a C library and print its sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from skforge.cli.models import forest_of, open_model
from skforge.cli.options import ModelFile, sizes_of
from skforge.cli.screen import say
from skforge.exceptions import InvalidInputError


def export(
    model_file: ModelFile,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER")],
    kind: str = "object",
    target: str = "cpu",
    name: str | None = None,
    batch_sizes: str | None = None,
    apply: bool = False,
    contribs: bool = False,
    package_version: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write a model as a C library or a wheel that needs no skforge.

    :param output: The folder to create.
    :param kind: What to write: object, shared, c or wheel.
    :param target: The machine: cpu is this one, x86-64 is v2 to v4 in one file, or
        x86-64-v3, aarch64, or a list with commas.
    :param name: Prefix of all functions. Default: the folder's name.
    :param batch_sizes: Batch sizes to compile for, separated by commas.
    :param apply: Add a function that finds leaves.
    :param contribs: Add a function of SHAP values.
    :param package_version: Version of a wheel. Default: 1.0.0.
    :param overwrite: Replace an earlier export.
    """
    import skforge

    sizes = None if batch_sizes is None else sizes_of(batch_sizes)
    model = open_model(model_file)
    if not hasattr(model, "inspect"):  # a CompiledForest or CompiledModule has it
        model = forest_of(model)
    try:
        folder = skforge.export(
            model,
            output,
            cast("Any", kind),  # checked there
            target.split(","),
            name=name,
            batch_sizes=sizes,
            apply=apply,
            contribs=contribs,
            version=package_version,
            overwrite=overwrite,
        )
    except OSError as error:
        raise InvalidInputError(
            f"{output} cannot be written: {error.strerror}."
        ) from error
    for file in sorted(folder.iterdir()):
        say(f"{output / file.name}  {file.stat().st_size:,} bytes")
        if file.suffix == ".json":
            facts = json.loads(file.read_text(encoding="utf-8"))
    bytes_of = facts["sizes"]
    say(
        f"{facts['library']}: {bytes_of['per_tree']:,} bytes a tree, "
        f"{bytes_of['scratch_per_thread']:,} of scratch for each thread, functions "
        f"{', '.join(facts['functions'])}"
    )
    for function, why in facts["left_out"].items():
        say(f"without {function}: {why}")
    if not facts["verified_here"]:
        how = "compare it with the model where it will run"
        if "check.csv" in facts["sha256"]:
            how = "where it will run, call ./example --check < check.csv"
        say(f"not run here: {how}")
