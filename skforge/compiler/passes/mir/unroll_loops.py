"""Carry out ``unroll``: repeat the loop's body for each iteration.

Before: ``for t1 in 0 to 2: S(t1)``. After: ``S(0); S(1)``. An iteration that a run-time
bound may exclude stays in a loop that runs at most once.
"""

from __future__ import annotations

from dataclasses import replace

from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import copy_body, map_loops, substitute
from skforge.schedule.directives import Unroll
from skforge.schedule.nest import size_value


def run(function: mir.Function) -> mir.Function:
    return replace(function, body=map_loops(function.body, _unroll))


def _unroll(loop: mir.Loop) -> mir.Loop | mir.Body:
    if not loop.has(Unroll):
        return loop
    start = size_value(loop.start, 0)
    copies: list[mir.Stmt] = []
    for k in range(loop.most_trips):
        body = copy_body(loop.body, f".u{k}") if k else loop.body
        if loop.trip_count is None:
            copies.append(_guard(loop, body, start + k * size_value(loop.step, 0)))
        else:
            at = mir.Affine(constant=start).plus(mir.multiple(loop.step, k))
            copies.extend(substitute(body, loop.var, at))
    return tuple(copies)


def _guard(loop: mir.Loop, body: mir.Body, at: int) -> mir.Loop:
    return replace(
        loop,
        start=at,
        bounds=(*loop.bounds, mir.Bound(at + 1)),
        kind="serial",
        body=body,
        marks=loop.without(Unroll),
    )
