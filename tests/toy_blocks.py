"""Two more interfaces as a third party would write them, by one plain walk.

``toy_blocks`` takes a block of rows tree by tree, ``toy_rows`` one row through all
trees. They import no more than the interface and what a forest's numbers mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skforge.compiler.layouts.base import (
    I64,
    BlockCode,
    BlockLayout,
    BlockRepresentation,
    BlockRows,
    Buffer,
    Builder,
    Model,
    PredictEnsemble,
    RowAt,
    RowCode,
    RowLayout,
    RowRepresentation,
    Target,
    Value,
    register,
)
from skforge.exceptions import ScheduleError
from skforge.forest.arrays import Comparison, Missing
from tests.lir_loops import for_, while_


@dataclass(frozen=True)
class ToyWalk:
    """Writes the walk of one row, by values, through one tree."""

    b: Builder
    hir: PredictEnsemble
    model: Model

    def buffer(self, name: str, values: np.ndarray) -> Buffer:
        return self.model(f"toy_{name}", np.ascontiguousarray(values))

    def root(self, tree: Value) -> Value:
        roots = self.buffer("roots", self.hir.tiles.item_offset.astype(np.int32))
        return self.b.convert(self.b.load(roots, tree), I64)

    def add_leaf(
        self, tree: Value, rows: Buffer, start: Value, sums: Buffer, at: Value
    ) -> None:
        """Add the leaf a row reaches in the tree at a position to the row's sums."""
        b, forest, tiles = self.b, self.hir.forest, self.hir.tiles
        test = np.maximum(tiles.predicate[:, 0], 0)
        thresholds = self.buffer("thresholds", forest.threshold[test])
        features = self.buffer("features", forest.feature[test].astype(np.uint32))
        children = self.buffer("children", tiles.child.astype(np.int32).ravel())
        left = forest.missing_left[test].astype(np.uint8)
        missing_left = self.buffer("missing_left", left)
        leaf = forest.leaf_value[np.maximum(tiles.leaf, 0), 0]
        outputs = forest.tree_output[tiles.tree_order]

        def going(state: tuple[Value, ...]) -> Value:
            return b.compare("ge", b.load(children, b.mul(state[0], 2)), 0)

        def hop(state: tuple[Value, ...]) -> list[Value]:
            node = state[0]
            feature = b.convert(b.load(features, node), I64)
            x = b.load(rows, b.binary("add", start, feature))
            op = "ge" if self.hir.comparison == "lt" else "gt"
            right = b.compare(op, x, b.load(thresholds, node), unordered=True)
            flag = b.compare("ne", b.load(missing_left, node), 0)
            left = b.binary("and", b.is_nan(x), flag)
            right = b.convert(b.binary("and", right, b.invert(left)), I64)
            child = b.load(children, b.binary("add", b.mul(node, 2), right))
            return [b.convert(child, I64)]

        (node,) = while_(b, [self.root(tree)], going, hop)
        output = b.load(self.buffer("outputs", outputs), tree)
        place = b.binary("add", at, b.convert(output, I64))
        value = b.load(self.buffer("leaves", leaf), node)
        b.store(sums, place, b.binary("add", b.load(sums, place), value))


def check(hir: PredictEnsemble) -> None:
    forest = hir.forest
    plain = (forest.comparison <= Comparison.LE) & (forest.missing == Missing.NAN)
    if not plain.all() or forest.leaf_value.shape[1] > 1 or hir.tiles.tile_size > 1:
        raise ScheduleError("toys compare numbers, node by node, for scalar leaves.")


@dataclass(frozen=True)
class ToyBlock(BlockCode):
    """One block: its sums are rows, each of all outputs."""

    walk: ToyWalk
    rows: BlockRows
    n: Value

    def each(self, count: Value | int, body) -> None:
        b = self.walk.b
        end = count if isinstance(count, Value) else b.const(count)
        for_(b, b.const(0), end, b.const(1), lambda i, _: body(i))

    def start(self, sums: Buffer) -> None:
        b, base = self.walk.b, self.walk.hir.forest.base
        values = self.walk.buffer("base", base)

        def row(r: Value) -> None:
            def output(k: Value) -> None:
                b.store(
                    sums, b.binary("add", b.mul(r, len(base)), k), b.load(values, k)
                )

            self.each(len(base), output)

        self.each(self.n, row)

    def add_tree(self, tree: Value, sums: Buffer) -> None:
        b, outputs = self.walk.b, self.walk.hir.forest.n_outputs

        def row(r: Value) -> None:
            number = b.binary("add", self.rows.first, r)
            start = b.binary("mul", number, self.rows.stride)
            self.walk.add_leaf(tree, self.rows.rows, start, sums, b.mul(r, outputs))

        self.each(self.n, row)

    def finish(self, sums: Buffer, result: Buffer, first: Value, count: Value) -> None:
        b, outputs = self.walk.b, self.walk.hir.forest.n_outputs
        to = b.mul(first, outputs)

        def one(i: Value) -> None:
            b.store(result, b.binary("add", to, i), b.load(sums, i))

        self.each(b.mul(count, outputs), one)


@dataclass(frozen=True)
class ToyBlockLayout(BlockLayout):
    hir: PredictEnsemble
    block: int

    def evaluate(self, b: Builder, rows: BlockRows, model: Model) -> BlockCode:
        left = b.binary("sub", rows.n_rows, rows.first)
        walk = ToyWalk(b, self.hir, model)
        return ToyBlock(walk, rows, b.binary("min", left, self.block))


class ToyBlocks(BlockRepresentation):
    name = "toy_blocks"
    takes_values = True
    row_group = 2

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        return hir.tiles.n_items * 32

    def check(self, hir: PredictEnsemble) -> None:
        check(hir)
        super().check(hir)

    def check_block(self, hir: PredictEnsemble, block: int) -> None:
        if block % self.row_group:
            raise ScheduleError("toy blocks have an even number of rows.")

    def lay_out_blocks(
        self, hir: PredictEnsemble, target: Target, block: int
    ) -> BlockLayout:
        return ToyBlockLayout(hir, block)


@dataclass(frozen=True)
class ToyRow(RowCode):
    walk: ToyWalk
    row: RowAt

    def add_trees(self, sums: Buffer, at: Value) -> None:
        b, n_trees = self.walk.b, self.walk.hir.forest.n_trees

        def tree(t: Value, _: tuple[Value, ...]) -> None:
            self.walk.add_leaf(t, self.row.rows, self.row.start, sums, at)

        for_(b, b.const(0), b.const(n_trees), b.const(1), tree)


@dataclass(frozen=True)
class ToyRowLayout(RowLayout):
    hir: PredictEnsemble

    def quantize(self, b: Builder, row: RowAt, model: Model) -> RowCode:
        return ToyRow(ToyWalk(b, self.hir, model), row)


class ToyRows(RowRepresentation):
    name = "toy_rows"

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        return hir.tiles.n_items * 32

    def check(self, hir: PredictEnsemble) -> None:
        check(hir)
        super().check(hir)

    def lay_out_rows(self, hir: PredictEnsemble, target: Target) -> RowLayout:
        return ToyRowLayout(hir)


register(ToyBlocks())
register(ToyRows())
