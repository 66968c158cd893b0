"""Keep a chunk of the trees' leaves in shared memory at a time, for large forests.

An exact ``shared_reduce`` stores one leaf per tree and row of a block. If the leaves of
all trees take too much shared memory, the block walks a chunk of the trees, adds the
chunk's leaves in the model's order, and goes on. Before::

    leaves_1 = alloc[1000, 32] <shared>
    for b1 ...: for t1 in 0 to 50: for t0 in 0 to 1000 - t1 step 50:
      leaves_1[model_tree(t1 + t0), b1] = ...
    result[...] += reduce_dimension(leaves_1[0 : 1000, ...], 0)

After::

    leaves_1 = alloc[250, 32] <shared>
    for t0.chunk in 0 to 1000 step 250:
      for b1 ...: for t1 in 0 to 50: for t0 in 0 to min(250, ...) step 50:
        leaves_1[t1 + t0, b1] = ...
      result[...] += reduce_dimension(leaves_1[trees t0.chunk : ..., ...], 0)

A chunk is a range of consecutive trees, so no sum changes its order. Nests in which one
step of the serial loop over trees is no such range stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir import walk
from skforge.gpu.nest import fixed_size, row_stride
from skforge.schedule.directives import Interleave

#: Leaves take at most this part of shared memory, so that several blocks fit.
SHARE = 4


def run(function: mir.Function, hir: PredictEnsemble, room: int) -> mir.Function:
    """Split the leaves of blocks; ``room`` is a block's shared memory in bytes."""
    order = hir.tiles.tree_order
    in_order = (order == range(len(order))).all()
    if not room or not in_order or function.result.by_feature:
        return function

    def change(loop: mir.Loop) -> mir.Loop:
        if not loop.on_grid or any(inner.on_grid for inner in walk.loops_in(loop.body)):
            return loop
        return replace(loop, body=_in_chunks(loop.body, hir, room))

    return replace(function, body=walk.map_loops(function.body, change))


def _in_chunks(body: mir.Body, hir: PredictEnsemble, room: int) -> mir.Body:
    allocs = [s for s in body if isinstance(s, mir.AllocArray) and s.array.shared]
    nests = [s for s in body if isinstance(s, mir.Loop)]
    totals = [s for s in body if isinstance(s, mir.ReduceDimension) and s.ordered]
    if not len(allocs) == len(nests) == len(totals) == 1:
        return body
    alloc, nest, total = allocs[0], nests[0], totals[0]
    leaves = alloc.array
    values = fixed_size(leaves.dims[1:], hir.forest.n_outputs)
    loop = _steps(nest, leaves.name)
    if total.source != leaves.name or values is None or loop is None:
        return body
    bytes_a_tree = values * hir.forest.leaf_value.itemsize
    together = loop.mark(Interleave)
    factor = 1 if together is None else together.factor or 1
    left = room - _bytes_of_rows(body, hir)
    n_trees = hir.tiles.n_trees
    assert isinstance(loop.step, int)
    size = trees_a_chunk(n_trees, loop.step, factor, bytes_a_tree, room, left)
    if size >= n_trees:
        return body
    stmts: list[mir.Stmt] = []
    for stmt in body:
        if stmt is alloc:
            array = replace(leaves, dims=(size, *leaves.dims[1:]))
            stmts.append(replace(alloc, array=array))
        elif stmt is nest:
            stmts.append(_chunks(nest, loop, replace(total, extent=size), n_trees))
        elif stmt is not total:
            stmts.append(stmt)
    return tuple(stmts)


def _bytes_of_rows(body: mir.Body, hir: PredictEnsemble) -> int:
    total = 0
    for stmt in body:
        if isinstance(stmt, mir.CacheRows):
            limits = [b.limit for b in stmt.rows.bounds if isinstance(b.limit, int)]
            stride = row_stride(hir.forest.n_features)
            total += min(limits, default=0) * stride * hir.forest.input_dtype.itemsize
    return total


def _steps(nest: mir.Loop, leaves: str) -> mir.Loop | None:
    loops = [loop for loop in (nest, *walk.loops_in(nest.body)) if loop.root == "tree"]
    stepped = [
        loop
        for loop in loops
        if loop.kind == "serial"
        and loop.start == 0
        and all(other is loop or walk.stays_within(other, loop.step) for other in loops)
    ]
    if len(stepped) != 1 or not isinstance(stepped[0].step, int):
        return None
    inside = [s for s in walk.statements(stepped[0].body) if _stores(s, leaves)]
    everywhere = [s for s in walk.statements((nest,)) if _stores(s, leaves)]
    return stepped[0] if len(inside) == len(everywhere) else None


def _stores(stmt: mir.Stmt, leaves: str) -> bool:
    return isinstance(stmt, mir.StoreLeaf) and stmt.target == leaves


def trees_a_chunk(
    n_trees: int, step: int, factor: int, bytes_a_tree: int, room: int, left: int
) -> int:
    """Return how many trees have their leaves in shared memory at a time.

    They are all, or else equal chunks of whole steps; of one step if no more fit. In a
    step the threads walk ``step`` trees, and each thread walks ``factor`` steps
    together. A tree's leaves take ``bytes_a_tree`` for all rows of a block. Copies of
    rows leave ``left`` bytes of the ``room`` in its shared memory.
    """
    most = min(room // SHARE, left) // bytes_a_tree
    if n_trees <= most:
        return n_trees
    steps = -(-n_trees // step)
    at_once = max(1, most // step)
    at_once = -(-steps // -(-steps // at_once))
    if at_once > factor:  # no walk is left over in a chunk
        at_once -= at_once % factor
    return min(n_trees, at_once * step)


def _chunks(
    nest: mir.Loop, loop: mir.Loop, total: mir.ReduceDimension, n_trees: int
) -> mir.Loop:
    var, size = f"{loop.var}.chunk", total.extent
    assert isinstance(size, int)
    first = mir.Affine((var,))

    def moved(inner: mir.Loop) -> mir.Loop:
        if inner.var != loop.var:
            return inner
        within = (replace(b, minus=b.minus.plus(first)) for b in inner.bounds)
        bounds = mir.Bound(size), *within
        position = first.plus(mir.Affine((inner.var,)))
        body = walk.substitute(inner.body, inner.var, position)
        return replace(inner, bounds=bounds, trip_count=None, body=body)

    def placed(stmt: mir.Stmt) -> mir.Stmt:
        if not isinstance(stmt, mir.StoreLeaf) or stmt.target != total.source:
            return stmt
        tree = stmt.indices[0]
        assert isinstance(tree, mir.ModelTree)
        terms = tuple(term for term in tree.position.terms if term != var)
        slot = replace(tree.position, terms=terms)
        return replace(stmt, indices=(slot, *stmt.indices[1:]))

    body = walk.map_statements(walk.map_loops((nest,), moved), placed)
    trees = mir.Range(first, (mir.Bound(size), mir.Bound(n_trees, first)))
    return mir.Loop(
        var,
        "tree",
        0,
        size,
        (mir.Bound(n_trees),),
        "serial",
        (*body, replace(total, trees=trees)),
        -(-n_trees // size),
    )
