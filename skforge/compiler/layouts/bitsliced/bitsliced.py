"""The bit-sliced representation: trees as bit logic over a table of predicates.

It lowers whole traversals of a block of rows, so schedules use it with
``cache_predicates`` and ``vectorize``. ``predicate_lines.py`` emits the input stage and
``sliced_trees.py`` the trees; ``predicate_table.py`` and ``sliced_layout.py`` lay out
the data that both read.
"""

from __future__ import annotations

from skforge.compiler.binning.rows import BlockRows, Model
from skforge.compiler.binning.rules import Rules
from skforge.compiler.binning.transpose import WIDE
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.layouts.base import (
    BlockCode,
    BlockLayout,
    BlockRepresentation,
    BlockShape,
    GpuBlockLayout,
    GpuBlockRepresentation,
    register,
)
from skforge.compiler.layouts.bitsliced.gpu import check_shape, lay_out
from skforge.compiler.layouts.bitsliced.narrow_rows import narrowed, narrows
from skforge.compiler.layouts.bitsliced.predicate_lines import (
    MAX_PART,
    PredicateLowering,
)
from skforge.compiler.layouts.bitsliced.predicate_table import (
    PredicateTable,
    plan_predicates,
    refusal,
)
from skforge.compiler.layouts.bitsliced.sliced_layout import (
    MAX_BITS,
    MAX_CODE_BITS,
    BlockOfBits,
    SlicedTrees,
    check_trees,
    slice_trees,
)
from skforge.compiler.layouts.bitsliced.sliced_trees import GROUP, BitslicedLowering
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError

#: A schedule whose table of predicates takes more bytes a thread is an error.
TABLE_BYTES = 1 << 30


class BitslicedLayout(BlockLayout):
    """One forest for one target and block size."""

    def __init__(self, hir: PredictEnsemble, target: Target, block: int) -> None:
        forest = hir.forest
        # Ties are resolved part by part, but blocks in parts write their lines later.
        one_part = forest.n_features <= WIDE and block <= MAX_PART
        narrow = one_part and narrows(forest, hir.comparison)
        tests = narrowed(forest) if narrow else forest
        self._hir, self._block = hir, block
        self._shape = BlockOfBits.of(target, block, tests.threshold.dtype)
        # Layouts for other block sizes share the predicates and trees.
        long_codes = self._shape.byte_lookup
        key = ("bitsliced", id(forest), self._shape.registers, long_codes)
        if key not in hir.shared:
            table = plan_predicates(tests, self._shape.registers)
            order = hir.tiles.tree_order
            bits = MAX_CODE_BITS if long_codes else MAX_BITS
            trees = slice_trees(forest, table.line_of, order, table.n_lines, bits)
            hir.shared[key] = (table, trees)
        self.table: PredicateTable
        self._trees: SlicedTrees
        self.table, self._trees = hir.shared[key]

    def evaluate(self, b: Builder, rows: BlockRows, model: Model) -> BlockCode:
        """Fill the table of lines for one block of rows."""
        forest = self._hir.forest
        rules = Rules(b, forest, self._hir.comparison, model)
        predicates = PredicateLowering(rules, self.table, self._shape)
        order = self._hir.tiles.tree_order
        sliced = BitslicedLowering(rules, self._trees, order, self._shape)
        predicates.scratch()
        lines = sliced.scratch(rows)
        predicates.evaluate(rows, lines)
        return sliced


class Bitsliced(BlockRepresentation, GpuBlockRepresentation):
    """``represent("bitsliced")``."""

    name = "bitsliced"
    row_group = GROUP

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        """Return the approximate bytes of node numbers and leaf tables."""
        forest = hir.forest
        per_code = 4 + forest.leaf_value.itemsize * forest.n_outputs
        return forest.n_leaves * 4 * per_code + 16 * forest.n_nodes

    def check(self, hir: PredictEnsemble) -> None:
        """Raise for forests and schedules that bit logic cannot express."""
        if hir.reduction == "reproducible":
            raise ScheduleError(
                'represent("bitsliced") sums floats in model order; use '
                'reduction="exact" or another representation.'
            )
        if hir.tiles.tile_size > 1:
            raise ScheduleError(
                'represent("bitsliced") evaluates single nodes; leave out tile_nodes.'
            )
        if not hir.forest.n_predicates and not hir.nest.on_gpu:
            raise ScheduleError(
                'represent("bitsliced") evaluates predicates, but this forest of '
                'single leaves has none; use represent("sparse").'
            )
        refused = refusal(hir.forest)
        if refused is not None and not hir.nest.on_gpu:
            raise ScheduleError(refused)
        check_trees(hir.forest)
        super().check(hir)

    def check_block(self, hir: PredictEnsemble, block: int) -> None:
        """Raise for blocks that do not fill planes, or whose table is too large."""
        if block % GROUP or block & (block - 1):
            raise ScheduleError(
                f'represent("bitsliced") takes blocks of {GROUP} rows times a power '
                f"of two; this schedule has blocks of {block}."
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
    ) -> BlockLayout:
        """Lay predicates and trees out for blocks of ``block`` rows."""
        return BitslicedLayout(hir, target, block)

    def check_gpu_block(self, hir: PredictEnsemble, shape: BlockShape) -> None:
        """Raise if rows do not fill words, or threads cannot share them evenly."""
        check_shape(shape)

    def lay_out_gpu_blocks(
        self, hir: PredictEnsemble, target: Target, shape: BlockShape
    ) -> GpuBlockLayout:
        """Lay predicates and trees out for the thread blocks of a GPU."""
        return lay_out(hir, shape, target.shared_bytes)


register(Bitsliced())
