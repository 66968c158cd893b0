"""Pass whole blocks of rows to a representation that compares raw values.

Before::

    for b0 in 0 to rows step 256:
      fill(result[b0 : b0 + 256])
      for tree in 0 to 100:
        for b1 in 0 to min(256, rows - b0):   vectorize
          t = get_tree(tree)
          p = walk_decision_tree([t], [b0 + b1])
          reduce(result[b0 + b1], p)

After, with the block's sums in an array of its own until they are stored::

    for b0 in 0 to rows step 256:
      cache_rows(rows of the block)
      block_sums = alloc; fill(block_sums)
      for tree in 0 to 100:
        block b1 in 0 to min(256, rows - b0):
          p = walk_decision_tree([t], [b0 + b1])
          reduce(block_sums[b1], p)
      store_rows(result[b0 : b0 + 256], block_sums)

Quantised rows and evaluated predicates form blocks in their own passes.
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
