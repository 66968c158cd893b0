"""Convert parameter grids, as in scikit-learn's searches, to schedule spaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from skforge.compiler.defaults.walks import ForestShape
from skforge.compiler.schedule.schedule import Schedule
from skforge.exceptions import InvalidInputError
from skforge.tuning.space.cpu import CPU, cpu_point, cpu_schedule, cpu_space
from skforge.tuning.space.gpu import TABLE_5, gpu_schedule
from skforge.tuning.space.space import Constraint, Point, ScheduleSpace


def space_of(value: Any) -> ScheduleSpace | None:
    """Return the space for a user's value: a space, a grid, schedules, or None.

    A grid is a mapping of names to lists of values: ``{"schedule": [...]}``, or
    parameters of the CPU space or of Table 5 for GPUs. Missing parameters get a plain
    default. A sequence of schedules or names of presets is a grid of these.
    """
    if value is None or isinstance(value, ScheduleSpace):
        return value
    if isinstance(value, Mapping):
        grid = {name: tuple(_listed(name, given)) for name, given in value.items()}
        if not grid:
            raise InvalidInputError("the grid is empty; give at least one parameter.")
        if set(grid) == {"schedule"}:
            return ScheduleSpace.of(grid["schedule"])
        return _grid_space(grid)
    if isinstance(value, (list, tuple)):
        return ScheduleSpace.of(value)
    raise InvalidInputError(
        "space must be a ScheduleSpace, a grid such as {'block': [64, 256]}, or a list "
        f"of schedules. Got {type(value).__name__} instead."
    )


def _listed(name: str, given: Any) -> list[Any]:
    if isinstance(given, (str, bytes, Schedule)) or not hasattr(given, "__iter__"):
        raise InvalidInputError(
            f"the grid's values of {name!r} must be a list. Got {given!r} instead."
        )
    return list(given)


def _grid_space(grid: dict[str, tuple[Any, ...]]) -> ScheduleSpace:
    names = set(grid)
    if names <= set(CPU):
        _check_values(grid, CPU)
        keys = tuple(dict.fromkeys(("walk", *grid)))
        grid = {"walk": ("rows",), **grid}
        rule = Constraint(keys, _InCpuSpace(), "a point of the CPU space")
        return ScheduleSpace(grid, _cpu_template, (rule,), name="grid")
    if names <= set(TABLE_5):
        return ScheduleSpace(grid, _gpu_template, name="grid")
    known = ", ".join((*CPU, *TABLE_5))
    odd = sorted(names - set(CPU) - set(TABLE_5)) or sorted(names)
    raise InvalidInputError(
        f"the grid has {', '.join(map(repr, odd))}, which do not belong to one space; "
        f"a grid has either 'schedule' or some of {known}."
    )


def _check_values(
    grid: Mapping[str, tuple[Any, ...]], known: Mapping[str, tuple[Any, ...]]
) -> None:
    for name, values in grid.items():
        for value in values:
            words = isinstance(known[name][0], str)
            if words and value not in known[name]:
                raise InvalidInputError(
                    f"{name} must be one of {', '.join(map(repr, known[name]))}. Got "
                    f"{value!r} instead."
                )


@dataclass(frozen=True, slots=True)
class _InCpuSpace:
    """Tests whether a grid's point, with defaults filled in, satisfies the CPU rules.

    Values may differ from those of the whole space; only its rules are checked.
    """

    def __call__(self, **chosen: Any) -> bool:
        point = cpu_point(**chosen)
        return all(
            rule.test(**{name: point[name] for name in rule.names})
            for rule in cpu_space().constraints
            if "walk" not in rule.names or len(rule.names) > 2
        )


def _cpu_template(point: Point, shape: ForestShape) -> Schedule:
    return cpu_schedule(cpu_point(**point), shape)


#: Defaults for parameters that a GPU grid leaves out.
_GPU = {
    "rows_per_block": 32,
    "rows_per_thread": 1,
    "tree_threads": 20,
    "cache_rows": True,
    "cache_trees": False,
    "unroll_walks": False,
    "interleave": 1,
    "shared_reduce": False,
    "representation": "sparse",
}


def _gpu_template(point: Point, shape: ForestShape) -> Schedule:
    return gpu_schedule({**_GPU, **point}, shape)
