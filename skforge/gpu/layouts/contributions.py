"""Contributions on a GPU: each thread explains a row (Mitchell et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from skforge.compiler.binning.rules import ReadingRules
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import BOOL, F64, U8, Value
from skforge.compiler.layouts.contributions.contributions import shared_data
from skforge.compiler.layouts.contributions.edges import RowsAsLanes, case_of
from skforge.compiler.layouts.contributions.walk import ContributionCode, Walk, WalkData
from skforge.gpu.layouts import base as layouts


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

    def take(self, row: Value) -> None:
        self._rows = replace(self._rows, n_rows=row + 1, first=row)

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
class ThreadLayout(layouts.GpuBlockLayout):
    """One forest, whose rows are each explained by a thread."""

    hir: PredictEnsemble
    shape: layouts.BlockShape
    data: WalkData

    def start(self, block: layouts.BlockThreads) -> layouts.GpuBlockCode:
        return _RowsOfBlock(self, block)


class _RowsOfBlock(layouts.GpuBlockCode):
    """Explains the rows of a block at its end, when all its trees are known."""

    def __init__(self, layout: ThreadLayout, block: layouts.BlockThreads) -> None:
        self._layout, self._block, forest = layout, block, layout.hir.forest
        rules = ReadingRules(forest, layout.hir.comparison, block.model)
        self._code = ThreadCode(rules, layout.data, block.rows, 1, OneThread, True)
        self._code.writes_to(block.result)
        outputs = forest.n_outputs if forest.vector_leaves else 1
        size = max(1, outputs * forest.n_features)
        self._sums = b.alloc("sums", F64, size, "private")

    def evaluate(self, first: Value) -> None:
        """Leave tests to the walks."""

    def add_trees(self, first: Value) -> None:
        """Leave trees to the end, as a thread takes them all."""

    def finish(self) -> None:
        rows, shape = self._block.rows, self._layout.shape
        n_trees = len(self._layout.data.part_start) - 1
        with (
            self._block.region() as number,
            b.loop(shape.rows // shape.threads, hint="each") as k,
        ):
            row = rows.first + (k * shape.threads + number)
            with b.when(row < rows.n_rows):
                self._code.take(row)
                self._code.start(self._sums)
                with b.loop(n_trees, hint="tree") as tree:
                    self._code.add_tree(tree, self._sums)
                self._code.finish(self._sums, self._block.result, row, b.const(1))


def refusal_of(shape: layouts.BlockShape) -> str:
    if shape.rows % shape.threads == 0:
        return ""
    return (
        "needs the same number of rows for each thread of a block; this schedule has "
        f"{shape.rows} rows for {shape.threads} threads."
    )


def lay_out(hir: PredictEnsemble, shape: layouts.BlockShape, _: int) -> ThreadLayout:
    return ThreadLayout(hir, shape, shared_data(hir, False, False))


layouts.GPU_BLOCKS["contributions"] = layouts.GpuBlockRepresentation(
    refusal_of, lay_out
)
layouts.GPU_BLOCKS["interactions"] = layouts.GpuBlockRepresentation(
    lambda shape: "runs only on CPUs; use target='cpu'.", lay_out
)
