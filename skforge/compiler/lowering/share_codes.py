"""Bring a block's rows to a GPU's shared memory as codes: a search a thread.

The codes are as wide as a bank where there is room, since narrower ones make lanes
share banks (1.75 cycles a read for two bytes against 1.0).
"""

from __future__ import annotations

from collections.abc import Callable

from skforge.compiler.binning.row_gather import RowCodes
from skforge.compiler.forest.bins import CodeTable
from skforge.compiler.ir.lir.nodes import U32, Buffer, Scalar, Value
from skforge.compiler.ir.lir.numpy_types import scalar_of
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.lowering.kernel import Kernel, RowView
from skforge.compiler.lowering.share_rows import BANKS

#: Codes take at most this part of shared memory as whole words.
WORDS_SHARE = 4


def share_codes(
    k: Kernel,
    stmt: mir.QuantizeRows,
    table: CodeTable,
    by_row: bool,
    share: Callable[[str, Scalar, int, str], Buffer],
    each: Callable[[Value, Callable[[Value], None]], None],
) -> RowView:
    """Search rows and return where walks read their codes.

    ``by_row`` says that neighbouring threads take rows; ``share`` allocates shared
    memory and ``each`` deals work out to the block's threads.
    """
    b, n_columns = k.b, max(1, table.n_columns)
    first = k.affine(stmt.rows.start)
    count = b.binary("max", k.bound(stmt.rows.bounds), 0)
    if by_row and stmt.size % BANKS == 0:
        stride, step, size = 1, stmt.size, stmt.size * n_columns
    else:
        stride, step, size = n_columns | 1, 1, stmt.size * (n_columns | 1)
    fits = size * U32.bytes * WORDS_SHARE <= k.target.shared_bytes
    element = U32 if fits else scalar_of(table.dtype)
    codes = share("codes", element, size, "quantize")
    forest = k.hir.forest
    search = RowCodes(
        b, table, forest, k.hir.comparison, 0, k.model_buffer, step, element
    )

    def column(i: Value) -> None:
        row, number = b.binary("div", i, n_columns), b.binary("rem", i, n_columns)
        start = b.binary("mul", b.binary("add", first, row), k.row_stride)
        search.write_column(k.rows, start, b.mul(row, stride), number, codes)

    if search.has_order:
        each(b.mul(count, n_columns), column)

    def tests(row: Value) -> None:
        start = b.binary("mul", b.binary("add", first, row), k.row_stride)
        search.write_tests(k.rows, start, b.mul(row, stride), codes)

    if search.has_tests:
        each(count, tests)
    return RowView(codes, stride, first, step)
