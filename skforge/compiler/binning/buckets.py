"""Quantises rows to codes by buckets, for columns of thousands of thresholds.

The buckets of a column divide the range of its thresholds evenly. A monotonic function
(scale, shift, clamp) maps a value to its bucket. Every threshold of a lower bucket is
therefore passed and none of a higher one is; a search continues among the few
thresholds of the same bucket. Lanes are columns; a row is read once::

    for each row:
      for each vector of columns:
        k = bucket of x
        code = thresholds before bucket k
        for step = half, quarter, ... 1 of the fullest bucket:
          code += step where the bucket has so many and x passes that one
        codes[row, columns] = code

The code of a missing value is 0 where it goes left, otherwise more than any rank.
Columns whose tests disagree on missing values are stored twice; rows without missing
values need only one copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from skforge._typing import Array, Int32s, Int64s, Uint32s
from skforge.compiler.binning.row_gather import GatheredBins
from skforge.compiler.binning.rules import BlockRows, ReadingRules, ThresholdPool
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I32, I64, U16, U32, Buffer, Value, Vec
from skforge.compiler.ir.lir.types import scalar_of
from skforge.forest.arrays import Missing
from skforge.forest.bins import CodeTable, missing_right
from skforge.forest.forest import Forest

#: Most buckets of a column, and buckets for each threshold.
MAX_BUCKETS, BUCKETS_EACH = 4096, 2

#: Vectors searched together.
LOCKSTEP = 4

#: Most registers of a row from which columns are permuted; wider rows are gathered.
ROW_REGISTERS = 4


@dataclass(frozen=True, slots=True, eq=False)
class CodePlaces:
    """The codes of a row of a forest, in two copies if missing values need them.

    A row goes right at predicate p exactly if ``codes[place_of[p]] > rank_of[p]``; if
    it has no missing value, also exactly if
    ``codes[place_of[p] % width] > rank_of[p]``.
    """

    table: CodeTable  # its columns hold tests of either rule for missing values
    width: int  # codes of one copy: a multiple of the lanes of a register
    copies: int
    place_of: Int32s
    rank_of: Int32s

    @property
    def most(self) -> int:
        """The code of a missing value that goes right: a signed word, if ranks are."""
        words = np.int16 if self.rank_of.max(initial=0) < (1 << 15) - 1 else np.uint16
        return int(np.iinfo(words).max)

    @classmethod
    def of(cls, forest: Forest, table: CodeTable, lanes: int) -> CodePlaces:
        registers = max(1, -(-table.n_columns // lanes))
        width = lanes << (registers - 1).bit_length()
        column, right = table.column_of, missing_right(forest)
        ordered = table.ordered[column]
        some = np.zeros((2, table.n_columns), np.bool_)  # go left, go right
        some[right[ordered].astype(int), column[ordered]] = True
        copies = 1 + bool(some.all(axis=0).any())
        place = column + np.int32(width) * (ordered & right & (copies == 2))
        return cls(table, width, copies, place, table.rank_of)


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """The buckets of every column, in the arithmetic of the rows' dtype."""

    scale: Array  # (n_columns,)
    shift: Array
    last: Array  # the last bucket's number
    offset: Int32s  # place of the first bucket in ``content``
    content: Uint32s  # thresholds before it | thresholds in it << 16
    levels: Int64s  # steps of the search in the fullest bucket

    @classmethod
    def of(cls, table: CodeTable) -> Buckets:
        dtype = table.thresholds.dtype
        n = table.n_columns
        scale, shift = np.ones(n, dtype), np.zeros(n, dtype)
        last, offset = np.zeros(n, dtype), np.zeros(n, np.int32)
        levels = np.zeros(n, np.int64)
        content = ThresholdPool()
        for c, ordered in enumerate(table.ordered):
            bounds = table.bounds(c) if ordered else table.thresholds[:0]
            count = min(MAX_BUCKETS, BUCKETS_EACH * max(1, len(bounds)))
            scale[c], shift[c] = _fit(bounds, count)
            last[c] = count - 1
            which = bucket_of(bounds, scale[c], shift[c], last[c])
            held = np.bincount(which, minlength=count)
            before = np.cumsum(held) - held
            levels[c] = int(held.max(initial=0)).bit_length()
            offset[c] = content.add(before | held << 16)
        joined = content.array(np.uint32, spare=1)
        return cls(scale, shift, last, offset, joined, levels)


def _fit(thresholds: Array, count: int) -> tuple[Any, Any]:
    """Return the scale and shift that give the smallest fullest bucket.

    Any positive scale and finite shift are correct. Thresholds outside the range that
    is divided evenly fall into the first and the last bucket.
    """
    finite = thresholds[np.isfinite(thresholds)].astype(np.float64)
    best, fitted = len(finite) + 1, (1.0, 0.0)
    for edge in sorted({0, *(len(finite) >> k for k in (12, 10, 8, 6))}):
        scale, shift = spread(thresholds, count, edge)
        narrow, other = thresholds.dtype.type(scale), thresholds.dtype.type(shift)
        which = bucket_of(thresholds, narrow, other, thresholds.dtype.type(count - 1))
        fullest = int(np.bincount(which).max(initial=0))
        if fullest < best:
            best, fitted = fullest, (scale, shift)
    return fitted


