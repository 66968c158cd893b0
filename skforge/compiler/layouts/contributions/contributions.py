"""The representation of contributions: SHAP values of features, for blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skforge.compiler.binning.rules import ReadingRules
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.means import Means
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.nodes import F64, Value
from skforge.compiler.ir.mir.nodes import Element
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.base import BlockShape, GpuBlockLayout, register
from skforge.compiler.layouts.blocks.paths import trace
from skforge.compiler.layouts.blocks.tree_block import VECTOR, WORDS, Trees
from skforge.compiler.layouts.contributions import walk
from skforge.compiler.layouts.contributions.edges import (
    OneThread,
    PointsAsLanes,
    RowsAsLanes,
)
from skforge.compiler.layouts.contributions.interactions import InteractionCode
from skforge.compiler.layouts.contributions.one_row import PointCode, ThreadCode
from skforge.compiler.layouts.contributions.order import pair_up, put_in_order
from skforge.compiler.layouts.contributions.quadrature import (
    PAIR_ROWS,
    ROWS,
    ROWS_BY_SIDE,
    Points,
    fill,
    parts_of,
)
from skforge.compiler.layouts.contributions.subtrees import find, tables
from skforge.compiler.target import Target


@dataclass(frozen=True, slots=True)
class ThreadLayout(GpuBlockLayout):
    """One forest, whose rows are each explained by a thread."""

    hir: PredictEnsemble
    shape: BlockShape
    data: walk.WalkData

    def start(self, block: layouts.BlockThreads) -> layouts.GpuBlockCode:
        return _RowsOfBlock(self, block)


class _RowsOfBlock(layouts.GpuBlockCode):
    """Explains the rows of a block at its end, when all its trees are known."""

    def __init__(self, layout: ThreadLayout, block: layouts.BlockThreads) -> None:
        self._layout, self._block, forest = layout, block, layout.hir.forest
        rules = ReadingRules(block.b, forest, layout.hir.comparison, block.model)
        self._code = ThreadCode(rules, layout.data, block.rows, 1, OneThread, True)
        self._code.writes_to(block.result)
        held = forest.n_outputs if forest.vector_leaves else 1
        size = max(1, held * forest.n_features)
        self._sums = block.b.alloc("sums", F64, size, "private")

    def evaluate(self, first: Value) -> None:
        """Leave tests to the walks."""

    def add_trees(self, first: Value) -> None:
        """Leave trees to the end, as a thread takes them all."""

    def finish(self) -> None:
        b, rows, shape = self._block.b, self._block.rows, self._layout.shape
        n_trees = len(self._layout.data.part_start) - 1
        with (
            self._block.region() as number,
            b.loop(shape.rows // shape.threads, hint="each") as k,
        ):
            row = rows.first + (k * shape.threads + number)
            with b.when(row < rows.n_rows):
                self._code.take(row)
                self._code.start(self._sums)
                with b.loop(n_trees, hint="tree") as tree:
                    self._code.add_tree(tree, self._sums)
                self._code.finish(self._sums, self._block.result, row, b.const(1))


#: Bytes of slots that a cluster of nodes may use. With 20 KiB a row of 50 trees of
#: depth 12 took 1.4 times as long, and with 80 KiB batches took 1.1 to 1.3 times.
SLOT_BYTES = 40 << 10

#: Fewest nodes of a cluster, where trees need many points.
FEWEST_NODES = 8

#: Rows of the smallest vector.
LEAST_LANES = 8


def walk_data(forest: Forest, by_pairs: bool, in_lanes: bool) -> walk.WalkData:
    """Lay out a normalised forest with covers.

    ``by_pairs`` is for interactions, ``in_lanes`` for points as the lanes of vectors.
    """
    means, paths = Means.of(forest), trace(forest)
    parts, n_trees = parts_of(forest, paths), forest.n_trees
    if parts.forest is not forest:
        forest, paths = parts.forest, trace(parts.forest)
    points = Points.of(parts, paths, in_lanes)
    most = SLOT_BYTES // (2 * VECTOR * walk.TOGETHER * points.of_turn)
    subtrees = find(forest, paths)
    if forest.vector_leaves:
        subtrees = subtrees[:0]
    clusters = np.maximum(FEWEST_NODES, most)
    found = subtrees.node, subtrees.are_few
    order = put_in_order(forest, paths, clusters, *found)
    leaves = np.flatnonzero(forest.leaf >= 0)
    values = means.centred(parts.node[leaves])
    values[~parts.kept[leaves]] = 0.0
    in_constants = np.ones(forest.n_nodes)
    side_leaf = None
    if forest.vector_leaves:
        number = np.full(forest.n_nodes, len(leaves))
        number[leaves] = np.arange(len(leaves))
        children = np.stack([forest.left, forest.right], axis=1)
        side_leaf = number[children[order.node]]
    else:
        in_constants[leaves] = values[:, 0]
    dtype = forest.leaf_value.dtype
    rows = PAIR_ROWS if by_pairs else ROWS_BY_SIDE if in_lanes else ROWS
    some = order.is_walked | by_pairs
    constants = fill(forest, paths, order, points, in_constants, dtype, rows, some)
    subtrees = subtrees[order.subtree]
    return walk.WalkData(
        trees=Trees.of(forest, paths, order.node, means.bias),
        part_start=np.arange(n_trees + 1) * forest.n_trees // max(1, n_trees),
        order=order,
        points=points,
        constants=constants,
        leaf=side_leaf,
        values=np.vstack([values, np.ones((1, values.shape[1]))]),
        rows=len(rows),
        tables=tables(forest, paths, points, in_constants, subtrees, in_lanes, dtype),
        pairs=pair_up(forest, paths, order) if by_pairs else None,
    )


def shared_data(hir: PredictEnsemble, by_pairs: bool, in_lanes: bool) -> walk.WalkData:
    kind = by_pairs, in_lanes
    return hir.shared.once(
        ("contributions", *kind), lambda: walk_data(hir.forest, *kind)
    )


#: The code of a block, by whether it is for interactions and whether it has one row.
CODES: dict[tuple[bool, bool], tuple[type[walk.ContributionCode], type[walk.Edges]]] = {
    (False, False): (walk.ContributionCode, RowsAsLanes),
    (False, True): (PointCode, PointsAsLanes),
    (True, False): (InteractionCode, RowsAsLanes),
}


class Contributions(layouts.BlockRepresentation, layouts.GpuBlockRepresentation):
    """``represent("contributions")``: only for ``predict_contribs``."""

    name = "contributions"
    takes_values = True
    row_group = 2 * walk.TOGETHER * LEAST_LANES
    elements: tuple[Element, ...] = ("contribution",)
    by_pairs = False

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        return hir.forest.n_nodes * 40 * hir.forest.leaf_value.itemsize

    def check_block(self, hir: PredictEnsemble, block: int) -> None:
        least = VECTOR // hir.forest.leaf_value.itemsize
        sizes = [size for size in WORDS if size >= least]
        if not self.by_pairs:
            sizes.insert(0, 1)
        if block not in sizes:
            known = ", ".join(map(str, sizes))
            self.refuse(
                f"takes blocks of {known} rows; this schedule has blocks of {block}."
            )

    def lay_out_blocks(
        self, hir: PredictEnsemble, target: Target, block: int
    ) -> layouts.BlockLayout:
        code, edges = CODES[self.by_pairs, block == 1]
        data = shared_data(hir, self.by_pairs, block == 1)
        is_whole = target.vector_bits >= 8 * VECTOR
        together = walk.TOGETHER if is_whole else walk.IN_HALVES
        rest = block, edges, target.has_fma, together
        return layouts.CodeLayout(
            hir, lambda rules, rows: code(rules, data, rows, *rest)
        )

    def check_gpu_block(self, hir: PredictEnsemble, shape: BlockShape) -> None:
        if self.by_pairs:
            self.refuse("runs only on CPUs; use target='cpu'.")
        if shape.rows % shape.threads:
            self.refuse(
                "needs the same number of rows for each thread of a block; this "
                f"schedule has {shape.rows} rows for {shape.threads} threads."
            )

    def lay_out_gpu_blocks(
        self, hir: PredictEnsemble, target: Target, shape: BlockShape
    ) -> GpuBlockLayout:
        return ThreadLayout(hir, shape, shared_data(hir, False, False))


class Interactions(Contributions):
    """``represent("interactions")``: only for interaction values."""

    name = "interactions"
    elements: tuple[Element, ...] = ("interaction",)
    by_pairs = True


register(Contributions())
register(Interactions())
