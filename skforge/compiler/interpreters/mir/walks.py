"""Walks of the MIR interpreter: one hop at a time through the trees of tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.bins import encode_rows
from skforge.compiler.forest.reference import evaluate_predicates
from skforge.compiler.interpreters.mir.memory import Fault
from skforge.compiler.ir.hir.nodes import PredictEnsemble


class Walks:
    """Where each row goes from each item."""

    def __init__(self, hir: PredictEnsemble, X: NDArray[Any]) -> None:
        self._hir, self._rows = hir, X
        self._codes: NDArray[Any] | None = None
        self._is_leaf = (hir.tiles.leaf >= 0).tolist()
        self._truth: dict[int, NDArray[np.bool_]] = {}

    def is_leaf(self, item: int) -> bool:
        """Return whether an item is a leaf."""
        return bool(self._is_leaf[item])

    def next(self, item: int, row: int) -> int:
        """Return the item behind the exit that a row takes; node 0 is the top bit."""
        tiles = self._hir.tiles
        truth = self._tests(row)
        bits = 0
        for predicate in tiles.predicate[item].tolist():
            bits = bits * 2 + (predicate >= 0 and bool(truth[predicate]))
        child = int(tiles.child[item, tiles.exit_table[tiles.shape[item], bits]])
        if child < 0:
            raise Fault("a row took the exit of a dummy")
        return child

    def _tests(self, row: int) -> NDArray[np.bool_]:
        """Return the outcome of every predicate for a row."""
        if row not in self._truth:
            codes = self._codes_of(row)
            if codes is not None:
                table = self._hir.codes
                assert table is not None
                self._truth[row] = codes[table.column_of] <= table.rank_of
                return self._truth[row]
            forest = self._hir.forest
            every = np.arange(forest.n_predicates)
            values = self._rows[row, forest.feature]
            self._truth[row] = evaluate_predicates(forest, every, values)
        return self._truth[row]

    def _codes_of(self, row: int) -> NDArray[Any] | None:
        """Return the codes of a row, where the kernel compares codes."""
        hir = self._hir
        if hir.codes is None:
            return None
        if self._codes is None:
            self._codes = encode_rows(hir.codes, hir.forest, hir.comparison, self._rows)
        made: NDArray[Any] = self._codes[row]
        return made
