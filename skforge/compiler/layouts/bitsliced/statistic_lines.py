"""Lines of bits of rows whose categories are still hashes, made in the kernel.

The statistics of 64 rows are bytes, one line each (``encoder_routines.py``), and a test
of one compares such a line with a number: no row of float32 is written, and none is
transposed. Tests of numbers are evaluated as in other kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Int32s, Int64s
from skforge.compiler.binning.encoder_routines import BLOCK, BlockEncoder
from skforge.compiler.binning.rules import BlockRows, ReadingRules
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I64, U8, Buffer, Value, Vec
from skforge.compiler.target import Target
from skforge.forest.categories import HashedCategories
from skforge.forest.encoder_tables import ARRAYS, SIZES, tables_of
from skforge.forest.forest import Forest

#: Tests of one turn of the loop; lines are padded.
TESTS_A_TURN = 4


@dataclass(frozen=True, slots=True, eq=False)
class StatisticTests:
    """The tests of statistics, in the order of their lines.

    A row goes right at test i exactly if its byte of statistic ``statistic[i]`` is
    ``least[i]`` or more.
    """

    predicates: Int64s
    statistic: Int32s
    least: NDArray[np.uint8]

    @classmethod
    def of(cls, forest: Forest, comparison: str) -> StatisticTests:
        """Return those of a normalised forest."""
        some = np.flatnonzero(forest.feature >= forest.n_columns)
        some = some[np.lexsort((forest.threshold[some], forest.feature[some]))]
        side: Literal["left", "right"] = "right" if comparison == "le" else "left"
        least = np.searchsorted(np.arange(256.0), forest.threshold[some], side)
        statistic = (forest.feature[some] - forest.n_columns).astype(np.int32)
        return cls(some, statistic, least.astype(np.uint8))

    @property
    def n_lines(self) -> int:
        return -(-len(self.predicates) // TESTS_A_TURN) * TESTS_A_TURN


def of_numbers(forest: Forest) -> Forest:
    """Return a forest of the tests of numbers alone, for its predicates."""
    some = forest.feature < forest.n_columns
    names = "feature", "comparison", "threshold", "missing", "missing_left"
    chosen = {name: getattr(forest, name)[some] for name in names}
    sets = np.zeros(int(some.sum()) + 1, forest.category_offset.dtype)
    width = forest.n_columns
    return replace(
        forest, n_features=width, hashed=None, category_offset=sets, **chosen
    )


class StatisticLowering:
    def __init__(
        self,
        rules: ReadingRules,
        hashed: HashedCategories,
        tests: StatisticTests,
        block: int,
        first_line: int,
        target: Target,
    ) -> None:
        self._tests, self._target = tests, target
        self._block, self._first = block, first_line
        padding = (0, tests.n_lines - len(tests.predicates))
        model = rules.model
        self._place = model("test_place", np.pad(tests.statistic * BLOCK, padding))
        self._least = model("test_least", np.pad(tests.least, padding))
        sizes, data = tables_of(hashed)
        self._sizes = dict(zip(SIZES, sizes, strict=True))
        self._arrays = {
            name: model(f"encoder_{name}", array)
            for name, array in zip(ARRAYS, data, strict=True)
        }

    def evaluate(self, rows: BlockRows, lines: Buffer) -> None:
        sizes = {name: b.const(size) for name, size in self._sizes.items()}
        sizes["width"] = rows.stride
        encoder = BlockEncoder(sizes, self._arrays, rows.rows, self._target)
        left = (rows.n_rows - rows.first).min(self._block)
        with b.loop(0, left, BLOCK, hint="rows") as r:
            encoder.block(rows.first + r, (left - r).min(BLOCK))
            self._compare(encoder.bytes, lines, r)

    def _compare(self, statistics: Buffer, lines: Buffer, r: Value) -> None:
        vec, size = Vec(U8, BLOCK), self._block // 8
        first = self._first * size + r // 8
        with b.loop(0, self._tests.n_lines, TESTS_A_TURN, hint="test") as i:
            for k in range(TESTS_A_TURN):
                values = statistics[self._place[i + k].to(I64), vec]
                least = b.splat(self._least[i + k], BLOCK)
                at = first + (i + k) * size
                lines[at] = b.mask_bits(values >= least, I64)
