"""Expand each walk into hops, a leaf-check loop where needed, and reading its leaf.

Before: ``p = walk_decision_tree([t], [r]) unroll=2``. After::

    n = get_root(t)
    n.1 = traverse_tree_tile([t], [n], [r])
    n.2 = traverse_tree_tile([t], [n.1], [r])
    while not is_leaf(n.2): n.2 = traverse_tree_tile([t], [n.2], [r])
    p = get_leaf_value(t, n.2)

No loop follows if no leaf lies deeper than the unchecked hops.
"""

from __future__ import annotations

from dataclasses import replace

from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import map_statements


def run(function: mir.Function) -> mir.Function:
    return replace(function, body=map_statements(function.body, _expand))


def _expand(stmt: mir.Stmt) -> mir.Stmt | mir.Body:
    if not isinstance(stmt, mir.Let) or not isinstance(stmt.op, mir.WalkDecisionTree):
        return stmt
    walk, base = stmt.op, stmt.names
    if walk.is_whole:
        return stmt

    def named(what: str) -> tuple[str, ...]:
        return tuple(f"{name}.{what}" for name in base)

    nodes = named("n0")
    stmts: list[mir.Stmt] = [mir.Let(nodes, mir.GetRoot(walk.trees))]
    hops = max(walk.unroll, walk.peel)
    for hop in range(1, hops + 1):
        step = mir.TraverseTreeTile(walk.trees, nodes, walk.rows, False, walk.using)
        nodes = named(f"n{hop}")
        stmts.append(mir.Let(nodes, step))
    if walk.max_depth > hops:
        at, ends = named("at"), named("end")
        step = mir.TraverseTreeTile(walk.trees, at, walk.rows, True, walk.using)
        stmts.append(mir.WalkLoop(ends, nodes, step))
        nodes = ends
    stmts.append(mir.Let(base, mir.GetLeafValue(walk.trees, nodes, walk.element)))
    return tuple(stmts)
