"""Resolves the target that a user names to a machine that is available."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

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
        if target in ("cuda", "hip"):
            from skforge.gpu.runtime import cupy as device_cupy

            resolved = device_cupy.current(resolved.kind).target()  # type: ignore[arg-type]
    check_available(resolved)
    for schedule in wanted:
        if resolved.is_gpu and schedule.kind == "cpu":
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


def check_available(target: Target) -> None:
    if target.kind not in ("cuda", "hip"):
        target.check_runs_here()
        return
    from skforge.gpu.runtime import cupy as device_cupy

    device = device_cupy.current(target.kind)
    if not _runs(target.cpu, device.arch):
        raise TargetError(
            f"Code for {target.cpu} does not run on {device.name}, which is "
            f"{device.arch}; use target={target.kind!r}."
        )


def _runs(wanted: str, found: str) -> bool:
    """Tell whether a schedule bound to one architecture can be compiled for another.

    Code is compiled for the GPU found, which has at least the resources of the older
    architectures of its family.
    """
    if wanted == found:
        return True
    numbers = [name.removeprefix("sm_") for name in (wanted, found)]
    if not all(number.isdigit() for number in numbers):
        return False
    old, new = (divmod(int(number), 10) for number in numbers)
    return old[0] == new[0] and old[1] <= new[1]


def default_table(
    forest: Forest | ForestShape, target: Target, reduction: Reduction
) -> dict[BatchRange, Schedule]:
    from skforge.compiler.cost.shape import ForestShape
    from skforge.compiler.defaults.cpu import default_schedules
    from skforge.compiler.runtime.machine import machine_profile

    if target.is_gpu:
        whole = ForestShape.of(forest).forest
        from skforge.gpu.defaults import default_gpu_schedules

        return default_gpu_schedules(whole, target, reduction)
    return default_schedules(forest, target, reduction, machine_profile(target))


def stored_target(target: Target) -> Any:
    """Return a target as files store it: by name if it may differ on loading."""
    if target.kind in ("cuda", "hip"):
        return target.kind
    return "cpu" if target == Target.host() else target
