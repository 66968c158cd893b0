"""Operands, buffers and bodies of LIR operations and statements, whatever they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, TypeVar

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import Body, Buffer, Op, Stmt, Value

OpOrStmt = TypeVar("OpOrStmt")

# What a statement binds; its other values are operands.
_BINDS = {"var", "params", "results"}
VALUE_TYPES = ("Value", "Value | None", "tuple[Value, ...]")
_operand_fields: dict[type[Any], tuple[str, ...]] = {}
_buffer_fields: dict[type[Any], tuple[str, ...]] = {}
_readers: dict[type[Any], Callable[[Any], tuple[Value, ...]]] = {}
_scalar_readers: dict[type[Any], Callable[[Any], Any]] = {}


def _operand_names(node: Any) -> tuple[str, ...]:
    """Return the fields of a node's class that hold values it reads."""
    kind = type(node)
    found = _operand_fields.get(kind)
    if found is None:
        binds = _BINDS | {"value"} if kind is lir.Let else _BINDS
        found = _operand_fields[kind] = tuple(
            f.name
            for f in fields(kind)
            if f.type in VALUE_TYPES and f.name not in binds
        )
    return found


def operands(op: Op) -> tuple[Value, ...]:
    """Return the values an operation reads."""
    reader = _readers.get(type(op))
    if reader is None:
        reader = _readers[type(op)] = _reader_of(type(op), _operand_names(op))
    return reader(op)


def _reader_of(
    kind: type[Any], names: tuple[str, ...]
) -> Callable[[Any], tuple[Value, ...]]:
    """Return the function that reads a class's operands, the fastest there is."""
    if not names:
        return lambda op: ()
    if any(f.type != "Value" for f in fields(kind) if f.name in names):
        return lambda op: _listed(op, names)
    read: Callable[[Any], Any] = attrgetter(*names)
    if len(names) == 1:
        return lambda op: (read(op),)
    return read


def _listed(op: Any, names: tuple[str, ...]) -> tuple[Value, ...]:
    found: list[Value] = []
    for name in names:
        part = getattr(op, name)
        if isinstance(part, Value):
            found.append(part)
        elif part is not None:
            found.extend(part)
    return tuple(found)


def scalars_of(op: Op) -> Any:
    """Return the fields of an operation that hold no values: kinds, lanes, flags."""
    kind = type(op)
    reader = _scalar_readers.get(kind)
    if reader is None:
        operand_names = _operand_names(op)
        names = [f.name for f in fields(kind) if f.name not in operand_names]
        reader = attrgetter(*names) if names else lambda op: None
        _scalar_readers[kind] = reader
    return reader(op)


def buffers_of(op: Op) -> list[Buffer]:
    """Return the buffers an operation reads."""
    kind = type(op)
    names = _buffer_fields.get(kind)
    if names is None:
        names = tuple(f.name for f in fields(kind) if f.type == "Buffer")
        _buffer_fields[kind] = names
    return [getattr(op, name) for name in names]


def map_operands(node: OpOrStmt, change: Callable[[Value], Value]) -> OpOrStmt:
    """Return an operation or statement with its operands changed.

    What a statement binds stays; its bodies stay too.
    """
    changes: dict[str, Any] = {}
    for name in _operand_names(node):
        part = getattr(node, name)
        new: Any
        if isinstance(part, Value):
            new = change(part)
        elif part:
            new = tuple(map(change, part))
        else:
            continue
        if new is not part and new != part:
            changes[name] = new
    if isinstance(node, lir.Grid | lir.BlockRegion):
        changes["dims"] = tuple((d, var, change(count)) for d, var, count in node.dims)
    elif isinstance(node, lir.Switch):
        changes["yields"] = tuple(tuple(map(change, case)) for case in node.yields)
    return replace(node, **changes) if changes else node  # type: ignore[type-var]


def operands_of_stmt(stmt: Stmt) -> Sequence[Value]:
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
