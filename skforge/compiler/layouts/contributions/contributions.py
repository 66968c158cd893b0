"""The representation of contributions: SHAP values of features, for blocks of rows.

``paths.py`` orders the nodes, ``quadrature.py`` computes their constants,
``predicates.py`` emits the tests of a block and ``walk.py`` the walk.

On a GPU a thread has a row (Mitchell et al. 2022), with scalars for vectors: slots, the
edges that the row passed and the sums of a tree are each thread's own memory. Tests are
evaluated where nodes are reached, as no thread has the bits of other rows.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from skforge.compiler.binning.rules import BlockRows, Model, Rules
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.means import Means
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import BOOL, F64, I64, U8, Buffer, Mask, Value, Vec
from skforge.compiler.ir.mir.nodes import Element
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.base import BlockShape, GpuBlockLayout, register
from skforge.compiler.layouts.contributions import walk
from skforge.compiler.layouts.contributions.block import VECTOR, WORDS, Trees
from skforge.compiler.layouts.contributions.paths import put_in_order, trace
from skforge.compiler.layouts.contributions.predicates import TestCode, Tests
from skforge.compiler.layouts.contributions.quadrature import (
    GAINS,
    LOSS,
    PAIR_ROWS,
    ROWS,
    ROWS_BY_SIDE,
    Points,
    cut,
    fill,
)
from skforge.compiler.layouts.contributions.walk import (
    ContributionCode,
    Turn,
    WalkData,
    pair_up,
)
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError


class InteractionCode(ContributionCode):
    """Emits interaction values: one more sum at each node of the walk.

    A pair of features i, j gets half of the formula of ``quadrature.py`` with
    (o_i - z_i) (o_j - z_j) outside the integral and both factors left out inside. So
    what a node gives its feature at a point, times A of each other feature on its path,
    sums to the pair (SHAP interaction values: Lundberg et al. 2018, section 4).
    """

    def _declare_more(self) -> None:
        data, block = self.d, self._block
        b, some = self.b, self._lanes * self._together
        pairs = data.pairs
        assert pairs is not None
        held = self._n_held
        n_pairs = len(pairs.columns)
        size = b.const(max(1, held * n_pairs) * block)
        self._pair_sums = b.alloc("pair_sums", F64, size, alignment=64)
        most = int(np.diff(pairs.pair_start).max(initial=0))
        self._own_pairs = b.alloc(
            "tree_pairs", self._scalar, b.const(max(1, most) * some), alignment=64
        )

        def table(name: str, values: np.ndarray) -> Buffer:
            return self._model(name, values.astype(np.int32))

        self._others = self._model("others", pairs.start)
        edge = pairs.edge - 1
        self._other_bits = table("other_bits", pairs.edge * (block // 8))
        tree = np.searchsorted(
            data.order.start, np.arange(len(data.order.node)), "right"
        )
        points = data.points.places[tree - 1]
        each = np.repeat(points, np.diff(pairs.start))
        gains = (edge // 2 * data.rows + GAINS + edge % 2) * each
        self._other_gain = table("other_gain", gains)
        self._other_slot = table("other_slot", pairs.slot * some)
        self._pair = table("tree_pair", pairs.pair * block)
        self._columns = table("pair_columns", pairs.columns.reshape(-1))
        trees = data.trees.order
        self._tree["pair"] = table("tree_first_pair", pairs.pair_start[:-1][trees])
        self._tree["last_pair"] = table("tree_last_pair", pairs.pair_start[1:][trees])

    def start(self, sums: Buffer) -> None:
        """Set the sums of the block to zero, those of pairs too."""
        super().start(sums)
        assert self.d.pairs is not None
        zero = self.b.const(0.0, F64)
        with self.b.loop(self._n_held * len(self.d.pairs.columns) * self._block) as i:
            self._pair_sums[i] = zero

    def _turn(self, turn: Turn, sums: Buffer) -> None:
        b, lanes, together = self.b, self._lanes, self._together
        assert self.d.pairs is not None
        first = turn.tree["pair"]
        count = turn.tree["last_pair"] - first
        zero = b.const(0.0, self._vec)
        with b.loop(count * together, hint="pair") as i:
            self._own_pairs[i * lanes] = zero
        super()._turn(turn, sums)
        start = turn.output * (len(self.d.pairs.columns) * self._block)
        start = start + turn.vector * lanes
        with b.loop(count, hint="pair") as i:
            place = start + self._number(self._pair, first + i)
            for k in range(together):
                own = self._own_pairs[i * (together * lanes) + k * lanes, self._vec]
                at = place + k * lanes
                total = self._pair_sums[at, Vec(F64, lanes)] + own.to(F64)
                self._pair_sums[at] = total

    def _pair_up(
        self,
        n: int,
        turn: Turn,
        i: Value,
        gifts: list[list[Value]],
        masks: list[tuple[Value, Value]],
    ) -> None:
        """Add a node's gifts, times A of each other feature, to their pairs."""
        b, each = self.b, self._lanes // 8
        zero = b.const(0.0, self._vec)
        passed = [left | right for left, right in masks]
        for q in range(n):
            for k, mask in enumerate(passed):
                gifts[q][k] = b.select(mask, gifts[q][k], zero)
        at = turn.constants + (i - turn.tree["first"]) * (self.d.rows * n)
        loss = [self._constant(at, n, LOSS, q) for q in range(n)]
        first = self._others[i]
        last = self._others[i + 1]
        with b.loop(first, last, hint="other") as e:
            place = self._number(self._other_bits, e) + turn.vector * each
            gain = turn.constants + self._number(self._other_gain, e)
            slot = self._number(self._other_slot, e)
            gains = [self._constant(gain, n, 0, q) for q in range(n)]
            for k in range(self._together):
                bits = self._passed[place + k * each, self._bits]
                mask = b.reinterpret(bits, Mask(self._lanes))
                total = self._own_pairs[slot + k * self._lanes, self._vec]
                for q in range(n):
                    a = b.select(mask, gains[q], loss[q])
                    total = self._multiply_add(gifts[q][k], a, total)
                self._own_pairs[slot + k * self._lanes] = total

    def _write(self, output: Value, sums: Buffer, held: Value) -> None:
        """Write the interactions of one output; each row sums to a feature's value."""
        b, rows, d, forest = self.b, self._rows, self.d, self._t.forest
        assert d.pairs is not None
        width, n_pairs = forest.n_features + 1, len(d.pairs.columns)
        element = self._result.element
        bias = self._bias[output].to(element)
        count = (rows.n_rows - rows.first).min(self._block)
        start = held * (forest.n_features * self._block)
        first = held * (n_pairs * self._block)
        divisor = b.const(float(forest.divisor), F64)
        half = b.const(0.5, F64)
        zero = b.const(0.0, element)

        def column(pair: Value, k: int) -> Value:
            return self._columns[pair * 2 + k].to(I64)

        with b.loop(count, hint="r") as r:
            at = ((rows.first + r) * forest.n_outputs + output) * (width * width)
            with b.loop(width * width, hint="cell") as cell:
                self._result[at + cell] = zero
            with b.loop(n_pairs, hint="pair") as pair:
                x = self._pair_sums[first + (pair * self._block + r)] * half
                ends = column(pair, 0), column(pair, 1)
                value = (x / divisor).to(element)
                for one, other in (ends, ends[::-1]):
                    cell = one * width + other
                    self._result[at + cell] = value
                    total = start + (one * self._block + r)
                    sums[total] = sums[total] - x
            with b.loop(forest.n_features, hint="f") as f:
                x = (sums[start + (f * self._block + r)] / divisor).to(element)
                self._result[at + f * (width + 1)] = x
            self._result[at + (width * width - 1)] = bias


