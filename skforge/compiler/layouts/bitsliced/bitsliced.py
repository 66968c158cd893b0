"""The bit-sliced representation: trees as bit logic over a table of predicates.

It lowers whole traversals of a block of rows, so schedules use it with
``cache_predicates`` and ``vectorize``. ``predicate_lines.py`` emits the input stage and
``sliced_trees.py`` the trees; ``predicate_table.py`` and ``sliced_layout.py`` lay out
the data that both read.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from skforge.compiler.binning.rules import BlockRows, ReadingRules
from skforge.compiler.binning.transpose import is_wide
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.nodes import Buffer
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.base import MakeCode
from skforge.compiler.layouts.bitsliced import (
    predicate_lines,
    sliced_layout,
    statistic_lines,
)
from skforge.compiler.layouts.bitsliced.predicate_table import (
    PredicateTable,
    TreeTileTests,
    plan_predicates,
    refusal,
)
from skforge.compiler.layouts.bitsliced.sliced_layout import BlockOfBits, slice_trees
from skforge.compiler.layouts.bitsliced.sliced_trees import GROUP, BitslicedLowering
from skforge.compiler.layouts.bitsliced.statistic_lines import (
    StatisticLowering,
    StatisticTests,
)
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.schedule.bound import predicate_trees

#: A schedule whose table of predicates takes more bytes a thread is an error.
TABLE_BYTES = 1 << 30


def table_and_code(
    hir: PredictEnsemble, target: Target, block: int
) -> tuple[PredicateTable, MakeCode]:
    forest, order = hir.forest, hir.tiles.tree_order
    # Ties are resolved part by part, but blocks in parts write their lines later.
    wide = is_wide(forest, target.vector_bits // 8, block)
    one_part = not wide and block <= predicate_lines.MAX_PART
    narrow = one_part and predicate_lines.narrows(forest, hir.comparison)
    tests = predicate_lines.narrowed(forest) if narrow else forest
    dtype = tests.threshold.dtype
    shape = BlockOfBits.of(forest, target, block, dtype)
    # Layouts for other block sizes share the predicates and trees.
    registers, tile = shape.registers, predicate_trees(hir.nest.loops)

    def laid_out() -> tuple[PredicateTable, sliced_layout.SlicedTrees]:
        own = None if tile is None else TreeTileTests.of(forest, order, tile)
        table = plan_predicates(tests, registers, forest.threshold, own)
        numbered = forest if own is None else own.forest(forest)
        given = table.line_of, order, table.n_lines
        return table, slice_trees(numbered, *given, tile=tile)

    key = ("bitsliced", id(forest), registers, tile)
    table, trees = hir.shared.once(key, laid_out)

    def make(rules: ReadingRules, rows: BlockRows) -> BitslicedLowering:
        predicates = predicate_lines.PredicateLowering(rules, table, shape)
        sliced = BitslicedLowering(rules, trees, order, shape)
        predicates.scratch()
        lines = sliced.scratch(rows)
        if tile is None:
            predicates.evaluate(rows, lines)
        else:
            predicates.open(rows)
            sliced.evaluate = partial(predicates.evaluate, rows, lines)
        return sliced

    return table, make


def code_of_hashes(hir: PredictEnsemble, target: Target, block: int) -> MakeCode:
    """Return what evaluates the tests of statistics on bytes that it makes."""
    forest, order = hir.forest, hir.tiles.tree_order
    numbers, hashed = statistic_lines.of_numbers(forest), forest.hashed
    assert hashed is not None
    tests = StatisticTests.of(forest, hir.comparison)
    shape = BlockOfBits.of(forest, target, block, forest.threshold.dtype)
    table, first = None, 0
    line_of = np.empty(forest.n_predicates, np.int32)
    if numbers.n_predicates:
        table = plan_predicates(numbers, shape.registers)
        line_of[forest.feature < forest.n_columns] = table.line_of
        first = table.n_lines
    line_of[tests.predicates] = first + np.arange(len(tests.predicates))
    trees = slice_trees(forest, line_of, order, first + tests.n_lines)

    def make(rules: ReadingRules, rows: BlockRows) -> BitslicedLowering:
        sliced = BitslicedLowering(rules, trees, order, shape)
        own = replace(rows, n_features=forest.n_columns)
        lines: Buffer | None = None
        if table is not None:
            of_numbers = ReadingRules(numbers, rules.comparison, rules.model)
            predicates = predicate_lines.PredicateLowering(of_numbers, table, shape)
            predicates.scratch()
            lines = sliced.scratch(rows)
            predicates.evaluate(own, lines)
        lines = lines or sliced.scratch(rows)
        where = block, first, target
        StatisticLowering(rules, hashed, tests, *where).evaluate(own, lines)
        return sliced

    return make


class Bitsliced(layouts.BlockRepresentation):
    name = "bitsliced"
    row_group = GROUP
    takes_tree_tiles = True

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        return sliced_layout.size_in_bytes(hir.forest)

    def check(self, hir: PredictEnsemble) -> None:
        self.check_single_nodes(hir)
        if not hir.forest.n_predicates:
            self.refuse(
                "evaluates predicates, but this forest of single leaves has none; use "
                'represent("sparse").'
            )
        refused = refusal(hir.forest)
        if refused is not None:
            raise ScheduleError(refused)
        sliced_layout.check_trees(hir.forest)
        super().check(hir)

    def check_block(self, hir: PredictEnsemble, block: int) -> None:
        if block % GROUP or block & (block - 1):
            self.refuse_block(block, f"of {GROUP} rows times a power of two")
        count, tile = hir.forest.n_predicates, predicate_trees(hir.nest.loops)
        if count * block // 8 > TABLE_BYTES and tile is not None:
            own = TreeTileTests.of(hir.forest, hir.tiles.tree_order, tile)
            count = int(np.diff(own.offset).max())
        size = count * block // 8
        if size > TABLE_BYTES:
            raise ScheduleError(
                f"{count} predicates of {block} rows take "
                f"{size >> 20} MiB per thread, more than the limit of "
                f"{TABLE_BYTES >> 20} MiB; use smaller blocks."
            )

    def block_code(self, hir: PredictEnsemble, target: Target, block: int) -> MakeCode:
        if hir.hashes:
            return code_of_hashes(hir, target, block)
        return table_and_code(hir, target, block)[1]


layouts.register(Bitsliced())
