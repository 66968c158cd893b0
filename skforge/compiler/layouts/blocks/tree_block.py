"""Code for one block of rows that walks of contributions share.

It evaluates the predicates, sets a bit for each edge of a tree and row, and writes the
sums with the bias. A walk goes ``_down`` from a node to its children, where a ``_leaf``
has its value, and comes ``_up`` with what both sides sum to, to give the node's
feature its share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Float64s, Int64s
from skforge.compiler.binning.rules import BlockRows, ReadingRules, set_numbers
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import b, with_lanes
from skforge.compiler.ir.lir.nodes import I64, U8, U16, Buffer, Scalar, Value, Vec
from skforge.compiler.layouts.base import BlockCode
from skforge.compiler.layouts.blocks.paths import Paths
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.bins import TestColumns
from skforge.forest.forest import Forest

#: The words that hold a bit for each row of a block.
WORDS: dict[int, Scalar | Vec] = {
    **{1: U8, 8: U8, 16: U16, 32: lir.U32, 64: I64},
    **{128: Vec(I64, 2), 256: Vec(I64, 4), 512: Vec(I64, 8)},
}

#: Bytes of a vector: always 512 bits, which narrower machines split.
VECTOR = 64


@dataclass(frozen=True, slots=True, eq=False)
class FeatureTests:
    """The predicates of a normalised forest, by feature and kind of test."""

    kinds: tuple[tuple[Comparison, Missing, bool], ...]
    of_line: Int64s  # (2, n_lines): feature and kind
    jobs: Int64s  # (n_jobs, 4): feature, kind, first line, last line + 1
    line_of: Int64s  # (n_predicates,)
    numbers: NDArray[np.floating]  # of each line: threshold, or the number of its set

    @classmethod
    def of(cls, forest: Forest) -> FeatureTests:
        number = forest.comparison.astype(int) * 8 + forest.missing * 2
        kinds, kind = np.unique(number + forest.missing_left, return_inverse=True)
        kind = kind.reshape(-1)
        every = np.arange(forest.n_predicates)
        columns = TestColumns.of(every, forest.threshold, forest.feature, kind)
        order, first, last = columns.tests, columns.offset[:-1], columns.offset[1:]
        keys = np.stack([forest.feature, kind])[:, order]
        jobs = np.stack([*keys[:, first], first, last], axis=1)
        numbers = np.where(
            forest.comparison >= Comparison.IN, set_numbers(forest), forest.threshold
        ).astype(forest.threshold.dtype)
        rules = [(k // 8, k // 2 % 4, bool(k % 2)) for k in kinds.tolist()]
        named = tuple((Comparison(op), Missing(gone), left) for op, gone, left in rules)
        return cls(named, keys, jobs, np.argsort(order), numbers[order])


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """What every walk knows of a forest's trees.

    Edges are counted by tree: 2 i + 1 is the left edge of its i-th inner node, 2 i + 2
    the right one. ``before`` is the edge that tested a node's feature before, or 0.
    """

    forest: Forest
    tests: FeatureTests
    start: Int64s  # (n_trees + 1,) into the inner nodes
    line: Int64s  # of each inner node's predicate
    before: Int64s
    bias: Float64s

    @classmethod
    def of(cls, forest: Forest, paths: Paths, node: Int64s, bias: Float64s) -> Trees:
        tests = FeatureTests.of(forest)
        return cls(
            forest=forest,
            tests=tests,
            start=np.searchsorted(paths.tree[node], np.arange(forest.n_trees + 1)),
            line=tests.line_of[forest.predicate[node]],
            before=paths.edges(node, paths.before[node]),
            bias=bias,
        )

    @property
    def order(self) -> Int64s:
        """The trees in the order of the walk: those of an output together."""
        return np.argsort(self.forest.tree_output, kind="stable")

    @property
    def written(self) -> Int64s:
        """The output to write after the tree at a position, or -1."""
        output = self.forest.tree_output[self.order].astype(np.int64)
        ends = np.append(output[1:] != output[:-1], True)[: len(output)]
        return np.where(ends, output, -1)

    @property
    def unused(self) -> Int64s:
        return np.setdiff1d(np.arange(self.forest.n_outputs), self.forest.tree_output)


class TreeBlock(BlockCode):
    """Emits the code for one block of rows, except what a tree adds.

    ``element`` is the type of the numbers in a vector, one for each row.
    """

    #: Where scratch lies.
    space: lir.Space = "global"
    #: Tests of one row that are evaluated together.
    tests_at_once = 1

    def __init__(
        self,
        rules: ReadingRules,
        trees: Trees,
        rows: BlockRows,
        block: int,
        element: Scalar,
        together: int = 1,
    ) -> None:
        self._t, self._rows, self.block = trees, rows, block
        self._rules, self._model = rules, rules.model
        self.scalar = element
        self.lanes = lanes = min(block, VECTOR // element.bytes)
        self.vec: lir.Type = Vec(element, lanes) if lanes > 1 else element
        self._word = WORDS[block]
        self.line = max(1, block // 8)  # bytes of a bit for each row
        self._bits = U16 if lanes == 16 else U8
        #: Rows of the block that the batch has.
        self._count = b.const(1)
        if block > 1:
            self._count = (rows.n_rows - rows.first).min(block)
        #: Vectors of rows that are walked together.
        self.together = min(together, block // lanes)
        some = lanes * self.together
        self._n_vectors = (self._count + (some - 1)) // some * self.together
        numbers = trees.tests.numbers
        if self.tests_at_once > 1:  # some are read behind the last ones
            numbers = np.append(numbers, np.zeros(self.tests_at_once, numbers.dtype))
        self._thresholds = self._model("test_numbers", numbers)
        self.evaluate_tests()
        edges = 2 * int(np.diff(trees.start).max(initial=0)) + 1
        self.passed = self.alloc("passed", U8, edges * self.line + 8)
        self._node_line = self._table("node_line", trees.line * self.line)
        self._node_before = self._table("node_before", trees.before * self.line)
        #: Tables of numbers of trees, in the order of the walk.
        self._tree: dict[str, Buffer] = {}
        self._of_trees("first", "last", trees.start)
        self._tree["output"] = self._table("tree_output", trees.written)
        self._bias = self._model("bias", trees.bias)
        #: Results of a row and output.
        self._width = trees.forest.n_features + 1
        self._other_totals: list[tuple[Buffer, int]] = []  # beside those of features

    def evaluate_tests(self) -> None:
        """Set bit r of line p if row r goes left at p; rows past the last repeat it."""
        rows, tests, lanes = self._rows, self._t.tests, self.lanes
        numbers = self._thresholds
        jobs = self._table("test_jobs", tests.jobs.reshape(-1))
        column = self.alloc("column", numbers.element, self.block)
        vector = with_lanes(numbers.element, self.vec)
        size = max(1, len(tests.numbers)) + self.tests_at_once - 1
        self._lines = self.alloc("test_lines", U8, size * self.line)
        last, count = rows.n_rows - 1, self._n_vectors * lanes

        def lines(first: Value, end: Value, kind: int) -> None:
            in_set = tests.kinds[kind][0] >= Comparison.IN
            if (some := self.tests_at_once) > 1 and not in_set:
                flags = [b.splat(b.const(bit, U8), some) for bit in (1, 0)]
                x = b.splat(column[0], some)
                # what is written behind the end is the next job's to write
                with b.loop(first, end, some, hint="line") as line:
                    left = self._left(kind, numbers[line, Vec(x.type.element, some)], x)
                    self._lines[line] = b.select(left, *flags)
                return
            with b.loop(first, end, hint="line") as line:
                number = numbers[line]
                with b.loop(self._n_vectors, hint="v") as v:
                    left = self._left(kind, number, column[v * lanes, vector])
                    at = line * self.line + v * (lanes // 8)
                    is_bool = lanes == 1
                    bits = left.to(U8) if is_bool else b.mask_bits(left, self._bits)
                    self._lines[at] = bits

        with b.loop(len(tests.jobs), hint="job") as job:
            feature = self.number(jobs, job * 4)
            with b.loop(count, hint="row") as r:
                at = (rows.first + r).min(last) * rows.stride + feature
                column[r] = rows.rows[at]
            first, end = (self.number(jobs, job * 4 + k) for k in (2, 3))
            kinds = range(len(tests.kinds))
            cases = [partial(lines, first, end, kind) for kind in kinds]
            b.switch(self.number(jobs, job * 4 + 1), cases)

    def _left(self, kind: int, number: Value, x: Value) -> Value:
        rules = self._rules
        comparison, missing, missing_left = self._t.tests.kinds[kind]
        x = rules.nan_if_missing(x, missing)
        if comparison >= Comparison.IN:
            inside = rules.in_set(number, x, comparison == Comparison.MEMBER)
            gone = b.is_nan(x)
            return inside | gone if missing_left else inside & ~gone
        op: lir.CompareOp = "lt" if rules.comparison == "lt" else "le"
        op = "eq" if comparison == Comparison.EQ else op
        return b.compare(op, x, number, unordered=missing_left)

    def alloc(self, name: str, element: Scalar, size: int) -> Buffer:
        return b.alloc(name, element, size, self.space, alignment=64)

    @property
    def _n_held(self) -> int:
        forest = self._t.forest
        return forest.n_outputs if forest.vector_leaves else 1

    def _table(self, name: str, values: Array) -> Buffer:
        return self._model(name, values.astype(np.int32))

    def _of_trees(self, first: str, last: str, start: Int64s) -> None:
        for k, name in enumerate((first, last)):
            numbers = start[self._t.order + k]
            self._tree[name] = self._table(f"tree_{name}", numbers)

    def number(self, table: Buffer, index: Value) -> Value:
        return table[index].to(I64)

    def _numbers_of(self, tree: Value) -> dict[str, Value]:
        return {name: self.number(table, tree) for name, table in self._tree.items()}

    def writes_to(self, result: Buffer) -> None:
        self._result = result

    def start(self, sums: Buffer) -> None:
        for total, columns in self._totals(sums):
            size = self._n_held * columns * self.block
            with b.loop(size, hint="sum") as i:
                total[i] = 0.0

    def _totals(self, sums: Buffer) -> list[tuple[Buffer, int]]:
        return [(sums, self._t.forest.n_features), *self._other_totals]

    def write_if_last(self, output: Value, sums: Buffer) -> None:
        """Write an output that no later tree adds to; it is -1 if one does."""
        if not self._t.forest.vector_leaves:
            with b.when(output >= 0):
                self._write(output, sums, b.const(0))
                self.start(sums)

    def finish(self, sums: Buffer, result: Buffer, first: Value, count: Value) -> None:
        unused = self._t.unused
        if self._t.forest.vector_leaves:
            with b.loop(self._n_held, hint="output") as output:
                self._write(output, sums, output)
        elif len(unused):
            outputs = self._model("unused_outputs", unused)
            with b.loop(len(unused), hint="unused") as i:
                self._write(outputs[i], sums, b.const(0))

    def pass_tests(self, first: Value, last: Value) -> None:
        self.pass_root()
        with b.loop(first, last, hint="n") as n:
            self.pass_node(n, first)

    def pass_root(self) -> None:
        all_rows = ~b.const(0, self._word) if self.block > 1 else b.const(1, U8)
        self.passed[0] = all_rows

    def pass_node(self, n: Value, first: Value) -> tuple[Value, Value]:
        before = self.passed[self.number(self._node_before, n), self._word]
        line = self.goes_left(n)
        at = self.edge(n - first)
        left = self.passed[at] = before & line
        right = self.passed[at + self.line] = before & ~line
        return left, right

    def goes_left(self, n: Value) -> Value:
        return self._lines[self.number(self._node_line, n), self._word]

    def edge(self, node: Value) -> Value:
        return node * (2 * self.line) + self.line

    def mask(self, index: Value) -> Value:
        bits = self.passed[index, self._bits]
        if self.lanes == 1:
            return bits.ne(0)
        return b.reinterpret(bits, lir.Mask(self.lanes))

    def _write(self, output: Value, sums: Buffer, held: Value) -> None:
        bias = self._bias[output].to(self._result.element)
        with b.loop(self._count, hint="r") as r:
            row = (self._rows.first + r) * self._t.forest.n_outputs + output
            at = row * self._width
            self.write_row(at, r, sums, held)
            self._result[at + (self._width - 1)] = bias

    def write_row(self, index: Value, r: Value, sums: Buffer, held: Value) -> None:
        """Write the results of a row from an index on, but not the bias behind them."""
        n_features = self._t.forest.n_features
        start = held * (n_features * self.block)
        with b.loop(n_features, hint="f") as f:
            x = self._divided(sums[start + f * self.block + r])
            cell = index + f
            self._result[cell] = x.to(self._result.element)

    def _divided(self, x: Value) -> Value:
        divisor = self._t.forest.divisor
        return x if divisor == 1 else x / float(divisor)