class PointCode(ContributionCode):
    """Emits the code for one row."""

    def _declare_more(self) -> None:
        most = int(np.diff(self.d.order.start).max(initial=0))
        self._records = self._alloc("records", I64, max(1, most))

    def _turn(self, turn: Turn, sums: Buffer) -> None:
        b = self.b
        first, last = turn.tree["feature"], turn.tree["last_feature"]
        features = last - first
        with b.loop(features, hint="f") as f:
            self._own[f] = b.const(0.0, self._scalar)
        walks = [partial(self._walk, n, turn) for n in self.d.classes]
        b.switch(turn.tree["points"], walks)
        start = turn.output * self._t.forest.n_features
        with b.loop(features, hint="f") as f:
            at = start + self._number(self._features, first + f)
            own = self._own[f].to(F64)
            sums[at] = sums[at] + own

    def _pass_tests(self, first: Value, last: Value) -> None:
        """Pass the tests of nodes on the way down."""
        self.b.store(self._passed, self.b.const(0), self.b.const(1, U8))

    def _pass(self, i: Value, own: Value) -> Value:
        """Set which edges of a node the row passed; return the side it takes.

        0 is left, 1 right, and 2 neither: it left the feature's tests above.
        """
        b, one = self.b, self.b.const(1, U8)
        before = self._passed[self._number(self._node_before, i)]
        line = self._lines[self._number(self._node_line, i)]
        at = own * 2 + 1
        left = before & line
        right = before & (line ^ one)
        self._passed[at] = left
        self._passed[at + 1] = right
        return (b.const(2, U8) - (left + left + right)).to(I64)

    def _walk(self, n: int, turn: Turn) -> None:
        b, first, points = self.b, turn.tree["first"], Vec(self._scalar, n)
        b.store(self._slots, b.const(0), b.const(1.0, points))

        def constants(place: Value, k: int) -> Value:
            return self._constants[place + k * n, points]

        def down(i: Value) -> None:
            own = i - first
            place = turn.constants + (own * 3 + self._pass(i, own)) * (4 * n)
            self._records[own] = place
            above = self._slots[self._number(self._node_slot, i), points]
            target = self._number(self._node_left, i)
            for k in range(2):
                self._slots[target + k * n] = above * constants(place, k)

        def up(i: Value) -> None:
            place = self._records[i - first]
            source = self._number(self._node_left, i)
            sums = [self._slots[source + k * n, points] for k in (0, 1)]
            if self.d.leaf is not None:
                values = self._leaf_values(i, turn.output, n)
                pairs = zip(sums, values, strict=True)
                sums = [b.binary("mul", *pair) for pair in pairs]
            target = self._number(self._node_slot, i)
            self._slots[target] = b.binary("add", *sums)
            given = sums[0] * constants(place, 2)
            total = self._multiply_add(sums[1], constants(place, 3), given)
            while total.type.lanes > 1:
                half = total.type.lanes // 2
                low = b.shuffle(total, total, range(half))
                total = low + b.shuffle(total, total, range(half, 2 * half))
            feature = self._number(self._node_feature, i)
            self._own[feature] = self._own[feature] + b.extract(total, 0)

        with b.loop(turn.tree["run"], turn.tree["last_run"], hint="run") as run:
            ends = [self._number(self._runs, run * 4 + k) for k in range(4)]
            with b.loop(ends[0], ends[1], hint="down") as i:
                down(i)
            with b.loop(ends[3] - ends[2], hint="up") as k:
                up(ends[3] - 1 - k)


