"""Evaluates every distinct predicate on a block of rows, one bit a row.

For each feature that the forest tests::

    column = its values in the rows of the block
    for each of its predicates:
      line[predicate] = whether column goes left

All kinds of tests are evaluated; missing values follow the rule of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.rules import BlockRows, Rules, set_numbers
from skforge.compiler.forest.arrays import Comparison, Missing
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import U8, U16, Buffer, CompareOp, Type, Value, Vec


@dataclass(frozen=True, slots=True, eq=False)
class Tests:
    """The predicates of a normalised forest, by feature and kind of test."""

    kinds: tuple[tuple[Comparison, Missing, bool], ...]
    of_line: NDArray[np.int64]  # (2, n_lines): feature and kind
    jobs: NDArray[np.int32]  # (n_jobs, 4): feature, kind, first line, last line + 1
    line_of: NDArray[np.int64]  # (n_predicates,)
    numbers: NDArray[np.floating]  # of each line: threshold, or the number of its set

    @classmethod
    def of(cls, forest: Forest) -> Tests:
        """Sort the predicates of a normalised forest."""
        number = forest.comparison.astype(int) * 8 + forest.missing * 2
        kinds, kind = np.unique(number + forest.missing_left, return_inverse=True)
        kind = kind.reshape(-1)
        order = np.lexsort((forest.threshold, kind, forest.feature))
        line_of = np.zeros(forest.n_predicates, np.int64)
        line_of[order] = np.arange(forest.n_predicates)
        keys = np.stack([forest.feature, kind])[:, order]
        first = np.flatnonzero(np.diff(keys, prepend=-1).any(axis=0))
        last = np.append(first[1:], forest.n_predicates)[: len(first)]
        jobs = np.stack([*keys[:, first], first, last], axis=1)
        numbers = np.where(
            forest.comparison >= Comparison.IN, set_numbers(forest), forest.threshold
        ).astype(forest.threshold.dtype)
        return cls(
            tuple(
                (Comparison(k // 8), Missing(k // 2 % 4), bool(k % 2))
                for k in kinds.tolist()
            ),
            keys,
            jobs.astype(np.int32),
            line_of,
            numbers[order],
        )


class TestCode:
    """Emits the tests of predicates on values, scalars or vectors."""

    def __init__(self, rules: Rules, tests: Tests) -> None:
        self.b: Builder = rules.b
        self._rules, self._tests = rules, tests
        self.numbers = rules.model("test_numbers", tests.numbers)

    def left(self, kind: int, number: Value, x: Value) -> Value:
        """Return which values of a column go left."""
        b, rules = self.b, self._rules
        comparison, missing, missing_left = self._tests.kinds[kind]
        x = rules.nan_if_missing(x, missing)
        if comparison >= Comparison.IN:
            inside = rules.in_set(number, x, comparison == Comparison.MEMBER)
            gone = b.is_nan(x)
            if missing_left:
                return inside | gone
            return inside & ~gone
        op: CompareOp = "lt" if rules.comparison == "lt" else "le"
        op = "eq" if comparison == Comparison.EQ else op
        return b.compare(op, x, number, unordered=missing_left)


class Evaluation(TestCode):
    """Emits the evaluation of all predicates for blocks of rows."""

    def __init__(self, rules: Rules, tests: Tests, block: int, lanes: int) -> None:
        super().__init__(rules, tests)
        b, self._block, self.lanes = self.b, block, lanes
        self._jobs = rules.model("test_jobs", tests.jobs.reshape(-1))
        self._type: Type = self.numbers.element
        if lanes > 1:
            self._type = Vec(self.numbers.element, lanes)
        self._column = b.alloc(
            "column", self.numbers.element, b.const(block), alignment=64
        )
        size = b.const(max(1, len(tests.numbers)) * max(1, block // 8))
        #: Bit r of line p: whether row r goes left at predicate p.
        self.lines: Buffer = b.alloc("test_lines", U8, size, alignment=64)

    def run(self, rows: BlockRows, n_vectors: Value) -> None:
        """Fill the lines for the block's rows; those past the last repeat it."""
        b = self.b
        last = rows.n_rows - 1
        count = n_vectors * self.lanes

        def field(job: Value, k: int) -> Value:
            return self._jobs[job * 4 + k].to(lir.I64)

        with b.loop(len(self._tests.jobs), hint="job") as job:
            feature = field(job, 0)
            with b.loop(count, hint="row") as r:
                at = (rows.first + r).min(last) * rows.stride + feature
                self._column[r] = rows.rows[at]
            first, end = field(job, 2), field(job, 3)

            def lines(kind: int) -> None:
                with b.loop(first, end, hint="line") as line:
                    number = self.numbers[line]
                    with b.loop(n_vectors, hint="v") as v:
                        x = self._column[v * self.lanes, self._type]
                        left = self.left(kind, number, x)
                        at = line * max(1, self._block // 8) + v * (self.lanes // 8)
                        self.lines[at] = self._bits(left)

            kinds = range(len(self._tests.kinds))
            b.switch(field(job, 1), [partial(lines, kind) for kind in kinds])

    def _bits(self, left: Value) -> Value:
        b = self.b
        if not left.type.lanes:
            return left.to(U8)
        return b.mask_bits(left, U16 if self.lanes == 16 else U8)
