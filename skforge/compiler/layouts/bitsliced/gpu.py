"""The bit-sliced representation on a GPU: a table of predicates in shared memory.

A block evaluates ``rows`` rows, 32 to a word; word l of a line is called *lane* l. A
block of 1024 rows has 32 lanes, one for each thread of a warp, so that the threads of a
warp read adjacent words of the same line. ``threads / lanes`` trees are folded at once.
``gpu_predicates.py`` plans the lines and ``gpu_rows.py`` fills them; ``gpu_trees.py``
lays out the trees and ``gpu_walks.py`` folds them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.rules import Rules
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.nodes import U32
from skforge.compiler.layouts.base import (
    BlockShape,
    BlockThreads,
    GpuBlockCode,
    GpuBlockLayout,
)
from skforge.compiler.layouts.bitsliced.gpu_predicates import (
    WORD,
    Geometry,
    TestPlan,
    plan_tests,
)
from skforge.compiler.layouts.bitsliced.gpu_rows import BitRows
from skforge.compiler.layouts.bitsliced.gpu_trees import BitTrees, lay_out_trees
from skforge.compiler.layouts.bitsliced.gpu_walks import NUMBERS, WHAT, BitWalks
from skforge.compiler.layouts.bitsliced.sliced_layout import folds
from skforge.exceptions import ScheduleError

#: Words that a thread folds at once if all trees have the same shape.
WIDE = 2

#: A group's leaf values are copied to shared memory if they take at most these bytes.
STAGED_BYTES = 32 << 10


def check_shape(shape: BlockShape) -> None:
    """Raise if rows do not fill words, or threads cannot share them evenly."""
    lanes = shape.rows // WORD
    group = shape.threads // max(1, lanes)
    if shape.rows % WORD or shape.threads != lanes * group or WORD % group:
        raise ScheduleError(
            f"{WHAT} packs {WORD} rows into a word, so a block must have a multiple "
            f"of {WORD} rows and each thread 1, 2, 4, 8, 16 or {WORD} of them; this "
            f"schedule has {shape.rows} rows for {shape.threads} threads."
        )


def lay_out(
    hir: PredictEnsemble, shape: BlockShape, shared_bytes: int
) -> GpuBitslicedLayout:
    """Lay a forest out, with as many words a thread at once as pay off.

    Two words at once take 2.6 instructions a node and word instead of 4.5 (sm_90). They
    also double the trees that are folded at once, and the shapes of those must not
    differ within a warp.

    Raises
    ------
    ScheduleError
        If a block's table of predicates does not fit; nothing is laid out then.
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
    if alike and lanes % WIDE == 0:
        made = GpuBitslicedLayout(hir, shape, WIDE)
        if made.shared_bytes() <= shared_bytes:
            return made
    return GpuBitslicedLayout(hir, shape)


class GpuBitslicedLayout(GpuBlockLayout):
    """One forest, laid out for blocks of one shape."""

    def __init__(self, hir: PredictEnsemble, shape: BlockShape, wide: int = 1) -> None:
        forest = self._forest = hir.forest
        self._hir, self._trees = hir, max(1, shape.trees)
        self.geometry = Geometry(shape.rows, shape.threads, wide)
        order = hir.tiles.tree_order
        key = ("bitsliced gpu", id(forest), id(order), shape, wide)
        if key not in hir.shared:
            tables = _tables(forest, order, self._trees)
            plan = plan_tests(forest, tables, self.geometry.stride)
            trees = lay_out_trees(forest, order, self._trees, plan, self.geometry)
            hir.shared[key] = plan, trees
        self.tests: TestPlan
        self.trees: BitTrees
        self.tests, self.trees = hir.shared[key]

    @property
    def stages_leaves(self) -> bool:
        """Whether each group's leaf values are copied to shared memory."""
        forest = self._forest
        size = self.trees.most_leaves * forest.leaf_value.itemsize
        return forest.leaf_value.shape[1] == 1 and size <= STAGED_BYTES

    def shared_bytes(self) -> int:
        """Return the bytes of shared memory that a block takes."""
        numbers = 4 * NUMBERS * self.geometry.group * self.geometry.lanes
        leaves = self.trees.most_leaves * self._forest.leaf_value.itemsize
        parts = (4 * self.trees.n_words, numbers, leaves * self.stages_leaves)
        return sum(-(-part // 16) * 16 for part in parts)

    # ------------------------------------------------------------ code

    def start(self, block: BlockThreads) -> GpuBlockCode:
        """Allocate the table and set the sums to the base."""
        forest, g = self._forest, self.geometry
        lines = block.share("slots", U32, max(4, self.trees.n_words), WHAT)
        rules = Rules(block.b, forest, self._hir.comparison, block.model)
        rows = BitRows(block, self.tests, rules, g, lines)
        return BitWalks(rows, self.trees, forest, self._trees, self.stages_leaves)


def _tables(
    forest: Forest, order: NDArray[np.int32], trees: int
) -> list[NDArray[np.int64]]:
    """Return the predicates of each tile of trees."""
    size = max(1, trees)
    parts = range(0, max(1, len(order)), size)
    return [_predicates(forest, order[k : k + size]) for k in parts]


def _predicates(forest: Forest, trees: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the distinct predicates that the given trees test."""
    parts = [
        forest.predicate[forest.tree_offset[t] : forest.tree_offset[t + 1]]
        for t in trees
    ]
    found = np.unique(np.concatenate([*parts, np.zeros(0, np.int32)]))
    return found[found >= 0].astype(np.int64)
