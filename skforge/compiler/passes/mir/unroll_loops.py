"""Carry out ``unroll``: the loop's body once for each iteration.

Before: ``for t1 in 0 to 2: S(t1)``. After: ``S(0); S(1)``. An iteration that a bound
known only at run time may leave out stays in a loop that runs at most once.
"""

from __future__ import annotations

from dataclasses import replace

from skforge.compiler.ir.mir.nodes import (
    Affine,
    Body,
    Bound,
    Function,
    Loop,
    Stmt,
    multiple,
)
from skforge.compiler.ir.mir.walk import copy_body, map_loops, substitute
from skforge.compiler.schedule.directives import Unroll
from skforge.compiler.schedule.nest import size_value


def run(function: Function) -> Function:
    """Unroll every loop that asks for it, innermost first."""
    return replace(function, body=map_loops(function.body, _unroll))


def _unroll(loop: Loop) -> Loop | Body:
    if not loop.has(Unroll):
        return loop
    start = size_value(loop.start, 0)
    trips = loop.trip_count
    if trips is None:
        limits = [b.limit for b in loop.bounds if isinstance(b.limit, int)]
        assert limits and isinstance(loop.step, int)  # bind refuses open extents
        trips = -(-(min(limits) - start) // loop.step)
    made: list[Stmt] = []
    for k in range(trips):
        body = copy_body(loop.body, f".u{k}") if k else loop.body
        if loop.trip_count is None:
            made.append(_guard(loop, body, start + k * size_value(loop.step, 0)))
        else:
            at = Affine(constant=start).plus(multiple(loop.step, k))
            made.extend(substitute(body, loop.var, at))
    return tuple(made)


def _guard(loop: Loop, body: Body, at: int) -> Loop:
    """Return a loop that runs once if the iteration ``at`` is within the bounds."""
    return replace(
        loop,
        start=at,
        bounds=(*loop.bounds, Bound(at + 1)),
        kind="serial",
        body=body,
        marks=loop.without(Unroll),
    )
