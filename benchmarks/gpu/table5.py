"""The whole of Table 5 modelled: 5184 schedules of a forest, without lowering each.

Kernels of Table 5 differ in few things that change their code: what stores the trees,
trees in flight, padding, where rows and trees are read. One schedule of each such kind
is lowered and compiled, and its registers and instructions stand for all of it. Shared
memory is that of the rows, the sums and the tiles of trees, the last from one lowered
schedule of each size. ``tests`` hold that against what lowering says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.gpu.cost import Built, Modeller, Walked
from benchmarks.gpu.deal import Deal
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.passes.mir.chunk_leaves import trees_a_chunk
from skforge.compiler.schedule.schedule import Schedule
from skforge.exceptions import ScheduleError

#: Shared memory is given out in such pieces.
UNIT = 16


@dataclass(slots=True)
class Table5:
    """Schedules of Table 5 on one chip.

    Parameters
    ----------
    modeller : Modeller
        Of the forest, in exact mode.
    codes : dict
        What is known of kinds of kernels, of other forests as well.
    """

    modeller: Modeller
    codes: dict[Any, Walked] = field(default_factory=dict)
    _tiles: dict[Any, int] = field(default_factory=dict)
    _data: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        """Note what tests of this forest are made of: other code for others."""
        forest = self.modeller.forest
        tests = tuple(np.unique(forest.comparison).tolist())
        missing = tuple(np.unique(forest.missing).tolist())
        dtypes = forest.input_dtype.name, forest.accumulator_dtype.name
        self._data = tests, missing, dtypes, forest.n_outputs > 1

    def seconds(
        self,
        schedule: Schedule,
        batches: Sequence[int],
        bound: tuple[PredictEnsemble, Deal] | None = None,
    ) -> dict[int, float]:
        """Return the modelled times of a schedule; ``ScheduleError`` if not legal.

        ``bound`` is what it binds to, where that is known of another chip.
        """
        built = self.built(schedule, *(bound or self.bound(schedule)))
        sizes = {n: (-(-n // built.deal.rows), 1) for n in batches}
        return self.modeller.cost_of_walk(built, sizes, schedule).seconds

    def bound(self, schedule: Schedule) -> tuple[PredictEnsemble, Deal]:
        """Return the loops of a schedule, and who takes what."""
        hir = self.modeller.bound(schedule)
        return hir, Deal.of(hir)

    def built(self, schedule: Schedule, hir: PredictEnsemble, deal: Deal) -> Built:
        """Return a schedule's walk; ``ScheduleError`` if it is not legal, or spills."""
        shared = self.shared_bytes(schedule, hir, deal)
        most = self.modeller.chip.target.shared_bytes
        if shared > most:
            raise ScheduleError(f"{shared:,} bytes of shared memory, not {most:,}")
        in_flight = max(1, min(deal.in_flight, deal.tree.shape[1]))
        chunk = self._chunk(hir, deal)
        chunk = chunk if chunk < hir.tiles.n_trees else 0
        key = (
            self._data,
            hir.nest.representation,
            deal.padded,
            in_flight,
            deal.rows_in == "memory",
            deal.tile > 0,
            chunk > 0,
        )
        if key not in self.codes:
            made = self.modeller.made(schedule)
            self.codes[key] = self.modeller.walked(made, in_flight)
        code = self.codes[key]
        if max(code.local_bytes):
            raise ScheduleError(f"it keeps {max(code.local_bytes)} bytes in memory")
        return Built(hir, deal, code, shared, 1, in_flight, chunk)

    def shared_bytes(self, schedule: Schedule, hir: PredictEnsemble, deal: Deal) -> int:
        """Return the shared memory of a block."""
        rows, each = self._rows(hir, deal), _bytes_a_tree(hir, deal)
        known = rows + _up(self._chunk(hir, deal) * each)
        if not deal.tile:
            return known
        key = hir.nest.representation, deal.padded, deal.tile
        if key not in self._tiles:
            made = self.modeller.made(schedule, self._roomy())
            leaves = hir.tiles.n_trees * each if deal.shared_sums else 0
            self._tiles[key] = made.shared_bytes() - rows - _up(leaves)
        return known + self._tiles[key]

    def _roomy(self) -> Any:
        """Return the chip with more shared memory than there is."""
        return replace(self.modeller.chip.target, shared_bytes=1 << 30)

    @staticmethod
    def _rows(hir: PredictEnsemble, deal: Deal) -> int:
        if deal.rows_in == "memory":
            return 0
        n = hir.forest.n_features
        stride = n | 1 if deal.rows_in == "padded" else n
        return _up(deal.rows * stride * hir.forest.input_dtype.itemsize)

    def _chunk(self, hir: PredictEnsemble, deal: Deal) -> int:
        """Return the trees with leaves in shared memory at a time."""
        if not deal.shared_sums:
            return 0
        room = self.modeller.chip.target.shared_bytes
        n_trees, step = hir.tiles.n_trees, deal.tile or deal.tree_threads
        factor = 1 if deal.tile else deal.in_flight
        # Rows are taken with a word of padding here.
        rows = deal.rows * (hir.forest.n_features | 1)
        left = room - rows * hir.forest.input_dtype.itemsize * (
            deal.rows_in != "memory"
        )
        return trees_a_chunk(
            n_trees, step, factor, _bytes_a_tree(hir, deal), room, left
        )


def _bytes_a_tree(hir: PredictEnsemble, deal: Deal) -> int:
    forest = hir.forest
    return deal.rows * forest.leaf_value.shape[1] * forest.leaf_value.itemsize


def _up(n_bytes: int) -> int:
    return -(-n_bytes // UNIT) * UNIT
