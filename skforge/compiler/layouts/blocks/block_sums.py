"""What a block of rows needs around its trees: codes before, sums of leaves after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from skforge.compiler.binning.buckets import BucketBins, CodePlaces
from skforge.compiler.binning.rules import BlockRows, ReadingRules
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I64, U16, Buffer, Value, Vec
from skforge.compiler.layouts.base import BlockCode
from skforge.compiler.layouts.blocks.leaves import LeafSums, LeafTable
from skforge.compiler.target import Target

#: Rows decoded together, one register of entries; groups have a multiple of them.
GROUP = 16

_Trees = TypeVar("_Trees")


@dataclass(frozen=True, slots=True, eq=False)
class Tiling(Generic[_Trees]):
    """A forest as tiles or pieces, and how a target holds its rows."""

    hir: PredictEnsemble
    target: Target
    codes: CodePlaces | None  # None: tiles compare row values
    trees: _Trees
    leaves: LeafTable

    @property
    def lanes(self) -> int:
        return self.target.vector_bits // 32

    def by_copies(
        self, b: Builder, missing: Value, emit: Callable[[int], None]
    ) -> None:
        if self.codes is None or self.codes.copies == 1:
            emit(1)
        else:
            b.if_(missing, lambda: emit(2), lambda: emit(1))

    def encode(
        self, rules: ReadingRules, rows: BlockRows, left: Value, block: int
    ) -> tuple[Buffer, Value]:
        places, item = self.codes, rules.forest.input_dtype.itemsize
        assert places is not None
        codes = rules.b.alloc("codes", U16, block * places.width * places.copies)
        lanes = max(2, self.target.vector_bits // (8 * item))
        search = BucketBins(rules, places, lanes)
        return codes, search.encode(rows, left, codes, block)


class BlockSums(BlockCode):
    """Emits codes of a block, and sums: by row for several outputs, else by output."""

    def __init__(self, rules: ReadingRules, tiling: Tiling[Any], block: int) -> None:
        self.b, self._rules, self._model = rules.b, rules, rules.model
        self.tiling, self.block = tiling, block

    @property
    def _by_row(self) -> bool:
        """Whether a row's sums are adjacent, because leaves add to several of them."""
        return self.tiling.hir.forest.vector_leaves

    def encode(self, rows: BlockRows) -> tuple[Buffer, Value]:
        left = self._left(rows)
        return self.tiling.encode(self._rules, rows, left, self.block)

    def _left(self, rows: BlockRows) -> Value:
        left = (rows.n_rows - rows.first).min(self.block)
        self.n = (left + (GROUP - 1)) // GROUP * GROUP
        return left

    def start(self, sums: Buffer) -> None:
        b, forest = self.b, self.tiling.hir.forest
        base = self._model("base", forest.base)
        outputs = forest.n_outputs
        per_row, per_output = (outputs, 1) if self._by_row else (1, self.block)
        with b.loop(outputs, hint="output") as k:
            value = base[k]
            own = k * per_output
            with b.loop(self.n, hint="row") as r:
                sums[own + r * per_row] = value

    def adder(
        self, tree: Value, sums: Buffer
    ) -> tuple[Callable[[Value, Value], None], LeafSums]:
        forest, output = self.tiling.hir.forest, None
        leaves = LeafSums(self.b, self.tiling.leaves, self._model)
        if not self._by_row and forest.n_outputs > 1:
            of_tree = forest.tree_output[self.tiling.hir.tiles.tree_order]
            output = self._model("tree_outputs", of_tree)[tree].to(I64) * self.block

        def add(row: Value, place: Value) -> None:
            at = row * forest.n_outputs if self._by_row else row
            at = at if output is None else output + at
            leaves.add(sums, at, leaves.read[place])

        return add, leaves

    def finish(self, sums: Buffer, result: Buffer, first: Value, count: Value) -> None:
        b, outputs = self.b, self.tiling.hir.forest.n_outputs
        to = first * outputs
        if self._by_row or outputs == 1:
            n, lanes = count * outputs, 8
            whole = n // lanes * lanes
            with b.loop(0, whole, lanes, hint="sum") as i:
                result[to + i] = sums[i, Vec(sums.element, lanes)]
            with b.loop(whole, n, hint="sum") as i:
                b.store(result, to + i, sums[i])
            return
        with b.loop(outputs, hint="output") as k:
            own, target = k * self.block, to + k
            with b.loop(count, hint="row") as r:
                result[target + r * outputs] = sums[own + r]
