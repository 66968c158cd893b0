"""Accumulate a thread's outputs locally until its last tree.

Before, in a thread that takes a row through trees of ten classes::

    for b1 in 0 to 256:  block.x
      result[b0 + b1] = base
      for tree ...: reduce(result[b0 + b1, %c], p)

After: global memory is written once per row, not once per tree::

    for b1 in 0 to 256:  block.x
      kept_1 = alloc[1, outputs] <lanes>
      kept_1[0] = base
      for tree ...: reduce(kept_1[0, %c], p)
      result[b0 + b1] = kept_1

Lowering puts such an array in registers if every output index is known at compile
time, otherwise in shared memory with one bank per thread. SilvanForge §9.1 finds that
shared sums gain 1.5× on models of many classes. Where the threads of a warp share a
row, ``run_by_warp`` marks their arrays of sums instead: each thread keeps its slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from math import prod

from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import loops_in, statements
from skforge.compiler.passes.mir.reduces import reduces_in, retarget
from skforge.gpu.nest import WARP, block_dims, holds_grid

#: Most outputs whose sums a thread can keep in registers.
MAX_OUTPUTS = 8

#: Most bytes of shared memory for the sums of a block's threads. Sums go there if
#: outputs are indexed dynamically, which registers do not support.
MAX_BYTES = 32 << 10


def run(function: mir.Function, hir: PredictEnsemble) -> mir.Function:
    n_outputs = hir.forest.n_outputs
    if function.result.by_feature:
        return function  # the layout keeps them
    if n_outputs == 1 or not any(holds_grid(stmt) for stmt in function.body):
        return function
    if own_bytes(function, hir) > MAX_BYTES:
        return function
    names = (f"kept_{number}" for number in count(1))
    return replace(function, body=_keep(function.body, False, names))


def _keep(body: mir.Body, in_thread: bool, names: Iterator[str]) -> mir.Body:
    if in_thread and (kept_sums := _keep_sums(body, names)) is not None:
        return kept_sums
    return tuple(
        replace(stmt, body=_keep(stmt.body, in_thread or stmt.on_threads, names))
        if isinstance(stmt, mir.Loop)
        else stmt
        for stmt in body
    )


def _keep_sums(body: mir.Body, names: Iterator[str]) -> mir.Body | None:
    fill, reduces = next(iter(body), None), body[1:]
    if not isinstance(fill, mir.Fill) or not _only_reduces(reduces):
        return None
    one_row = fill.rows.bounds == (mir.Bound(1),)
    if fill.target != mir.RESULT or fill.by_warp or not one_row:
        return None
    name = next(names)
    return (
        mir.AllocArray(mir.NamedArray(name, (1, None), lanes=True), zero=False),
        mir.Fill(name, mir.Range(mir.Affine(), (mir.Bound(1),))),
        *retarget(reduces, name, lambda row: mir.Affine()),
        mir.StoreRows(name, fill.rows),
    )


def _only_reduces(body: mir.Body) -> bool:
    other = mir.AllocArray | mir.StoreRows | mir.Fill
    if any(isinstance(stmt, other) for stmt in statements(body)):
        return False
    adds = list(reduces_in(body))
    return bool(adds) and all(r.target == mir.RESULT and not r.atomic for r in adds)


def run_by_warp(function: mir.Function, hir: PredictEnsemble) -> mir.Function:
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
    return replace(function, body=_by_warp(function.body, width, False))


def own_bytes(function: mir.Function, hir: PredictEnsemble) -> int:
    threads = prod(block_dims(function.body).values())
    width = 8 if hir.reduction == "reproducible" else hir.forest.leaf_value.itemsize
    return int(threads * hir.forest.n_outputs * width)


def _by_warp(body: mir.Body, width: int, in_block: bool) -> mir.Body:
    stmts: list[mir.Stmt] = []
    for stmt in body:
        if isinstance(stmt, mir.Loop):
            inside = in_block or not any(i.on_grid for i in loops_in(stmt.body))
            stmts.append(replace(stmt, body=_by_warp(stmt.body, width, inside)))
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


def _is_a_row_a_thread(loop: mir.Loop, rows: int = 0, slots: int = 0) -> bool:
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
    alone = len(inner) == len(loop.body)
    return alone and all(_is_a_row_a_thread(i, rows, slots) for i in inner)
