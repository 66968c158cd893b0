"""Carry out ``cache_predicates``: evaluate each distinct predicate once per row block.

Loop-invariant code motion of the tests out of the tree loop. Before::

    for b0 in 0 to rows step 512:   cache_predicates
      fill(result[b0 : b0 + 512])
      for tree in 0 to 100:
        for b1 in 0 to 512:   vectorize
          t = get_tree(tree)
          p = walk_decision_tree([t], [b0 + b1])
          reduce(result[b0 + b1], p)

After, with the block's sums in an array of its own until they are stored::

    for b0 in 0 to rows step 512:
      %t = evaluate_predicates(trees, rows of the block)
      block_1 = alloc; fill(block_1)
      for tree in 0 to 100:
        block b1 in 0 to 512:
          p = walk_decision_tree([t], [b0 + b1]) using %t
          reduce(block_1[b1], p)
      store_rows(result[b0 : b0 + 512], block_1)

Rows past the end are padding: they repeat the last row and are never stored.

On a loop over tiles of trees, each tile evaluates the predicates of its own trees::

    for b0 in 0 to rows step 512:
      take_rows(rows of the block)
      block_1 = alloc; fill(block_1)
      for t0 in 0 to 100 step 50:
        %t = evaluate_predicates(trees of the tile, rows of the block)
        for t1 in 0 to 50:
          block b1 in 0 to 512:
            ...
      store_rows(result[b0 : b0 + 512], block_1)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import loops_in, map_loops, map_statements, statements
from skforge.compiler.passes.mir.reduces import reduces_in
from skforge.exceptions import ScheduleError
from skforge.schedule.directives import CachePredicates, Vectorize

BLOCK_SUMS = "block_sums"
PREDICATES = "%tests"


def run(function: mir.Function) -> mir.Function:
    def change(loop: mir.Loop) -> mir.Loop:
        if loop.root == "tree":
            return loop
        tiles = [i for i in loops_in(loop.body) if i.has(CachePredicates)]
        if tiles:
            return _rewrite_tiles(loop, tiles[0], function)
        return _rewrite(loop, function) if loop.has(CachePredicates) else loop

    changed = replace(function, body=map_loops(function.body, change))
    walks = (stmt.op for stmt in statements(changed.body) if isinstance(stmt, mir.Let))
    rows = (isinstance(op, mir.WalkDecisionTree) and op.using is None for op in walks)
    if changed.body != function.body and any(rows):
        raise ScheduleError(
            "cache_predicates must apply to all rows or none; mark the loop over "
            "blocks in every part of the batch."
        )
    return changed


def _rewrite(loop: mir.Loop, function: mir.Function) -> mir.Loop:
    trees = mir.Range(mir.Affine(), (mir.Bound(function.n_trees),))
    loop = replace(loop, marks=loop.without(CachePredicates))

    def table(rows: mir.Range) -> mir.EvaluatePredicates:
        return mir.EvaluatePredicates(PREDICATES, trees, rows)

    return in_block(f'cache_predicates("{loop.var}")', loop, table, function)


def _rewrite_tiles(loop: mir.Loop, tiles: mir.Loop, function: mir.Function) -> mir.Loop:
    name = f'cache_predicates("{tiles.var}")'
    made = in_block(name, loop, mir.TakeRows, function, "in the block")
    (rows,) = (stmt.rows for stmt in made.body if isinstance(stmt, mir.TakeRows))
    var = mir.Affine((tiles.var,))
    assert isinstance(tiles.step, int)
    ends = mir.Bound(tiles.step), mir.Bound(function.n_trees, var)
    whole = function.n_trees % tiles.step == 0
    trees = mir.Range(var, ends[:1] if whole else ends)
    table = mir.EvaluatePredicates(PREDICATES, trees, rows)

    def change(inside: mir.Loop) -> mir.Loop:
        if inside.var != tiles.var:
            return inside
        marks = inside.without(CachePredicates)
        return replace(inside, marks=marks, body=(table, *inside.body))

    return replace(made, body=map_loops(made.body, change))


#: What prepares the walks' input for a block of rows.
Input: TypeAlias = (
    mir.EvaluatePredicates | mir.QuantizeRows | mir.CacheRows | mir.TakeRows
)


def in_block(
    name: str,
    loop: mir.Loop,
    make: Callable[[mir.Range], Input],
    function: mir.Function,
    where: str = "inside it",
) -> mir.Loop:
    """Return a loop over blocks in which each tree takes all rows of a block at once.

    ``make`` returns the statement that prepares the walks' input for a range of rows;
    walks of cached rows read the rows themselves. ``name`` is the directive that errors
    mention, ``where`` its tree loops are. Raises ScheduleError if the loops inside are
    not trees in model order around the rows.
    """
    block = _block_loop(name, loop, function.n_trees, where)
    fill = _fill(name, loop)
    table = make(fill.rows)
    using = None
    if not isinstance(table, mir.CacheRows):
        using = PREDICATES if isinstance(table, mir.TakeRows) else table.name
    assert isinstance(loop.step, int)
    body = _on_block_sums(loop, block, using)
    result = function.result
    each = result.dims[1:]
    if result.by_feature:
        width = result.dims[-1]
        assert isinstance(width, int)
        (reduce,) = reduces_in(loop.body)
        whole = isinstance(reduce.indices[-1], mir.Outputs)
        # Scalar leaves add to one output after the other; none has the bias.
        each = (None if whole else 1, width - 1)
    element: mir.Element = "contribution" if result.by_feature else "accumulator"
    sums = mir.NamedArray(BLOCK_SUMS, (loop.step, *each), element)
    before: mir.Body = (table, mir.AllocArray(sums, zero=False))
    return replace(loop, body=(*before, *body, mir.StoreRows(BLOCK_SUMS, fill.rows)))


def _on_block_sums(loop: mir.Loop, block: mir.Loop, using: str | None) -> mir.Body:
    outside = mir.Affine((loop.var,))

    def statement(stmt: mir.Stmt) -> mir.Stmt:
        match stmt:
            case mir.Let(op=mir.WalkDecisionTree() as walk):
                return replace(stmt, op=replace(walk, using=using, block=True))
            case mir.Reduce(indices=(row, *rest)):
                assert isinstance(row, mir.Affine)
                terms = tuple(t for t in row.terms if t not in outside.terms)
                local = replace(row, terms=terms)
                return replace(stmt, target=BLOCK_SUMS, indices=(local, *rest))
            case mir.Fill():
                assert isinstance(loop.step, int)
                whole = mir.Range(mir.Affine(), (mir.Bound(loop.step),))
                return mir.Fill(BLOCK_SUMS, whole)
            case _:
                return stmt

    def inner(inside: mir.Loop) -> mir.Loop:
        if inside.var != block.var:
            return inside
        return replace(inside, kind="block", marks=inside.without(Vectorize))

    return map_loops(map_statements(loop.body, statement), inner)


def _fill(name: str, loop: mir.Loop) -> mir.Fill:
    fills = [stmt for stmt in loop.body if isinstance(stmt, mir.Fill)]
    # Trees in another order store their leaves, which are later added in model order.
    stores = any(isinstance(stmt, mir.ReduceDimension) for stmt in loop.body)
    if len(fills) != 1 or stores:
        raise ScheduleError(
            f"{name} needs sums in the order of the model, with exact or fast "
            "reduction; leave out parallel tree loops and reorder_trees."
        )
    return fills[0]


def _block_loop(name: str, loop: mir.Loop, n_trees: int, where: str) -> mir.Loop:
    inside = list(loops_in(loop.body))
    rows = [i for i in inside if i.root == "batch"]
    trees = [i for i in inside if i.root == "tree"]
    reached = sum(i.trip_count or 0 for i in trees if i.step == 1)
    simple = (
        len(rows) == 1
        and inside[-1] is rows[0]
        and rows[0].trip_count in (None, loop.step)
        and all(i.kind == "serial" for i in inside)
        and isinstance(loop.step, int)
        and (len(trees) > 1 or reached == n_trees)
    )
    if not simple:
        raise ScheduleError(
            f"{name} needs serial tree loops over all trees {where} and one "
            "vectorised loop over the block's rows inside those."
        )
    for mark in rows[0].without(Vectorize):
        if mark.RUNS:
            raise ScheduleError(
                f"{mark} has no effect, because {name} takes the rows of "
                f'"{rows[0].var}" as one block; use vectorize instead.'
            )
    return rows[0]
