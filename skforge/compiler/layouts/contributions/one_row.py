"""Emits the tests of one row for walks of contributions, on a CPU or a GPU."""

from __future__ import annotations

from dataclasses import replace

from skforge.compiler.ir.lir.nodes import BOOL, U8, Value
from skforge.compiler.layouts.contributions.walk import ContributionCode


class PointCode(ContributionCode):
    tests_at_once = 16


class ThreadCode(ContributionCode):
    """Emits the code of one GPU thread for one row (Mitchell et al. 2022).

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
        (left,) = self.b.switch(self.number(self._line_kind, line), cases, [BOOL])
        return left.to(U8)
