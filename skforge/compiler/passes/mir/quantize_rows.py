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

from dataclasses import dataclass, replace

from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import map_statements
from skforge.compiler.layouts.base import BlockRepresentation, Representation
from skforge.compiler.passes.mir.evaluate_predicates import in_block
from skforge.compiler.passes.mir.insert_caches import working_set
from skforge.compiler.passes.mir.vectorize_trees import CODES
from skforge.compiler.schedule.directives import Quantize


def run(function: mir.Function, hir: PredictEnsemble) -> mir.Function:
    """Rewrite every loop that quantises its rows."""
    if hir.codes is None:
        return function
    by_blocks = isinstance(Representation.of(hir), BlockRepresentation)
    rewrite = _Rewrite(by_blocks, function.n_trees)
    return replace(function, body=rewrite.body(function.body, ()))


@dataclass(frozen=True, slots=True)
class _Rewrite:
    by_blocks: bool
    n_trees: int

    def body(self, body: mir.Body, outside: tuple[mir.Loop, ...]) -> mir.Body:
        """Rewrite the loops of a body; ``outside`` are the loops around it."""
        return tuple(
            self._loop(stmt, (*outside, stmt)) if isinstance(stmt, mir.Loop) else stmt
            for stmt in body
        )

    def _loop(self, loop: mir.Loop, outside: tuple[mir.Loop, ...]) -> mir.Loop:
        if not loop.has(Quantize):
            return replace(loop, body=self.body(loop.body, outside))
        size = loop.step
        assert isinstance(size, int)  # bind refuses anything else
        loop = replace(loop, marks=loop.without(Quantize))

        def quantize(rows: mir.Range) -> mir.QuantizeRows:
            return mir.QuantizeRows(CODES, rows, size)

        if self.by_blocks:
            name = f'quantize("{loop.var}")'
            return in_block(name, loop, quantize, self.n_trees)
        made = quantize(working_set(loop, outside))
        return replace(loop, body=(made, *map_statements(loop.body, _use_codes)))


def _use_codes(stmt: mir.Stmt) -> mir.Stmt:
    match stmt:
        case mir.Let(op=mir.WalkDecisionTree() as walk):
            return replace(stmt, op=replace(walk, using=CODES))
        case _:
            return stmt
