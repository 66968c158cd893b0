"""Quantises single rows: one binary search a value, for many columns at once.

The generated code, with columns of codes in lanes::

    for each row of the block:
      for each vector of columns:
        x = row[feature of the column]
        code = 0
        for step = half, quarter, ... 1 of the longest column:
          more = code + step <= count  and  x passes threshold[code + step - 1]
          code += step where more
        code = the code of a missing value, where x is missing
        codes[row, columns] = code
      for each column that is a single test: code = the test sends the row right

Without lanes each column is searched separately, as a GPU thread does.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from skforge._typing import Array
from skforge.compiler.binning.rules import BlockRows, ReadingRules, set_numbers
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I64, Buffer, Scalar, Type, Value, Vec
from skforge.compiler.ir.lir.types import scalar_of
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.bins import CodeTable, code_stride, missing_right


class GatheredBins:
    """Emits the search of a row.

    ``lanes`` columns are searched at once; 0 means one column, in scalars. Column c of
    a row's codes is ``c * step`` elements from its first.
    """

    def __init__(
        self,
        rules: ReadingRules,
        table: CodeTable,
        lanes: int,
        step: int = 1,
        element: Scalar | None = None,
    ) -> None:
        self.t, self.lanes = table, lanes
        self._rules, self._step, model = rules, step, rules.model
        #: A GPU counts in 32 bits.
        self._number = np.int64 if lanes else np.int32
        self._type: Type = Vec(I64, lanes) if lanes else I64
        self._stride = code_stride(table)
        self._element = scalar_of(table.dtype) if element is None else element
        ordered = table.ordered
        counts = np.where(ordered, table.counts, 0)
        self._levels = int(counts.max(initial=0)).bit_length()
        self._tests = np.flatnonzero(~ordered)
        self.has_order, self.has_tests = bool(ordered.any()), len(self._tests) > 0
        # A test's column is searched as if it had no thresholds, then overwritten.
        self._features = model("code_feature", self._columns(table.feature))
        self._counts = model("code_count", self._columns(counts))
        self._offsets = model("code_offset", self._columns(table.offset[:-1]))
        spare = np.zeros(1, table.thresholds.dtype)
        self._thresholds = model("thresholds", np.append(table.thresholds, spare))
        self._kinds = set(table.missing[ordered].tolist())
        gone = np.where(missing_right(table), counts, 0)
        self._gone = model("code_missing", self._columns(gone)) if gone.any() else None

    def _columns(self, values: Array) -> Array:
        padded = np.zeros(self._stride, self._number)
        padded[: len(values)] = values
        return padded

    def encode(self, rows: BlockRows, count: Value, codes: Buffer) -> None:
        with b.loop(count, hint="row") as r:
            start = (rows.first + r) * rows.stride
            to = r * self._stride

            if self.has_order:
                with b.loop(0, self.t.n_columns, self.lanes, hint="column") as c:
                    self.write_column(rows.rows, start, to, c, codes)
            self.write_tests(rows.rows, start, to, codes)

    def _search(self, rows: Buffer, start: Value, column: Value) -> Value:
        vec = self._type
        feature = self._of(self._features, column)
        raw = rows[start + feature]
        rules, kinds, is_kind = self._rules, self._kinds, partial(self._is_kind, column)
        x = rules.compared(raw, kinds, is_kind)
        count = self._of(self._counts, column)
        offset = self._of(self._offsets, column)
        position = b.const(0, vec)
        for level in reversed(range(self._levels)):
            ahead = position + (1 << level)
            within = ahead <= count
            at = b.select(within, offset + ahead - 1, 0)
            more = rules.goes_right(x, self._thresholds[at]) & within
            position = b.select(more, ahead, position)
        if self._gone is not None or Missing.ZERO in kinds:
            missing = rules.missing(raw, x, kinds, is_kind)
            gone = b.const(0, vec)
            if self._gone is not None:
                gone = self._of(self._gone, column)
            position = b.select(missing, gone, position)
        return position.to(self._element)

    def _is_kind(self, column: Value, kind: Missing) -> Value | None:
        """Return which columns have a rule for missing values; None: all."""
        if len(self._kinds) == 1:
            return None
        kinds = self._rules.model("code_missing_kind", self._columns(self.t.missing))
        return self._of(kinds, column).eq(b.const(int(kind), self._type))

    def _of(self, numbers: Buffer, column: Value) -> Value:
        return numbers[column, self._type] if self.lanes else numbers[column].to(I64)

    def write_column(
        self, rows: Buffer, start: Value, to: Value, column: Value, codes: Buffer
    ) -> None:
        codes[to + column * self._step] = self._search(rows, start, column)

    def write_tests(self, rows: Buffer, start: Value, to: Value, codes: Buffer) -> None:
        t, rules, forest = self.t, self._rules, self._rules.forest
        predicate = t.first[self._tests]
        sets = forest.comparison[predicate] != Comparison.EQ
        for name, chosen in (("equal", ~sets), ("set", sets)):
            if not chosen.any():
                continue
            is_set, tests = name == "set", predicate[chosen]
            columns_of = rules.model(f"{name}_column", self._tests[chosen])
            what = set_numbers(forest)[tests] if is_set else forest.threshold[tests]
            whats = rules.model(f"{name}_number", what)
            features = rules.model(f"{name}_feature", forest.feature[tests])
            members = (forest.comparison[tests] == Comparison.MEMBER).astype(np.uint8)
            member = rules.model(f"{name}_member", members) if members.any() else None
            left = forest.missing_left[tests].astype(np.uint8)
            lefts = rules.model(f"{name}_missing_left", left)
            kinds = rules.model(f"{name}_missing_kind", forest.missing[tests])
            with b.loop(len(tests), hint="test") as i:
                raw = rows[start + features[i].to(I64)]
                x = rules.zero_for_nan(raw)
                exact = None if member is None else member[i].ne(0)
                test = Comparison.IN if is_set else Comparison.EQ
                right = rules.goes_right(x, whats[i], test, exact, unordered=True)
                kind = kinds[i]
                known = kind.ne(int(Missing.NEVER))
                gone = b.is_nan(raw) & known
                is_zero = kind.eq(int(Missing.ZERO))
                gone = gone | rules.is_tiny(raw) & is_zero
                right = b.select(gone, lefts[i].eq(0), right)
                there = to + columns_of[i].to(I64) * self._step
                one, zero = (b.const(k, self._element) for k in (1, 0))
                codes[there] = b.select(right, one, zero)
