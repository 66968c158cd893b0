"""Single rows to codes as LIR: one search a value, for many columns at once.

The generated code, lanes being columns of codes::

    for each row of the block:
      for each vector of columns:
        x = row[feature of the column]
        code = 0
        for step = half, quarter, ... 1 of the longest column:
          more = code + step <= count  and  x passes threshold[code + step - 1]
          code += step where more
        code = what a missing value gets, where x is missing
        codes[row, columns] = code
      for each column that is a single test: code = the test sends the row right

With no lanes a column is searched by itself, which is what a GPU's thread does.
"""

from __future__ import annotations

import numpy as np

from skforge.compiler.binning.category_tests import outside_set
from skforge.compiler.binning.rows import BlockRows, Model
from skforge.compiler.forest.arrays import ZERO_THRESHOLD, Comparison, Missing
from skforge.compiler.forest.bins import CodeTable, ColumnKind, code_stride
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import (
    I64,
    U8,
    U16,
    Buffer,
    CompareOp,
    Scalar,
    Type,
    Value,
    Vec,
)


class RowCodes:
    """Writes the search; ``model`` declares its buffers.

    ``lanes`` columns are searched at once, 0 for one in scalars; column c of a row's
    codes is ``c * step`` elements from its first.
    """

    def __init__(
        self,
        b: Builder,
        table: CodeTable,
        forest: Forest,
        comparison: str,
        lanes: int,
        model: Model,
        step: int = 1,
        element: Scalar | None = None,
    ) -> None:
        self.b, self.t, self.forest, self.lanes = b, table, forest, lanes
        self._model, self._step = model, step
        #: A GPU counts in 32 bits.
        self._number = np.int64 if lanes else np.int32
        self._type: Type = Vec(I64, lanes) if lanes else I64
        self._op: CompareOp = "ge" if comparison == "lt" else "gt"
        self._stride = code_stride(table)
        narrow = U8 if table.dtype == np.uint8 else U16
        self._element = narrow if element is None else element
        ordered = table.kind == ColumnKind.ORDER
        counts = np.where(ordered, table.counts, 0)
        self._levels = int(counts.max(initial=0)).bit_length()
        self._ordered = bool(ordered.any())
        self._tests = np.flatnonzero(~ordered)
        self.has_order, self.has_tests = self._ordered, len(self._tests) > 0
        # A test's column is searched as one without thresholds, then written over.
        self._features = model("code_feature", self._columns(table.feature))
        self._counts = model("code_count", self._columns(counts))
        self._offsets = model("code_offset", self._columns(table.offset[:-1]))
        spare = np.zeros(1, table.thresholds.dtype)
        self._thresholds = model("thresholds", np.append(table.thresholds, spare))
        missing = table.missing[ordered]
        self._never = self._share(missing == Missing.NEVER)
        self._zero = self._share(missing == Missing.ZERO)
        left = table.missing_left | (table.missing == Missing.NEVER)
        gone = np.where(left, 0, counts)
        self._gone = model("code_missing", self._columns(gone)) if gone.any() else None

    def _columns(self, values: np.ndarray) -> np.ndarray:
        """Return one number a column, those past the last being 0."""
        padded = np.zeros(self._stride, self._number)
        padded[: len(values)] = values
        return padded

    @staticmethod
    def _share(is_so: np.ndarray) -> str:
        if not is_so.any():
            return "none"
        return "all" if is_so.all() else "some"

    def encode(self, rows: BlockRows, count: Value, codes: Buffer) -> None:
        """Fill ``codes`` for the first ``count`` rows of a block."""
        b = self.b

        def row(r: Value, _: tuple[Value, ...]) -> None:
            number = b.binary("add", rows.first, r)
            start = b.binary("mul", number, rows.stride)
            to = b.mul(r, self._stride)

            def columns(c: Value, _: tuple[Value, ...]) -> None:
                value = self._search(rows.rows, start, c)
                narrow = b.convert(value, self._element)
                b.store(codes, b.binary("add", to, c), narrow)

            if self._ordered:
                end, step = b.const(self.t.n_columns), b.const(self.lanes)
                b.for_(b.const(0), end, step, columns, hint="column")
            self.write_tests(rows.rows, start, to, codes)

        b.for_(b.const(0), count, b.const(1), row, hint="row")

    def _search(self, rows: Buffer, start: Value, column: Value) -> Value:
        """Return the codes of one vector of columns as i64."""
        b, vec = self.b, self._type
        feature = self._of(self._features, column)
        raw = x = b.load(rows, b.binary("add", *b.same_lanes(start, feature)))
        if self._never != "none":
            nan = b.is_nan(x)
            if self._never == "some":
                nan = b.binary("and", nan, self._kind_is(Missing.NEVER, column))
            x = b.select(nan, b.const(0.0, x.type), x)
        count = self._of(self._counts, column)
        offset = self._of(self._offsets, column)
        position = b.const(0, vec)
        for level in reversed(range(self._levels)):
            ahead = b.add(position, 1 << level)
            within = b.compare("le", ahead, count)
            at = b.binary("sub", b.binary("add", offset, ahead), 1)
            at = b.select(within, at, b.const(0, vec))
            passed = b.compare(self._op, x, b.load(self._thresholds, at))
            more = b.binary("and", passed, within)
            position = b.select(more, ahead, position)
        if self._gone is not None or self._zero != "none":
            missing = b.is_nan(x)
            if self._zero != "none":
                near = b.compare("le", raw, b.const(ZERO_THRESHOLD, raw.type))
                far = b.compare("ge", raw, b.const(-ZERO_THRESHOLD, raw.type))
                tiny = b.binary("and", near, far)
                if self._zero == "some":
                    tiny = b.binary("and", tiny, self._kind_is(Missing.ZERO, column))
                missing = b.binary("or", missing, tiny)
            gone = b.const(0, vec)
            if self._gone is not None:
                gone = self._of(self._gone, column)
            position = b.select(missing, gone, position)
        return position

    def _kind_is(self, kind: Missing, column: Value) -> Value:
        """Return a mask of the columns that treat missing values in one way."""
        b = self.b
        kinds = self._model("code_missing_kind", self._columns(self.t.missing))
        found = self._of(kinds, column)
        return b.compare("eq", found, b.const(int(kind), self._type))

    def _of(self, numbers: Buffer, column: Value) -> Value:
        """Return what is kept of the columns searched at once."""
        if self.lanes:
            return self.b.load(numbers, column, self._type)
        return self.b.convert(self.b.load(numbers, column), I64)

    def write_column(
        self, rows: Buffer, start: Value, to: Value, column: Value, codes: Buffer
    ) -> None:
        """Write one column of a row; those of single tests are written over later."""
        b = self.b
        code = b.convert(self._search(rows, start, column), self._element)
        b.store(codes, b.binary("add", to, b.mul(column, self._step)), code)

    def write_tests(self, rows: Buffer, start: Value, to: Value, codes: Buffer) -> None:
        """Write the columns of tests for equality or for sets, one after another."""
        if not len(self._tests):
            return
        b, t, forest = self.b, self.t, self.forest
        predicate = t.predicates[t.offset[:-1][self._tests]]
        comparison = forest.comparison[predicate]
        for is_set in (False, True):
            chosen = np.flatnonzero((comparison != Comparison.EQ) == is_set)
            if not len(chosen):
                continue
            own = predicate[chosen]
            name = "set" if is_set else "equal"
            columns = self._model(f"{name}_column", self._tests[chosen])
            category = np.cumsum(forest.comparison >= Comparison.IN) - 1
            what = category[own] if is_set else forest.threshold[own]
            whats = self._model(f"{name}_number", what)
            features = self._model(f"{name}_feature", forest.feature[own])
            members = (forest.comparison[own] == Comparison.MEMBER).astype(np.uint8)
            member = self._model("set_member", members) if members.any() else None
            left = forest.missing_left[own].astype(np.uint8)
            lefts = self._model(f"{name}_missing_left", left)
            kinds = self._model(f"{name}_missing_kind", forest.missing[own])

            def test(
                i: Value,
                _: tuple[Value, ...],
                is_set: bool = is_set,
                member: Buffer | None = member,
                features: Buffer = features,
                whats: Buffer = whats,
                columns: Buffer = columns,
                lefts: Buffer = lefts,
                kinds: Buffer = kinds,
            ) -> None:
                feature = b.convert(b.load(features, i), I64)
                raw = b.load(rows, b.binary("add", start, feature))
                nan = b.is_nan(raw)
                x = b.select(nan, b.const(0.0, raw.type), raw)
                if is_set:
                    exact = None
                    if member is not None:
                        exact = b.compare("ne", b.load(member, i), 0)
                    number = b.load(whats, i)
                    right = outside_set(b, forest, number, x, exact, self._model)
                else:
                    right = b.compare("ne", x, b.load(whats, i), unordered=True)
                kind = b.load(kinds, i)
                gone = b.binary("and", nan, b.compare("ne", kind, int(Missing.NEVER)))
                near = b.compare("le", raw, b.const(ZERO_THRESHOLD, raw.type))
                far = b.compare("ge", raw, b.const(-ZERO_THRESHOLD, raw.type))
                tiny = b.binary("and", near, far)
                is_zero = b.compare("eq", kind, int(Missing.ZERO))
                gone = b.binary("or", gone, b.binary("and", tiny, is_zero))
                to_right = b.compare("eq", b.load(lefts, i), 0)
                right = b.select(gone, to_right, right)
                column = b.convert(b.load(columns, i), I64)
                one, zero = b.const(1, self._element), b.const(0, self._element)
                code = b.select(right, one, zero)
                there = b.binary("add", to, b.mul(column, self._step))
                b.store(codes, there, code)

            b.for_(b.const(0), b.const(len(chosen)), b.const(1), test, hint="test")
