"""Carry out ``interleave`` and ``vectorize``: several walks at once.

Before::

    for b1 in 0 to 64: t = get_tree(tree); p = walk([t], [b1]); reduce(result[b1], p)

After ``interleave("b1", 2)``, both walks run together and sums keep the loop order::

    for b1 in 0 to 64 groups of 2:
      t = get_tree(tree)
      t.i1 = get_tree(tree)
      p, p.i1 = walk([t, t.i1], [b1, b1 + 1])
      reduce(result[b1], p)
      reduce(result[b1 + 1], p.i1)
    remainder: ...

``vectorize`` keeps one walk and maps its rows to the lanes of a vector.
"""

from __future__ import annotations

from dataclasses import replace

from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import copy_body, map_loops, substitute
from skforge.exceptions import CompilerError
from skforge.schedule.directives import Interleave, Vectorize


def run(function: mir.Function, vector_lanes: int) -> mir.Function:
    """Group the iterations of loops; ``vector_lanes`` rows fill a vector register."""

    def change(loop: mir.Loop) -> mir.Loop:
        return _group(loop, vector_lanes)

    return replace(function, body=map_loops(function.body, change))


def _group(loop: mir.Loop, lanes: int) -> mir.Loop:
    together, in_lanes = loop.mark(Interleave), loop.has(Vectorize)
    factor = None if together is None else together.factor
    loop = replace(loop, marks=loop.without(Interleave, Vectorize))
    if in_lanes:
        rest = copy_body(loop.body, ".r")
        return replace(loop, kind="vector", group=lanes, remainder=rest)
    if factor is None or factor == 1:
        return loop
    copies = [loop.body] + [
        substitute(
            copy_body(loop.body, f".i{k}"),
            loop.var,
            replace(mir.multiple(loop.step, k), terms=(loop.var,)),
        )
        for k in range(1, factor)
    ]
    whole = loop.trip_count is not None and loop.trip_count % factor == 0
    remainder = () if whole else copy_body(loop.body, ".r")
    return replace(loop, body=_jam(copies), group=factor, remainder=remainder)


def _jam(copies: list[mir.Body]) -> mir.Body:
    jammed: list[mir.Stmt] = []
    for stmts in zip(*copies, strict=True):
        walks = [
            (stmt, stmt.op)
            for stmt in stmts
            if isinstance(stmt, mir.Let) and isinstance(stmt.op, mir.WalkDecisionTree)
        ]
        if not walks:
            if any(isinstance(stmt, mir.Loop) for stmt in stmts):
                raise CompilerError("interleave reached a loop that is not innermost")
            jammed.extend(stmts)
            continue
        names = tuple(name for let, _ in walks for name in let.names)
        trees = tuple(tree for _, walk in walks for tree in walk.trees)
        rows = tuple(row for _, walk in walks for row in walk.rows)
        jammed.append(mir.Let(names, replace(walks[0][1], trees=trees, rows=rows)))
    return tuple(jammed)
