"""Groups of trees of like depth, each with hops of its own: the stages of a forest.

A pipeline of many stages is scheduled stage by stage, and all but the costliest are
frozen as a first pass left them (*Learning to Schedule Halide Pipelines for the GPU*,
§4). Trees differ in depth alone, so a stage is a group of trees that are sorted by
depth, and what it may decide is which hops ask for leaves. It means something where
rows of one tree are walked; all other walks take trees of any depth alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np

from skforge.compiler.defaults.cpu import ForestShape
from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule.directives import MAX_WALK_DEPTH
from skforge.compiler.schedule.schedule import Schedule
from skforge.tuning.space.space import Constraint, Point, ScheduleSpace

#: Groups of a forest at most: each is a copy of the code.
MOST_GROUPS = 8

#: Values of the parameters of groups, the first where groups have no say.
HOPS = ("checked", "peel", "unroll")


@dataclass(frozen=True, slots=True)
class TreeGroup:
    """Trees of like depth, by their places once they are sorted by depth.

    Parameters
    ----------
    start, stop : int
        The first tree, and the one after the last.
    min_depth, max_depth : int
        Of their leaves.
    cost : float
        Their share of all hops.
    """

    start: int
    stop: int
    min_depth: int
    max_depth: int
    cost: float


def depth_groups(forest: Forest) -> tuple[TreeGroup, ...]:
    """Return the groups of a forest, the shallowest first."""
    low, high = forest.leaf_depths()
    order = np.argsort(high, kind="stable")
    low, high = low[order], high[order]
    depths = np.unique(high)
    parts = np.array_split(depths, min(MOST_GROUPS, len(depths)) or 1)
    total = max(1, int(high.sum()))
    groups = []
    for part in parts:
        if not len(part):
            continue
        first, last = (
            np.searchsorted(high, part[0]),
            np.searchsorted(high, part[-1], "right"),
        )
        inside = slice(int(first), int(last))
        share = float(high[inside].sum()) / total
        groups.append(
            TreeGroup(
                int(first), int(last), int(low[inside].min()), int(part[-1]), share
            )
        )
    return tuple(groups)


def costliest(groups: Sequence[TreeGroup]) -> frozenset[int]:
    """Return the places of the ``log2(N)`` costliest of ``N`` groups, one at least."""
    keep = max(1, round(log2(max(1, len(groups)))))
    order = sorted(range(len(groups)), key=lambda i: -groups[i].cost)
    return frozenset(order[:keep])


def group_names(groups: Sequence[TreeGroup]) -> tuple[str, ...]:
    """Return the names of the groups' parameters."""
    return tuple(f"hops_{i}" for i in range(len(groups)))


def grouped_space(space: ScheduleSpace, groups: Sequence[TreeGroup]) -> ScheduleSpace:
    """Return the CPU space with a parameter for the hops of each group."""
    names = group_names(groups)
    base = tuple(space.parameters)

    def template(point: Point, shape: ForestShape) -> Schedule:
        made = space.schedule({name: point[name] for name in base}, shape)
        chosen = [point[name] for name in names]
        return made if set(chosen) == {HOPS[0]} else _split(made, groups, chosen)

    rules = [
        Constraint(
            ("walk", "hops", "parallel", name),
            _Grouped(name),
            "groups of trees are for rows of one tree",
        )
        for name in names
    ]
    parameters: dict[str, Any] = {**space.parameters, **dict.fromkeys(names, HOPS)}
    return ScheduleSpace(
        parameters, template, (*space.constraints, *rules), f"{space.name}, grouped"
    )


@dataclass(frozen=True, slots=True)
class _Grouped:
    name: str

    def __call__(self, walk: str, hops: str, parallel: str, **chosen: Any) -> bool:
        free = walk == "rows" and hops == "checked" and parallel == "rows"
        return free or chosen[self.name] == HOPS[0]


def _split(
    schedule: Schedule, groups: Sequence[TreeGroup], chosen: Sequence[str]
) -> Schedule:
    """Sort trees by depth and give each group a loop, with its hops."""
    schedule, rest = schedule.reorder_trees(), "tree"
    for i, (group, hops) in enumerate(zip(groups, chosen, strict=True)):
        name = rest
        if i < len(groups) - 1:
            name, following = f"group{i}", f"rest{i}"
            size = group.stop - group.start  # a split counts from the start of its loop
            schedule = schedule.split(rest, name, following, size)
            rest = following
        if hops == "unroll" and group.max_depth:
            schedule = schedule.unroll_walk(name, min(MAX_WALK_DEPTH, group.max_depth))
        if hops == "peel" and group.min_depth:
            schedule = schedule.peel_walk(name, min(MAX_WALK_DEPTH, group.min_depth))
    return schedule
