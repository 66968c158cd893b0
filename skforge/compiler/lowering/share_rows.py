"""Bring a block's rows to shared memory: coalesced reads, reads without conflicts.

SilvanForge §7. Where neighbouring threads take rows, feature-major: every lane reads
another bank whatever its feature (notes on GPU layouts: 1.0 cycle a read against 3 and
more). Else row after row, an odd number of words apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from skforge.compiler.ir.lir.nodes import Buffer, Scalar, Value
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
