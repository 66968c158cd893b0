"""Statements on whole blocks of rows on a GPU: the representation's own code.

For a block of rows whose predicates are evaluated once::

    region: sums = base                       fill
    for t0 in 0 to n_trees step 100:
      regions: slots = predicates             evaluate_predicates
      regions: sums += leaves                 loops over trees and the threads' rows
    region: result = sums                     store_rows
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from skforge.compiler.binning.rows import BlockRows
from skforge.compiler.ir.lir.nodes import Buffer, Scalar, Value
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import loops_in
from skforge.compiler.layouts.base import BlockThreads, GpuBlockLayout
from skforge.compiler.lowering.kernel import Kernel
from skforge.compiler.passes.mir.gpu_nest import caches


class BlockLowering(Protocol):
    """What writes the loops and regions around a layout's code."""

    k: Kernel

    def uniform_loop(self, loop: mir.Loop) -> None:
        """Emit a loop around barriers."""

    def with_number(self, body: Callable[[Value], None]) -> None:
        """Emit a region whose threads know their numbers."""

    def share(
        self, name: str, element: Scalar, n: int, what: str, alignment: int = 16
    ) -> Buffer:
        """Allocate shared memory."""


def lower_block(
    lowering: BlockLowering, stmt: mir.Stmt, body: mir.Body, layout: GpuBlockLayout
) -> None:
    """Lower one statement of a body that all threads of a block run together."""
    k = lowering.k
    match stmt:
        case mir.Fill():
            (stored,) = (s for s in body if isinstance(s, mir.StoreRows))
            first, width = k.affine(stored.rows.start), k.hir.forest.n_features
            rows = BlockRows(k.rows, k.n_rows, k.row_stride, first, width)
            threads = BlockThreads(
                k.b,
                rows,
                k.result,
                k.model_buffer,
                lowering.with_number,
                lowering.share,
            )
            layout.start(threads)
        case mir.EvaluatePredicates(trees=trees):
            layout.evaluate(k.affine(trees.start))
        case mir.Loop() if caches(stmt):
            lowering.uniform_loop(stmt)
        case mir.Loop():
            layout.add_trees(_first_tree(k, stmt))
        case mir.StoreRows():
            layout.finish()
        case _:
            pass  # the array of sums: the layout has its own


def _first_tree(k: Kernel, loop: mir.Loop) -> Value:
    """Return the position of the first tree of all loops that are not open yet."""
    gets = [
        stmt.op.index
        for inner in (loop, *loops_in(loop.body))
        for stmt in inner.body
        if isinstance(stmt, mir.Let) and isinstance(stmt.op, mir.GetTree)
    ]
    outside = tuple(name for name in gets[0].terms if name in k.values)
    return k.affine(mir.Affine(outside))
