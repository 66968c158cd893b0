"""Quantises the rows of a block: by column if there are enough rows for a vector."""

from __future__ import annotations

from skforge.compiler.binning.block import ColumnBins, part_rows
from skforge.compiler.binning.row_gather import GatheredBins
from skforge.compiler.binning.rows import BlockRows
from skforge.compiler.binning.rules import Rules
from skforge.compiler.binning.search import Registers
from skforge.compiler.forest.bins import CodeTable, code_stride
from skforge.compiler.ir.lir.nodes import Buffer, Value
from skforge.compiler.ir.lir.numpy_types import scalar_of
from skforge.compiler.target import Target


def quantize_block(
    rules: Rules,
    table: CodeTable,
    target: Target,
    block: int,
    rows: BlockRows,
    count: Value,
) -> Buffer:
    """Return scratch memory with the codes of the first ``count`` rows of a block.

    A block has at most ``block`` rows; row i starts at ``i * code_stride(table)``.
    """
    b = rules.b
    registers = Registers.of(target, rules.forest.threshold.dtype)
    by_column = block >= registers.lanes
    room = block
    if by_column:
        part = part_rows(block, target.vector_bits // 32)
        room = -(-block // part) * part
    size = b.const(room * code_stride(table))
    codes = b.alloc("codes", scalar_of(table.dtype), size, alignment=64)
    if not table.n_columns:  # trees of single leaves test nothing
        return codes
    if by_column:
        ColumnBins(rules, table, registers, block).encode(rows, count, codes)
    else:
        GatheredBins(rules, table, registers.lanes).encode(rows, count, codes)
    return codes
