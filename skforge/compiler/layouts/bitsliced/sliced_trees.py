"""Emits trees as bit logic over lines of predicates, one block of rows at a time.

For each tree, of depth d::

    plane[l] = the line of the node that each row reaches on level l, chosen level by
               level by the planes above: one three-input operation a node, and none in
               an even tree, whose levels have one line each
    leaf     = the number whose bits are the planes, as bytes or pairs of bytes
    sum     += value[leaf]

Leaf values are looked up in registers where that is faster, one byte of the value at a
time (``sliced_layout.looks_up``); otherwise they are loaded one by one, after the
numbers of a block are stored. Either way sums stay in tree order. The byte look-up
returns each 64 rows in another order, the same for every tree, which the last step
undoes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Int32s, Int64s
from skforge.compiler.binning.rules import BlockRows, ReadingRules
from skforge.compiler.binning.transpose import transpose, unpacked
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I64, U8, U16, Buffer, Plane, Value, Vec
from skforge.compiler.ir.lir.types import scalar_of
from skforge.compiler.layouts.base import BlockCode
from skforge.compiler.layouts.bitsliced import sliced_layout
from skforge.compiler.layouts.bitsliced.sliced_layout import Shape

_WIDER = {U8: U16, U16: lir.U32, lir.U32: I64}

#: Rows and outputs whose leaf values are loaded together without byte permutes: two
#: squares, which are transposed.
LOADED_ROWS, LOADED_OUTPUTS = 8, 4

#: Sums written at once when a block starts; divides a group of rows.
LANES = 8

#: Rows whose leaf numbers fill one look-up.
GROUP = 64

#: Outputs of a vector leaf added in one loop turn if there are more than twice as many,
#: so that the code does not grow with them; a multiple of LOADED_OUTPUTS.
OUTPUTS_A_TURN = 8

#: Parts of a block folded together if planes are shorter than blocks.
PARTS_TOGETHER = 2


class BitslicedLowering(BlockCode):
    #: Evaluates the predicates of a tile of trees.
    evaluate: Callable[[Value], None]

    def __init__(
        self,
        rules: ReadingRules,
        trees: sliced_layout.SlicedTrees,
        order: Int32s,
        shape: sliced_layout.BlockOfBits,
    ) -> None:
        forest, model = rules.forest, rules.model
        self.t, self.forest, self.block = trees, forest, shape.rows
        self._model = model
        self.plane_rows, self.byte_lookup = shape.plane_rows, shape.byte_lookup
        #: Entries of the smallest table of bytes that is looked up in.
        self.table = shape.table
        # 64 rows fit general registers, but instructions of vectors need no copy of
        # what they change. Folded trees in vectors take .69 to .86 of the time (Zen 4)
        # or .86 to 1 (AVX2, Zen 3), forests of lists .87 to 1.13.
        folded = np.array([kind == "fold" for kind, _ in trees.shapes])[trees.shape_of]
        mostly = bool(folded.mean() > 0.5)
        self.in_vectors = mostly and shape.in_vectors
        self.sum: lir.Scalar = scalar_of(forest.leaf_value.dtype)
        self.width = forest.leaf_value.shape[1]
        self.shape_of = model("tree_shape", trees.shape_of)
        self.line_offset = model("line_offset", trees.line_offset)
        # Short numbers if they fit: every block reads these tables entirely.
        most = 1 << 16
        number = np.uint16 if trees.n_lines <= most else np.int32
        # Numbers of words are addresses as they are; numbers of lines need a shift.
        words = self.block // 64
        self.unit = words if trees.n_lines * words <= most else 1
        lines, ops = (self.unit * n for n in (trees.lines, trees.ops.reshape(-1)))
        self.lines_of = model("tree_lines", lines.astype(number))
        self.op_offset = model("op_offset", trees.op_offset)
        self.ops = model("tree_ops", ops.astype(number))
        self.leaf_offset = model("leaf_offset", self._value_offsets())
        tables, remaps = self._tables()
        self.values = model("leaf_tables", tables)
        self.remaps, self.remap_offset = None, None
        if len(remaps) and not self.byte_lookup:
            self.remaps = model("leaf_remaps", remaps)
            sizes = np.array([self._remap(shape) for shape in trees.shapes], np.int32)
            ends = np.cumsum(sizes[trees.shape_of])
            offsets = (ends - sizes[trees.shape_of]).astype(np.int32)
            self.remap_offset = model("remap_offset", offsets)
        self.output = model("tree_outputs", forest.tree_output[order])

    # ------------------------------------------------------------ stored layout

    def _entries(self, shape: Shape) -> int:
        kind, bits = shape
        most = 1 << (bits if kind == "even" else min(bits, sliced_layout.MAX_BITS))
        return max(self.table, most) if self.byte_lookup else most

    def _remap(self, shape: Shape) -> int:
        """Return how many codes a table maps to leaves' numbers; 0: there is none."""
        kind, bits = shape
        return 1 << bits if kind == "list" and bits > sliced_layout.MAX_BITS else 0

    def _value_sizes(self) -> Int64s:
        shapes = self.t.shapes
        sizes = self.width * np.array([self._entries(s) for s in shapes], np.int64)
        if self.byte_lookup:
            remaps = [self._remap(shape) for shape in shapes]
            sizes = sizes * self.sum.bytes + np.array(remaps, np.int64)
        of_trees: Int64s = sizes[self.t.shape_of]
        return of_trees

    def _value_offsets(self) -> Int64s:
        sizes = self._value_sizes()
        return np.cumsum(sizes) - sizes  # may pass 2**31: vector leaves of many outputs

    def _tables(self) -> tuple[Array, NDArray[np.uint8]]:
        """Return the leaf values of all trees, and the leaves' numbers of long codes.

        Values in bytes follow the numbers of their tree.
        """
        leaf, offsets = self.forest.leaf_value, self._value_offsets()
        dtype = np.dtype(np.uint8) if self.byte_lookup else leaf.dtype
        tables = np.empty(int(self._value_sizes().sum()), dtype)
        # Tables of bytes fill whole registers, which are stored at once.
        unit = self.table if self.byte_lookup else 1
        units, remaps = tables.reshape(-1, unit), np.zeros(0, np.uint8)
        for number, shape in enumerate(self.t.shapes):  # all trees of one at once
            trees = np.flatnonzero(self.t.shape_of == number)
            codes = self.t.leaf_offset[trees][:, None] + np.arange(1 << shape[1])
            rows = self.t.leaf_row[codes]
            remap = np.zeros((len(trees), 0), np.uint8)
            if self._remap(shape):
                rows, remap = _numbered(rows, self._entries(shape))
                remaps = remap.reshape(-1)
            values: Array = leaf[rows]
            if self.byte_lookup:
                values = values.transpose(0, 2, 1)
                values = values.reshape(len(trees) * self.width, rows.shape[1])
                values = sliced_layout.byte_planes(values, self._entries(shape))
                values = np.concatenate([remap, values.reshape(len(trees), -1)], axis=1)
            values = values.reshape(len(trees), -1, unit)
            units[offsets[trees][:, None] // unit + np.arange(values.shape[1])] = values
        return tables, remaps

    def _row_order(self) -> Int64s:
        """Return where row i of a group of 64 is in the sums."""
        if not self.byte_lookup:
            return np.arange(GROUP)
        rows = np.arange(GROUP)
        pieces = [rows]  # each piece: the row of each lane
        while len(pieces) < self.sum.bytes:
            halves = _halves(len(pieces[0]))
            pieces = [piece[half[::2]] for piece in pieces for half in halves]
        where = np.empty(GROUP, np.int64)
        where[np.concatenate(pieces)] = np.arange(GROUP)
        return where

    # ------------------------------------------------------------ code

    def scratch(self, rows: BlockRows) -> Buffer:
        line = self.block // 8
        self.planes = b.alloc("leaf_planes", U8, sliced_layout.MAX_CODE_BITS * line)
        long = self.t.bits.max(initial=0) > sliced_layout.MAX_BITS
        element = U16 if long and not self.byte_lookup else U8
        size = GROUP if self.byte_lookup else self.block
        self.numbers = b.alloc("leaf_numbers", element, size)
        # One more, since the last may be loaded with the bytes behind it.
        self.lines = b.alloc("lines", U8, (self.t.n_lines + 1) * line)
        self.words = b.view("line_words", I64, self.lines)
        if any(kind == "list" for kind, _ in self.t.shapes):
            self._constants()
        left = (rows.n_rows - rows.first).min(self.block)
        self.loaded = (left + (LOADED_ROWS - 1)) & -LOADED_ROWS
        self.groups = b.const(1)
        if self.block > GROUP:
            self.groups = (left + (GROUP - 1)) // GROUP
        return self.lines

    def start(self, sums: Buffer) -> None:
        base = self._model("base", self.forest.base)
        with b.loop(self.forest.n_outputs) as k:
            value = b.splat(base[k], LANES)
            first = k * self.block
            with b.loop(0, self.block, LANES, hint="row") as i:
                sums[first + i] = value

    def finish(self, sums: Buffer, result: Buffer, first: Value, count: Value) -> None:
        """Write the sums of ``count`` rows, undoing the row order of the look-up."""
        outputs = self.forest.n_outputs
        places = self._row_order().tolist()
        order = self._model("row_order", np.asarray(places, np.int32))
        whole = count // GROUP * GROUP

        def at(row: Value, k: Value) -> Value:
            return (first + row) * outputs + k

        with b.loop(outputs, hint="output") as k:
            of_output = k * self.block
            with b.loop(0, whole, GROUP, hint="group") as row:
                # The order is constant, so whole groups are plain moves.
                here, to = of_output + row, at(row, k)
                for i, lane in enumerate(places):
                    result[to + i * outputs] = sums[here + lane]
            with b.loop(whole, count, hint="row") as row:
                place = order[row & (GROUP - 1)]
                here = (row & -GROUP) + place.to(I64)
                b.store(result, at(row, k), sums[of_output + here])

    def take_trees(self, first: Value) -> None:
        assert self.t.tile is not None
        self.evaluate(first // self.t.tile)

    def add_tree(self, tree: Value, sums: Buffer) -> None:

        def table(buffer: Buffer) -> Value:
            return buffer[tree].to(I64)

        lines, leaves = table(self.line_offset), table(self.leaf_offset)
        output: Value = b.const(0)
        if self.width == 1 and self.forest.n_outputs > 1:
            output = table(self.output) * self.block

        def case(shape: Shape) -> None:
            kind, bits = shape
            remap = None
            if self.remap_offset is not None and self._remap(shape):
                remap = table(self.remap_offset)
            if kind == "even":
                numbers = [self.lines_of[lines + k].to(I64) for k in range(bits)]
                places = [n * (self.block // GROUP // self.unit) for n in numbers]
                self._look_up(shape, leaves, output, sums, self.lines, places)
                return
            if kind == "fold":
                self._fold(bits, lines)
            else:
                self._run(bits, tree, lines)
            levels = [b.const(k * (self.block // GROUP)) for k in range(bits)]
            self._look_up(shape, leaves, output, sums, self.planes, levels, remap)

        cases = [partial(case, shape) for shape in self.t.shapes]
        b.choose(lambda: table(self.shape_of), cases)

    def _run(self, bits: int, tree: Value, own: Value) -> None:
        parts = self.block // self.plane_rows
        first = self.op_offset[tree].to(I64)
        last = self.op_offset[tree + 1].to(I64)
        plane = Plane(self.plane_rows)
        # LLVM may spill the address of the lines and load it again for each operand
        # (Zen 3, 64 rows of 255 leaves take 1.4 times as long then). It keeps one that
        # is made here in a register; it cannot know that the first offset is 0.
        zero = self.op_offset[0].to(I64)
        lines = b.view("own_lines", U8, self.lines, zero)
        words = b.view("own_words", I64, self.words, zero)

        with b.turns(parts, 1, "part") as part:

            def line(buffer: Buffer, at: Value) -> Value:
                read_from = lines if self.unit == 1 else words
                (read,) = self._line(buffer[at], part, plane, 1, read_from)
                return read

            to = (self.t.constants[1] + 1 - first) * parts + part
            with b.loop(first, last, sliced_layout.OPS_A_TURN, hint="op") as op:
                for i in range(sliced_layout.OPS_A_TURN):
                    at = op * 3 + 3 * i
                    select, one, two = (line(self.ops, at + k) for k in range(3))
                    lines[(op + i) * parts + to] = b.select(select, one, two)
            for k in range(bits):
                index: Value = b.const(k * parts)
                if parts > 1:
                    index = index + part
                self.planes[index] = line(self.lines_of, own + k)

    def _line(
        self,
        number: Value,
        first: Value,
        plane: Plane,
        count: int,
        lines: Buffer | None = None,
    ) -> list[Value]:
        """Return parts of a line from the first on, by its number in memory."""
        index, parts = number.to(I64), self.block // self.plane_rows
        words = self.plane_rows // 64
        if self.unit == 1:
            index, words = index * parts, 1
        if parts > 1:
            index = index + first * words
        if lines is None:
            lines = self.lines if self.unit == 1 else self.words
        return [lines[index + k * words, plane] for k in range(count)]

    def _constants(self) -> None:
        words = self.block // 64
        lanes = min(words, self.plane_rows // 64)
        for number, bits in zip(self.t.constants, (0, -1), strict=True):
            value = b.const(bits, Vec(I64, lanes))
            for word in range(0, words, lanes):
                self.lines[8 * (number * words + word)] = value

    def _fold(self, depth: int, nodes: Value) -> None:
        parts = self.block // self.plane_rows
        # Parts folded together share the loads of their line numbers.
        together = min(parts, PARTS_TOGETHER)

        plane = Plane(self.plane_rows, vector=self.in_vectors)

        def line(node: int, first: Value) -> list[Value]:
            return self._line(self.lines_of[nodes + node], first, plane, together)

        def mux(*values: list[Value]) -> list[Value]:
            return list(map(b.select, *values))

        with b.turns(parts, together, "part") as first:
            planes = sliced_layout.fold(depth, lambda node: line(node, first), mux)
            for level, values in enumerate(planes):
                index = b.const(level * parts)
                if parts > 1:
                    index = index + first
                for k, value in enumerate(values):
                    self.planes[index + k] = value

    def _look_up(
        self,
        shape: Shape,
        leaves: Value,
        output: Value,
        sums: Buffer,
        planes: Buffer,
        levels: Sequence[Value],
        remap: Value | None = None,
    ) -> None:
        """Add the leaves whose numbers' bits are the planes that begin with words."""
        alone = self.byte_lookup and self.width == 1
        table = self._registers(shape, leaves, 0) if alone else None
        with b.loop(self.groups, hint="group") as g:
            places = (level + g for level in levels)
            of_rows = tuple(planes[at, Plane(GROUP)] for at in places)
            if not self.byte_lookup:
                self._store_numbers(of_rows, g * GROUP)
            else:
                index = self._leaf_number(of_rows, leaves, self._remap(shape))
                first = output + g * GROUP
                for k in self._each_output():
                    registers = table or self._registers(shape, leaves, k)
                    self._add_bytes(registers, index, first + k * self.block, sums)
        if not self.byte_lookup:
            self._add_loads(leaves, output, sums, remap)

    def _store_numbers(self, planes: tuple[Value, ...], first: Value) -> None:
        vec, most = Vec(U8, GROUP), sliced_layout.MAX_BITS
        split = max(0, len(planes) - most)
        low, high = (
            b.numbers_of(part, "leaf") if part else b.const(0, vec)
            for part in (planes[split:], planes[:split])
        )
        if self.numbers.element == U8:
            self.numbers[first] = low
            return
        half = GROUP // 2
        for at in (0, half):
            lanes = [k + byte for k in range(at, at + half) for byte in (0, GROUP)]
            number = b.reinterpret(b.shuffle(low, high, lanes), Vec(U16, half))
            self.numbers[first + at] = number

    def _each_output(self) -> Iterator[int | Value]:
        looped = 0
        if self.width > 2 * OUTPUTS_A_TURN:
            looped = self.width // OUTPUTS_A_TURN * OUTPUTS_A_TURN
            with b.loop(0, looped, OUTPUTS_A_TURN, hint="output") as first:
                yield from (first + k for k in range(OUTPUTS_A_TURN))
        yield from range(looped, self.width)

    def _leaf_number(
        self, planes: tuple[Value, ...], leaves: Value, remap: int
    ) -> Value:
        vec = Vec(U8, GROUP)
        if not planes:
            return b.const(0, vec)
        index = b.numbers_of(planes[-sliced_layout.MAX_BITS :], "leaf")
        if not remap:
            return index
        registers = [self.values[leaves + at, vec] for at in range(0, remap, GROUP)]
        half = len(registers) // 2
        low = b.permute(registers[:half], index)
        high = b.permute(registers[half:], index)
        top = b.numbers_of(planes[:1], "top")
        return b.select(top.ne(0), high, low)

    # ------------------------------------------------------------ look-ups

    def _registers(
        self, shape: Shape, leaves: Value, k: int | Value
    ) -> list[list[Value]]:
        entries = self._entries(shape)
        table = leaves + k * (self.sum.bytes * entries)
        first, size = self._remap(shape), min(entries, GROUP)
        return [
            [
                self.values[table + (first + byte * entries + at), Vec(U8, size)]
                for at in range(0, entries, size)
            ]
            for byte in range(self.sum.bytes)
        ]

    def _add_bytes(
        self, tables: list[list[Value]], index: Value, first: Value, sums: Buffer
    ) -> None:
        # Each step joins pairs of adjacent bytes (then halves, words) and splits the
        # rows into a low and a high part.
        parts = [[b.permute(registers, index, within=True) for registers in tables]]
        unit = U8
        while len(parts[0]) > 1:
            lanes = GROUP // unit.bytes
            wider = Vec(_WIDER[unit], lanes // 2)
            parts = [
                [
                    b.reinterpret(b.shuffle(x, y, half), wider)
                    for x, y in zip(pieces[0::2], pieces[1::2], strict=True)
                ]
                for pieces in parts
                for half in _halves(lanes)
            ]
            unit = wider.element
        vec = Vec(self.sum, GROUP // self.sum.bytes)
        for n, (piece,) in enumerate(parts):
            at = first + n * vec.lanes
            value = b.reinterpret(piece, vec)
            sums[at] = sums[at, vec] + value

    def _add_loads(
        self, leaves: Value, first: Value, sums: Buffer, remap: Value | None
    ) -> None:
        """Load the leaf values of single rows, and add them eight rows at a time.

        100 trees of 10 levels (Zen 4) take 0.057 us a row, and 0.069 where the 64 rows
        of a group are loaded as soon as they are numbered, 0.078 by gathers, and 0.087
        if the numbers are prefetched, which helps only from 16 levels on. Four outputs
        are loaded at once (4 to 10 classes, float64, Zen 3: .81 to .96 of the time).
        """
        values = b.view("own_leaves", self.values.element, self.values, leaves)
        if remap is not None:
            assert self.remaps is not None
            number_of = b.view("own_numbers", U8, self.remaps, remap)
        with b.loop(0, self.loaded, LOADED_ROWS, hint="row") as r:
            numbers = self._numbers(r)
            if remap is not None:
                numbers = [number_of[number].to(I64) for number in numbers]
            places = [number * self.width for number in numbers]
            outputs, n = self._each_output(), LOADED_OUTPUTS
            while some := [*islice(outputs, n)]:
                if len(some) == n:
                    loaded = [values[at + some[0], Vec(self.sum, n)] for at in places]
                    squares = (loaded[:n], loaded[n:])
                    turned = [transpose(rows, self.sum.bytes) for rows in squares]
                    parts = [*zip(*turned, strict=True)]
                else:
                    parts = [(b.pack([values[at + k] for at in places]),) for k in some]
                for k, of_rows in zip(some, parts, strict=True):
                    to = first + (r + k * self.block)
                    for added in of_rows:
                        sums[to] = sums[to, added.type] + added
                        to = to + added.type.lanes

    def _numbers(self, r: Value) -> list[Value]:
        """Return the leaf numbers of eight rows, from words.

        The loads of values wait for those of single numbers (Zen 3, four forests: .8 to
        .9 of the time; from words of 64 bits .9 to 1).
        """
        element = self.numbers.element
        bits, most = 8 * element.bytes, (1 << 8 * element.bytes) - 1
        words = b.view("number_words", lir.U32, self.numbers, r)
        of_rows = [words[i] for i in range(LOADED_ROWS * bits // 32)]
        shifts = range(0, 32, bits)
        return [(w >> shift & most).to(I64) for w in of_rows for shift in shifts]


def _numbered(rows: Int32s, entries: int) -> tuple[Int32s, NDArray[np.uint8]]:
    """Return a tree's distinct leaves (at most ``entries``) and each code's number.

    ``rows`` has the leaf of each code, one tree a row.
    """
    order = np.argsort(rows, axis=1)
    sorted_ = np.take_along_axis(rows, order, axis=1)
    rank = np.zeros(rows.shape, np.uint8)
    np.cumsum(sorted_[:, 1:] != sorted_[:, :-1], axis=1, out=rank[:, 1:])
    leaves = np.zeros((len(rows), entries), np.int32)
    np.put_along_axis(leaves, rank.astype(np.int64), sorted_, axis=1)
    numbers = np.empty(rows.shape, np.uint8)
    np.put_along_axis(numbers, order, rank, axis=1)
    return leaves, numbers


def _halves(lanes: int) -> list[list[int]]:
    return [unpacked(lanes, lanes // 4, 1, high) for high in (False, True)]