def spread(thresholds: Array, count: int, edge: int = 0) -> tuple[float, float]:
    """Return the scale and shift that spread sorted thresholds over buckets evenly.

    ``edge`` thresholds at each end are in the first and the last bucket.
    """
    finite = thresholds[np.isfinite(thresholds)].astype(np.float64)
    info = np.finfo(thresholds.dtype)
    if len(finite) <= 2 * edge or count <= 2:
        return 1.0, 0.0
    low, high = finite[edge], finite[len(finite) - 1 - edge]
    with np.errstate(over="ignore"):
        width = high - low
        if not 0 < width < float(info.max):
            return 1.0, 0.0
        scale = min(max((count - 2) / width, float(info.tiny)), float(info.max))
    return scale, min(max(1.0 - low * scale, float(info.min)), float(info.max))


def clamped(y: Value, last: Value | float, nan_last: bool = False) -> Value:
    """Clamp to buckets; NaN, with which comparisons are false, to the first or last."""
    if not nan_last:
        y = b.select(y > 0.0, y, 0.0)
    y = b.select(y < last, y, last)
    return b.select(y > 0.0, y, 0.0) if nan_last else y


def bucket_of(x: Array, scale: Any, shift: Any, last: Any) -> Int64s:
    with np.errstate(over="ignore", invalid="ignore"):
        y = x * scale + shift
    y = np.where(y < last, y, last)
    y = np.where(y > 0, y, np.zeros(1, x.dtype))
    return y.astype(np.int64)


