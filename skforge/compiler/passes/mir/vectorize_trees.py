"""Carry out ``vectorize`` on a tree loop: one row, with trees in vector lanes.

Before::

    for batch in 0 to rows:   quantize
      fill(result[batch])
      for tree in 0 to 100:   vectorize
        t = get_tree(tree)
        p = walk_decision_tree([t], [batch])
        reduce(result[batch], p)

After, the tree loop is one block, whose sums keep the tree order::

    for batch in 0 to rows:
      fill(result[batch])
      %codes = quantize_rows(batch)
      block tree in 0 to 100:
        t = get_tree(tree)
        p = walk_decision_tree([t], [batch]) using %codes
        reduce(result[batch], p)

Without ``quantize``, ``take_rows(batch)`` stands for the codes.
"""

from __future__ import annotations

from dataclasses import replace

from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import loops_in, map_loops, map_walks
from skforge.exceptions import ScheduleError
from skforge.schedule.directives import Quantize, Vectorize

CODES = "%codes"


def run(function: mir.Function) -> mir.Function:
    def change(loop: mir.Loop) -> mir.Loop:
        inside = [stmt for stmt in loop.body if isinstance(stmt, mir.Loop)]
        if not any(_in_lanes(tree) for tree in inside):
            return loop
        return _rewrite(loop, inside)

    changed = replace(function, body=map_loops(function.body, change))
    if any(_in_lanes(loop) for loop in loops_in(changed.body)):
        raise ScheduleError(
            "A vectorised loop over trees needs a loop over single rows outside it."
        )
    return changed


def _in_lanes(loop: mir.Loop) -> bool:
    return loop.root == "tree" and loop.has(Vectorize)


def _rewrite(loop: mir.Loop, inside: list[mir.Loop]) -> mir.Loop:
    if len(inside) != 1:
        raise ScheduleError(
            "A vectorised loop over trees takes one row through all trees at once; "
            "leave the loop over trees in one piece, without split."
        )
    (tree,) = inside
    reduces = any(isinstance(stmt, mir.Reduce) for stmt in tree.body)
    if loop.step != 1 or not reduces:
        raise ScheduleError(
            f'vectorize("{tree.var}") takes one row at a time and adds its trees in '
            "the order of the model, with exact or fast reduction; leave out "
            "reorder_trees and loops that take several rows."
        )

    codes = CODES if loop.has(Quantize) else None

    def walk(op: mir.WalkDecisionTree) -> mir.WalkDecisionTree:
        return replace(op, using=codes, block=True)

    block = replace(
        tree,
        kind="block",
        body=map_walks(tree.body, walk),
        marks=tree.without(Vectorize),
    )
    row = next(
        stmt.op.rows[0]
        for stmt in tree.body
        if isinstance(stmt, mir.Let) and isinstance(stmt.op, mir.WalkDecisionTree)
    )
    rows = mir.Range(row, (mir.Bound(1),))
    take = mir.QuantizeRows(codes, rows, 1) if codes else mir.TakeRows(rows)
    body: list[mir.Stmt] = []
    for stmt in loop.body:
        body += [take, block] if stmt is tree else [stmt]
    return replace(loop, body=tuple(body), marks=loop.without(Quantize))
