"""Carry out ``unroll_walk`` and ``peel_walk``: hops without leaf checks.

Before: ``for b1 ...   unroll_walk 8: p = walk_decision_tree([t], [b1])``. After: the
walk itself has ``unroll=8``; the HIR has padded the trees so that no leaf is shallower.
``peel_walk`` needs no padding: it never passes the shallowest leaf.
"""

from __future__ import annotations

from dataclasses import replace

from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import map_bodies
from skforge.compiler.schedule.directives import PeelWalk, UnrollWalk


def run(function: mir.Function) -> mir.Function:
    """Move the depths from the loops to the walks inside them."""
    return replace(function, body=_body(function.body, 0, 0))


def _body(body: mir.Body, unroll: int, peel: int) -> mir.Body:
    made: list[mir.Stmt] = []
    for stmt in body:
        match stmt:
            case mir.Loop():
                asked, peeled = stmt.mark(UnrollWalk), stmt.mark(PeelWalk)
                inner = _body(
                    stmt.body,
                    max(unroll, 0 if asked is None else asked.depth),
                    max(peel, 0 if peeled is None else peeled.depth),
                )
                marks = stmt.without(UnrollWalk, PeelWalk)
                made.append(replace(stmt, body=inner, marks=marks))
            case mir.Let(op=mir.WalkDecisionTree() as walk):
                op = replace(
                    walk,
                    unroll=min(unroll, walk.min_depth),
                    peel=min(max(peel, walk.peel), walk.min_depth),
                )
                made.append(replace(stmt, op=op))
            case _:
                made.append(map_bodies(stmt, lambda case: _body(case, unroll, peel)))
    return tuple(made)
