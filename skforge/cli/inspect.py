"""The command ``inspect``: print a level of compilation, also for other machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skforge.cli.models import forest_of, is_own, open_model
from skforge.cli.options import ModelFile, ScheduleOption, load_schedule
from skforge.cli.tune import result_of
from skforge.compiler.forest.forest import Forest
from skforge.compiler.runtime.schedules import table_at
from skforge.compiler.schedule.schedule import Schedule
from skforge.exceptions import InvalidInputError

if TYPE_CHECKING:
    from skforge.compiler.target import Target

LEVELS = ("schedule", "loops", "hir", "mir", "lir", "llvm", "asm", "cuda", "ptx")


def inspect(
    model_file: ModelFile,
    level: str = "loops",
    rows: Annotated[int | None, typer.Option(min=1)] = None,
    schedule: ScheduleOption = None,
    target: str = "cpu",
) -> None:
    """Print what a model compiles to.

    :param level: What to print: schedule, loops, hir, mir, lir, llvm, asm, cuda, ptx,
        tuning, pipeline, or a pass, such as lower-to-lir.
    :param rows: Show the kernel used for this batch size. Default: the largest.
    :param target: The machine: cpu is this one, or x86-64-v3, aarch64, cuda, ...
    """
    from skforge import Target

    machine, asked = Target.parse(target), load_schedule(schedule)
    model = open_model(model_file)
    compiled = hasattr(model, "inspect")  # CompiledForest, CompiledModule
    if level == "tuning":
        text = result_of(model_file, model).summary()
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
        text = str(model.inspect(level, n_rows=rows)).rstrip("\n")
    elif is_own(model_file):
        raise InvalidInputError(
            f"{model_file.name} holds a forest that was never compiled."
        )
    else:
        text = _level_text(forest_of(model), level, machine, asked, rows)
    typer.echo(text)


def _level_text(
    forest: Forest,
    level: str,
    target: Target,
    schedule: Schedule | None = None,
    n_rows: int | None = None,
) -> str:
    from skforge.compiler.backend import backend_of
    from skforge.compiler.codegen.llvm.emitter import emit_llvm
    from skforge.compiler.runtime.compiling import ScheduleLowering
    from skforge.compiler.runtime.cpu.jit import emit_assembly
    from skforge.compiler.runtime.targets import default_table

    texts = backend_of(target).code_levels(target)
    if target.kind == "hip":
        texts = ("cuda",)  # as HIP has it; PTX is NVIDIA's
    if level in LEVELS[5:] and level not in texts:
        raise InvalidInputError(
            f"{level!r} is no level of target {target.kind!r}, which has "
            f"{' and '.join(texts)}."
        )
    if schedule is None:
        table = default_table(forest, target, "exact")
        schedule = table_at(table, n_rows or max(table)[0])
    if level == "schedule":
        return repr(schedule)
    if level == "loops":
        return str(schedule.loop_nest(forest))
    lowered = ScheduleLowering(forest, target, "exact").lowered(schedule, "accumulator")
    function = lowered.kernel.function
    if level in ("cuda", "ptx"):
        return backend_of(target).device_text(function, target, level)
    if level in ("llvm", "asm"):
        emit = emit_llvm if level == "llvm" else emit_assembly
        return emit(*backend_of(target).in_process(function, target))
    if level not in lowered.levels:
        known = ", ".join(dict.fromkeys([*LEVELS, *lowered.levels]))
        raise InvalidInputError(f"{level!r} is no level; use one of {known}.")
    return lowered.text(level).rstrip("\n")
