"""Adds the leaves that rows in lanes reach, in model order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skforge._typing import Int32s
from skforge.compiler.binning.category_rows import set_groups
from skforge.compiler.binning.rules import Model
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import b, parts
from skforge.compiler.ir.lir.nodes import I64, Buffer, Value, Vec
from skforge.forest.forest import Forest

#: Most registers that hold sums.
MOST_REGISTERS = 8

#: Vector leaves lie in the order of places if there are at most so many for each, since
#: no start is looked up then.
SPARE = 1.5

#: Values of a vector leaf added at once.
CHUNK = 8

#: Rows whose leaves are added together: a sum waits for its last addition, so that the
#: sums of four rows take little longer than one. And the most registers for them.
TOGETHER, MOST_TOGETHER = 4, 16


class LaneSums:
    """Adds leaves in order: in registers if all sums fit in a few, else in memory.

    Scalar leaves use registers if trees cycle through the outputs, as in boosted
    classifiers. The number of trees in flight is then a multiple of the outputs.
    """

    def __init__(
        self,
        forest: Forest,
        leaf_of_item: Int32s,
        sums: Buffer,
        first: Value,
        model: Model,
    ) -> None:
        self.forest, self._sums, self._first_sum = forest, sums, first
        n, width = forest.n_outputs, forest.leaf_value.shape[1]
        self._vectors = width > 1
        #: Trees until the same output is added to again.
        self.turn = 1
        #: First output and count of each part added at once.
        self._chunks = list(parts(0, n, CHUNK if self._vectors else 1))
        self._carried = sum_registers(forest) > 0
        if self._vectors:
            #: Outputs added in a loop, so that the code does not grow with them.
            self._looped = 0 if self._carried else n // CHUNK * CHUNK
            self._chunks = list(parts(self._looped, n, CHUNK))
            values, self._starts = forest.leaf_value, None
            if len(leaf_of_item) <= SPARE * len(values):
                values = values[leaf_of_item]
            else:
                start = leaf_of_item.astype(np.int64) * n
                kind = np.int32 if start.max(initial=0) < 1 << 31 else np.int64
                self._starts = model("lane_leaf_starts", start.astype(kind))
            self._values = model("leaf_rows", values.reshape(-1))
            return
        self._values = model("lane_leaves", forest.leaf_value[leaf_of_item, 0])
        if self._carried:
            self.turn = n
        else:
            self._outputs = model("model_outputs", forest.tree_output)

    def _type(self, lanes: int) -> lir.Type:
        return Vec(self._sums.element, lanes) if lanes > 1 else self._sums.element

    def _read(self, chunk: int) -> Value:
        first, lanes = self._chunks[chunk]
        return self._sums[self._first_sum + first, self._type(lanes)]

    def _write(self, chunk: int, value: Value) -> None:
        self._sums[self._first_sum + self._chunks[chunk][0]] = value

    def start(self) -> list[Value]:
        count = len(self._chunks) if self._carried else 0
        return [self._read(chunk) for chunk in range(count)]

    def add(
        self,
        first: Value,
        items: Sequence[Value],
        carried: list[Value],
        base: Value | None = None,
    ) -> list[Value]:
        """Add the leaves of items that are counted from ``base`` on, or from 0."""
        leaves, n = self._values, self.forest.n_outputs
        if self._vectors and self._starts is not None:
            leaves = self._starts
        elif self._vectors and base is not None:
            base = base * n
        if base is not None:  # one address, from which an operand reaches each tree
            leaves = b.view(leaves.name, leaves.element, leaves, base)
        for k, item in enumerate(items):
            if self._vectors and self._starts is None:
                carried = self._add_vector(leaves, item * n, carried)
                continue
            value = leaves[item]
            if self._vectors:
                carried = self._add_vector(self._values, value.to(I64), carried)
                continue
            if carried:
                place = k % self.turn
                carried[place] = carried[place] + value
                continue
            at = self._first_sum + self._outputs[first + k].to(I64)
            self._sums[at] = self._sums[at] + value
        return carried

    def _add_vector(
        self, values: Buffer, leaf: Value, carried: list[Value]
    ) -> list[Value]:
        if self._looped:
            with b.loop(0, self._looped, CHUNK) as j:
                here, there = self._first_sum + j, leaf + j
                old = self._sums[here, self._type(CHUNK)]
                value = values[there, self._type(CHUNK)]
                self._sums[here] = old + value
        totals = []
        for chunk, (first, lanes) in enumerate(self._chunks):
            old = carried[chunk] if carried else self._read(chunk)
            value = values[leaf + first, self._type(lanes)]
            totals.append(old + value)
            if not carried:
                self._write(chunk, totals[-1])
        return totals if carried else []

    def finish(self, carried: list[Value]) -> None:
        for chunk, value in enumerate(carried):
            self._write(chunk, value)


def sum_registers(forest: Forest) -> int:
    """Return how many registers hold the sums of a row; 0 if these are in memory."""
    n = forest.n_outputs
    if forest.leaf_value.shape[1] > 1:
        n = -(-n // CHUNK)
    elif (forest.tree_output != np.arange(forest.n_trees) % n).any():
        return 0
    return n if n <= MOST_REGISTERS else 0


def sums_together(forest: Forest) -> int:
    if set_groups(forest):  # one by one takes .92 of the time (800 categories, Zen 3)
        return 1
    registers = sum_registers(forest)
    if not registers and forest.leaf_value.shape[1] > 1:
        return 1  # long leaves: together, one row takes 1.3 times as long (70 classes)
    return TOGETHER if TOGETHER * registers <= MOST_TOGETHER else 1