class BucketBins:
    """Emits the search of a block of rows, ``lanes`` columns at once."""

    def __init__(self, rules: ReadingRules, codes: CodePlaces, lanes: int) -> None:
        self.codes, self.lanes, self._rules = codes, lanes, rules
        table = self._table = codes.table
        model = rules.model
        self._vectors = range(0, -(-max(1, table.n_columns) // lanes) * lanes, lanes)
        buckets = Buckets.of(table)
        self._levels = int(buckets.levels.max(initial=0))
        self._scale = model("bucket_scale", self._columns(buckets.scale))
        self._shift = model("bucket_shift", self._columns(buckets.shift))
        self._last = model("bucket_last", self._columns(buckets.last))
        self._first = model("bucket_first", self._columns(buckets.offset))
        self._content = model("buckets", buckets.content)
        offset = self._columns(table.offset[:-1], np.int32)
        self._offset = model("bucket_offset", offset)
        spare = np.zeros(1, table.thresholds.dtype)
        thresholds = np.append(table.thresholds, spare)
        self._thresholds = model("bucket_thresholds", thresholds)
        self._ordered = table.ordered
        self._kinds = set(table.missing[self._ordered].tolist())
        self._some_tests = not bool(self._ordered.all())

    def _columns(self, values: Array, dtype: Any = None) -> Array:
        padded = np.zeros(len(self._vectors) * self.lanes, dtype or values.dtype)
        padded[: len(values)] = values
        return padded

    def encode(self, rows: BlockRows, count: Value, codes: Buffer, block: int) -> Value:
        """Fill ``codes``, and a copy ``block`` rows on; tell if values are missing."""
        n = self.lanes
        tests = None
        if self._some_tests:
            tests = GatheredBins(self._rules, self._table, self.lanes)
        count_ = len(self._vectors)
        together = min(max(1, LOCKSTEP // count_), block)
        at_once = next(k for k in (LOCKSTEP, 2, 1) if count_ % k == 0)
        if together > 1 or count_ < LOCKSTEP:
            at_once = count_
        # Rows past the end repeat the last one.
        last = rows.first + count - 1
        seen = [b.const(0)]
        with b.loop(0, count, together, carry=seen, hint="row") as r:
            starts, places, of_rows = [], [], []
            for u in range(together):
                number = rows.first + (r + u)
                number = number.min(last) if u else number
                starts.append(number * rows.stride)
                places.append((r + u) * self.codes.width)
                of_rows.append(self._row(rows, starts[-1]))

            def vectors(at: Value) -> None:
                columns = [at + k * n for k in range(at_once)]
                values = [(row(c), c) for row in of_rows for c in columns]
                whole = [to + c for to in places for c in columns]
                for (code, gone), here, (_, c) in zip(
                    self._search(values), whole, values, strict=True
                ):
                    seen[0] = seen[0] | b.mask_bits(gone, I64)
                    for copy in range(self.codes.copies):
                        value = b.select(gone, self._gone(c, copy), code)
                        to = here + copy * block * self.codes.width
                        codes[to] = value.to(U16)

            if not self._ordered.any():
                pass
            elif at_once == count_:
                vectors(b.const(0))
            else:
                end, step = count_ * n, at_once * n
                with b.loop(0, end, step, carry=seen, hint="column") as at:
                    vectors(at)
            if tests is not None:
                for start, to in zip(starts, places, strict=True):
                    for copy in range(self.codes.copies):
                        here = to + copy * block * self.codes.width
                        tests.write_tests(rows.rows, start, here, codes)
        return seen[0].ne(0)

    # ------------------------------------------------------------ one row

    def _row(self, rows: BlockRows, start: Value) -> Callable[[Value], Value]:
        n = self.lanes
        features = self._columns(self._table.feature, np.int64)
        registers = -(-rows.n_features // n)
        count = 1 << (registers - 1).bit_length()
        vec = Vec(rows.rows.element, n)
        if rows.n_features < n or count > ROW_REGISTERS:
            places = self._rules.model("bucket_feature", features)

            def gathered(at: Value) -> Value:
                index = places[at, Vec(I64, n)]
                return rows.rows[start + index]

            return gathered
        # The last register ends with the row, so that nothing past it is read.
        begins = [min(k * n, rows.n_features - n) for k in range(registers)]
        loaded = [rows.rows[start + k, vec] for k in begins]
        loaded += loaded[-1:] * (count - registers)
        last = (registers - 1) * n
        lane = np.where(features >= last, features - begins[-1] + last, features)
        if count == 1:
            lane = features
        kind = U32 if rows.rows.element.bytes == 4 else I64
        dtype = np.uint32 if kind == U32 else np.int64
        index = self._rules.model("bucket_lane", lane.astype(dtype))

        def picked(at: Value) -> Value:
            return b.permute(loaded, index[at, Vec(kind, n)])

        return picked

    def _search(self, raw: list[tuple[Value, Value]]) -> list[tuple[Value, Value]]:
        """Return the codes of vectors of columns, and which values are missing.

        All vectors advance one level at a time: a gather takes dozens of
        micro-operations, and consecutive searches would not overlap.
        """
        n = self.lanes
        ints = Vec(I32, n)
        begun = [self._begin(x, at) for x, at in raw]
        ranks = [b.const(0, ints)] * len(raw)
        for level in reversed(range(self._levels)):
            for k, (x, _, first, _, held) in enumerate(begun):
                more = ranks[k] + (1 << level)
                inside = more <= held
                at = first + more - 1
                none = b.const(float("nan"), x.type)
                op = lir.Gather(self._thresholds, at, inside, none)
                threshold = b.let(op, x.type, "gather")
                passed = self._rules.goes_right(x, threshold)
                ranks[k] = b.select(passed, more, ranks[k])
        return [
            (before + own, gone)
            for (_, gone, _, before, _), own in zip(begun, ranks, strict=True)
        ]

    def _begin(
        self, raw: Value, place: Value
    ) -> tuple[Value, Value, Value, Value, Value]:
        """Return a vector's values, which of them are missing, and their buckets.

        A bucket is the place of its first threshold, the number of thresholds before
        it, and the number in it.
        """
        n = self.lanes
        ints = Vec(I32, n)
        float_ = Vec(scalar_of(self._table.thresholds.dtype), n)
        is_kind = partial(self._is_kind, place)
        x = self._rules.compared(raw, self._kinds, is_kind)
        gone = self._rules.missing(raw, x, self._kinds, is_kind)
        y = x * self._scale[place, float_] + self._shift[place, float_]
        last = self._last[place, float_]
        content = self._content[
            clamped(y, last, nan_last=True).to(I32) + self._first[place, ints]
        ]
        before = (content & 0xFFFF).to(I32)
        held = (content >> 16).to(I32)
        return x, gone, self._offset[place, ints] + before, before, held

    def _is_kind(self, at: Value, kind: Missing) -> Value:
        of_kind = self._table.missing == kind
        if of_kind.all():
            return b.splat(b.const(True, lir.BOOL), self.lanes)
        flags = self._columns(of_kind).astype(np.int32)
        table = self._rules.model(f"bucket_{kind.name.lower()}", flags)
        return table[at, Vec(I32, self.lanes)].ne(0)

    def _gone(self, at: Value, copy: int) -> Value:
        ints, most = Vec(I32, self.lanes), self.codes.most
        if self.codes.copies == 2:
            return b.const(most if copy else 0, ints)
        right = np.zeros(self._table.n_columns, np.bool_)
        right[self._table.column_of[missing_right(self._rules.forest)]] = True
        if right.all() or not right.any():
            return b.const(most if right.any() else 0, ints)
        gone = self._columns(np.where(right, most, 0).astype(np.int32))
        return self._rules.model("bucket_gone", gone)[at, ints]
