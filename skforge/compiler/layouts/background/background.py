"""The representation of interventional values, for blocks of 64 rows.

``game.py`` lays the forest and the background rows out, and ``walk.py`` emits
the code, which is the same for all background rows.
"""

from __future__ import annotations

import numpy as np

from skforge.compiler.binning.rules import BlockRows, Model, Rules
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.mir.nodes import Element
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.background.game import Game
from skforge.compiler.layouts.background.walk import BackgroundCode
from skforge.compiler.layouts.contributions.block import Trees
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError

#: Rows of a block: a word has a bit for each.
BLOCK = 64


def game_of(hir: PredictEnsemble) -> Game:
    """Return the layout of a schedule's forest, made on its first use."""
    key = ("background",)
    if key not in hir.shared:
        hir.shared[key] = Game.of(hir.forest)
    found: Game = hir.shared[key]
    return found


class BackgroundLayout(layouts.BlockLayout):
    """One forest, for background rows that come later."""

    def __init__(self, hir: PredictEnsemble) -> None:
        self._hir, self._game = hir, game_of(hir)

    def evaluate(self, b: Builder, rows: BlockRows, model: Model) -> layouts.BlockCode:
        hir, game = self._hir, self._game
        rules = Rules(b, hir.forest, hir.comparison, model)
        trees = Trees(
            forest=hir.forest,
            tests=game.tests,
            start=game.start,
            line=game.line,
            before=game.before,
            bias=np.zeros(hir.forest.n_outputs),
        )
        return BackgroundCode(rules, game, trees, rows, BLOCK)


class Background(layouts.BlockRepresentation):
    """``represent("background")``: only for ``predict_contribs``."""

    name = "background"
    takes_values = True
    elements: tuple[Element, ...] = ("contribution",)

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        return hir.forest.n_nodes * 128

    def check_block(self, hir: PredictEnsemble, block: int) -> None:
        """Raise for blocks that are not a word of rows."""
        if block != BLOCK:
            raise ScheduleError(
                f'represent("background") takes blocks of {BLOCK} rows; this schedule '
                f"has blocks of {block}."
            )

    def lay_out_blocks(
        self, hir: PredictEnsemble, target: Target, block: int
    ) -> layouts.BlockLayout:
        return BackgroundLayout(hir)


layouts.register(Background())
