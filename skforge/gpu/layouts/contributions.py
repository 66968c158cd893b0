"""Contributions on a GPU: each thread explains a row (Mitchell et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from skforge.compiler.binning.rules import BlockRows, Model, ReadingRules
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import BOOL, F64, U8, Buffer, Value
from skforge.compiler.layouts.base import AnyLayout
from skforge.compiler.layouts.contributions.contributions import shared_data
from skforge.compiler.layouts.contributions.edges import RowsAsLanes, case_of
from skforge.compiler.layouts.contributions.walk import ContributionCode, Walk, WalkData


class OneThread(RowsAsLanes):
    """The edges of a GPU thread's row, which finds cases when it needs them."""

    def start(self, tree: dict[str, Value]) -> None:
        self.c.pass_tests(tree["first"], tree["last"])

    def _numbers_of(
        self, walk: Walk, subtree: Value, size: int
    ) -> Callable[[Value], Iterator[Value]]:
        c = self.c

        def sides(n: Value) -> tuple[Value, Value]:
            edge = c.edge(n - walk.tree["first"])
            return c.passed[edge], c.passed[edge + c.line]

        case = case_of(c, *c.ends_of(subtree), sides)
        return lambda index: iter((c.tables[index + case],))


class ThreadCode(ContributionCode):
    """Emits the code of one GPU thread for one row.

    Slots, the edges that the row passed and the sums of a tree are each thread's own
    memory. A test is evaluated at its node: no thread has the bits of other rows.
    """

    space = "private"

    def evaluate_tests(self) -> None:
        feature, kind = self._t.tests.of_line
        self._line_feature = self._table("line_feature", feature)
        self._line_kind = self._table("line_kind", kind)

    def goes_left(self, n: Value) -> Value:
        rows, line = self._rows, self.number(self._node_line, n)
        feature = self.number(self._line_feature, line)
        x = rows.rows[rows.first * rows.stride + feature]
        number = self._thresholds[line]
        kinds = range(len(self._t.tests.kinds))
        cases = [lambda k=k: [self._left(k, number, x)] for k in kinds]
        (left,) = b.switch(self.number(self._line_kind, line), cases, [BOOL])
        return left.to(U8)


@dataclass(frozen=True, slots=True)
class RowsByThread(AnyLayout):
    """One forest, whose rows are each explained by a thread."""

    hir: PredictEnsemble
    data: WalkData

    @classmethod
    def of(cls, hir: PredictEnsemble) -> RowsByThread:
        return cls(hir, shared_data(hir, False, False))

    def explain(self, rows: BlockRows, result: Buffer, model: Model) -> None:
        """Emit a thread's code for one row: all trees, then its contributions."""
        forest = self.hir.forest
        rules = ReadingRules(forest, self.hir.comparison, model)
        code = ThreadCode(rules, self.data, rows, 1, OneThread, True)
        code.writes_to(result)
        outputs = forest.n_outputs if forest.vector_leaves else 1
        sums = b.alloc("sums", F64, max(1, outputs * forest.n_features), "private")
        code.start(sums)
        with b.loop(len(self.data.part_start) - 1, hint="tree") as tree:
            code.add_tree(tree, sums)
        code.finish(sums, result, rows.first, b.const(1))
