"""Sum over the lanes of a warp where the slots of a sum are its lanes.

Before (``fast`` or ``reproducible``, trees dealt out to 32 threads of dimension x)::

    result_1 = zeros[32, 8, outputs]
    for b1 in 0 to 8:  block.y
      for t1 in 0 to 32:  block.x
        for t0 ...: reduce(result_1[t1, b1], p)
    result[b0 : b0 + 8] += reduce_dimension(result_1, 0)

After: the same with ``result_1`` <lanes>, a number for each thread that it keeps in its
registers, and ``reduce_dimension`` <by_warp>, which adds them by shuffles: no shared
memory, no barrier, so that loops around it stay within a thread.
"""

from __future__ import annotations

from dataclasses import replace

from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.mir.nodes import (
    AllocArray,
    Body,
    Fill,
    Function,
    Loop,
    ReduceDimension,
    Stmt,
)
from skforge.compiler.ir.mir.walk import loops_in
from skforge.compiler.passes.mir.gpu_nest import block_dims

#: Threads that exchange values without shared memory, on every GPU.
WARP = 32

#: Outputs whose sums a thread can keep in registers.
MAX_OUTPUTS = 8

#: Shared memory that the sums of a block's threads may take, where outputs are picked
#: by numbers that registers cannot be indexed with.
MAX_BYTES = 32 << 10


def run(function: Function, hir: PredictEnsemble) -> Function:
    """Mark what can stay in registers."""
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


def own_bytes(function: Function, hir: PredictEnsemble) -> int:
    """Return the bytes of a sum for each output and thread of a block."""
    threads = 1
    for n in block_dims(function.body).values():
        threads *= n
    width = 8 if hir.reduction == "reproducible" else hir.forest.leaf_value.itemsize
    return int(threads * hir.forest.n_outputs * width)


def _body(body: Body, width: int, in_block: bool) -> Body:
    made: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Loop):
            inside = in_block or not any(i.on_grid for i in loops_in(stmt.body))
            inner = _body(stmt.body, width, inside)
            made.append(replace(stmt, body=inner))
        else:
            made.append(stmt)
    if not in_block:
        return tuple(made)
    for k in range(len(made) - 2):
        alloc, loop, total = made[k : k + 3]
        if (
            isinstance(alloc, AllocArray)
            and isinstance(loop, Loop)
            and isinstance(total, ReduceDimension)
            and total.source == alloc.array.name
            and not total.ordered
            and len(alloc.array.dims) == 3
            and alloc.array.dims[0] == width
            and _is_a_row_a_thread(loop)
        ):
            made[k] = replace(alloc, array=replace(alloc.array, lanes=True))
            made[k + 2] = replace(total, by_warp=True)
            start = made[k - 1] if k else None
            if isinstance(start, Fill):
                made[k - 1] = replace(start, by_warp=True)
    return tuple(made)


def _is_a_row_a_thread(loop: Loop) -> bool:
    """Whether each thread has one row and one slot on every path to a walk."""

    def check(loop: Loop, rows: int, slots: int) -> bool:
        if loop.root == "batch":
            if not loop.on_threads or loop.start != 0 or loop.step != 1:
                return False
            rows += 1
        elif loop.on_threads:
            if loop.kind != "block.x":
                return False
            slots += 1
        inner = [stmt for stmt in loop.body if isinstance(stmt, Loop)]
        if not inner:
            return rows <= 1 and slots == 1
        return len(inner) == len(loop.body) and all(
            check(i, rows, slots) for i in inner
        )

    return check(loop, 0, 0)
