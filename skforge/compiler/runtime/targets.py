"""Resolves the target that a user names to a machine that is available."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from skforge.compiler.backend import backend_of
from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule.ranges import BatchRange
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError, TargetError

if TYPE_CHECKING:
    from skforge.compiler.cost.shape import ForestShape
    from skforge.compiler.ir.hir.nodes import Reduction


def resolve_target(target: str | Target, schedules: Iterable[Schedule] = ()) -> Target:
    """Return the one machine to compile for, with facts found on this computer.

    "auto" is this CPU, or the GPU of the schedules. Raises ``TargetError`` if unknown
    or unavailable, ``ScheduleError`` for schedules of the other kind.
    """
    wanted = tuple(schedules)
    if target == "auto" and any(s.kind == "gpu" for s in wanted):
        resolved = _gpu_for_schedules()
    else:
        resolved = Target.parse(target)
    resolved = backend_of(resolved).available(resolved, target)
    for schedule in wanted:
        if resolved.kind != "cpu" and schedule.kind == "cpu":
            raise ScheduleError(
                f"the schedule {schedule!r} maps no loop to a GPU, but the target is "
                f"{resolved.kind!r}; use gpu_dimension, or target='cpu'."
            )
    return resolved


def _gpu_for_schedules() -> Target:
    from skforge.gpu.runtime import cupy as device_cupy

    try:
        return device_cupy.current().target()
    except TargetError as error:
        raise TargetError(
            f"the schedule maps loops to a GPU, but no GPU can be used: {error} To "
            "run such schedules on the CPU, use target='emulated'."
        ) from error


def gpu_here() -> Target | None:
    from skforge.gpu.runtime import cupy as device_cupy

    device = device_cupy.found()
    return None if device is None else device.target()


def default_table(
    forest: Forest | ForestShape, target: Target, reduction: Reduction
) -> dict[BatchRange, Schedule]:
    return backend_of(target).default_table(forest, target, reduction)


def stored_target(target: Target) -> Any:
    """Return a target as files store it: by name if it may differ on loading."""
    if target.kind in ("cuda", "hip"):
        return target.kind
    return "cpu" if target == Target.host() else target
