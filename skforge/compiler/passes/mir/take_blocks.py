"""Pass whole blocks of rows to a representation, which refuses what it does not take.

A block of raw values is formed here. The nest changes as in ``evaluate_predicates.py``,
but a block begins with ``cache_rows`` and its walks read the rows themselves. Quantised
rows and evaluated predicates have formed blocks in their own passes.
"""

from __future__ import annotations

from dataclasses import replace

from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import loops_in, map_loops
from skforge.compiler.layouts.base import BlockRepresentation, Representation
from skforge.compiler.passes.mir.evaluate_predicates import in_block
from skforge.exceptions import ScheduleError
from skforge.schedule.bound import predicate_trees, vectorizes_trees
from skforge.schedule.directives import Vectorize


def run(function: mir.Function, hir: PredictEnsemble) -> mir.Function:
    """Form blocks, and check them."""
    chosen = Representation.of(hir)
    takes_values = isinstance(chosen, BlockRepresentation) and chosen.takes_values
    if hir.codes is None and takes_values:
        function = _of_values(function, f'represent("{chosen.name}")')
    if chosen.takes_blocks(hir.nest) and not vectorizes_trees(hir.nest.loops):
        _check(function.body, hir)
    return function


def _of_values(function: mir.Function, name: str) -> mir.Function:
    def change(loop: mir.Loop) -> mir.Loop:
        inside = [i for i in loops_in(loop.body) if i.root == "batch"]
        whole = len(inside) == 1 and inside[0].has(Vectorize)
        if loop.root != "batch" or not whole or not isinstance(loop.step, int):
            return loop
        body = tuple(stmt for stmt in loop.body if not isinstance(stmt, mir.CacheRows))
        return in_block(name, replace(loop, body=body), mir.CacheRows, function)

    return replace(function, body=map_loops(function.body, change))


def _check(body: mir.Body, hir: PredictEnsemble) -> None:
    if any(isinstance(s, mir.CacheTrees) for i in loops_in(body) for s in i.body):
        raise ScheduleError(
            "cache prefetches the nodes of walks, but this schedule evaluates blocks "
            "of rows without walks; leave out the cache of trees."
        )
    block = block_rows(body)
    if block is None:
        raise ScheduleError(
            f'represent("{hir.nest.representation}") takes blocks of rows; tile the '
            "batch, put the loop over trees outside the loop over the rows of a "
            "block, and vectorize the latter."
        )
    chosen = BlockRepresentation.of(hir)
    tiles = predicate_trees(hir.nest.loops) is not None
    if tiles and not chosen.takes_tree_tiles:
        chosen.refuse(
            "does not evaluate predicates by tiles of trees; mark the loop over blocks "
            "of rows with cache_predicates."
        )
    chosen.check_block(hir, block)


def block_rows(body: mir.Body) -> int | None:
    """Return the rows of all blocks that are taken as one; None if there are none."""
    sizes = {
        loop.step
        for loop in loops_in(body)
        if any(inner.kind == "block" for inner in loops_in(loop.body))
        and any(isinstance(stmt, mir.StoreRows) for stmt in loop.body)
    }
    if len(sizes) > 1:
        raise ScheduleError(
            "cache_predicates needs blocks of a single size, but this schedule has "
            f"blocks of {' and '.join(map(str, sorted(sizes, key=str)))} rows."
        )
    size = next(iter(sizes), None)
    assert size is None or isinstance(size, int)
    return size
