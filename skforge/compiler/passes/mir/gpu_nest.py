"""Queries on GPU loop nests, and marking sums that threads can keep in registers."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import loops_in, statements
from skforge.compiler.layouts.base import BlockShape
from skforge.compiler.schedule.nest import size_value

_FILLS = mir.CacheRows | mir.CacheTrees | mir.QuantizeRows | mir.EvaluatePredicates


def holds_grid(stmt: mir.Stmt) -> bool:
    """Whether a statement is or contains a loop over blocks."""
    return any(i.on_grid for i in loops_in((stmt,)))


def holds_threads(stmt: mir.Stmt) -> bool:
    """Whether a statement is or contains a loop over threads."""
    return any(i.on_threads for i in loops_in((stmt,)))


def caches(stmt: mir.Stmt) -> bool:
    """Whether a statement is or contains one that fills shared memory."""
    return any(isinstance(inner, _FILLS) for inner in statements((stmt,)))


def block_shape(body: mir.Body) -> BlockShape | None:
    """Return the shape of a thread block that evaluates predicates, or None."""
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


def block_dims(body: mir.Body) -> dict[str, int]:
    """Return the number of threads that loops in a block need in each dimension."""
    dims: dict[str, int] = {}
    for loop in loops_in(body):
        if loop.on_threads:
            dims[loop.kind] = max(dims.get(loop.kind, 1), loop.most_trips)
    return dict(sorted(dims.items()))


#: Threads that exchange values without shared memory, on every GPU.
WARP = 32

#: Most outputs whose sums a thread can keep in registers.
MAX_OUTPUTS = 8

#: Most bytes of shared memory for the sums of a block's threads. Sums go there if
#: outputs are indexed dynamically, which registers do not support.
MAX_BYTES = 32 << 10


def run(function: mir.Function, hir: PredictEnsemble) -> mir.Function:
    """Mark the arrays of sums that can stay in registers."""
    if hir.forest.n_outputs > MAX_OUTPUTS:
        return function
    wide = {i.trip_count for i in loops_in(function.body) if i.kind == "block.x"}
    if len(wide) != 1:
        return function
    (width,) = wide
    if width is None or not 1 < width <= WARP or width & (width - 1):
        return function
    if hir.forest.n_outputs > 1 and own_bytes(function, hir) > MAX_BYTES:
        return function
    return replace(function, body=_body(function.body, width, False))


def own_bytes(function: mir.Function, hir: PredictEnsemble) -> int:
    """Return the bytes of one sum per output and thread of a block."""
    threads = prod(block_dims(function.body).values())
    width = 8 if hir.reduction == "reproducible" else hir.forest.leaf_value.itemsize
    return int(threads * hir.forest.n_outputs * width)


def _body(body: mir.Body, width: int, in_block: bool) -> mir.Body:
    stmts: list[mir.Stmt] = []
    for stmt in body:
        if isinstance(stmt, mir.Loop):
            inside = in_block or not any(i.on_grid for i in loops_in(stmt.body))
            inner = _body(stmt.body, width, inside)
            stmts.append(replace(stmt, body=inner))
        else:
            stmts.append(stmt)
    if not in_block:
        return tuple(stmts)
    for k in range(len(stmts) - 2):
        alloc, loop, total = stmts[k : k + 3]
        if (
            isinstance(alloc, mir.AllocArray)
            and isinstance(loop, mir.Loop)
            and isinstance(total, mir.ReduceDimension)
            and total.source == alloc.array.name
            and not total.ordered
            and len(alloc.array.dims) == 3
            and alloc.array.dims[0] == width
            and _is_a_row_a_thread(loop)
        ):
            stmts[k] = replace(alloc, array=replace(alloc.array, lanes=True))
            stmts[k + 2] = replace(total, by_warp=True)
            start = stmts[k - 1] if k else None
            if isinstance(start, mir.Fill):
                stmts[k - 1] = replace(start, by_warp=True)
    return tuple(stmts)


def _is_a_row_a_thread(loop: mir.Loop) -> bool:
    """Whether each thread has one row and one slot on every path to a walk."""

    def check(loop: mir.Loop, rows: int, slots: int) -> bool:
        if loop.root == "batch":
            if not loop.on_threads or loop.start != 0 or loop.step != 1:
                return False
            rows += 1
        elif loop.on_threads:
            if loop.kind != "block.x":
                return False
            slots += 1
        inner = [stmt for stmt in loop.body if isinstance(stmt, mir.Loop)]
        if not inner:
            return rows <= 1 and slots == 1
        return len(inner) == len(loop.body) and all(
            check(i, rows, slots) for i in inner
        )

    return check(loop, 0, 0)
