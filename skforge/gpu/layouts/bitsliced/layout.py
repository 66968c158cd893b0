"""The bit-sliced representation on a GPU: its table is in shared memory.

A block evaluates ``rows`` rows, 32 to a word; word l of a line is called *lane* l. A
block of 1024 rows has 32 lanes, one for each thread of a warp, so that the threads of a
warp read adjacent words of the same line. ``threads / lanes`` trees are folded at once.
``plans.py`` plans the lines, which ``rows.py`` fills, and lays out the trees, which
``BitWalks`` folds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from skforge._typing import Int32s, Int64s
from skforge.compiler.binning.rules import ReadingRules
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I32, I64, U32, Buffer, Scalar, Value, Vec
from skforge.compiler.ir.lir.types import scalar_of
from skforge.compiler.layouts.bitsliced.sliced_layout import MAX_BITS, fold, folds
from skforge.exceptions import ScheduleError
from skforge.gpu.layouts import base as layouts
from skforge.gpu.layouts.bitsliced.plans import (
    QUAD,
    WORD,
    BitTrees,
    Geometry,
    TestPlan,
    lay_out_trees,
    plan_tests,
)
from skforge.gpu.layouts.bitsliced.rows import BitRows, split_thread

#: A group's leaf values are copied to shared memory if they take at most these bytes.
STAGED_BYTES = 32 << 10


def lay_out(
    hir: PredictEnsemble, shape: layouts.BlockShape, shared_bytes: int
) -> GpuBitslicedLayout:
    """Lay a forest out, with as many words a thread at once as pay off.

    Two words at once take 2.6 instructions a node and word instead of 4.5 (sm_90). They
    also double the trees that are folded at once, and the shapes of those must not
    differ within a warp. Raises ScheduleError if a block's table of predicates does not
    fit; nothing is laid out then.
    """
    forest, lanes = hir.forest, shape.rows // WORD
    most = max(map(len, _tables(forest, hir.tiles.tree_order, shape.trees)))
    if 4 * lanes * most > shared_bytes:
        raise ScheduleError(
            f"{WHAT} takes {4 * lanes * most:,} bytes of shared memory for {most:,} "
            f"predicates of {shape.rows} rows, but a block has {shared_bytes:,}. Use "
            "blocks of fewer rows, or tile the trees for smaller tables."
        )
    folded = folds(forest)
    alike = folded.all() and len(np.unique(forest.tree_depths())) == 1
    if alike and lanes % 2 == 0:
        layout = GpuBitslicedLayout(hir, shape, wide=2)
        if layout.shared_bytes() <= shared_bytes:
            return layout
    return GpuBitslicedLayout(hir, shape)


class GpuBitslicedLayout(layouts.GpuBlockLayout):
    def __init__(
        self, hir: PredictEnsemble, shape: layouts.BlockShape, wide: int = 1
    ) -> None:
        forest = self._forest = hir.forest
        self._hir, self._trees = hir, max(1, shape.trees)
        self.geometry = Geometry(shape.rows, shape.threads, wide)
        order = hir.tiles.tree_order
        key = ("bitsliced gpu", id(forest), id(order), shape, wide)
        self.tests, self.trees = hir.shared.once(key, self._laid_out)

    def _laid_out(self) -> tuple[TestPlan, BitTrees]:
        forest, order = self._forest, self._hir.tiles.tree_order
        tables = _tables(forest, order, self._trees)
        plan = plan_tests(forest, tables, self.geometry.stride)
        return plan, lay_out_trees(forest, order, self._trees, plan, self.geometry)

    @property
    def stages_leaves(self) -> bool:
        size = self.trees.most_leaves * self._forest.leaf_value.itemsize
        return self._forest.leaf_value.shape[1] == 1 and size <= STAGED_BYTES

    def shared_bytes(self) -> int:
        numbers = 4 * NUMBERS * self.geometry.group * self.geometry.lanes
        leaves = self.trees.most_leaves * self._forest.leaf_value.itemsize
        parts = (4 * self.trees.n_words, numbers, leaves * self.stages_leaves)
        return sum(-(-part // 16) * 16 for part in parts)

    # ------------------------------------------------------------ code

    def start(self, block: layouts.BlockThreads) -> layouts.GpuBlockCode:
        forest, g = self._forest, self.geometry
        lines = block.share("slots", U32, max(4, self.trees.n_words), WHAT)
        rules = ReadingRules(forest, self._hir.comparison, block.model)
        rows = BitRows(block, self.tests, rules, g, lines)
        return BitWalks(rows, self.trees, forest, self._trees, self.stages_leaves)


def _tables(forest: Forest, order: Int32s, trees: int) -> list[Int64s]:
    size, tables = max(1, trees), []
    of_tree = np.split(forest.predicate, forest.tree_offset[1:-1])
    for k in range(0, max(1, len(order)), size):
        parts = [of_tree[tree] for tree in order[k : k + size]]
        tested = np.unique(np.concatenate([*parts, np.zeros(0, np.int32)]))
        tables.append(tested[tested >= 0].astype(np.int64))
    return tables


def refusal_of(shape: layouts.BlockShape) -> str:
    lanes = shape.rows // WORD
    group = shape.threads // max(1, lanes)
    if shape.rows % WORD or shape.threads != lanes * group or WORD % group:
        return (
            f"packs {WORD} rows into a word, so a block must have a multiple of {WORD} "
            f"rows and each thread 1, 2, 4, 8, 16 or {WORD} of them; this schedule has "
            f"{shape.rows} rows for {shape.threads} threads."
        )
    return ""


#: Words of leaf numbers that a thread stores for 32 rows: word k has those of rows k, 8
#: + k, 16 + k and 24 + k.
NUMBERS = 8

#: Names the user of shared memory in errors.
WHAT = 'represent("bitsliced")'

_Maybe: TypeAlias = Value | None

#: (distance, bits that stay in the lower word) of each step of a bit transpose.
_TRANSPOSE = ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F))


@dataclass(frozen=True, slots=True)
class OwnRows:
    """The rows whose sums a thread keeps: words of leaf numbers, and bytes in them."""

    words: tuple[Value, ...]
    shift: Value | None  # of a word that several threads share
    n_bytes: int


class BitWalks(layouts.GpuBlockCode):
    """Emits a block's code for ``tile`` trees a table, which ``rows`` fills.

    A thread folds one tree of the group for a word of 32 rows, one logic operation a
    node, and stores the rows' leaf numbers in shared memory as bytes. After a barrier
    each thread adds the leaves of the group's trees for a few rows of its own, in model
    order; the sums stay in its registers.

    With ``staged``, leaf values are copied to shared memory.
    """

    def __init__(
        self, rows: BitRows, trees: BitTrees, forest: Forest, tile: int, staged: bool
    ) -> None:
        self._rows, self._tile = rows, tile
        self._block, self._g, self._lines = rows.block, rows.geometry, rows.lines
        self._t, self._forest = trees, forest
        self._sum: Scalar = scalar_of(forest.leaf_value.dtype)
        self._width = forest.leaf_value.shape[1]
        self._sums = b.alloc("row_sums", self._sum, self._n_rows, "private")
        size = self._g.group * NUMBERS * self._g.lanes
        self._numbers = self._block.share("leaf_numbers", U32, size, WHAT)
        self._leaves: Buffer | None = None
        if staged:
            n = trees.most_leaves
            self._leaves = self._block.share("group_leaves", self._sum, n, WHAT)
        self._start()

    @property
    def _n_rows(self) -> int:
        return self._g.rows // self._g.threads

    @property
    def _word(self) -> Scalar | Vec:
        """Type that a thread folds at once: one word of 32 rows, or several."""
        return U32 if self._g.wide == 1 else Vec(U32, self._g.wide)

    # ------------------------------------------------------------ rows of a thread

    def _own_rows(self, part: Value) -> OwnRows:
        n = self._n_rows
        if n >= 4:
            step = self._g.threads // self._g.lanes
            words = tuple(part + step * m for m in range(n // 4))
            return OwnRows(words, None, 4)
        return OwnRows((part & (NUMBERS - 1),), (part >> 3) * (8 * n), n)

    def _each_row(self, thread: Value) -> list[Value]:
        lane, part = split_thread(thread.to(I32), self._g.lanes)
        rows_of = self._own_rows(part)
        base = lane * WORD
        if rows_of.shift is not None:  # a byte is eight bits, a row eight rows on
            base = base + rows_of.shift
        batch_rows = []
        for word in rows_of.words:
            first = base + word
            for byte in range(rows_of.n_bytes):
                batch_rows.append(self._block.rows.first + (first + 8 * byte).to(I64))
        return batch_rows

    # ------------------------------------------------------------ sums

    def _start(self) -> None:
        forest = self._forest
        with self._block.region() as thread:
            if self._t.has_lists:
                self._constants(thread)
            first = float(forest.base[0]) if forest.n_outputs == 1 else 0.0
            for i in range(self._n_rows):
                self._sums[i] = first
            if forest.n_outputs > 1:
                self._write_base(thread)

    def _constants(self, thread: Value) -> None:
        lane, row = split_thread(thread.to(I32), self._g.lanes)

        with b.when(row.eq(0)):
            for k, bits in enumerate((0, 0xFFFFFFFF)):
                line = lane + (self._t.zero + k * self._g.stride)
                self._lines[line] = bits

    def _write_base(self, thread: Value) -> None:
        base = self._block.model("base", self._forest.base)
        rows = self._each_row(thread)
        with b.loop(self._forest.n_outputs, hint="output") as k:
            value = base[k]
            for row in rows:
                self._write(value, row, k)

    @contextmanager
    def _real(self, row: Value, output: Value | None) -> Iterator[Value]:
        with b.when(row < self._block.rows.n_rows):
            index = row * self._forest.n_outputs
            yield index if output is None else index + output

    def _write(self, value: Value, row: Value, output: Value | None) -> None:
        with self._real(row, output) as index:
            self._block.result[index] = value

    def finish(self) -> None:
        if self._forest.n_outputs > 1:
            return
        with self._block.region() as thread:
            for i, row in enumerate(self._each_row(thread)):
                self._write(self._sums[i], row, None)

    # ------------------------------------------------------------ trees

    def evaluate(self, first: Value) -> None:
        self._rows.evaluate(first // self._tile)

    def add_trees(self, first: Value) -> None:
        tile = first // self._tile
        groups = self._block.model("tree_groups", self._t.groups.reshape(-1))
        # Loaded instead of constant: a short loop of known length would be unrolled.
        starts = self._block.model("group_start", self._t.group_start)
        low, high = starts[tile], starts[tile + 1]
        with b.loop(low, high, hint="group") as g:
            record = groups[g * 4, Vec(I32, 4)]
            first, count, leaf, n_leaves = (b.extract(record, i) for i in range(4))
            with self._block.region() as thread:
                number = thread.to(I32)
                self._stage(number, leaf, n_leaves)
                lane, row = split_thread(number, self._g.lanes // self._g.wide)
                with b.when(row < count):
                    self._fold_one(first + row, lane, row)
            with self._block.region() as thread:
                self._add(thread, g, first, count, leaf)

    def _values(self) -> Buffer:
        values = self._forest.leaf_value[self._t.leaf_row].reshape(-1)
        return self._block.model("code_values", values)

    def _stage(self, thread: Value, first: Value, count: Value) -> None:
        if self._leaves is None:
            return
        values = self._values()
        with b.loop(thread, count, self._g.threads, hint="leaf") as i:
            self._leaves[i] = values[first + i]

    def _fold_one(self, tree: Value, lane: Value, row: Value) -> None:
        table = self._block.model("bit_trees", self._t.trees.reshape(-1))
        record = table[tree * 4, Vec(I32, 4)]
        shape, quad, op, end = (b.extract(record, i) for i in range(4))
        lines = quad * QUAD
        lane = lane * self._g.wide

        def case(kind: str, bits: int) -> None:
            if kind == "fold":
                planes = self._fold(bits, lines, lane)
            else:
                planes = self._run(lines, op, end, lane)
            self._leave(planes, row, lane)

        b.choose(lambda: shape, [partial(case, *shape_) for shape_ in self._t.shapes])

    def _fold(self, depth: int, lines: Value, lane: Value) -> list[Value]:
        of_lines = self._block.model("bit_lines", self._t.lines)
        quads: dict[int, Value] = {}

        def line(node: int) -> Value:
            heap = node + 1
            if heap // QUAD not in quads:
                index = lines + heap // QUAD * QUAD
                quads[heap // QUAD] = of_lines[index, Vec(I32, QUAD)]
            number = b.extract(quads[heap // QUAD], heap % QUAD) * self._g.wide
            return self._lines[number + lane, self._word]

        return fold(depth, line, _mux)

    def _run(self, lines: Value, op: Value, end: Value, lane: Value) -> list[Value]:
        ops = self._block.model("bit_ops", self._t.ops.reshape(-1))
        of_lines = self._block.model("bit_lines", self._t.lines)

        def line(number: Value) -> Value:
            return self._lines[number + lane]

        with b.loop(op, end, hint="op") as i:
            record = ops[i * 4, Vec(I32, 4)]
            target, *read = (b.extract(record, k) for k in range(4))
            value = _mux(*map(line, read))
            self._lines[target + lane] = value
        planes = []
        for first in range(0, MAX_BITS, QUAD):
            quad = of_lines[lines + first, Vec(I32, QUAD)]
            planes += [line(b.extract(quad, k)) for k in range(QUAD)]
        return planes

    def _leave(self, planes: list[Value], row: Value, lane: Value) -> None:
        lanes = self._g.lanes
        words: list[Value | None] = [None] * NUMBERS
        words[: len(planes)] = planes[::-1]
        for distance, low in _TRANSPOSE:
            for i in range(NUMBERS):
                if not i & distance:
                    j = i + distance
                    words[i], words[j] = _exchange(words[i], words[j], distance, low)
        first = row * (NUMBERS * lanes) + lane
        for k, word in enumerate(words):
            value = b.const(0, self._word) if word is None else word
            self._numbers[first + k * lanes] = value

    # ------------------------------------------------------------ leaves

    def _add(
        self, thread: Value, group: Value, first: Value, count: Value, leaf: Value
    ) -> None:
        lane, part = split_thread(thread.to(I32), self._g.lanes)
        rows_of = self._own_rows(part)

        def add(output: Value | None) -> None:
            starts = self._block.model("leaf_start", self._t.leaf_start)
            values = self._leaves if self._leaves is not None else self._values()
            indices = [b.const(i) for i in range(self._n_rows)]
            sums = [self._sums[index] for index in indices]
            with b.loop(0, count, carry=sums, hint="tree") as g:
                base = starts[first + g]
                if self._leaves is None:
                    base = base + leaf
                if output is not None:
                    base = base + output
                row = 0
                for word in rows_of.words:
                    index = (g * NUMBERS + word) * self._g.lanes + lane
                    numbers = self._numbers[index]
                    if rows_of.shift is not None:
                        numbers = numbers >> rows_of.shift.to(U32)
                    for byte in range(rows_of.n_bytes):
                        code = numbers >> 8 * byte if byte else numbers
                        code = (code & 0xFF).to(I32) * self._width
                        value = values[base + code]
                        sums[row] = sums[row] + value
                        row += 1
            for index, total in zip(indices, sums, strict=True):
                self._sums[index] = total

        if self._forest.n_outputs == 1:
            add(None)
            return
        rows = self._each_row(thread)

        def add_to(k: Value, output: Value | None) -> None:
            for i, row in enumerate(rows):
                with self._real(row, k) as index:
                    b.store(self._sums, b.const(i), self._block.result[index])
            add(output)
            for i, row in enumerate(rows):
                self._write(self._sums[i], row, k)

        if self._width == 1:
            outputs = self._block.model("group_outputs", self._t.outputs)
            add_to(outputs[group].to(I64), None)
            return
        with b.loop(self._width, hint="output") as k:
            add_to(k, k.to(I32))


def _mux(select: Value, a: Value, other: Value) -> Value:
    # Exclusive ors would be shorter here, but compilers then fail to use the one
    # instruction that this becomes (402 against 277 for a tree of depth 8).
    unselected = ~select & other
    return select & a | unselected


def _exchange(
    low: Value | None, high: Value | None, distance: int, stays: int
) -> tuple[Value | None, Value | None]:
    """Swap the upper bits of a word with the lower bits of another; None is zero."""
    goes = stays ^ 0xFFFFFFFF

    def part(word: Value | None, mask: int, moved: Value | None, to: int) -> _Maybe:
        stay = None if word is None else word & mask
        if moved is None:
            return stay
        more = moved & to
        return more if stay is None else stay | more

    up = None if high is None else high << distance
    down = None if low is None else low >> distance
    return part(low, stays, up, goes), part(high, goes, down, stays)


layouts.GPU_BLOCKS["bitsliced"] = layouts.GpuBlockRepresentation(refusal_of, lay_out)