class ThreadCode(ContributionCode):
    """Emits the code of one thread for one row."""

    space = "private"

    def _evaluate(self, rules: Rules) -> None:
        self._tests = TestCode(rules, self._t.tests)
        kind = np.zeros(max(1, len(self._t.tests.numbers)), np.int32)
        feature = kind.copy()
        for job_feature, job_kind, first, last in self._t.tests.jobs:
            feature[first:last], kind[first:last] = job_feature, job_kind
        self._line_feature = self._model("line_feature", feature)
        self._line_kind = self._model("line_kind", kind)

    def take(self, row: Value) -> None:
        """Set the row to explain."""
        rows, one = self._rows, row + 1
        self._rows = BlockRows(rows.rows, one, rows.stride, row, rows.n_features)

    def _pass_tests(self, first: Value, last: Value) -> None:
        b = self.b
        b.store(self._passed, b.const(0), b.const(1, U8))
        start = self._rows.first * self._rows.stride
        with b.loop(first, last, hint="n") as n:
            line = self._number(self._node_line, n)
            at = start + self._number(self._line_feature, line)
            x = self._rows.rows[at]
            number = self._tests.numbers[line]
            kinds = range(len(self._t.tests.kinds))
            tests = [
                lambda kind=kind: [self._tests.left(kind, number, x)] for kind in kinds
            ]
            (left,) = b.switch(self._number(self._line_kind, line), tests, [BOOL])
            before = self._passed[self._number(self._node_before, n)]
            left = left.to(U8)
            at = (n - first) * 2 + 1
            self._passed[at] = before & left
            self._passed[at + 1] = before & (left ^ b.const(1, U8))

    def _masks(self, turn: walk.Turn, i: Value) -> list[tuple[Value, Value]]:
        b = self.b
        at = i * 2 + 1
        left, right = (self._passed[at + k].ne(b.const(0, U8)) for k in range(2))
        return [(left, right)]


