"""The representations of contributions: SHAP values of features and of their pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from skforge.compiler.binning.rules import ReadingRules
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import F64, Buffer, Value
from skforge.compiler.ir.mir.nodes import Element
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.base import MakeCode
from skforge.compiler.layouts.blocks.paths import trace
from skforge.compiler.layouts.blocks.tree_block import VECTOR, WORDS, Trees
from skforge.compiler.layouts.contributions import quadrature, walk
from skforge.compiler.layouts.contributions.edges import PointsAsLanes, RowsAsLanes
from skforge.compiler.layouts.contributions.order import pair_up, put_in_order
from skforge.compiler.layouts.contributions.subtrees import find, tables
from skforge.compiler.layouts.contributions.walk import (
    ContributionCode,
    Walk,
    WalkData,
    WalkNode,
)
from skforge.compiler.target import Target
from skforge.forest.forest import Forest
from skforge.forest.means import Means
from skforge.schedule.bound import BoundLoop, every_loop


class PointCode(ContributionCode):
    tests_at_once = 16


class InteractionCode(ContributionCode):
    """Emits interaction values: one more sum at each node of the walk.

    A pair of features i, j gets half of the formula of ``quadrature.py`` with
    (o_i - z_i) (o_j - z_j) outside the integral and both factors left out inside. So
    what a node gives its feature at a point, times A of each other feature on its path,
    sums to the pair (SHAP interaction values: Lundberg et al. 2018, section 4).
    """

    def __init__(self, rules: ReadingRules, data: WalkData, *rest: Any) -> None:
        super().__init__(rules, data, *rest)
        assert data.pairs is not None
        pairs, table, order = data.pairs, self._table, data.order
        self._n_pairs = len(pairs.columns)
        size = max(1, self._n_held * self._n_pairs) * self.block
        self._pair_sums = self.alloc("pair_sums", F64, size)
        self._other_totals.append((self._pair_sums, self._n_pairs))
        self._columns.append(self._sums_of("pair", pairs.pair, pairs.pair_start))
        self._others = self._model("others", pairs.start)
        self._other_bits = table("other_bits", pairs.edge * self.line)
        points = np.repeat(data.points.places[order.tree], np.diff(pairs.start))
        node, side = np.divmod(pairs.edge - 1, 2)
        gains = (node * data.rows + quadrature.GAINS + side) * points
        self._other_gain = table("other_gain", gains)
        slots = pairs.slot * (self.lanes * self.together)
        self._other_slot = table("other_slot", slots)
        self._pair_columns = table("pair_columns", pairs.columns.reshape(-1))
        self._width = self._width**2

    def add_terms(self, walk: Walk, node: WalkNode, terms: list[list[Value]]) -> None:
        """Add a node's terms to its feature; times A of each other one, to pairs."""
        super().add_terms(walk, node, terms)
        each, points = self.lanes // 8, range(walk.points)
        for k, (left, right) in enumerate(node.passed):
            passed = left | right
            terms[k] = [b.select(passed, term, 0.0) for term in terms[k]]
        loss = [self.constant(walk, node.constants, quadrature.LOSS, q) for q in points]
        sums = self._columns[1].sums
        with b.loop(self._others[node.i], self._others[node.i + 1], hint="other") as e:
            place = self.number(self._other_bits, e) + walk.vector * each
            at = walk.constants + self.number(self._other_gain, e)
            slot = self.number(self._other_slot, e)
            gains = [self.constant(walk, at, 0, q) for q in points]
            for k, term in enumerate(terms):
                mask = self.mask(place + k * each)
                total = sums[slot + k * self.lanes, self.vec]
                for q in points:
                    a = b.select(mask, gains[q], loss[q])
                    total = self.multiply_add(term[q], a, total)
                sums[slot + k * self.lanes] = total

    def write_row(self, index: Value, r: Value, sums: Buffer, held: Value) -> None:
        n_features, block = self._t.forest.n_features, self.block
        width = n_features + 1
        start = held * (n_features * block) + r
        first = held * (self._n_pairs * block) + r
        half, zero = b.const(0.5, F64), b.const(0.0, self._result.element)
        with b.loop(width * width, hint="cell") as cell:
            self._result[index + cell] = zero
        with b.loop(self._n_pairs, hint="pair") as pair:
            x = self._pair_sums[first + pair * block] * half
            ends = [self.number(self._pair_columns, pair * 2 + k) for k in (0, 1)]
            value = self._divided(x).to(zero.type.element)
            for feature, other in (ends, ends[::-1]):
                self._result[index + (feature * width + other)] = value
                total = start + feature * block
                sums[total] = sums[total] - x
        with b.loop(n_features, hint="f") as f:
            x = self._divided(sums[start + f * block])
            self._result[index + f * (width + 1)] = x.to(zero.type.element)


