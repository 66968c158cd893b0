"""Stage a block's rows in shared memory with coalesced loads.

SilvanForge §7. If neighbouring threads take neighbouring rows, rows are stored
feature-major: every lane reads another bank whatever its feature (notes on GPU
layouts: 1.0 cycle per read against 3 and more). Otherwise rows are stored one after
another with an odd stride in words, which avoids bank conflicts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from skforge.compiler.binning.row_gather import GatheredBins
from skforge.compiler.binning.rules import Rules
from skforge.compiler.ir.lir.nodes import U32, Value
from skforge.compiler.ir.lir.types import scalar_of
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.layouts.base import SharedMemory
from skforge.compiler.lowering.kernel import Kernel, RowView
from skforge.exceptions import ScheduleError

#: Runs a body for each row and column, on all threads of a block.
Cells: TypeAlias = Callable[[Value, int, Callable[[Value, Value], None]], None]

#: Banks of shared memory, one word wide.
BANKS = 32

#: Codes are stored as whole words if these fit in 1 / WORDS_SHARE of shared memory.
WORDS_SHARE = 4


def _layout(rows: int, by_row: bool) -> str:
    return "feature" if by_row and rows % BANKS == 0 else "padded"


def _strides(layout: str, rows: int, columns: int) -> tuple[int, int, int]:
    """Return the row stride, the column stride and the total number of elements."""
    if layout == "feature":
        return 1, rows, rows * columns
    stride = columns | 1 if layout == "padded" else columns
    return stride, 1, rows * stride


def share_rows(
    k: Kernel, stmt: mir.CacheRows, by_row: bool, memory: SharedMemory, cells: Cells
) -> RowView:
    """Copy rows to shared memory and return where walks read them.

    ``by_row`` says that neighbouring threads take neighbouring rows; ``cells``
    distributes rows and columns over the block's threads.
    """
    n_features, rows = k.hir.forest.n_features, stmt.rows
    limits = [bound.limit for bound in rows.bounds if isinstance(bound.limit, int)]
    if not limits:
        raise ScheduleError(
            "cache brings a block's rows to shared memory, which needs a fixed number "
            "of them; tile the batch with a positive size."
        )
    first, count = k.extent(rows)
    layout = stmt.layout or _layout(min(limits), by_row)
    stride, step, size = _strides(layout, min(limits), n_features)
    cached = memory.allocate("cached_rows", k.rows.element, size, "cache of rows")
    start = first * k.row_stride

    def copy(row: Value, feature: Value) -> None:
        there = row * k.row_stride + feature
        cached[row * stride + feature * step] = k.rows[start + there]

    cells(count, n_features, copy)
    return RowView(cached, stride, first, step)


def share_codes(
    k: Kernel, stmt: mir.QuantizeRows, by_row: bool, memory: SharedMemory
) -> RowView:
    """Compute the rows' codes in shared memory and return where walks read them."""
    b, table = k.b, k.hir.codes
    assert table is not None
    n_columns = max(1, table.n_columns)
    first, count = k.extent(stmt.rows)
    stride, step, size = _strides(_layout(stmt.size, by_row), stmt.size, n_columns)
    fits = size * U32.bytes * WORDS_SHARE <= k.target.shared_bytes
    element = U32 if fits else scalar_of(table.dtype)
    codes = memory.allocate("codes", element, size, "quantize")
    rules = Rules(b, k.hir.forest, k.hir.comparison, k.model_buffer)
    search = GatheredBins(rules, table, 0, step, element)

    def column(i: Value) -> None:
        row, number = i // n_columns, i % n_columns
        start = (first + row) * k.row_stride
        search.write_column(k.rows, start, row * stride, number, codes)

    if search.has_order:
        memory.each(count * n_columns, column)

    def tests(row: Value) -> None:
        start = (first + row) * k.row_stride
        search.write_tests(k.rows, start, row * stride, codes)

    if search.has_tests:
        memory.each(count, tests)
    return RowView(codes, stride, first, step)
