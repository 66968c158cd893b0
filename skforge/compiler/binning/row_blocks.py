"""Quantises one row: two vector comparisons a column, no branches.

The thresholds of a column are stored in blocks of 16, after a block of pivots: every
16th threshold. This runs for each column, unrolled or in a loop over the columns of a
kind::

    x = row[feature]
    h = ones(x >= pivots)                  # full blocks of thresholds below x
    code = 16 h + ones(x >= block[h])
    codes[column] = code

Blocks are padded with NaN, which no value passes. If a missing value goes right, it
must pass all thresholds: comparisons are unordered, the padding is infinite, and the
code is clamped to 255, which exceeds every rank.

Without mask registers, 16 numbers fill several registers, so that buckets of even width
(``buckets.py``) take the place of pivots, if none has more thresholds than a register
or two::

    h = thresholds before the bucket of x
    code = h + ones(x >= thresholds[h:])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Int32s
from skforge.compiler.binning.buckets import bucket_of, clamped, spread
from skforge.compiler.binning.rules import (
    ReadingRules,
    RowAt,
    ThresholdPool,
    set_numbers,
)
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I64, U32, Value, Vec
from skforge.compiler.ir.lir.types import Part, scalar_of
from skforge.compiler.target import Target
from skforge.forest import bins
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest

#: Thresholds compared at once; a byte can count at most 16 blocks of them.
BLOCK = 16

#: The greatest code, and the most buckets of a column.
MOST_CODE, MOST_BUCKETS = 255, 256

#: Up to this many columns are unrolled, 1 ns each. A loop over more takes a fifth
#: longer, but an unrolled column costs a millisecond to compile.
STRAIGHT = 96


@dataclass(frozen=True, slots=True)
class ColumnClass:
    """Columns ``first .. last`` (places), which share the same code."""

    first: int
    last: int
    missing: Missing
    right: bool  # whether missing values go right
    test: int  # each column's only test, or THRESHOLDS
    pivots: bool  # more thresholds than one block
    buckets: int  # thresholds compared after a bucket; 0: not by buckets
    clamped: bool  # whether a missing value may pass more than 255 of these


@dataclass(frozen=True, slots=True, eq=False)
class RowCodePlan:
    """The columns ordered by class, and the data that their search reads."""

    code_index: Int32s  # (n_columns,) of the code table -> where its code is
    classes: tuple[ColumnClass, ...]
    feature: Int32s  # by place
    offset: Int32s  # by place, into numbers; for a set test, the set's number
    numbers: Array  # thresholds, in the rows' dtype
    heads: Array  # (n_columns, 3), by place: scale, shift and last bucket
    before_offset: Int32s  # by place, into before
    before: NDArray[np.uint8]  # thresholds before each bucket


def bucket_lanes(target: Target, item: int) -> int:
    """Return the thresholds that follow a bucket; 0: comparing a block is better."""
    return 0 if target.has_mask_registers else target.vector_bits // (8 * item)


def plan_row_codes(table: bins.CodeTable, forest: Forest, lanes: int) -> RowCodePlan:
    """Plan columns; with ``lanes`` of a register, by buckets where that is less."""
    long = table.ordered & (table.counts > BLOCK)
    many = table.ordered & (table.counts > lanes) if lanes else np.zeros_like(long)
    by_bucket = {
        c: found
        for c in np.flatnonzero(many).tolist()
        if (found := _buckets(table.bounds(c), lanes)) is not None
    }
    compared = np.zeros(table.n_columns, np.int64)
    compared[list(by_bucket)] = [most for most, *_ in by_bucket.values()]
    right = bins.missing_right(table)
    beyond = right & (table.counts + compared > MOST_CODE)
    keys = table.test, table.missing, table.missing_left, long, compared, beyond
    every = np.arange(table.n_columns)
    by_class = bins.TestColumns.of(every, every, *keys)
    order = by_class.tests
    classes = tuple(
        ColumnClass(
            first=int(first),
            last=int(last),
            missing=Missing(table.missing[c]),
            right=bool(right[c]),
            test=int(table.test[c]),
            pivots=bool(long[c]),
            buckets=int(compared[c]),
            clamped=bool(beyond[c]),
        )
        for c, (first, last) in zip(
            by_class.first, pairwise(by_class.offset), strict=True
        )
    )
    offset, numbers = np.zeros(table.n_columns, np.int32), ThresholdPool()
    before_offset, before = np.zeros_like(offset), ThresholdPool()
    heads = np.zeros((table.n_columns, 3), table.thresholds.dtype)
    set_of = set_numbers(forest)[table.first]
    for part in classes:
        for place, c in enumerate(order[part.first : part.last], part.first):
            if part.test >= Comparison.IN:
                offset[place] = set_of[c]
                continue
            bounds, fill = table.bounds(c), np.inf if part.right else np.nan
            if part.buckets:
                _, heads[place], counts = by_bucket[int(c)]
                before_offset[place] = before.add(counts)
                bounds = np.concatenate([bounds, np.full(part.buckets, fill)])
            elif part.test == bins.THRESHOLDS:
                bounds = _blocks(bounds, fill)
            offset[place] = numbers.add(bounds)
    # A value that also passes the padding reads one block past the last.
    numbers.add(np.full((BLOCK + 2) * BLOCK, np.inf))
    return RowCodePlan(
        code_index=np.argsort(order).astype(np.int32),
        classes=classes,
        feature=table.feature[order],
        offset=offset,
        numbers=numbers.array(table.thresholds.dtype),
        heads=heads,
        before_offset=before_offset,
        before=before.array(np.uint8, spare=1),
    )


def _buckets(thresholds: Array, lanes: int) -> tuple[int, Array, Array] | None:
    """Return how many thresholds follow a bucket, its scale and so on, and ``before``.

    None if more than 256 buckets would be needed.
    """
    dtype = thresholds.dtype.type
    for most in (lanes, 2 * lanes):
        count = 4
        while count < MOST_BUCKETS:
            count *= 2
            scale, shift = map(dtype, spread(thresholds, count))
            bucket = bucket_of(thresholds, scale, shift, dtype(count - 1))
            if np.bincount(bucket).max() <= most:
                head = np.array([scale, shift, bucket[-1]], dtype)
                numbers = np.arange(bucket[-1] + 1)
                return most, head, np.searchsorted(bucket, numbers)
    return None


def _blocks(thresholds: Array, fill: float) -> Array:
    n_blocks = max(1, -(-len(thresholds) // BLOCK))
    blocks = np.full(n_blocks * BLOCK, fill, thresholds.dtype)
    blocks[: len(thresholds)] = thresholds
    if n_blocks == 1:
        return blocks
    pivots = np.full(BLOCK, fill, thresholds.dtype)
    pivots[: n_blocks - 1] = blocks[BLOCK - 1 : -BLOCK : BLOCK]
    return np.concatenate([pivots, blocks])


class BlockedBins:
    def __init__(self, rules: ReadingRules, plan: RowCodePlan) -> None:
        self.plan, self._rules = plan, rules
        self._numbers = rules.model("code_numbers", plan.numbers)
        self._heads = rules.model("code_heads", plan.heads.reshape(-1))
        self._before = rules.model("code_before", plan.before)
        self._vec = Vec(scalar_of(plan.numbers.dtype), BLOCK)

    def evaluate(self, row: RowAt, codes: Part) -> None:
        plan = self.plan
        if len(plan.feature) <= STRAIGHT:
            for part in plan.classes:
                for c in range(part.first, part.last):
                    x = row.rows[row.start + int(plan.feature[c])]
                    offset = b.const(int(plan.offset[c]))
                    before = b.const(int(plan.before_offset[c]))
                    self._column(part, x, offset, before, codes, b.const(c))
            return
        features = self._rules.model("code_feature", plan.feature)
        offsets = self._rules.model("code_offset", plan.offset)
        befores = self._rules.model("code_before_offset", plan.before_offset)
        for part in plan.classes:
            with b.loop(part.first, part.last, hint="column") as place:
                x = row.rows[row.start + features[place].to(I64)]
                offset, before = offsets[place].to(I64), befores[place].to(I64)
                self._column(part, x, offset, before, codes, place)

    def _column(
        self,
        part: ColumnClass,
        x: Value,
        offset: Value,
        before: Value,
        codes: Part,
        place: Value,
    ) -> None:
        if part.buckets:
            head = [self._heads[3 * place + k] for k in range(3)]
            code = self._search_bucket(part, x, offset, before, head)
        elif part.test == bins.THRESHOLDS:
            code = self._search(part, x, offset)
        else:
            code = self._single_test(part, x, offset)
        codes[place] = code.to(codes.element)

    # ------------------------------------------------------------ thresholds

    def _search(self, part: ColumnClass, x: Value, offset: Value) -> Value:
        x = b.splat(self._rules.nan_if_missing(x, part.missing), BLOCK)

        def passed(at: Value) -> Value:
            block = self._numbers[at, self._vec]
            mask = self._rules.goes_right(x, block, unordered=part.right)
            return b.popcount(b.mask_bits(mask, U32)).to(I64)

        if not part.pivots:
            return passed(offset)
        full = passed(offset) * BLOCK
        at = full + offset + BLOCK
        code = full + passed(at)
        return code.min(MOST_CODE) if part.right else code

    def _search_bucket(
        self,
        part: ColumnClass,
        x: Value,
        offset: Value,
        before: Value,
        head: Sequence[Value],
    ) -> Value:
        x = self._rules.nan_if_missing(x, part.missing)
        scale, shift, last = head
        place = clamped(x * scale + shift, last, nan_last=part.right).to(I64)
        code = self._before[before + place].to(I64)
        vec = Vec(self._vec.element, part.buckets)
        block = self._numbers[offset + code, vec]
        x = b.splat(x, part.buckets)
        mask = self._rules.goes_right(x, block, unordered=part.right)
        code = code + b.popcount(b.mask_bits(mask, U32)).to(I64)
        return code.min(MOST_CODE) if part.clamped else code

    # ------------------------------------------------------------ single tests

    def _single_test(self, part: ColumnClass, x: Value, offset: Value) -> Value:
        raw = x
        x = self._rules.zero_for_nan(x)
        number = self._numbers[offset] if part.test == Comparison.EQ else offset
        right = self._rules.goes_right(x, number, part.test)
        if part.missing != Missing.NEVER:
            goes = b.const(part.right, right.type)
            missing = self._rules.is_missing(raw, part.missing)
            right = b.select(missing, goes, right)
        return right.to(I64)
