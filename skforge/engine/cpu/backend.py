"""CPUs: what :mod:`skforge.compiler.backend` asks of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skforge.compiler.backend import Backend
from skforge.compiler.target import Target
from skforge.engine.kernels import Kernel

if TYPE_CHECKING:
    from skforge.compiler.cost.shape import ForestShape
    from skforge.compiler.ir.hir.nodes import Reduction
    from skforge.compiler.lowering.kernel import LoweredKernel
    from skforge.forest.forest import Forest
    from skforge.schedule.ranges import SchedulesByRange
    from skforge.schedule.schedule import Schedule


def _lower(*args: Any, **kwargs: Any) -> LoweredKernel:
    from skforge.compiler.lowering import lower_to_lir

    return lower_to_lir.run(*args, **kwargs)


def _shape(forest: Forest | ForestShape, target: Target) -> ForestShape:
    from skforge.compiler.cost.counts import counted

    return counted(forest, target)


def _default_table(
    forest: Forest | ForestShape, target: Target, reduction: Reduction, measured: bool
) -> SchedulesByRange:
    from skforge.compiler.defaults.cpu import default_schedules

    if not measured:
        return default_schedules(forest, target, reduction)
    from skforge.engine.machine import machine_profile

    return default_schedules(forest, target, reduction, machine_profile(target))


def _walking(forest: Forest, target: Target) -> Schedule:
    from skforge.compiler.defaults.walks import walking_schedules

    return walking_schedules(forest, target)[(128, 2048)]


def _contribution_table(forest: Forest) -> SchedulesByRange:
    from skforge.compiler.defaults.cpu import contribution_schedules

    return contribution_schedules(forest, "contributions")


def _available(target: Target, name: object) -> Target:
    target.check_runs_here()
    return target


BACKEND = Backend(
    native=True,
    lower=_lower,
    in_process=lambda function, target: (function, target),
    code_levels=lambda target: ("llvm", "asm"),
    shape=_shape,
    default_table=_default_table,
    walking=_walking,
    contribution_table=_contribution_table,
    available=_available,
    kernel=Kernel,
    stored=lambda target: "cpu" if target == Target.host() else target,
)
