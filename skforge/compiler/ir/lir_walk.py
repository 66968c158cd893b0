"""Operands, buffers and bodies of LIR operations and statements, whatever they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, TypeVar

from skforge.compiler.ir import lir
from skforge.compiler.ir.lir import Body, Buffer, Op, Stmt, Value

OpOrStmt = TypeVar("OpOrStmt")

# What a statement binds; its other values are operands.
_BINDS = {"var", "params", "results"}


_fields: dict[type[Any], tuple[str, ...]] = {}


def _names(node: Any) -> tuple[str, ...]:
    kind = type(node)
    if kind not in _fields:
        _fields[kind] = tuple(f.name for f in fields(kind))
    return _fields[kind]


def operands(op: Op) -> list[Value]:
    """Return the values an operation reads."""
    found: list[Value] = []
    for name in _names(op):
        part = getattr(op, name)
        if isinstance(part, Value):
            found.append(part)
        elif isinstance(part, tuple):
            found.extend(part)
    return found


def buffers_of(op: Op) -> list[Buffer]:
    """Return the buffers an operation reads."""
    parts = (getattr(op, name) for name in _names(op))
    return [part for part in parts if isinstance(part, Buffer)]


def map_operands(node: OpOrStmt, change: Callable[[Value], Value]) -> OpOrStmt:
    """Return an operation or statement with its operands changed.

    What a statement binds stays; its bodies stay too.
    """
    changes: dict[str, Any] = {}
    for name in _names(node):
        if name in _BINDS or (name == "value" and isinstance(node, lir.Let)):
            continue
        part = getattr(node, name)
        new = _mapped(name, part, change)
        if new is not part and new != part:
            changes[name] = new
    return replace(node, **changes) if changes else node  # type: ignore[type-var]


def _mapped(name: str, part: Any, change: Callable[[Value], Value]) -> Any:
    if isinstance(part, Value):
        return change(part)
    if name == "dims":
        return tuple((dim, var, change(count)) for dim, var, count in part)
    if isinstance(part, tuple) and part:
        if isinstance(part[0], Value):
            return tuple(map(change, part))
        if name == "yields":  # of a switch: a tuple for each case
            return tuple(tuple(map(change, case)) for case in part)
    return part


def operands_of_stmt(stmt: Stmt) -> list[Value]:
    """Return the values a statement reads: operands, conditions and yields."""
    found: list[Value] = []

    def note(value: Value) -> Value:
        found.append(value)
        return value

    if isinstance(stmt, lir.Let):
        return operands(stmt.op)
    map_operands(stmt, note)
    return found


def bodies(stmt: Stmt) -> tuple[Body, ...]:
    """Return the bodies inside a statement."""
    match stmt:
        case lir.While(before=before, body=body):
            return (before, body)
        case lir.If(then=then, orelse=orelse):
            return (then, orelse)
        case lir.Switch(cases=cases):
            return cases
        case (
            lir.For(body=body)
            | lir.ParallelFor(body=body)
            | lir.Grid(body=body)
            | lir.BlockRegion(body=body)
        ):
            return (body,)
        case _:
            return ()


def statements(body: Body) -> Iterator[Stmt]:
    """Return every statement of a body and of the bodies inside it."""
    for stmt in body:
        yield stmt
        for inner in bodies(stmt):
            yield from statements(inner)


def written(body: Body) -> set[str]:
    """Return the names of the buffers that a body writes."""
    names = set()
    for stmt in statements(body):
        match stmt:
            case (
                lir.Store(buffer=buffer)
                | lir.Scatter(buffer=buffer)
                | lir.AtomicAdd(buffer=buffer)
                | lir.StorePlane(table=buffer)
                | lir.TransposeBlock(target=buffer)
                | lir.UnpermuteStore(target=buffer)
            ):
                names.add(buffer.name)
            case _:
                pass
    return names
