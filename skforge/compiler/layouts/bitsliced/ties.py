"""Compares float64 rows as float32, and some of their values once more in float64.

Half the bytes, twice the lanes, the same answers. Let P be a threshold T rounded down
to float32, and X a value x rounded to the nearest one. Then ``x > T`` is ``X > P`` if x
is a float32, as there is none above P and up to T. It also is for others, unless X is P
or the next float32: below P, x is below T, and above the next one, x is above T. The
comparisons detect such ties: the bit patterns of value and pivot differ by one at most.
The rows that have one are searched again::

    near[row] = least over all compares of  bits(X) + 1 - bits(P), without a sign
    for each row with near[row] <= 2, whose x is no float32:
      code = thresholds that x passes, found by halving
      for each threshold i that may be as near to X:
        line[i] = code > i, for this row

Times and identifiers are as large as this: seconds of 2026 are 128 apart in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, reduce

import numpy as np

from skforge._typing import Array
from skforge.compiler.binning.rules import BlockRows, ReadingRules
from skforge.compiler.binning.transpose import ColumnTile
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import (
    F32,
    F64,
    I64,
    U8,
    U32,
    Buffer,
    Value,
    Vec,
)
from skforge.compiler.layouts.bitsliced.predicate_table import (
    PredicateJob,
    PredicateTable,
)
from skforge.forest.arrays import Comparison
from skforge.forest.predicates import round_thresholds

#: The differences of bit patterns, plus one, up to which a value may tie.
NEAR = 2

#: Vectors of rows that are looked at together: few have a tie.
VECTORS = 4

#: A value and the number it is compared with.
Compared = tuple[Value, Value]

#: What a vector is compared with, and where its equal parts begin; nowhere: not kept.
Noted = tuple[list[Compared], list[Value]]


class Ties:
    def __init__(
        self,
        rules: ReadingRules,
        table: PredicateTable,
        columns: ColumnTile,
        clean: Callable[[Value], Value],
        line_bytes: int,
    ) -> None:
        exact = table.by_line(rules.forest.threshold)
        self._exact = rules.model("exact_thresholds", exact)
        self._most = _most_near(table, exact)
        self._levels = int(table.jobs["count"].max()).bit_length()
        self._clean, self._line_bytes = clean, line_bytes
        self._right = partial(rules.goes_right, unordered=table.unordered)
        self._near = b.alloc("ties", U32, columns.part)
        self._least = b.alloc("least_tie", U32, columns.lanes)
        self._vec = Vec(U32, columns.lanes)

    def none(self) -> Value:
        return b.const((1 << 32) - 1, self._vec)

    def near(self, x: Value, number: Value) -> Value:
        return (b.bitcast(x, U32) + 1) - b.bitcast(number, U32)

    def keep(self, near: Value, rows: list[Value]) -> None:
        """Keep how near a vector's values are, whose equal parts begin at ``rows``."""
        for k, row in enumerate(rows):
            size = self._vec.lanes // len(rows)
            part = range(k * size, (k + 1) * size)
            self._near[row] = near if len(rows) == 1 else b.shuffle(near, near, part)

    def found(self, least: Value) -> None:
        self._least[0] = least

    def any(self) -> Value:
        """Return whether any value of the job may tie."""
        return b.any_true(self._least[0, self._vec] <= NEAR)

    def settle(
        self,
        rows: BlockRows,
        feature: Value,
        left: Value,
        job: PredicateJob,
        lines: Buffer,
    ) -> None:
        lanes, some = self._vec.lanes, VECTORS * self._vec.lanes
        with b.when(self.any()), b.loop(0, left, some, hint="rows") as first:
            places = range(0, some, lanes)
            near = least(self._near[first + k, self._vec] for k in places)
            with b.when(b.any_true(near <= NEAR)):
                rest = left - first
                with b.loop(rest.min(some), hint="row") as k:
                    r = first + k
                    x = self._clean(rows.rows[(rows.first + r) * rows.stride + feature])
                    # whole numbers are often next to thresholds, and float32 has them
                    rounded = b.compare("ne", x.to(F32).to(F64), x)
                    with b.when((self._near[r] <= NEAR) & rounded):
                        self._settle(x, r, job, lines)

    def _settle(self, x: Value, row: Value, job: PredicateJob, lines: Buffer) -> None:
        code: Value = b.const(0)
        for level in reversed(range(self._levels)):
            more = (code + (1 << level)).min(job.count)
            passed = self._right(x, self._exact[job.line + more - 1])
            code = b.select(passed, more, code)
        bit = b.const(1, I64) << (row & 7)
        with b.loop(-self._most, self._most, hint="threshold") as k:
            i = (code + k).max(0).min(job.count - 1)
            at = job.first_byte + i * self._line_bytes + row // 8
            others = lines[at].to(I64) & ~bit
            lines[at] = (others | b.select(code > i, bit, 0)).to(U8)


def least(values: Iterable[Value]) -> Value:
    return reduce(lambda x, y: x.min(y), values)


def _most_near(table: PredicateTable, exact: Array) -> int:
    """Return how many thresholds of a job a value can tie with."""
    count, first = table.jobs["count"], table.job_lines
    order = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
    job = np.repeat(np.arange(len(count)), count)
    rounded = round_thresholds(exact[order], Comparison.LE, np.float32)
    bits = rounded.view(np.int32).astype(np.int64)
    bits = np.where(bits < 0, np.iinfo(np.int32).min - bits, bits)
    most = 1
    while np.any((job[most:] == job[:-most]) & (bits[most:] - bits[:-most] <= NEAR)):
        most += 1
    return most