#: Bytes of slots that a cluster of nodes may use. With 20 KiB a row of 50 trees of
#: depth 12 took 1.4 times as long, and with 80 KiB batches took 1.1 to 1.3 times.
SLOT_BYTES = 40 << 10

#: Fewest nodes of a cluster, where trees need many points.
FEWEST_NODES = 8

#: Rows of the smallest vector.
LEAST_LANES = 8


def walk_data(forest: Forest, by_pairs: bool, in_lanes: bool) -> WalkData:
    """Lay out a normalised forest with covers.

    ``by_pairs`` is for interactions, ``in_lanes`` for points as the lanes of vectors.
    """
    means, paths = Means.of(forest), trace(forest)
    parts, n_trees = quadrature.parts_of(forest, paths), forest.n_trees
    if parts.forest is not forest:
        forest, paths = parts.forest, trace(parts.forest)
    points = quadrature.Points.of(parts, paths, in_lanes)
    most = SLOT_BYTES // (2 * VECTOR * walk.TOGETHER * points.of_turn)
    subtrees = find(forest, paths)
    if forest.vector_leaves:
        subtrees = subtrees[:0]
    clusters = np.maximum(FEWEST_NODES, most)
    order = put_in_order(forest, paths, clusters, subtrees.node, subtrees.are_few)
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
    rows = (
        quadrature.PAIR_ROWS
        if by_pairs
        else quadrature.ROWS_BY_SIDE
        if in_lanes
        else quadrature.ROWS
    )
    some = order.is_walked | by_pairs
    constants = quadrature.fill(
        forest, paths, order, points, in_constants, dtype, rows, some
    )
    subtrees = subtrees[order.subtree]
    return WalkData(
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


def shared_data(hir: PredictEnsemble, by_pairs: bool, in_lanes: bool) -> WalkData:
    kind = by_pairs, in_lanes
    return hir.shared.once(
        ("contributions", *kind), lambda: walk_data(hir.forest, *kind)
    )


#: The code of a block, by whether it is for interactions and whether it has one row.
CODES: dict[tuple[bool, bool], tuple[type[ContributionCode], type[walk.Edges]]] = {
    (False, False): (ContributionCode, RowsAsLanes),
    (False, True): (PointCode, PointsAsLanes),
    (True, False): (InteractionCode, RowsAsLanes),
}


def _are_innermost(loops: Iterator[BoundLoop], n_trees: int) -> bool:
    """Return whether every loop over trees is a plain one of a row, over all trees."""
    return all(
        not loop.body and not loop.marks and loop.trip_count == n_trees
        for loop in loops
        if loop.root == "tree"
    )


class Contributions(layouts.BlockRepresentation):
    """``represent("contributions")``: only for ``predict_contribs``."""

    name = "contributions"
    takes_values = takes_rows_by_thread = True
    row_group = 2 * walk.TOGETHER * LEAST_LANES
    elements: tuple[Element, ...] = ("contribution",)
    by_pairs = False

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        return hir.forest.n_nodes * 40 * hir.forest.leaf_value.itemsize

    def check(self, hir: PredictEnsemble) -> None:
        super().check(hir)
        nest = hir.nest
        innermost = _are_innermost(every_loop(nest.loops), nest.n_trees)
        if nest.on_grid and (hir.codes is not None or not innermost):
            self.refuse(
                "explains a row's values in each thread of a GPU; make one loop over "
                "all trees, without marks, the innermost, and leave out quantize."
            )

    def check_block(self, hir: PredictEnsemble, block: int) -> None:
        least = VECTOR // hir.forest.leaf_value.itemsize
        sizes = [size for size in WORDS if size >= least]
        if not self.by_pairs:
            sizes.insert(0, 1)
        if block not in sizes:
            self.refuse_block(block, f"of {', '.join(map(str, sizes))} rows")

    def block_code(self, hir: PredictEnsemble, target: Target, block: int) -> MakeCode:
        code, edges = CODES[self.by_pairs, block == 1]
        data = shared_data(hir, self.by_pairs, block == 1)
        is_whole = target.vector_bits >= 8 * VECTOR
        together = walk.TOGETHER if is_whole else walk.IN_HALVES
        rest = block, edges, target.has_fma, together
        return lambda rules, rows: code(rules, data, rows, *rest)


class Interactions(Contributions):
    """``represent("interactions")``: only for interaction values."""

    name = "interactions"
    takes_rows_by_thread = False
    elements: tuple[Element, ...] = ("interaction",)
    by_pairs = True


layouts.register(Contributions())
layouts.register(Interactions())
