"""Kernels that stop early: a part's time is what its stores cost.

The parts of a kernel tell themselves apart by the scratch they write: columns, bits of
codes, lines of predicates, planes of leaf numbers, sums, the result. Without the stores
of a part all that only leads to them is dead; what is left is compiled as ever. No
control flow depends on what a row is, so that what runs after a missing part takes the
time it always takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.walk import bodies, statements
from skforge.compiler.passes.lir.simplify import drop_dead

#: Parts of a kernel that evaluates predicates for blocks of rows, in their order.
BLOCK_PARTS = ("columns", "search", "lines", "fold", "index", "look-up", "output")

#: Parts of a kernel that walks.
WALK_PARTS = ("walk", "look-up", "sum")

_WRITES = {
    "columns": "columns",
    "code_planes": "search",
    "code_steps": "lines",
    "lines": "lines",
    "leaf_planes": "fold",
    "leaf_numbers": "index",
    "block_sums": "look-up",
    "result": "output",
}
_LEAVES = ("leaf_values",)


def parts_of(function: lir.Function) -> tuple[str, ...]:
    return BLOCK_PARTS if _leaf_numbers(function.body) else WALK_PARTS


def prefixes(function: lir.Function) -> dict[str, lir.Function]:
    """Return the kernel up to each part, by the part's name; the last is whole."""
    parts = parts_of(function)
    return {part: cut(function, parts[: i + 1]) for i, part in enumerate(parts)}


def without_each(function: lir.Function) -> dict[str, lir.Function]:
    """Return the kernel without each of its parts that can be missing alone.

    Leaf numbers cannot: any bytes in their place would be looked up out of bounds. Nor
    can anything of a walk.
    """
    parts = parts_of(function)
    if parts == WALK_PARTS:
        return {}
    return {
        part: cut(function, [other for other in parts if other != part])
        for part in parts
        if part != "index"
    }


def cut(function: lir.Function, kept: Iterable[str]) -> lir.Function:
    """Return a whole kernel with only some of its parts.

    What it computes is of no use; how long it takes is.
    """
    parts, whole = frozenset(kept), parts_of(function)
    if parts == frozenset(whole):
        return function
    if whole == WALK_PARTS:
        return replace(function, body=drop_dead(_walk_body(function.body, parts)))
    body = _block_body(function.body, parts, _leaf_numbers(function.body))
    while (less := _without_empty(drop_dead(body))) != body:
        body = less
    return replace(function, body=body)


def _leaf_numbers(body: lir.Body) -> lir.Buffer | None:
    """Return the scratch of leaf numbers, which only kernels of blocks have."""
    for stmt in statements(body):
        if isinstance(stmt, lir.Alloc) and _hint(stmt.buffer) == "leaf_numbers":
            return stmt.buffer
    return None


def _hint(buffer: lir.Buffer) -> str:
    return buffer.name.partition(".")[0]


# ------------------------------------------------------------ blocks of rows


def _block_body(
    body: lir.Body, kept: frozenset[str], numbers: lir.Buffer | None
) -> lir.Body:
    made: list[lir.Stmt] = []
    for stmt in body:
        part = _part(stmt)
        if part is not None and part not in kept:
            continue
        made.append(_map_bodies(stmt, lambda b: _block_body(b, kept, numbers)))
        match stmt:
            case lir.Let(value=index, op=lir.PlanesToIndex()):
                # Leaf numbers stay in a register: stored, if nobody looks them up.
                unread = "index" in kept and "look-up" not in kept
                if unread and numbers is not None and numbers.element == lir.U8:
                    zero = lir.Value(f"{index.name}.zero", lir.I64)
                    made.append(lir.Let(zero, lir.Const(0)))
                    made.append(lir.Store(numbers, zero, index))
            case _:
                pass
    return tuple(made)


def _part(stmt: lir.Stmt) -> str | None:
    """Return the part a statement with an effect belongs to; None of the others."""
    match stmt:
        case lir.StorePlane():
            return "fold"  # lists of operations write their lines beside predicates
        case lir.Prefetch():
            return "columns"
        case lir.Store(buffer=buffer) | lir.Scatter(buffer=buffer):
            part = _WRITES.get(_hint(buffer))
            if part is None:
                raise ValueError(f"the buffer @{buffer.name} belongs to no part.")
            return part
        case _:
            return None


def _without_empty(body: lir.Body) -> lir.Body:
    """Drop switches that do nothing in any case."""
    return tuple(
        _map_bodies(stmt, _without_empty)
        for stmt in body
        if not (isinstance(stmt, lir.Switch) and not stmt.results and _idle(stmt))
    )


def _idle(stmt: lir.Switch) -> bool:
    return not any(stmt.cases)


def _map_bodies(stmt: lir.Stmt, change: Callable[[lir.Body], lir.Body]) -> lir.Stmt:
    match stmt:
        case lir.For(body=body) | lir.ParallelFor(body=body):
            return replace(stmt, body=change(body))
        case lir.While(before=before, body=body):
            return replace(stmt, before=change(before), body=change(body))
        case lir.If(then=then, orelse=orelse):
            return replace(stmt, then=change(then), orelse=change(orelse))
        case lir.Switch(cases=cases):
            return replace(stmt, cases=tuple(map(change, cases)))
        case _:
            assert not bodies(stmt)
            return stmt


# ------------------------------------------------------------ walks


def _walk_body(body: lir.Body, kept: frozenset[str]) -> lir.Body:
    made: list[lir.Stmt] = []
    for stmt in body:
        match stmt:
            case lir.Let(op=lir.Load() | lir.Gather()):
                made += _walk_load(stmt, kept)
            case _:
                made.append(_map_bodies(stmt, lambda b: _walk_body(b, kept)))
    return tuple(made)


def _walk_load(let: lir.Let, kept: frozenset[str]) -> list[lir.Stmt]:
    """Take a leaf's number for its value, and sums to be zero before each tree."""
    assert isinstance(let.op, lir.Load | lir.Gather)
    name, value, index = _hint(let.op.buffer), let.value, let.op.index
    if name in _LEAVES and "look-up" not in kept:
        if not isinstance(value.type, lir.Vec) or isinstance(index.type, lir.Vec):
            return [lir.Let(value, lir.Convert(index))]
        number = lir.Value(f"{value.name}.number", value.type.element)
        return [lir.Let(number, lir.Convert(index)), lir.Let(value, lir.Splat(number))]
    if name == "result" and "sum" not in kept:
        element = value.type.element if isinstance(value.type, lir.Vec) else value.type
        is_float = isinstance(element, lir.Scalar) and element.is_float
        return [lir.Let(value, lir.Const(0.0 if is_float else 0))]
    return [let]
