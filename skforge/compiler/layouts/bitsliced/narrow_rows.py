"""float64 rows compared as float32: half the bytes, twice the lanes, same answers.

Let P be a threshold T rounded down to float32, and X a value x rounded down. Then
``x > T`` is ``X > P``, unless X equals P and x is not a float32: there is no float32
above P and up to T, and if X is below P, then x is below T. The comparisons detect such
ties (the bit patterns of value and pivot are equal). Ties are rare; the tests of the
feature on those rows are then repeated in float64::

    least = min over all compares of  bits(X) xor bits(P)
    if least == 0 and any value of the column is not a float32:
      line[i] = column > T[i]     for every test of the job
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from skforge.compiler.binning.rules import BlockRows, ReadingRules
from skforge.compiler.binning.transpose import ColumnTile, store_masks
from skforge.compiler.forest.arrays import Comparison
from skforge.compiler.forest.forest import Forest, round_thresholds
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import F32, F64, I64, U32, Buffer, Value, Vec
from skforge.compiler.layouts.bitsliced.predicate_table import PredicateJob

#: Rows whose tests are stored at once.
ROWS = 64

#: Rounding values pays off from this many tests a feature.
WORTH = 10


def narrows(forest: Forest, comparison: str) -> bool:
    return (
        forest.input_dtype == np.float64
        and comparison == "le"
        and forest.n_predicates >= WORTH * len(np.unique(forest.feature))
        and bool((forest.comparison == Comparison.LE).all())
    )


def narrowed(forest: Forest) -> Forest:
    rounded = round_thresholds(forest.threshold, Comparison.LE, np.float32)
    return replace(forest, threshold=rounded)


def round_down(b: Builder, x: Value) -> Value:
    """Return the largest float32 that is not above a float64; NaN stays NaN."""
    near = x.to(F32)
    above = near.to(F64) > x
    bits = b.bitcast(near, U32)
    # One step down: away from zero if the sign is set, otherwise towards zero.
    one = b.const(1, bits.type)
    moved = b.select(bits >= 1 << 31, bits + one, bits - one)
    return b.bitcast(b.select(above, moved, bits), F32)


class Ties:
    """Detects the ties of one job at a time, and repeats its tests in float64.

    ``exact`` holds each line's threshold in float64.
    """

    def __init__(
        self,
        rules: ReadingRules,
        exact: Buffer,
        columns: ColumnTile,
        clean: Callable[[Value], Value],
        unordered: bool,
        line_bytes: int,
    ) -> None:
        self.b, self.lanes, self.part = rules.b, columns.lanes, columns.part
        self._exact, self._clean, self._line_bytes = exact, clean, line_bytes
        self._right = partial(rules.goes_right, unordered=unordered)
        self._found = self.b.alloc("ties", U32, self.lanes)
        self._column = self.b.alloc("exact_column", F64, self.part)
        self._vec = Vec(U32, self.lanes)

    def none(self) -> Value:
        return self.b.const((1 << 32) - 1, self._vec)

    def nearer(self, least: Value, x: Value, pivot: Value) -> Value:
        """Return the minimum of ``least`` and x's distance from a pivot (0: a tie)."""
        b = self.b
        return least.min(b.bitcast(x, U32) ^ b.bitcast(pivot, U32))

    def keep(self, least: Value) -> None:
        self._found[0] = least

    def settle(
        self,
        rows: BlockRows,
        feature: Value,
        left: Value,
        job: PredicateJob,
        lines: Buffer,
    ) -> None:
        b, half = self.b, self.lanes // 2
        with b.when(b.any_true(self._found[0, self._vec].eq(0))):
            odd = [b.const(0)]  # whether any value of the column is not a float32
            with b.loop(0, left, carry=odd, hint="row") as r:
                x = self._clean(rows.rows[(rows.first + r) * rows.stride + feature])
                self._column[r] = x
                odd[0] = odd[0] | x.to(F32).to(F64).ne(x).to(I64)
            with b.when(odd[0].ne(0)), b.loop(job.count, hint="threshold") as i:
                number = job.line + i
                threshold = b.splat(self._exact[number], half)
                to = number * self._line_bytes
                with b.loop(0, self.part, ROWS, hint="rows") as r:
                    places = (r + v for v in range(0, ROWS, half))
                    values = (self._column[at, Vec(F64, half)] for at in places)
                    masks = [self._right(x, threshold) for x in values]
                    store_masks(b, lines, to + r // 8, masks)
