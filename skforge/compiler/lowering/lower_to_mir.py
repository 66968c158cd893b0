"""Lower HIR to MIR: the schedule's loops around one walk and one reduce.

Before: ``predict_ensemble(forest, schedule)``. After::

    for b0 in 0 to rows step 64:
      for tree in 0 to 100:
        for b1 in 0 to min(64, rows - b0):
          t = get_tree(model, tree)
          p = walk_decision_tree([t], [b0 + b1])
          reduce(result[b0 + b1], p)

Directives stay attached to their loops; the passes that follow carry them out.
"""

from __future__ import annotations

from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.mir import nodes as mir
from skforge.schedule.bound import BoundLoop, tree_positions
from skforge.schedule.directives import GpuDimension, Parallel
from skforge.schedule.nest import BatchLength, Size


def run(hir: PredictEnsemble, element: mir.Element = "accumulator") -> mir.Function:
    lowering = _Lowering(hir, element)
    each: dict[mir.Element, tuple[Size | None, ...]] = {
        "accumulator": (None,),
        "leaf_number": (hir.tiles.n_trees,),
        "contribution": (None, hir.forest.n_features + 1),
        "pattern": (None,),
        "interaction": (None, *2 * (hir.forest.n_features + 1,)),
    }
    result = mir.NamedArray(mir.RESULT, (BatchLength(), *each[element]), element)
    return mir.Function(result, hir.tiles.n_trees, lowering.loops(hir.nest.loops, ()))


class _Lowering:
    def __init__(self, hir: PredictEnsemble, element: mir.Element) -> None:
        self._hir = hir
        self._element: mir.Element = element
        self._order: mir.ReductionOrder = (
            "ordered" if hir.reduction == "exact" else "any"
        )
        self._count = 0

    def loops(
        self, loops: tuple[BoundLoop, ...], path: tuple[BoundLoop, ...]
    ) -> mir.Body:
        return tuple(self._loop(loop, path) for loop in loops)

    def _loop(self, loop: BoundLoop, path: tuple[BoundLoop, ...]) -> mir.Stmt:
        path = (*path, loop)
        body = self.loops(loop.body, path) if loop.body else self._statement(path)
        kind: mir.LoopKind = "serial"
        if loop.has(Parallel):
            kind = "parallel"
        elif loop.dimension is not None:
            kind = loop.dimension  # type: ignore[assignment]
        return mir.Loop(
            var=loop.name,
            root=loop.root,
            start=loop.start,
            step=loop.step,
            bounds=tuple(mir.Bound(b.limit, mir.Affine(b.minus)) for b in loop.bounds),
            kind=kind,
            body=body,
            trip_count=loop.trip_count,
            marks=loop.without(Parallel, GpuDimension),
        )

    def _statement(self, path: tuple[BoundLoop, ...]) -> mir.Body:
        self._count += 1
        n = "" if self._count == 1 else str(self._count)
        tree, value = f"%t{n}", f"%p{n}"
        row = mir.Affine(tuple(loop.name for loop in path if loop.root == "batch"))
        position = mir.Affine(tuple(loop.name for loop in path if loop.root == "tree"))
        tiles = self._hir.tiles
        reached = tree_positions(path)[1]
        walk = mir.WalkDecisionTree(
            (tree,),
            (row,),
            int(tiles.min_depth[reached].min()) if len(reached) else 0,
            int(tiles.max_depth[reached].max(initial=0)),
            element=self._element,
        )
        get = mir.Let((tree,), mir.GetTree(position))
        if self._element == "leaf_number":
            store = mir.StoreLeaf(mir.RESULT, (row, mir.ModelTree(position)), value)
            return (get, mir.Let((value,), walk), store)
        forest = self._hir.forest
        body: tuple[mir.Stmt, ...] = (get,)
        column: mir.Index = mir.Affine()
        if forest.leaf_value.shape[1] > 1:
            column = mir.Outputs()
        elif forest.n_outputs > 1:
            body += (mir.Let((f"%c{n}",), mir.GetTreeClassId(tree)),)
            column = mir.Class(f"%c{n}")
        reduce = mir.Reduce(mir.RESULT, (row, column), value, self._order)
        return (*body, mir.Let((value,), walk), reduce)
