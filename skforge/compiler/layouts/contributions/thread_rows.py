"""Emits the walk of contributions for a GPU: a row a thread (Mitchell et al. 2022).

The same walk as in ``walk.py`` with scalars for vectors: slots, the edges that the row
passed and the sums of a tree are each thread's own memory. Tests are evaluated where
nodes are reached, as no thread has the bits of other rows.
"""

from __future__ import annotations

import numpy as np

from skforge.compiler.binning.rules import BlockRows, Rules
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.nodes import BOOL, F64, U8, Buffer, Value
from skforge.compiler.layouts.base import (
    BlockShape,
    BlockThreads,
    GpuBlockCode,
    GpuBlockLayout,
)
from skforge.compiler.layouts.contributions.predicates import TestCode
from skforge.compiler.layouts.contributions.walk import (
    ContributionCode,
    Turn,
    WalkData,
)


class ThreadCode(ContributionCode):
    """Emits the code of one thread for one row."""

    space = "private"

    def _lanes_of(self, block: int) -> int:
        return 1

    def _evaluate(self, rules: Rules) -> None:
        self._tests = TestCode(rules, self._t.tests)
        kind = np.zeros(max(1, len(self._t.tests.numbers)), np.int32)
        feature = kind.copy()
        for job_feature, job_kind, first, last in self._t.tests.jobs:
            feature[first:last], kind[first:last] = job_feature, job_kind
        self._line_feature = self._model("line_feature", feature)
        self._line_kind = self._model("line_kind", kind)

    def take(self, row: Value) -> None:
        """Set the row to explain."""
        rows, one = self._rows, self.b.add(row, 1)
        self._rows = BlockRows(rows.rows, one, rows.stride, row, rows.n_features)

    def _pass_tests(self, first: Value, last: Value) -> None:
        b = self.b
        b.store(self._passed, b.const(0), b.const(1, U8))
        start = b.mul(self._rows.first, self._rows.stride)
        with b.loop(first, last, hint="n") as n:
            line = self._number(self._node_line, n)
            at = b.add(start, self._number(self._line_feature, line))
            x = b.load(self._rows.rows, at)
            number = b.load(self._tests.numbers, line)
            kinds = range(len(self._t.tests.kinds))
            tests = [
                lambda kind=kind: [self._tests.left(kind, number, x)] for kind in kinds
            ]
            (left,) = b.switch(self._number(self._line_kind, line), tests, [BOOL])
            before = b.load(self._passed, self._number(self._node_before, n))
            left = b.convert(left, U8)
            at = b.add(b.mul(b.sub(n, first), 2), 1)
            b.store(self._passed, at, b.binary("and", before, left))
            right = b.binary("and", before, b.binary("xor", left, b.const(1, U8)))
            b.store(self._passed, b.add(at, 1), right)

    def _masks(self, turn: Turn, i: Value) -> list[tuple[Value, Value]]:
        b = self.b
        at = b.add(b.mul(i, 2), 1)
        left, right = (
            b.compare("ne", b.load(self._passed, b.add(at, k)), b.const(0, U8))
            for k in range(2)
        )
        return [(left, right)]


class ThreadLayout(GpuBlockLayout):
    """One forest, whose rows are each explained by a thread."""

    def __init__(self, hir: PredictEnsemble, shape: BlockShape, data: WalkData) -> None:
        self._hir, self._shape, self._data = hir, shape, data

    def start(self, block: BlockThreads) -> GpuBlockCode:
        """Allocate each thread's memory."""
        return _RowsOfBlock(self._hir, self._shape, self._data, block)


class _RowsOfBlock(GpuBlockCode):
    """Explains the rows of a block at its end, when all its trees are known."""

    def __init__(
        self,
        hir: PredictEnsemble,
        shape: BlockShape,
        data: WalkData,
        block: BlockThreads,
    ) -> None:
        self._shape, self._data, self._block = shape, data, block
        rules = Rules(block.b, hir.forest, hir.comparison, block.model)
        self._code = ThreadCode(rules, data, block.rows, 1, fuses=True)
        self._code.writes_to(block.result)
        forest = hir.forest
        held = forest.n_outputs if forest.vector_leaves else 1
        size = block.b.const(max(1, held * forest.n_features))
        self._sums: Buffer = block.b.alloc("sums", F64, size, space="private")

    def evaluate(self, first: Value) -> None:
        """Leave tests to the walks."""

    def add_trees(self, first: Value) -> None:
        """Leave trees to the end, as a thread takes them all."""

    def finish(self) -> None:
        """Walk all trees for each row that exists in the batch."""
        b, rows, shape = self._block.b, self._block.rows, self._shape

        def thread(number: Value) -> None:
            with b.loop(shape.rows // shape.threads, hint="each") as k:
                row = b.add(rows.first, b.add(b.mul(k, shape.threads), number))
                with b.when(b.compare("lt", row, rows.n_rows)):
                    self._code.take(row)
                    self._code.start(self._sums)
                    with b.loop(len(self._data.part_start) - 1, hint="tree") as tree:
                        self._code.add_tree(tree, self._sums)
                    self._code.finish(self._sums, self._block.result, row, b.const(1))

        self._block.region(thread)
