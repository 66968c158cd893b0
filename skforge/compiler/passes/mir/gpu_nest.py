"""Facts about a nest of loops on a GPU: which run where, and how many threads."""

from __future__ import annotations

from collections.abc import Iterator

from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import loops_in
from skforge.compiler.layouts.base import BlockShape
from skforge.compiler.schedule.nest import size_value

DIMENSIONS = ("x", "y", "z")

_FILLS = mir.CacheRows | mir.CacheTrees | mir.QuantizeRows | mir.EvaluatePredicates


def holds_grid(stmt: mir.Stmt) -> bool:
    """Whether a statement is a loop over blocks, or has one inside."""
    return any(i.on_grid for i in loops_in((stmt,)))


def holds_threads(stmt: mir.Stmt) -> bool:
    """Whether a statement is a loop over threads, or has one inside."""
    return any(i.on_threads for i in loops_in((stmt,)))


def caches(stmt: mir.Stmt) -> bool:
    """Whether a statement fills shared memory, or has one inside that does."""
    return any(isinstance(inner, _FILLS) for inner in _statements((stmt,)))


def _statements(body: mir.Body) -> Iterator[mir.Stmt]:
    for stmt in body:
        yield stmt
        match stmt:
            case mir.Loop():
                yield from _statements((*stmt.body, *stmt.remainder))
            case mir.DepthSwitch(cases=cases):
                for case in cases:
                    yield from _statements(case)
            case _:
                pass


def block_shape(body: mir.Body) -> BlockShape | None:
    """Return what a block of threads takes, if it evaluates predicates."""
    for loop in loops_in(body):
        if not any(isinstance(stmt, mir.StoreRows) for stmt in loop.body):
            continue
        inside = (loop, *loops_in(loop.body))
        tables = [
            stmt
            for i in inside
            for stmt in i.body
            if isinstance(stmt, mir.EvaluatePredicates)
        ]
        threads = [i for i in inside if i.on_threads]
        if tables and threads:
            limits = [bound.limit for bound in tables[0].trees.bounds]
            trees = min(limit for limit in limits if isinstance(limit, int))
            rows, each = size_value(loop.step, 0), size_value(threads[0].step, 0)
            return BlockShape(rows, rows // each, trees)
    return None


def most_trips(loop: mir.Loop) -> int:
    """Return the most iterations a loop of bounded length has."""
    if loop.trip_count is not None:
        return loop.trip_count
    limit = min(b.limit for b in loop.bounds if isinstance(b.limit, int))
    start, step = size_value(loop.start, 0), size_value(loop.step, 0)
    return max(1, -(-(limit - start) // step))


def block_dims(body: mir.Body) -> dict[str, int]:
    """Return the threads of each dimension that loops of a block's body need."""
    dims: dict[str, int] = {}
    for loop in loops_in(body):
        if loop.on_threads:
            dims[loop.kind] = max(dims.get(loop.kind, 1), most_trips(loop))
    return dict(sorted(dims.items()))
