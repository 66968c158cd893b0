"""Quantise the rows of a block: by columns where there are enough rows for a vector."""

from __future__ import annotations

from skforge.compiler.binning.block import ColumnCodes, part_rows
from skforge.compiler.binning.row_gather import RowCodes
from skforge.compiler.binning.rows import BlockRows, Model
from skforge.compiler.binning.transpose import lockstep, permuted, search_levels
from skforge.compiler.forest.bins import CodeTable, code_stride
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import Buffer, Value
from skforge.compiler.ir.lir.numpy_types import scalar_of
from skforge.compiler.target import Target


def quantize_block(
    b: Builder,
    hir: PredictEnsemble,
    table: CodeTable,
    target: Target,
    block: int,
    rows: BlockRows,
    count: Value,
    model: Model,
) -> Buffer:
    """Return scratch that holds the codes of the first ``count`` rows of a block.

    Parameters
    ----------
    b : Builder
        Receives the code.
    hir : PredictEnsemble
        Whose forest and comparison.
    table : CodeTable
        The columns; row i starts at ``i * code_stride(table)``.
    target : Target
        Its vectors.
    block : int
        Most rows of a block.
    rows : BlockRows
        Where they are.
    count : Value
        Rows of this block.
    model : callable
        Declares a buffer of model data.
    """
    item = hir.forest.threshold.dtype.itemsize
    lanes = max(2, target.vector_bits // (8 * item))
    by_column = block >= lanes
    room = block
    if by_column:
        part = part_rows(block, target.vector_bits // 32)
        room = -(-block // part) * part
    size = b.const(room * code_stride(table))
    codes = b.alloc("codes", scalar_of(table.dtype), size, alignment=64)
    if not table.n_columns:  # trees of single leaves test nothing
        return codes
    forest, comparison = hir.forest, hir.comparison
    if by_column:
        levels = search_levels(target, lanes, item)
        made = ColumnCodes(
            b,
            table,
            forest,
            comparison,
            lanes,
            levels,
            lockstep(target),
            permuted(target),
            block,
            model,
        )
        made.encode(rows, count, codes)
    else:
        RowCodes(b, table, forest, comparison, lanes, model).encode(rows, count, codes)
    return codes
