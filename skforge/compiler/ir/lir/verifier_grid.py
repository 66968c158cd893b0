"""Check that control around block regions is uniform and hosts read no memory."""

from __future__ import annotations

from collections.abc import Iterable

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir import walk
from skforge.compiler.ir.lir.nodes import Body, Grid, Stmt, Value
from skforge.compiler.ir.lir.printer import print_type
from skforge.compiler.ir.lir.verifier_ops import refuse


def check_uniform(grid: Grid) -> None:
    """Refuse control flow around a region that depends on what a region wrote.

    A region's values end with it, so only memory can carry them out. A value loaded
    outside regions from a buffer that a region of this grid writes is *computed in a
    region*, and so is every value derived from it.
    """
    from_regions: set[str] = set()
    stored = walk.written(grid.body)
    while True:
        before = len(from_regions)
        _spread(grid.body, stored, from_regions)
        if len(from_regions) == before:
            break
    for stmt in _outside_regions(grid.body):
        for value in walk.steers(stmt):
            if value.name in from_regions and walk.holds_region(stmt):
                refuse(f"%{value.name} was computed in a region and steers control")


def _outside_regions(body: Body) -> Iterable[Stmt]:
    for stmt in body:
        if not isinstance(stmt, lir.BlockRegion):
            yield stmt
            for inner in walk.bodies(stmt):
                yield from _outside_regions(inner)


def _spread(body: Body, stored: set[str], names: set[str]) -> None:
    for stmt in _outside_regions(body):
        if isinstance(stmt, lir.Let):
            read = [v.name for v in walk.operands(stmt.op)]
            loaded = any(b.name in stored for b in walk.buffers_of(stmt.op))
            if loaded or not names.isdisjoint(read):
                names.add(stmt.value.name)
            continue
        if any(v.name in names for v in walk.steers(stmt)):
            names.update(v.name for v in walk.bound_in(stmt))
        for sources, targets in walk.flows(stmt):
            if any(v.name in names for v in sources):
                names.update(v.name for v in targets)


# ---------------------------------------------------------------- hosts

_HOST_OPS = (lir.Unary, lir.Binary, lir.Compare, lir.Select, lir.Convert)


def check_host(stmt: Stmt) -> None:
    """Refuse a statement that the host cannot run between launches.

    The memory of a function with grids is the device's. The host computes integers (and
    knows constants), allocates global memory, copies, and loops around launches.
    """
    match stmt:
        case lir.Let(value=value, op=op):
            _check_number(value)
            if isinstance(op, lir.Const):
                return
            if not isinstance(op, _HOST_OPS):
                refuse("the host of a launch computes integers and nothing else")
            for number in (value, *walk.operands(op)):
                if number.type.element.is_float:
                    refuse("the host of a launch computes with no floats")
        case lir.Alloc(buffer=buffer):
            if buffer.space == "private":
                refuse("private memory is allocated in a launch")
        case lir.For() | lir.Grid() | lir.BlockRegion() | lir.Transfer():
            pass
        case _:
            refuse("the host of a launch computes, allocates, loops and launches only")


def _check_number(value: Value) -> None:
    if not isinstance(value.type, lir.Scalar):
        refuse(f"the host of a launch has no {print_type(value.type)}")
