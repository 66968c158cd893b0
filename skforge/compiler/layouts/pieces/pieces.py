"""``represent("pieces")``: deep trees without walks, for blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skforge.compiler.binning.buckets import CodePlaces
from skforge.compiler.binning.rules import BlockRows, Model
from skforge.compiler.forest.bins import CodeTable, plan_codes
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.pieces.cut import CutTrees, cut_trees
from skforge.compiler.layouts.pieces.piece_walks import PieceWalks
from skforge.compiler.layouts.tiles.tile_leaves import leaf_table
from skforge.compiler.layouts.tiles.tiled_trees import Tiling
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError

#: Most tests of a piece.
MOST = 192


@dataclass(frozen=True, slots=True, eq=False)
class PieceLayout(layouts.BlockLayout):
    """One forest for one target and block size."""

    tiling: Tiling
    block: int

    def evaluate(self, b: Builder, rows: BlockRows, model: Model) -> layouts.BlockCode:
        """Quantise the rows of a block."""
        walks = PieceWalks(b, self.tiling, self.tiling.trees, self.block, model)
        walks.take(rows)
        return walks


class Pieces(layouts.BlockRepresentation):
    """``represent("pieces")``."""

    name = "pieces"
    row_group = 16
    byte_limit = 1 << 36

    @staticmethod
    def plan_codes(forest: Forest) -> CodeTable:
        """Return codes whose columns mix both rules for missing values."""
        return plan_codes(forest, np.uint16, merge=True)

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        return hir.tiles.n_items * 8

    def check_block(self, hir: PredictEnsemble, block: int) -> None:
        """Raise for blocks whose rows 16 bits do not number."""
        if block > 1 << 16:
            raise ScheduleError("too many rows")

    def lay_out_blocks(
        self, hir: PredictEnsemble, target: Target, block: int
    ) -> layouts.BlockLayout:
        key = ("pieces",)
        if key not in hir.shared:
            codes = CodePlaces.of(hir.forest, hir.codes, 32)
            trees = cut_trees(hir.tiles, codes.place_of, codes.rank_of, MOST)
            hir.shared[key] = codes, trees, leaf_table(hir.forest, trees.leaf_row)
        return PieceLayout(Tiling(hir, target, *hir.shared[key]), block)


layouts.register(Pieces())
