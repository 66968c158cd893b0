"""Carry out ``quantize``: the rows of one iteration as codes, compared as integers.

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

The trees then hold ranks instead of thresholds, so all walks of a kernel use codes or
none. A representation that lowers whole blocks gets a block, as with predicates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.mir.nodes import (
    Body,
    Function,
    Let,
    Loop,
    QuantizeRows,
    Range,
    Stmt,
    WalkDecisionTree,
)
from skforge.compiler.ir.mir.walk import map_statements
from skforge.compiler.layouts.base import BlockRepresentation, Representation
from skforge.compiler.passes.mir.evaluate_predicates import in_block
from skforge.compiler.passes.mir.insert_caches import working_set
from skforge.compiler.schedule.directives import Quantize

CODES = "%codes"


def run(function: Function, hir: PredictEnsemble) -> Function:
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

    def body(self, body: Body, outside: tuple[Loop, ...]) -> Body:
        """Rewrite the loops of a body; ``outside`` are those around it."""
        return tuple(
            self._loop(stmt, (*outside, stmt)) if isinstance(stmt, Loop) else stmt
            for stmt in body
        )

    def _loop(self, loop: Loop, outside: tuple[Loop, ...]) -> Loop:
        if not loop.has(Quantize):
            return replace(loop, body=self.body(loop.body, outside))
        size = loop.step
        assert isinstance(size, int)  # bind has refused anything else
        loop = replace(loop, marks=loop.without(Quantize))

        def quantize(rows: Range) -> QuantizeRows:
            return QuantizeRows(CODES, rows, size)

        if self.by_blocks:
            name = f'quantize("{loop.var}")'
            return in_block(name, loop, quantize, self.n_trees)
        made = quantize(working_set(loop, outside))
        return replace(loop, body=(made, *map_statements(loop.body, _use_codes)))


def _use_codes(stmt: Stmt) -> Stmt:
    match stmt:
        case Let(op=WalkDecisionTree() as walk):
            return replace(stmt, op=replace(walk, using=CODES))
        case _:
            return stmt
