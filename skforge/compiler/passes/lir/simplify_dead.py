"""Drops operations whose results nobody reads, and statements left empty."""

from __future__ import annotations

from dataclasses import replace

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import Body, Stmt
from skforge.compiler.ir.lir.walk import operands, operands_of_stmt


def drop_dead(body: Body, live: set[str] | None = None) -> Body:
    """Return ``body`` without dead operations; ``live`` gains the names it reads."""
    if live is None:
        live = set()
    kept: list[Stmt] = []
    for stmt in reversed(body):
        match stmt:
            case lir.Let(value=value, op=op):
                # Every thread of a warp must reach its reduction.
                if value.name not in live and not isinstance(op, lir.WarpReduce):
                    continue
                for operand in operands(op):
                    live.add(operand.name)
                kept.append(stmt)
                continue
            case lir.While(before=before, body=inner):
                _read(stmt, live)
                inner = drop_dead(inner, live)
                stmt = replace(stmt, before=drop_dead(before, live), body=inner)
            case lir.If(then=then, orelse=orelse, results=results):
                if results:
                    _read(stmt, live)
                then, orelse = drop_dead(then, live), drop_dead(orelse, live)
                if not (then or orelse or results):
                    continue
                stmt = replace(stmt, then=then, orelse=orelse)
            case lir.Switch(cases=cases):
                _read(stmt, live)
                stmt = replace(stmt, cases=tuple(drop_dead(c, live) for c in cases))
            case lir.For(body=inner, results=results):
                if results:
                    _read(stmt, live)
                inner = drop_dead(inner, live)
                if not (inner or results):
                    continue
                stmt = replace(stmt, body=inner)
            case lir.ParallelFor(body=inner):
                inner = drop_dead(inner, live)
                if not inner:
                    continue
                stmt = replace(stmt, body=inner)
            case lir.Grid(body=inner) | lir.BlockRegion(body=inner):
                stmt = replace(stmt, body=drop_dead(inner, live))
            case _:
                pass
        _read(stmt, live)
        kept.append(stmt)
    return tuple(reversed(kept))


def _read(stmt: Stmt, live: set[str]) -> None:
    live.update(v.name for v in operands_of_stmt(stmt))
