"""What ``inspect`` prints: one level of the compilation, for any target.

A module only exists for a machine that its code runs on; text can be had for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skforge.compiler.forest.forest import Forest
    from skforge.compiler.schedule.directives import Kind
    from skforge.compiler.schedule.schedule import Schedule
    from skforge.compiler.target import Target

LEVELS = ("schedule", "loops", "hir", "mir", "lir", "llvm", "asm", "cuda", "ptx")


def level_text(
    forest: Forest,
    level: str,
    target: Target,
    schedule: Schedule | None = None,
    n_rows: int | None = None,
) -> str:
    """Return a level of what a forest compiles to.

    Parameters
    ----------
    forest : Forest
        The forest.
    level : str
        One of ``LEVELS`` or the name of a pass of MIR.
    target : Target
        The machine, which need not be this one.
    schedule : Schedule or None
        None takes the default for ``n_rows``.
    n_rows : int or None
        Rows a call; None means many.

    Raises
    ------
    TargetError
        If the compiler that a level needs is not installed.
    ValueError
        If there is no such level, or not for the target.
    """
    from skforge.compiler.codegen.llvm.emitter import emit_llvm
    from skforge.compiler.passes.lir import emulate_grids
    from skforge.compiler.pipeline import MIR_PASSES, build_hir, lower
    from skforge.compiler.runtime.code import gpu_text
    from skforge.compiler.runtime.cpu.jit import emit_assembly
    from skforge.compiler.runtime.targets import default_table
    from skforge.compiler.target import Target

    passes = ["lower-to-mir", *(step.name for step in MIR_PASSES)]
    if level not in LEVELS and level not in passes:
        known = ", ".join([*LEVELS, *passes])
        raise ValueError(f"{level!r} is no level; use one of {known}.")
    texts: tuple[str, ...] = ("cuda", "ptx") if target.is_gpu else ("llvm", "asm")
    if target.kind == "hip":
        texts = ("cuda",)  # as HIP has it; PTX is NVIDIA's
    if target.kind == "emulated":
        texts = ("llvm", "asm", "cuda", "ptx")
    if level in LEVELS[5:] and level not in texts:
        raise ValueError(
            f"{level!r} is no level of target {target.kind!r}, which has "
            f"{' and '.join(texts)}."
        )
    if schedule is None:
        ranges = default_table(forest, target, "exact")
        fitting = [s for (first, _), s in ranges.items() if first <= (n_rows or first)]
        schedule = fitting[-1]
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
