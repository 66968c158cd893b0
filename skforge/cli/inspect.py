"""The command ``inspect``: print one level of the compilation, for any target.

A compiled module needs a machine that runs it; the text does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skforge.cli.data import load_schedule
from skforge.cli.options import ModelFile, ScheduleOption
from skforge.cli.tune import is_own, result_of
from skforge.exceptions import InvalidInputError

if TYPE_CHECKING:
    from skforge.compiler.forest.forest import Forest
    from skforge.compiler.schedule.directives import Kind
    from skforge.compiler.schedule.schedule import Schedule
    from skforge.compiler.target import Target

LEVELS = ("schedule", "loops", "hir", "mir", "lir", "llvm", "asm", "cuda", "ptx")


def inspect(
    model_file: ModelFile,
    level: Annotated[
        str,
        typer.Option(
            help="schedule, loops, hir, mir, lir, llvm, asm, cuda, ptx; a pass of MIR."
        ),
    ] = "loops",
    rows: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rows a call, to choose the kernel by; default: many."
        ),
    ] = None,
    schedule: ScheduleOption = None,
    target: Annotated[
        str, typer.Option(help="cpu, x86-64-v3, aarch64, cuda, ...")
    ] = "cpu",
) -> None:
    """Print one level of what a model file compiles to.

    Of a file that skforge saved, "tuning" shows how its schedules were found.
    """
    if is_own(model_file):
        if schedule is not None or target != "cpu":
            raise InvalidInputError(
                f"{model_file.name} has its schedules and its target; inspect the "
                "model it was made from with --schedule or --target."
            )
        text = _own_text(model_file, level, rows)
    else:
        from skforge import Target, load_forest

        machine, given = Target.parse(target), load_schedule(schedule)
        text = _level_text(load_forest(model_file), level, machine, given, rows)
    typer.echo(text)


def _own_text(path: Path, level: str, n_rows: int | None) -> str:
    """Return a level of a saved model, or a summary of its tuning."""
    if level == "tuning":
        return result_of(path).summary()
    from skforge import load

    model = load(path)
    if not hasattr(model, "inspect"):
        raise InvalidInputError(f"{path.name} holds a forest that was never compiled.")
    return str(model.inspect(level, n_rows=n_rows)).rstrip("\n")


def _level_text(
    forest: Forest,
    level: str,
    target: Target,
    schedule: Schedule | None = None,
    n_rows: int | None = None,
) -> str:
    """Return one level of a forest's compilation; the target need not run here."""
    from skforge.compiler.codegen.llvm.emitter import emit_llvm
    from skforge.compiler.passes.lir import emulate_grids
    from skforge.compiler.pipeline import MIR_PASSES, build_hir, lower
    from skforge.compiler.runtime.code import code_levels, gpu_text
    from skforge.compiler.runtime.cpu.jit import emit_assembly
    from skforge.compiler.runtime.targets import default_table
    from skforge.compiler.target import Target
    from skforge.tuning.search.ranges import table_at

    passes = ["lower-to-mir", *(step.name for step in MIR_PASSES)]
    if level not in LEVELS and level not in passes:
        known = ", ".join([*LEVELS, *passes])
        raise InvalidInputError(f"{level!r} is no level; use one of {known}.")
    texts = code_levels(target)
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
    kind: Kind = "gpu" if target.is_gpu else "cpu"
    lowered = lower(build_hir(forest, schedule, "exact", kind=kind), target)
    function = lowered.kernel.function
    if level in ("cuda", "ptx"):
        return gpu_text(function, target, level)
    if level in ("llvm", "asm"):
        emit = emit_llvm if level == "llvm" else emit_assembly
        if target.is_gpu:
            function, target = emulate_grids.run(function), Target.host()
        return emit(function, target)
    return lowered.text(level).rstrip("\n")
