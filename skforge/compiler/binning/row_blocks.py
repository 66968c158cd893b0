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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.rules import RowAt, Rules, set_numbers
from skforge.compiler.forest.arrays import Comparison, IntArray, Missing
from skforge.compiler.forest.bins import CodeTable, ColumnKind
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.lir.nodes import I64, U32, Buffer, Value, Vec
from skforge.compiler.ir.lir.types import scalar_of

#: Thresholds compared at once; a byte can count at most 16 blocks of them.
BLOCK = 16

#: Up to this many columns are unrolled, 1 ns each. A loop over more takes a fifth
#: longer, but an unrolled column costs a millisecond to compile.
STRAIGHT = 96


@dataclass(frozen=True, slots=True)
class ColumnClass:
    """Columns ``first .. last`` (places), which share the same code."""

    first: int
    last: int
    missing: Missing
    missing_left: bool
    comparison: Comparison | None  # each column's only test; None: thresholds
    pivots: bool  # more thresholds than one block


@dataclass(frozen=True, slots=True, eq=False)
class RowCodePlan:
    """The columns ordered by class, and the data that their search reads."""

    place: IntArray  # (n_columns,) of the code table -> where its code is
    classes: tuple[ColumnClass, ...]
    feature: IntArray  # by place
    offset: IntArray  # by place, into numbers; for a set test, the set's number
    numbers: NDArray[Any]  # thresholds, in the rows' dtype


def plan_row_codes(table: CodeTable, forest: Forest) -> RowCodePlan:
    """Group the columns of a table of uint8 codes by how they are searched."""
    tests = np.full(table.n_columns, -1)
    single = table.kind == ColumnKind.TEST
    first = table.predicates[table.offset[:-1]]
    tests[single] = forest.comparison[first[single]]
    long = (tests < 0) & (table.counts > BLOCK)
    keys = np.stack([tests, table.missing, table.missing_left, long])
    order = np.lexsort(keys[::-1])
    place = np.empty(table.n_columns, np.int32)
    place[order] = np.arange(table.n_columns)
    offset, size = np.where(tests >= Comparison.IN, set_numbers(forest)[first], 0), 0
    numbers: list[NDArray[Any]] = []
    for c in order[tests[order] < Comparison.IN].tolist():
        own = table.thresholds[table.offset[c] : table.offset[c + 1]]
        if tests[c] < 0:
            right = _goes_right(Missing(table.missing[c]), bool(table.missing_left[c]))
            own = _blocks(own, np.inf if right else np.nan)
        offset[c] = size
        numbers.append(own)
        size += len(own)
    # A value that also passes the padding reads one block past the last.
    numbers.append(np.full((BLOCK + 2) * BLOCK, np.inf))
    cuts = np.flatnonzero((np.diff(keys[:, order], axis=1) != 0).any(axis=0)) + 1
    classes = [
        ColumnClass(
            first=int(place[part[0]]),
            last=int(place[part[-1]]) + 1,
            missing=Missing(table.missing[part[0]]),
            missing_left=bool(table.missing_left[part[0]]),
            comparison=None if tests[part[0]] < 0 else Comparison(tests[part[0]]),
            pivots=bool(long[part[0]]),
        )
        for part in np.split(order, cuts)
        if len(part)
    ]
    return RowCodePlan(
        place=place,
        classes=tuple(classes),
        feature=table.feature[order],
        offset=offset[order].astype(np.int32),
        numbers=np.concatenate(numbers).astype(table.thresholds.dtype),
    )


def _goes_right(missing: Missing, missing_left: bool) -> bool:
    return missing != Missing.NEVER and not missing_left


def _blocks(thresholds: NDArray[Any], fill: float) -> NDArray[Any]:
    """Return the blocks, after the pivots if there is more than one block."""
    n_blocks = max(1, -(-len(thresholds) // BLOCK))
    blocks = np.full(n_blocks * BLOCK, fill, thresholds.dtype)
    blocks[: len(thresholds)] = thresholds
    if n_blocks == 1:
        return blocks
    pivots = np.full(BLOCK, fill, thresholds.dtype)
    pivots[: n_blocks - 1] = blocks[BLOCK - 1 : -BLOCK : BLOCK]
    return np.concatenate([pivots, blocks])


class BlockedBins:
    """Emits the search of one row."""

    def __init__(self, rules: Rules, plan: RowCodePlan) -> None:
        self.b, self.plan, self._rules = rules.b, plan, rules
        self._numbers = rules.model("code_numbers", plan.numbers)
        self._vec = Vec(scalar_of(plan.numbers.dtype), BLOCK)

    def evaluate(self, row: RowAt, codes: Buffer) -> None:
        """Write the code of every column to its place."""
        b, plan = self.b, self.plan
        if len(plan.feature) <= STRAIGHT:
            for part in plan.classes:
                for c in range(part.first, part.last):
                    x = row.rows[row.start + int(plan.feature[c])]
                    offset = b.const(int(plan.offset[c]))
                    self._column(part, x, offset, codes, b.const(c))
            return
        features = self._rules.model("code_feature", plan.feature)
        offsets = self._rules.model("code_offset", plan.offset)
        for part in plan.classes:
            with b.loop(part.first, part.last, hint="column") as place:
                x = row.rows[row.start + features[place].to(I64)]
                offset = offsets[place].to(I64)
                self._column(part, x, offset, codes, place)

    def _column(
        self, part: ColumnClass, x: Value, offset: Value, codes: Buffer, place: Value
    ) -> None:
        if part.comparison is None:
            code = self._search(part, x, offset)
        else:
            code = self._test(part, part.comparison, x, offset)
        codes[place] = code.to(codes.element)

    # ------------------------------------------------------------ thresholds

    def _search(self, part: ColumnClass, x: Value, offset: Value) -> Value:
        b, right = self.b, _goes_right(part.missing, part.missing_left)
        x = b.splat(self._rules.nan_if_missing(x, part.missing), BLOCK)

        def passed(at: Value) -> Value:
            block = self._numbers[at, self._vec]
            mask = b.compare(self._rules.passes, x, block, unordered=right)
            return b.popcount(b.mask_bits(mask, U32)).to(I64)

        if not part.pivots:
            return passed(offset)
        full = passed(offset) * BLOCK
        at = full + offset + BLOCK
        code = full + passed(at)
        return code.min(255) if right else code

    # ------------------------------------------------------------ single tests

    def _test(
        self, part: ColumnClass, comparison: Comparison, x: Value, offset: Value
    ) -> Value:
        """Return 1 where the one test of a column sends the row right."""
        b, raw = self.b, x
        x = self._rules.zero_for_nan(x)
        if comparison == Comparison.EQ:
            right = x.ne(self._numbers[offset])
        else:
            exact = comparison == Comparison.MEMBER
            right = ~self._rules.in_set(offset, x, exact)
        if part.missing != Missing.NEVER:
            goes = b.const(not part.missing_left, right.type)
            missing = self._rules.is_missing(raw, part.missing)
            right = b.select(missing, goes, right)
        return right.to(I64)
