"""The bit-sliced representation on a GPU: its table is in shared memory.

A block evaluates ``rows`` rows, 32 to a word; word l of a line is called *lane* l. A
block of 1024 rows has 32 lanes, one for each thread of a warp, so that the threads of a
warp read adjacent words of the same line. ``threads / lanes`` trees are folded at once.
``predicates.py`` plans the lines and ``rows.py`` fills them; ``trees.py`` lays out the
trees and ``walks.py`` folds them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.rules import ReadingRules
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.nodes import U32
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.base import BlockShape, GpuBlockLayout
from skforge.compiler.layouts.bitsliced.sliced_layout import folds
from skforge.exceptions import ScheduleError
from skforge.gpu.bitsliced.predicates import WORD, Geometry, TestPlan, plan_tests
from skforge.gpu.bitsliced.rows import BitRows
from skforge.gpu.bitsliced.trees import BitTrees, lay_out_trees
from skforge.gpu.bitsliced.walks import NUMBERS, WHAT, BitWalks

#: A group's leaf values are copied to shared memory if they take at most these bytes.
STAGED_BYTES = 32 << 10


def lay_out(
    hir: PredictEnsemble, shape: BlockShape, shared_bytes: int
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


class GpuBitslicedLayout(GpuBlockLayout):
    def __init__(self, hir: PredictEnsemble, shape: BlockShape, wide: int = 1) -> None:
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
        forest = self._forest
        size = self.trees.most_leaves * forest.leaf_value.itemsize
        return forest.leaf_value.shape[1] == 1 and size <= STAGED_BYTES

    def shared_bytes(self) -> int:
        numbers = 4 * NUMBERS * self.geometry.group * self.geometry.lanes
        leaves = self.trees.most_leaves * self._forest.leaf_value.itemsize
        parts = (4 * self.trees.n_words, numbers, leaves * self.stages_leaves)
        return sum(-(-part // 16) * 16 for part in parts)

    # ------------------------------------------------------------ code

    def start(self, block: layouts.BlockThreads) -> layouts.GpuBlockCode:
        forest, g = self._forest, self.geometry
        lines = block.share("slots", U32, max(4, self.trees.n_words), WHAT)
        rules = ReadingRules(block.b, forest, self._hir.comparison, block.model)
        rows = BitRows(block, self.tests, rules, g, lines)
        return BitWalks(rows, self.trees, forest, self._trees, self.stages_leaves)


def _tables(
    forest: Forest, order: NDArray[np.int32], trees: int
) -> list[NDArray[np.int64]]:
    size, tables = max(1, trees), []
    of_tree = np.split(forest.predicate, forest.tree_offset[1:-1])
    for k in range(0, max(1, len(order)), size):
        parts = [of_tree[tree] for tree in order[k : k + size]]
        tested = np.unique(np.concatenate([*parts, np.zeros(0, np.int32)]))
        tables.append(tested[tested >= 0].astype(np.int64))
    return tables


def refusal_of(shape: BlockShape) -> str:
    lanes = shape.rows // WORD
    group = shape.threads // max(1, lanes)
    if shape.rows % WORD or shape.threads != lanes * group or WORD % group:
        return (
            f"packs {WORD} rows into a word, so a block must have a multiple of {WORD} "
            f"rows and each thread 1, 2, 4, 8, 16 or {WORD} of them; this schedule has "
            f"{shape.rows} rows for {shape.threads} threads."
        )
    return ""