class ThreadLayout(GpuBlockLayout):
    """One forest, whose rows are each explained by a thread."""

    def __init__(self, hir: PredictEnsemble, shape: BlockShape, data: WalkData) -> None:
        self._hir, self._shape, self._data = hir, shape, data

    def start(self, block: layouts.BlockThreads) -> layouts.GpuBlockCode:
        """Allocate each thread's memory."""
        return _RowsOfBlock(self._hir, self._shape, self._data, block)


class _RowsOfBlock(layouts.GpuBlockCode):
    """Explains the rows of a block at its end, when all its trees are known."""

    def __init__(
        self,
        hir: PredictEnsemble,
        shape: BlockShape,
        data: WalkData,
        block: layouts.BlockThreads,
    ) -> None:
        self._shape, self._data, self._block = shape, data, block
        rules = Rules(block.b, hir.forest, hir.comparison, block.model)
        self._code = ThreadCode(rules, data, block.rows, 1, fuses=True)
        self._code.writes_to(block.result)
        forest = hir.forest
        held = forest.n_outputs if forest.vector_leaves else 1
        size = block.b.const(max(1, held * forest.n_features))
        self._sums: Buffer = block.b.alloc("sums", F64, size, space="private")

    def evaluate(self, first: Value) -> None:
        """Leave tests to the walks."""

    def add_trees(self, first: Value) -> None:
        """Leave trees to the end, as a thread takes them all."""

    def finish(self) -> None:
        """Walk all trees for each row that exists in the batch."""
        b, rows, shape = self._block.b, self._block.rows, self._shape

        def thread(number: Value) -> None:
            with b.loop(shape.rows // shape.threads, hint="each") as k:
                row = rows.first + (k * shape.threads + number)
                with b.when(row < rows.n_rows):
                    self._code.take(row)
                    self._code.start(self._sums)
                    with b.loop(len(self._data.part_start) - 1, hint="tree") as tree:
                        self._code.add_tree(tree, self._sums)
                    self._code.finish(self._sums, self._block.result, row, b.const(1))

        self._block.region(thread)


#: Bytes of slots that a cluster of nodes may use: most of a small L1 cache. With 80 KiB
#: walks took 1.1 to 1.3 times as long.
SLOT_BYTES = 20 << 10

#: Fewest nodes of a cluster, where trees need many points.
FEWEST_NODES = 8

#: Rows of the smallest vector.
LEAST_LANES = 8


def walk_data(forest: Forest, by_pairs: bool, in_lanes: bool) -> WalkData:
    """Lay out a normalised forest with covers.

    ``by_pairs`` is for interactions, ``in_lanes`` for points as the lanes of vectors.
    """
    means, paths = Means.of(forest), trace(forest)
    in_order = np.argsort(forest.tree_output, kind="stable")
    parts = cut(forest, paths)
    if parts.forest is not forest:
        forest, paths = parts.forest, trace(parts.forest)
    points = Points.of(parts, paths, in_lanes)
    most = SLOT_BYTES // (2 * VECTOR * walk.TOGETHER * points.of_turn)
    order = put_in_order(forest, paths, np.maximum(FEWEST_NODES, most))
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
    constants = fill(forest, paths, order, points, in_constants, dtype, rows)
    tests = Tests.of(forest)
    trees = Trees(
        forest=forest,
        tests=tests,
        start=order.start,
        line=tests.line_of[forest.predicate[order.node]],
        before=order.before,
        bias=means.bias,
    )
    return WalkData(
        trees=trees,
        part_start=np.append(0, np.cumsum(np.diff(parts.start)[in_order])),
        order=order,
        points=points,
        constants=constants,
        leaf=side_leaf,
        values=np.vstack([values, np.ones((1, values.shape[1]))]),
        rows=len(rows),
        pairs=pair_up(forest, paths, order) if by_pairs else None,
    )


def shared_data(hir: PredictEnsemble, by_pairs: bool, in_lanes: bool) -> WalkData:
    """Return a forest laid out once for all kernels that read it alike."""
    key = ("contributions", by_pairs, in_lanes)
    if key not in hir.shared:
        hir.shared[key] = walk_data(hir.forest, by_pairs, in_lanes)
    made: WalkData = hir.shared[key]
    return made


class ContributionLayout(layouts.BlockLayout):
    """One forest for one block size."""

    def __init__(
        self, hir: PredictEnsemble, target: Target, block: int, by_pairs: bool
    ) -> None:
        self._hir, self._block, self._fuses = hir, block, target.has_fma
        self._data = shared_data(hir, by_pairs, block == 1)

    def evaluate(self, b: Builder, rows: BlockRows, model: Model) -> layouts.BlockCode:
        rules = Rules(b, self._hir.forest, self._hir.comparison, model)
        code: type[ContributionCode] = ContributionCode
        if self._data.pairs is not None:
            code = InteractionCode
        elif self._block == 1:
            code = PointCode
        return code(rules, self._data, rows, self._block, self._fuses)


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
        """Raise for blocks that are not a word of rows."""
        least = VECTOR // hir.forest.leaf_value.itemsize
        sizes = [size for size in WORDS if size >= least]
        if not self.by_pairs:
            sizes.insert(0, 1)
        if block not in sizes:
            known = ", ".join(map(str, sizes))
            raise ScheduleError(
                f'represent("{self.name}") takes blocks of {known} rows; this '
                f"schedule has blocks of {block}."
            )

    def lay_out_blocks(
        self, hir: PredictEnsemble, target: Target, block: int
    ) -> layouts.BlockLayout:
        return ContributionLayout(hir, target, block, self.by_pairs)

    def check_gpu_block(self, hir: PredictEnsemble, shape: BlockShape) -> None:
        """Raise for interactions, and unless each thread has as many rows."""
        if self.by_pairs:
            raise ScheduleError(
                "represent(\"interactions\") runs only on CPUs; use target='cpu'."
            )
        if shape.rows % shape.threads:
            raise ScheduleError(
                'represent("contributions") needs the same number of rows for each '
                f"thread of a block; this schedule has {shape.rows} rows for "
                f"{shape.threads} threads."
            )

    def lay_out_gpu_blocks(
        self, hir: PredictEnsemble, target: Target, shape: BlockShape
    ) -> GpuBlockLayout:
        """Lay the forest out for a row a thread."""
        return ThreadLayout(hir, shape, shared_data(hir, False, False))


class Interactions(Contributions):
    """``represent("interactions")``: only for interaction values."""

    name = "interactions"
    elements: tuple[Element, ...] = ("interaction",)
    by_pairs = True


register(Contributions())
register(Interactions())
