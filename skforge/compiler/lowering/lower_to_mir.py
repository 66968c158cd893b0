"""Lower HIR to MIR: the schedule's loops around one walk and one reduce.

Before: ``predict_ensemble(forest, schedule)``. After::

    for b0 in 0 to rows step 64:
      for tree in 0 to 100:
        for b1 in 0 to min(64, rows - b0):
          t = get_tree(tree)
          p = walk_decision_tree([t], [b0 + b1])
          reduce(result[b0 + b1], p)

Directives stay attached to their loops; the passes that follow carry them out.
"""

from __future__ import annotations

from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.mir.nodes import (
    RESULT,
    Affine,
    Array,
    Body,
    Bound,
    Class,
    Element,
    Function,
    GetTree,
    GetTreeClassId,
    Index,
    Let,
    Loop,
    LoopKind,
    ModelTree,
    Order,
    Outputs,
    Reduce,
    Stmt,
    StoreLeaf,
    WalkDecisionTree,
)
from skforge.compiler.passes.hir.tree_ranges import tree_positions
from skforge.compiler.schedule.bound import BoundLoop
from skforge.compiler.schedule.directives import GpuDimension, Parallel
from skforge.compiler.schedule.nest import Rows


def run(hir: PredictEnsemble, element: Element = "accumulator") -> Function:
    """Lower a prediction function, or ``apply`` (``element="leaf_number"``)."""
    lowering = _Lowering(hir, element)
    second = None if element == "accumulator" else hir.tiles.n_trees
    result = Array(RESULT, (Rows(), second), element)
    return Function(result, hir.tiles.n_trees, lowering.loops(hir.nest.loops, ()))


class _Lowering:
    """Builds the nest; numbers make names unique, since split copies loops."""

    def __init__(self, hir: PredictEnsemble, element: Element) -> None:
        self._hir = hir
        self._element: Element = element
        self._order: Order = "ordered" if hir.reduction == "exact" else "any"
        self._count = 0

    def loops(self, loops: tuple[BoundLoop, ...], path: tuple[BoundLoop, ...]) -> Body:
        return tuple(self._loop(loop, path) for loop in loops)

    def _loop(self, loop: BoundLoop, path: tuple[BoundLoop, ...]) -> Stmt:
        path = (*path, loop)
        body = self.loops(loop.body, path) if loop.body else self._statement(path)
        kind: LoopKind = "serial"
        if loop.has(Parallel):
            kind = "parallel"
        elif loop.gpu is not None:
            kind = loop.gpu  # type: ignore[assignment]
        return Loop(
            var=loop.name,
            root=loop.root,
            start=loop.start,
            step=loop.step,
            bounds=tuple(Bound(b.limit, Affine(b.minus)) for b in loop.bounds),
            kind=kind,
            body=body,
            trip_count=loop.trip_count,
            marks=loop.without(Parallel, GpuDimension),
        )

    def _statement(self, path: tuple[BoundLoop, ...]) -> Body:
        self._count += 1
        n = "" if self._count == 1 else str(self._count)
        tree, value = f"%t{n}", f"%p{n}"
        row = Affine(tuple(loop.name for loop in path if loop.root == "batch"))
        position = Affine(tuple(loop.name for loop in path if loop.root == "tree"))
        tiles = self._hir.tiles
        reached = tree_positions(path)[1]
        walk = WalkDecisionTree(
            (tree,),
            (row,),
            int(tiles.min_depth[reached].min()) if len(reached) else 0,
            int(tiles.max_depth[reached].max(initial=0)),
            element=self._element,
        )
        get = Let((tree,), GetTree(position))
        if self._element == "leaf_number":
            store = StoreLeaf(RESULT, (row, ModelTree(position)), value)
            return (get, Let((value,), walk), store)
        forest = self._hir.forest
        body: tuple[Stmt, ...] = (get,)
        column: Index = Affine()
        if forest.leaf_value.shape[1] > 1:
            column = Outputs()
        elif forest.n_outputs > 1:
            body += (Let((f"%c{n}",), GetTreeClassId(tree)),)
            column = Class(f"%c{n}")
        reduce = Reduce(RESULT, (row, column), value, self._order)
        return (*body, Let((value,), walk), reduce)
