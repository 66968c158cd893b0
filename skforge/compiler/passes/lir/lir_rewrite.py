"""What rewrites of LIR share: fresh names, bodies and names of statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import Body, Function, Stmt, Value
from skforge.compiler.ir.lir.walk import operands_of_stmt, statements
from skforge.compiler.passes.lir.simplify_fold import known


class FreshBuilder(Builder):
    """Writes LIR into a function that has names already."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self._taken = {param.name for param in function.params}
        for stmt in statements(function.body):
            self._taken.update(v.name for v in bound_in(stmt))
            if isinstance(stmt, lir.Alloc):
                self._taken.add(stmt.buffer.name)

    def name(self, hint: str) -> str:
        """Return a name that the function does not have."""
        found = super().name(hint)
        while found in self._taken:
            found = super().name(hint)
        return found


def bound_by(stmt: Stmt) -> tuple[Value, ...]:
    """Return the values a statement binds for those after it."""
    match stmt:
        case lir.Let(value=value):
            return (value,)
        case (
            lir.For(results=results)
            | lir.While(results=results)
            | lir.If(results=results)
            | lir.Switch(results=results)
        ):
            return results
        case _:
            return ()


def bound_in(stmt: Stmt) -> tuple[Value, ...]:
    """Return all values a statement binds itself, those of its bodies left out."""
    match stmt:
        case lir.For(var=var, params=params):
            return (var, *params, *bound_by(stmt))
        case lir.While(params=params):
            return (*params, *bound_by(stmt))
        case lir.ParallelFor(var=var):
            return (var,)
        case lir.Grid(dims=dims) | lir.BlockRegion(dims=dims):
            return tuple(var for _, var, _ in dims)
        case _:
            return bound_by(stmt)


def free_values(body: Body) -> dict[str, Value]:
    """Return the values by name that a body reads and does not bind."""
    read: dict[str, Value] = {}
    bound: set[str] = set()
    for stmt in statements(body):
        read.update((v.name, v) for v in operands_of_stmt(stmt))
        bound.update(v.name for v in bound_in(stmt))
    return {name: value for name, value in read.items() if name not in bound}


def map_bodies(stmt: Stmt, change: Callable[[Body], Body]) -> Stmt:
    """Return a statement with its bodies changed, in the order they run."""
    match stmt:
        case (
            lir.For(body=body)
            | lir.ParallelFor(body=body)
            | lir.Grid(body=body)
            | lir.BlockRegion(body=body)
        ):
            return replace(stmt, body=change(body))
        case lir.While(before=before, body=body):
            before = change(before)
            return replace(stmt, before=before, body=change(body))
        case lir.If(then=then, orelse=orelse):
            then = change(then)
            return replace(stmt, then=then, orelse=change(orelse))
        case lir.Switch(cases=cases):
            return replace(stmt, cases=tuple(map(change, cases)))
        case _:
            return stmt


def constants_of(
    function: Function, given: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the i32 and i64 values that are known, by name, if some are given."""
    found = {name: lir.Const(value) for name, value in (given or {}).items()}
    for value, op in _lets(function.body):
        made = op if isinstance(op, lir.Const) else known(op, value.type, found)
        if isinstance(made, lir.Const):
            found[value.name] = made
        elif made is not None and made.name in found:
            found[value.name] = found[made.name]
    return {name: int(const.value) for name, const in found.items()}


def _lets(body: Body) -> Iterator[tuple[Value, lir.Op]]:
    for stmt in statements(body):
        if isinstance(stmt, lir.Let) and stmt.value.type in (lir.I32, lir.I64):
            yield stmt.value, stmt.op
