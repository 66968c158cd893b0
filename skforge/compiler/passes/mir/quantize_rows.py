"""Carry out ``quantize``: convert each iteration's rows to codes, compared as integers.

Before::

    for b0 in 0 to rows step 64:   quantize
      for tree in 0 to 100:
        for b1 in 0 to min(64, rows - b0):
          p = walk_decision_tree([t], [b0 + b1])

After::

    for b0 in 0 to rows step 64:
      %codes = quantize_rows(b0 : min(b0 + 64, rows))
      for tree in 0 to 100:
        for b1 in 0 to min(64, rows - b0):
          p = walk_decision_tree([t], [b0 + b1], using %codes)

Trees then hold ranks instead of thresholds, so either all walks of a kernel use codes
or none do. As with predicates, a representation that lowers whole blocks gets a block.
"""

from __future__ import annotations

from dataclasses import replace

from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import map_nest, map_walks
from skforge.compiler.layouts.base import BlockRepresentation, Representation
from skforge.compiler.passes.mir.evaluate_predicates import in_block
from skforge.compiler.passes.mir.insert_caches import working_set
from skforge.compiler.passes.mir.vectorize_trees import CODES
from skforge.schedule.directives import Quantize


def run(function: mir.Function, hir: PredictEnsemble) -> mir.Function:
    if hir.codes is None:
        return function
    by_blocks = isinstance(Representation.of(hir), BlockRepresentation)

    def change(stmt: mir.Stmt, outside: tuple[mir.Loop, ...]) -> mir.Stmt:
        if not isinstance(stmt, mir.Loop) or not stmt.has(Quantize):
            return stmt
        loop = replace(stmt, marks=stmt.without(Quantize))
        size = loop.step
        assert isinstance(size, int)  # bind refuses anything else

        def quantize(rows: mir.Range) -> mir.QuantizeRows:
            return mir.QuantizeRows(CODES, rows, size)

        if by_blocks:
            name = f'quantize("{loop.var}")'
            return in_block(name, loop, quantize, function)
        quantized = quantize(working_set(loop, (*outside, loop)))
        walks = map_walks(loop.body, lambda walk: replace(walk, using=CODES))
        return replace(loop, body=(quantized, *walks))

    return replace(function, body=map_nest(function.body, change))
