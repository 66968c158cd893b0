"""Resolves the target that a user names to a machine that is available."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from skforge.compiler.backend import backend, backend_of
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.forest.forest import Forest
from skforge.forest.leaves import leaf_finder
from skforge.runtime.float_errors import own_arithmetic
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule

if TYPE_CHECKING:
    from skforge.compiler.cost.shape import ForestShape
    from skforge.compiler.ir.hir.nodes import Reduction


def resolve_target(target: str | Target, schedules: Iterable[Schedule] = ()) -> Target:
    """Return the one machine to compile for, with facts found on this computer.

    "auto" is this CPU, or the GPU of the schedules. Raises ``TargetError`` if unknown
    or unavailable, ``ScheduleError`` for schedules of the other kind.
    """
    wanted = tuple(schedules)
    if target == "auto":
        other = (s.kind for s in wanted if s.kind != "cpu")
        resolved = backend(next(other, "cpu")).for_schedules()
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


@own_arithmetic
def default_table(
    forest: Forest | ForestShape,
    target: Target,
    reduction: Reduction,
    measured: bool = True,
) -> dict[BatchRange, Schedule]:
    """Return the default schedules for this machine, as it was measured or modelled.

    What a model loads beside its scores is chosen for the modelled one: every process
    chooses the same, and finds the code that another one made.
    """
    if isinstance(forest, Forest):
        forest = leaf_finder(forest)
    return backend_of(target).default_table(forest, target, reduction, measured)


def stored_target(target: Target) -> Any:
    return backend_of(target).stored(target)
