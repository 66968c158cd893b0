"""Bring a block's rows to shared memory: coalesced reads, reads without conflicts.

SilvanForge §7. Where neighbouring threads take rows, feature-major: every lane reads
another bank whatever its feature (notes on GPU layouts: 1.0 cycle a read against 3 and
more). Else row after row, an odd number of words apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from skforge.compiler.binning.row_gather import GatheredBins
from skforge.compiler.binning.rules import Rules
from skforge.compiler.forest.bins import CodeTable
from skforge.compiler.ir.lir.nodes import U32, Buffer, Scalar, Value
from skforge.compiler.ir.lir.numpy_types import scalar_of
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.lowering.kernel import Kernel, RowView
from skforge.exceptions import ScheduleError

#: Runs a body for each row and column, by all threads of a block together.
Cells: TypeAlias = Callable[[Value, int, Callable[[Value, Value], None]], None]

#: Banks of shared memory, one word wide.
BANKS = 32


def share_rows(
    k: Kernel,
    stmt: mir.CacheRows,
    by_row: bool,
    share: Callable[[str, Scalar, int, str], Buffer],
    cells: Cells,
) -> RowView:
    """Copy rows and return where walks read them.

    ``by_row`` says that neighbouring threads take rows; ``share`` allocates shared
    memory and ``cells`` deals rows and columns out to the block's threads.
    """
    b, n_features, rows = k.b, k.hir.forest.n_features, stmt.rows
    limits = [bound.limit for bound in rows.bounds if isinstance(bound.limit, int)]
    if not limits:
        raise ScheduleError(
            "cache brings a block's rows to shared memory, which needs a fixed number "
            "of them; tile the batch with a positive size."
        )
    most, what = min(limits), "cache of rows"
    first = k.affine(rows.start)
    count = b.binary("max", k.bound(rows.bounds), 0)
    layout = stmt.layout
    if layout is None:
        layout = "feature" if by_row and most % BANKS == 0 else "padded"
    if layout == "feature":
        stride, step = 1, most
        cached = share("cached_rows", k.rows.element, most * n_features, what)
    else:
        stride, step = n_features | 1 if layout == "padded" else n_features, 1
        cached = share("cached_rows", k.rows.element, most * stride, what)
    start = b.binary("mul", first, k.row_stride)

    def copy(row: Value, feature: Value) -> None:
        there = b.binary("add", b.binary("mul", row, k.row_stride), feature)
        value = b.load(k.rows, b.binary("add", start, there))
        here = b.binary("add", b.mul(row, stride), b.mul(feature, step))
        b.store(cached, here, value)

    cells(count, n_features, copy)
    return RowView(cached, stride, first, step)


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
    rules = Rules(b, k.hir.forest, k.hir.comparison, k.model_buffer)
    search = GatheredBins(rules, table, 0, step, element)

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
