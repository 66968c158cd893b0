"""Fills a GPU block's lines: one search a value, then marks, then thermometers.

Adjacent threads read adjacent features of a row. A row's code on a column is marked by
an atomic add to shared memory, since 32 rows share a word (each row adds its own bit,
so the sum is the union). After a barrier every line of a column takes the union with
the marks of the lines above: one logic operation for each line and 32 rows, regardless
of the number of comparisons this replaces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from skforge.compiler.binning.rules import NO_CATEGORY, ReadingRules
from skforge.compiler.forest.arrays import Missing
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I32, I64, U32, Buffer, Value, Vec
from skforge.gpu.layouts.base import BlockThreads
from skforge.gpu.layouts.bitsliced import plans
from skforge.gpu.layouts.bitsliced.plans import JOB, NONE, WORD, Records

#: Adjacent threads that read adjacent features: a memory sector.
FEATURES = 8
#: Rows whose searches a thread interleaves, so that the loads overlap.
TOGETHER = 4


class BitRows:
    def __init__(
        self,
        block: BlockThreads,
        plan: plans.TestPlan,
        rules: ReadingRules,
        geometry: plans.Geometry,
        lines: Buffer,
    ) -> None:
        self.block = block
        self._plan, self._rules = plan, rules
        self.geometry, self.lines = geometry, lines
        of_kinds = [plan.ordered, *plan.classes.values()]
        most = max(int(np.diff(c.start).max(initial=0)) for c in of_kinds)
        self._across = 1
        while self._across < min(FEATURES, most) and (
            geometry.threads % (2 * self._across) == 0
        ):
            self._across *= 2

    # ------------------------------------------------------------ regions

    def evaluate(self, tile: Value) -> None:
        with self.block.region() as thread:
            self._clear(thread)
        with self.block.region() as thread:
            if len(self._plan.ordered.records):
                self._columns("ordered", self._plan.ordered, tile, thread, self._order)
            for kind in plans.CLASS_KINDS:
                columns = self._plan.classes[kind]
                if len(columns.records):
                    body = self._class_of(kind)
                    self._columns(kind, columns, tile, thread, body)
        if len(self._plan.jobs.records):
            with self.block.region() as thread:
                self._take_up(tile, thread)

    def _clear(self, thread: Value) -> None:
        g = self.geometry
        end = -(-self._plan.n_lines * g.stride // 4)
        zero = b.const(0, Vec(U32, 4))
        with b.loop(thread.to(I32), end, g.threads) as i:
            self.lines[i * 4] = zero

    def _range(self, name: str, columns: Records, tile: Value) -> tuple[Value, Value]:
        starts = columns.start
        if len(starts) == 2:
            return b.const(0, I32), b.const(int(starts[1]), I32)
        buffer = self.block.model(f"{name}_start", starts)
        return buffer[tile], buffer[tile + 1]

    # ------------------------------------------------------------ marks

    def _columns(
        self,
        name: str,
        columns: Records,
        tile: Value,
        thread: Value,
        body: Callable[[tuple[Value, ...], list[_Row]], None],
    ) -> None:
        g = self.geometry
        across, at_once = self._across, g.threads // self._across
        number = thread.to(I32)
        low, high = self._range(name, columns, tile)
        first = low + (number & (across - 1))
        start = number >> across.bit_length() - 1
        records = self.block.model(f"{name}_columns", columns.records.reshape(-1))
        together = min(TOGETHER, g.rows // at_once)
        with b.loop(first, high, across, hint="column") as c:
            offset = c * plans.RECORD
            halves = [records[offset + k, Vec(I32, 4)] for k in (0, 4)]
            record = tuple(b.extract(half, i) for half in halves for i in range(4))
            feature = record[0].to(I64)
            with b.loop(start, g.rows, at_once * together, hint="row") as i:
                rows = [self._row(i + k * at_once, feature) for k in range(together)]
                body(record, rows)

    def _row(self, i: Value, feature: Value) -> _Row:
        rows, lanes = self.block.rows, self.geometry.lanes
        # Adjacent i are in different words, and so in different banks.
        lane, bit = i % lanes, i // lanes
        if lanes & (lanes - 1) == 0:
            lane = i & (lanes - 1)
            bit = i >> lanes.bit_length() - 1
        row = (rows.first + (lane * WORD + bit).to(I64)).min(rows.n_rows - 1)
        index = row * rows.stride + feature
        mark = b.const(1, U32) << bit.to(U32)
        return _Row(rows.rows[index], lane, mark)

    def _mark(self, line: Value, row: _Row) -> None:
        b.emit(lir.AtomicAdd(self.lines, line + row.lane, row.mark))

    def _order(self, record: tuple[Value, ...], rows: list[_Row]) -> None:
        _, first, levels, before, gone, kind, *_ = record
        values = [row.value for row in rows]
        missing: list[Value | None] = [None] * len(rows)
        if not self._plan.plain:
            kinds = self._plan.ordered.missing
            both = [self._missing(value, kind, kinds) for value in values]
            values, missing = [v for v, _ in both], [m for _, m in both]
        codes = self._search(values, first, levels, self._rules.passes)
        for row, code, is_gone in zip(rows, codes, missing, strict=True):
            if is_gone is not None:
                code = b.select(is_gone, gone, code)
            some = code > 0
            line = before + code * self.geometry.stride
            with b.when(some):
                self._mark(line, row)

    def _search(
        self, values: list[Value], first: Value, levels: Value, op: lir.CompareOp
    ) -> list[Value]:
        thresholds = self.block.model("bit_thresholds", self._plan.thresholds)
        before = first - 1
        top = b.const(1, I32) << levels - 1
        carried = [top, *[before] * len(values)]
        with b.loop(0, levels, carry=carried, hint="level"):
            for k, value in enumerate(values, 1):
                probe = carried[k] + carried[0]
                right = b.compare(op, value, thresholds[probe])
                carried[k] = b.select(right, probe, carried[k])
            carried[0] = carried[0] >> 1
        return [last - before for last in carried[1:]]

    def _missing(
        self, x: Value, kind: Value, kinds: frozenset[int]
    ) -> tuple[Value, Value | None]:
        nan, zero = b.is_nan(x), b.const(0.0, x.type)
        never: Value | None = None
        compared = x
        if kinds == {Missing.NEVER}:
            return b.select(nan, zero, x), None
        if Missing.NEVER in kinds:
            never = kind.eq(int(Missing.NEVER))
            compared = b.select(nan & never, zero, x)
            nan = nan & ~never
        if Missing.ZERO not in kinds:
            return compared, nan
        near = self._rules.is_tiny(x)
        if len(kinds) > 1:
            near = near & kind.eq(int(Missing.ZERO))
        return compared, nan | near

    # ------------------------------------------------------------ classes

    def _class_of(
        self, kind: plans.ClassKind
    ) -> Callable[[tuple[Value, ...], list[_Row]], None]:
        kinds = self._plan.classes[kind].missing
        words = self.block.model("class_words", self._plan.words)

        def body(record: tuple[Value, ...], rows: list[_Row]) -> None:
            _, first, n_words, line, rule, where, levels, _ = record
            for row in rows:
                x, gone = self._missing(row.value, rule, kinds)
                if kind == "equal":
                    number = self._equal(x, where, levels)
                else:
                    number = self._category(x, where, exact=kind == "member")
                if gone is not None:
                    number = b.select(gone, plans.GONE, number)
                self._mark_all(words, first + number * n_words, n_words, line, row)

        return body

    def _mark_all(
        self, words: Buffer, first: Value, n_words: Value, line: Value, row: _Row
    ) -> None:
        stride = self.geometry.stride
        with b.loop(n_words, hint="word") as w:
            left = [words[first + w]]
            base = line + w * (WORD * stride)
            with b.repeat(lambda: left[0].ne(0), left):
                self._mark(base + b.count_zeros(left[0]).to(I32) * stride, row)
                left[0] = left[0] & (left[0] - 1)

    def _equal(self, x: Value, where: Value, levels: Value) -> Value:
        (count,) = self._search([x], where, levels, "ge")
        last = (count - 1).max(0)
        thresholds = self.block.model("bit_thresholds", self._plan.thresholds)
        nearest = thresholds[where + last]
        same = (count > 0) & x.eq(nearest)
        return b.select(same, last + plans.FIRST_CATEGORY, NONE)

    def _category(self, x: Value, count: Value, exact: bool) -> Value:
        """Return the class of a category; values that are none are not converted."""
        code, known = self._rules.category(x, NO_CATEGORY, exact)
        code = code.to(I32)
        known = known & (code < count)
        return b.select(known, code + plans.FIRST_CATEGORY, NONE)

    # ------------------------------------------------------------ thermometers

    def _take_up(self, tile: Value, thread: Value) -> None:
        g, plan = self.geometry, self._plan
        lane, row = split_thread(thread.to(I32), g.lanes)
        low, high = self._range("job", plan.jobs, tile)
        jobs = self.block.model("jobs", plan.jobs.records.reshape(-1))
        has_masks = bool(plan.jobs.records[:, 2].any())

        first = low + row
        with b.loop(first, high, g.threads // g.lanes, hint="job") as j:
            record = jobs[j * JOB, Vec(I32, 4)]
            start, count, mixed, mask = (b.extract(record, i) for i in range(JOB))
            bottom = start + lane
            last = count - 1
            top = bottom + last * g.stride

            def run(masked: bool) -> None:
                gone = masks = end = None
                if masked:
                    gone = self.lines[top + g.stride]
                    masks = self.block.model("missing_masks", plan.masks)
                    end = mask + last
                carried = [top, b.const(0, U32)]
                with b.loop(0, count, carry=carried, hint="slot") as i:
                    line, above = carried
                    word = marked = self.lines[line] | above
                    if gone is not None and masks is not None and end is not None:
                        marked = word | gone & masks[end - i].to(U32)
                    self.lines[line] = marked
                    carried[:] = [line - g.stride, word]

            if has_masks:
                b.if_(mixed.ne(0), lambda: run(True), lambda: run(False))
            else:
                run(masked=False)


@dataclass(frozen=True, slots=True)
class _Row:
    value: Value
    lane: Value
    mark: Value  # the row's bit in its word


def split_thread(thread: Value, lanes: int) -> tuple[Value, Value]:
    """Return the word of each line that a thread handles, and its rank in that word."""
    if lanes & (lanes - 1) == 0:
        shift = lanes.bit_length() - 1
        return thread & (lanes - 1), thread >> shift
    return thread % lanes, thread // lanes
