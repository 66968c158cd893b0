"""The bit-sliced representation: trees as bit logic over a table of predicates.

It lowers whole traversals of a block of rows, so schedules use it with
``cache_predicates`` and ``vectorize``. ``predicate_lines.py`` emits the input stage and
``sliced_trees.py`` the trees; ``predicate_table.py`` and ``sliced_layout.py`` lay out
the data that both read. On GPUs it is ``skforge/gpu/layouts/bitsliced``.
"""

from __future__ import annotations

from skforge.compiler.binning.rules import BlockRows, Model, ReadingRules
from skforge.compiler.binning.transpose import WIDE
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.bitsliced import predicate_lines, sliced_layout
from skforge.compiler.layouts.bitsliced.predicate_table import (
    PredicateTable,
    plan_predicates,
    refusal,
)
from skforge.compiler.layouts.bitsliced.sliced_layout import slice_trees
from skforge.compiler.layouts.bitsliced.sliced_trees import GROUP, BitslicedLowering
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError

#: A schedule whose table of predicates takes more bytes a thread is an error.
TABLE_BYTES = 1 << 30


class BitslicedLayout(layouts.BlockLayout):
    def __init__(self, hir: PredictEnsemble, target: Target, block: int) -> None:
        forest = hir.forest
        # Ties are resolved part by part, but blocks in parts write their lines later.
        one_part = forest.n_features <= WIDE and block <= predicate_lines.MAX_PART
        narrow = one_part and predicate_lines.narrows(forest, hir.comparison)
        tests = predicate_lines.narrowed(forest) if narrow else forest
        self._hir, self._block = hir, block
        dtype = tests.threshold.dtype
        self._shape = sliced_layout.BlockOfBits.of(forest, target, block, dtype)
        # Layouts for other block sizes share the predicates and trees.
        registers, long_codes = self._shape.registers, self._shape.byte_lookup
        bits = sliced_layout.MAX_CODE_BITS if long_codes else sliced_layout.MAX_BITS

        def laid_out() -> tuple[PredicateTable, sliced_layout.SlicedTrees]:
            table, order = plan_predicates(tests, registers), hir.tiles.tree_order
            sliced = slice_trees(forest, table.line_of, order, table.n_lines, bits)
            return table, sliced

        key = ("bitsliced", id(forest), registers, long_codes)
        self.table, self._trees = hir.shared.once(key, laid_out)

    def evaluate(self, b: Builder, rows: BlockRows, model: Model) -> layouts.BlockCode:
        rules = ReadingRules(self._hir.forest, self._hir.comparison, model)
        predicates = predicate_lines.PredicateLowering(rules, self.table, self._shape)
        order = self._hir.tiles.tree_order
        sliced = BitslicedLowering(rules, self._trees, order, self._shape)
        predicates.scratch()
        predicates.evaluate(rows, sliced.scratch(rows))
        return sliced


class Bitsliced(layouts.BlockRepresentation):
    name = "bitsliced"
    row_group = GROUP

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        return sliced_layout.size_in_bytes(hir.forest)

    def check(self, hir: PredictEnsemble) -> None:
        self.check_single_nodes(hir)
        if not hir.forest.n_predicates and not hir.nest.on_grid:
            self.refuse(
                "evaluates predicates, but this forest of single leaves has none; use "
                'represent("sparse").'
            )
        refused = refusal(hir.forest)
        if refused is not None and not hir.nest.on_grid:
            raise ScheduleError(refused)
        sliced_layout.check_trees(hir.forest, even=not hir.nest.on_grid)
        super().check(hir)

    def check_block(self, hir: PredictEnsemble, block: int) -> None:
        if block % GROUP or block & (block - 1):
            self.refuse(
                f"takes blocks of {GROUP} rows times a power of two; this schedule has "
                f"blocks of {block}."
            )
        size = hir.forest.n_predicates * block // 8
        if size > TABLE_BYTES:
            raise ScheduleError(
                f"{hir.forest.n_predicates} predicates of {block} rows take "
                f"{size >> 20} MiB per thread, more than the limit of "
                f"{TABLE_BYTES >> 20} MiB; use smaller blocks."
            )

    def lay_out_blocks(
        self, hir: PredictEnsemble, target: Target, block: int
    ) -> layouts.BlockLayout:
        return BitslicedLayout(hir, target, block)


layouts.register(Bitsliced())
