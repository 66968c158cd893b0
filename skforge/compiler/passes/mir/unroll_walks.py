"""Carry out ``unroll_walk`` and ``peel_walk``: hops without leaf checks.

Before: ``for b1 ...   unroll_walk 8: p = walk_decision_tree([t], [b1])``. After: the
walk itself has ``unroll=8``; the HIR has padded the trees so that no leaf is shallower.
``peel_walk`` needs no padding: it never passes the shallowest leaf.
"""

from __future__ import annotations

from dataclasses import replace

from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import map_nest
from skforge.schedule.directives import PeelWalk, UnrollWalk


def run(function: mir.Function) -> mir.Function:
    return replace(function, body=map_nest(function.body, _move))


def _move(stmt: mir.Stmt, outside: tuple[mir.Loop, ...]) -> mir.Stmt:
    match stmt:
        case mir.Loop():
            return replace(stmt, marks=stmt.without(UnrollWalk, PeelWalk))
        case mir.Let(op=mir.WalkDecisionTree() as walk):
            unroll = [m.depth for loop in outside if (m := loop.mark(UnrollWalk))]
            peel = [p.depth for loop in outside if (p := loop.mark(PeelWalk))]
            op = replace(
                walk,
                unroll=min(max(unroll, default=0), walk.min_depth),
                peel=min(max([*peel, walk.peel]), walk.min_depth),
            )
            return replace(stmt, op=op)
        case _:
            return stmt
