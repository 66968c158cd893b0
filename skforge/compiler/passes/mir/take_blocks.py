"""Pass whole blocks of rows to a representation that compares raw values.

The nest changes as in ``evaluate_predicates.py``, but a block begins with
``cache_rows`` and its walks read the rows themselves. Quantised rows and evaluated
predicates form blocks in their own passes.
"""

from __future__ import annotations

from dataclasses import replace

from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.mir.nodes import CacheRows, Function, Loop
from skforge.compiler.ir.mir.walk import loops_in, map_loops
from skforge.compiler.layouts.base import BlockRepresentation, Representation
from skforge.compiler.passes.mir.evaluate_predicates import in_block
from skforge.compiler.schedule.directives import Vectorize


def run(function: Function, hir: PredictEnsemble) -> Function:
    chosen = Representation.of(hir)
    takes_values = isinstance(chosen, BlockRepresentation) and chosen.takes_values
    if hir.codes is not None or not takes_values:
        return function
    name = f'represent("{chosen.name}")'

    def change(loop: Loop) -> Loop:
        inside = [i for i in loops_in(loop.body) if i.root == "batch"]
        whole = len(inside) == 1 and inside[0].has(Vectorize)
        if loop.root != "batch" or not whole or not isinstance(loop.step, int):
            return loop
        body = tuple(stmt for stmt in loop.body if not isinstance(stmt, CacheRows))
        return in_block(name, replace(loop, body=body), CacheRows, function)

    return replace(function, body=map_loops(function.body, change))
