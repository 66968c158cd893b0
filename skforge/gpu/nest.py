"""What a GPU's loops hold, and how rows lie in the shared memory of its blocks."""

from __future__ import annotations

from typing import Any, TypeVar

from skforge._typing import Float64s
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import loops_in, statements
from skforge.schedule.nest import Size

ColumnCount = TypeVar("ColumnCount", int, Float64s)

#: Statements that fill the shared memory of a block.
FILLS = mir.CacheRows | mir.CacheTrees | mir.QuantizeRows


def holds_grid(stmt: mir.Stmt) -> bool:
    return any(i.on_grid for i in loops_in((stmt,)))


def holds_threads(stmt: mir.Stmt) -> bool:
    return any(i.on_threads for i in loops_in((stmt,)))


def caches(stmt: mir.Stmt) -> bool:
    return any(isinstance(inner, FILLS) for inner in statements((stmt,)))


def row_stride(columns: ColumnCount, padded: Any = True) -> ColumnCount:
    """Return how many values apart rows lie in shared memory: padded, in all banks."""
    return columns + (padded & (columns % 2 == 0))


def fixed_size(dims: tuple[Size | None, ...], n_outputs: int) -> int | None:
    n = 1
    for dim in dims:
        if dim is not None and not isinstance(dim, int):
            return None
        n *= n_outputs if dim is None else dim
    return n


def block_dims(body: mir.Body) -> dict[str, int]:
    dims: dict[str, int] = {}
    for loop in loops_in(body):
        if loop.on_threads:
            dims[loop.kind] = max(dims.get(loop.kind, 1), loop.most_trips)
    return dict(sorted(dims.items()))


#: Threads that exchange values without shared memory, on every GPU.
WARP = 32
