"""Binds a schedule to a number of trees and a kind of target, and explains the result.

Binding applies the directives again with the number of trees known, drops limits that
other limits imply, and makes the checks that need extents or a target.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import gcd
from typing import Protocol, cast

from skforge.schedule import directives as d
from skforge.schedule.apply import apply, apply_all
from skforge.schedule.bound import (
    BoundLoop,
    BoundNest,
    LoopBound,
    every_loop,
    max_trips,
)
from skforge.schedule.nest import (
    DEFAULT_REPRESENTATION,
    LoopVariable,
    Nest,
    Open,
    ScheduledLoop,
    Size,
    paths,
    root_nest,
)
from skforge.schedule.rules import bind_problems, copies_problems


class HasDirectives(Protocol):
    """The part of a schedule that binding needs."""

    @property
    def directives(self) -> tuple[d.Directive, ...]: ...


def kind_of(directives: tuple[d.Directive, ...]) -> d.ScheduleKind:
    mapped = any(isinstance(directive, d.GpuDimension) for directive in directives)
    return "gpu" if mapped else "cpu"


def bind(
    schedule: HasDirectives, n_trees: int, kind: d.ScheduleKind | None = None
) -> BoundNest:
    """Return the loops of a schedule with all sizes but the batch length resolved.

    ``kind`` is the kind of target; the default is the one the schedule is for. Raises
    ``ScheduleError`` if the schedule does not fit the target or the number of trees.
    """
    nest = apply_all(schedule.directives, n_trees)
    for broken in bind_problems(nest, kind or kind_of(schedule.directives)):
        nest.refuse(*broken)
    options = nest.options
    tiling = next((o for o in options if isinstance(o, d.TileNodes)), d.TileNodes(1))
    chosen = next((o for o in options if isinstance(o, d.Represent)), None)
    reordered = any(isinstance(option, d.ReorderTrees) for option in options)
    loops = _bind_loops(nest, nest.loops, (), {})
    for broken in copies_problems(loops):
        nest.refuse(*broken)
    return BoundNest(
        loops=loops,
        n_trees=n_trees,
        tile_nodes=tiling.size,
        tile_kind=tiling.kind,
        pad_trees=any(isinstance(option, d.PadTrees) for option in options),
        reorder_trees=reordered,
        representation=chosen.representation if chosen else DEFAULT_REPRESENTATION,
        trees_in_order=not reordered and _in_order(nest, loops, ()),
    )


@dataclass(frozen=True, slots=True)
class _Range:
    """The values of an enclosing variable; ``last`` is None if it is not known."""

    first: int
    last: int | None
    step: int | None


def _bind_loops(
    nest: Nest,
    loops: tuple[ScheduledLoop, ...],
    outside: tuple[str, ...],
    ranges: dict[str, _Range],
) -> tuple[BoundLoop, ...]:
    bound = [_bind_loop(nest, loop, outside, ranges) for loop in loops]
    # Omit a copy of a split's part that no tree of this loop reaches, but never empty a
    # body: an empty body is the statement.
    used = [loop for loop in bound if loop.trip_count != 0]
    return tuple(used or bound[:1])


def _bind_loop(
    nest: Nest, loop: ScheduledLoop, outside: tuple[str, ...], ranges: dict[str, _Range]
) -> BoundLoop:
    variable = nest.variable(loop.name)
    step = variable.step
    assert not isinstance(step, Open), f"the step of {loop.name} is open after binding"
    bounds = _bounds(nest, loop, variable, step, outside, ranges)
    most = max_trips(variable.start, step, bounds)
    stride = step if isinstance(step, int) else None
    last = None
    if most is not None and stride is not None:
        last = variable.start + max(0, most - 1) * stride
    inside = {**ranges, loop.name: _Range(variable.start, last, stride)}
    return BoundLoop(
        name=loop.name,
        root=variable.root,
        start=variable.start,
        step=step,
        bounds=bounds,
        trip_count=most if len(bounds) == 1 else None,
        marks=_marks(nest, variable, most),
        body=_bind_loops(nest, loop.body, (*outside, loop.name), inside),
    )


def _marks(nest: Nest, variable: LoopVariable, most: int | None) -> tuple[d.Mark, ...]:
    marks = list(variable.without(d.Interleave))
    interleave = variable.mark(d.Interleave)
    if interleave is not None:
        factor = interleave.factor
        if factor is None and most is None:
            nest.refuse(
                f'{interleave} interleaves all of "{variable.name}", whose length '
                "depends on the batch; give a factor, or tile it first.",
                variable.name,
            )
        factor = min(n for n in (factor, most) if n is not None)
        if factor > 1:
            marks.append(d.Interleave(variable.name, factor))
    return d.in_order(marks)


def _bounds(
    nest: Nest,
    loop: ScheduledLoop,
    variable: LoopVariable,
    step: Size,
    outside: tuple[str, ...],
    ranges: dict[str, _Range],
) -> tuple[LoopBound, ...]:
    reach = frozenset((*outside, *(n for path in paths((loop,)) for n in path)))
    fixed: list[int] = []
    open_: list[LoopBound] = []
    moving: dict[LoopBound, int | None] = {}

    def trips(limit: int) -> int | None:
        return max_trips(variable.start, step, (LoopBound(limit),))

    for limit in nest.limits:
        # Variables of the other parts of a split are not on this path.
        if loop.name not in limit.names or not limit.names <= reach:
            continue
        size = limit.limit
        assert not isinstance(size, Open), (
            f"a limit on {loop.name} is open after binding"
        )
        minus = tuple(name for name in outside if name in limit.names)
        bound = LoopBound(size, minus)
        if not isinstance(size, int):
            if bound not in open_:
                open_.append(bound)
            continue
        low, high = _sum_range(size, [ranges[name] for name in minus])
        most = trips(size - low)
        if most is not None and high is not None and most == trips(size - high):
            # The limit varies, but never enough to change the number of iterations.
            fixed.append(size - low)
        elif bound not in moving:
            moving[bound] = high
    smallest = min(fixed, default=None)
    bounds = [] if smallest is None else [LoopBound(smallest)]
    for bound, high in moving.items():
        assert isinstance(bound.limit, int)
        if smallest is not None and high is not None:
            most = trips(smallest)
            if most is not None and most <= (trips(bound.limit - high) or 0):
                continue
        bounds.append(bound)
    return (*bounds, *open_)


def _sum_range(limit: int, ranges: list[_Range]) -> tuple[int, int | None]:
    low = sum(r.first for r in ranges)
    high: int | None = 0
    for r in ranges:
        high = None if high is None or r.last is None else high + r.last
    steps = [r.step for r in ranges]
    if ranges and all(step is not None for step in steps):
        # The enclosing loops check the same limit, so their sum stays below it.
        stride = reduce(gcd, cast("list[int]", steps))
        below = low + (limit - 1 - low) // stride * stride
        high = below if high is None else min(high, below)
    return low, high if high is None else max(low, high)


def _in_order(
    nest: Nest, loops: tuple[BoundLoop, ...], outside: tuple[BoundLoop, ...]
) -> bool:
    significance = [variable.name for variable in nest.variables]
    several = sum(loop.root == "tree" for loop in loops) > 1  # after a split
    for loop in loops:
        inside = outside
        if loop.root == "tree":
            if loop.has(d.Parallel, d.GpuDimension):
                return False
            if several or loop.trip_count is None or loop.trip_count > 1:
                if any(
                    significance.index(o.name) > significance.index(loop.name)
                    for o in outside
                ):
                    return False
                inside = (*outside, loop)
        if not _in_order(nest, loop.body, inside):
            return False
    return True


# ------------------------------------------------------------ as text


def explain(directives: tuple[d.Directive, ...], bound: BoundNest) -> list[str]:
    lines = []
    loops = {loop.name: loop for loop in every_loop(bound.loops)}
    nest = root_nest(bound.n_trees)
    for directive in directives:
        nest = apply(nest, directive)
        if isinstance(directive, d.Interleave):
            what = _interleave(directive, loops[directive.index])
        else:
            what = _what(nest, directive)
        lines.append(f"{directive}: {what}.")
    return lines


def _interleave(interleave: d.Interleave, loop: BoundLoop) -> str:
    together = loop.mark(d.Interleave)
    if together is None:
        return f'one walk of "{loop.name}" is in flight at a time, as without it'
    which = "all" if together.factor == loop.max_trips else "up to"
    return f'{which} {together.factor} walks of "{loop.name}" are in flight at a time'


def _what(nest: Nest, directive: d.Directive) -> str:
    match directive:
        case d.Tile(index, outer, inner, _):
            blocks = nest.variable(outer)
            return (
                f'"{outer}" goes over "{index}" in blocks of {blocks.step} '
                f'{d.UNITS[blocks.root]}, "{inner}" over one block'
            )
        case d.Split(index, first, second, _):
            others = nest.variable(second)
            units, start = d.UNITS[others.root], others.start
            return (
                f'"{first}" takes the {units} of "{index}" before {start}, and after '
                f'it "{second}" takes the others'
            )
        case d.Reorder(indices):
            return f"from the outside in, the loops are {', '.join(indices)}"
        case d.Mark(index):
            return directive.sentence(nest.variable(index).root)
        case d.Option():
            return directive.sentence()
        case _:
            raise AssertionError(f"no words for {directive!r}")
