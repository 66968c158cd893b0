"""Code for one block of rows that walks of contributions share.

It evaluates the predicates, sets a bit for each edge of a tree and row, and writes the
sums with the bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.rules import BlockRows, Rules
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import F64, I64, U8, U16, Buffer, Scalar, Value, Vec
from skforge.compiler.layouts.base import BlockCode
from skforge.compiler.layouts.contributions.predicates import Evaluation, Tests

IntArray = NDArray[np.int64]

#: The words that hold a bit for each row of a block.
WORDS: dict[int, Scalar | Vec] = {
    **{1: U8, 8: U8, 16: U16, 32: lir.U32, 64: I64},
    **{128: Vec(I64, 2), 256: Vec(I64, 4), 512: Vec(I64, 8)},
}

#: Bytes of a vector: always 512 bits, which narrower machines split.
VECTOR = 64


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """What every walk knows of a forest's trees.

    Edges are counted by tree: 2 i + 1 is the left edge of its i-th inner node, 2 i + 2
    the right one. ``before`` is the edge that tested a node's feature before, or 0.
    """

    forest: Forest
    tests: Tests
    start: IntArray  # (n_trees + 1,) into the inner nodes
    line: IntArray  # of each inner node's predicate
    before: IntArray
    bias: NDArray[np.float64]

    @property
    def order(self) -> IntArray:
        """The trees in the order of the walk: those of an output together."""
        return np.argsort(self.forest.tree_output, kind="stable")

    @property
    def written(self) -> IntArray:
        """The output to write after the tree at a position, or -1."""
        output = self.forest.tree_output[self.order].astype(np.int64)
        ends = np.append(output[1:] != output[:-1], True)[: len(output)]
        return np.where(ends, output, -1)

    @property
    def unused(self) -> IntArray:
        """The outputs without trees."""
        every = np.arange(self.forest.n_outputs)
        return np.setdiff1d(every, self.forest.tree_output)


class TreeBlock(BlockCode):
    """Emits the code for one block of rows, except what a tree adds.

    ``element`` is the type of the numbers in a vector, one for each row.
    """

    #: Where scratch lies.
    space: lir.Space = "global"
    #: Vectors of rows that are walked together.
    together = 1

    def __init__(
        self, rules: Rules, trees: Trees, rows: BlockRows, block: int, element: Scalar
    ) -> None:
        self.b: Builder = rules.b
        self._t, self._rows, self._block = trees, rows, block
        self._model = rules.model
        self._scalar = element
        self._lanes = lanes = min(block, VECTOR // element.bytes)
        self._vec: lir.Type = Vec(element, lanes) if lanes > 1 else element
        self._word = WORDS[block]
        self._line = max(1, block // 8)  # bytes of a bit for each row
        self._bits = U16 if lanes == 16 else U8
        #: Rows of the block that the batch has.
        self._count = (rows.n_rows - rows.first).min(block)
        self._together = min(self.together, block // lanes)
        some = lanes * self._together
        self._n_vectors = (self._count + (some - 1)) // some * self._together
        self._evaluate(rules)
        edges = 2 * int(np.diff(trees.start).max(initial=0)) + 1
        self._passed = self._alloc("passed", U8, edges * self._line + 8)
        order = trees.order
        self._node_line = self._table("node_line", trees.line * self._line)
        self._node_before = self._table("node_before", trees.before * self._line)
        self._tree = {
            "first": self._table("tree_first", trees.start[:-1][order]),
            "last": self._table("tree_last", trees.start[1:][order]),
            "output": self._table("tree_output", trees.written),
        }
        self._bias = self._model("bias", trees.bias)

    def _evaluate(self, rules: Rules) -> None:
        """Evaluate all predicates on the rows of the block."""
        evaluation = Evaluation(rules, self._t.tests, self._block, self._lanes)
        evaluation.run(self._rows, self._n_vectors)
        self._lines = evaluation.lines

    def _alloc(self, name: str, element: Scalar, size: int) -> Buffer:
        """Allocate scratch."""
        b, count = self.b, self.b.const(size)
        return b.alloc(name, element, count, space=self.space, alignment=64)

    @property
    def _n_held(self) -> int:
        """How many outputs have sums at once."""
        forest = self._t.forest
        return forest.n_outputs if forest.vector_leaves else 1

    def _table(self, name: str, values: NDArray[Any]) -> Buffer:
        return self._model(name, values.astype(np.int32))

    def _number(self, table: Buffer, at: Value) -> Value:
        return table[at].to(I64)

    def writes_to(self, result: Buffer) -> None:
        """Tell where outputs are written, each as soon as its last tree is added."""
        self._result = result

    def start(self, sums: Buffer) -> None:
        """Set the sums of the block, (outputs, features, rows), to zero."""
        b = self.b
        zero = b.const(0.0, F64)
        size = self._n_held * self._t.forest.n_features * self._block
        with b.loop(size, hint="sum") as i:
            sums[i] = zero

    def _write_if_last(self, output: Value, sums: Buffer) -> None:
        """Write a scalar output after its last tree."""
        b = self.b
        if not self._t.forest.vector_leaves:
            with b.when(output >= 0):
                self._write(output, sums, b.const(0))
                self.start(sums)

    def finish(self, sums: Buffer, result: Buffer, first: Value, count: Value) -> None:
        """Write the outputs of vector leaves, or those that have no trees."""
        b, unused = self.b, self._t.unused
        if self._t.forest.vector_leaves:
            with b.loop(self._n_held, hint="output") as output:
                self._write(output, sums, output)
        elif len(unused):
            outputs = self._model("unused_outputs", unused)
            with b.loop(len(unused), hint="unused") as i:
                self._write(outputs[i], sums, b.const(0))

    def _pass_tests(self, first: Value, last: Value) -> None:
        """Set the bits of all edges of a tree: who passed each feature's tests."""
        b, size = self.b, self._line
        self._passed[b.const(0)] = ~b.const(0, self._word)
        with b.loop(first, last, hint="n") as n:
            before = self._passed[self._number(self._node_before, n), self._word]
            line = self._lines[self._number(self._node_line, n), self._word]
            at = (n - first) * (2 * size) + size
            self._passed[at] = before & line
            self._passed[at + size] = before & ~line

    def _mask(self, at: Value) -> Value:
        """Return the rows of a vector whose bits lie at a byte of ``passed``."""
        b = self.b
        return b.reinterpret(self._passed[at, self._bits], lir.Mask(self._lanes))

    def _write(self, output: Value, sums: Buffer, held: Value) -> None:
        """Write the contributions to one output, and its bias."""
        b, rows, forest = self.b, self._rows, self._t.forest
        bias = self._bias[output].to(self._result.element)
        divisor = b.const(float(forest.divisor), F64)
        start = held * (forest.n_features * self._block)
        count = (rows.n_rows - rows.first).min(self._block)
        with b.loop(count, hint="r") as r:
            row = (rows.first + r) * forest.n_outputs + output
            at = row * (forest.n_features + 1)
            with b.loop(forest.n_features, hint="f") as f:
                x = sums[start + f * self._block + r]
                if forest.divisor != 1:
                    x = x / divisor
                b.store(self._result, at + f, x.to(self._result.element))
            self._result[at + forest.n_features] = bias
