"""Access to operands, buffers and bodies of LIR, by the roles that fields declare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from functools import cache
from operator import attrgetter
from typing import Any, ParamSpec, TypeVar, get_type_hints

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import Body, Buffer, Op, Stmt, Value
from skforge.compiler.ir.lir.types import Operand, Result, Role, Steering

OpOrStmt = TypeVar("OpOrStmt")
P = ParamSpec("P")
T = TypeVar("T")


def per_class(make: Callable[P, T]) -> Callable[P, T]:
    return cache(make)  # type: ignore[return-value]  # classes are hashable


@per_class
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


@per_class
def names_of(kind: type[Any], *roles: Role) -> tuple[str, ...]:
    hints = _hints(kind)
    declared = {name: getattr(hints[name], "__metadata__", ()) for name in hints}
    return tuple(f.name for f in fields(kind) if {*declared[f.name]} & {*roles})


class _Readers(dict[type[Any], Callable[[Any], Any]]):
    """What reads a part of a node, by class: most of a pass's time is spent there."""

    def __init__(self, make: Callable[[type[Any]], Callable[[Any], Any]]) -> None:
        self._make = make

    def __missing__(self, kind: type[Any]) -> Callable[[Any], Any]:
        reader = self[kind] = self._make(kind)
        return reader


def _listed(part: Any) -> Iterator[Value]:
    if isinstance(part, Value):
        yield part
    elif part is not None:
        for item in part:
            yield from _listed(item)


def operands(node: Op | Stmt) -> tuple[Value, ...]:
    """Return the values that an operation or a statement reads, without its bodies'."""
    values: tuple[Value, ...] = _OPERANDS[type(node)](node)
    return values


def _operand_reader(kind: type[Any]) -> Callable[[Any], tuple[Value, ...]]:
    if kind is lir.Let:
        return lambda let: operands(let.op)
    if names_of(kind, "dims"):
        return lambda launch: tuple(count for _, _, count in launch.dims)
    return _value_reader(kind, "operand", "steers")


def _value_reader(kind: type[Any], *roles: Role) -> Callable[[Any], tuple[Value, ...]]:
    names = names_of(kind, *roles)
    single = (Operand, Steering, Result)
    if all(_hints(kind)[name] in single for name in names):
        return _field_reader(names)
    read: Callable[[Any], Any] = attrgetter(*names)
    return lambda node: tuple(_listed(read(node)))


def _field_reader(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if not names:
        return lambda node: ()
    read: Callable[[Any], Any] = attrgetter(*names)
    return read if len(names) > 1 else lambda node: (read(node),)


_OPERANDS = _Readers(_operand_reader)


def map_operands(node: OpOrStmt, change: Callable[[Value], Value]) -> OpOrStmt:
    """Return a node with its operands changed; bound values and bodies stay."""
    changes: dict[str, Any] = {}
    for name in names_of(type(node), "operand", "steers"):
        part = getattr(node, name)
        new = _changed(part, change)
        if new is not part and new != part:
            changes[name] = new
    if isinstance(node, (lir.Grid, lir.BlockRegion)):
        changes["dims"] = tuple((d, var, change(count)) for d, var, count in node.dims)
    return replace(node, **changes) if changes else node  # type: ignore[type-var]


def _changed(part: Any, change: Callable[[Value], Value]) -> Any:
    if isinstance(part, Value):
        return change(part)
    return part and tuple(_changed(item, change) for item in part)


@per_class
def scalar_reader(kind: type[Any]) -> Callable[[Any], Any]:
    names = [name for name in _hints(kind) if name not in names_of(kind, "operand")]
    return attrgetter(*names) if names else lambda op: None


_BUFFERS: tuple[Role, ...] = ("reads", "writes", "allocates")


def buffers_of(node: Op | Stmt, *roles: Role) -> tuple[Buffer, ...]:
    if roles:
        return tuple([getattr(node, name) for name in names_of(type(node), *roles)])
    buffers: tuple[Buffer, ...] = _ACCESSED[type(node)](node)
    return buffers


_ACCESSED = _Readers(lambda kind: _field_reader(names_of(kind, *_BUFFERS)))


def written(body: Body) -> set[str]:
    nodes = statements(body)
    return {buffer.name for node in nodes for buffer in buffers_of(node, "writes")}


def bodies(stmt: Stmt) -> tuple[Body, ...]:
    inside: tuple[Body, ...] = _BODIES[type(stmt)](stmt)
    return inside


def _body_reader(kind: type[Any]) -> Callable[[Any], tuple[Body, ...]]:
    if kind is lir.Switch:
        return lambda switch: switch.cases
    return _field_reader(names_of(kind, "body"))


_BODIES = _Readers(_body_reader)


def map_bodies(stmt: Stmt, change: Callable[[Body], Body]) -> Stmt:
    if isinstance(stmt, lir.Switch):
        return replace(stmt, cases=tuple(map(change, stmt.cases)))
    names = names_of(type(stmt), "body")
    if not names:
        return stmt
    changes: dict[str, Any] = {name: change(getattr(stmt, name)) for name in names}
    return replace(stmt, **changes)


def statements(body: Body) -> Iterator[Stmt]:
    for stmt in body:
        yield stmt
        for inner in bodies(stmt):
            yield from statements(inner)


def holds_region(stmt: Stmt) -> bool:
    inside = (inner for body in bodies(stmt) for inner in statements(body))
    return any(isinstance(inner, lir.BlockRegion) for inner in inside)


def bound_by(stmt: Stmt) -> tuple[Value, ...]:
    values: tuple[Value, ...] = _RESULTS[type(stmt)](stmt)
    return values


_RESULTS = _Readers(lambda kind: _value_reader(kind, "result"))


def bound_in(stmt: Stmt) -> tuple[Value, ...]:
    if isinstance(stmt, lir.Grid | lir.BlockRegion):
        return tuple(var for _, var, _ in stmt.dims)
    return _values(stmt, "inside", "result")


def _values(stmt: Stmt, *roles: Role) -> tuple[Value, ...]:
    names = names_of(type(stmt), *roles)
    return tuple(_listed([getattr(stmt, name) for name in names]))


def free_values(body: Body) -> dict[str, Value]:
    read: dict[str, Value] = {}
    bound: set[str] = set()
    for stmt in statements(body):
        read.update((v.name, v) for v in operands(stmt))
        bound.update(v.name for v in bound_in(stmt))
    return {name: value for name, value in read.items() if name not in bound}


def steers(stmt: Stmt) -> tuple[Value, ...]:
    if isinstance(stmt, lir.Grid | lir.BlockRegion):
        return operands(stmt)
    return _values(stmt, "steers")


def flows(stmt: Stmt) -> Iterable[tuple[tuple[Value, ...], tuple[Value, ...]]]:
    """Return, for each value that control carries, its sources and its names."""
    match stmt:
        case lir.For() | lir.While():
            sources: tuple[tuple[Value, ...], ...] = (stmt.inits, stmt.yields)
            names: tuple[tuple[Value, ...], ...] = (stmt.params, stmt.results)
        case lir.If():
            sources, names = (stmt.then_yields, stmt.else_yields), (stmt.results,)
        case lir.Switch(yields=yields, results=results) if results:
            sources, names = yields, (results,)
        case _:
            return ()
    return zip(zip(*sources, strict=True), zip(*names, strict=True), strict=True)
