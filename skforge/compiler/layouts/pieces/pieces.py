"""``represent("pieces")``: deep trees without walks, for blocks of rows.

A tree is cut into a top and subtrees (``cut.py``), whose tests each row meets all
(``piece_walks.py``). Tests are read in order and serve many rows, where a walk reads
nodes here and there: 100 trees of full depth (10,000 nodes each), 4,096 rows, take 2.0
us a row on an EPYC Milan (AVX2), where tiles take 5.2 and scikit-learn 22.
"""

from __future__ import annotations

import numpy as np

from skforge.compiler.binning.buckets import CodePlaces
from skforge.compiler.ir.hir.nodes import PredictEnsemble, TiledForest
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.base import MakeCode
from skforge.compiler.layouts.blocks import block_sums
from skforge.compiler.layouts.pieces.cut import PieceTrees, cut_trees, top_tests
from skforge.compiler.layouts.pieces.piece_walks import SPARE, PieceWalks
from skforge.compiler.target import Target
from skforge.forest.bins import CodeTable, plan_codes
from skforge.forest.forest import Forest

#: Tests of a piece: the usual and the largest number. A byte numbers their exits.
USUAL, MOST = 192, 254

#: Most columns of codes: all of a row are transposed for each piece.
MOST_COLUMNS = 128

#: Registers of codes have this many.
LANES = 32

#: Most bytes of the buckets of a block.
BUCKET_BYTES = 8 << 20


def tests_of_piece(nodes: TiledForest) -> int | None:
    """Return the most tests of a piece, so that tops are small; None if none does."""
    fitting = (k for k in (USUAL, MOST) if top_tests(nodes, k).max(initial=0) <= MOST)
    return next(fitting, None)


def refusal(table: CodeTable) -> str | None:
    if not table.n_columns:
        return "it has no tests"
    if table.n_columns > MOST_COLUMNS:
        return f"it has {table.n_columns} columns of codes, more than {MOST_COLUMNS}"
    if bool(table.equal.any()) or not bool(table.ordered.all()):
        return "some tests are for categories or equality"
    return None


def pieces_of(hir: PredictEnsemble, target: Target) -> block_sums.Tiling[PieceTrees]:
    def lay_out() -> tuple[CodePlaces, PieceTrees, block_sums.LeafTable]:
        most = tests_of_piece(hir.tiles)
        assert hir.codes is not None and most is not None
        codes = CodePlaces.of(hir.forest, hir.codes, LANES)
        trees = cut_trees(hir.tiles, codes.place_of, codes.rank_of, most)
        return codes, trees, block_sums.leaf_table(hir.forest, trees.leaf_row)

    return block_sums.Tiling(hir, target, *hir.shared.once(("pieces",), lay_out))


class Pieces(layouts.BlockRepresentation):
    name = "pieces"
    row_group = block_sums.GROUP

    @staticmethod
    def plan_codes(forest: Forest) -> CodeTable:
        return plan_codes(forest, np.int16, merge=True)

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        width = min(4, hir.forest.n_outputs) * hir.forest.leaf_value.itemsize
        return hir.tiles.n_items // 2 * (8 + width)

    def check(self, hir: PredictEnsemble) -> None:
        if hir.codes is None:
            why = "compares codes; mark the loop over blocks of rows with quantize"
        elif hir.nest.tile_nodes != 1:
            why = "cuts trees itself; leave out tile_nodes"
        elif hir.reduction == "reproducible":
            why = 'sums floats in model order; use reduction="exact"'
        elif bool(((hir.tiles.leaf < 0) & (hir.tiles.predicate[:, 0] < 0)).any()):
            why = "needs no padded trees; leave out pad_trees and unroll_walk"
        elif reason := refusal(hir.codes):
            why = f"cannot compare the codes of this forest: {reason}"
        elif tests_of_piece(hir.tiles) is None:
            why = f"cuts trees into at most {MOST} pieces, and this forest needs more"
        else:
            return super().check(hir)
        self.refuse(f"{why}; or use another representation.")

    def check_block(self, hir: PredictEnsemble, block: int) -> None:
        self.check_groups(block, BUCKET_BYTES // (2 * (MOST + 1)) - SPARE)

    def block_code(self, hir: PredictEnsemble, target: Target, block: int) -> MakeCode:
        tiling = pieces_of(hir, target)
        return lambda rules, rows: PieceWalks(rules, tiling, rows, block)


layouts.register(Pieces())
