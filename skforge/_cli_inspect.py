"""What ``inspect`` prints: one level of the compilation, for any target.

A module only exists for a machine that its code runs on; text can be had for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skforge.exceptions import TargetError

if TYPE_CHECKING:
    from skforge.compiler.forest import Forest
    from skforge.compiler.schedule import Schedule
    from skforge.compiler.target import Target

LEVELS = ("schedule", "loops", "hir", "mir", "lir", "llvm", "asm")


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
        If there is no code for the target yet.
    ValueError
        If there is no such level.
    """
    from skforge.compiler.backends.llvm import emit_llvm
    from skforge.compiler.backends.llvm_jit import emit_assembly
    from skforge.compiler.default_schedule import default_schedules
    from skforge.compiler.pipeline import MIR_PASSES, build_hir, lower

    passes = ["lower-to-mir", *(step.name for step in MIR_PASSES)]
    if level not in LEVELS and level not in passes:
        known = ", ".join([*LEVELS, *passes])
        raise ValueError(f"{level!r} is no level; use one of {known}.")
    if schedule is None:
        ranges = default_schedules(forest, target)
        fitting = [s for (first, _), s in ranges.items() if first <= (n_rows or first)]
        schedule = fitting[-1]
    if level == "schedule":
        return repr(schedule)
    if level == "loops":
        return str(schedule.loop_nest(forest))
    if target.is_gpu:
        raise TargetError(
            f"{level!r} cannot be shown for {target.kind!r} yet: this version "
            "generates code for CPUs; 'schedule' and 'loops' can."
        )
    lowered = lower(build_hir(forest, schedule, "exact"), target)
    if level == "llvm":
        return emit_llvm(lowered.kernel.function, target)
    if level == "asm":
        return emit_assembly(lowered.kernel.function, target)
    return lowered.text(level).rstrip("\n")
