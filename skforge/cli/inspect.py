"""The command ``inspect``: print a level of compilation, also for other machines."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from skforge.cli.models import forest_of, is_own, open_model
from skforge.cli.options import ModelFile, ScheduleOption, load_schedule
from skforge.cli.tune import result_of
from skforge.engine.schedules import table_at
from skforge.exceptions import InvalidInputError


def inspect(
    model_file: ModelFile,
    level: str = "loops",
    rows: Annotated[int | None, typer.Option(min=1)] = None,
    schedule: ScheduleOption = None,
    target: str = "cpu",
) -> None:
    """Print what a model compiles to.

    :param level: What to print: schedule, loops, hir, mir, lir, llvm, asm, cuda, ptx,
        tuning, pipeline, compared (the forms of rows on which a .skforge file agreed
        with its model when it was saved), or a pass, such as lower-to-lir.
    :param rows: Show the kernel used for this batch size. Default: the largest.
    :param target: The machine: cpu is this one, or x86-64-v3, aarch64, cuda, ...
    """
    from skforge import Target
    from skforge.engine.kernels import KernelCache
    from skforge.engine.targets import default_table
    from skforge.forest.leaves import leaf_finder

    machine, asked = Target.parse(target), load_schedule(schedule)
    model = open_model(model_file)
    compiled = hasattr(model, "inspect")  # CompiledForest, CompiledModule
    if level == "tuning":
        text = result_of(model_file, model).summary()
    elif level == "compared":
        text = _compared(model_file.name, model)
    elif compiled and (schedule is not None or target != "cpu"):
        raise InvalidInputError(
            f"{model_file.name} has its own schedules and its own target; to use "
            "--schedule or --target, inspect the model it was made from."
        )
    elif level == "pipeline" and not compiled:
        raise InvalidInputError(
            f"{model_file.name} holds no CompiledForest, whose steps --level pipeline "
            "shows."
        )
    elif compiled:
        text = str(model.inspect(level, n_rows=rows))
    elif is_own(model_file):
        raise InvalidInputError(
            f"{model_file.name} holds a forest that was never compiled."
        )
    else:
        forest = leaf_finder(forest_of(model))
        if asked is None:
            table = default_table(forest, machine, "exact")
            asked = table_at(table, rows or max(table)[0])
        kernels = KernelCache(forest, machine, "exact")
        text = kernels.text(asked, "accumulator", level)
    typer.echo(text.rstrip("\n"))


def _compared(name: str, model: Any) -> str:
    """Return the forms of rows that ``save`` compared, and the methods."""
    known = vars(model).get("_compared") if hasattr(model, "inspect") else None
    if not known:
        raise InvalidInputError(
            f"{name} does not say on which rows it was compared with its model; files "
            "of CompiledForests do that were saved with their model at hand."
        )
    width = max(len(one["form"]) for one in known)
    return "\n".join(
        f"{one['form']:{width}}  {', '.join(one['methods'])}" for one in known
    )
